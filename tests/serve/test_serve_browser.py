"""The page in a real browser: typing, dropping, opening, comparing, with and without a mouse."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from browsing import CONTRASTS, NEEDS_A_BROWSER, ask, background, open_browser, prefer, resize
from fastapi import FastAPI
from PIL import Image
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait
from serve.fakes import COLOURS, HOSTILE, as_bytes, make_searcher
from serve.running import running

from gradspace.serve.app import make_app

pytestmark = NEEDS_A_BROWSER
RED = "flat/red circle #0.jpg"
TILES = "return [...document.querySelectorAll('.tile')].map((tile) => tile.dataset.key)"
DROP = """
const bytes = Uint8Array.from(atob(arguments[0]), (letter) => letter.charCodeAt(0));
const moved = new DataTransfer();
moved.items.add(new File([bytes], "mine.png", {type: arguments[1]}));
const how = arguments[2];
if (how === "paste") dispatchEvent(new ClipboardEvent("paste", {clipboardData: moved}));
else for (const name of ["dragenter", "dragover", how]) {
  dispatchEvent(new DragEvent(name, {dataTransfer: moved, cancelable: true}));
}
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with open_browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def address(app: FastAPI) -> Iterator[str]:
    with running(app) as found:
        yield found


@pytest.fixture
def page(browser: webdriver.Chrome, address: str) -> Iterator[webdriver.Chrome]:
    """Empty, light, on a usual screen; and nothing was amiss on it in the end."""
    prefer(browser, "light")
    resize(browser, 1280)
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # type: ignore[no-untyped-call]
    browser.get(address)
    ask(browser, "localStorage.clear()")
    browser.refresh()
    until(browser, lambda: "items in" in browser.find_element(By.ID, "lead").text)
    yield browser
    said = browser.get_log("browser")  # type: ignore[no-untyped-call]
    assert not [line for line in said if line["level"] in ("WARNING", "SEVERE")]
    events = browser.get_log("performance")  # type: ignore[no-untyped-call]
    messages = [json.loads(line["message"])["message"] for line in events]
    asked = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert asked
    assert not [url for url in asked if not url.startswith((address, "data:", "blob:"))]


def until(browser: webdriver.Chrome, met: Callable[[], Any]) -> Any:
    return WebDriverWait(browser, 10, 0.02).until(lambda _: met())


def press(browser: webdriver.Chrome, *keys: str) -> None:
    ActionChains(browser).send_keys(*keys).perform()


def find(browser: webdriver.Chrome, css: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, css)


def tiles(browser: webdriver.Chrome) -> list[str]:
    return list(ask(browser, TILES))


def search(browser: webdriver.Chrome, text: str, first: str) -> None:
    """Type, and wait for the first result."""
    box = find(browser, "#q")
    box.clear()
    box.send_keys(text)
    until(browser, lambda: tiles(browser)[:1] == [first])


def asked(browser: webdriver.Chrome) -> dict[str, list[str]]:
    return parse_qs(urlsplit(browser.current_url).query)


def opened(browser: webdriver.Chrome) -> bool:
    return find(browser, "#dialog").is_displayed()


def give(
    browser: webdriver.Chrome, colour: str, how: str = "drop", kind: str = "image/png"
) -> None:
    picture = base64.b64encode(as_bytes(Image.new("RGB", (60, 40), COLOURS[colour]))).decode()
    browser.execute_script(DROP, picture, kind, how)


@pytest.mark.slow
def test_results_come_while_one_types(page: webdriver.Chrome) -> None:
    assert find(page, "h1").is_displayed()
    search(page, "a red circle", RED)
    assert find(page, "#count").text == "24 images, best first"
    assert page.title == "a red circle · gradspace"
    assert asked(page)["q"] == ["a red circle"]
    until(page, lambda: ask(page, "return document.querySelector('.tile img').naturalWidth") > 0)
    assert "1.000" in find(page, ".tile").text
    find(page, "#q").send_keys(Keys.CONTROL + "a", Keys.DELETE)
    until(page, lambda: not tiles(page))
    assert find(page, "h1").is_displayed()
    assert find(page, "body").get_attribute("class") == "start", "and nothing is waited for"


@pytest.mark.slow
def test_a_late_answer_to_an_old_question_is_dropped(page: webdriver.Chrome) -> None:
    ask(
        page,
        """const real = window.fetch; let first = true;
        window.fetch = async (...all) => {
          const wait = first && String(all[0]).includes("/api/search"); if (wait) first = false;
          const answer = await real(all[0]);
          if (wait) await new Promise((done) => setTimeout(done, 700));
          return answer;
        };""",
    )
    find(page, "#q").send_keys("a blue ring")
    until(page, lambda: "blue" in page.current_url)
    find(page, "#q").clear()
    find(page, "#q").send_keys("a red circle")
    until(page, lambda: tiles(page)[:1] == [RED])
    ActionChains(page).pause(1).perform()
    assert tiles(page)[0] == RED


@pytest.mark.parametrize("how", ["drop", "paste"])
def test_a_picture_and_then_a_sentence(page: webdriver.Chrome, how: str) -> None:
    give(page, "blue", how)
    until(page, lambda: tiles(page))
    assert all("blue" in key for key in tiles(page)[:4])
    assert find(page, "#seed-image").get_attribute("alt") == "mine.png"
    assert not find(page, "#weight").is_displayed()
    search(page, "ring", "edges & more/blue ring #15.jpg")
    assert find(page, "#weight").is_displayed()
    find(page, "#seed-remove").click()
    until(page, lambda: "blue" not in tiles(page)[1])
    page.back()
    until(page, lambda: find(page, "#seed").is_displayed() and "blue" in tiles(page)[1])


def test_what_is_dropped_may_be_no_picture(page: webdriver.Chrome) -> None:
    give(page, "red", kind="text/plain")
    until(page, lambda: find(page, "#count").text == "mine.png is not a picture.")
    give(page, "red", how="dragover")
    assert find(page, "#drop").is_displayed()


def test_a_file_can_be_picked(page: webdriver.Chrome, tmp_path: Any) -> None:
    file = tmp_path / "green.png"
    file.write_bytes(as_bytes(Image.new("RGB", (60, 40), COLOURS["green"])))
    find(page, "#file").send_keys(str(file))
    until(page, lambda: tiles(page) and "green" in tiles(page)[0])


def test_a_result_opens_with_all_about_it(page: webdriver.Chrome) -> None:
    search(page, "a red circle", RED)
    find(page, ".tile").click()
    until(page, lambda: ask(page, "return document.getElementById('picture').naturalWidth") > 0)
    assert find(page, "#item-title").text == "red circle #0.jpg"
    lines = [line.text for line in page.find_elements(By.CSS_SELECTOR, "#captions li")]
    assert lines == ["a red circle", HOSTILE], "markup is shown as the text it is"
    assert not page.find_elements(By.CSS_SELECTOR, "#captions b, #captions img")
    assert find(page, "#place").text == "1 of 24 · score 1.000"
    find(page, "#why").click()
    until(page, lambda: page.find_elements(By.CSS_SELECTOR, ".word"))
    words = [word.text.split("\n")[0] for word in page.find_elements(By.CSS_SELECTOR, ".word")]
    assert words == ["a", "red", "circle"]
    veil = """const heat = document.getElementById("heat");
      const {data} = heat.getContext("2d").getImageData(0, 0, heat.width, heat.height);
      const at = (x, y) => data[4 * (y * heat.width + x) + 3];
      return [heat.checkVisibility(), at(heat.width / 2, heat.height / 2), at(3, 3)];"""
    visible, middle, corner = ask(page, veil)
    assert visible
    assert middle < 20 < corner, "what counts is seen, the rest is veiled"
    find(page, ".metadata button").click()
    until(page, lambda: len(tiles(page)) == 12)
    assert find(page, ".chip").text.startswith("folder=flat")
    assert not opened(page)


def test_what_is_hinted_at_works(page: webdriver.Chrome) -> None:
    assert find(page, "#by-picture").is_displayed()
    links = page.find_elements(By.CSS_SELECTOR, "#try a")
    assert len(links) == 3
    text = links[1].text
    assert find(page, "#q").get_attribute("placeholder") == links[0].text
    links[1].click()
    until(page, lambda: tiles(page))
    assert find(page, ".tile .text").text == text
    assert asked(page) == {"q": [text]}
    assert not find(page, "#try").is_displayed()
    hint = str(find(page, "#condition").get_attribute("placeholder"))
    find(page, "#condition").send_keys(hint)
    cut = (
        "const box = document.getElementById('condition'); return box.scrollWidth - box.clientWidth"
    )
    assert ask(page, cut) <= 0, "it can be read to its end"
    find(page, "#condition").clear()
    find(page, "#condition").send_keys(hint.removeprefix("filter, as "), Keys.ENTER)
    until(page, lambda: 0 < len(tiles(page)) < 24)


def test_what_an_index_cannot_do_is_not_hinted_at(browser: webdriver.Chrome) -> None:
    prefer(browser, "light")
    resize(browser, 1280)
    bare = make_searcher("bare", plain=True, reads_pictures=False, explains=False)
    with running(make_app([bare])) as address:
        browser.get(address)
        until(browser, lambda: "items in" in find(browser, "#lead").text)
        for hint in ("#by-picture", "#pick", "#try", "#adder"):
            assert not find(browser, hint).is_displayed(), hint
        assert find(browser, "#q").get_attribute("placeholder") == "what is to be seen"
        give(browser, "red", how="dragover")
        assert not find(browser, "#drop").is_displayed()
        give(browser, "red")
        assert "sentences only" in find(browser, "#count").text
        search(browser, "a red circle", RED)
        find(browser, ".tile").click()
        until(browser, lambda: opened(browser))
        assert find(browser, "#like").is_displayed()
        assert not find(browser, "#why").is_displayed()
        browser.get("about:blank")


def test_words_that_the_model_has_never_seen(page: webdriver.Chrome, address: str) -> None:
    search(page, "a red circle", RED)
    assert "never seen" not in find(page, "#results").text
    find(page, "#q").send_keys(" zebra beach")
    said = "The model has never seen “zebra”, “beach”."
    until(page, lambda: said in find(page, "#results").text)
    page.get(f"{address}/?q=a+zebra&index=shapes&index=other-model")
    until(page, lambda: len(page.find_elements(By.CSS_SELECTOR, ".column")) == 2)
    for column in page.find_elements(By.CSS_SELECTOR, ".column"):
        assert "This model has never seen “zebra”." in column.text


def test_why_is_asked_of_images(page: webdriver.Chrome, address: str) -> None:
    page.get(f"{address}/?q=a+red+circle&kind=caption")
    until(page, lambda: tiles(page))
    find(page, ".tile").click()
    until(page, lambda: opened(page) and find(page, "#item-title").text)
    assert not find(page, "#why").is_displayed()


def test_more_like_this(page: webdriver.Chrome) -> None:
    search(page, "a red circle", RED)
    find(page, ".tile").click()
    find(page, "#like").click()
    until(page, lambda: tiles(page) and RED not in tiles(page))
    assert asked(page) == {"like": [RED]}
    assert "red" in tiles(page)[0]
    until(page, lambda: ask(page, "return document.getElementById('seed-image').naturalWidth") > 0)


def test_captions_are_text(page: webdriver.Chrome) -> None:
    search(page, "a red circle", RED)
    find(page, 'input[value="caption"]').click()
    until(page, lambda: tiles(page)[:1] == [f"{RED}:0"])
    assert find(page, ".tile .text").text == HOSTILE
    assert not page.find_elements(By.CSS_SELECTOR, ".tile b, .tile img[src=x]")
    assert find(page, "#count").text == "24 captions, best first"


def test_filters_are_chips(page: webdriver.Chrome) -> None:
    search(page, "a red circle", RED)
    find(page, "#condition").send_keys("year>=2004", Keys.ENTER)
    until(page, lambda: len(tiles(page)) == 20)
    find(page, "#condition").send_keys("colour~BLUE", Keys.ENTER)
    until(page, lambda: len(tiles(page)) == 4)
    assert asked(page)["where"] == ["year>=2004", "colour~BLUE"]
    find(page, ".chip button").click()
    find(page, "#condition").send_keys("nonsense", Keys.ENTER)
    until(page, lambda: page.find_elements(By.CSS_SELECTOR, ".error"))
    assert find(page, ".error").text.startswith("Where: a condition must be a field")
    ask(page, "console.clear()")
    page.get_log("browser")  # type: ignore[no-untyped-call]  # which names the refused request


def marks(column: WebElement) -> list[tuple[str, int, str]]:
    """Read the key and rank of every result, and its mark about the other column."""
    found = []
    for tile in column.find_elements(By.CSS_SELECTOR, ".tile"):
        rank, mark = (tile.find_element(By.CSS_SELECTOR, css).text for css in (".rank", ".mark"))
        found.append((str(tile.get_attribute("data-key")), int(rank.split()[-1]), mark))
    return found


@pytest.mark.slow
def test_two_models_side_by_side(page: webdriver.Chrome) -> None:
    search(page, "a violet square", "flat/violet square #17.jpg")
    Select(find(page, "#second")).select_by_visible_text("other model")
    until(page, lambda: len(page.find_elements(By.CSS_SELECTOR, ".column")) == 2)
    left, right = page.find_elements(By.CSS_SELECTOR, ".column")
    assert left.find_element(By.TAG_NAME, "h2").text == "shapes"
    assert "4 of 24 results only here" in left.text
    assert "the same results" in right.text
    first = left.find_element(By.CSS_SELECTOR, ".tile")
    assert "only here" in first.text
    there = {key: (rank, mark) for key, rank, mark in marks(right)}
    for key, rank, mark in marks(left):
        if key not in there:
            assert mark == "only here"
            continue
        other, opposite = there[key]
        moved = other - rank
        arrows = ("↑", "↓") if moved > 0 else ("↓", "↑")
        for said, arrow in zip((mark, opposite), arrows, strict=True):
            assert said.startswith(f"{arrow} {abs(moved)}" if moved else "same rank"), key
    assert asked(page)["index"] == ["shapes", "other-model"]
    page.refresh()
    until(page, lambda: len(page.find_elements(By.CSS_SELECTOR, ".column")) == 2)
    Select(find(page, "#second")).select_by_index(0)
    until(page, lambda: not page.find_elements(By.CSS_SELECTOR, ".mark"))
    Select(find(page, "#first")).select_by_visible_text("other model")
    until(page, lambda: len(tiles(page)) == 20)


def test_with_the_keyboard_alone(page: webdriver.Chrome) -> None:
    ask(page, "document.querySelector('.skip').focus()")
    assert find(page, ".skip").rect["x"] > 0, "who has it sees it"
    press(page, "/")
    assert page.switch_to.active_element.get_attribute("id") == "q"
    press(page, *"a red circle")
    until(page, lambda: tiles(page)[:1] == [RED])
    press(page, Keys.ARROW_DOWN)
    order = tiles(page)
    at = "return document.activeElement.dataset.key"
    assert ask(page, at) == order[0]
    assert ask(page, "return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    across = ask(
        page,
        """const tiles = [...document.querySelectorAll('.tile')];
        return tiles.filter((t) => t.offsetTop === tiles[0].offsetTop).length""",
    )
    assert across > 2
    for keys, number in (
        ([Keys.ARROW_RIGHT], 1),
        ([Keys.ARROW_DOWN], 1 + across),
        ([Keys.ARROW_LEFT], across),
        ([Keys.ARROW_UP], 0),
    ):
        press(page, *keys)
        assert ask(page, at) == order[number]
    press(page, Keys.ENTER)
    until(page, lambda: opened(page))
    press(page, Keys.ARROW_RIGHT)
    until(page, lambda: asked(page)["item"] == [order[1]])
    assert find(page, "#place").text.startswith("2 of 24")
    press(page, Keys.ARROW_LEFT)
    press(page, Keys.ESCAPE)
    until(page, lambda: not opened(page))
    assert ask(page, at) == order[0], "one is where one was"
    press(page, Keys.ARROW_UP)
    assert page.switch_to.active_element.get_attribute("id") == "q"


@pytest.mark.slow
def test_an_address_is_all_it_takes(page: webdriver.Chrome, address: str) -> None:
    search(page, "a red circle", RED)
    find(page, 'input[value="caption"]').click()
    until(page, lambda: tiles(page)[:1] == [f"{RED}:0"])
    find(page, "#condition").send_keys("year<2008", Keys.ENTER)
    until(page, lambda: len(tiles(page)) == 8)
    page.find_elements(By.CSS_SELECTOR, ".tile")[1].click()
    until(page, lambda: opened(page))
    shown, there = tiles(page), page.current_url
    title = find(page, "#item-title").text
    page.get("about:blank")
    page.get(there)
    until(page, lambda: opened(page) and find(page, "#place").text)
    assert tiles(page) == shown
    assert find(page, "#item-title").text == title
    assert find(page, "#q").get_attribute("value") == "a red circle"
    page.get(f"{address}/?item={RED.replace('#', '%23')}")
    until(page, lambda: opened(page) and find(page, "#captions").text)


def test_back_and_forward(page: webdriver.Chrome) -> None:
    search(page, "a red circle", RED)
    find(page, ".tile").click()
    until(page, lambda: opened(page))
    page.back()
    until(page, lambda: not opened(page))
    page.forward()
    until(page, lambda: opened(page))
    page.back()
    find(page, 'input[value="caption"]').click()
    until(page, lambda: tiles(page)[:1] == [f"{RED}:0"])
    page.back()
    until(page, lambda: tiles(page)[:1] == [RED])


def test_more_results_and_none(page: webdriver.Chrome) -> None:
    page.get(f"{page.current_url}?q=a+red+circle&k=10")
    until(page, lambda: len(tiles(page)) == 10)
    find(page, "#more").click()
    until(page, lambda: len(tiles(page)) == 20)
    find(page, "#more").click()
    until(page, lambda: len(tiles(page)) == 24)
    assert not find(page, "#more").is_displayed()
    find(page, "#condition").send_keys("year>3000", Keys.ENTER)
    until(page, lambda: find(page, "#count").text == "No images found")


def test_the_theme_is_the_systems_until_one_is_chosen(page: webdriver.Chrome) -> None:
    light = background(page)
    button = find(page, "#theme")
    assert button.accessible_name == "Change to the dark theme"
    prefer(page, "dark")
    dark = background(page)
    assert dark != light
    until(page, lambda: button.accessible_name == "Change to the light theme")
    button.click()
    assert background(page) == light
    page.refresh()
    assert background(page) == light, "what was chosen is kept"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read(page: webdriver.Chrome, address: str, theme: str) -> None:
    prefer(page, theme)
    page.get(f"{address}/?q=a+red+circle&where=year>1&index=shapes&index=other-model&k=40")
    until(page, lambda: len(tiles(page)) > 30)
    contrasts = ask(page, CONTRASTS)
    find(page, ".tile").click()
    find(page, "#why").click()
    until(page, lambda: page.find_elements(By.CSS_SELECTOR, ".word"))
    contrasts += ask(page, CONTRASTS.replace("body *", "#dialog *"))
    assert len(contrasts) > 100
    assert not [(ratio, text) for ratio, text in contrasts if ratio < 4.5]


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_sideways_scrolling(page: webdriver.Chrome, address: str, width: int) -> None:
    resize(page, width)
    wide = "return document.documentElement.scrollWidth"
    assert ask(page, wide) <= width
    for what in ("", "&kind=caption", "&index=shapes&index=other-model"):
        page.get(f"{address}/?q=a+red+circle&where=folder=edges%20%26%20more{what}")
        until(page, lambda: tiles(page))
        assert ask(page, wide) <= width
    find(page, ".tile").click()
    until(page, lambda: opened(page))
    inside = "const d = document.querySelector('.item'); return d.scrollWidth - d.clientWidth"
    assert ask(page, inside) <= 0
    assert (
        ask(page, "return document.getElementById('close').getBoundingClientRect().right") < width
    )


def test_landmarks_labels_and_headings(page: webdriver.Chrome, address: str) -> None:
    page.get(f"{address}/?q=a+red+circle&index=shapes&index=other-model")
    until(page, lambda: tiles(page))
    for landmark in ("header", "search", "main"):
        assert len(page.find_elements(By.CSS_SELECTOR, f"body > {landmark}")) == 1
    fields = page.find_elements(By.CSS_SELECTOR, "input, select, button")
    assert len(fields) > 10
    assert not [f.get_attribute("id") for f in fields if f.is_displayed() and not f.accessible_name]
    count = find(page, "#count")
    assert (count.get_attribute("role"), count.get_attribute("aria-live")) == ("status", "polite")
    assert len(page.find_elements(By.TAG_NAME, "h1")) == 1
    assert not ask(page, "return [...document.images].filter((i) => !i.hasAttribute('alt')).length")
    tabbable = page.find_elements(By.CSS_SELECTOR, '.tile[tabindex="0"]')
    assert len(tabbable) == 1, "one tab stop for all results"
    ids = ask(page, "return [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


def test_nothing_moves_for_those_who_want_it_so(page: webdriver.Chrome) -> None:
    search(page, "a red circle", RED)
    moving = """return [...document.querySelectorAll("*")].filter((each) => {
      const style = getComputedStyle(each);
      return style.transitionProperty !== "none" && parseFloat(style.transitionDuration) > 0;
    }).length"""
    assert ask(page, moving) == 0
