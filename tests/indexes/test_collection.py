"""What is indexed: photos with their facts, files of captions, splits of datasets."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import ExifTags, Image

from gradspace.indexes.collection import (
    caption_file,
    dataset_split,
    identity,
    open_collection,
    photo_folder,
    with_facts,
)
from gradspace.runs.recipe_tables import DataRecipe


def test_a_folder_of_photos(photos: Path) -> None:
    (photos / "notes.txt").write_text("no photo")
    (photos / ".hidden.png").write_bytes(b"")
    (photos / ".trash").mkdir()
    (photos / ".trash" / "old.png").write_bytes(b"")
    (photos / "folder.png").mkdir()
    collection = photo_folder(photos)
    names = [item.key for item in collection.items]
    assert names == sorted(names)
    assert names[:2] == ["000.png", "002.png"]
    assert names[-1] == "below/009.png"
    assert {item.kind for item in collection.items} == {"image"}
    assert collection.items[-1].metadata["folder"] == "below"
    assert collection.picture("below/009.png").size == (48, 40)
    assert open_collection(collection.record).items == collection.items


def test_a_photo_that_has_changed_has_another_fingerprint(photos: Path) -> None:
    before = {item.key: item.fingerprint for item in photo_folder(photos).items}
    (photos / "000.png").write_bytes((photos / "002.png").read_bytes())
    after = {item.key: item.fingerprint for item in photo_folder(photos).items}
    assert [key for key in before if before[key] != after[key]] == ["000.png"]


@pytest.mark.parametrize("place", ["", "index", "below/index"])
def test_an_index_among_the_photos_is_left_out(photos: Path, place: str) -> None:
    before = photo_folder(photos).items
    index = photos / place
    for part in ("thumbnails/a0", "segments"):
        (index / part).mkdir(parents=True)
        (index / part / "small.jpg").write_bytes(b"")
    (index / "index.json").write_text("{}")
    assert photo_folder(photos).items == before


def test_a_collection_is_the_same_however_its_path_is_typed(photos: Path, tmp_path: Path) -> None:
    (photos / "captions.csv").write_text("image,caption\n000.png,a\n002.png,b\nbelow/001.png,c\n")
    (tmp_path / "c.txt").write_text("a dog\n")
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    for typed in (link, tmp_path / "photos" / ".."):
        assert photo_folder(typed / "photos").record == photo_folder(photos).record
        assert caption_file(typed / "c.txt").record == caption_file(tmp_path / "c.txt").record
        data = DataRecipe(source=str(typed / "photos"))
        plain = dataset_split(DataRecipe(source=str(photos)), "test").record
        assert dataset_split(data, "test").record == plain
        earlier = {"data": {"source": str(typed / "photos")}, "split": "test"}
        assert identity(earlier) == identity(plain)
        earlier = {"photos": str(typed / "photos"), "metadata": "/facts.csv"}
        assert identity(earlier) == identity(photo_folder(photos).record)
    assert identity({"photos": "/a"}) != identity({"photos": "/b"})


def test_links_out_of_the_folder_are_files_like_others_but_folders_are_not_followed(
    photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (photos / "000.png").rename(tmp_path / "elsewhere" / "000.png")
    (photos / "there").symlink_to(tmp_path / "elsewhere")
    assert "there/000.png" not in {item.key for item in photo_folder(photos).items}


def test_what_a_camera_says(tmp_path: Path) -> None:
    """A photo taken with the camera on its side is turned, and its date can be asked for."""
    picture = Image.new("RGB", (60, 30), "red")
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2024:05:01 10:20:30"
    picture.save(tmp_path / "a.jpg", exif=exif)
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "yesterday"
    picture.save(tmp_path / "b.jpg", exif=exif)
    collection = photo_folder(tmp_path)
    upright = collection.picture("a.jpg")
    assert upright.size == (30, 60)
    facts = with_facts(collection.items[0], upright).metadata
    assert facts == {"folder": "", "width": 30, "height": 60, "taken": "2024-05-01 10:20:30"}
    assert "taken" not in with_facts(collection.items[1], collection.picture("b.jpg")).metadata


def test_metadata_of_photos(photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "facts.csv"
    table.write_text("path,year,place\n000.png,2020,Bern\n002.png,20.5,\nbelow/001.png,x,\n")
    items = {item.key: item for item in photo_folder(photos, table).items}
    assert items["000.png"].metadata == {"folder": "", "year": 2020, "place": "Bern"}
    assert items["002.png"].metadata == {"folder": "", "year": 20.5}
    assert items["below/001.png"].metadata == {"folder": "below", "year": "x"}
    before = items["000.png"].fingerprint
    table.write_text("path,year\n000.png,2021\n")
    again = open_collection(photo_folder(photos, table).record)
    assert again.items[0].fingerprint != before


def test_metadata_of_no_photo(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "facts.csv").write_text(f"path,year\n{photos}/000.png,2020\n")
    with pytest.raises(
        ValueError, match=r"no path in .*facts.csv belongs to a photo .* relative to that"
    ):
        photo_folder(photos, tmp_path / "facts.csv")


@pytest.mark.parametrize("text", ["", "name,year\na,1\n", "path\n"])
def test_metadata_without_paths(photos: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "facts.csv").write_text(text)
    with pytest.raises(ValueError, match=r"facts.csv needs a header with the column `path`"):
        photo_folder(photos, tmp_path / "facts.csv")


def test_a_file_of_captions(tmp_path: Path) -> None:
    long = "very " * 100 + "long"
    (tmp_path / "c.txt").write_text(f"a dog\n\n  a cat \na dog\n{long}\n{long} too\n")
    collection = caption_file(tmp_path / "c.txt")
    assert [item.text for item in collection.items] == ["a dog", "a cat", long, f"{long} too"]
    assert collection.items[0].key == "a dog"
    assert len({item.key for item in collection.items}) == 4
    assert max(len(item.key) for item in collection.items) < 250
    assert open_collection(collection.record).items == collection.items


def test_a_split_of_a_dataset() -> None:
    data = DataRecipe.model_validate({"source": "scenes", "num_train": 4, "num_dev": 3})
    collection = dataset_split(data, "dev")
    split = collection.split
    assert [item.kind for item in collection.items] == ["image"] * 3 + ["caption"] * len(
        split.captions
    )
    first, *others = collection.items
    assert first.text.split("\n") == [
        caption
        for caption, image in zip(split.captions, split.image_of_caption, strict=True)
        if image == 0
    ]
    caption = others[2]
    assert (caption.text, caption.image) == (split.captions[0], first.key)
    assert open_collection(collection.record).items == collection.items


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: photo_folder(p / "none"), "none does not exist: expected a folder of photos"),
        (lambda p: photo_folder(p), "there are no image files in"),
        (lambda p: caption_file(p / "none.txt"), "none.txt does not exist: expected a text file"),
        (lambda p: dataset_split(DataRecipe(source="scenes"), "all"), "has no split 'all', only"),
        (lambda p: dataset_split(DataRecipe(source="questions"), "test"), "passages are not"),
    ],
)
def test_nothing_to_index(make: object, message: str, tmp_path: Path) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make(tmp_path)


def test_an_empty_file_of_captions(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("\n \n")
    with pytest.raises(ValueError, match=r"c.txt has no captions: write one per line"):
        caption_file(tmp_path / "c.txt")
