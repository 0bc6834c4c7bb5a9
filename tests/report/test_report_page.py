"""The page without a browser: what it says, what it survives, and that it is always the same."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from PIL import Image
from report.conftest import Reported, judged_on, report

import gradspace.report.write
from gradspace.comparison.compare import Findings, find_out
from gradspace.comparison.entries import Entry
from gradspace.comparison.published import Published
from gradspace.comparison.tables import View
from gradspace.data.dataset import Dataset, Split
from gradspace.report import write_report
from gradspace.runs.folder import Run

SECTIONS = (
    "tables",
    "differences",
    "learning",
    "cocos",
    "triplets",
    "scores",
    "cross",
    "examples",
    "made",
)
HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(2)>')
CANNOT = "This could not be made"


class Elements(HTMLParser):
    """Every element with its attributes, and the text of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def page(reported: Reported) -> str:
    return reported.path.read_text(encoding="utf-8")


def test_it_has_every_section_in_order(page: str) -> None:
    assert re.findall(r'<section id="([^"]+)"', page) == list(SECTIONS)
    assert CANNOT not in page
    assert "There are no examples" not in page


def test_it_is_one_file(page: str) -> None:
    places = re.findall(r'(?:src|href)="([^"]*)"', page) + re.findall(r"url\(([^)]*)\)", page)
    outside = [p for p in places if not p.startswith(("#", "data:"))]
    assert not outside
    assert "@import" not in page


def test_ids_are_unique_and_every_reference_has_one(page: str) -> None:
    found = [attributes for _, attributes in Elements(page).found]
    ids = [attributes["id"] for attributes in found if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = re.findall(r'href="#([^"]+)"', page) + re.findall(r"url\(#([^)]+)\)", page)
    wanted += [str(a["aria-labelledby"]) for a in found if "aria-labelledby" in a]
    assert set(wanted) <= set(ids)


def test_no_colour_of_a_role_is_left_in_the_figures(page: str) -> None:
    assert "#01f0" not in page
    assert "var(--objective-1)" in page


def test_every_plot_has_its_words(page: str) -> None:
    plots = [a for a in Elements(page).named("svg") if a.get("class") == "plot"]
    assert len(plots) > 10
    assert all(plot["role"] == "img" and len(str(plot["aria-label"])) > 20 for plot in plots)


def test_the_same_input_gives_the_same_bytes(reported: Reported, page: str, tmp_path: Path) -> None:
    again = report(
        tmp_path / "again.html",
        reported.entries,
        notes=["A note."],
        failed=["triplet, seed 1: out of memory"],
    )
    assert again == page


def test_numbers_marks_notes_and_failures_are_told(reported: Reported, page: str) -> None:
    text = " ".join(Elements(page).text.split())
    rsum = [e.results.metrics["rsum"] for e in reported.entries if e.objective == "nt-xent"]
    assert f"{sum(rsum) / 2:.1f} ±" in text
    assert "A note." in text
    assert "out of memory" in text
    assert "2 January 2025" in text
    assert re.search(r"<strong>\d", page)


def test_published_numbers_are_in_brackets(entries: list[Entry], tmp_path: Path) -> None:
    published = Published("1", "", "scenes", "VSE++", "triplet", "rsum", 432.1, None)
    view = View("Small", ("rsum",), published=(published,))
    findings = find_out(view, entries)
    write_report(tmp_path / "r.html", "Small", entries, findings)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "[432.1]" in page
    assert "In brackets: the published number." in page


def test_what_users_write_is_text_and_never_markup(
    entries: list[Entry], data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = data.splits["test"]
    captions = [f"{HOSTILE[i % 2]} {caption}" for i, caption in enumerate(test.captions)]
    names = [f"{HOSTILE[1]}{name}" for name in test.image_names]
    hostile = with_test(data, replace(test, captions=captions, image_names=names))
    monkeypatch.setattr("gradspace.report.examples.open_recipe", lambda *_, **__: hostile)
    labelled = [
        replace(e, objective=HOSTILE[0] + e.objective, dataset=HOSTILE[1], model=HOSTILE[0])
        for e in judged_on(entries, hostile)
    ]
    page = report(tmp_path / "r.html", labelled, HOSTILE[0], notes=HOSTILE, failed=HOSTILE)
    elements = Elements(page)
    assert len(elements.named("script")) == 2
    assert not any("src" in image or "onerror" in image for image in elements.named("img"))
    assert not any(name.startswith("on") for _, found in elements.found for name in found)
    assert HOSTILE[0] in elements.text
    assert HOSTILE[1] in elements.text


def test_one_run_alone(entries: list[Entry], tmp_path: Path) -> None:
    page = report(tmp_path / "r.html", entries[:1])
    text = " ".join(Elements(page).text.split())
    assert "there is no other objective to compare with" in text
    assert "there is nothing to compare" in text
    assert "right at rank 1" in text
    assert CANNOT not in text


@pytest.mark.slow
def test_many_objectives_get_a_plot_each(entries: list[Entry], tmp_path: Path) -> None:
    many = [replace(entries[0], objective=f"objective-{number}") for number in range(8)]
    page = report(tmp_path / "r.html", many)
    assert page.count("rsum on dev of objective-") == 8
    assert "Grey is the range of all objectives." in page
    assert CANNOT not in page


def test_too_many_objectives_are_not_all_drawn(
    entries: list[Entry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradspace.report.write, "MOST_DRAWN", 1)
    many = [replace(entries[0], objective=f"objective-{number}") for number in range(7)]
    page = report(tmp_path / "r.html", many)
    assert "Plots show the 6 objectives with the highest mean rsum." in page
    assert page.count("Triplet diagram of ") == 6


def test_several_datasets_are_told_apart(entries: list[Entry], tmp_path: Path) -> None:
    other = [replace(entry, dataset="other") for entry in entries]
    page = report(tmp_path / "r.html", [*entries, *other])
    assert page.count("<h3>VSE++, other</h3>") == 8
    assert CANNOT not in page


def test_features_without_images(
    entries: list[Entry], data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = with_test(data, replace(data.splits["test"], images=None))
    monkeypatch.setattr("gradspace.report.examples.open_recipe", lambda *_, **__: bare)
    page = report(tmp_path / "r.html", entries)
    assert "This dataset has features and no images" in page
    assert "<img" not in page
    assert 'class="stand-in"' in page


def test_images_that_cannot_be_read(
    entries: list[Entry], data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = with_test(data, replace(data.splits["test"], images=HalfBroken()))
    monkeypatch.setattr("gradspace.report.examples.open_recipe", lambda *_, **__: broken)
    page = report(tmp_path / "r.html", entries)
    assert "images cannot be read and are shown as their first caption" in page
    assert "<img" in page


def test_a_dataset_that_is_gone_costs_a_sentence(
    entries: list[Entry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> Dataset:
        raise ValueError("there is no folder data/photos.")

    monkeypatch.setattr("gradspace.report.examples.open_recipe", gone)
    page = report(tmp_path / "r.html", entries)
    assert "There are no examples here: there is no folder data/photos.<" in page
    assert "All queries by who is right" in page, "the counts need no dataset"


def test_a_dataset_that_changed_is_not_shown(
    entries: list[Entry], data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = data.splits["test"]
    changed = with_test(data, replace(test, captions=["another", *test.captions[1:]]))
    monkeypatch.setattr("gradspace.report.examples.open_recipe", lambda *_, **__: changed)
    assert "has changed since" in report(tmp_path / "r.html", entries)


def test_a_run_of_which_only_the_results_are_left(entries: list[Entry], tmp_path: Path) -> None:
    empty = [replace(e, run=Run(tmp_path / "nowhere" / e.objective)) for e in entries]
    page = report(tmp_path / "r.html", empty)
    assert "The runs have no measurements on dev." in page
    assert "The runs recorded no counts during training." in page
    assert "The runs did not record which command made them." in page
    assert "There are no examples here" in page


def test_how_it_was_made(entries: list[Entry], tmp_path: Path) -> None:
    found = []
    for entry in entries:
        folder = copytree(entry.run.folder, tmp_path / entry.objective / str(entry.seed))
        told = folder / "environment.json"
        text = re.sub(
            r'"command": \[.*?\]',
            '"command": ["/usr/bin/gradspace", "compare", "my recipe.toml"]',
            told.read_text(encoding="utf-8"),
            flags=re.DOTALL,
        )
        told.write_text(text, encoding="utf-8")
        found.append(replace(entry, run=Run(folder)))
    page = report(tmp_path / "r.html", found)
    text = Elements(page).text
    assert text.count("gradspace compare 'my recipe.toml'") == 1
    shared = text[text.index("Recipe shared by all runs") : text.index("What each objective adds")]
    own = text[text.index("What each objective adds") :]
    assert "batch_size = 32" in shared
    assert 'name = "nt-xent"' not in shared
    assert 'name = "nt-xent"' in own
    assert "batch_size" not in own


def test_progress_is_told_to_the_end(entries: list[Entry], tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    report(tmp_path / "r.html", entries[:1], progress=lambda *now: told.append(now))
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert {total for _, total in told} == {len(told)}


def test_no_runs_no_report(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no finished runs"):
        write_report(tmp_path / "r.html", "None", [], Findings("", [], [], {}))
    assert not (tmp_path / "r.html").exists()


class HalfBroken:
    """Every second image is a picture."""

    def __len__(self) -> int:
        return 40

    def load(self, index: int) -> Image.Image:
        if index % 2:
            raise ValueError(f"image {index} is broken")
        return Image.new("RGB", (300, 200), (index, 90, 120))


def with_test(data: Dataset, test: Split) -> Dataset:
    return replace(data, splits={**data.splits, "test": test})
