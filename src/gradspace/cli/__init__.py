"""The command line: `gradspace --help`. One module per group of commands."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import typer

from gradspace import __version__, processes
from gradspace.cli import (
    analyse,
    compare,
    data,
    demo,
    evaluation,
    export,
    mine,
    report,
    search,
    serve,
    training,
)
from gradspace.processes import keep_freed_memory

app = typer.Typer(
    help="Train, compare and explain image-text retrieval models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
demo.add_to(app)
training.add_to(app)
evaluation.add_to(app)
export.add_to(app)
mine.add_to(app)
compare.add_to(app)
report.add_to(app)
search.add_to(app)
serve.add_to(app)
app.add_typer(analyse.app, name="analyse", no_args_is_help=True)
app.add_typer(data.app, name="data", no_args_is_help=True)


def main() -> None:
    """Run the command line: errors are one sentence, `--debug` shows where they come from."""
    keep_freed_memory()
    try:
        code = _run(sys.argv[1:])
    except SystemExit as leaving:
        code = leaving.code
    processes.leave(code)


def _run(arguments: list[str]) -> int | str | None:
    """The exit code."""
    debug = "--debug" in arguments
    try:
        app([argument for argument in arguments if argument != "--debug"], prog_name="gradspace")
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if debug:
            traceback.print_exc()
        else:
            print(f"gradspace: {_sentence(error)}", file=sys.stderr)
        return 1
    return 0


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
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
