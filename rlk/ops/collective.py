"""The public operators over ranks: sums in an order that no communication backend chooses."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from rlk.digest import digest
from rlk.errors import Code, LaunchError, UnsupportedError
from rlk.ir.computed import tree_rule
from rlk.ir.nodes import MathModel
from rlk.ir.numerics import Tier
from rlk.ir.tree import Tree
from rlk.runtime.binding import selection
from rlk.runtime.call import entry as calls
from rlk.runtime.call.autograd import differentiated, once
from rlk.runtime.call.collective import (
    Group,
    gather_over_ranks,
    gathered_sum,
    of_same_terms,
    scatter_over_ranks,
    sum_over_ranks,
    tree_levels,
)
from rlk.runtime.call.dispatch import Decision

NAME, SCATTER, GATHERED = "ordered_all_reduce", "ordered_reduce_scatter", "ordered_gather_sum"


def ordered_all_reduce(
    x: torch.Tensor, group: Group, *, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return the sum of x over the ranks of a process group; every rank gets the same bits.

    x: f32, bf16 or f16 [...], of one shape on every rank, any strides. group: a torch.distributed process
    group, None for the default one, of a power of two of ranks; or two of them, (between nodes, inside a
    node), as the groups of a DeviceMesh of nodes and their devices: rank r of a node of n is rank
    node * n + r. out_dtype: by default x's; of f32 x also bf16 or f16. Returns a new contiguous tensor of x's
    shape.

    The sum is `Tree.pairwise` over ranks in the group's order: ranks 0 + 1 and 2 + 3, then those two sums,
    and so on, each addition rounded once to f32; sums of 16 bits are rounded once at the end. The bits do not
    depend on the transport (NCCL and gloo only carry them), on the topology, on how many ranks share a host
    or on whether two groups were given, and equal those of one rank that adds the same terms in this order.
    One rank gives a copy.

    Between devices of one node terms go through memory that these share, if they can (RLK_TRANSPORT, see
    docs/parallel.md), else through the group's backend. Each rank sends and receives 2 (R - 1) / R of x's
    bytes, as a ring all-reduce does: two ranks all of x, more of them shares of x, then their sums. Where all
    ranks' x have 8 MiB or less together, each gathers all of them. Between nodes of n ranks go 1 / n of the
    bytes, the shares as f32. Extra memory: the bytes of x, twice where x is not contiguous, and those of all
    ranks where they are gathered. It runs on the current stream and waits for no device.

    Differentiable in nothing: detach x, or call it under torch.no_grad(), as for gradients of data-parallel
    ranks; `ordered_gather_sum` is. Raises LaunchError before anything is sent. The first call with a shape,
    dtype and out_dtype in a group compares them, the operator and the kind of device between ranks through
    the store of torch.distributed: where they differ, every rank raises (RANKS_DIFFER). Where they are new to
    some of the ranks alone, these name the others after the store's timeout (RANKS_MISSING), whose call ends
    by the timeout of their backend.
    """
    return of_same_terms(lambda: total_over_ranks(x, group, out_dtype), x, group, NAME, out_dtype)


def total_over_ranks(x: torch.Tensor, group: Group, out_dtype: torch.dtype | None) -> torch.Tensor:
    """Return `ordered_all_reduce` of terms that ranks are known to have alike."""
    _not_observed(NAME)
    return sum_over_ranks(x, group, NAME, out_dtype)


def ordered_reduce_scatter(
    x: torch.Tensor, group: Group, *, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return this rank's part of the sum of x over the ranks.

    x: f32, bf16 or f16 [R * n, ...] for R ranks, any strides; rank r gets [n, ...], rows r * n to (r + 1) * n
    of the sum, contiguous. group, out_dtype, the order of the sum and its rounding: as in
    `ordered_all_reduce`, of which it is the first half: each rank sends (R - 1) / R of x's bytes. Where all
    ranks' x have 8 MiB or less together, each gathers all of them.

    Differentiable in x, without out_dtype: its gradient is the cotangents of all ranks, one after the other
    (an all-gather, which adds nothing). Raises LaunchError as `ordered_all_reduce` does.
    """
    return of_same_terms(lambda: part_over_ranks(x, group, out_dtype), x, group, SCATTER, out_dtype)


def part_over_ranks(x: torch.Tensor, group: Group, out_dtype: torch.dtype | None) -> torch.Tensor:
    """Return `ordered_reduce_scatter` of terms that ranks are known to have alike."""
    _not_observed(SCATTER)
    if not (torch.is_grad_enabled() and isinstance(x, torch.Tensor) and x.requires_grad):
        return scatter_over_ranks(x, group, SCATTER, out_dtype)
    if out_dtype not in (None, x.dtype):
        raise LaunchError(Code.NOT_DIFFERENTIABLE, op=SCATTER, name="x", choices="no input with out_dtype")
    made: torch.Tensor = _ReduceScatter.apply(x, group)
    return made


def ordered_gather_sum(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Return the bits of `ordered_all_reduce` from one all-gather: for small x, where latency counts.

    x: f32, bf16 or f16 [...]; group and the result are as there. Each rank receives R times x's bytes, and
    adds them all.

    Differentiable in x, for a result that every rank uses alike (a row-parallel product):
    the cotangent is then the same on every rank, and is the gradient of x as it is. Where ranks use the
    result differently, add their cotangents with another call. Raises LaunchError as `ordered_all_reduce`
    does.
    """
    return of_same_terms(lambda: _gathered_sum(x, group), x, group, GATHERED)


def _gathered_sum(x: torch.Tensor, group: Group) -> torch.Tensor:
    _not_observed(GATHERED)
    if not (torch.is_grad_enabled() and isinstance(x, torch.Tensor) and x.requires_grad):
        return gathered_sum(x, group, GATHERED)
    made: torch.Tensor = _GatherSum.apply(x, group)
    return made


class _ReduceScatter(torch.autograd.Function):
    """A part of a sum over ranks; its gradient gathers the parts."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return scatter_over_ranks(x, group, SCATTER)

    @staticmethod
    def backward(ctx: Any, d_y: torch.Tensor) -> tuple[torch.Tensor, None]:
        made = gather_over_ranks(d_y.detach(), ctx.group, SCATTER)
        return once(SCATTER, {"x": made}, differentiated(ctx, (d_y,)))["x"], None


class _GatherSum(torch.autograd.Function):
    """A sum over ranks whose result all of them use alike."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        return gathered_sum(x, group, GATHERED)

    @staticmethod
    def backward(ctx: Any, d_y: torch.Tensor) -> tuple[torch.Tensor, None]:
        return once(GATHERED, {"x": d_y.detach()}, differentiated(ctx, (d_y,)))["x"], None


def _not_observed(name: str) -> None:
    if calls.observing():
        alternatives = f"rlk.ops.{name}.explain(device); nothing is compiled for it"
        raise UnsupportedError(
            Code.UNSUPPORTED, what=name, backend="rlk.explain", target="any target", alternatives=alternatives
        )


def reference(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Return `rlk.ops.ordered_all_reduce`, and so `ordered_gather_sum`, in float64."""
    return gather_over_ranks(x[None], group, NAME).double().sum(0)


def scatter_reference(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Return `rlk.ops.ordered_reduce_scatter` in float64."""
    terms = gather_over_ranks(x[None], group, SCATTER).double()
    ranks, rank = len(terms), 0
    for members in tree_levels(SCATTER, x, group):
        rank = rank * members.size() + members.rank()
    return terms.sum(0).unflatten(0, (ranks, -1))[rank]


@cache
def _identity() -> str:
    # torch's f32 additions are correctly rounded on every device, and so is the rounding of a sum: one id,
    # that of each of these functions
    return digest({"op": NAME, "over": "ranks", "dtype": "f32", "order": tree_rule(Tree.pairwise)})[:16]


def numerics_id(device: torch.device | str, *, math: str | None = None) -> str:
    """Return the id of the operator's numerics, the same on every device."""
    selection.model(math)
    return explain(device).numerics_id


def tier(device: torch.device | str, *, math: str | None = None) -> dict[str, str]:
    """Return "exact" for the output: the tree predicts its bits."""
    selection.model(math)
    return {name: found.value for name, found in explain(device).tiers}


def explain(x: torch.Tensor | torch.device | str, group: dist.ProcessGroup | None = None) -> Decision:
    """Return the decision for a call on a device, or on that of x."""
    device = x.device if isinstance(x, torch.Tensor) else torch.device(x)
    return Decision(
        ("torch.distributed",), device.type, MathModel.PORTABLE, _identity(), (("y", Tier.EXACT),)
    )


OVER_RANKS: dict[str, Callable[..., torch.Tensor]] = {
    NAME: ordered_all_reduce,
    SCATTER: ordered_reduce_scatter,
    GATHERED: ordered_gather_sum,
}
"""The operators that have no spec: torch's additions alone."""

for _name, _fn in OVER_RANKS.items():
    for _asked in (numerics_id, tier, explain):
        setattr(_fn, _asked.__name__, _asked)
    setattr(_fn, "reference", scatter_reference if _name == SCATTER else reference)  # noqa: B010
