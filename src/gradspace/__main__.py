"""Start the command line."""

from gradspace.interrupts import leave_at_once

leave_at_once()  # before slow imports

from gradspace.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
