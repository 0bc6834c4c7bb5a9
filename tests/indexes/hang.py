"""`gradspace embed`, which stops in the middle of its first shard and says so in a file."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from gradspace.cli import main
from gradspace.indexes import fill


def hang(*arguments: Any) -> None:
    Path(sys.argv[-1]).with_suffix(".hangs").touch()
    time.sleep(600)


if __name__ == "__main__":
    fill.__dict__["write_shard"] = hang
    main()
