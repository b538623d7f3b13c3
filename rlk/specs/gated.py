"""The clamped gated activation of GPT-OSS."""

from __future__ import annotations

from rlk.lang import Axis, DTypeVar, L, Outputs, Scalar, Tensor, Tile, bf16, f16, f32, i32, op

T = Axis("T", dynamic=True)
N = Axis("N")
G = Axis("G")  # a gate and its up
F = DTypeVar("F", (bf16, f16, f32))


@op(saves=("x",), returns=("y",))
def clamped_swiglu(
    x: Tensor[F, T, N, G], limit: Scalar[f32, 0.0:] = 7.0, alpha: Scalar[f32] = 1.702
) -> Outputs:
    """y = (u + 1) g sigmoid(alpha g) of g = min(gate, limit), u = up within +-limit; f32, one rounding.

    x[..., 0] is the gate, x[..., 1] the up: the experts of GPT-OSS. NaN stays NaN.
    """
    gate, up, _, _ = _clamped(x, limit)
    return L.out(y=((up + 1.0) * (gate * L.sigmoid(alpha * gate))).to(x.dtype))


def _clamped(x: Tensor, limit: Tile) -> tuple[Tile, Tile, Tile, Tile]:  # type: ignore[valid-type]
    """Return gate and up, clamped, f32, and whether each was not."""
    gate, up = (x.at(T, N, L.number(i, i32)).to(f32) for i in range(2))
    low, high, above = -limit > up, up > limit, gate > limit
    clamped = L.where(low, -limit, L.where(high, limit, up))
    return L.where(above, limit, gate), clamped, ~above, ~(low | high)


@clamped_swiglu.vjp("x")
def clamped_swiglu_grad(ctx, d_y: Tensor[F, T, N]) -> Outputs:
    """d gate = d (u + 1) s (1 + alpha g (1 - s)), d up = d g s, s = sigmoid(alpha g); 0 where clamped."""
    gate, up, free_gate, free_up = _clamped(ctx.x, ctx.limit)
    d, z = d_y.to(f32), ctx.alpha * gate
    s = L.sigmoid(z)
    d_gate = (d * (up + 1.0)) * (s * (1.0 + z * (1.0 - s)))
    found = (L.where(free_gate, d_gate, 0.0), L.where(free_up, d * (gate * s), 0.0))
    L.place("d_x", (T, N, G), *(({G: L.number(i, i32)}, x.to(d_y.dtype)) for i, x in enumerate(found)))
    return L.out()
