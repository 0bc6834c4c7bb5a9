"""Text that users hand over: UTF-8, one item a line."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str:
    """The file without a byte order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error}); save it as UTF-8") from None


def read_lines(path: Path) -> list[str]:
    """Lines without their ends; a caption may hold any other character, so only \\n separates."""
    lines = [line.rstrip("\r") for line in read_text(path).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines
