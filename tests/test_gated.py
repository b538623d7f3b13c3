"""A gated activation of gate and up side by side has the bits of the operator on two tensors."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from rlk import ops
from rlk.errors import LaunchError
from rlk.ops.gated import OPS, gated
from rlk.passes.pipeline import canonical
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.reference import emit
from rlk.specs.model import swiglu
from rlk.target.facts import HOPPER, target
from rlk.testing.bits import assert_same_bits, differing

PLAIN = {"silu": ops.swiglu, "gelu_tanh": ops.geglu}


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("shape", [(5, 48), (2, 3, 48), (0, 48), (1, 64)])
@pytest.mark.parametrize("activation", OPS)
def test_gate_and_up_side_by_side_have_the_bits_of_two_tensors(
    activation: str, shape: tuple[int, ...]
) -> None:
    joined, seed = drawn(*shape).requires_grad_(), drawn(*shape[:-1], shape[-1] // 2)
    apart = [t.detach().clone().requires_grad_() for t in joined.chunk(2, -1)]
    y, want = gated(joined, activation), PLAIN[activation](*apart)
    assert_same_bits(y.detach(), want.detach())
    (got,) = torch.autograd.grad(y, joined, seed)
    wanted = torch.autograd.grad(want, apart, seed)
    assert_same_bits(got, torch.cat(wanted, -1))
    if got.numel():
        assert differing(got, torch.cat(wanted[::-1], -1))


def test_a_checkpoint_and_a_cotangent_of_any_layout_change_nothing() -> None:
    x = drawn(6, 32).requires_grad_()
    seed = drawn(16, 6).t()
    (want,) = torch.autograd.grad(gated(x, "silu"), x, seed.contiguous())
    (strided,) = torch.autograd.grad(gated(x, "silu"), x, seed)
    (again,) = torch.autograd.grad(checkpoint(gated, x, "silu", use_reentrant=False), x, seed)
    assert_same_bits(strided, want)
    assert_same_bits(again, want)


def test_a_second_derivative_is_refused() -> None:
    x = drawn(3, 8).requires_grad_()
    (d_x,) = torch.autograd.grad(gated(x, "silu").float().sum(), x, create_graph=True)
    with pytest.raises(LaunchError, match="swiglu"):
        d_x.float().sum().backward()


def test_the_generated_kernel_writes_into_both_halves() -> None:
    pytest.importorskip("triton")
    from rlk.testing.simulators.interpreter import interpret

    x, seed = drawn(5, 48).requires_grad_(), drawn(5, 24)
    (want,) = torch.autograd.grad(gated(x, "silu"), x, seed)
    before = dispatch.interpreter
    dispatch.interpret_with(interpret)
    try:
        (got,) = torch.autograd.grad(gated(x, "silu"), x, seed)
    finally:
        dispatch.interpret_with(before)
    assert_same_bits(got, want)


def test_clamped_numbers_have_no_gradient_and_nan_stays_nan() -> None:
    """Near float64 with its gradient; beyond the limit results are those of the limit."""
    x = (2 * drawn(7, 64)).requires_grad_()
    seed = drawn(7, 32)
    wide = x.detach().double().requires_grad_()
    y, want = ops.clamped_swiglu(x, limit=1.5), ops.clamped_swiglu.reference(wide, limit=1.5)
    (got,) = torch.autograd.grad(y, x, seed)
    (wanted,) = torch.autograd.grad(want, wide, seed.double())
    for a, b in ((y, want), (got, wanted)):
        assert (a.double() - b).abs().max() <= 2.0**-8 * b.abs().max()
    gate, up = x.detach()[:, ::2] > 1.5, x.detach()[:, 1::2].abs() > 1.5
    assert gate.any() and up.any() and not got[:, ::2][gate].any() and not got[:, 1::2][up].any()
    assert got[:, ::2][~gate].all() and got[:, 1::2][~up].all()
    assert differing(ops.clamped_swiglu(x.detach()), y.detach())
    for at in (0, 1):
        odd = x.detach().clone()
        odd[2, at] = torch.nan
        made = ops.clamped_swiglu(odd, limit=1.5)
        assert torch.isnan(made[2, 0])
        assert_same_bits(made.flatten()[65:], y.detach().flatten()[65:])


def test_a_gate_without_an_up_is_refused() -> None:
    for call in (
        lambda: ops.clamped_swiglu(drawn(2, 7)),
        lambda: ops.clamped_swiglu(drawn(2, 8), limit=-1.0),
    ):
        with pytest.raises(LaunchError, match="clamped_swiglu"):
            call()


@pytest.mark.parametrize(
    ("width", "tiles"),
    [(3072, {"N": 1024, "T": 2}), (12288, {"N": 2048}), (2560, {"N": 1024, "T": 2}), (3840, {"N": 2048})],
)
def test_tiles_cover_few_elements_that_do_not_exist(width: int, tiles: dict[str, int]) -> None:
    program = canonical(swiglu.trace(swiglu.default_variant()))
    _, (schedule,), _ = emit(program, {"T": 8192, "N": width}, target(HOPPER))
    assert dict(schedule.tiles) == tiles and schedule.warps == 4


def test_rows_of_halved_tiles_have_the_oracles_bits() -> None:
    pytest.importorskip("triton")
    from rlk.testing.simulators.interpreter import interpret

    x = drawn(3, 2 * 3072)  # of the second program's two rows one does not exist
    want = gated(x, "silu")
    dispatch.interpret_with(interpret)
    try:
        got = gated(x, "silu")
    finally:
        dispatch.interpret_with(None)
    assert_same_bits(got, want)
    assert differing(got, gated(x.roll(1, 0), "silu"))
