"""Conditions on metadata: as written, met, and refused; and the same on whole tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradspace.indexes.contract import Item
from gradspace.indexes.items import as_table, rows_that_meet
from gradspace.indexes.where import COMPARISONS, Condition, Value, parse_condition


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("year>=2020", ("year", ">=", "2020")),
        (" folder = holiday in the Alps ", ("folder", "=", "holiday in the Alps")),
        ("name!=a=b", ("name", "!=", "a=b")),
        ("tag~<b>", ("tag", "~", "<b>")),
        ("note=", ("note", "=", "")),
    ],
)
def test_conditions_as_a_user_writes_them(written: str, expected: tuple[str, str, str]) -> None:
    assert parse_condition(written) == Condition(*expected)


@pytest.mark.parametrize("written", ["", "year", ">=2020", "two words=3"])
def test_what_is_no_condition(written: str) -> None:
    with pytest.raises(ValueError, match="a condition must be a field, one of"):
        parse_condition(written)


@pytest.mark.parametrize(
    ("condition", "metadata", "met"),
    [
        ("year>=2020", {"year": 2020}, True),
        ("year>=2020", {"year": 2019.5}, False),
        ("year=2020.0", {"year": 2020}, True),
        ("year!=2020", {"year": 2021}, True),
        ("year!=2020", {}, False),
        ("year<9", {"year": "10"}, True),
        ("year=many", {"year": 3}, False),
        ("year!=many", {"year": 3}, False),
        ("taken>=2024-05", {"taken": "2024-05-01 10:00:00"}, True),
        ("taken<2024-05", {"taken": "2024-05-01 10:00:00"}, False),
        ("place~STRASSE", {"place": "Hauptstraße 3"}, True),
        ("place~weg", {"place": "Hauptstraße 3"}, False),
        ("year~20", {"year": 2020}, False),
        ("n=nan", {"n": 1.0}, False),
    ],
)
def test_what_meets_a_condition(condition: str, metadata: dict[str, Value], met: bool) -> None:
    assert parse_condition(condition).is_met(metadata) is met


VALUES = st.one_of(
    st.integers(-3, 12), st.sampled_from([0.5, 2.0, 1e300]), st.text("aBß1 '%\"\\é", max_size=3)
)
METADATA = st.dictionaries(st.sampled_from(["a", "b", "c'd"]), VALUES)


@given(
    st.lists(METADATA, min_size=1, max_size=8),
    st.lists(
        st.builds(
            Condition,
            st.sampled_from(["a", "b", "c'd", "other"]),
            st.sampled_from(list(COMPARISONS)),
            VALUES.map(str),
        ),
        max_size=3,
    ),
)
def test_tables_are_filtered_as_items_one_by_one(
    metadata: list[dict[str, Value]], where: list[Condition]
) -> None:
    table = as_table([Item(str(i), "image", metadata=m) for i, m in enumerate(metadata)])
    expected = [all(condition.is_met(m) for condition in where) for m in metadata]
    assert rows_that_meet(table, where).tolist() == expected
