"""Start the command line."""

import atexit

from gradspace.interrupts import end_undisturbed, leave_at_once

leave_at_once()  # before slow imports
atexit.register(end_undisturbed)  # registered before all others, and so called after them

from gradspace.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
