"""The norm of gradients, and clipping by it, in an order of global indices and names."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from rlk.errors import Code, LaunchError
from rlk.optim.shards import gradient, local
from rlk.runtime.binding.checks import is_choice, number, wrong_type
from rlk.runtime.call.collective import Share, ordered_gather, pairwise_sum, share_of
from rlk.runtime.call.entry import call
from rlk.runtime.call.marked import mark_anew
from rlk.specs.optim import square_sums

NAME, CLIP = "grad_norm", "clip_grad_norm"
LEAVES = (1, 2, 4, 8)
Named = Iterable[tuple[str, torch.Tensor]]


@torch.no_grad()
def grad_norm(named_parameters: Named, *, leaves: int = 1) -> torch.Tensor:
    """Return the 2-norm of all gradients, f32 [], the same bits on every rank and for any sharding.

    named_parameters: `model.named_parameters()`; gradients are `p.main_grad` where a parameter has one, else
    `p.grad`; those that have none are left out. Gradients are whole on this rank, DTensors that are split
    along dims (FSDP2, tensor parallelism; one along the last dim at cuts of `leaves`), those of shares of
    `rlk.parallel.parallelize`, or DTensors of these. leaves: 1, 2, 4 or 8, that of the model.

    Order: a row is everything along the last dim of a parameter (of one with one dim: an element), cut into
    `leaves` equal pieces where they divide it. Squares of a piece are added in f32 by a vector8 tree; pieces
    of a row, then rows by their global index, pairwise, neighbours first, padded with zeros to a power of
    two; then parameters pairwise in the order of their names, sorted as Python sorts strings. A part that a
    wrapper puts into the names of all parameters of a module ("module", "_orig_mod") does not change it. The
    root is rounded.

    Sharded ranks exchange the sums of pieces, 4 bytes each, and add nothing that another rank adds otherwise.
    Raises LaunchError, on every rank, also for two parameters of one name, and for leaves that are not those
    of the model, where a rank has columns of a weight.
    """
    return _norm(NAME, _pairs(NAME, named_parameters), leaves)


def _norm(op: str, named: list[tuple[str, torch.Tensor]], leaves: int) -> torch.Tensor:
    is_choice(op, "leaves", leaves, LEAVES)
    mark_anew()
    found: dict[str, torch.Tensor | None] = {}
    shares: dict[str, Share | None] = {}
    for name, p in named:
        shares[name] = share_of(p)
        if name in found:
            what, wanted = f"two parameters named {name!r}", "names that differ: give each model's a prefix"
            raise LaunchError(Code.ARG_VALUE, op=op, name="named_parameters", value=what, wanted=wanted)
        found[name] = gradient(p)
    given = [(name, g) for name, g in sorted(found.items()) if g is not None]
    sums = [padded_sum(_pieces(op, name, g, leaves, shares[name])) for name, g in given]
    return padded_sum(torch.stack(sums)).sqrt() if sums else torch.zeros(())


def _pairs(op: str, named_parameters: Named) -> list[tuple[str, torch.Tensor]]:
    """Return names and parameters; raise LaunchError for parameters alone, which torch's clipping takes."""
    found = list(named_parameters)
    for each in found:
        if not (isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str)):
            wanted = "pair of a name and a parameter each: give model.named_parameters()"
            raise wrong_type(op, "named_parameters", each, wanted)
    return found


@torch.no_grad()
def clip_grad_norm(named_parameters: Named, max_norm: float, *, leaves: int = 1) -> torch.Tensor:
    """Multiply all gradients by min(1, max_norm / (norm + 1e-6)), and return the norm: f32 [].

    As `torch.nn.utils.clip_grad_norm_`, by the norm of `grad_norm`: see there for the arguments and the
    order. f32 throughout; a product is rounded to the gradient's dtype. In place. Raises LaunchError.
    """
    most = number(CLIP, "max_norm", max_norm, least=0.0, infinite=True)
    named = _pairs(CLIP, named_parameters)
    norm = _norm(CLIP, named, leaves)
    if most == inf:
        return norm
    factor = torch.clamp(most / (norm + 1e-6), max=1.0)
    for _, p in named:
        if (g := gradient(p)) is not None:
            part = local(g)
            part.copy_(part.float() * factor) if part.dtype != torch.float32 else part.mul_(factor)
    return norm


def padded_sum(x: torch.Tensor) -> torch.Tensor:
    """Return the `pairwise_sum` of f32 squares x [...], flattened, padded with zeros to a power of two."""
    count = x.numel()
    terms, total = x.new_zeros(1 << max(count - 1, 1).bit_length()), x.new_empty(())
    terms[:count] = x.flatten()
    pairwise_sum(terms, out=total)
    return total


def _pieces(op: str, name: str, g: torch.Tensor, leaves: int, share: Share | None) -> torch.Tensor:
    """Return the sums of squares of a whole gradient: [rows..., pieces], or [elements] of one dim."""
    columns = g.shape[-1] if g.dim() > 1 else 1
    if share is not None and g.dim() > 1 and share.dim == g.dim() - 1:
        columns *= share.group.size()
    cuts = leaves if columns % leaves == 0 and columns else 1
    here = local(g)
    size = columns // cuts
    if g.dim() < 2:
        wide = here.float()
        sums = wide * wide
    else:
        if size and any(width % size for width in _widths(g)):
            held = g.placements if isinstance(g, DTensor) else share
            wanted = (
                f"the number of leaves of the model (config.leaves), as leaves=: ranks have parts of the "
                f"columns of {name}, a {tuple(g.shape)} of {held}, multiples of the {size} of a piece"
            )
            raise LaunchError(Code.ARG_VALUE, op=op, name="leaves", value=leaves, wanted=wanted)
        shape = (*here.shape[:-1], here.shape[-1] // size if size else 0)
        sums = here.new_zeros(shape, dtype=torch.float32)
        if here.numel():
            rows = here.contiguous().view(-1, size)
            sums = call(square_sums, {"x": rows}, {}, {})["sums"].view(shape)
    if isinstance(g, DTensor):  # of a whole gradient, or of a share
        own = g.shape if g.dim() < 2 else (*g.shape[:-1], g.shape[-1] // size if size else 0)
        sums = _gathered(op, name, g, sums, torch.Size(own))
    if share is None:
        return sums
    every = ordered_gather(sums, share.group, op=op)
    return every.movedim(0, share.dim).flatten(share.dim, share.dim + 1)


def _widths(g: Any) -> set[int]:
    """Return the extents of the last dim on all ranks: the same set on each, so that all raise or none."""
    found = {g.shape[-1]}
    if isinstance(g, DTensor):
        for each, ranks in zip(g.placements, g.device_mesh.shape, strict=True):
            if getattr(each, "dim", None) == g.dim() - 1:
                found = {part for width in found for part in _chunks(width, ranks)}
    return found


def _chunks(width: int, ranks: int) -> set[int]:
    """Return the extents of the chunks that DTensor makes: as `torch.chunk`, and 0 for the ranks behind."""
    most = -(-width // ranks)
    return {max(min(most, width - rank * most), 0) for rank in range(ranks)}


def _gathered(op: str, name: str, g: Any, sums: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    for each in g.placements:
        if each.is_partial():
            wanted = "shards or copies, not parts of a sum"
            raise LaunchError(Code.ARG_VALUE, op=op, name=name, value=g.placements, wanted=wanted)
    stride = torch.empty(shape, device="meta").stride()
    made = DTensor.from_local(sums, g.device_mesh, g.placements, run_check=False, shape=shape, stride=stride)
    found: torch.Tensor = made.full_tensor()
    return found
