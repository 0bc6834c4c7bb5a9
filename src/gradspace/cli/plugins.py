"""`--import my_weights.py`, an option of every command."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gradspace.plugins import import_plugin


def add_import_option(command: Any) -> None:
    """Give a command, or every command of a group, the option that imports plug-ins first."""
    if isinstance(command, TyperGroup):
        for one in command.commands.values():
            add_import_option(one)
    else:
        command.params.append(_option())


def _option() -> Any:
    """Build the option with typer; it is processed before all others."""
    around = typer.Typer(add_completion=False)
    around.command()(_with_plugins)
    return next(one for one in typer.main.get_command(around).params if one.name == "plugins")


def _import(given: list[str] | None) -> None:
    for one in given or ():
        import_plugin(one)


def _with_plugins(
    plugins: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="A Python file or module with your own weights, losses, models or readers.",
            callback=_import,
            is_eager=True,
            expose_value=False,
        ),
    ] = None,
) -> None:
    pass
