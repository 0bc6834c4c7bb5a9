"""Start the command line."""

import atexit

from gradspace.interrupts import end_undisturbed, leave_at_once

leave_at_once()  # before anything is imported that takes its time
atexit.register(end_undisturbed)  # before all others, and so called after them

from gradspace.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
