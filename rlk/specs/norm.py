"""RMSNorm in the casting profiles of the models and engines that use it."""

from __future__ import annotations

from rlk.lang import Axis, DTypeVar, L, Outputs, Scalar, Static, Tensor, Tile, Tree, bf16, f16, f32, op

T = Axis("T", chunk=1, piece=64, dynamic=True)
N = Axis("N")
F = DTypeVar("F", (bf16, f16, f32))
W = DTypeVar("W", (bf16, f16, f32))
PROFILES = ("hf_llama", "gemma", "vllm", "gpt_oss")


def scale(weight: Tile, profile: str) -> Tile:
    """Return the factor of the normalised row: w, or 1 + w (gemma), in f32."""
    w = weight.to(f32)
    return w + 1.0 if profile == "gemma" else w


@op(
    saves=("x", "residual_out", "weight", "rstd"),
    returns={"y": "y", "residual_out": "residual"},
)
def rms_norm(
    x: Tensor[F, T, N],
    weight: Tensor[W, N],
    residual: Tensor[F, T, N] | None,
    eps: Scalar[f32, 0.0:] = 1e-6,
    profile: Static[PROFILES] = "hf_llama",
) -> Outputs:
    """y = h / sqrt(mean(h^2) + eps) * w with h = x + residual; given a residual, also h, rounded.

    Zhang and Sennrich 2019. The mean is a vector8 tree over N. hf_llama: h is rounded to x's dtype, so is
    h * rstd before the product with w. gemma: h is rounded, (h * rstd) * (1 + w) is rounded once; gpt_oss: so
    is (h * rstd) * w. vllm: the sum h stays f32 for the norm (vLLM's native form); the rest as hf_llama.
    """
    h = x.to(f32)
    if residual is not None:
        h = h + residual.to(f32)
        rounded = h.to(x.dtype)
        if profile != "vllm":
            h = rounded.to(f32)
    mean = L.sum(h * h, over=N, tree=Tree.vector8) / L.extent(N).to(f32)
    rstd = L.rsqrt(mean + eps)
    n = h * rstd
    if profile not in ("gemma", "gpt_oss"):
        n = n.to(x.dtype).to(f32)
    return L.out(
        y=(n * scale(weight, profile)).to(x.dtype),
        residual_out=None if residual is None else rounded,
        rstd=rstd,
    )


@rms_norm.vjp("x", "weight", "residual")
def rms_norm_grad(ctx, d_y: Tensor[F, T, N], d_residual_out: Tensor[F, T, N] | None) -> Outputs:
    """dh = rstd (g w - n mean(g w n)) + d_residual_out, dw = sum over rows of g n; casts pass gradients.

    dw: f32, rows ascending in pieces of 64, pieces ascending, rounded once to the weight's dtype.
    """
    dw = L.total()
    w = scale(ctx.weight, ctx.profile)
    source = ctx.x if ctx.residual_out is None else ctx.residual_out
    for t in L.stream(T):
        rstd = ctx.rstd[t]
        n = source[t].to(f32) * rstd
        g = d_y[t].to(f32)
        gw = g * w
        mean = L.sum(gw * n, over=N, tree=Tree.vector8) / L.extent(N).to(f32)
        dh = (gw - n * mean) * rstd
        if d_residual_out is not None:
            dh = dh + d_residual_out[t].to(f32)
        grad = dh.to(source.dtype)
        if ctx.wants("x"):
            L.emit(d_x=grad)
        if ctx.wants("residual"):
            L.emit(d_residual=grad)
        if ctx.wants("weight"):
            dw.absorb(g * (n if ctx.profile in ("gemma", "gpt_oss") else n.to(source.dtype).to(f32)))
    return L.out(d_weight=dw.value.to(ctx.weight.dtype) if ctx.wants("weight") else None)
