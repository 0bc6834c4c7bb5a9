"""Compiler from traced torch functions to Triton, so that every formula is written once, in torch.

A function is traced on tensors of a few queries and slots; every operation of the graph becomes one
line of Triton. In the Triton function, values per query are columns, [queries, 1], and values per
slot are matrices, [queries, slots]; a term has one number per score.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from zlib import crc32

import torch
import triton
import triton.language as tl
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx


class UnsupportedTermError(Exception):
    """A formula uses an operation that has no translation; it is executed in torch instead."""


@triton.jit
def log1p(x):  # type: ignore[no-untyped-def]
    """Compute log(1 + x), accurately for small x too."""
    y = 1 + x
    return tl.log(y) - ((y - 1) - x) / y


@triton.jit
def expm1(x):  # type: ignore[no-untyped-def]
    """Compute exp(x) - 1, accurately for small x too."""
    y = tl.exp(x)
    near = (y - 1) * x / tl.where(y == 1, 1.0, tl.log(y))
    return tl.where(y == 1, x, tl.where(tl.abs(x) < 0.5, near, y - 1))


@triton.jit
def softplus(x):  # type: ignore[no-untyped-def]
    """Compute log(1 + exp(x)): max(x, 0) + log(1 + u) with u = exp(-|x|), without a logarithm.

    The polynomial is log(1 + u) / u on [0, 1], with a relative error of 2e-7 in float32.
    """
    u = tl.exp2(-1.4426950408889634 * tl.abs(x))
    y = 0.005126102140966912 * u - 0.029074064677494196
    y = y * u + 0.0775160867403694
    y = y * u - 0.13602247622479405
    y = y * u + 0.19076880735747795
    y = y * u - 0.24835398988515545
    y = y * u + 0.3331812170753319
    y = y * u - 0.49999444976340096
    y = y * u + 0.9999999659255097
    return tl.maximum(x, 0.0) + y * u


OPERATIONS = {
    "_to_copy": "({0}).to(tl.float32)",
    "abs": "tl.abs({0})",
    "add": "({0} + {1})",
    "bitwise_and": "({0} & {1})",
    "bitwise_not": "({0} == 0)",
    "bitwise_or": "({0} | {1})",
    "div": "({0} / {1})",
    "eq": "({0} == {1})",
    "exp": "tl.exp({0})",
    "expm1": "expm1({0})",
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
    "reciprocal": "(1.0 / {0})",
    "relu": "tl.maximum({0}, 0.0)",
    "sigmoid": "tl.sigmoid({0})",
    "softplus": "softplus({0})",
    "softplus_backward": "({0} * tl.sigmoid({1}))",
    "sqrt": "tl.sqrt({0})",
    "sub": "({0} - {1})",
    "where": "tl.where({0}, {1}, {2})",
}

SCOPE = {"expm1": expm1, "log1p": log1p, "softplus": softplus}

UNCHANGED = ("alias", "clone", "detach", "expand", "squeeze", "unsqueeze", "view")
"""Operations that only change the shape, and are dropped: columns and matrices broadcast."""
WHOLE = (torch.ops.aten.softplus.default, torch.ops.aten.softplus_backward.default)
"""Operations that are not decomposed before they are translated."""
REDUCTIONS = {"sum": "tl.sum", "amax": "tl.max", "amin": "tl.min"}
CONSTANTS = {"ones_like": 1.0, "zeros_like": 0.0}
"""Operations that create a constant; those of "full", "full_like" and "scalar_tensor" come last in
their arguments."""


def trace(function: Callable[..., Any], *examples: Tensor, differentiate: bool) -> fx.Graph:
    """Trace the operations of a function that returns a tuple of tensors."""
    with torch.set_grad_enabled(differentiate):
        graph: fx.Graph = make_fx(function, decomposition_table=_table())(*examples).graph
    graph.eliminate_dead_code()
    return graph


@cache
def _table() -> Any:
    """Collect the decompositions of operations, which takes a fifth of a second."""
    table: dict[Any, Any] = core_aten_decompositions()
    return {operation: how for operation, how in table.items() if operation not in WHOLE}


def compile_graph(name: str, inputs: Sequence[str], graph: fx.Graph) -> Any:
    """Compile a Triton function of the inputs, the first of which has the full shape."""
    return compile_source(name, inputs, _lines(graph, inputs), SCOPE)


def compile_source(
    name: str, inputs: Sequence[str], lines: Sequence[str], scope: dict[str, Any]
) -> Any:
    """Compile Triton source; different bodies get different names, by which Triton caches them."""
    body = "".join(f"    {line}\n" for line in lines)
    name = f"{name}_{crc32((', '.join(inputs) + body).encode()):08x}"
    source = f"@triton.jit\ndef {name}({', '.join(inputs)}):\n{body}"
    file = f"<gradspace {name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)  # for triton.jit
    scope = {"triton": triton, "tl": tl, "__name__": __name__, **scope}
    exec(compile(source, file, "exec"), scope)
    return scope[name]


def _lines(graph: fx.Graph, inputs: Sequence[str]) -> list[str]:
    """Body of the function; constants are inlined where they are used."""
    names: dict[fx.Node, str] = {}
    constants: set[str] = set()
    lines = []
    left = iter(inputs)

    def text(value: Any) -> str:
        if isinstance(value, fx.Node):
            return names[value]
        if isinstance(value, bool | int | float):
            number = float(value)
            return repr(number) if abs(number) < float("inf") else f'float("{number}")'
        raise UnsupportedTermError(f"an argument {value!r}")

    def result(node: fx.Node) -> str:
        """Name of a result, expanded to one number per score or query if it is a constant."""
        if text(node) not in constants:
            return text(node)
        columns = f"{inputs[0]}.shape[1]" if _is_matrix(node) else "1"
        return f"tl.full(({inputs[0]}.shape[0], {columns}), {text(node)}, tl.float32)"

    for node in graph.nodes:
        if node.op == "placeholder":
            names[node] = next(left)
        elif node.op == "output":
            lines.append(f"return {', '.join(map(result, node.args[0]))}")
        elif node.op != "call_function":
            raise UnsupportedTermError(f"{node.op} {node.target}")
        elif _name(node) in UNCHANGED:
            names[node] = text(node.args[0])
        elif _name(node) in (*CONSTANTS, "full", "full_like", "scalar_tensor"):
            value = CONSTANTS.get(_name(node), node.args[-1])
            names[node] = text(value)
            constants.add(names[node])
        else:
            names[node] = f"x{len(names)}"
            lines.append(f"{names[node]} = {_expression(node, text)}")
            if all(text(a) in constants for a in node.args if isinstance(a, fx.Node)):
                constants.add(names[node])
    return lines


def _name(node: fx.Node) -> str:
    return str(node.target).split(".")[1].rstrip("_") if "." in str(node.target) else "?"


def _is_matrix(node: fx.Node) -> bool:
    shape = node.meta["tensor_meta"].shape
    return len(shape) == 2 and shape[1] > 1


def _numbers(arguments: Sequence[Any]) -> list[Any]:
    return [argument for argument in arguments if not isinstance(argument, fx.Node)]


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
        case "softplus" | "softplus_backward" if _numbers(arguments) not in ([], [1, 20]):
            raise UnsupportedTermError(f"{name} with a beta or threshold that is not the default")
        case "pow" if arguments[1] == 2:
            return f"({text(arguments[0])} * {text(arguments[0])})"
        case _ if name in REDUCTIONS and node.args[1:2] in (([1],), ([-1],)):
            of = node.args[0]
            assert isinstance(of, fx.Node)
            if not _is_matrix(of):
                return text(of)
            return f"{REDUCTIONS[name]}(({text(of)}).to(tl.float32), 1, keep_dims=True)"
        case _ if name in OPERATIONS and not node.kwargs.get("alpha"):
            return OPERATIONS[name].format(*map(text, arguments))
    raise UnsupportedTermError(f"the operation {node.target}")
