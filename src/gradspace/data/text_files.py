"""Text files from users: UTF-8, one item per line."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str:
    """Read a file, without its byte order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not valid UTF-8 ({error}); save it as UTF-8") from None


def read_lines(path: Path) -> list[str]:
    """Read lines without their ends; only \\n separates, as captions may contain anything else."""
    lines = [line.rstrip("\r") for line in read_text(path).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines
