"""The public operators: options that are not tensors of a spec are mapped to it here, and nowhere else."""

from __future__ import annotations

import torch

from rlk.errors import Code, LaunchError, UnsupportedError
from rlk.ops.distill import inverse_rows
from rlk.ops.results import Csr, LogProbs, Support
from rlk.ops.support import kept_tokens
from rlk.runtime.binding.checks import (
    are_tensors,
    flag,
    has_dims,
    integer,
    names_among,
    number,
    reciprocal,
    wrong_dims,
    wrong_value,
)
from rlk.runtime.binding.invocation import Scalars, Tensors
from rlk.runtime.binding.selection import Statics
from rlk.runtime.call.entry import call, worded
from rlk.specs import logp as logp_spec
from rlk.specs import model as model_spec
from rlk.specs import norm as norm_spec

SCORING = {"inv_temperature_row": "temperature", "inv_temperature": "temperature"}
"""Inputs of specs that callers know by another name."""
worded(
    logp_spec.logp, "logp", **SCORING, threshold="support.threshold", last="support.last", words="support.ids"
)
logp_spec.logp.calls.refused = frozenset({"lse2"})
norm_spec.rms_norm.calls.alike = {"residual": "x"}  # of their sum: one kernel writes one tensor
for _rope in (model_spec.rope, model_spec.rope_partial):
    worded(_rope, "rope", x="q or k")
    _rope.calls.parts = ("x",)
NEEDS = ("logp", "lse", "entropy", "argmax", "lse2")


def logp(
    logits: torch.Tensor,
    ids: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    temperature: float | torch.Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: torch.Tensor | None = None,
    ignore_index: int = -100,
    needs: tuple[str, ...] = ("logp",),
    support: Support | Csr | None = None,
    fold: str = "chunks",
    math: str | None = None,
) -> LogProbs:
    """Return log softmax(z)[ids] of given logits, with lse, entropy, argmax and lse2 on request.

    z = softcap(logit_scale * (logits + bias)) * (1 / temperature), softcap(z) = cap tanh(z / cap); f32
    throughout.

    logits: [..., V] bf16, f16 or f32, rows strided at will (`[:, :-1]` costs no copy), last dim contiguous.
    ids: [...] int32 or int64. bias: [V], the dtype of logits. temperature: a positive number, or f32 of the
    rows' shape. mask: bool of the rows' shape; rows with a false mask or ids == ignore_index are not read and
    give 0 (argmax -1). needs: which fields to return, of logp, lse, entropy, argmax, lse2 = log sum exp(2 z);
    the others are None.
    An id outside [0, V), or a temperature of a row that is not positive and finite, gives NaN in its row and
    sets the device's error word (raised under RLK_CHECK=1).
    support: restricts the softmax to the tokens that `sample` kept, of logits as they are given: others have
    log-prob -inf and gradient 0. A Support is compared with these logits; a Csr names ids, and costs a bit a
    token of memory; an id of it outside [0, V) raises on the host, and on a device gives NaN in its row and
    sets the error word. With the support, scores and temperature of a draw, logp is that of the draw, bit for
    bit. Differentiable in logits through logp, lse and entropy; backward through lse2 raises, and a compiled
    graph takes it for a constant: detach what is made of it. math: "portable" or "sm90" overrides who defines
    exp2. Log-probs are z - lse: absolute error of half an ulp of lse (3e-5 near 1000). The entropy is made of
    differences from the largest z, and has the digits that they have.

    The vocabulary is folded in 8 pieces of ceil(V / 8), in chunks of 256 (fold: "chunks", the only one there
    is; docs/decisions/0003-*). Raises LaunchError.
    """
    needs = names_among("logp", "needs", needs, NEEDS)
    are_tensors("logp", logits=logits, ids=ids)
    _offered(logits, ids, fold)
    tensors: Tensors = {"logits": logits, "ids": ids}
    scalars: Scalars = {}
    if bias is not None:
        tensors["bias"] = bias
    if mask is not None:
        tensors["mask"] = mask
    if support is not None:
        tensors |= kept_tokens("logp", support, logits.shape[-1], ids)
    _scoring("logp", tensors, scalars, temperature, softcap, logit_scale)
    scalars["ignore_index"] = integer("logp", "ignore_index", ignore_index)
    # lse is always there: the gradient needs it; the others only where they are asked for
    extra = tuple(n for n in NEEDS[2:] if n in needs)
    made = call(logp_spec.logp, tensors, scalars, {"needs": extra}, math)
    return LogProbs(**{n: made.get(n) if n in needs else None for n in NEEDS})


def _offered(logits: torch.Tensor, ids: torch.Tensor, fold: str) -> None:
    """Refuse the options of `logp` that are not built yet."""
    if fold != "chunks":
        what, instead = f"fold={fold!r}", 'fold="chunks"'
    elif ids.dim() == logits.dim() and ids.dim() > 0:
        what, instead = "several ids a row (ids[..., K])", "one call for each id"
    else:
        return
    raise UnsupportedError(
        Code.UNSUPPORTED, what=what, backend="rlk", target="every target", alternatives=instead
    )


def _scoring(
    op: str,
    tensors: Tensors,
    scalars: Scalars,
    temperature: float | torch.Tensor,
    softcap: float | None,
    logit_scale: float,
) -> None:
    """Add the options from logits to scores to the inputs of a call; an absent step is not run."""
    if isinstance(temperature, torch.Tensor):
        tensors["inv_temperature_row"] = inverse_rows(op, temperature, tensors["ids"].shape, "ids")
    elif number(op, "temperature", temperature) != 1.0:
        scalars["inv_temperature"] = reciprocal(op, "temperature", temperature)
    if (factor := number(op, "logit_scale", logit_scale)) != 1.0:
        scalars["logit_scale"] = factor
    if softcap is not None:
        scalars |= {"inv_softcap": reciprocal(op, "softcap", softcap), "softcap": float(softcap)}


def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    position_ids: torch.Tensor,
    interleaved: bool = False,
    rotary_dim: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return q and k with their pairs rotated by the angles of their positions (Su et al. 2021).

    q: [..., Hq, E], k: [..., Hk, E]; these and the tables bf16, f16 or f32. rotary_dim: R, an even number up
    to E, by default E: the first R elements of a head are rotated, the others copied. cos, sin: [positions,
    R / 2], as `rope_table` makes them, or [positions, R] whose halves repeat (as in transformers); for
    interleaved pairs [positions, R / 2] alone, which of a table that repeats each angle is
    `cos[:, ::2].contiguous()`. position_ids: int32 or int64 of the tokens' shape [...]; one outside the table
    gives NaN in those R.
    interleaved: pairs are neighbours, not the two halves of R.

    Differentiable in q and k. Raises LaunchError.
    """
    width = _check_rope(q, k, cos, sin, interleaved, rotary_dim)
    half = width // 2
    cos, sin = cos[:, :half], sin[:, :half]
    statics: Statics = {"interleaved": interleaved}
    spec, rest = model_spec.rope, q.shape[-1] - width
    if rest:
        spec, statics["copies"] = model_spec.rope_partial, -(-rest // half)

    def rotate(x: torch.Tensor) -> torch.Tensor:
        tensors = {"x": x, "cos": cos, "sin": sin, "position_ids": position_ids}
        return call(spec, tensors, {}, statics)["y"]

    return rotate(q), rotate(k)


def _check_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    rotary_dim: int | None,
) -> int:
    """Return how many elements of a head are rotated.

    Refuse errors that the two calls of one `rope` cannot detect: each has q or k, and half of a table.
    """
    are_tensors("rope", q=q, k=k, cos=cos, sin=sin)
    flag("rope", "interleaved", interleaved)
    ranks = {"q": (q, 2, "[..., Hq, E]"), "k": (k, 2, "[..., Hk, E]")}
    for name, (x, least, wanted) in ranks.items():
        if x.dim() < least:
            raise wrong_dims("rope", name, x.shape, wanted)
    head = q.shape[-1]
    named, width, letter = (
        ("q.shape[-1]", head, "E") if rotary_dim is None else ("rotary_dim", rotary_dim, "R")
    )
    if rotary_dim is not None:
        integer("rope", "rotary_dim", rotary_dim, 2, head)
    if width % 2:
        raise wrong_value("rope", named, width, "an even number")
    rows = tuple(k.shape[:-2]), tuple(q.shape[:-2])
    for axis, got, wanted in (("E", k.shape[-1], head), ("rows", *rows)):
        if got != wanted:
            raise LaunchError(
                Code.ARG_SIZE, op="rope", name="k", axis=axis, got=got, other="q", wanted=wanted
            )
    for name, table in (("cos", cos), ("sin", sin)):
        has_dims("rope", name, table.shape, 2, f"2 dims [positions, {letter} / 2]")
        # a table of R angles may repeat them by halves or by pairs: only halves are known to be meant
        if table.shape[1] not in ((width // 2,) if interleaved else (width // 2, width)):
            got = table.shape[1]
            axis, other = f"{letter} / 2", "q" if rotary_dim is None else named
            raise LaunchError(
                Code.ARG_SIZE, op="rope", name=name, axis=axis, got=got, other=other, wanted=width // 2
            )
    return width


@model_spec.embedding.prepares
def _segments(saved: Tensors, scalars: Scalars) -> Tensors:
    """Return the tokens sorted by id (stable), and where each id's tokens begin."""
    weight = saved["weight"]
    found, order = torch.sort(saved["ids"].reshape(-1).to(torch.int64), stable=True)
    bounds = torch.arange(weight.shape[0] + 1, device=weight.device, dtype=torch.int64)
    return {"order": order, "segments": torch.searchsorted(found, bounds)}
