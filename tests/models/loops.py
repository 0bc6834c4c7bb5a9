"""The papers' equations in plain loops over Python floats: what the models are compared with."""

from __future__ import annotations

import math

from torch import Tensor, nn

from gradspace.models.pooling import GPO

Vector = list[float]
Matrix = list[Vector]


def floats(tensor: Tensor) -> list[float]:
    values: list[float] = tensor.detach().tolist()
    return values


def matrix(tensor: Tensor) -> Matrix:
    values: Matrix = tensor.detach().tolist()
    return values


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def linear(layer: nn.Linear, x: Vector) -> Vector:
    bias = floats(layer.bias) if layer.bias is not None else [0.0] * layer.out_features
    return [dot(row, x) + b for row, b in zip(matrix(layer.weight), bias, strict=True)]


def unit(x: Vector) -> Vector:
    length = math.sqrt(dot(x, x))
    return [value / length for value in x]


def mean(vectors: Matrix) -> Vector:
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def gru(layer: nn.GRU, inputs: Matrix, suffix: str = "l0") -> Matrix:
    """The state after every input (Cho et al. 2014), in the order of reading.

    r = s(W_r x + U_r h), z = s(W_z x + U_z h), n = tanh(W_n x + r (U_n h)), h = (1 - z) n + z h.
    """
    weights = {kind: matrix(getattr(layer, f"weight_{kind}_{suffix}")) for kind in ("ih", "hh")}
    biases = {kind: floats(getattr(layer, f"bias_{kind}_{suffix}")) for kind in ("ih", "hh")}
    size = layer.hidden_size
    state, states = [0.0] * size, []
    for x in inputs:
        from_x = [dot(w, x) + b for w, b in zip(weights["ih"], biases["ih"], strict=True)]
        from_h = [dot(w, state) + b for w, b in zip(weights["hh"], biases["hh"], strict=True)]
        new = []
        for i in range(size):
            r = sigmoid(from_x[i] + from_h[i])
            z = sigmoid(from_x[size + i] + from_h[size + i])
            n = math.tanh(from_x[2 * size + i] + r * from_h[2 * size + i])
            new.append((1 - z) * n + z * state[i])
        state = new
        states.append(state)
    return states


def bi_gru(layer: nn.GRU, inputs: Matrix) -> Matrix:
    """Both directions, averaged at every input."""
    return averaged(gru(layer, inputs), gru(layer, inputs[::-1], "l0_reverse"))


def averaged(there: Matrix, back: Matrix) -> Matrix:
    return [mean([a, b]) for a, b in zip(there, back[::-1], strict=True)]


def gpo(pool: GPO, features: Matrix) -> Vector:
    """VSE-infinity section 4: the weights of places, sorted values."""
    weights = gpo_weights(pool, len(features))
    return [dot(weights, sorted(column, reverse=True)) for column in zip(*features, strict=True)]


def gpo_weights(pool: GPO, size: int) -> Vector:
    """Position codes, bi-GRU, softmax(score / 0.1)."""
    width = pool.code_width
    positions = []
    for k in range(size):
        code = []
        for i in range(width // 2):
            angle = k / 10000 ** (2 * i / width)
            code += [math.sin(angle), math.cos(angle)]
        positions.append(code)
    states = averaged(gru(pool.there, positions), gru(pool.back, positions[::-1]))
    exponentials = [math.exp(linear(pool.score, state)[0] / 0.1) for state in states]
    return [value / sum(exponentials) for value in exponentials]


def gcn(block: nn.Module, images: list[Matrix], training: bool) -> list[Matrix]:
    """VSRN eq. 2-4, BatchNorm over the regions of all images in training."""
    theta, phi, g, out, norm = (
        getattr(block, name) for name in ("theta", "phi", "g", "out", "norm")
    )
    changes = []
    for regions in images:
        n = len(regions)
        for i in range(n):
            total = [0.0] * len(regions[0])
            for j in range(n):
                affinity = dot(linear(theta, regions[i]), linear(phi, regions[j])) / n
                for c, value in enumerate(linear(g, regions[j])):
                    total[c] += affinity * value
            changes.append(linear(out, total))
    results = []
    for column, values in enumerate(zip(*changes, strict=True)):
        if training:
            center = sum(values) / len(values)
            spread = sum((v - center) ** 2 for v in values) / len(values)
        else:
            center, spread = norm.running_mean[column].item(), norm.running_var[column].item()
        scale, shift = norm.weight[column].item(), norm.bias[column].item()
        results.append(
            [scale * (v - center) / math.sqrt(spread + norm.eps) + shift for v in values]
        )
    changed = iter([list(row) for row in zip(*results, strict=True)])
    return [
        [[v + c for v, c in zip(region, next(changed), strict=True)] for region in regions]
        for regions in images
    ]
