"""Collectives with rlk's order of additions: the communication backend moves data and adds nothing.

Ranks that reach each other's memory need no backend for sums (`symmetric.py`), with the same bits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from rlk.env import UNSET, Env, launched_ranks
from rlk.errors import Code, LaunchError
from rlk.ir.dims import is_power_of_two
from rlk.runtime.binding.arguments import PLAIN, VECTOR
from rlk.runtime.binding.parts import plain
from rlk.runtime.call.alike import check_none_waits, compare, default_seconds
from rlk.runtime.call.symmetric import known, transport

Made = TypeVar("Made")
Group: TypeAlias = "dist.ProcessGroup | tuple[dist.ProcessGroup, dist.ProcessGroup] | None"
"""The ranks of a sum: a group, or (between nodes, inside a node), ranks of a node one after the other."""
SHARE = "tensor_model_parallel"
"""The attribute of a parameter that is a rank's `Share` of a weight, not the whole (Megatron's name)."""
GATHERED = 2**23
"""Bytes of x on all ranks up to which every rank gathers all of it, and adds.

Of 0.5 to 4 MiB of two H200s that took half the time of sending each other all of x."""
SUMMED = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Share:
    """One of the equal parts of a weight along a dim, which the ranks of a group have in their order."""

    group: dist.ProcessGroup
    dim: int

    def __str__(self) -> str:
        return f"a weight that {self.group.size()} ranks share along dim {self.dim}"

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Leave ranks out of a saved parameter, which torch.load takes with weights_only."""
        return OrderedDict, ()


def share_of(x: torch.Tensor) -> Share | None:
    """Return a parameter's place among the shares of a weight, None for a whole one."""
    found = getattr(x, SHARE, None)
    return found if isinstance(found, Share) else None


def sum_over_ranks(
    x: torch.Tensor, group: Group, op: str, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return the f32 sum of x over the ranks, by a pairwise tree in rank order, rounded once to out_dtype.

    Every rank gets the same bits, by symmetric memory or by the backend. out_dtype: by default that of x.
    """
    shared = known(x, group)
    if shared is not None:
        return shared.total(x, _rounded(op, x, out_dtype))
    levels, dtype = tree_levels(op, x, group), _rounded(op, x, out_dtype)
    if rank_count(levels) == 1 or not x.numel():
        return _dense(x).to(dtype, copy=True, memory_format=torch.contiguous_format)
    flat = _dense(x).view(-1)
    shared = transport(levels, flat, op)
    if shared is None:
        return sum_by_backend(flat, levels, dtype).view(x.shape)
    return shared.total(flat, dtype).view(x.shape)


def sum_by_backend(
    flat: torch.Tensor, levels: tuple[dist.ProcessGroup, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Return the sum [n] of flat [n] over ranks, whose terms the backend sends.

    Few elements are gathered and summed by all. Else two ranks send each other all of x, and both add; of
    more ranks each sums one share and sends it to the others. Nothing is sent in chunks that others are added
    beside: on two H200s that took 1.1 to 1.7 times as long.
    """
    ranks, count = rank_count(levels), flat.numel()
    if ranks * flat.nbytes <= GATHERED:
        total = flat.new_empty(count, dtype=dtype)
        pairwise_sum(_gathered(flat, levels), out=total)
    elif len(levels) == 1 and ranks == 2:
        total = flat.new_empty(count, dtype=dtype)
        _add_pair(flat, flat, levels[0], out=total)
    elif len(levels) == 1:
        total = _summed_in_shares(flat, levels[0], dtype)
    else:
        share = _share(count, ranks, flat.element_size())
        padded = flat
        if share * ranks > count:
            padded = flat.new_zeros(share * ranks)
            padded[:count] = flat
        total = _gathered(sum_of_parts(padded.view(ranks, share), levels).to(dtype), levels)
    return total.view(-1)[:count]


def scatter_over_ranks(
    x: torch.Tensor, group: Group, op: str, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return this rank's part of x [R * n, ...], [n, ...], summed as `sum_over_ranks` does."""
    shared = known(x, group)
    if shared is not None and x.dim() and not len(x) % shared.sizes.ranks:
        return shared.part(x, _rounded(op, x, out_dtype))
    levels, dtype = tree_levels(op, x, group), _rounded(op, x, out_dtype)
    ranks = rank_count(levels)
    if not x.dim() or len(x) % ranks:
        got, wanted = tuple(x.shape), f"a multiple of the {ranks} ranks of group as first dim"
        raise LaunchError(Code.ARG_VALUE, op=op, name="x.shape", value=got, wanted=wanted)
    shape = (len(x) // ranks, *x.shape[1:])
    if ranks == 1 or not x.numel():
        return _dense(x[: shape[0]]).to(dtype, copy=True, memory_format=torch.contiguous_format)
    flat = _dense(x).view(-1)
    shared = transport(levels, flat, op)
    if shared is not None:
        return shared.part(flat, dtype).view(shape)
    return part_by_backend(flat, levels, dtype).view(shape)


def part_by_backend(
    flat: torch.Tensor, levels: tuple[dist.ProcessGroup, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Return this rank's part [n] of the sum of flat [R * n] over ranks, whose terms the backend sends."""
    ranks = rank_count(levels)
    share = flat.numel() // ranks
    if ranks * flat.nbytes <= GATHERED:
        total, first = flat.new_empty(share, dtype=dtype), share * _rank_in(levels)
        pairwise_sum(_gathered(flat, levels)[:, first : first + share], out=total)
        return total
    if len(levels) == 1 and ranks == 2:
        halves = flat.view(2, -1)
        rank, total = levels[0].rank(), flat.new_empty(share, dtype=dtype)
        _add_pair(halves[rank], halves[1 - rank], levels[0], out=total)
        return total
    return sum_of_parts(flat.view(ranks, -1), levels).to(dtype)


def gathered_sum(x: torch.Tensor, group: Group, op: str) -> torch.Tensor:
    """Return what `sum_over_ranks` does, of which every rank adds all of x: R times the bytes."""
    shared = known(x, group)
    if shared is not None:
        return shared.whole(x, x.dtype)
    levels = tree_levels(op, x, group)
    ranks = rank_count(levels)
    if ranks == 1 or not x.numel():
        return _dense(x).clone(memory_format=torch.contiguous_format)
    flat = _dense(x).view(-1)
    shared = transport(levels, flat, op)
    if shared is not None:
        return shared.whole(flat, x.dtype).view(x.shape)
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    pairwise_sum(_gathered(_dense(x), levels), out=total)
    return total


def gather_over_ranks(x: torch.Tensor, group: Group, op: str) -> torch.Tensor:
    """Return the x [n, ...] of every rank, one after the other in rank order: [R * n, ...]."""
    _check_tensor(op, x)
    return _gathered(_dense(x), _levels(op, x, group)).flatten(0, 1)


# --- terms that ranks have alike --------------------------------------------------------------------------

_compared: WeakKeyDictionary[dist.ProcessGroup, dict[Hashable, None]] = WeakKeyDictionary()
"""Of each group, what its ranks compared last: the host's time of later calls is a look-up."""
KNOWN = 4096
"""Terms of a group that are known; all of its ranks forget the oldest together."""
SUMS = "sums"


def of_same_terms(
    run: Callable[[], torch.Tensor],
    x: object,
    group: object,
    op: str,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return run(), a sum of x over ranks, after comparing x's shape, dtype and kind of device with theirs.

    They are compared as `of_same_facts` does. Of two groups the inner one compares first. Raises LaunchError
    where ranks differ.
    """
    members = dist.group.WORLD if group is None else group
    if type(x) not in PLAIN:
        return run()  # refused there
    assert isinstance(x, torch.Tensor)
    levels = members if isinstance(members, tuple) else (members,)
    for each in levels:
        if not isinstance(each, dist.ProcessGroup):
            return run()  # refused there
    shape, dtype, is_cuda = x.shape, x.dtype, x.is_cuda

    def facts() -> dict[str, str]:
        names = {"call": op, "x": f"{dtype} {list(shape)}", "dtype of the sum": str(out_dtype or dtype)}
        return names | {"device of x": "cuda" if is_cuda else "cpu"}

    return of_same_facts(run, levels, op, (op, shape, dtype, out_dtype, is_cuda), facts, "x")


def of_same_facts(
    run: Callable[[], Made],
    groups: Sequence[dist.ProcessGroup],
    op: str,
    terms: Hashable,
    facts: Callable[[], dict[str, str]],
    of: str,
) -> Made:
    """Return run(), after comparing the facts of these terms, and RLK_TRANSPORT, with the ranks of groups.

    They are compared through the store, before anything is sent, when this rank has not had the like in the
    group before; a rank waits for the others as long as the store's timeout says. of: the fact that is named
    where others do not come. Raises LaunchError where ranks differ. A rank to which the terms are not new
    compares nothing: others wait for it, while its call fails by the backend's timeout, and then it says so
    too.
    """

    def told() -> dict[str, str]:
        return facts() | {"RLK_TRANSPORT": Env.current().transport or UNSET}

    for each in reversed(groups):
        seen = _compared.setdefault(each, {})
        if terms not in seen:
            if each.size() > 1:
                mine = told()
                compare(op, each, default_seconds(), mine, kind=SUMS, of=f" of {mine[of]}, new here")
            seen[terms] = None
            while len(seen) > KNOWN:
                del seen[next(iter(seen))]
    try:
        return run()
    except RuntimeError:  # LaunchError is none
        for each in groups:
            check_none_waits(op, each, told(), kind=SUMS)
        raise


# --- levels: a tree inside each node, then between nodes, is the tree over all ranks ----------------------


def tree_levels(op: str, x: torch.Tensor, group: Group) -> tuple[dist.ProcessGroup, ...]:
    """Return the groups of a sum, the outermost first, after checking x and that they make a tree."""
    _check_tensor(op, x)
    if x.dtype not in SUMMED:
        wanted = " or ".join(map(str, SUMMED))
        raise LaunchError(Code.ARG_DTYPE, op=op, name="x", got=x.dtype, wanted=wanted)
    levels = _levels(op, x, group)
    for members in levels:
        if not is_power_of_two(members.size()):
            wanted = "a power of two: the sum is a tree"
            raise LaunchError(Code.ARG_VALUE, op=op, name="group.size()", value=members.size(), wanted=wanted)
    return levels


def _rounded(op: str, x: torch.Tensor, out_dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype of a sum of x."""
    if out_dtype in (None, x.dtype):
        return x.dtype
    if x.dtype is not torch.float32 or out_dtype not in SUMMED:
        wanted = f"{x.dtype}, that of x" + (" or of 16 bits" if x.dtype is torch.float32 else "")
        raise LaunchError(Code.ARG_DTYPE, op=op, name="out_dtype", got=out_dtype, wanted=wanted)
    return out_dtype


def rank_count(levels: tuple[dist.ProcessGroup, ...]) -> int:
    """Return the number of ranks of groups of groups."""
    return prod(members.size() for members in levels)


def _rank_in(levels: tuple[dist.ProcessGroup, ...]) -> int:
    """Return the number of this rank among those of groups of groups."""
    rank = 0
    for members in levels:
        rank = rank * members.size() + members.rank()
    return rank


def _levels(op: str, x: torch.Tensor, group: Group) -> tuple[dist.ProcessGroup, ...]:
    if not isinstance(group, tuple):
        return (_members(op, x, group),)
    if len(group) != 2 or None in group:
        wanted = "a ProcessGroup, None, or two: between nodes and inside a node"
        raise LaunchError(Code.ARG_VALUE, op=op, name="group", value=group, wanted=wanted)
    return tuple(_members(op, x, each) for each in group)


def sum_of_parts(parts: torch.Tensor, levels: tuple[dist.ProcessGroup, ...]) -> torch.Tensor:
    """Return the f32 sum [n] over ranks of this rank's row of parts [R, n]; between nodes go partial sums."""
    for inner in reversed(levels):  # ranks of the innermost group are neighbours
        size = inner.size()
        if size == 1:
            continue
        sent = parts.unflatten(0, (-1, size)).transpose(0, 1).contiguous()
        terms = torch.empty_like(sent)
        dist.all_to_all_single(terms.view(-1), sent.view(-1), group=inner)
        parts = torch.empty(terms.shape[1:], dtype=torch.float32, device=terms.device)
        pairwise_sum(terms, out=parts)
    return parts.float().view(-1)


def _gathered(x: torch.Tensor, levels: tuple[dist.ProcessGroup, ...]) -> torch.Tensor:
    """Return the contiguous x of every rank, [R, ...], gathered inside nodes and then between them."""
    if not x.numel():
        return x.new_empty(rank_count(levels), *x.shape)
    made = x.contiguous()
    for members in reversed(levels):
        flat = made.view(-1).view(torch.uint8)  # as bytes: a backend need not know the dtype
        out = made.new_empty(members.size(), *made.shape)
        _all_gather(out.view(-1).view(torch.uint8), flat, members)
        made = out
    return made.view(-1, *x.shape)


def _add_pair(
    own: torch.Tensor, other: torch.Tensor, members: dist.ProcessGroup, *, out: torch.Tensor
) -> None:
    """Write rank 0's terms + rank 1's, [n] each, on both of two ranks; own: of this rank; other: sent."""
    rank, received = members.rank(), torch.empty_like(own)
    sizes = [0, 0]
    sizes[1 - rank] = len(own)  # nothing is sent to this rank itself: that would be a copy
    dist.all_to_all_single(received, other, sizes, sizes, group=members)
    first, second = (own, received) if rank == 0 else (received, own)
    torch.add(first, second, out=out)  # 16-bit terms are added in f32 and rounded once


def _summed_in_shares(flat: torch.Tensor, members: dist.ProcessGroup, dtype: torch.dtype) -> torch.Tensor:
    """Return the sum of flat [count] over a group, padded: each rank adds a share and sends it to all."""
    ranks = members.size()
    share = _share(len(flat), ranks, flat.element_size())
    terms = _shares_of(flat, share, members)
    total = flat.new_empty(ranks, share, dtype=dtype)
    mine = total[members.rank()]
    pairwise_sum(terms, out=mine[: terms.shape[1]])
    _all_gather(total.view(-1), mine, members)
    return total.view(-1)


def _shares_of(flat: torch.Tensor, share: int, members: dist.ProcessGroup) -> torch.Tensor:
    """Return this rank's share of every rank's flat [count]: [R, n], n = `share` but for the last."""
    ranks, count = members.size(), len(flat)
    sizes = [min(share, max(0, count - share * r)) for r in range(ranks)]
    own = sizes[members.rank()]
    terms = flat.new_empty(ranks, own)
    even = share * ranks == count  # whole splits need no lists, and backends have a shorter way for them
    splits = (None, None) if even else ([own] * ranks, sizes)
    dist.all_to_all_single(terms.view(-1), flat, *splits, group=members)
    return terms


def pairwise_sum(terms: torch.Tensor, *, out: torch.Tensor) -> None:
    """Write the sum of terms[R, ...] over R, a power of two of at least 2: neighbours first. Ruins terms.

    f32 throughout, rounded once to the dtype of out.
    """
    if terms.dtype != torch.float32 and (len(terms) > 2 or out.dtype == torch.float32):
        terms = terms.float()
    while len(terms) > 2:
        left, right = terms[0::2], terms[1::2]
        terms = left.add_(right)
    torch.add(terms[0], terms[1], out=out)  # two 16-bit terms are added in f32, too


def chain_over_ranks(x: torch.Tensor, total: torch.Tensor, group: dist.ProcessGroup, ranks: int) -> None:
    """Add flat x [n] of the first `ranks` ranks onto total [n] f32, in rank order; every rank gets its bits.

    Each addition is rounded once to f32. Each rank adds one share, so total must be the same on all ranks.
    """
    members, rank, count = group.size(), group.rank(), len(x)
    share = _share(count, members, x.element_size())
    terms = _shares_of(x, share, group)
    begin, own = min(share * rank, count), terms.shape[1]
    sums = total.new_empty(members, share)
    mine = sums[rank, :own].copy_(total[begin : begin + own])
    for term in terms[:ranks]:
        mine.add_(term)
    _all_gather(sums.view(-1), sums[rank], group)
    total.copy_(sums.view(-1)[:count])


def scatter_chain(
    x: torch.Tensor, total: torch.Tensor | None, group: dist.ProcessGroup, ranks: int, *, out: torch.Tensor
) -> None:
    """Write this rank's part [n] of total + x of rank 0 + x of rank 1 + ..., of the first `ranks` ranks.

    x: f32 [R * n] of R ranks; total: f32 [n], None where there is none yet. Each addition is rounded once.
    """
    terms = torch.empty_like(x)
    dist.all_to_all_single(terms, x, group=group)
    parts = terms.view(group.size(), -1)
    if total is None:
        out.copy_(parts[0])
    else:
        torch.add(total, parts[0], out=out)
    for term in parts[1:ranks]:
        out.add_(term)


def scatter_chain_of_replicas(
    x: torch.Tensor,
    total: torch.Tensor | None,
    groups: tuple[dist.ProcessGroup, dist.ProcessGroup],
    ranks: int,
    *,
    out: torch.Tensor,
) -> None:
    """Write a piece of what `scatter_chain` writes, whose sum over replicas is all of it, in any order.

    groups: of the replicas of a shard, and of the shards of a replica; ranks of a replica are neighbours. x:
    f32 [shards * n], total and out: f32 [n]. Of out each replica writes an equal piece, and -0.0, which
    changes no number that it is added to, elsewhere.
    """
    between, inside = groups
    count, replicas = len(out), between.size()
    share = -(-count // replicas)
    own = torch.empty_like(x)
    dist.all_to_all_single(own, x, group=inside)
    sent = own.new_zeros(inside.size(), share * replicas)
    sent[:, :count] = own.view(inside.size(), count)
    sent = sent.view(inside.size(), replicas, share).transpose(0, 1).contiguous()
    terms = torch.empty_like(sent)
    dist.all_to_all_single(terms.view(-1), sent.view(-1), group=between)
    begin = min(between.rank() * share, count)
    mine = out.fill_(-0.0)[begin : begin + share]
    if total is not None:
        mine.copy_(total[begin : begin + share])
    for term in terms.flatten(0, 1)[:ranks]:
        mine.add_(term[: len(mine)])


def ordered_gather(
    x: torch.Tensor, group: dist.ProcessGroup | None, *, op: str = "ordered_gather"
) -> torch.Tensor:
    """Return the x of every rank, stacked in rank order: [R, ...], contiguous.

    x: one shape and dtype on every rank, of any dtype and strides; any number of ranks. group: None is the
    default group. Each rank receives R * x.nbytes. Differentiable in nothing. Nothing waits for a device.
    Raises LaunchError, naming `op`, before anything is sent.
    """
    _check_tensor(op, x)
    return _gathered(_dense(x), (_members(op, x, group),))


def _share(count: int, ranks: int, itemsize: int) -> int:
    """Return the elements that a rank sums: shares begin at whole vectors, the last may be shorter."""
    vector = VECTOR // itemsize
    return -(-count // (ranks * vector)) * vector


def _dense(x: torch.Tensor) -> torch.Tensor:
    x = plain(x).detach()
    if x.is_conj() or x.is_neg():
        # a lazily negated view (the imaginary part of a conjugate) has other bits in memory than it shows
        x = x.resolve_conj().resolve_neg()
    return x.contiguous()


def _all_gather(out: torch.Tensor, x: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Gather flat tensors; x may be its own part of out."""
    # torch 2.13 renamed it and warns of the old name
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(out, x, group=group)


# --- refusals: each before anything is sent, so that no rank waits for one that raised ----------------------


def _check_tensor(op: str, x: object) -> None:
    # no subclasses: the ranks of a DTensor hold parts of it, not terms of a sum
    if not isinstance(x, torch.Tensor) or type(x) not in PLAIN or x.layout is not torch.strided:
        kind = type(x).__name__
        got = f"{kind} of {x.layout}" if isinstance(x, torch.Tensor) else kind
        raise LaunchError(Code.ARG_TYPE, op=op, name="x", wanted="dense torch.Tensor", got=got)
    if x.requires_grad and torch.is_grad_enabled():
        raise LaunchError(Code.NOT_DIFFERENTIABLE, op=op, name="x", choices="no input")


def _members(op: str, x: torch.Tensor, group: object) -> dist.ProcessGroup:
    """Return the group, the default one for None, after checking that it can carry x."""
    members = process_group(op, group)
    devices = carried_by(members)
    if x.device.type not in devices:
        wanted = " or ".join(devices)
        raise LaunchError(Code.ARG_DEVICE, op=op, name="x", got=x.device, other="group", wanted=wanted)
    return members


def carried_by(group: dist.ProcessGroup) -> list[str]:
    """Return the kinds of devices whose tensors a group has a backend for."""
    pairs = dist.get_backend_config(group)  # such as cpu:gloo,cuda:nccl
    return [pair.partition(":")[0] for pair in pairs.split(",")]


def one_process() -> bool:
    """Return whether this process is alone: torch.distributed is not initialized."""
    return not (dist.is_available() and dist.is_initialized())


def runs_alone(op: str) -> bool:
    """Return `one_process`; raise LaunchError where a launcher started several, which know no others."""
    if not one_process():
        return False
    if (started := launched_ranks()) > 1:
        raise LaunchError(Code.RANKS_ALONE, op=op, ranks=started)
    return True


def process_group(op: str, group: object) -> dist.ProcessGroup:
    """Return the group, the default one for None; raise LaunchError unless it is a group of this rank."""
    if one_process():
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
