"""The page in a real browser: quiet, complete, usable by keyboard, on a phone, in print."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from browsing import CONTRASTS, NEEDS_A_BROWSER, ask, background, open_browser, prefer, resize
from PIL import Image
from report.conftest import CPU, Reported
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

from gradspace.comparison.compare import find_out
from gradspace.comparison.entries import Entry
from gradspace.comparison.tables import View
from gradspace.data.dataset import Dataset
from gradspace.mining import mine_exact
from gradspace.report import write_report
from gradspace.report.audit import write_audit
from gradspace.runs.numbers import RECALLS
from gradspace.scores.represented import Embeddings

pytestmark = NEEDS_A_BROWSER


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with open_browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def opened(browser: webdriver.Chrome, reported: Reported) -> webdriver.Chrome:
    """The page anew, light, on a screen of a usual size."""
    prefer(browser, "light")
    resize(browser, 1280)
    browser.get(reported.path.as_uri())
    return browser


def shown(browser: webdriver.Chrome) -> list[tuple[str, str]]:
    """(direction, outcome) of the examples that can be seen."""
    cards = browser.find_elements(By.CSS_SELECTOR, ".example")
    return [
        (str(card.get_attribute("data-way")), str(card.get_attribute("data-outcome")))
        for card in cards
        if card.is_displayed()
    ]


def count(browser: webdriver.Chrome) -> str:
    return browser.find_element(By.CSS_SELECTOR, ".controls output").text


def choose(browser: webdriver.Chrome, value: str) -> None:
    browser.find_element(By.CSS_SELECTOR, f'.controls input[value="{value}"]').click()


@pytest.mark.slow
def test_it_opens_quietly_and_asks_for_nothing(
    browser: webdriver.Chrome, reported: Reported
) -> None:
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # type: ignore[no-untyped-call]  # of what the browser opened itself
    browser.get(reported.path.as_uri())
    said = browser.get_log("browser")  # type: ignore[no-untyped-call]
    assert not [line for line in said if line["level"] in ("WARNING", "SEVERE")]
    asked = ask(browser, "return performance.getEntriesByType('resource').map((e) => e.name)")
    events = browser.get_log("performance")  # type: ignore[no-untyped-call]
    messages = [json.loads(line["message"])["message"] for line in events]
    asked += [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert asked
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]


def test_all_pictures_are_there(opened: webdriver.Chrome) -> None:
    widths = ask(opened, "return [...document.images].map((i) => [i.naturalWidth, i.alt])")
    assert len(widths) > 20
    assert all(width > 0 and alt for width, alt in widths)


def test_ids_and_headings_and_landmarks(opened: webdriver.Chrome) -> None:
    ids = ask(opened, "return [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    levels = ask(
        opened,
        "return [...document.querySelectorAll('h1,h2,h3,h4')].map((h) => Number(h.tagName[1]))",
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for landmark in ("header", "nav", "main", "footer"):
        assert len(opened.find_elements(By.CSS_SELECTOR, f"body {landmark}")) == 1
    unlabelled = "return [...document.querySelectorAll('input')].filter((i) => !i.labels[0]).length"
    assert ask(opened, unlabelled) == 0


@pytest.mark.slow
def test_filters_and_directions(opened: webdriver.Chrome) -> None:
    everything = shown(opened)
    assert {way for way, _ in everything} == {"t2i"}
    assert count(opened) == f"{len(everything)} of {len(everything)} shown"
    for value in ("only-a only-b", "only-a", "only-b"):
        choose(opened, value)
        wanted = [pair for pair in everything if pair[1] in value.split()]
        assert shown(opened) == wanted
        assert count(opened) == f"{len(wanted)} of {len(everything)} shown"
    choose(opened, "i2t")
    assert set(shown(opened)) <= {("i2t", "only-b")}
    empty = opened.find_element(By.CSS_SELECTOR, ".empty")
    assert empty.is_displayed() == (not shown(opened))


def test_the_right_ones_are_marked_in_words(opened: webdriver.Chrome) -> None:
    marked = opened.find_elements(By.CSS_SELECTOR, ".example.t2i li.right")
    assert marked
    assert all("right" in item.text for item in marked if item.is_displayed())
    outline = "return getComputedStyle(document.querySelector('.pictures .right img')).outlineStyle"
    assert ask(opened, outline) == "solid"


def test_the_theme_follows_the_system_and_the_button(opened: webdriver.Chrome) -> None:
    light = background(opened)
    button = opened.find_element(By.ID, "theme")
    assert button.accessible_name == "Change to the dark theme"
    button.click()
    dark = background(opened)
    assert dark != light
    assert button.accessible_name == "Change to the light theme"
    button.click()
    assert background(opened) == light
    opened.refresh()
    prefer(opened, "dark")
    assert background(opened) == dark
    opened.find_element(By.ID, "theme").click()
    assert background(opened) == light


def test_everything_by_keyboard(opened: webdriver.Chrome) -> None:
    def press(*keys: str) -> None:
        ActionChains(opened).send_keys(*keys).perform()

    press(Keys.TAB)
    assert opened.switch_to.active_element.text == "Skip to the results"
    press(Keys.TAB)
    assert opened.switch_to.active_element.get_attribute("id") == "theme"
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert ask(opened, outline) == "solid", "one must see where one is"
    light = background(opened)
    press(Keys.SPACE)
    assert background(opened) != light
    ask(opened, "document.querySelector('#examples .scroll').focus()")
    press(Keys.TAB)
    press(Keys.ARROW_RIGHT)
    assert {way for way, _ in shown(opened)} == {"i2t"}
    press(Keys.TAB)
    press(Keys.ARROW_RIGHT)
    assert {outcome for _, outcome in shown(opened)} <= {"only-a", "only-b"}
    assert ask(opened, "return document.activeElement.value") == "only-a only-b"
    summary = opened.find_element(By.CSS_SELECTOR, "#made summary")
    ask(opened, "document.querySelector('#made summary').focus()")
    press(Keys.ENTER)
    assert summary.find_element(By.XPATH, "..").get_attribute("open") is not None


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_sideways_scrolling(opened: webdriver.Chrome, width: int) -> None:
    resize(opened, width)
    for way in ("i2t", "t2i"):
        choose(opened, way)
        assert ask(opened, "return document.documentElement.scrollWidth") <= width
    tables = "return [...document.querySelectorAll('.scroll')].filter((e) => e.tabIndex !== 0)"
    assert not ask(opened, f"{tables}.length"), "what scrolls can be scrolled by keyboard"


@pytest.mark.parametrize("layout", ["rows", "grid"])
def test_rsum_is_seen_on_a_phone(
    browser: webdriver.Chrome, reported: Reported, tmp_path: Path, layout: Literal["rows", "grid"]
) -> None:
    """Without scrolling; and once, whatever the screen."""
    labels = {"triplet": "nca/sigmoid-ms", "nt-xent": "circle/sigmoid-ms"}
    entries = [replace(entry, objective=labels[entry.objective]) for entry in reported.entries]
    metrics = (*RECALLS, "rsum") if layout == "rows" else ("i2t R@1", "t2i R@1", "rsum")
    findings = find_out(View("Small", metrics, layout), entries)
    write_report(tmp_path / "page.html", "Small", entries, findings, device=CPU)
    rsums = {f"{np.mean([e.value('rsum') for e in of]):.1f}" for of in by_objective(entries)}
    for width in (390, 1280):
        resize(browser, width)
        browser.get((tmp_path / "page.html").as_uri())
        cells = browser.find_elements(By.CSS_SELECTOR, "#tables td")
        shown = [cell for cell in cells if cell.is_displayed()]
        found = [cell for cell in shown if cell.text.split()[:1] and cell.text.split()[0] in rsums]
        assert len(found) == 2
        assert all(cell.rect["x"] + cell.rect["width"] <= width for cell in found)
        heads = browser.find_elements(By.CSS_SELECTOR, "#tables thead th")
        assert [head.text for head in heads if head.is_displayed()].count("rsum") == 1


def by_objective(entries: list[Entry]) -> list[list[Entry]]:
    names = dict.fromkeys(entry.objective for entry in entries)
    return [[entry for entry in entries if entry.objective == name] for name in names]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read(opened: webdriver.Chrome, theme: str) -> None:
    prefer(opened, theme)
    ask(opened, "document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    contrasts = ask(opened, CONTRASTS)
    assert len(contrasts) > 200
    assert not [(ratio, text) for ratio, text in contrasts if ratio < 4.5]


def test_it_prints(opened: webdriver.Chrome) -> None:
    opened.find_element(By.ID, "theme").click()
    printed = opened.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    document = base64.b64decode(printed["data"])
    assert document.startswith(b"%PDF")
    assert document.rstrip().endswith(b"%%EOF")
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert ask(opened, "return getComputedStyle(document.querySelector('nav')).display") == "none"
    assert background(opened) == "rgb(255, 255, 255)", "paper is white whatever the screen was"


def test_a_picture_of_it(opened: webdriver.Chrome, tmp_path: Path) -> None:
    path = tmp_path / "report.png"
    assert opened.save_screenshot(str(path))
    colours = Image.open(io.BytesIO(path.read_bytes())).convert("RGB").getcolors(1 << 20)
    assert colours is not None
    assert len(colours) > 50


def test_the_page_of_suspicious_negatives(
    browser: webdriver.Chrome, data: Dataset, tmp_path: Path
) -> None:
    split = data.splits["train"]
    torch.manual_seed(0)
    images, texts = (
        torch.nn.functional.normalize(torch.randn(len(names), 16), dim=1)
        for names in (split.image_names, split.captions)
    )
    owner = torch.from_numpy(split.image_of_caption)
    ids = torch.arange(len(images))
    found = Embeddings(images, texts, ids, owner, split.image_names, split.captions)
    page = tmp_path / "audit.html"
    write_audit(page, mine_exact(found, top_texts=20, top_images=10), split)
    browser.get("about:blank")
    browser.get_log("browser")  # type: ignore[no-untyped-call]
    browser.get(page.as_uri())
    assert not browser.get_log("browser")  # type: ignore[no-untyped-call]
    pairs = browser.find_elements(By.CSS_SELECTOR, "article")
    likely, errors = browser.find_elements(By.CSS_SELECTOR, "main > section")
    assert likely.find_element(By.TAG_NAME, "h2").text == "Likely false negatives"
    assert errors.find_element(By.TAG_NAME, "h2").text == "Errors of the model"
    assert likely.rect["y"] < errors.rect["y"]
    notes = [note.text for note in likely.find_elements(By.CSS_SELECTOR, ".note")]
    close = [float(note.rpartition("closeness ")[2]) for note in notes]
    assert close == sorted(close, reverse=True)
    assert 0 < len(close) <= 48
    assert close[-1] >= 0.5
    assert len(close) < len(pairs) <= 48 + 24
    assert ask(browser, "return [...document.images].every((image) => image.naturalWidth > 0)")
    assert ask(browser, "return document.images.length") == 2 * len(pairs)
    resize(browser, 360)
    assert ask(browser, "return document.documentElement.scrollWidth") <= 360
