"""Who may import whom: the layers that CONTRIBUTING.md writes down, held over the import graph."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gradspace"
EXEMPT = ("__init__", "__main__")


def layers() -> list[list[str]]:
    """The rooms of each layer, the lowest first."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    [block] = re.findall(r"```\nsrc/gradspace/\n(.*?)```", text, re.S)
    heads = [re.split(r"\s{2,}|/ ", line.strip())[0] for line in block.strip().splitlines()]
    return [head.strip("/").split() for head in heads]


def room_of(file: Path, source: Path) -> str:
    first = file.relative_to(source).parts[0]
    return first.removesuffix(".py")


def imports(file: Path) -> Iterator[str]:
    """The rooms that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module == "gradspace":
            names = [f"gradspace.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("gradspace.") and name != "gradspace.__version__":
                yield name.split(".")[1]


def forbidden(source: Path, order: list[list[str]]) -> list[str]:
    """Every import of a room that is not in an earlier layer."""
    level = {room: number for number, rooms in enumerate(order) for room in rooms}
    found = []
    for file in sorted(source.rglob("*.py")):
        room = room_of(file, source)
        if room in EXEMPT:
            continue
        found += [
            f"{file.relative_to(source)} imports {other}"
            for other in imports(file)
            if other != room and level[other] >= level[room]
        ]
    return found


def test_every_room_has_its_layer() -> None:
    rooms = {room_of(file, SOURCE) for file in SOURCE.rglob("*.py")} - {*EXEMPT}
    written = [room for rooms in layers() for room in rooms]
    assert sorted(written) == sorted(rooms)


def test_a_room_imports_only_rooms_of_earlier_layers() -> None:
    assert not forbidden(SOURCE, layers())


@pytest.mark.parametrize(
    "line",
    ["from gradspace.high.up import thing", "import gradspace.high", "from gradspace import high"],
)
def test_a_forbidden_import_is_found(line: str, tmp_path: Path) -> None:
    for name, text in (("low/one.py", f"def f():\n    {line}\n"), ("high/up.py", "")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    assert forbidden(tmp_path, [["low"], ["high"]]) == ["low/one.py imports high"]
    assert not forbidden(tmp_path, [["high"], ["low"]])


def test_files_and_functions_stay_small() -> None:
    long = []
    for file in sorted(SOURCE.rglob("*.py")):
        name, text = str(file.relative_to(SOURCE)), file.read_text()
        if text.count("\n") > 350:
            long.append(f"{name}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                long += [f"{name}: {node.name} has {lines} lines"] if lines > 50 else []
    assert not long


def test_a_type_name_has_one_meaning() -> None:
    """Two files may write the same alias; two classes, or two meanings, need two names."""
    meanings: dict[str, set[str]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                meanings.setdefault(node.name, set()).add(str(file))
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name[0].isupper() and not name.isupper():
                    meanings.setdefault(name, set()).add(ast.unparse(node.value))
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}
