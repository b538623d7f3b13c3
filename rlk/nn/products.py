"""Products of a model's weights: column-parallel, row-parallel, and several that share their input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch.autograd.function import once_differentiable

from rlk import ops
from rlk.nn.ranks import Ranks
from rlk.ops.products import check_pieces, input_gradient, partial_input_gradient, weight_gradient
from rlk.runtime.binding.arguments import PLAIN
from rlk.runtime.call.entry import call
from rlk.specs.matmul import column_sums

Bias: TypeAlias = torch.Tensor | None
WORD = torch.int64
"""What pieces of rows are copied by."""


def column_linear(x: torch.Tensor, w: torch.Tensor, bias: Bias, leaves: int) -> torch.Tensor:
    """Return x w^T + bias; d x is summed over N in `leaves` equal pieces, added pairwise.

    x: [..., K], w: [N, K], bias: [N]. For weights whose rows (N) ranks share.
    """
    return ops.matmul(x, w, bias=bias, grad_leaves=leaves)


def row_linear(x: torch.Tensor, w: torch.Tensor, bias: Bias, leaves: int) -> torch.Tensor:
    """Return x w^T + bias, summed over K in `leaves` equal pieces, added pairwise; bias is added after them.

    x: [..., K], w: [N, K], bias: [N]. For weights whose columns (K) ranks share.
    """
    return ops.matmul(x, w, bias=bias, leaves=leaves)


def row_linear_of_ranks(
    x: torch.Tensor, w: torch.Tensor, bias: Bias, leaves: int, ranks: Ranks
) -> torch.Tensor:
    """Return `row_linear` of a weight whose columns ranks share.

    x: [T, K / ranks], w: [N, K / ranks], bias: [N], the same on all ranks. Returns the rows [T, N] that the
    rank has. One rank rounds in its product, without an f32 part in memory.
    """
    if ranks.size == 1:
        return row_linear(x, w, bias, leaves)
    made: torch.Tensor = _RowsOfRanks.apply(x, w, bias, leaves, ranks)
    return made


def column_linear_of_ranks(
    x: torch.Tensor, w: torch.Tensor, bias: Bias, leaves: int, ranks: Ranks
) -> torch.Tensor:
    """Return `column_linear` of a weight whose rows ranks share.

    x: the rows [..., K] that the rank has, w: [N / ranks, K], bias: [N / ranks]. Returns all rows
    [..., N / ranks]. One rank rounds d x in its product, and has nothing to send.
    """
    if ranks.size == 1:
        return column_linear(x, w, bias, leaves)
    return stored_linear(x, w, bias, (w.shape[0],), 1, leaves, ranks)


def merged_linear(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[Bias],
    leaves: int,
    ranks: Ranks | None = None,
) -> torch.Tensor:
    """Return the products of one input with several weights side by side, [..., sum of N].

    x: [..., K], weights: [N_i, K], biases: [N_i] each, or None for all of them. The bits are those of a
    product for each. d x is one sum over the rows of all weights, rounded once: leaf i of `leaves` takes the
    i-th piece of the first weight, then of the second, and so on. Weights that lie one behind the other in
    memory (`adjacent`) are read where they are; others are copied for each call.
    ranks: each has an equal share of the rows of every weight, and of x the rows that it has between
    products. The result is of all rows.
    """
    sizes = tuple(w.shape[0] for w in weights)
    w = _joined(weights)
    given = [b for b in biases if b is not None]
    bias = _joined(given) if len(given) == len(biases) and given else None
    return stored_linear(x, w, bias, sizes, 1, leaves, ranks)


def stored_linear(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: Bias,
    sizes: tuple[int, ...],
    groups: int,
    leaves: int,
    ranks: Ranks | None = None,
) -> torch.Tensor:
    """Return `merged_linear` of weights whose rows are stored in turn, [..., N] in the order of storage.

    w: [N, K], bias: [N] or None. sizes: rows of each weight, N together. groups: w holds so many groups of
    rows, in each an equal number of rows of the first weight, then of the second, and so on: 1 for weights
    one behind the other, the number of key heads for Megatron's q, k and v. d x has the order, and the bits,
    of `merged_linear`.
    """
    if ranks is not None and ranks.size == 1:  # its d x is rounded in the product, not in a pass of its own
        ranks = None
    if ranks is None and len(sizes) == 1:  # its rows are in the order of leaves
        return column_linear(x, w, bias, leaves)
    if leaves == 1 and groups == 1:
        return ops.matmul(x, w, bias=bias)
    own = leaves if ranks is None else ranks.share(leaves)
    for n in sizes:
        check_pieces("w.shape[0]", n, own)
    rows = x.detach() if ranks is None else ranks.all_tokens(x.detach(), ranks.tokens)
    y = ops.matmul(rows, w, bias=bias)
    made: torch.Tensor = _InputGradient.apply(y, x, w.detach(), sizes, groups, own, ranks)
    return made


def adjacent(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether tensors are contiguous parts of one storage, each where the one before it ends.

    Only plain tensors are: fake ones and those of torch.func have no address.
    """
    if any(type(t) not in PLAIN for t in tensors):
        return False
    first, end = tensors[0], tensors[0].data_ptr()
    for t in tensors:
        if t.data_ptr() != end or not t.is_contiguous() or t.dtype is not first.dtype:
            return False
        end += t.nbytes
    memory = first.untyped_storage()  # two storages may be neighbours by chance
    return end <= memory.data_ptr() + memory.nbytes()


def lay_adjacent(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Move parameters [N_i, ...] into one storage, one behind the other; no copy if they lie so already."""
    if adjacent(parameters):
        return
    with torch.no_grad():
        joined = torch.cat([p.data for p in parameters])
        for p, part in zip(parameters, joined.split([len(p) for p in parameters]), strict=True):
            p.data = part


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors [N_i, ...] as one [sum of N_i, ...]; no copy if they are adjacent."""
    if torch.compiler.is_compiling() or not adjacent(tensors):
        return torch.cat(tuple(tensors))
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors):
        return _alias(tensors)  # a decode step does without autograd's wrappers
    joined: torch.Tensor = _Joined.apply(*tensors)
    return joined


def _alias(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the memory of adjacent tensors as one tensor."""
    first = tensors[0]
    shape = (sum(t.shape[0] for t in tensors), *first.shape[1:])
    return first.as_strided(shape, first.stride())


class _Joined(torch.autograd.Function):
    """Adjacent tensors as one; the parts of its gradient are theirs."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        # saved, so that one written between forward and backward raises: of a view, its version alone would
        ctx.save_for_backward(*tensors)
        return _alias(tensors).detach()  # no view, whose grad_fn autograd would replace after a write

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return grad.split([len(t) for t in ctx.saved_tensors])


class _InputGradient(torch.autograd.Function):
    """A merged product as it is; backward adds d x, whose leaf i takes piece i of each weight.

    The result has the memory of y, unknown to autograd: write neither in place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        y: torch.Tensor,
        x: torch.Tensor,
        w: torch.Tensor,
        sizes: tuple[int, ...],
        groups: int,
        leaves: int,
        ranks: Ranks | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(w)
        ctx.sizes, ctx.groups, ctx.leaves, ctx.ranks = sizes, groups, leaves, ranks
        return y.detach()  # no view: FSDP2 warns of one that a module returns

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (w,) = ctx.saved_tensors
        d_x = None
        if ctx.needs_input_grad[1]:
            rows, weight = d_y, w
            if len(ctx.sizes) > 1 and (ctx.leaves > 1 or ctx.groups > 1):  # else in the order of leaves
                order = ctx.sizes, ctx.groups, ctx.leaves
                rows, weight = _columns_by_leaves(d_y, *order), _by_leaves(w, 0, *order)
            if ctx.ranks is None:
                d_x = input_gradient(rows, weight, ctx.leaves)
            else:
                d_x = ctx.ranks.total(partial_input_gradient(rows, weight, ctx.leaves), w.dtype)
        return d_y, d_x, None, None, None, None, None


class _RowsOfRanks(torch.autograd.Function):
    """A product whose contraction ranks share; each has the gradients of its own columns."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, w: torch.Tensor, bias: Bias, leaves: int, ranks: Ranks
    ) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.ranks, ctx.bias = ranks, None if bias is None else bias.dtype
        part = ops.matmul(x.detach(), w.detach(), leaves=leaves, part=ranks.part(leaves))
        if bias is None:
            return ranks.total(part, x.dtype)
        total = ranks.total(part, torch.float32)  # one pass adds bias in f32 and rounds
        return torch.add(total, bias.detach(), out=torch.empty_like(total, dtype=x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, w = ctx.saved_tensors
        tokens = x.shape[0] if ctx.ranks.sequence else 0
        d_y = ctx.ranks.all_tokens(d_y, tokens)
        wants_x, wants_w, wants_bias, *_ = ctx.needs_input_grad
        return (
            input_gradient(d_y, w, 1) if wants_x else None,
            weight_gradient(d_y, x) if wants_w else None,
            _bias_gradient(d_y).to(ctx.bias) if wants_bias else None,
            None,
            None,
        )


def _bias_gradient(d_y: torch.Tensor) -> torch.Tensor:
    """Return the f32 sums of d_y [..., N] over tokens, as the gradient of `ops.matmul` has them."""
    nothing = torch.full(d_y.shape[-1:], -0.0, device=d_y.device)  # -0.0 + x is x, also for x = -0.0
    return call(column_sums, {"d_y": d_y.contiguous(), "bias_grad": nothing}, {}, {})["d_bias"]


def _by_leaves(
    x: torch.Tensor, dim: int, sizes: tuple[int, ...], groups: int, leaves: int
) -> torch.Tensor:
    """Return x, whose dim has the rows of merged weights, in the order of leaves: piece 0 of each, then 1 ...

    By copies of pieces: an index of rows would be copied to the device, for which the host waits.
    """
    before, behind = x.shape[:dim], x.shape[dim + 1 :]
    stored = x.reshape(*before, groups, sum(sizes) // groups, *behind)
    parts = stored.split_with_sizes([n // groups for n in sizes], dim + 1)
    pieces = [
        part.reshape(*before, leaves, n // leaves, *behind) for part, n in zip(parts, sizes, strict=True)
    ]
    return torch.cat(pieces, dim + 1).reshape(x.shape)


def _columns_by_leaves(
    x: torch.Tensor, sizes: tuple[int, ...], groups: int, leaves: int
) -> torch.Tensor:
    """Return the columns of x [..., N] as `_by_leaves`; by words, where pieces are whole ones, faster."""
    rows, each = x.reshape(-1, x.shape[-1]), WORD.itemsize // x.element_size()
    if torch.compiler.is_compiling() or not _has_words(rows, each, sizes, groups, leaves):
        return _by_leaves(rows, 1, sizes, groups, leaves).reshape(x.shape)
    words = _by_leaves(rows.view(WORD), 1, tuple(n // each for n in sizes), groups, leaves)
    return words.view(x.dtype).reshape(x.shape)


def _has_words(rows: torch.Tensor, each: int, sizes: tuple[int, ...], groups: int, leaves: int) -> bool:
    """Return whether pieces of rows [T, N] begin and end with words of so many elements."""
    places = rows.stride(0), rows.storage_offset(), *(n // by for n in sizes for by in (groups, leaves))
    return rows.stride(1) == 1 and all(place % each == 0 for place in places)
