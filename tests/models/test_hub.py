"""A hub that does not answer: one brief question, and then the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from models import tiny_dual

import gradspace as gs
from gradspace.models import hub
from gradspace.models.backbones import Backbone

NAME = "some/name"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """Requests to a hub that never answers; every further one would fail as well."""
    requests: list[str] = []

    class Silent:
        def head(self, address: str, timeout: float) -> None:
            requests.append(address)
            raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "get_session", Silent)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    hub._silent.cache_clear()
    yield requests
    hub._silent.cache_clear()


def test_a_silent_hub_is_asked_once(asked: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be loaded from the hub: We couldn't connect"):
            Backbone(NAME)
    assert asked == [constants.ENDPOINT]


def test_without_a_network_a_model_comes_from_the_cache(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "cache" / "models--some--name"
    commit = "0" * 40
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    tiny_dual.clip(place / "snapshots" / commit)
    assert gs.load(NAME).embed_texts(["a dog"]).shape[0] == 1
    assert asked == [constants.ENDPOINT]


def test_a_folder_is_never_asked_for(asked: list[str], tmp_path: Path) -> None:
    assert not hub.download_options(str(tmp_path))["local_files_only"]
    assert asked == []
