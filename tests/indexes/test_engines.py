"""Every engine holds and finds the same, whatever is behind it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from indexes.servers import MemoryEngine, postgres_url  # noqa: F401
from numpy.typing import NDArray

from gradspace.indexes.contract import Engine, Item, Kind
from gradspace.indexes.engines import _split, open_engine
from gradspace.indexes.local import LocalEngine
from gradspace.indexes.where import COMPARISONS, Condition, Value, all_met, parse_condition

WIDTH = 24
TOLERANCE = 2e-3
"""Rounding of a sum of products of float16 numbers."""
TESTS = itertools.count()
"""They share a database, and have tables of their own."""
Open = Callable[[str], Engine]
"""Opens a collection by its name."""


def in_memory(request: pytest.FixtureRequest, folder: Path) -> Open:
    held: dict[str, dict[str, tuple[Item, NDArray[np.float32]]]] = {}
    return lambda name: MemoryEngine(held.setdefault(name, {}))


def in_postgres(request: pytest.FixtureRequest, folder: Path, option: str = "") -> Open:
    pytest.importorskip("pgvector")
    url, test = request.getfixturevalue("postgres_url"), next(TESTS)
    return lambda name: open_engine(url + option, f"{name}_{test}", WIDTH)


def in_postgres_hnsw(request: pytest.FixtureRequest, folder: Path) -> Open:
    return in_postgres(request, folder, "&hnsw=1")


def in_milvus(request: pytest.FixtureRequest, folder: Path, option: str = "") -> Open:
    pytest.importorskip("milvus_lite")
    return lambda name: open_engine(f"milvus+{folder / 'milvus.db'}{option}", name, WIDTH)


def in_milvus_hnsw(request: pytest.FixtureRequest, folder: Path) -> Open:
    return in_milvus(request, folder, "?hnsw=1")


def in_a_folder(request: pytest.FixtureRequest, folder: Path) -> Open:
    return lambda name: LocalEngine(folder / name, WIDTH)


ENGINES = {
    "memory": in_memory,
    "local": in_a_folder,
    "postgres": in_postgres,
    "postgres-hnsw": in_postgres_hnsw,
    "milvus": in_milvus,
    "milvus-hnsw": in_milvus_hnsw,
}


@pytest.fixture(params=ENGINES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return ENGINES[request.param](request, tmp_path)


@pytest.fixture
def engine(opened: Open) -> Iterator[Engine]:
    engine = opened("photos")
    yield engine
    engine.close()


def unit_vectors(count: int, seed: int = 0) -> NDArray[np.float32]:
    vectors = np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def photos(count: int, kind: Kind = "image", start: int = 0) -> list[Item]:
    return [
        Item(
            key=f"{kind}/{number:04}.jpg",
            kind=kind,
            text=f"photo {number}",
            image=f"image/{number:04}.jpg",
            fingerprint=f"f{number}",
            metadata={"number": number, "folder": f"day {number % 3}", "size": number / 4},
        )
        for number in range(start, start + count)
    ]


def as_found(engine: Engine, key: str) -> tuple[Item, NDArray[np.float32]]:
    found = engine.get([key])[0]
    assert found is not None
    return found


def check_same_hits(
    engine: Engine, queries: NDArray[np.float32], k: int, kind: Kind, where: list[Condition]
) -> None:
    """The hits of brute force over all that the engine holds, but for near ties."""
    held = {key: as_found(engine, key) for key in engine.fingerprints()}
    wanted = MemoryEngine(held).search(queries, k, kind, where)
    found = engine.search(queries, k, kind, where)
    assert len(found) == len(queries)
    for query, hits, true in zip(queries, found, wanted, strict=True):
        assert len({hit.item.key for hit in hits}) == len(hits) == len(true)
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)
        np.testing.assert_allclose(scores, [hit.score for hit in true], atol=TOLERANCE)
        for hit in hits:
            item, vector = held[hit.item.key]
            assert hit.item == item
            assert hit.item.kind == kind
            assert all_met(where, item.metadata)
            assert hit.score == pytest.approx(float(query @ vector), abs=TOLERANCE)


def test_what_is_put_is_there(engine: Engine) -> None:
    items, vectors = photos(20), unit_vectors(20)
    engine.put(items[:12], vectors[:12])
    engine.put(items[12:], vectors[12:].astype(np.float16))
    assert len(engine) == 20
    assert engine.fingerprints() == {item.key: item.fingerprint for item in items}
    assert engine.fields() == {name for item in items for name in item.metadata}
    found = engine.get([items[15].key, "nowhere", items[3].key, items[15].key])
    assert [f and f[0] for f in found] == [items[15], None, items[3], items[15]]
    assert found[2] is not None
    assert found[2][1].dtype == np.float32
    np.testing.assert_array_equal(found[2][1], vectors[3].astype(np.float16))


def test_the_same_key_replaces(engine: Engine) -> None:
    items, vectors = photos(6), unit_vectors(6)
    engine.put(items, vectors)
    new = Item(items[2].key, "caption", "new", "other.jpg", "changed", {"only": "this"})
    engine.put([new, *photos(1, start=6)], unit_vectors(2, seed=1))
    assert len(engine) == 7
    assert "only" in engine.fields()
    assert as_found(engine, new.key)[0] == new
    assert engine.fingerprints()[new.key] == "changed"
    hits = engine.search(vectors[2:3], 7, "image")[0]
    assert new.key not in {hit.item.key for hit in hits}
    assert [hit.item for hit in engine.search(vectors[2:3], 7, "caption")[0]] == [new]


def test_what_is_removed_is_gone(engine: Engine) -> None:
    items, vectors = photos(8), unit_vectors(8)
    engine.put(items, vectors)
    engine.remove([items[1].key, "nowhere", items[5].key])
    engine.remove([])
    assert len(engine) == 6
    assert engine.get([items[1].key, items[5].key]) == [None, None]
    assert items[5].key not in engine.fingerprints()
    keys = {hit.item.key for hit in engine.search(vectors[5:6], 8, "image")[0]}
    assert keys == {item.key for item in items} - {items[1].key, items[5].key}
    engine.put(items[5:6], vectors[5:6])
    assert engine.search(vectors[5:6], 1, "image")[0][0].item == items[5]


def test_nothing_is_found_in_nothing(engine: Engine) -> None:
    assert len(engine) == 0
    assert engine.fingerprints() == {}
    assert engine.get([]) == []
    assert engine.get(["a"]) == [None]
    assert engine.search(unit_vectors(2), 5, "image") == [[], []]
    assert engine.search(unit_vectors(0), 5, "image") == []
    engine.put([], unit_vectors(0))
    engine.remove(["a"])
    assert len(engine) == 0


@pytest.mark.slow
def test_hits_are_those_of_brute_force(engine: Engine) -> None:
    engine.put([*photos(150), *photos(60, "caption")], unit_vectors(210))
    queries = unit_vectors(7, seed=2)
    for k, kind, texts in (
        (1, "image", []),
        (10, "image", []),
        (10, "caption", []),
        (500, "image", []),
        (10, "image", ["number>=20", "number<60"]),
        (10, "image", ["folder=day 1", "size>5.5"]),
        (10, "caption", ["folder~AY 2"]),
        (10, "image", ["number=3"]),
        (10, "image", ["nothing=3"]),
    ):
        check_same_hits(engine, queries, k, kind, list(map(parse_condition, texts)))  # type: ignore[arg-type]


def test_ties_are_all_found(engine: Engine) -> None:
    """In any order: but each of them once, and none that scores less."""
    vectors = unit_vectors(12)
    vectors[3:9] = vectors[3]
    engine.put(photos(12), vectors)
    for k in (1, 4, 6, 9):
        hits = engine.search(vectors[3:4], k, "image")[0]
        keys = {int(hit.item.metadata["number"]) for hit in hits}
        assert len(keys) == k
        assert keys <= set(range(3, 9)) if k <= 6 else keys >= set(range(3, 9))
        np.testing.assert_allclose([hit.score for hit in hits[:6]], 1, atol=TOLERANCE)


STRANGE = [
    "straße/Größe ß.jpg",
    "日本/写真 🦊.jpg",
    "a 'quoted' \"key\".jpg",
    "back\\slash\\",
    "100%_sure%s{}$1;--.jpg",
    "new\nline\ttab",
    " spaces ",
    "",
    "e\u0301 is not \u00e9",
    "\u00e9",
]


def test_any_text_comes_back(opened: Open) -> None:
    items = [
        Item(text, "image", text * 2, text, text, {"field": text, f"name {text}": text, "n": 1.5})
        for text in STRANGE
    ]
    long = Item("long", "caption", "a long caption, " * 1500 + "ü" * 2000)
    vectors = unit_vectors(len(items) + 1)
    engine = opened("strange")
    engine.put([*items, long], vectors)
    assert [found and found[0] for found in engine.get([*STRANGE, "long"])] == [*items, long]
    assert set(engine.fingerprints()) == {*STRANGE, "long"}
    hits = engine.search(vectors, 1, "image")[:-1]
    assert [hit.item for some in hits for hit in some] == items
    engine.remove(STRANGE[:5])
    assert set(engine.fingerprints()) == {*STRANGE[5:], "long"}
    engine.close()


def test_it_is_all_there_after_reopening(opened: Open) -> None:
    engine = opened("first")
    engine.put(photos(30), unit_vectors(30))
    engine.remove(["image/0004.jpg"])
    other = opened("second")
    other.put(photos(2, "caption"), unit_vectors(2))
    other.close()
    engine.close()
    engine = opened("first")
    assert len(engine) == 29
    assert as_found(engine, "image/0007.jpg")[0] == photos(30)[7]
    check_same_hits(engine, unit_vectors(3, seed=5), 5, "image", [parse_condition("number>9")])
    engine.close()


# fmt: off
TEXTS = [
    "2020", "2020.0", "020", "abc", "ABC", "abd", "", "a%c", "a_c", "a\\c", "axc", "%", "_", "\\",
    "Straße", "STRASSE", "strasse", "日本", "é", "e\u0301", "🦊", "\uff5a", "it's", 'say "it"',
    "2024-05-01", "2024-11", "nan", "inf", "1e3", "-7", "a\nb", "100%", "{}", "%s", "$1", "'; --",
]
# fmt: on
NUMBERS: list[Value] = [2020, 2020.0, 2021, -7, -7.5, 0, 0.1, 1000, 1e-9, 1e300, 2**53, True]
ASKED = [*TEXTS, " 2020 ", "+7", "0.1", "1_000", "1e400", "-inf", "1e-400", "0.30000000000000004"]


def test_conditions_are_those_of_python(engine: Engine) -> None:
    """Every comparison of every value with every other, where both may be texts or numbers."""
    many: list[dict[str, Value]] = [{"field": v} for v in [*TEXTS, *NUMBERS]]
    many += [{}, {"other": "abc"}, {"Field": 2020}, {"field ": "abc"}]
    items = [Item(str(n), "image", metadata=metadata) for n, metadata in enumerate(many)]
    engine.put(items, unit_vectors(len(items)))
    query = unit_vectors(1)
    for comparison, value in itertools.product(COMPARISONS, ASKED):
        condition = Condition("field", comparison, value)
        found = {hit.item.key for hit in engine.search(query, 100, "image", [condition])[0]}
        wanted = {item.key for item in items if condition.is_met(item.metadata)}
        assert found == wanted, str(condition)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
values = texts | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
fields = st.sampled_from(["a", "größe", "x.y-z"]) | texts


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.dictionaries(fields, values, max_size=3),
    st.lists(
        st.builds(Condition, fields, st.sampled_from(list(COMPARISONS)), texts | values.map(str)),
        min_size=1,
        max_size=2,
    ),
)
@pytest.mark.slow
def test_any_condition_is_that_of_python(
    engine: Engine, metadata: dict[str, Value], conditions: list[Condition]
) -> None:
    item = Item("one", "image", metadata=metadata)
    engine.put([item], unit_vectors(1))
    held = as_found(engine, "one")[0]
    assert held == item
    wanted = [item] if all_met(conditions, metadata) else []
    assert [hit.item for hit in engine.search(unit_vectors(1), 1, "image", conditions)[0]] == wanted


@pytest.mark.parametrize("opened", ["postgres", "milvus"], indirect=True)
def test_what_cannot_be_held_is_refused_whole(opened: Open) -> None:
    engine = opened("refused")
    engine.put(photos(2), unit_vectors(2))
    for items, vectors, sentence in (
        (photos(2), unit_vectors(3), "vectors of 2 items of this index are 2 x 24; got 3 x 24"),
        (photos(2), unit_vectors(2)[:, :8], "are 2 x 24; got 2 x 8: use a separate index"),
        (photos(2), unit_vectors(2) * np.nan, "is not of length 1"),
        ([*photos(1, start=5), *photos(1, start=5)], unit_vectors(2), "0005.jpg' occurs twice"),
        ([*photos(1, start=5), Item("a\0", "image")], unit_vectors(2), "has a NUL or half"),
        ([*photos(1, start=5), Item("\udc80", "image")], unit_vectors(2), "has a NUL or half"),
        (
            [Item("a", "image", metadata={"x": "\0"})],
            unit_vectors(1),
            "x of the item 'a' has a NUL",
        ),
        ([Item("a", "image", metadata={"x": 2**60})], unit_vectors(1), "at most 2..53; make it a"),
        (
            [Item("a", "image", metadata={"x": np.inf})],
            unit_vectors(1),
            "is inf: numbers must be finite",
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            engine.put(items, vectors)
    with pytest.raises(ValueError, match=r"'a=.x00' has a NUL"):
        engine.search(unit_vectors(1), 1, "image", [Condition("a", "=", "\0")])
    with pytest.raises(ValueError, match=r"a comparison must be one of = != .*; got '= 1 or 1 ='"):
        engine.search(unit_vectors(1), 1, "image", [Condition("a", "= 1 or 1 =", "1")])
    with pytest.raises(ValueError, match=r"queries are \(8,\) wide, for an index of 24"):
        engine.search(unit_vectors(1)[:, :8], 1, "image")
    assert engine.fingerprints() == {item.key: item.fingerprint for item in photos(2)}
    engine.close()


def test_engines_are_named_by_their_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("photos", "mysql://host/db", "/folder"):
        with pytest.raises(
            ValueError, match="an engine is postgresql://user@host/database, milvus"
        ):
            open_engine(url, "photos", WIDTH)
    with pytest.raises(ValueError, match="must be whole numbers, such as hnsw=1; got hnsw=yes"):
        open_engine("postgresql://host/db?hnsw=yes", "photos", WIDTH)
    address = "postgresql:///db?host=%2Ftmp&options=-c%20jit%3Doff"
    assert _split(f"{address}&hnsw=1", ("hnsw",)) == (address, {"hnsw": 1})
    assert _split("http://host?hnsw=0", ("hnsw",)) == ("http://host", {"hnsw": 0})
    for module, url, sentence in (
        ("psycopg", "postgresql://host/db", "psycopg, which is not installed: .*\\[postgres\\]"),
        ("pymilvus", "milvus+http://host:1", "pymilvus, which is not installed: .*\\[milvus\\]"),
    ):
        for name in ("postgres", "milvus"):
            monkeypatch.delitem(sys.modules, f"gradspace.indexes.{name}", raising=False)
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ValueError, match=sentence):
            open_engine(url, "photos", WIDTH)
