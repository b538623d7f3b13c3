"""The gradient of a head's bias: bits of its definition, in the oracle and in generated Triton source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from linear_cases import TOKENS, Grads, active_rows, cotangents, head, options_of, scores_gradient
from matmul_cases import CHUNK, Merge, ascending, halving

from rlk import Layout, ops
from rlk.runtime.call.dispatch import dispatch
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators.interpreter import interpret

ROWS, DEPTH, V = (2, 70), 40, 301
BF16, F16 = torch.bfloat16, torch.float16
OPTIONS = options_of(ROWS, V, BF16)


@pytest.fixture(params=["oracle", "generated source"])
def runner(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run calls in the oracle or in interpreted source; memory that nobody wrote is NaN, and seen."""
    before = dispatch.interpreter
    torch.use_deterministic_algorithms(True, warn_only=True)
    dispatch.interpret_with(interpret if request.param == "generated source" else None)
    yield request.param
    torch.use_deterministic_algorithms(False)
    dispatch.interpret_with(before)


def bias_of(vocabulary: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(7)).to(dtype)


def summed(dz: torch.Tensor, merge: Merge = ascending, chunk: int = CHUNK) -> torch.Tensor:
    """Return the f32 sums over rows of a rounded gradient of scores."""
    pieces = [dz[low : low + TOKENS].float() for low in range(0, len(dz), TOKENS)]
    sums = [ascending([halving(p[i : i + chunk]) for i in range(0, len(p), chunk)]) for p in pieces]
    return merge(sums)


def gradients(
    tensors: tuple[torch.Tensor, ...],
    bias: torch.Tensor,
    given: Grads,
    wanted: tuple[str, ...],
    **options: Any,
) -> Grads:  # fmt: skip
    hidden, weight, ids = tensors
    leaves = {"hidden": hidden.detach().clone(), "weight": weight.detach().clone(), "bias": bias.clone()}
    asked = [leaves[name].requires_grad_() for name in wanted]
    made = ops.linear_logp(
        leaves["hidden"], leaves["weight"], ids, bias=leaves["bias"], needs=tuple(given), **options
    )
    found = torch.autograd.grad([getattr(made, n) for n in given], asked, list(given.values()))
    return dict(zip(wanted, found, strict=True))


@pytest.mark.parametrize("name", [n for n in OPTIONS if n not in ("bias", "everything")])
def test_sums_of_active_rows_have_the_bits_of_their_definition(name: str, runner: str) -> None:
    tensors, bias, options = head(ROWS, DEPTH, V), bias_of(V), OPTIONS[name]
    given = cotangents(ROWS, ("logp", "lse", "entropy"))
    got = gradients(tensors, bias, given, ("bias",), **options)["bias"]
    dz = scores_gradient(*tensors, given, bias=bias, **options)
    assert_same_bits(got, summed(dz[active_rows(tensors[2], options)]).to(BF16), "d bias")


def test_more_than_a_piece_of_rows(runner: str) -> None:
    tensors, bias = head((TOKENS + 300,), 8, 24, F16, ignored=3), bias_of(24, F16)
    given = cotangents((TOKENS + 300,))
    got = gradients(tensors, bias, given, ("bias",))["bias"]
    dz = scores_gradient(*tensors, given, bias=bias)
    assert_same_bits(got, summed(dz).half(), "d bias")


def test_other_orders_are_seen() -> None:
    """The controls, in f32: other chunks, and rows that do not count between those that do."""
    tensors, bias = head((2, 300), DEPTH, V, F16), bias_of(V, F16)
    given = cotangents((2, 300))
    dz = scores_gradient(*tensors, given, bias=bias)
    active = active_rows(tensors[2], {})
    want = summed(dz[active])
    assert_same_bits(gradients(tensors, bias, given, ("bias",))["bias"], want.half(), "d bias")
    assert differing(want, summed(dz)) > V // 4
    assert differing(want, summed(dz[active], chunk=32)) > V // 4
    assert differing(want, dz[active].float().sum(0)) > V // 4


def test_the_other_gradients_keep_their_bits(runner: str) -> None:
    tensors, bias, given = head(ROWS, DEPTH, V), bias_of(V), cotangents(ROWS)
    alone = gradients(tensors, bias, given, ("hidden", "weight"))
    every = gradients(tensors, bias, given, ("hidden", "weight", "bias"))
    for name, want in alone.items():
        assert_same_bits(every[name], want, name)
    assert_same_bits(every["bias"], gradients(tensors, bias, given, ("bias",))["bias"], "bias")


def test_inactive_rows_may_hold_anything() -> None:
    (hidden, weight, ids), bias = head(ROWS, DEPTH, V), bias_of(V)
    given = cotangents(ROWS)
    want = gradients((hidden, weight, ids), bias, given, ("bias",))["bias"]
    spoiled = torch.where((ids == -100)[..., None], torch.nan, hidden)
    got = gradients((spoiled, weight, ids), bias, given, ("bias",))["bias"]
    assert_same_bits(got, want, "d bias")
    assert spoiled.isnan().any()


def test_a_buffer_and_a_compiler_change_no_bit() -> None:
    tensors, bias, given = head(ROWS, DEPTH, V), bias_of(V), cotangents(ROWS)
    want = gradients(tensors, bias, given, ("hidden", "bias"))
    hidden, weight, ids = tensors

    def step(h: torch.Tensor, w: torch.Tensor, b: torch.Tensor, buffer: torch.Tensor | None) -> torch.Tensor:
        return ops.linear_logp(h, w, ids, bias=b, weight_grad_out=buffer).logp

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for call in (step, compiled):
        for buffer in (None, torch.zeros(weight.shape)):
            h, w, b = (t.detach().clone().requires_grad_() for t in (hidden, weight, bias))
            call(h, w, b, buffer).backward(given["logp"])
            assert (w.grad is None) == (buffer is not None)
            assert_same_bits(h.grad, want["hidden"], "d hidden")
            assert_same_bits(b.grad, want["bias"], "d bias")


def test_a_policy_loss_reaches_the_bias() -> None:
    hidden, weight, _ = head((12,), DEPTH, V)
    ids, bias = torch.arange(12) % V, bias_of(V)
    layout = Layout.packed(torch.tensor([0, 5, 12]), tokens=12)
    old, advantages = torch.full((12,), -5.0), torch.tensor([1.0, -0.5])
    whole = bias.clone().requires_grad_()
    ops.linear_policy_loss(hidden, weight, ids, old, advantages, layout=layout, bias=whole).loss.backward()
    parts = bias.clone().requires_grad_()
    logp = ops.linear_logp(hidden, weight, ids, bias=parts, mask=layout.active).logp
    ops.policy_loss(logp, old, advantages, layout=layout).loss.backward()
    assert whole.grad is not None and whole.grad.any()
    assert_same_bits(whole.grad, parts.grad, "d bias")
