"""Reference files: numbers that the authors' own code gave, and how tests read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradspace.tensor_files import load_tensors, save_tensors

FOLDER = Path(__file__).parent
LARGEST = 200_000
"""Bytes of a file."""


class Reference(dict[str, Tensor]):
    """Tensors by name; a name is a path such as "vse++/weights/fc.weight"."""

    def under(self, prefix: str) -> Reference:
        """The tensors of a folder, by the rest of their names."""
        start = f"{prefix}/"
        found = {
            name[len(start) :]: value for name, value in self.items() if name[: len(start)] == start
        }
        if not found:
            raise KeyError(prefix)
        return Reference(found)

    def put(self, prefix: str, **tensors: Tensor) -> None:
        for name, value in tensors.items():
            self[f"{prefix}/{name}"] = value.detach().clone()

    def put_weights(self, prefix: str, network: nn.Module) -> None:
        """Every weight and statistic."""
        for name, value in network.state_dict().items():
            if not name.endswith("num_batches_tracked"):
                self[f"{prefix}/weights/{name}"] = value.clone()

    def put_gradients(self, prefix: str, network: nn.Module) -> None:
        """The gradients that weights have."""
        for name, parameter in network.named_parameters():
            if parameter.grad is not None:
                self[f"{prefix}/gradients/{name}"] = parameter.grad.clone()

    def by_our_names(self, kind: str, names: Mapping[str, str]) -> dict[str, Tensor]:
        """The weights or the gradients of networks, under our names.

        `names` has the network and the start of a name there, "text/rnn.", and what it is here; the
        longest start that fits is taken, and what none fits is left out.
        """
        found = {}
        for network in {theirs.partition("/")[0] for theirs in names}:
            for name, value in self.under(f"{network}/{kind}").items():
                full = f"{network}/{name}"
                starts = [theirs for theirs in names if full.startswith(theirs)]
                if starts:
                    start = max(starts, key=len)
                    found[names[start] + full[len(start) :]] = value
        return found


def save(name: str, reference: Reference, record: Mapping[str, Any]) -> Path:
    path = FOLDER / f"{name}.safetensors"
    save_tensors(path, reference, record)
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, more than {LARGEST}")
    return path


def load(name: str) -> Reference:
    return Reference(load_tensors(FOLDER / f"{name}.safetensors")[0])


def names() -> Iterator[str]:
    return (path.stem for path in sorted(FOLDER.glob("*.safetensors")))


def near(found: Tensor, expected: Tensor) -> None:
    """Equal to 1e-5, absolute and relative."""
    torch.testing.assert_close(found.to(expected.dtype), expected, rtol=1e-5, atol=1e-5)


def take_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load all weights and statistics of a network, by our names."""
    missing, unexpected = network.load_state_dict(dict(weights), strict=False)
    counters = [name for name in missing if name.endswith("num_batches_tracked")]
    assert missing == counters
    assert not unexpected


def check_gradients(network: nn.Module, gradients: Mapping[str, Tensor]) -> None:
    """Every gradient that the authors' weights have, by our names, and no others."""
    found = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    assert found.keys() == gradients.keys()
    for name, expected in gradients.items():
        near(found[name], expected)
