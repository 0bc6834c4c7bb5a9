"""Loading, freezing and fine-tuning of transformers networks from a local folder or the hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gradspace.commands import pip_install
from gradspace.models.families import family_of
from gradspace.models.hub import download_options

PretrainedSide = Literal["vision", "text", "both"]
"""One tower of a network, or a whole dual encoder."""


class Pretrained(nn.Module):
    """A transformers network inside a model: frozen or fine-tuned, at its own learning rate.

    A frozen network gets no gradient and stays in evaluation mode (no dropout, BatchNorm statistics
    kept) even while the model around it trains. In a fine-tuned one every parameter that its output
    depends on gets a gradient; the others (an unused pooler, a mask token) stay frozen, as
    data-parallel training requires.
    """

    kind: ClassVar[str]

    def __init__(
        self, name: str | Path, side: PretrainedSide, *, rate: float, pretrained: bool
    ) -> None:
        super().__init__()
        self.network: Any = load_network(name, side, pretrained=pretrained).requires_grad_(False)
        self.rate = rate
        """Learning rate relative to that of the model around it."""
        self.fine_tuned = False
        self._used: frozenset[str] = frozenset()

    def example(self) -> tuple[Tensor, ...]:
        """Return the smallest input that `forward` takes."""
        raise NotImplementedError

    def towers(self) -> list[nn.Module]:
        """The networks inside that are called by themselves, each a stack of layers."""
        return [self.network]

    def fine_tune(self, enabled: bool) -> None:
        """Train or freeze the network."""
        self.fine_tuned = enabled
        if enabled and not self._used:
            self._used = self._find_used()
        for name, parameter in self.network.named_parameters():
            parameter.requires_grad_(enabled and name in self._used)
        self.train(self.training)

    def _find_used(self) -> frozenset[str]:
        """Find the parameters that a gradient reaches, from the graph of an example's output."""
        self.network.requires_grad_(True).eval()
        with torch.enable_grad():
            reached = _leaves_of(self(*self.example()))
        named = self.network.named_parameters()
        return frozenset(name for name, parameter in named if parameter in reached)

    def train(self, mode: bool = True) -> Pretrained:
        super().train(mode)
        self.network.train(mode and self.fine_tuned)
        return self

    def save_config(self, folder: Path) -> None:
        """Write the files with which `pretrained=False` can later build the same network."""
        self.network.config.save_pretrained(folder)


def _leaves_of(output: Tensor) -> set[Tensor]:
    """Find the tensors in which a gradient of the output would be accumulated."""
    leaves: set[Tensor] = set()
    waiting, seen = [output.grad_fn], {output.grad_fn}
    while waiting:
        step: Any = waiting.pop()
        if hasattr(step, "variable"):
            leaves.add(step.variable)
        following = {function for function, _ in step.next_functions if function} - seen
        seen |= following
        waiting += following
    return leaves


def load_network(name: str | Path, side: PretrainedSide, *, pretrained: bool = True) -> Any:
    """Load a network, or one of its towers, in float32.

    Weights are read from safetensors files only: pickled ones can run code when they are loaded.
    """
    from transformers import AutoModel

    config = load_config(name, side)
    if not pretrained:
        return _checked(AutoModel.from_config(config, dtype=torch.float32), name, side)
    place = place_of(name)
    refuse_pickles(place)
    options = download_options(place)
    of_adapter = {"local_files_only": options["local_files_only"]}  # peft asks by itself
    with quietly(), one_sentence(name):
        network, report = AutoModel.from_pretrained(
            place,
            config=config,
            use_safetensors=True,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # reported below, by name
            output_loading_info=True,
            adapter_kwargs=of_adapter,
            **options,
        )
    _refuse_other_shapes(report["mismatched_keys"], name)
    network = _checked(network, name, side)
    missing = sorted(set(report["missing_keys"]) & network.state_dict().keys())
    if missing:
        raise ValueError(
            f"{name} lacks {len(missing)} weights of a {type(network).__name__}: {_listed(missing)}"
        )
    return network


def _refuse_other_shapes(found: Iterable[tuple[str, Any, Any]], name: str | Path) -> None:
    wrong = [f"{key} {list(has)} instead of {list(wanted)}" for key, has, wanted in sorted(found)]
    if wrong:
        raise ValueError(
            f"{name} has weights whose shapes do not match its config.json: {_listed(wrong)}"
        )


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def load_config(name: str | Path, side: PretrainedSide) -> Any:
    """Load a network's transformers configuration, or that of one of its towers."""
    from transformers import AutoConfig

    place = place_of(name)
    if Path(place).is_dir() and not (Path(place) / "config.json").is_file():
        raise ValueError(f"{place} has no config.json: transformers did not save this folder")
    with quietly(), one_sentence(name):
        config = AutoConfig.from_pretrained(place, **download_options(place))
    if side == "both":
        family_of(config, name)
    return getattr(config, f"{side}_config", config)


def _checked(network: Any, name: str | Path, side: PretrainedSide) -> Any:
    """Check that a network takes this kind of input, and drop its pooler, which is not used.

    The tanh pooler of BERT and ViT is made for classification, and image classifiers are published
    without its weights; the class token is used instead.
    """
    takes = getattr(network, "main_input_name", "nothing")
    if side != "both" and takes != {"vision": "pixel_values", "text": "input_ids"}[side]:
        raise ValueError(
            f"{name} is a {type(network).__name__}, which takes {takes}: it is not a {side} model"
        )
    if hasattr(getattr(network, "pooler", None), "dense"):
        network.pooler = None
    return network


def place_of(name: str | Path) -> str:
    """Resolve a name to an existing folder, or else accept it as a possible name on the hub."""
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    if isinstance(name, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1:
        found = "is a file" if path.exists() else "does not exist"
        raise ValueError(f"{path} {found}: expected the folder of a model saved by transformers")
    return name


def refuse_pickles(place: str) -> None:
    """Reject a folder whose weights could run code when they are loaded."""
    folder = Path(place)
    if folder.is_dir() and not list(folder.glob("*.safetensors")):
        pickles = [file.name for kind in ("bin", "pt", "pth") for file in folder.glob(f"*.{kind}")]
        found = f"only pickled weights ({pickles[0]}), which can run code" if pickles else "none"
        raise ValueError(
            f"{place} should have weights in a .safetensors file but has {found}; if you trust its "
            f"files, AutoModel.from_pretrained({place!r}).save_pretrained({place!r}) writes one"
        )


@contextmanager
def one_sentence(name: str | Path) -> Iterator[None]:
    """Shorten transformers' long errors to one sentence."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        if not Path(name).exists():
            told = f"{name} does not exist as a folder and cannot be loaded from the hub"
            raise ValueError(f"{told}: {reason}") from error
        raise ValueError(f"cannot load {str(name)!r}: {reason}") from error
    except ImportError as error:
        reason = str(error).strip().partition(" but ")[0]
        raise ValueError(
            f"{name} cannot be loaded without another package: {reason}; "
            f"{pip_install('gradspace[siglip]')} has those of tokenizers"
        ) from error


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress progress bars and reports of unused weights while a network loads."""
    from transformers.utils import logging

    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
