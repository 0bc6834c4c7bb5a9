"""Usage errors, explained in one sentence with the correct option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]
"""Base class of click, which typer includes under a different name in each version."""
OF_RECIPES = ("train", "compare", "evaluate", "embed", "mine", "index")
"""Commands whose users may mistake a key of the recipe for an option."""


def explain_misuse(error: Any, arguments: Sequence[str]) -> str:
    """Explain an error in a sentence; empty if nothing was typed, and help was shown."""
    told = str(error.format_message()).strip().rstrip(".")
    if not told:
        return ""
    told = told[0].lower() + told[1:]
    context = error.ctx
    if type(error).__name__ == "NoSuchOption" and context.info_name in OF_RECIPES:
        from gradspace.cli.recipe_keys import suggest  # imports all models

        option, value = _typed(error.option_name, arguments)
        found = suggest(context.info_name, option, value, bool(error.possibilities))
        if found is not None:
            return f"no such option: {option}; {found}"
    shown = f"; see {context.command_path} --help" if context else ""
    return f"{told}{shown}"


def _typed(option: str, arguments: Sequence[str]) -> tuple[str, str | None]:
    """Return the option and its value, which may follow an equals sign."""
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == option:
            after = arguments[place + 1 : place + 2]
            follows = after[0] if after and not after[0].startswith("--") else None
            return name, value if equals else follows
    return option, None
