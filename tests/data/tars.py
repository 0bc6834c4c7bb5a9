"""Tar shards for tests, whole and damaged."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from data.examples import picture

Members = Sequence[tuple[str, bytes]]


def picture_bytes(seed: int, kind: str = "JPEG", size: tuple[int, int] = (24, 18)) -> bytes:
    file = io.BytesIO()
    picture(seed, size).save(file, kind)
    return file.getvalue()


def bomb() -> bytes:
    """A PNG of a few hundred bytes that claims to have 4 * 10^10 pixels."""
    data = bytearray(picture_bytes(0, "PNG"))
    data[16:24] = (200_000).to_bytes(4) * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4)
    return bytes(data)


def write_tar(path: Path, members: Members) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def sample(key: str, seed: int, captions: int = 1) -> list[tuple[str, bytes]]:
    text = "\n".join(f"caption {k} of picture {seed}" for k in range(captions))
    return [(f"{key}.jpg", picture_bytes(seed)), (f"{key}.txt", text.encode())]


def write_shards(folder: Path, sizes: Mapping[str, int], captions: int = 1) -> Path:
    """Shards of so many samples each; every picture of the folder is another one."""
    seed = 0
    for name, size in sizes.items():
        members = []
        for number in range(size):
            members += sample(f"{number:04d}", seed, captions)
            seed += 1
        write_tar(folder / name, members)
    return folder
