"""The public operators of a linear head and of products: their options, mapped to specs."""

from __future__ import annotations

import torch

from rlk.ops.active_rows import active, compacted
from rlk.ops.products import OP as MATMUL
from rlk.ops.products import buffered, check_pieces
from rlk.ops.results import Csr, LogProbs, Support
from rlk.ops.sharded import Shard, Statics, check_call, or_tell, sharded_linear_logp
from rlk.ops.signatures import NEEDS, SCORING, _scoring
from rlk.ops.support import kept_tokens
from rlk.ops.weight_buffers import check_buffer
from rlk.runtime.binding.checks import (
    are_tensors,
    flag,
    integer,
    is_among,
    names_among,
    wrong_value,
)
from rlk.runtime.binding.invocation import Scalars, Tensors
from rlk.runtime.call.entry import call, worded
from rlk.specs import linear_logp as linear_spec
from rlk.specs import matmul as matmul_spec

worded(
    linear_spec.linear_logp,
    "linear_logp",
    **SCORING,
    threshold="support.threshold",
    last="support.last",
    words="support.ids",
)
for _op in (*matmul_spec.BY_LEAVES.values(), matmul_spec.matmul_backward):
    worded(_op, "matmul")


def linear_logp(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    ids: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    temperature: float | torch.Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: torch.Tensor | None = None,
    ignore_index: int = -100,
    needs: tuple[str, ...] = ("logp",),
    keep_logits: str | int = "never",
    group: object | None = None,
    vocab_start: int = 0,
    weight_grad_out: torch.Tensor | None = None,
    support: Support | Csr | None = None,
    math: str | None = None,
) -> LogProbs:
    """Return log softmax(z)[ids] of a linear head, z from hidden weight^T; the logits never reach memory.

    hidden: [..., D], weight: [V, D], bias: [V], one dtype, bf16 or f16. ids: [...]. Results are f32. The
    options temperature, softcap, logit_scale, mask, ignore_index and math, and the bits, are those of
    `logp(matmul(hidden, weight, out_dtype=torch.float32), ids)`; needs: of logp, lse, entropy.

    Differentiable in hidden, weight and bias, through logp, lse and entropy; one that needs none costs none.
    The gradient of the scores is rounded to the dtype of hidden; each gradient is an f32 sum in a fixed
    order, rounded once: over the vocabulary in 8 pieces of P = ceil(V / 8), merged pairwise; over active rows
    in pieces of 8192, ascending. That of bias is summed over these pieces likewise, in each by 64 rows (by
    halving) ascending, and costs a product more. Extra memory: forward 12 to 16 bytes for each of at most
    8192 rows and 256 entries of the vocabulary; backward 2 P + 14 D bytes for each of at most 8192 rows, or,
    if that is more and rows are, 16384 (P + D) + 4 P D bytes.

    keep_logits: a limit in bytes. Where f32 logits of this call (4 V bytes a row) fit in it and a gradient is
    needed, they are kept instead of computed again; the bits are the same.
    group: a process group (torch.distributed) whose ranks hold equal shards of the vocabulary: weight is rows
    [vocab_start, vocab_start + weight.shape[0]) of it; ids are those of the whole, and all else is equal on
    all ranks, which compare dtypes, shapes and numbers in a call that is none of the group's last 4096 (as
    `ordered_all_reduce` does): with another number of rows they wait for each other once. 1, 2, 4 or 8 ranks;
    the shard must be a multiple of 8 / ranks rows. The bits are those of one rank with the whole weight.
    weight_grad_out: f32 [V, D], contiguous; backward adds the f32 gradient of weight to it once, in place:
    weight.grad stays as it is.
    support: as `logp` takes it, of the f32 products: what `sample` kept, or `Csr` of token ids, of the whole
    vocabulary on every rank. The bits are those of `logp(matmul(...), ids, support=support)`. Raises
    LaunchError.
    """

    def checked() -> tuple[Tensors, Scalars, Statics, Shard | None]:
        names_among("linear_logp", "needs", needs, NEEDS[:3])
        are_tensors("linear_logp", hidden=hidden, weight=weight, ids=ids)
        x, w = some_factors(hidden, weight)
        tensors: Tensors = {"hidden": x, "weight": w, "ids": ids}
        scalars: Scalars = {}
        tensors |= {name: t for name, t in (("bias", bias), ("mask", mask)) if t is not None}
        _scoring("linear_logp", tensors, scalars, temperature, softcap, logit_scale)
        scalars["ignore_index"] = integer("linear_logp", "ignore_index", ignore_index)
        whole = group is None and vocab_start == 0 and weight_grad_out is None
        shard = None if whole else Shard.of(group, vocab_start, w, weight_grad_out)
        if support is not None:
            vocabulary = w.shape[0] * (1 if shard is None else shard.ranks)
            tensors |= kept_tokens("linear_logp", support, vocabulary, ids)
        extra = tuple(n for n in NEEDS[2:3] if n in needs)
        statics = {"needs": extra, "keep": _keeps(keep_logits, x, w), "states": False}
        if shard is not None:
            check_call(tensors, math, shard)
        return tensors, scalars, statics, shard

    tensors, scalars, statics, shard = or_tell(checked, group)
    if shard is None:
        made = call(linear_spec.linear_logp, tensors, scalars, statics, math)
    else:
        made = sharded_linear_logp(tensors, scalars, statics, math, shard)
    return LogProbs(**{n: made.get(n) if n in needs else None for n in NEEDS})


def _keeps(limit: str | int, hidden: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether the f32 logits of a call are kept for its gradient."""
    if limit == "never":
        return False
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        wanted = '"never" or a number of bytes'
        raise wrong_value("linear_logp", "keep_logits", limit, wanted)
    rows = hidden.numel() // max(1, hidden.shape[-1])
    needed = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    return needed and 4 * rows * weight.shape[0] <= limit


def some_factors(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return factors with something to contract: a zero product is the identity of every accumulator."""
    if x.shape[-1:] == w.shape[-1:] == (0,):
        return torch.nn.functional.pad(x, (0, 1)), torch.nn.functional.pad(w, (0, 1))
    return x, w


@linear_spec.linear_logp.prepares
def _order(saved: Tensors, scalars: Scalars) -> Tensors:
    return {"order": compacted(active(saved, scalars))}


ORDERS = {"chain16": 1, "leaf8": 8}
"""Leaves by the names that orders had before `leaves`."""


def matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    leaves: int = 1,
    part: tuple[int, int] | None = None,
    grad_leaves: int = 1,
    round_product: bool = False,
    order: str | None = None,
    out_dtype: torch.dtype | None = None,
    weight_grad_out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x w^T + bias + residual: a row's bits do not depend on the number of rows.

    x: [..., K], w: [N, K], bias: [N], residual: [..., N], one dtype, bf16 or f16. leaves: 1, 2, 4 or 8 equal
    pieces of K, of which each has one f32 accumulator over ascending K (chain16), added pairwise; K must be a
    multiple of it. More leaves are other bits; they are for weights whose K ranks share, and fill a device
    where rows are few. f32 sums, one rounding to the dtype; out_dtype=torch.float32 returns the f32 sum.
    round_product: x w^T + bias is rounded before residual is added, as by two operators of 16 bits.

    part: (first, end), a rank's own leaves of `leaves`: x and w have the K of these alone, and the result is
    the f32 sum of their subtree, which `ordered_all_reduce` continues over ranks. Their number is a power of
    two that divides first. Without bias and residual, which are added once, after all leaves.
    order: "chain16" is leaves=1; "leaf8" is leaves=8 of ceil(K / 8) elements, also where the last is short.

    Differentiable in x, w, bias and residual. The gradient of the result is rounded to the dtype of x; each
    gradient is an f32 sum, rounded once. d x: N in grad_leaves equal pieces (1, 2, 4 or 8), one chain16 each,
    added pairwise: for weights whose N ranks share. d w: tokens in pieces of 8192, one chain16 each, added
    ascending. d bias: the same pieces, each the sums of 64 tokens (by halving) in ascending order. d residual
    is the gradient of the result.
    weight_grad_out: f32 [N, K], contiguous; backward adds the f32 d w to it, in place, once, and w.grad stays
    as it is. Raises LaunchError.
    """
    are_tensors("matmul", x=x, w=w)
    if out_dtype not in (None, x.dtype, torch.float32):
        wanted = f"None, {x.dtype} or torch.float32"
        raise wrong_value("matmul", "out_dtype", out_dtype, wanted)
    keep_f32 = out_dtype is torch.float32
    leaves = _leaves("leaves", leaves)
    if order is not None:
        is_among("matmul", "order", order, tuple(ORDERS))
        if leaves != 1 or part is not None:
            raise wrong_value("matmul", "order", order, "None, where leaves or part is given")
        leaves = ORDERS[order]
    elif part is not None:
        leaves, keep_f32 = _own_leaves(part, leaves), True
        if out_dtype not in (None, torch.float32):
            raise wrong_value("matmul", "out_dtype", out_dtype, "None or torch.float32, for a part")
        for name, given in (("bias", bias), ("residual", residual)):
            if given is not None:
                raise wrong_value("matmul", name, "a tensor", "None: it is added once, after all leaves")
    if order is None and x.dim():
        check_pieces("x.shape[-1]", x.shape[-1], leaves)
    if w.dim():
        check_pieces("w.shape[0]", w.shape[0], _leaves("grad_leaves", grad_leaves))
    flag("matmul", "round_product", round_product)
    if weight_grad_out is not None:
        check_buffer(w, weight_grad_out, MATMUL)
    x, w = some_factors(x, w)
    tensors: Tensors = {"x": x, "w": w}
    tensors |= {name: t for name, t in (("bias", bias), ("residual", residual)) if t is not None}
    statics = {
        "keep_f32": keep_f32,
        "round_product": round_product and residual is not None,
        "grad_leaves": grad_leaves,
    }
    if weight_grad_out is not None and weight_grad_out.numel():
        return buffered(leaves, tensors, statics, weight_grad_out)
    return call(matmul_spec.BY_LEAVES[leaves], tensors, {}, statics)["y"]


def _leaves(name: str, value: object) -> int:
    """Return a number of leaves; raise LaunchError for anything else."""
    found = integer("matmul", name, value)
    if found not in matmul_spec.BY_LEAVES:
        raise wrong_value("matmul", name, value, "1, 2, 4 or 8")
    return found


def _own_leaves(part: object, leaves: int) -> int:
    """Return the number of leaves of a rank's part, which are a subtree of the pairwise tree."""
    if not isinstance(part, tuple) or len(part) != 2:
        raise wrong_value("matmul", "part", part, "(first, end), a range of leaves")
    first, end = (integer("matmul", "part", x) for x in part)
    own = end - first
    if not 0 <= first < end <= leaves or own & (own - 1) or first % own:
        wanted = f"a subtree of {leaves} leaves: a power of two of them, from a multiple of it on"
        raise wrong_value("matmul", "part", part, wanted)
    return own
