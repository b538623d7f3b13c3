"""Divergences between the next-token distributions of a student and a teacher, from their logits."""

from __future__ import annotations

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
    op,
)
from rlk.specs.logp import LOG2E, Scoring, V, inverse_of

T = Axis("T", dynamic=True)
F = DTypeVar("F", (bf16, f16, f32))
G = DTypeVar("G", (bf16, f16, f32))
FORMS = ("mixture", "forward", "reverse")
"""beta between 0 and 1, beta = 0 and beta = 1."""
NO_DISTRIBUTION = "logits that are no distribution (NaN, +inf, no finite one), or a temperature not positive"


@dataclass(frozen=True, slots=True)
class _Token:
    """Log-probs lq and lp of a token under the student and the teacher, with q = e^lq and p = e^lp."""

    lq: Tile
    lp: Tile
    q: Tile
    p: Tile

    @staticmethod
    def of(student: Tile, teacher: Tile, student_lse: Tile, teacher_lse: Tile) -> _Token:
        lq, lp = student - student_lse, teacher - teacher_lse
        return _Token(lq, lp, L.softmax_exp2(lq * LOG2E), L.softmax_exp2(lp * LOG2E))

    def against_mixture(self, beta: Tile, rest: Tile) -> tuple[Tile, Tile]:
        """Return lq - lm and lp - lm, m = beta p + rest q; NaN, or -inf, where q, or p, is 0.

        rest: 1 - beta, rounded once: from a beta in f32 it would have no digit where beta is next to 1.

        The larger of p and q is at most 1 / rest or 1 / beta times m: with s the weight of the smaller,
        log of the larger over m is -log1p(s expm1(-|lp - lq|)), which never overflows and keeps small digits.
        """
        d = self.lp - self.lq
        teacher_larger = d > 0.0
        distance = L.where(teacher_larger, -d, d)
        larger = -L.log1p(L.where(teacher_larger, rest, beta) * L.expm1(distance))
        smaller = larger + distance
        return L.where(teacher_larger, smaller, larger), L.where(teacher_larger, larger, smaller)


def _kl_term(p: Tile, q: Tile, lp: Tile, lq: Tile) -> Tile:
    """Return p (lp - lq) - p + q = p k3(lq - lp), which is not negative: its sum is that of p (lp - lq).

    inf where q is 0 and p is not; 0 log 0 = 0.
    """
    x = lq - lp
    # k3 grows as e^x: where x is large nothing cancels
    some = L.where(x < 1.0, p * L.k3(x), (q - p) - p * x)
    return L.where(p == 0.0, q, some)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Scores of both models: those of `logp` of their logits, over one temperature."""

    scoring: Scoring
    active: Tile | None

    @staticmethod
    def of(
        inv_temperature_row: TensorArg | None, inv_temperature: Tile | None, mask: TensorArg | None
    ) -> _Pair:
        inverse = inverse_of(inv_temperature_row, inv_temperature)
        return _Pair(Scoring(None, None, None, inverse), None if mask is None else mask.whole())

    def scores(self, student: Tile, teacher: Tile) -> tuple[Tile, Tile]:
        return self.scoring.forward(student, None)[0], self.scoring.forward(teacher, None)[0]

    def only(self, x: Tile) -> Tile:
        """Return x in active rows, 0 in others."""
        return x if self.active is None else L.where(self.active, x, 0.0)


@op(
    saves=(
        "student_logits", "teacher_logits", "inv_temperature_row", "mask", "student_lse", "teacher_lse",
        "mean",
    )
)  # fmt: skip
def jsd_loss(
    student_logits: Tensor[F, T, V],
    teacher_logits: Tensor[G, T, V],
    inv_temperature_row: Tensor[f32, T] | None,
    mask: Tensor[boolean, T] | None,
    inv_temperature: Scalar[f32] | None,
    beta: Scalar[f32],
    rest: Scalar[f32],
    form: Static[FORMS] = "mixture",
) -> Outputs:
    """JSD(beta) = beta KL(p | m) + rest KL(q | m), m = beta p + rest q, rest = 1 - beta (Agarwal 2024).

    forward: KL(p | q), p the teacher's. reverse: KL(q | p). Two streams over V: both log-sum-exps, with the
    fold of `logp`, then the sums over tokens. mean: the mean of d loss / d q under q, for the gradient.
    Inactive rows (mask false) are not read and give 0.
    """
    pair = _Pair.of(inv_temperature_row, inv_temperature, mask)
    of_student, of_teacher, loss, own = L.softmax_sum(), L.softmax_sum(), L.total(), L.total()
    for v in L.stream(V, when=pair.active):
        student, teacher = pair.scores(student_logits[v], teacher_logits[v])
        of_student.absorb(student)
        of_teacher.absorb(teacher)
    student_lse, teacher_lse = of_student.lse(), of_teacher.lse()
    for v in L.stream(V, when=pair.active):
        x = _Token.of(*pair.scores(student_logits[v], teacher_logits[v]), student_lse, teacher_lse)
        if form == "forward":
            loss.absorb(_kl_term(x.p, x.q, x.lp, x.lq))
        elif form == "reverse":
            loss.absorb(_kl_term(x.q, x.p, x.lq, x.lp))
        else:
            student_ratio, teacher_ratio = x.against_mixture(beta, rest)
            of_q = rest * L.where(x.q == 0.0, 0.0, x.q * student_ratio)
            of_p = beta * L.where(x.p == 0.0, 0.0, x.p * teacher_ratio)
            loss.absorb(of_p + of_q)
            own.absorb(of_q)
    # + 0.0: the sum of nothing is -0.0
    made = loss.value + 0.0
    bad = L.isnan(made)
    L.check(bad if pair.active is None else pair.active & bad, NO_DISTRIBUTION)
    mean = None
    if form != "forward":
        mean = pair.only(own.value if form == "mixture" else made)
    return L.out(
        loss=pair.only(made),
        student_lse=pair.only(student_lse),
        teacher_lse=pair.only(teacher_lse),
        mean=mean,
    )


@jsd_loss.vjp("student_logits")
def jsd_loss_grad(ctx, d_loss: Tensor[f32, T]) -> Outputs:
    """dz = g q (f - mean of f) / T, f = rest (lq - lm), in reverse lq - lp; forward: g (q - p) / T."""
    pair = _Pair.of(ctx.inv_temperature_row, ctx.inv_temperature, ctx.mask)
    student = ctx.student_logits.at(T, V, when=pair.active)
    teacher = ctx.teacher_logits.at(T, V, when=pair.active)
    x = _Token.of(*pair.scores(student, teacher), ctx.student_lse, ctx.teacher_lse)
    if ctx.form == "forward":
        dz = d_loss * (x.q - x.p)
    else:
        f = x.lq - x.lp if ctx.form == "reverse" else ctx.rest * x.against_mixture(ctx.beta, ctx.rest)[0]
        # q = 0 where z = -inf: the gradient is 0 there, not NaN
        dz = L.where(x.q == 0.0, 0.0, (d_loss * x.q) * (f - ctx.mean))
    grad = pair.only(pair.scoring.backward(dz, None))
    return L.out(d_student_logits=grad.to(ctx.student_logits.dtype))
