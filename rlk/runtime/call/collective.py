"""Collectives with rlk's order of additions: the communication backend moves data and adds nothing."""

from __future__ import annotations

import torch
import torch.distributed as dist

from rlk.errors import Code, LaunchError
from rlk.ir.dims import is_power_of_two
from rlk.runtime.binding.arguments import VECTOR

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def sum_over_ranks(x: torch.Tensor, group: dist.ProcessGroup | None, op: str) -> torch.Tensor:
    """Return the f32 sum of x over the ranks, by a pairwise tree in rank order; every rank gets its bits.

    Each rank sums one share of the elements, so its bits, NaNs included, are computed once.
    """
    _check_tensor(op, x)
    if x.dtype != torch.float32:
        raise LaunchError(Code.ARG_DTYPE, op=op, name="x", got=x.dtype, wanted=torch.float32)
    members = _members(op, x, group)
    ranks, rank, count = members.size(), members.rank(), x.numel()
    if not is_power_of_two(ranks):
        raise LaunchError(
            Code.ARG_VALUE,
            op=op,
            name="group.size()",
            value=ranks,
            wanted="a power of two: the sum is a tree",
        )
    if ranks == 1 or not count:
        return _dense(x).clone(memory_format=torch.contiguous_format)
    share = _share(count, ranks, x.element_size())
    sizes = [min(share, max(0, count - share * r)) for r in range(ranks)]
    flat, own = _dense(x).view(-1), sizes[rank]
    terms = flat.new_empty(ranks, own)
    even = share * ranks == count  # whole splits need no lists, and backends have a shorter way for them
    dist.all_to_all_single(
        terms.view(-1), flat, None if even else [own] * ranks, None if even else sizes, group=members
    )
    total = flat.new_empty(ranks, share)
    pairwise_sum(terms, out=total[rank, :own])
    _all_gather(total.view(-1), total[rank], members)
    return total.view(-1)[:count].view(x.shape)


def pairwise_sum(terms: torch.Tensor, *, out: torch.Tensor) -> None:
    """Write the sum of terms[R, ...] over R, a power of two of at least 2: neighbours first. Ruins terms."""
    while len(terms) > 2:
        left, right = terms[0::2], terms[1::2]
        terms = left.add_(right)
    torch.add(terms[0], terms[1], out=out)


def ordered_gather(
    x: torch.Tensor, group: dist.ProcessGroup | None, *, op: str = "ordered_gather"
) -> torch.Tensor:
    """Return the x of every rank, stacked in rank order: [R, ...], contiguous.

    x: one shape and dtype on every rank, of any dtype and strides; any number of ranks. group: None is the
    default group. Each rank receives R * x.nbytes. Differentiable in nothing. Nothing waits for a device.
    Raises LaunchError, naming `op`, before anything is sent.
    """
    _check_tensor(op, x)
    members = _members(op, x, group)
    flat = _dense(x).view(-1)
    made = flat.new_empty(members.size(), *x.shape)
    if x.numel():  # as bytes: a backend need not know the dtype
        _all_gather(made.view(-1).view(torch.uint8), flat.view(torch.uint8), members)
    return made


def _share(count: int, ranks: int, itemsize: int) -> int:
    """Return the elements that a rank sums: shares begin at whole vectors, the last may be shorter."""
    vector = VECTOR // itemsize
    return -(-count // (ranks * vector)) * vector


def _dense(x: torch.Tensor) -> torch.Tensor:
    # a lazily negated view (the imaginary part of a conjugate) has other bits in memory than it shows
    return x.detach().resolve_conj().resolve_neg().contiguous()


def _all_gather(out: torch.Tensor, x: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Gather flat tensors; x may be its own part of out."""
    # torch 2.13 renamed it and warns of the old name
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(out, x, group=group)


# --- refusals: each before anything is sent, so that no rank waits for one that raised ----------------------


def _check_tensor(op: str, x: object) -> None:
    # no subclasses: the ranks of a DTensor hold parts of it, not terms of a sum
    if not isinstance(x, torch.Tensor) or type(x) not in _PLAIN or x.layout is not torch.strided:
        kind = type(x).__name__
        got = f"{kind} of {x.layout}" if isinstance(x, torch.Tensor) else kind
        raise LaunchError(Code.ARG_TYPE, op=op, name="x", wanted="dense torch.Tensor", got=got)
    if x.requires_grad and torch.is_grad_enabled():
        raise LaunchError(Code.NOT_DIFFERENTIABLE, op=op, name="x", choices="no input")


def _members(op: str, x: torch.Tensor, group: object) -> dist.ProcessGroup:
    """Return the group, the default one for None, after checking that it can carry x."""
    members = process_group(op, group)
    carried = dist.get_backend_config(members)  # such as cpu:gloo,cuda:nccl
    devices = [pair.partition(":")[0] for pair in carried.split(",")]
    if x.device.type not in devices:
        wanted = " or ".join(devices)
        raise LaunchError(Code.ARG_DEVICE, op=op, name="x", got=x.device, other="group", wanted=wanted)
    return members


def process_group(op: str, group: object) -> dist.ProcessGroup:
    """Return the group, the default one for None; raise LaunchError unless it is a group of this rank."""
    if not (dist.is_available() and dist.is_initialized()):
        wanted = "a process group: call torch.distributed.init_process_group first"
        raise LaunchError(Code.ARG_VALUE, op=op, name="group", value=group, wanted=wanted)
    if group is None:
        return dist.group.WORLD
    if isinstance(group, dist.ProcessGroup):
        return group
    outside = dist.GroupMember.NON_GROUP_MEMBER
    if type(group) is type(outside) and group == outside:
        wanted = "a group that this rank belongs to"
        raise LaunchError(Code.ARG_VALUE, op=op, name="group", value=group, wanted=wanted)
    wanted, got = "torch.distributed.ProcessGroup", type(group).__name__
    raise LaunchError(Code.ARG_TYPE, op=op, name="group", wanted=wanted, got=got)
