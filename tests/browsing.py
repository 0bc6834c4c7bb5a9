"""Pages in a headless Chromium: how it is started, sized, coloured and asked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
NEEDS_A_BROWSER = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="needs chromium and chromedriver on the PATH: apt-get install chromium chromium-driver",
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync"
)

CONTRASTS = """
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const luminance = ([r, g, b]) => {
  const linear = [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = rgba(getComputedStyle(e).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return [255, 255, 255, 255];
};
const found = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !element.checkVisibility() || element.closest(".unseen, .skip, script")) continue;
  const style = getComputedStyle(element);
  const colour = rgba(element.ownerSVGElement ? style.fill : style.color);
  const pair = [luminance(colour), luminance(behind(element))].sort((a, b) => b - a);
  found.push([(pair[0] + 0.05) / (pair[1] + 0.05), element.textContent.trim().slice(0, 40)]);
}
return found;
"""


@contextmanager
def open_browser(profile: Path) -> Iterator[webdriver.Chrome]:
    assert CHROMIUM
    assert DRIVER
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SE_OFFLINE", "true")
        found = webdriver.Chrome(options=options, service=Service(executable_path=DRIVER))
    yield found
    found.quit()


def prefer(browser: webdriver.Chrome, theme: str) -> None:
    features = [
        {"name": "prefers-color-scheme", "value": theme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def resize(browser: webdriver.Chrome, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def ask(browser: webdriver.Chrome, script: str) -> Any:
    return browser.execute_script(script)


def background(browser: webdriver.Chrome) -> str:
    return str(ask(browser, "return getComputedStyle(document.body).backgroundColor"))
