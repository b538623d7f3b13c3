"""RMSNorm over rows: the README's first spec."""

from __future__ import annotations

from rlk.lang import Axis, L, Outputs, Scalar, Tensor, Tree, bf16, f32, op

T = Axis("T", dynamic=True)  # rows, known at run time
N = Axis("N")  # hidden size


@op()
def rms_norm(x: Tensor[bf16, T, N], weight: Tensor[bf16, N], eps: Scalar[f32]) -> Outputs:
    """y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019)."""
    h = x.to(f32)
    mean = L.sum(h * h, over=N, tree=Tree.vector8) / L.extent(N).to(f32)
    return L.out(y=(h * L.rsqrt(mean + eps) * weight.to(f32)).to(bf16))
