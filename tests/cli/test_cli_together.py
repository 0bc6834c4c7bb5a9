"""Options that mean something together only: one that would be ignored is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import here, refused
from indexes.made_photos import write_photos
from small_runs import train_small

from gradspace.runs.folder import Run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_small(tmp_path_factory.mktemp("runs") / "a", training={"epochs": 1})


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("evaluate RUN --top 5", "--top goes with --propose: give a model that proposes"),
        ("evaluate RUN --proposal-weight 0", "--proposal-weight goes with --rerank"),
        ("mine RUN --proposals 3", "--proposals goes with --propose"),
        ("mine RUN --propose RUN --approximate", "give --propose or --approximate, not both"),
        (
            "mine VECTORS --split test",
            "mined unchanged: leave --data, --features",
        ),
        ("mine VECTORS --audit", "--audit needs a run"),
        ("embed RUN --text a --split dev --out OUT", "--text and --image are embedded without a"),
        ("search OUT a --image-weight 0.3", "--image-weight weighs an --image against a sentence"),
        (
            "index RUN PHOTOS --out OUT --split dev",
            "--split is for datasets, and PHOTOS is a folder of",
        ),
        ("index RUN PHOTOS --out OUT --features PHOTOS", "--features is for datasets, and PHOTOS"),
        ("compare RECIPE --list", "--list shows all built-in comparisons: leave the recipe out"),
        ("compare RECIPE --backbone x", "--backbone computes features for --data"),
        (
            "train --objective triplet --set objective.name=nt-xent",
            "--objective triplet and --set objective.name=nt-xent both set objective.name",
        ),
        ("train --seed 0 --set seed=1", "--seed 0 and --set seed=1 both set seed: leave one"),
        ("train --batch 8 --set training={}", "both set training.batch_size"),
        (
            "train --resume RUN --set training.epochs=9",
            "start a new run from its weights with --init",
        ),
        ("data scenes --out OUT", "--out goes with --show"),
    ],
)
def test_what_would_be_ignored_is_refused(
    typed: str, told: str, trained: Run, tmp_path: Path
) -> None:
    places = {
        "RUN": trained.folder,
        "OUT": tmp_path / "out",
        "PHOTOS": tmp_path / "photos",
        "VECTORS": tmp_path / "vectors",
        "RECIPE": "icr-table1",
    }
    write_photos(tmp_path / "photos", range(1))
    (tmp_path / "vectors").touch()
    for name, place in places.items():
        told = told.replace(name, str(place))
    given = [str(places.get(part, part)) for part in typed.split()]
    assert told in refused(*given)


def test_paths_of_a_table_that_match_no_photo(model: Path, photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "facts.csv"
    table.write_text("path,year\n000.png,2020\nPhotos/001.png,2021\n2.png,2022\n")
    given = ("index", model, photos, "--out", tmp_path / "index", "--metadata", table)
    note = f"2 of 3 paths in {table} match no photo in {photos}; the first is 'Photos/001.png'"
    done = here(*given)
    assert (done.returncode, done.stderr) == (0, f"{note}\n")
    assert json.loads(here(*given, "--json").stdout)["notes"] == [note]
    table.write_text("path,year\n000.png,2020\n")
    assert here(*given).stderr == ""
