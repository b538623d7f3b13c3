"""Policy losses over tokens: ratios, KL estimates, and the clipped surrogate with its aggregation."""

from __future__ import annotations

from rlk.lang import Axis, L, Outputs, Scalar, Static, Tensor, Tile, boolean, f32, i32, op

T = Axis("T", dynamic=True)
S = Axis("S", chunk=1024, piece=1024, fan_in=4096, dynamic=True)
B = Axis("B", dynamic=True)
KL = ("k1", "k2", "k3", "abs", "k1+", "k3+")


def kl_value(d: Tile, kl: str) -> Tile:
    """Return the estimate of d = lp_ref - lp (Schulman 2020): k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1."""
    match kl:
        case "k1" | "k1+":
            return -d
        case "k2":
            return (d * d) * 0.5
        case "k3" | "k3+":
            return L.k3(d)
        case _:
            return abs(d)


def kl_slope(d: Tile, kl: str) -> Tile:
    """Return the derivative of the estimate by lp; a trailing + takes that of k2 (straight-through)."""
    match kl:
        case "k1":
            return L.where(d == d, 1.0, d)
        case "k2" | "k1+" | "k3+":
            return -d
        case "k3":
            return -L.expm1(d)
        case _:
            return L.where(d < 0.0, 1.0, L.where(d > 0.0, -1.0, 0.0))


@op(saves=("logp", "old_logp", "ref_logp", "mask"))
def ratio_kl(
    logp: Tensor[f32, T],
    old_logp: Tensor[f32, T],
    ref_logp: Tensor[f32, T],
    mask: Tensor[boolean, T] | None,
    kl: Static[KL] = "k3",
) -> Outputs:
    """ratio = exp(lp - lp_old) and the KL estimate of each token; inactive tokens give 1 and 0."""
    ratio = L.exp(logp - old_logp)
    estimate = kl_value(ref_logp - logp, kl)
    if mask is not None:
        ratio, estimate = L.where(mask, ratio, 1.0), L.where(mask, estimate, 0.0)
    return L.out(ratio=ratio, kl=estimate)


@ratio_kl.vjp("logp")
def ratio_kl_grad(ctx, d_ratio: Tensor[f32, T] | None, d_kl: Tensor[f32, T] | None) -> Outputs:
    """d lp = g_ratio ratio + g_kl dKL/dlp."""
    grad = None
    if d_ratio is not None:
        grad = d_ratio * L.exp(ctx.logp - ctx.old_logp)
    if d_kl is not None:
        of_kl = d_kl * kl_slope(ctx.ref_logp - ctx.logp, ctx.kl)
        grad = of_kl if grad is None else grad + of_kl
    if ctx.mask is not None:
        grad = L.where(ctx.mask, grad, 0.0)
    return L.out(d_logp=grad)


def _surrogate(ratio: Tile, advantage: Tile, low: Tile, high: Tile) -> tuple[Tile, Tile, Tile]:
    """Return the clipped surrogate, whether the unclipped branch is taken, and A with A = 0 kept apart.

    max(-r A, -clip(r, low, high) A); the gradient flows when unclipped >= clipped (ties included).
    """
    zero = advantage == 0.0
    # r = inf with A = 0 contributes exactly 0
    safe = L.where(zero, 1.0, ratio)
    plain = -(safe * advantage)
    clipped = -(L.clip(safe, low, high) * advantage)
    # not clipped <= plain: what is NaN is no clipped term, it stays NaN
    flows = ~(clipped > plain)
    return L.where(flows, plain, clipped), flows, zero


@op(saves=("logp", "old_logp", "advantages", "ref_logp", "active", "sequence", "count"))
def policy_loss(
    logp: Tensor[f32, T],
    old_logp: Tensor[f32, T],
    advantages: Tensor[f32, B],
    ref_logp: Tensor[f32, T] | None,
    entropy: Tensor[f32, T] | None,
    order: Tensor[i32, S],
    active: Tensor[boolean, T],
    sequence: Tensor[i32, T],
    low: Scalar[f32],
    high: Scalar[f32],
    dual_clip: Scalar[f32] | None,
    beta: Scalar[f32] | None,
    entropy_coef: Scalar[f32] | None,
    kl: Static[KL] = "k3",
) -> Outputs:
    """Token mean over active tokens of max(-r A, -clip(r) A) + beta KL(ref) - c H (Schulman 2017, Shao 2024).

    order lists all tokens, the active ones first in compacted order; sums run over it in chunks of 1024
    (halving trees), then over 4096 chunks at a time in the same way, those ascending, so that padded and
    packed inputs have the same bits. dual_clip: for A < 0 at most -c A (Ye 2020). advantages[sequence[t]] is
    the advantage of token t.
    """
    loss, count, clipped, moved = L.total(), L.total(), L.total(), L.total()
    for s in L.stream(S):
        t = order[s]
        alive = active.at(t)
        advantage = advantages.at(sequence.at(t))
        delta = logp.at(t) - old_logp.at(t)
        term, flows, _ = _surrogate(L.exp(delta), advantage, low, high)
        if dual_clip is not None:
            bound = -(dual_clip * advantage)
            term = L.where((advantage < 0.0) & (bound < term), bound, term)
        if beta is not None:
            term = term + beta * kl_value(ref_logp.at(t) - logp.at(t), kl)
        if entropy is not None:
            term = term - entropy_coef * entropy.at(t)
        L.place("per_token", (T,), ({T: t}, L.where(alive, term, 0.0)))
        loss.absorb(L.where(alive, term, -0.0))
        count.absorb(alive.to(i32))
        clipped.absorb((alive & ~flows).to(i32))
        moved.absorb(L.where(alive, L.k3(-delta), -0.0))
    tokens = L.maximum(count.value, 1).to(f32)
    # + 0.0: the sum of no tokens is -0.0, their loss is +0
    return L.out(
        loss=(loss.value + 0.0) / tokens,
        count=count.value,
        clip_fraction=clipped.value.to(f32) / tokens,
        approx_kl=(moved.value + 0.0) / tokens,
    )


@policy_loss.vjp("logp", "entropy")
def policy_loss_grad(ctx, d_loss: Tensor[f32]) -> Outputs:
    """d lp = g / count (1[unclipped branch] (-A r) + beta dKL/dlp), d H = -g c / count; 0 where inactive."""
    scale = d_loss / L.maximum(ctx.count, 1).to(f32)
    advantage = ctx.advantages.at(ctx.sequence)
    ratio = L.exp(ctx.logp - ctx.old_logp)
    term, flows, zero = _surrogate(ratio, advantage, ctx.low, ctx.high)
    if ctx.dual_clip is not None:
        flows = flows & ~((advantage < 0.0) & (term > -(ctx.dual_clip * advantage)))
    slope = L.where(flows & ~zero, -(ratio * advantage), 0.0)
    if ctx.beta is not None:
        slope = slope + ctx.beta * kl_slope(ctx.ref_logp - ctx.logp, ctx.kl)
    entropy_slope = None
    if ctx.wants("entropy"):
        entropy_slope = L.where(ctx.active, -(scale * ctx.entropy_coef), 0.0)
    return L.out(
        d_logp=L.where(ctx.active, scale * slope, 0.0) if ctx.wants("logp") else None, d_entropy=entropy_slope
    )
