"""Triton's interpreter, without the work that it repeats for every call of a function."""

from __future__ import annotations

from typing import Any

import pytest


def patch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the members of `triton.language` for a kernel, not again for all that it calls."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch_lang = interpreter._patch_lang
    patched: set[int] = set()

    def patch(function: Any) -> Any:
        used = {id(value) for value in function.__globals__.values()} & {id(tl), id(tl.core)}
        is_kernel = not patched
        if used <= patched:
            return None
        patched.update(used)
        scope = patch_lang(function)
        if is_kernel:
            restore = scope.restore

            def end() -> None:
                patched.clear()
                restore()

            scope.restore = end
        return scope

    monkeypatch.setattr(interpreter, "_patch_lang", patch)
