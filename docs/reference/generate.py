"""Reference pages that are made from the code: mkdocs runs this when it builds the site."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import mkdocs_gen_files
from pydantic import BaseModel

import gradspace as gs
from gradspace.analysis.diagrams import draw_diagrams
from gradspace.cli import COMMANDS, load_command
from gradspace.objectives import objective
from gradspace.runs.recipe import Recipe

GROUPS = {
    "Losses and scores": (
        "objective", "list_objectives", "Objective", "RetrievalLoss", "Positives", "match_ids",
        "EmbeddingScores",
    ),
    "Metrics and analysis": (
        "retrieval_report", "recall", "ranks", "mean_average_precision", "cocos", "Cocos",
        "CocosMeter", "score_weights", "save_scores", "load_scores",
    ),
    "What the commands do": (
        "train", "load", "evaluate", "compare", "mine", "index", "search",
    ),
}  # fmt: skip
"""Every public name of gradspace, by subject."""


def python_page() -> Iterator[str]:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(gs.__all__)
    yield "# Python\n\nEverything here is `import gradspace as gs`, then `gs.NAME`."
    for title, names in GROUPS.items():
        yield f"## {title}"
        for name in names:
            home = getattr(gs, name)
            yield f"::: {home.__module__}.{home.__qualname__}"


def commands_page() -> Iterator[str]:
    yield "# Command line\n\nEvery command has `--help`; `--debug` shows where an error comes from."
    for name in COMMANDS:
        yield from command(f"gradspace {name}", load_command(name))


def command(path: str, found: Any) -> Iterator[str]:
    subcommands = getattr(found, "commands", {})
    if subcommands:
        for name, one in subcommands.items():
            yield from command(f"{path} {name}", one)
        return
    parameters = [p for p in found.params if p.name != "help" and not p.hidden]
    arguments = [_usage(p) for p in parameters if p.param_type_name == "argument"]
    yield f"## {path}"
    yield (found.help or "").strip()
    yield f"```text\n{' '.join([path, *arguments, '[OPTIONS]'])}\n```"
    yield "| argument or option | meaning |\n|---|---|\n" + "\n".join(
        _row(parameter) for parameter in parameters
    )


def _usage(argument: Any) -> str:
    name = f"{argument.metavar}{'...' if argument.nargs == -1 else ''}"
    return name if argument.required else f"[{name}]"


def _row(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    names = ", ".join(f"`{o}`" for o in parameter.opts) if is_option else f"`{parameter.metavar}`"
    told = _cell(parameter.help or "")
    default = parameter.default
    if is_option and not parameter.is_flag and default not in (None, (), []):
        told += f" Default: `{default}`."
    return f"| {names} | {told} |"


def recipes_page() -> Iterator[str]:
    yield (
        "# Recipes\n\nA recipe is a TOML file with these tables; `--set TABLE.KEY=VALUE` changes a"
        " key. `[model]`, `[objective]` and `[data]` also take the parameters of what they name."
    )
    for name, field in Recipe.model_fields.items():
        table = next((kind for kind in _kinds(field.annotation) if _is_table(kind)), None)
        if table is not None:
            yield f"## [{name}]"
            yield "| key | default | meaning |\n|---|---|---|\n" + "\n".join(
                f"| `{key}` | {_default(one)} | {_cell(one.description or '')} |"
                for key, one in table.model_fields.items()
            )


def _kinds(annotation: Any) -> list[Any]:
    return [annotation, *getattr(annotation, "__args__", ())]


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    return "" if value is None or field.is_required() else f"`{value!r}`"


def objectives_page() -> Iterator[str]:
    yield (
        "# Objectives\n\nPictures show the weight of a triplet over the scores of its positive and"
        " its negative, and what a positive and a negative get."
    )
    for info in gs.list_objectives():
        file = f"{info.name.replace('/', '-')}.svg"
        picture = io.StringIO()
        draw_diagrams([objective(info.name)]).savefig(picture, format="svg")
        with mkdocs_gen_files.open(f"reference/objectives/{file}", "w") as image:
            image.write(picture.getvalue())
        parameters = ", ".join(f"`{key}={value}`" for key, value in info.parameters.items())
        yield f"## {info.name}"
        yield info.summary
        yield f"*{info.source}; {info.reduction} over the queries.* {parameters}"
        yield f"![{info.name}](objectives/{file}){{ loading=lazy width=300 }}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


for page, content in (
    ("python", python_page),
    ("commands", commands_page),
    ("recipes", recipes_page),
    ("objectives", objectives_page),
):
    with mkdocs_gen_files.open(f"reference/{page}.md", "w") as written:
        written.write("\n\n".join(content()) + "\n")
