"""Your own corpus: passages.tsv (id, text), questions.tsv (passage id, question), and splits.

Neither file has a header; ids are arbitrary words. Splits come from `train.txt`, `dev.txt` (or
`val.txt`) and `test.txt`, one passage id per line, or from shares of the passages, like those of
tables of captions (`table.py`). A question belongs to the split of its passage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gradspace.data.dataset import Dataset, Problem, make_split
from gradspace.data.readers.registry import reader
from gradspace.data.readers.table import SPLITS, split_files
from gradspace.data.shares import Fraction, how_drawn, shares
from gradspace.data.text_files import read_lines
from gradspace.wording import counted

FILES = ("passages.tsv", "questions.tsv")


def _recognises(path: Path) -> bool:
    return path.is_dir() and (path / FILES[0]).is_file()


@reader(
    "passages", recognises=_recognises, looks_for="a folder with passages.tsv and questions.tsv"
)
def open_passages(
    path: Path, images: Path | None, *, dev_share: Fraction = 0.1, test_share: Fraction = 0.1
) -> Dataset:
    """Passages and questions as text; splits from train.txt, dev.txt and test.txt, or by shares."""
    if images is not None:
        raise ValueError(f"{path} has passages in place of images: leave images out")
    problems: list[Problem] = []
    texts: dict[str, str] = {}
    for where, name, text in _rows(path / FILES[0], problems):
        if name in texts:
            problems.append(Problem("duplicate passage", "", name, where))
        texts.setdefault(name, text)
    questions: dict[str, list[str]] = {name: [] for name in texts}
    for where, name, question in _rows(path / FILES[1], problems):
        if name in questions:
            questions[name].append(question)
        else:
            problems.append(Problem("question without passage", "", where, f"no passage {name}"))
    named = split_files(path)
    splits = named or shares(list(texts), dev_share, test_share)
    drawn = "" if named else how_drawn("passages", dev_share, test_share)
    made = {}
    for split in dict.fromkeys(SPLITS.values()):
        known = [name for name in splits.get(split, ()) if name in texts]
        unknown = set(splits.get(split, ())) - set(known)
        problems += [Problem("missing passage", split, name) for name in sorted(unknown)]
        if known:
            one = make_split(split, [(name, questions[name]) for name in known])
            passages = [texts[name] for name in known]
            made[split] = replace(one, passages=passages, drawn=drawn)
    return Dataset(path.resolve().name, made, tuple(problems))


def _rows(file: Path, problems: list[Problem]) -> Iterator[tuple[str, str, str]]:
    """Yield the place, id and text of each row; malformed rows are reported as problems."""
    for number, line in enumerate(read_lines(file), start=1):
        where = f"line {number} of {file.name}"
        fields = line.split("\t")
        if len(fields) == 2 and fields[0].strip():
            yield where, fields[0].strip(), fields[1]
        elif line.strip():
            detail = f"{counted(len(fields), 'field')}; expected an id, a tab and a text"
            problems.append(Problem("malformed row", "", where, detail))
