"""The norm of gradients, and clipping by it, in an order of global indices and names."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from rlk.errors import Code, LaunchError
from rlk.optim.shards import gradient, local, refuse_share
from rlk.runtime.binding.checks import is_choice, number
from rlk.runtime.call.entry import call
from rlk.specs.optim import square_sums

NAME = "grad_norm"
LEAVES = (1, 2, 4, 8)
WRAPPERS = frozenset({"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
"""Parts of names that DDP, torch.compile and activation checkpointing put in."""
Named = Iterable[tuple[str, torch.Tensor]]


@torch.no_grad()
def grad_norm(named_parameters: Named, *, leaves: int = 1) -> torch.Tensor:
    """Return the 2-norm of all gradients, f32 [], the same bits on every rank and for any sharding.

    named_parameters: `model.named_parameters()`; gradients are `p.main_grad` where a parameter has one, else
    `p.grad`; those that have none are left out. Gradients are whole on this rank, or DTensors that are split
    along dims (FSDP2, tensor parallelism; one along the last dim at cuts of `leaves`). leaves: 1, 2, 4 or 8,
    that of the model.

    Order: a row is everything along the last dim of a parameter (of one with one dim: an element), cut into
    `leaves` equal pieces where they divide it. Squares of a piece are added in f32 by a vector8 tree; pieces
    of a row, then rows by their global index, pairwise, neighbours first, padded with zeros to a power of
    two; then parameters pairwise in the order of their names (sorted as Python sorts strings, without the
    parts that wrappers put in: "module", "_orig_mod", "_checkpoint_wrapped_module"). The root is rounded.

    Sharded ranks exchange the sums of pieces, 4 bytes each, and add nothing that another rank adds otherwise.
    Raises LaunchError.
    """
    is_choice(NAME, "leaves", leaves, LEAVES)
    found = {}
    for name, p in named_parameters:
        refuse_share(NAME, name, p)
        if (g := gradient(p)) is not None:
            found[_plain(name)] = g
    if not found:
        return torch.zeros(())
    sums = [pairwise(_pieces(name, found[name], leaves)) for name in sorted(found)]
    return pairwise(torch.stack(sums)).sqrt()


@torch.no_grad()
def clip_grad_norm(named_parameters: Named, max_norm: float, *, leaves: int = 1) -> torch.Tensor:
    """Multiply all gradients by min(1, max_norm / (norm + 1e-6)), and return the norm: f32 [].

    As `torch.nn.utils.clip_grad_norm_`, by the norm of `grad_norm`: see there for the arguments and the
    order. f32 throughout; a product is rounded to the gradient's dtype. In place. Raises LaunchError.
    """
    most = number("clip_grad_norm", "max_norm", max_norm, least=0.0, infinite=True)
    named = list(named_parameters)
    norm = grad_norm(named, leaves=leaves)
    if most == inf:
        return norm
    factor = torch.clamp(most / (norm + 1e-6), max=1.0)
    for _, p in named:
        if (g := gradient(p)) is not None:
            part = local(g)
            part.copy_(part.float() * factor) if part.dtype != torch.float32 else part.mul_(factor)
    return norm


def pairwise(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of f32 x [...] of squares, flattened: neighbours first, padded to a power of two."""
    x = x.flatten()
    width = 1 << max(x.numel() - 1, 0).bit_length()
    x = torch.nn.functional.pad(x, (0, width - x.numel()))
    while x.numel() > 1:
        x = x[0::2] + x[1::2]
    return x[0]


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _pieces(name: str, g: torch.Tensor, leaves: int) -> torch.Tensor:
    """Return the sums of squares of a whole gradient: [rows..., pieces], or [elements] of one dim."""
    columns = g.shape[-1] if g.dim() > 1 else 1
    cuts = leaves if columns % leaves == 0 and columns else 1
    here = local(g)
    size = columns // cuts
    if g.dim() < 2:
        wide = here.float()
        sums = wide * wide
    else:
        if size and here.shape[-1] % size:
            wanted = f"shards of whole pieces: multiples of {size} along the last dim, for leaves = {leaves}"
            raise LaunchError(Code.ARG_VALUE, op=NAME, name=name, value=tuple(here.shape), wanted=wanted)
        shape = (*here.shape[:-1], here.shape[-1] // size if size else 0)
        sums = here.new_zeros(shape, dtype=torch.float32)
        if here.numel():
            rows = here.contiguous().view(-1, size)
            sums = call(square_sums, {"x": rows}, {}, {})["sums"].view(shape)
    if not isinstance(g, DTensor):
        return sums
    whole = g.shape if g.dim() < 2 else (*g.shape[:-1], cuts)
    return _gathered(name, g, sums, torch.Size(whole))


def _gathered(name: str, g: Any, sums: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    for each in g.placements:
        if each.is_partial():
            wanted = "shards or copies, not parts of a sum"
            raise LaunchError(Code.ARG_VALUE, op=NAME, name=name, value=g.placements, wanted=wanted)
    stride = torch.empty(shape, device="meta").stride()
    made = DTensor.from_local(sums, g.device_mesh, g.placements, run_check=False, shape=shape, stride=stride)
    found: torch.Tensor = made.full_tensor()
    return found
