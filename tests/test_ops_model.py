"""Laws of a decoder layer's small operators on the CPU: float64 formulas, roundings, edges."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rlk import ops
from rlk.ops import rotary
from rlk.ops.results import RMSNorm
from rlk.testing.bits import as_bits, assert_same_bits, differing

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPS = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
PROFILES = ("hf_llama", "gemma", "vllm")


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got: torch.Tensor, want: torch.Tensor, rtol: float, atol: float) -> None:
    torch.testing.assert_close(got.detach().double(), want.detach().double(), rtol=rtol, atol=atol)


# rms_norm


def rounded(
    x: torch.Tensor, w: torch.Tensor, r: torch.Tensor | None, profile: str, eps: float
) -> torch.Tensor:
    """Return the result of each profile, with its roundings, as its own library writes it in torch."""
    h = x.float() if r is None else x.float() + r.float()
    if profile != "vllm":
        h = h.to(x.dtype).float()
    n = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if profile == "gemma":
        return (n * (1.0 + w.float())).to(x.dtype)
    return (n.to(x.dtype).float() * w.float()).to(x.dtype)


def wide(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor | None, profile: str, eps: float) -> torch.Tensor:
    h = x if r is None else x + r
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps) * (w + 1.0 if profile == "gemma" else w)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("profile", PROFILES)
def test_rms_norm_is_its_profile(profile: str, dtype: torch.dtype, residual: bool) -> None:
    x, w = normal(3, 40, 96, dtype=dtype), normal(96, dtype=dtype, seed=1)
    r = normal(3, 40, 96, dtype=dtype, seed=2) if residual else None
    got = ops.rms_norm(x, w, profile=profile, residual=r, eps=1e-5)  # type: ignore[arg-type]
    y = got.y if isinstance(got, RMSNorm) else got
    assert y.dtype is dtype and y.shape == x.shape
    want = wide(x.double(), w.double(), None if r is None else r.double(), profile, 1e-5)
    close(y, want, 2.5 * EPS[dtype], 1.5 * EPS[dtype])
    # rstd may differ by an ulp, so a rounding may fall on the other side: rarely, and by one step
    alike = rounded(x, w, r, profile, 1e-5)
    close(y, alike, (4 if dtype is torch.float32 else 2.1) * EPS[dtype], 0.0)
    if dtype is not torch.float32:
        assert differing(y, alike) <= y.numel() // 200
    if r is not None:
        assert isinstance(got, RMSNorm)
        assert_same_bits(got.residual, x + r, "residual")
    exact = ops.rms_norm.reference(x, w, profile=profile, residual=r, eps=1e-5)
    close(exact.y if isinstance(exact, RMSNorm) else exact, want, 1e-12, 1e-12)


def test_the_profiles_round_differently() -> None:
    x, w, r = (normal(*s, dtype=torch.bfloat16, seed=i) for i, s in enumerate([(50, 96), (96,), (50, 96)]))
    made = {p: ops.rms_norm(x, w, profile=p, residual=r).y for p in PROFILES}
    assert differing(made["vllm"], made["hf_llama"])
    shifted = ops.rms_norm(x, w.float() - 1.0, profile="gemma", residual=r).y
    assert differing(shifted, ops.rms_norm(x, w.float(), residual=r).y)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("profile", PROFILES)
def test_rms_norm_has_its_gradients(profile: str, dtype: torch.dtype, residual: bool) -> None:
    x, w = normal(4, 77, 64, dtype=dtype), normal(64, dtype=dtype, seed=1)
    leaves = [x, w] + ([normal(4, 77, 64, dtype=dtype, seed=2)] if residual else [])
    wides = [t.double().requires_grad_() for t in leaves]
    for t in leaves:
        t.requires_grad_()
    g, g_h = normal(4, 77, 64, dtype=dtype, seed=3), normal(4, 77, 64, dtype=dtype, seed=4)
    got = ops.rms_norm(*leaves[:2], profile=profile, residual=leaves[2] if residual else None)  # type: ignore[arg-type]
    want = wide(wides[0], wides[1], wides[2] if residual else None, profile, 1e-6)
    if isinstance(got, RMSNorm):
        torch.autograd.backward(list(got), [g, g_h])
        torch.autograd.backward([want, wides[0] + wides[2]], [g.double(), g_h.double()])
    else:
        got.backward(g)
        want.backward(g.double())
    for mine, exact in zip(leaves, wides, strict=True):
        assert mine.grad is not None and exact.grad is not None and mine.grad.dtype is dtype
        scale = float(exact.grad.abs().max())
        close(mine.grad, exact.grad, 4 * EPS[dtype], 6 * EPS[dtype] * scale)
    if residual:
        assert_same_bits(leaves[2].grad, leaves[0].grad)


def test_the_gradients_of_two_streams_are_written_once() -> None:
    x, r, seed = (normal(9, 64, dtype=torch.bfloat16, seed=i).requires_grad_(i < 2) for i in range(3))
    w = normal(64, dtype=torch.bfloat16, seed=3)
    both = torch.autograd.grad(ops.rms_norm(x, w, residual=r).y, (x, r), seed)
    assert both[0].data_ptr() == both[1].data_ptr()
    (alone,) = torch.autograd.grad(ops.rms_norm(x.detach(), w, residual=r).y, (r,), seed)
    assert_same_bits(alone, both[0])
    for _ in range(2):  # what autograd adds to one stream's gradient is not in the other's
        (ops.rms_norm(x, w, residual=r).y + x).backward(seed)
    assert x.grad is not None and r.grad is not None
    assert_same_bits(r.grad, both[1] + both[1])
    assert differing(x.grad, r.grad)


@pytest.mark.parametrize("weight", DTYPES)
def test_a_weight_keeps_its_own_dtype(weight: torch.dtype) -> None:
    x, w = normal(9, 32, dtype=torch.bfloat16), normal(32, dtype=weight, seed=1).requires_grad_()
    y = ops.rms_norm(x, w)
    y.sum().backward()
    assert y.dtype is torch.bfloat16 and w.grad is not None and w.grad.dtype is weight
    close(y, wide(x.double(), w.double(), None, "hf_llama", 1e-6), 0.02, 0.01)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 9, 100, 1000, 1025])
def test_any_width_is_normalised(width: int) -> None:
    x, w = normal(5, width), normal(width, seed=1)
    close(ops.rms_norm(x, w), wide(x.double(), w.double(), None, "hf_llama", 1e-6), 1e-6, 1e-6)


@pytest.mark.parametrize("shape", [(), (4,), (2, 2), (1, 2, 2), (0,), (2, 0), (2, 0, 3)])
def test_leading_dims_are_kept(shape: tuple[int, ...]) -> None:
    x, w = normal(*shape, 32), normal(32, seed=1).requires_grad_()
    y = ops.rms_norm(x, w)
    assert y.shape == x.shape
    rows = ops.rms_norm(x.reshape(-1, 32), w)
    assert_same_bits(y.reshape(-1, 32), rows)
    y.sum().backward()
    assert w.grad is not None and w.grad.shape == (32,)
    if not x.numel():
        assert (as_bits(w.grad) == 0).all()


def test_a_row_of_zeros_gives_zeros() -> None:
    x = torch.zeros(2, 16, requires_grad=True)
    y = ops.rms_norm(x, torch.ones(16))
    y.sum().backward()
    assert (y == 0).all() and x.grad is not None and torch.isfinite(x.grad).all()


def test_a_row_of_nan_spoils_only_itself() -> None:
    x, w = normal(4, 48), normal(48, seed=1)
    want = ops.rms_norm(x, w)
    x[2, 5] = math.nan
    got = ops.rms_norm(x, w)
    assert torch.isnan(got[2]).all()
    assert_same_bits(got[[0, 1, 3]], want[[0, 1, 3]])


def test_strides_change_no_bit_of_a_norm() -> None:
    whole, w = normal(6, 5, 80), normal(80, seed=1)
    for view in (whole[:, 1:], whole[::2], whole[..., :64], whole.transpose(0, 1)):
        weight = w[: view.shape[-1]]
        assert_same_bits(ops.rms_norm(view, weight), ops.rms_norm(view.contiguous(), weight))


def test_another_order_of_elements_has_other_bits_of_a_norm() -> None:
    """The control: the same rows, their last element first; a tree of halves is its own mirror image."""
    x, w = normal(64, 80), normal(80, seed=1)
    turned = ops.rms_norm(x.roll(1, -1), w.roll(1, -1)).roll(-1, -1)
    made = ops.rms_norm(x, w)
    assert differing(turned, made)
    close(turned, made, 1e-6, 1e-6)


def test_a_cotangent_may_have_any_strides() -> None:
    x = normal(2, 3, 4, 24).requires_grad_()
    w = normal(24, seed=1).requires_grad_()
    g = normal(4, 3, 2, 24, seed=2).permute(2, 1, 0, 3)
    tail = normal(4, 3, 24, 2, seed=3).permute(3, 1, 0, 2)
    grads = []
    for cotangent in (g, g.contiguous(), tail, torch.ones(()).expand(x.shape)):
        x.grad = w.grad = None
        ops.rms_norm(x, w).backward(cotangent)
        grads.append((x.grad, w.grad))
    for a, b in zip(*grads[:2], strict=True):
        assert_same_bits(a, b)


def fused(heads: int, keys: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a merged q, k, v product gives for 2 x 70 tokens, and weights of a norm of heads."""
    qkv = normal(2, 70, (heads + 2 * keys) * width, dtype=dtype)
    return qkv, (1 + 0.1 * normal(width, seed=1)).to(dtype)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_inside_of_a_fused_product_are_normalised_without_a_copy(
    profile: str, dtype: torch.dtype
) -> None:
    heads, keys, width = 6, 2, 16
    qkv, w = fused(heads, keys, width, dtype)
    first = 0
    for count in (heads, keys):
        g = normal(2, 70, count, width, dtype=dtype, seed=2)
        grads: list[tuple[torch.Tensor, ...]] = []
        kept: list[torch.Tensor] = []

        def keep(t: torch.Tensor, kept: list[torch.Tensor] = kept) -> torch.Tensor:
            kept.append(t)
            return t

        for copied in (False, True):
            source, weight = qkv.clone().requires_grad_(), w.clone().requires_grad_()
            x = source[..., first : first + count * width].unflatten(-1, (count, width))
            x = x.contiguous() if copied else x
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
                y = ops.rms_norm(x, weight, profile=profile)  # type: ignore[arg-type]
            if not copied:
                assert any(t.data_ptr() == x.data_ptr() and t.stride() == x.stride() for t in kept)
            grads.append((y, *torch.autograd.grad(y, (source, weight), g)))
        for mine, theirs in zip(*grads, strict=True):
            assert_same_bits(mine, theirs)
        assert not grads[0][1][..., first + count * width :].any()
        first += count * width


def test_other_heads_of_a_fused_product_have_other_bits() -> None:
    """The control: a view that begins one element late is seen in the result."""
    qkv, w = fused(6, 2, 16, torch.bfloat16)
    q, late = (qkv[..., at : at + 96].unflatten(-1, (6, 16)) for at in (0, 1))
    assert differing(ops.rms_norm(q, w), ops.rms_norm(late, w))


# swiglu


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu_is_its_formula_with_its_gradients(dtype: torch.dtype) -> None:
    gate, up, g = (normal(3, 50, 70, dtype=dtype, seed=s) * (3 if s == 0 else 1) for s in range(3))
    a, b = gate.double().requires_grad_(), up.double().requires_grad_()
    gate.requires_grad_()
    up.requires_grad_()
    y, want = ops.swiglu(gate, up), torch.nn.functional.silu(a) * b
    assert y.dtype is dtype and y.shape == gate.shape
    close(y, want, 4 * EPS[dtype], 1e-6)
    y.backward(g)
    want.backward(g.double())
    for mine, exact in ((gate, a), (up, b)):
        assert mine.grad is not None and exact.grad is not None
        close(mine.grad, exact.grad, 4 * EPS[dtype], 4 * EPS[dtype])
    close(ops.swiglu.reference(gate, up), want, 1e-14, 1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_swiglu_rounds_silu_as_eager_transformers_do(dtype: torch.dtype) -> None:
    gate, up = normal(64, 128, dtype=dtype), normal(64, 128, dtype=dtype, seed=1)
    eager = torch.nn.functional.silu(gate) * up
    assert differing(ops.swiglu(gate, up), eager) <= eager.numel() // 200
    close(ops.swiglu(gate, up), eager, 2.1 * EPS[dtype], 1e-7)


def test_swiglu_of_extremes() -> None:
    gate = torch.tensor([[100.0, -100.0, 0.0, -0.0, math.inf]])
    y = ops.swiglu(gate, torch.ones_like(gate))
    close(y, torch.tensor([[100.0, 0.0, 0.0, 0.0, math.inf]]), 0.0, 1e-30)


# geglu

GELUS = ("tanh", "none")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("approximate", GELUS)
def test_geglu_is_its_formula_with_its_gradients(approximate: str, dtype: torch.dtype) -> None:
    gate, up, g = (normal(3, 50, 70, dtype=dtype, seed=s) * (2 if s == 0 else 1) for s in range(3))
    a, b = gate.double().requires_grad_(), up.double().requires_grad_()
    gate.requires_grad_()
    up.requires_grad_()
    y = ops.geglu(gate, up, approximate=approximate)  # type: ignore[arg-type]
    want = torch.nn.functional.gelu(a, approximate=approximate) * b
    assert y.dtype is dtype and y.shape == gate.shape
    close(y, want, 4 * EPS[dtype], 2e-6)
    y.backward(g)
    want.backward(g.double())
    for mine, exact in ((gate, a), (up, b)):
        assert mine.grad is not None and exact.grad is not None
        close(mine.grad, exact.grad, 4 * EPS[dtype], 4 * EPS[dtype])
    close(ops.geglu.reference(gate, up, approximate=approximate), want, 1e-14, 1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("approximate", GELUS)
def test_geglu_rounds_as_eager_transformers_do(approximate: str, dtype: torch.dtype) -> None:
    """gelu, and in backward the gradient of gelu, are rounded to the dtype before they are used."""
    made = []
    for glu in (
        lambda a, b: ops.geglu(a, b, approximate=approximate),  # type: ignore[arg-type]
        lambda a, b: torch.nn.functional.gelu(a, approximate=approximate) * b,
        lambda a, b: (torch.nn.functional.gelu(a.float(), approximate=approximate) * b.float()).to(dtype),
    ):
        gate, up, g = (normal(64, 128, dtype=dtype, seed=s) for s in range(3))
        gate.requires_grad_()
        up.requires_grad_()
        y = glu(gate, up)
        made.append((y, *torch.autograd.grad(y, (gate, up), g)))
    for mine, eager, once in zip(*made, strict=True):
        assert differing(mine, eager) <= eager.numel() // 100
        close(mine, eager, 2.1 * EPS[dtype], EPS[dtype] / 8)
        assert differing(mine, once) > eager.numel() // 20, "the control: rounded once only"


@pytest.mark.parametrize("approximate", GELUS)
def test_geglu_of_extremes(approximate: str) -> None:
    gate = torch.tensor([[100.0, -100.0, 0.0, -0.0, math.inf, 3e38, -3e38]], requires_grad=True)
    y = ops.geglu(gate, torch.ones_like(gate), approximate=approximate)  # type: ignore[arg-type]
    close(y, torch.tensor([[100.0, 0.0, 0.0, 0.0, math.inf, 3e38, 0.0]]), 1e-7, 1e-30)
    (slope,) = torch.autograd.grad(y.sum(), gate)
    close(slope, torch.tensor([[1.0, 0.0, 0.5, 0.5, 1.0, 1.0, 0.0]]), 1e-7, 1e-30)
    unknown = torch.full((1, 3), math.nan, requires_grad=True)
    y = ops.geglu(unknown, torch.ones(1, 3), approximate=approximate)  # type: ignore[arg-type]
    assert torch.isnan(y).all() and torch.isnan(torch.autograd.grad(y.sum(), unknown)[0]).all()


def test_geglu_by_tanh_keeps_its_digits_far_below_zero() -> None:
    gate = torch.linspace(-9, -3, 500)[None]
    wide = gate.double()  # gelu of torch cancels in f64 too
    exact = wide * torch.sigmoid(math.sqrt(8 / math.pi) * (wide + 0.044715 * wide**3))
    close(ops.geglu(gate, torch.ones_like(gate)), exact, 1e-5, 0.0)
    theirs = torch.nn.functional.gelu(gate, approximate="tanh").double()
    assert ((theirs - exact).abs() > 1e-3 * exact.abs()).any(), "the control: 1 + tanh cancels"


# rope


def angles(
    positions: int, half: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    inverse = 10000.0 ** (-torch.arange(half) / half)
    theta = torch.arange(positions)[:, None] * inverse
    return theta.cos().to(dtype), theta.sin().to(dtype)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """transformers.models.llama.modeling_llama.rotate_half."""
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-b, a), dim=-1)


def transformers_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, position: torch.Tensor) -> Any:
    c = torch.cat((cos, cos), -1)[position][..., None, :]
    s = torch.cat((sin, sin), -1)[position][..., None, :]
    return x * c + rotate_half(x) * s


def neighbours(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """The interleaved form: pairs (x[2c], x[2c + 1]) as complex numbers times exp(i angle)."""
    turned = torch.complex(cos, sin)[position][..., None, :]
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turned).flatten(-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_is_its_formula_with_its_gradients(interleaved: bool, dtype: torch.dtype) -> None:
    cos, sin = angles(40, 16)
    position = torch.randint(40, (2, 7), generator=torch.Generator().manual_seed(0))
    q, k = normal(2, 7, 4, 32, dtype=dtype), normal(2, 7, 2, 32, dtype=dtype, seed=1)
    formula = neighbours if interleaved else transformers_rope
    wides = [x.double().requires_grad_() for x in (q, k)]
    for x in (q, k):
        x.requires_grad_()
    got = ops.rope(q, k, cos, sin, position_ids=position, interleaved=interleaved)
    want = [formula(x, cos.double(), sin.double(), position) for x in wides]
    exact = ops.rope.reference(q, k, cos, sin, position_ids=position, interleaved=interleaved)
    for mine, theirs, reference in zip(got, want, exact, strict=True):
        assert mine.dtype is dtype and mine.shape == theirs.shape
        close(mine, theirs, EPS[dtype], 2 * EPS[torch.float32])
        close(reference, theirs, 1e-12, 1e-12)
    cotangents = [normal(*x.shape, dtype=dtype, seed=2) for x in (q, k)]
    torch.autograd.backward(list(got), cotangents)
    torch.autograd.backward(want, [g.double() for g in cotangents])
    for mine, theirs in zip((q, k), wides, strict=True):
        assert mine.grad is not None and theirs.grad is not None
        close(mine.grad, theirs.grad, EPS[dtype], 2 * EPS[torch.float32])


@pytest.mark.parametrize("table", DTYPES)
@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
def test_rope_takes_tables_of_both_widths(table: torch.dtype, ids: torch.dtype) -> None:
    cos, sin = angles(20, 8, table)
    q, k = normal(5, 3, 16), normal(5, 1, 16, seed=1)
    position = torch.tensor([3, 19, 0, 3, 7], dtype=ids)
    narrow = ops.rope(q, k, cos, sin, position_ids=position)
    doubled = ops.rope(q, k, *(torch.cat((t, t), -1) for t in (cos, sin)), position_ids=position)
    for a, b in zip(narrow, doubled, strict=True):
        assert_same_bits(a, b)


def test_rope_at_position_zero_changes_nothing() -> None:
    q, k = normal(3, 2, 8), normal(3, 1, 8, seed=1)
    made = ops.rope(q, k, *angles(4, 4), position_ids=torch.zeros(3, dtype=torch.int64))
    assert (made[0] == q).all() and (made[1] == k).all()


@pytest.mark.parametrize("wrong", [-1, 4, 10**6])
def test_a_position_outside_the_table_gives_nan_in_its_token_only(wrong: int) -> None:
    q, k = normal(3, 2, 8), normal(3, 1, 8, seed=1)
    right = torch.tensor([0, 2, 3])
    want, _ = ops.rope(q, k, *angles(4, 4), position_ids=right)
    right[1] = wrong
    got, _ = ops.rope(q, k, *angles(4, 4), position_ids=right)
    assert torch.isnan(got[1]).all()
    assert_same_bits(got[[0, 2]], want[[0, 2]])


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (1, 2, 2), (0,), (0, 3)])
def test_rope_keeps_leading_dims(shape: tuple[int, ...]) -> None:
    q, k = normal(*shape, 2, 8), normal(*shape, 1, 8, seed=1)
    position = torch.ones(shape, dtype=torch.int64)
    got, _ = ops.rope(q, k, *angles(4, 4), position_ids=position)
    assert got.shape == q.shape
    flat, _ = ops.rope(
        q.reshape(-1, 2, 8), k.reshape(-1, 1, 8), *angles(4, 4), position_ids=position.reshape(-1)
    )
    assert_same_bits(got.reshape(-1, 2, 8), flat)


# rope of some elements


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [24, 16, 10, 2])
def test_partial_rope_rotates_the_first_elements_and_copies_the_others(
    width: int, interleaved: bool, dtype: torch.dtype
) -> None:
    cos, sin = angles(40, width // 2)
    position = torch.randint(40, (2, 7), generator=torch.Generator().manual_seed(0))
    q, k = normal(2, 7, 4, 27, dtype=dtype), normal(2, 7, 2, 27, dtype=dtype, seed=1)
    cotangents = [normal(*x.shape, dtype=dtype, seed=2) for x in (q, k)]
    options = {"position_ids": position, "interleaved": interleaved}
    for x in (q, k):
        x.requires_grad_()
    got = ops.rope(q, k, cos, sin, rotary_dim=width, **options)
    grads = torch.autograd.grad(got, (q, k), cotangents)
    front = [x[..., :width].detach().requires_grad_() for x in (q, k)]
    rotated = ops.rope(*front, cos, sin, **options)
    turned = torch.autograd.grad(rotated, front, [g[..., :width] for g in cotangents])
    exact = ops.rope.reference(q, k, cos, sin, rotary_dim=width, **options)
    formula = neighbours if interleaved else transformers_rope
    for i, x in enumerate((q, k)):
        assert_same_bits(got[i][..., width:], x[..., width:])
        assert_same_bits(got[i][..., :width], rotated[i])
        assert_same_bits(grads[i][..., width:], cotangents[i][..., width:])
        assert_same_bits(grads[i][..., :width], turned[i])
        want = formula(x[..., :width].double(), cos.double(), sin.double(), position)
        close(exact[i], torch.cat((want, x[..., width:].double()), -1), 1e-12, 1e-12)
    if width > 2:
        fewer = ops.rope(q, k, cos[:, 1:], sin[:, 1:], rotary_dim=width - 2, **options)
        assert differing(fewer[0], got[0]), "the control: fewer elements are rotated"


def test_partial_rope_of_all_elements_is_rope() -> None:
    cos, sin = angles(9, 8)
    q, k, position = normal(5, 3, 16), normal(5, 1, 16, seed=1), torch.arange(5)
    for a, b in zip(
        ops.rope(q, k, cos, sin, position_ids=position),
        ops.rope(q, k, cos, sin, position_ids=position, rotary_dim=16),
        strict=True,
    ):
        assert_same_bits(a, b)


def test_copied_elements_are_copied_at_any_position() -> None:
    """Infinities, NaN, -0.0 and subnormals among them, and where the position has no angle."""
    rest = torch.tensor([math.inf, math.nan, -0.0, 2.0**-133]).bfloat16()
    x = torch.cat((torch.ones(4, dtype=torch.bfloat16), rest))[None, None].expand(3, 2, 8)
    got, _ = ops.rope(x, x, *angles(4, 2), position_ids=torch.tensor([0, 3, 4]), rotary_dim=4)
    assert_same_bits(got[..., 4:], x[..., 4:])
    assert torch.isnan(got[2, :, :4]).all() and not torch.isnan(got[:2, :, :4]).any()


# tables

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
TABLES: dict[str, tuple[int, float, dict[str, Any]]] = {
    "qwen3": (128, 1e6, {"rope_type": "default"}),
    "qwen2.5": (64, 1e6, {"rope_type": "default"}),
    "mistral": (128, 1e4, {"rope_type": "default"}),
    "gemma3, whole": (256, 1e6, {"rope_type": "linear", "factor": 8.0}),
    "gemma3, windows": (256, 1e4, {"rope_type": "default"}),
    "llama3.1": (128, 5e5, LLAMA3),
    "llama3.2": (64, 5e5, LLAMA3 | {"factor": 32.0}),
    "gpt-oss": (64, 1.5e5, YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}),
    "deepseek-v3": (64, 1e4, YARN | {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7}),
    "one mscale": (64, 1e4, YARN | {"mscale": 0.7, "mscale_all_dim": 0.0}),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_the_angles_of_transformers(name: str) -> None:
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    dim, base, scaling = TABLES[name]
    given = scaling | {"rope_theta": base}
    shape = {"hidden_size": 4 * dim, "num_attention_heads": 4, "max_position_embeddings": 131072}
    config = modeling.LlamaConfig(**shape, rope_parameters=given)
    module = modeling.LlamaRotaryEmbedding(config)
    cos, sin = ops.rope_table(3000, dim, base=base, scaling=scaling)
    angle = torch.arange(3000).float()[:, None] * module.inv_freq
    assert ("yarn" in str(scaling)) == (module.attention_scaling != 1.0)
    assert_same_bits(cos, angle.double().cos().float() * module.attention_scaling, "cos")
    assert_same_bits(sin, angle.double().sin().float() * module.attention_scaling, "sin")
    theirs = module(torch.zeros(1), torch.arange(3000)[None])
    for mine, other in zip((cos, sin), theirs, strict=True):
        ulps = 2 if "yarn" in str(scaling) else 1  # theirs may be the neighbour, before it is multiplied
        close(mine, other[0, :, : dim // 2], ulps * 2.0**-23, 2.0**-149)
    for mine, other in zip((cos, sin), ops.rope_table(3000, dim, scaling=given), strict=True):
        assert_same_bits(mine, other)
    (other, _) = ops.rope_table(3000, dim, base=base * 1.001, scaling=scaling)
    assert differing(cos, other), "the control: another base has other angles"


@pytest.mark.parametrize("name", ["qwen3", "llama3.1"])
def test_tables_are_rounded_from_the_exact_cosine_at_far_positions(name: str) -> None:
    mpmath = pytest.importorskip("mpmath")
    dim, base, scaling = TABLES[name]
    cos, sin = ops.rope_table(2**18, dim, base=base, scaling=scaling)
    frequency = rotary._frequencies(dim, base, scaling)
    mpmath.mp.dps = 40
    for p in (1, 255, 256, 65537, 2**18 - 1):
        for c in (0, 1, 7, dim // 4, dim // 2 - 1):
            angle = mpmath.mpf(float(torch.tensor(float(p)) * frequency[c]))
            for made, exact in ((cos, mpmath.cos(angle)), (sin, mpmath.sin(angle))):
                assert float(made[p, c]) == float(torch.tensor(float(exact), dtype=torch.float64).float())


def test_a_table_is_the_beginning_of_a_longer_one() -> None:
    for short, long in zip(ops.rope_table(300, 32), ops.rope_table(1000, 32), strict=True):
        assert short.dtype is torch.float32 and short.shape == (300, 16)
        assert_same_bits(short, long[:300])


def test_a_table_is_made_on_the_cpu_whatever_the_default_device() -> None:
    """Engines build models under torch.device of a GPU."""
    with torch.device("meta"):
        made = ops.rope_table(7, 8, device=torch.device("cpu"))
    for got, want in zip(made, ops.rope_table(7, 8), strict=True):
        assert_same_bits(got, want)


# embedding


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_embedding_is_a_gather_and_its_gradient_a_sum(dtype: torch.dtype, kind: torch.dtype) -> None:
    weight = normal(50, 24, dtype=dtype).requires_grad_()
    ids = torch.randint(12, (6, 31), generator=torch.Generator().manual_seed(1)).to(kind)
    y = ops.embedding(ids, weight)
    assert_same_bits(y, weight.detach()[ids.long()])
    g = normal(6, 31, 24, dtype=dtype, seed=2)
    y.backward(g)
    want = torch.zeros(50, 24, dtype=torch.float64).index_add_(
        0, ids.reshape(-1).long(), g.double().reshape(-1, 24)
    )
    assert weight.grad is not None and weight.grad.dtype is dtype
    close(weight.grad, want, EPS[dtype], 2e-6)
    assert (as_bits(weight.grad[12:]) == 0).all(), "an id that is missing has a gradient of +0"


def test_the_gradient_of_an_embedding_adds_tokens_in_chunks_of_eight() -> None:
    g = normal(100, 16, seed=2)
    weight = torch.zeros(3, 16, requires_grad=True)
    ids = torch.ones(100, dtype=torch.int64)
    ops.embedding(ids, weight).backward(g)
    total: torch.Tensor | None = None
    for chunk in torch.cat((g, torch.full((4, 16), -0.0))).split(8):
        tree = chunk
        while len(tree) > 1:
            tree = tree[: len(tree) // 2] + tree[len(tree) // 2 :]
        total = tree[0] if total is None else total + tree[0]
    assert weight.grad is not None and total is not None
    assert_same_bits(weight.grad[1], total)
    ascending = torch.zeros(16)
    for row in g:
        ascending = ascending + row
    assert differing(weight.grad[1], ascending), "another order has other bits"


def test_other_ids_change_no_bit_of_an_id_s_gradient() -> None:
    g, base = normal(40, 8, seed=2), torch.randint(5, (40,), generator=torch.Generator().manual_seed(3))
    grads = []
    for dead in (None, 7, 2):
        weight = torch.zeros(10, 8, requires_grad=True)
        ids, given = base.clone(), g
        if dead is not None:  # the same tokens with others between them
            ids = torch.stack((base, torch.full_like(base, dead)), 1).reshape(-1)
            given = torch.stack((g, normal(40, 8, seed=9)), 1).reshape(-1, 8)
        ops.embedding(ids, weight).backward(given)
        grads.append(weight.grad)
    assert_same_bits(grads[0][:5], grads[1][:5])
    assert differing(grads[0][2], grads[2][2]), "more tokens of an id are seen in its gradient"
    assert_same_bits(grads[0][:2], grads[2][:2])


@pytest.mark.parametrize("wrong", [-1, 9, -100, 2**31 - 1])
def test_an_id_outside_the_table_gives_nan_and_no_gradient(wrong: int) -> None:
    weight = normal(9, 4).requires_grad_()
    ids = torch.tensor([1, wrong, 8])
    y = ops.embedding(ids, weight)
    assert torch.isnan(y[1]).all()
    assert_same_bits(y[[0, 2]], weight.detach()[[1, 8]])
    y[[0, 2]].sum().backward()
    assert weight.grad is not None
    assert weight.grad.sum(-1).tolist() == [0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 2)])
def test_no_tokens_give_a_gradient_of_zero(shape: tuple[int, ...]) -> None:
    weight = normal(9, 4).requires_grad_()
    y = ops.embedding(torch.zeros(shape, dtype=torch.int64), weight)
    assert y.shape == (*shape, 4)
    y.sum().backward()
    assert weight.grad is not None
    assert (as_bits(weight.grad[1:]) == 0).all() and float(weight.grad[0, 0]) == math.prod(shape)
