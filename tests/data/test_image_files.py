from __future__ import annotations

import pickle
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from data.examples import picture, write_images, zip_folder
from PIL import Image

from gradspace.data.image_files import (
    ImageFolder,
    ImageZip,
    StoredImages,
    find_store,
    leads_outside,
    open_store,
)

NAMES = ["a.jpg", "deep/b.png", "c.avif"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", NAMES)


@pytest.mark.parametrize("prefix", [None, "", "photos/"])
def test_images_come_from_folders_and_zips(folder: Path, prefix: str | None) -> None:
    path = folder if prefix is None else zip_folder(folder, folder.with_suffix(".zip"), prefix)
    images = StoredImages(open_store(path), NAMES)
    for index in range(3):
        image = images.load(index)
        assert (image.mode, image.size) == ("RGB", (48, 36))
        difference = np.asarray(image).astype(int) - np.asarray(picture(index))
        assert abs(difference).mean() < 12
    assert np.array_equal(np.asarray(images.load(1)), np.asarray(picture(1)))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1", "I;16"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    suffix = "tiff" if mode == "CMYK" else "png"
    source = Image.new(mode, (5, 4)) if mode == "I;16" else picture(0).convert(mode)
    source.save(tmp_path / f"x.{suffix}")
    assert StoredImages(ImageFolder(tmp_path), [f"x.{suffix}"]).load(0).mode == "RGB"


def test_transparent_palettes_become_rgb(tmp_path: Path) -> None:
    source = picture(0).convert("P")
    source.save(tmp_path / "x.png", transparency=bytes(range(256)))
    assert StoredImages(ImageFolder(tmp_path), ["x.png"]).load(0).mode == "RGB"


def test_missing_images_are_named(folder: Path) -> None:
    images = StoredImages(ImageFolder(folder), ["no.jpg", "deep", ""])
    with pytest.raises(ValueError, match=r"there is no image 'no.jpg': not in .*images"):
        images.load(0)
    assert all(images.missing(index) for index in range(3))


@pytest.mark.parametrize("name", ["../x.jpg", "a/../../x.jpg", "/etc/x.jpg", "..\\x.jpg", "C:\\x"])
def test_names_cannot_lead_out(tmp_path: Path, name: str) -> None:
    write_images(tmp_path, ["x.jpg", "images/a.jpg"])
    zipped = zip_folder(tmp_path / "images", tmp_path / "images.zip", "../")
    assert leads_outside(name)
    for store in (ImageFolder(tmp_path / "images"), ImageZip(zipped)):
        with pytest.raises(ValueError, match="leads out of"):
            StoredImages(store, [name]).load(0)
    assert not leads_outside("a/b..c/d.jpg")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.95])
def test_truncated_images_are_broken(folder: Path, name: str, keep: float) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(keep * len(content))])
    for path in (folder, zip_folder(folder, folder.with_suffix(".zip"))):
        with pytest.raises(ValueError, match=rf"image '{name}' in .* is broken: "):
            StoredImages(open_store(path), [name]).load(0)


def test_a_flipped_byte_in_a_zip_is_found(folder: Path) -> None:
    path = zip_folder(folder, folder.with_suffix(".zip"))
    content = bytearray(path.read_bytes())
    content[content.index(b"a.jpg") + 200] ^= 255
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"'a.jpg' in .* is broken: Bad CRC-32"):
        StoredImages(ImageZip(path), ["a.jpg"]).load(0)


def test_pixel_bombs_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        size, code = struct.pack(">I", len(content)), struct.pack(">I", zlib.crc32(kind + content))
        return size + kind + content + code

    header = struct.pack(">IIBBBBB", 12_000, 12_000, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
    with pytest.raises(ValueError, match=r"bomb.png.* is broken: .*144000000 pixels"):
        StoredImages(ImageFolder(tmp_path), ["bomb.png"]).load(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 12_000**2 - 1)
        patch.setattr(Image, "_decompression_bomb_check", lambda size: None)
        with pytest.raises(ValueError, match="12000 x 12000 pixels, more than the"):
            StoredImages(ImageFolder(tmp_path), ["bomb.png"]).load(0)


def load_size(images: StoredImages, index: int) -> tuple[int, int]:
    return images.load(index).size


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.slow
def test_zips_work_in_other_processes_and_threads(folder: Path, method: str) -> None:
    images = StoredImages(ImageZip(zip_folder(folder, folder.with_suffix(".zip"))), NAMES)
    images.load(0)
    assert load_size(pickle.loads(pickle.dumps(images)), 2) == (48, 36)
    work = [(images, index % 3) for index in range(60)]
    with get_context(method).Pool(2) as pool:
        assert pool.starmap(load_size, work) == [(48, 36)] * 60
    with ThreadPoolExecutor(4) as threads:
        assert [image.size for image in threads.map(images.load, [0, 1, 2] * 20)] == [(48, 36)] * 60


def test_stores_are_found_beside_the_captions(tmp_path: Path) -> None:
    def found() -> str:
        store = find_store(tmp_path, ["gone.jpg", *NAMES])
        return store.path.name if store else ""

    assert found() == ""
    (tmp_path / "other").mkdir()
    write_images(tmp_path / "photos", NAMES)
    assert found() == "photos"
    zip_folder(tmp_path / "photos", tmp_path / "b.zip", "photos/")
    assert found() == "b.zip"
    write_images(tmp_path, ["a.jpg"])
    assert found() == tmp_path.name
    write_images(tmp_path / "images", ["c.avif"])
    assert found() == "images"


def test_bad_stores_are_explained(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"nowhere does not exist: expected an image folder or zip"
    ):
        open_store(tmp_path / "nowhere")
    (tmp_path / "images.zip").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"images.zip is not a complete zip file"):
        open_store(tmp_path / "images.zip")
