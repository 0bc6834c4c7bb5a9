"""From the torch formula of a term to a Triton function: formulas are written once.

The elementwise `term(score, given)` of a statistic is traced, together with its derivatives, into a
graph of elementary operations, and every operation becomes one line of Triton.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any, NamedTuple
from zlib import crc32

import torch
import triton
import triton.language as tl
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

Term = Callable[[Tensor, Tensor], Tensor]


class UnsupportedTermError(Exception):
    """A term uses an operation that has no translation; it is executed in torch instead."""


@triton.jit
def log1p(x):  # type: ignore[no-untyped-def]
    """log(1 + x), also for small x."""
    y = 1 + x
    return tl.log(y) - ((y - 1) - x) / y


OPERATIONS = {
    "_to_copy": "({0}).to(tl.float32)",
    "abs": "tl.abs({0})",
    "add": "({0} + {1})",
    "alias": "{0}",
    "bitwise_and": "({0} & {1})",
    "bitwise_not": "({0} == 0)",
    "bitwise_or": "({0} | {1})",
    "clone": "{0}",
    "detach": "{0}",
    "div": "({0} / {1})",
    "eq": "({0} == {1})",
    "exp": "tl.exp({0})",
    "ge": "({0} >= {1})",
    "gt": "({0} > {1})",
    "le": "({0} <= {1})",
    "log": "tl.log({0})",
    "log1p": "log1p({0})",
    "logical_and": "({0} & {1})",
    "logical_not": "({0} == 0)",
    "logical_or": "({0} | {1})",
    "lt": "({0} < {1})",
    "masked_fill": "tl.where({1}, {2}, {0})",
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "mul": "({0} * {1})",
    "ne": "({0} != {1})",
    "neg": "(-{0})",
    "relu": "tl.maximum({0}, 0.0)",
    "sigmoid": "tl.sigmoid({0})",
    "sqrt": "tl.sqrt({0})",
    "sub": "({0} - {1})",
    "view": "{0}",
    "where": "tl.where({0}, {1}, {2})",
}

CONSTANTS = {"ones_like": 1.0, "zeros_like": 0.0}
"""What makes numbers from nothing; "full", "full_like" and "scalar_tensor" have them last."""


class Translated(NamedTuple):
    """Triton functions of (score, given): a term, and its derivatives by both."""

    term: Any
    derivatives: Any
    vanishes: bool
    """Does nothing come from a score of -inf, as from what is no negative?"""


def translate(formula: Term, vanished: float) -> Translated:
    """`vanished` is what a term must be, at most, to add nothing to its statistic."""
    example = torch.tensor([[0.1, 0.2]])

    def derivatives(s: Tensor, given: Tensor) -> tuple[Tensor, ...]:
        s, given = s.requires_grad_(), given.requires_grad_()
        value = formula(s, given)
        if not value.requires_grad:  # a count
            return torch.zeros_like(s), torch.zeros_like(given)
        one = torch.ones_like(value)
        found = torch.autograd.grad(value, (s, given), one, allow_unused=True)
        return tuple(torch.zeros_like(s) if d is None else d for d in found)

    table: Any = core_aten_decompositions()
    arguments = (example, example.clone())
    with torch.enable_grad():
        first = make_fx(derivatives, decomposition_table=table)(*arguments)
    with torch.no_grad():
        zeroth = make_fx(lambda s, g: (formula(s, g),), decomposition_table=table)(*arguments)
    with torch.enable_grad():
        far = torch.full_like(example, -torch.inf)
        at_far = formula(far, example)
        slopes = torch.stack(derivatives(far, example.clone()))
    vanishes = (at_far <= vanished).all() and not at_far.isnan().any()
    slopes_vanish = (slopes == 0).all() if vanished == 0 else slopes.isfinite().all()
    return Translated(
        _compile("term", zeroth.graph),
        _compile("derivatives", first.graph),
        bool(vanishes and slopes_vanish),
    )


def _compile(name: str, graph: fx.Graph) -> Any:
    """Functions of different bodies get different names: by these Triton tells them apart."""
    body = "".join(f"    {line}\n" for line in _lines(graph))
    name = f"{name}_{crc32(body.encode()):08x}"
    source = f"@triton.jit\ndef {name}(s, given):\n{body}"
    file = f"<gradspace {name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)  # for triton.jit
    scope: dict[str, Any] = {"triton": triton, "tl": tl, "log1p": log1p, "__name__": __name__}
    exec(compile(source, file, "exec"), scope)
    return scope[name]


def _lines(graph: fx.Graph) -> list[str]:
    """The body of the function; numbers that are known already stand where they are used."""
    graph.eliminate_dead_code()
    names: dict[fx.Node, str] = {}
    constants: set[str] = set()
    lines = []
    inputs = iter(("s", "given"))

    def text(value: Any) -> str:
        if isinstance(value, fx.Node):
            return names[value]
        if isinstance(value, bool | int | float):
            return repr(float(value))
        raise UnsupportedTermError(f"an argument {value!r}")

    for node in graph.nodes:
        if node.op == "placeholder":
            names[node] = next(inputs)
        elif node.op == "output":
            # One number per score, also where the derivative is the same for all.
            results = [text(value) for value in node.args[0]]
            full = [f"tl.full(s.shape, {r}, tl.float32)" if r in constants else r for r in results]
            lines.append(f"return {', '.join(full)}")
        elif node.op != "call_function":
            raise UnsupportedTermError(f"{node.op} {node.target}")
        elif _name(node) in (*CONSTANTS, "full", "full_like", "scalar_tensor"):
            names[node] = text(CONSTANTS.get(_name(node), node.args[-1]))
            constants.add(names[node])
        else:
            names[node] = f"x{len(names)}"
            lines.append(f"{names[node]} = {_expression(node, text)}")
            if all(text(a) in constants for a in node.args if isinstance(a, fx.Node)):
                constants.add(names[node])
    return lines


def _name(node: fx.Node) -> str:
    return str(node.target).split(".")[1].rstrip("_")


def _expression(node: fx.Node, text: Callable[[Any], str]) -> str:
    name = _name(node)
    arguments = [argument for argument in node.args if not isinstance(argument, list | tuple)]
    match name:
        case "clamp" | "clamp_min":
            value, low, high = (*arguments, None, None)[:3]
            low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
            found = text(value)
            found = found if low is None else f"tl.maximum({found}, {text(low)})"
            return found if high is None else f"tl.minimum({found}, {text(high)})"
        case "div" if isinstance(arguments[1], int | float):
            return f"({text(arguments[0])} * {1 / arguments[1]!r})"
        case "pow" if arguments[1] == 2:
            return f"({text(arguments[0])} * {text(arguments[0])})"
        case _ if name in OPERATIONS and not node.kwargs.get("alpha"):
            return OPERATIONS[name].format(*map(text, arguments))
    raise UnsupportedTermError(f"the operation {node.target}")
