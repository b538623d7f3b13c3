"""The public operator over ranks: `ordered_all_reduce`, a sum in an order that no backend chooses."""

from __future__ import annotations

from functools import cache

import torch
import torch.distributed as dist

from rlk.digest import digest
from rlk.errors import Code, UnsupportedError
from rlk.ir.computed import tree_rule
from rlk.ir.nodes import MathModel
from rlk.ir.numerics import Tier
from rlk.ir.tree import Tree
from rlk.runtime.binding import selection
from rlk.runtime.call import entry as calls
from rlk.runtime.call.collective import ordered_gather, sum_over_ranks
from rlk.runtime.call.dispatch import Decision

NAME = "ordered_all_reduce"


def ordered_all_reduce(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Return the sum of x over the ranks of a process group; every rank gets the same bits.

    x: f32 [...], of one shape on every rank, any strides. group: a torch.distributed process group, None for
    the default one, of a power of two of ranks. Returns a new contiguous f32 tensor of x's shape.

    The sum is `Tree.pairwise` over ranks in the group's order: ranks 0 + 1 and 2 + 3, then those two sums,
    and so on, each addition rounded once to f32. The bits do not depend on the backend (NCCL and gloo only
    carry them), on the topology or on how many ranks share a host, and equal those of one rank that adds the
    same terms in this order. One rank gives a copy.

    Each rank sends and receives 2 (R - 1) / R of x's bytes, as a ring all-reduce does: shares of x, then
    their sums. Extra memory: the bytes of x, twice where x is not contiguous. It runs on the current stream
    and waits for no device.

    Differentiable in nothing: detach x, or call it under torch.no_grad(), as for gradients of data-parallel
    ranks. Raises LaunchError before anything is sent; shapes that differ between ranks are not noticed.
    """
    if calls.observing():
        alternatives = f"rlk.ops.{NAME}.explain(device); nothing is compiled for it"
        raise UnsupportedError(
            Code.UNSUPPORTED, what=NAME, backend="rlk.explain", target="any target", alternatives=alternatives
        )
    return sum_over_ranks(x, group, NAME)


def reference(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Return `rlk.ops.ordered_all_reduce` in float64."""
    return ordered_gather(x, group, op=NAME).double().sum(0)


@cache
def _identity() -> str:
    # torch's f32 additions are correctly rounded on every device: one id
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
    return Decision("torch.distributed", device.type, MathModel.PORTABLE, _identity(), (("y", Tier.EXACT),))


for _asked in (numerics_id, tier, explain, reference):
    setattr(ordered_all_reduce, _asked.__name__, _asked)
