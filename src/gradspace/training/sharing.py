"""Towers whose weights, gradients and optimiser are divided among the processes (FSDP2).

A layer is gathered in every process when it is computed, and divided again afterwards. Checkpoints
are whole, so that a run can resume with any number of processes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gradspace import processes
from gradspace.data.batches import Batch
from gradspace.models import RetrievalModel
from gradspace.models.pretrained import Pretrained
from gradspace.training.towers import blocks_of

if TYPE_CHECKING:  # importing these takes a second, which one process does not need
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def share_towers(model: RetrievalModel) -> None:
    """Divide the towers that are trained among all processes, unless they already are."""
    if processes.world_size() == 1:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # No code here changes in place what a tower returns.
    warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module .* returned a view tensor")
    device = next(model.parameters()).device  # with --device cpu there may still be GPUs
    mesh = init_device_mesh(device.type, (processes.world_size(),))
    for part in model.modules():
        if not isinstance(part, Pretrained):
            continue
        for tower in part.towers():
            trained = any(parameter.requires_grad for parameter in tower.parameters())
            if trained and not _is_divided(tower):
                for module in (*blocks_of(tower), tower):
                    fully_shard(module, mesh=mesh, reshard_after_forward=True)


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Gather whole towers in every process, which may then compute independently."""
    shared = [module for module in model.modules() if _is_divided(module)]
    for module in shared:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in shared:
            module.set_reshard_after_forward(True, recurse=False)
            module.reshard()


# --- gradients ----------------------------------------------------------------------------------


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average gradients over all processes; those of shared weights are averaged already."""
    processes.average_gradients(each for each in parameters if not _is_shared(each))


def clip_gradients(parameters: Iterable[nn.Parameter], longest: float) -> Tensor:
    """Clip the gradient to norm `longest`, like `clip_grad_norm_`; return its norm before."""
    given = list(parameters)
    if not any(map(_is_shared, given)):
        return nn.utils.clip_grad_norm_(given, longest)
    gradients = [each.grad for each in given if each.grad is not None]
    shared = [own_part(each) for each in gradients if _is_shared(each)]
    own = [each for each in gradients if not _is_shared(each)]
    squares = nn.utils.get_total_norm(shared).square()
    dist.all_reduce(squares)
    norm = (squares + nn.utils.get_total_norm(own).square()).sqrt()
    factor = (longest / (norm + 1e-6)).clamp(max=1.0)
    for gradient in (*shared, *own):
        gradient.mul_(factor)
    return norm


def in_step(parts: list[Batch]) -> list[Batch]:
    """Divide a batch into the same number of parts in every process, as shared towers need.

    The number is the largest of any process; those with fewer parts halve their largest ones.
    """
    wanted = processes.largest(len(parts))
    while len(parts) < wanted:
        sizes = [len(part.image_ids) for part in parts]
        largest = sizes.index(max(sizes))
        if sizes[largest] == 1:
            raise ValueError(
                f"training.chunk makes {wanted} parts of a batch, and a process has only "
                f"{len(parts)} images of it: use a larger chunk with training.shard_towers"
            )
        rows = parts[largest].image_of_text()
        most_texts = 1 if rows is None else int(rows.bincount().max())
        halves = parts[largest].in_parts(-(-sizes[largest] // 2) * most_texts)
        parts = [*parts[:largest], *halves, *parts[largest + 1 :]]
    return parts


# --- checkpoints --------------------------------------------------------------------------------


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gather tensors for a file, one by one; shared ones only in the first process."""
    found = {}
    for name, tensor in tensors.items():
        if not _is_shared(tensor):
            found[name] = tensor
        elif processes.is_first():
            found[name] = tensor.full_tensor().cpu()
        else:
            tensor.full_tensor()
    return found


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load whole weights, read by every process, into a model with or without shared towers."""
    own = model.state_dict()
    model.load_state_dict({n: _shared_as(own[n], t) if n in own else t for n, t in tensors.items()})


@torch.no_grad()
def take_from_first(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load whole weights, read by the first process, into the models of all."""
    for name, own in model.state_dict().items():
        given = torch.empty(own.shape, dtype=own.dtype, device=own.device)
        if processes.is_first():
            given.copy_(tensors[name])
        processes.copy_from_first([given])
        own.copy_(_shared_as(own, given))


def shared_state(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Divide the whole tensors of an optimiser, named `index.name`, like its parameters."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    found = {}
    for name, tensor in tensors.items():
        parameter = parameters[int(name.partition(".")[0])]
        found[name] = _shared_as(parameter, tensor) if tensor.dim() else tensor
    return found


def _shared_as(own: Tensor, given: Tensor) -> Tensor:
    if not _is_shared(own):
        return given
    from torch.distributed.tensor import distribute_tensor

    there = given.to(own.device)
    return distribute_tensor(there, own.device_mesh, own.placements, src_data_rank=None)


def own_part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor in this process."""
    return tensor.to_local() if _is_shared(tensor) else tensor


def _is_shared(tensor: Tensor) -> TypeGuard[DTensor]:
    if processes.world_size() == 1:
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def _is_divided(module: nn.Module) -> TypeGuard[FSDPModule]:
    if processes.world_size() == 1:
        return False
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)
