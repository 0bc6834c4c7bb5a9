"""The command line: `gradspace --help`. One module per group of commands, a thin layer on Python.

A command's module is imported when the command is called, so that help and usage errors are fast.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from gradspace import interrupts
from gradspace.cli.misuse import USAGE_ERROR, explain_misuse

COMMANDS = {
    "demo": (
        "demo",
        "Train four objectives on built-in data, compare them and show why they differ.",
    ),
    "train": (
        "training",
        "Train a model. Ctrl-C stops after the current step; --resume continues without loss.",
    ),
    "evaluate": (
        "evaluation",
        "Measure the retrieval of a run both ways, or of several runs with averaged scores.",
    ),
    "embed": (
        "evaluation",
        "Write the embeddings of a split, or of your own sentences and pictures.",
    ),
    "export": (
        "export",
        "Write a run as a folder for others: a fine-tuned CLIP or SigLIP for plain transformers.",
    ),
    "mine": (
        "mine",
        "Find the hardest negatives of every image and caption, for `train --offline-negatives`.",
    ),
    "compare": (
        "compare",
        "Make a table: train every cell, test the differences, write tables and a report.",
    ),
    "report": (
        "report",
        "Write one HTML page: tables, verdicts, curves, contributions, diagrams, examples.",
    ),
    "index": (
        "search",
        "Embed photos or captions into an index for `gradspace search` and `gradspace serve`.",
    ),
    "search": (
        "search",
        "Find the images or captions that fit a sentence, an image, or both.",
    ),
    "serve": (
        "serve",
        "Search in a browser: by sentence, by picture, with one model or two side by side.",
    ),
    "analyse": (
        "analyse",
        "Show what an objective does: weights, diagrams, contributing samples.",
    ),
    "data": (
        "data",
        "Inspect and check datasets, and compute features.",
    ),
}
"""Name -> module of this folder, and the first line of its help."""


GOES_ON = {
    "demo": "finished runs are kept, and the same command resumes",
    "compare": "finished runs are kept, and the same command resumes",
    "mine": "the same command resumes",
    "index": "what is indexed is kept, and the same command resumes",
    "data features": "the same command resumes",
}
"""Commands that lose nothing by Ctrl-C, and what they say then."""


class Interrupted(Exception):  # noqa: N818
    """Ctrl-C during a command; the message is the command's sentence, if any."""


class Commands(TyperGroup):
    """Lists commands by the first lines of their help, and imports only the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {n: TyperCommand(n, help=line) for n, (_, line) in COMMANDS.items()}

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        name, found, rest = super().resolve_command(context, arguments)
        return name, found if name is None else load_command(name), rest

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt as stopped:  # typer would exit without a message
            raise Interrupted(str(stopped)) from stopped

    def list_commands(self, context: Any) -> list[str]:
        return list(COMMANDS)


def load_command(name: str) -> Any:
    """Import the module of a command, and return the command or group of that name."""
    from gradspace.cli.plugins import add_import_option
    from gradspace.processes import keep_freed_memory

    keep_freed_memory()
    module = importlib.import_module(f"{__name__}.{COMMANDS[name][0]}")
    around = typer.Typer()
    module.add_to(around)
    found = typer.main.get_group(around).commands[name]
    for one in (found, *getattr(found, "commands", {}).values()):
        one.help = _unwrapped(one.help or "")
    add_import_option(found)
    interrupts.raise_interrupts()
    return found


def _unwrapped(text: str) -> str:
    """Join the lines of every paragraph, which would break where the docstring does."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


app = typer.Typer(
    cls=Commands,
    help="Train, compare and explain image-text retrieval models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line: errors are one sentence, and `--debug` shows tracebacks."""
    try:
        code = _run(sys.argv[1:])
    except SystemExit as leaving:
        code = leaving.code
    interrupts.leave_at_once()
    if code == interrupts.CODE:
        interrupts.leave_now()
    if "RANK" not in os.environ:  # a single process, which may not have needed torch
        sys.exit(code)
    from gradspace.processes import leave

    leave(code)


def _run(arguments: list[str]) -> int | str | None:
    """Run a command, and return the exit code."""
    debug = "--debug" in arguments
    given = [argument for argument in arguments if argument != "--debug"]
    try:
        code = app(given, prog_name="gradspace", standalone_mode=False)
    except (KeyboardInterrupt, Interrupted) as stopped:
        return _stop(str(stopped), given)
    except USAGE_ERROR as error:
        if told := explain_misuse(error, given):
            print(f"gradspace: {told}", file=sys.stderr)
        return 2
    except Exception as error:
        if interrupts.came():
            return _stop("", given)
        if debug:
            traceback.print_exc()
        else:
            print(f"gradspace: {_sentence(error)}", file=sys.stderr)
        return 1
    return code if isinstance(code, int) else 0


def _stop(sentence: str, arguments: list[str]) -> int:
    """Print the one sentence of a command that Ctrl-C has stopped."""
    typed = " ".join(arguments)
    kept = next((told for command, told in GOES_ON.items() if typed.startswith(command)), "")
    interrupts.say(sentence or "; ".join(filter(None, ("stopped", kept))))
    return interrupts.CODE


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version as version_of  # slow, and rarely needed

        print(version_of("gradspace"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    pass
