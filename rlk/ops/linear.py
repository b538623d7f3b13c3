"""The public operators of a linear head and of products: their options, mapped to specs."""

from __future__ import annotations

import torch

from rlk.ops.active_rows import active, compacted
from rlk.ops.results import LogProbs
from rlk.ops.sharded import Shard, sharded_linear_logp
from rlk.ops.signatures import NEEDS, SCORING, _scoring
from rlk.runtime.binding.checks import are_tensors, integer, is_among, names_among, wrong_value
from rlk.runtime.binding.invocation import Scalars, Tensors
from rlk.runtime.call.entry import call, worded
from rlk.specs import linear_logp as linear_spec
from rlk.specs import matmul as matmul_spec

worded(linear_spec.linear_logp, "linear_logp", **SCORING)
worded(matmul_spec.matmul_leaf8, "matmul")


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
    math: str | None = None,
) -> LogProbs:
    """Return log softmax(z)[ids] of a linear head, z from hidden weight^T; the logits never reach memory.

    hidden: [..., D], weight: [V, D], bias: [V], one dtype, bf16 or f16. ids: [...]. Results are f32. The
    options temperature, softcap, logit_scale, mask, ignore_index and math, and the bits, are those of
    `logp(matmul(hidden, weight, out_dtype=torch.float32), ids)`; needs: of logp, lse, entropy.

    Differentiable in hidden and weight, through logp, lse and entropy; one that needs no gradient costs none.
    The gradient of the scores is rounded to the dtype of hidden; each gradient is an f32 sum in a fixed
    order, rounded once: over the vocabulary in 8 pieces of P = ceil(V / 8), merged pairwise; over active rows
    in pieces of 8192, ascending. Extra memory: forward 12 to 16 bytes for each of at most 8192 rows and 256
    entries of the vocabulary; backward 2 P + 14 D bytes for each of at most 8192 rows, or, if that is more
    and rows are, 16384 (P + D) + 4 P D bytes.

    keep_logits: a limit in bytes. Where f32 logits of this call (4 V bytes a row) fit in it and a gradient is
    needed, they are kept instead of computed again; the bits are the same.
    group: a process group (torch.distributed) whose ranks hold equal shards of the vocabulary: weight is rows
    [vocab_start, vocab_start + weight.shape[0]) of it; ids are those of the whole, and all else is equal on
    all ranks. 1, 2, 4 or 8 ranks; the shard must be a multiple of 8 / ranks rows. The bits are those of one
    rank with the whole weight.
    weight_grad_out: f32 [V, D], contiguous; backward adds the f32 sum of each piece of rows to it, in place,
    and weight.grad stays as it is.
    Raises LaunchError.
    """
    needs = names_among("linear_logp", "needs", needs, NEEDS[:3])
    are_tensors("linear_logp", hidden=hidden, weight=weight, ids=ids)
    hidden, weight = some_factors(hidden, weight)
    tensors: Tensors = {"hidden": hidden, "weight": weight, "ids": ids}
    scalars: Scalars = {}
    tensors |= {name: t for name, t in (("bias", bias), ("mask", mask)) if t is not None}
    _scoring("linear_logp", tensors, scalars, temperature, softcap, logit_scale)
    scalars["ignore_index"] = integer("linear_logp", "ignore_index", ignore_index)
    extra = tuple(n for n in NEEDS[2:3] if n in needs)
    statics = {"needs": extra, "keep": _keeps(keep_logits, hidden, weight), "states": False}
    if group is None and vocab_start == 0 and weight_grad_out is None:
        made = call(linear_spec.linear_logp, tensors, scalars, statics, math)
    else:
        shard = Shard.of(group, vocab_start, weight, weight_grad_out)
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


def matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    order: str = "chain16",
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return x w^T + bias + residual: a row's bits do not depend on the number of rows.

    x: [..., K], w: [N, K], bias: [N], residual: [..., N], one dtype, bf16 or f16. One f32 accumulator over
    ascending K (order="chain16"), or one for each of 8 pieces of ceil(K / 8), added pairwise (order="leaf8":
    other bits, and faster where M is small), f32 sums, one rounding to the dtype; out_dtype=torch.float32
    returns the f32 sum. Differentiable in nothing yet: a tensor that requires a gradient raises; detach it.
    Raises LaunchError.
    """
    are_tensors("matmul", x=x, w=w)
    is_among("matmul", "order", order, ("chain16", "leaf8"))
    if out_dtype not in (None, x.dtype, torch.float32):
        wanted = f"None, {x.dtype} or torch.float32"
        raise wrong_value("matmul", "out_dtype", out_dtype, wanted)
    x, w = some_factors(x, w)
    tensors: Tensors = {"x": x, "w": w}
    tensors |= {name: t for name, t in (("bias", bias), ("residual", residual)) if t is not None}
    spec = matmul_spec.matmul if order == "chain16" else matmul_spec.matmul_leaf8
    return call(spec, tensors, {}, {"keep_f32": out_dtype is torch.float32})["y"]
