"""The documentation as a site: built strictly, whole, quiet, and without requests elsewhere."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urljoin, urlparse

import pytest
from browsing import NEEDS_A_BROWSER, ask, open_browser, resize
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

import gradspace as gs

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once; every warning of mkdocs is an error."""
    folder = tmp_path_factory.mktemp("site")
    quiet = {"DISABLE_MKDOCS_2_WARNING": "true", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Links(HTMLParser):
    """Targets and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.targets.append(value)
            if name in ("id", "name") and value:
                self.anchors.add(value)


def test_every_link_leads_somewhere(site: Path) -> None:
    pages = {p.relative_to(site).as_posix(): Links(p.read_text()) for p in site.rglob("*.html")}
    assert len(pages) > 20
    pages.pop("404.html")  # its links begin at the root of the server
    for page, links in pages.items():
        for target in links.targets:
            found = urlparse(urljoin(f"http://here/{page}", target))
            if found.netloc != "here":
                continue
            path = unquote(found.path).lstrip("/")
            assert (site / path).exists(), f"{page}: {target}"
            anchor = unquote(found.fragment)
            if anchor and path in pages:
                assert anchor in pages[path].anchors, f"{page}: {target}"


def test_the_reference_is_complete(site: Path) -> None:
    python = (site / "reference/python.html").read_text()
    for name in gs.__all__:
        assert re.search(rf'id="gradspace\.[\w.]*\b{name}"', python), name
    assert "<blockquote>" not in python, "an example outside of `Examples:` is taken for a quote"
    objectives = (site / "reference/objectives.html").read_text()
    for info in gs.list_objectives():
        assert f"objectives/{info.name.replace('/', '-')}.svg" in objectives
    recipes = (site / "reference/recipes.html").read_text()
    assert "Steps between two measurements" in recipes


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with open_browser(tmp_path_factory.mktemp("profile")) as found:
        resize(found, 1280)
        yield found


def logged(browser: webdriver.Chrome, kind: str) -> list[Any]:
    return list(browser.get_log(kind))  # type: ignore[no-untyped-call]


@NEEDS_A_BROWSER
@pytest.mark.parametrize(
    "page", ["index", "tutorials/own-photos", "reference/python", "reference/objectives"]
)
def test_a_page_is_quiet_and_asks_nobody_else(
    page: str, address: str, browser: webdriver.Chrome
) -> None:
    browser.get(f"{address}/{page}.html")
    WebDriverWait(browser, 20).until(lambda b: ask(b, "return document.readyState") == "complete")
    assert [line["message"] for line in logged(browser, "browser")] == []
    events = [json.loads(line["message"])["message"] for line in logged(browser, "performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    elsewhere = [url for url in asked if url.startswith("http") and not url.startswith(address)]
    assert not elsewhere


@NEEDS_A_BROWSER
def test_the_search_finds_a_page(address: str, browser: webdriver.Chrome) -> None:
    browser.get(f"{address}/index.html")
    browser.find_element(By.CSS_SELECTOR, ".md-search__input").send_keys("quintuplet")
    found = WebDriverWait(browser, 20).until(
        lambda b: b.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
    )
    assert any("offline-negatives.html" in str(link.get_attribute("href")) for link in found)
