"""Selected log-probs, log-sum-exp and entropy of given logits, and their gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlk.lang import (
    Axis,
    DTypeVar,
    L,
    Outputs,
    Scalar,
    Static,
    Tensor,
    TensorArg,
    Tile,
    bf16,
    boolean,
    f16,
    f32,
    i32,
    i64,
    op,
)

T = Axis("T", dynamic=True)
V = Axis("V", chunk=256, split=8)
M = Axis("M")  # words of a mask: a bit for each token
F = DTypeVar("F", (bf16, f16, f32))
Ids = DTypeVar("Ids", (i64, i32))

LOG2E = 1.4426950408889634
NOTHING_CHOSEN = "an id outside the vocabulary, no finite logit, or a temperature that is not positive"


@dataclass(frozen=True, slots=True)
class Scoring:
    """z <- logits + bias; z <- scale z; z <- cap tanh(z / cap); z <- z / temperature; each one optional."""

    logit_scale: Tile | None
    softcap: Tile | None
    inv_softcap: Tile | None
    inv_temperature: Tile | None

    def forward(self, logits: Tile, bias: Tile | None) -> tuple[Tile, Tile | None]:
        """Return z, and tanh(z / cap) where there is a cap."""
        z, t = logits.to(f32), None
        if bias is not None:
            z = z + bias.to(f32)
        if self.logit_scale is not None:
            z = z * self.logit_scale
        if self.softcap is not None:
            t = L.tanh(z * self.inv_softcap)
            z = t * self.softcap
        if self.inv_temperature is not None:
            z = z * self.inv_temperature
        return z, t

    def backward(self, dz: Tile, t: Tile | None) -> Tile:
        """Return the gradient with respect to the logits, given the one with respect to z."""
        if self.inv_temperature is not None:
            dz = dz * self.inv_temperature
        if t is not None:
            dz = dz * (1.0 - t * t)
        if self.logit_scale is not None:
            dz = dz * self.logit_scale
        return dz


def inverse_of(row: Tile | None, number: Tile | None) -> Tile | None:
    """Return 1 / temperature, of each row or of all; NaN where a row's is not positive and finite."""
    return number if row is None else L.where((row > 0.0) & (row < math.inf), row, math.nan)


@dataclass(frozen=True, slots=True)
class Keeping:
    """The support of a row: tokens above a threshold and its first equals, or a mask's.

    rows: which rows of the mask are read; None: each its own.
    """

    threshold: TensorArg | Tile | None
    last: TensorArg | Tile | None
    words: TensorArg | None
    rows: Tile | None = None

    @property
    def everything(self) -> bool:
        return self.threshold is None and self.words is None

    def holds(self, x: Tile, index: Tile) -> Tile:
        """Return whether tokens with logits x at an index of the vocabulary, i32, are in the support."""
        if self.words is not None:
            row = self.words.axes[0]
            place = L.where(index < 0, -1, index >> 5)
            # rows are in bounds by construction; a token outside of the vocabulary is in no support
            word = self.words.at(row if self.rows is None else self.rows, place, inside=(row,))
            return ((word >> (index & 31)) & 1) != 0
        return (x > self.threshold) | ((x == self.threshold) & (index <= self.last))

    def hit(self, z: Tile, x: Tile, picked: Tile) -> Tile:
        """Return the score of a picked token, -inf outside of the support; NaN stays NaN."""
        return z if self.everything else L.where(L.isnan(z), z, self.only(z, x, picked.to(i32)))

    def only(self, z: Tile, x: Tile, index: Tile) -> Tile:
        """Return scores, -inf for tokens outside of the support."""
        return z if self.everything else L.where(self.holds(x, index), z, -math.inf)


@op(
    nonempty=(V,), saves=(
        "logits", "ids", "bias", "inv_temperature_row", "mask", "lse", "entropy",
        "threshold", "last", "words",
    )
)  # fmt: skip
def logp(
    logits: Tensor[F, T, V],
    ids: Tensor[Ids, T],
    bias: Tensor[F, V] | None,
    inv_temperature_row: Tensor[f32, T] | None,
    mask: Tensor[boolean, T] | None,
    threshold: Tensor[f32, T] | None,
    last: Tensor[i32, T] | None,
    words: Tensor[i32, T, M] | None,
    inv_temperature: Scalar[f32] | None,
    logit_scale: Scalar[f32] | None,
    softcap: Scalar[f32] | None,
    inv_softcap: Scalar[f32] | None,
    ignore_index: Scalar[i64],
    needs: Static[...] = ("logp",),
) -> Outputs:
    """log softmax(z)[ids] with lse, entropy, argmax and lse2 = log sum exp(2 z).

    Inactive rows (mask false, or ids == ignore_index) are not read and give 0 (argmax -1). An id outside
    [0, V), or a row's 1 / temperature that is not positive and finite, gives NaN and sets the error word.
    threshold and last, or words: the tokens that the softmax runs over; others have probability 0.
    """
    inverse = inverse_of(inv_temperature_row, inv_temperature)
    scoring = Scoring(logit_scale, softcap, inv_softcap, inverse)
    picked = ids.to(i64)
    active = active_rows(picked, ignore_index, mask)
    kept = Keeping(threshold, last, words)
    soft, soft2, best = L.softmax_sum(entropy="entropy" in needs), L.softmax_sum(), L.argmax()
    for v in L.stream(V, when=active):
        z, _ = scoring.forward(logits[v], None if bias is None else bias[v])
        z = kept.only(z, logits[v].to(f32), v.pos)
        soft.absorb(z)
        if "lse2" in needs:
            soft2.absorb(z + z)
        if "argmax" in needs:
            best.absorb(z)
    there = logits.at(T, picked, fill=math.nan)
    hit, _ = scoring.forward(there, None if bias is None else bias.at(picked))
    hit = kept.hit(hit, there.to(f32), picked)
    lse = soft.lse()
    chosen = hit - lse
    L.check(active & L.isnan(chosen), NOTHING_CHOSEN)
    return L.out(
        logp=L.where(active, chosen, 0.0),
        lse=L.where(active, lse, 0.0),
        entropy=L.where(active, soft.entropy(), 0.0) if "entropy" in needs else None,
        argmax=L.where(active, best.index, -1) if "argmax" in needs else None,
        lse2=L.where(active, soft2.lse(), 0.0) if "lse2" in needs else None,
    )


@logp.vjp("logits")
def logp_grad(
    ctx, d_logp: Tensor[f32, T] | None, d_lse: Tensor[f32, T] | None, d_entropy: Tensor[f32, T] | None
) -> Outputs:
    """dz = g_lp (1[y] - p) - g_H p (z - lse + H) + g_lse p, then the chain through 1 / T, tanh and scale."""
    inverse = inverse_of(ctx.inv_temperature_row, ctx.inv_temperature)
    scoring = Scoring(ctx.logit_scale, ctx.softcap, ctx.inv_softcap, inverse)
    picked = ctx.ids.to(i64)
    active = active_rows(picked, ctx.ignore_index, ctx.mask)
    kept = Keeping(ctx.threshold, ctx.last, ctx.words)
    read = ctx.logits.at(T, V, when=active)
    z, t = scoring.forward(read, ctx.bias)
    z = kept.only(z, read.to(f32), L.pos(V))
    dz = of_scores(z, picked, ctx.lse, ctx.entropy, d_logp, d_lse, d_entropy)
    grad = L.where(active, scoring.backward(dz, t), 0.0)
    if not kept.everything:
        grad = L.where(kept.holds(read.to(f32), L.pos(V)), grad, 0.0)
    return L.out(d_logits=grad.to(ctx.logits.dtype))


def of_scores(
    z: Tile, picked: Tile, lse: Tile, entropy: Tile | None,
    d_logp: Tile | None, d_lse: Tile | None, d_entropy: Tile | None,
) -> Tile:  # fmt: skip
    """Return the gradient with respect to the scores z of the rows whose ids are picked."""
    centred = z - lse
    p = L.softmax_exp2(centred * LOG2E)
    dz = p * _of_p(d_logp, d_lse)
    if d_entropy is not None:
        # p = 0 where z = -inf: p (z - lse + H) is 0 there, not NaN
        dz = dz - L.where(p == 0.0, 0.0, (d_entropy * p) * (centred + entropy))
    if d_logp is not None:
        inside = (picked >= 0) & (picked < L.extent(V).to(i64))
        dz = dz + L.where(L.pos(V) == L.where(inside, picked, -1).to(i32), d_logp, 0.0)
    return dz


def active_rows(picked: Tile, ignore_index: Tile, mask: Tile | None) -> Tile:
    """Return which rows count: those whose id is not ignored and whose mask, if any, is true."""
    active = picked != ignore_index
    return active if mask is None else active & mask


def _of_p(d_logp: Tile | None, d_lse: Tile | None) -> Tile | float:
    """Return g_lse - g_lp, the factor of p."""
    if d_logp is None:
        return 0.0 if d_lse is None else d_lse
    return -d_logp if d_lse is None else d_lse - d_logp


@op(saves=("logits",), returns=("y",))
def softcapped(logits: Tensor[f32, T, V], softcap: Scalar[f32], inv_softcap: Scalar[f32]) -> Outputs:
    """y = cap tanh(logits / cap), the scores of `logp` with a softcap and nothing else."""
    y, _ = Scoring(None, softcap, inv_softcap, None).forward(logits, None)
    return L.out(y=y)


@softcapped.vjp("logits")
def softcapped_grad(ctx, d_y: Tensor[f32, T, V]) -> Outputs:
    """d logits = d y (1 - tanh^2)."""
    scoring = Scoring(None, ctx.softcap, ctx.inv_softcap, None)
    _, t = scoring.forward(ctx.logits, None)
    return L.out(d_logits=scoring.backward(d_y, t))
