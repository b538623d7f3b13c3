"""An empty input takes part in no sum; results that other inputs decide are computed all the same."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rlk import Layout, ops
from rlk.errors import LaunchError
from rlk.lang import Axis, L, Outputs, Tensor, Tree, f32, op
from rlk.runtime.call.dispatch import dispatch
from rlk.testing.bits import as_bits, assert_same_bits

NONE = torch.empty(0)


@pytest.fixture(params=["oracle", "triton interpreter"], autouse=True)
def executor(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test on the oracle and on interpreted Triton source."""
    before = dispatch.interpreter
    if request.param != "oracle":
        pytest.importorskip("triton")
        from rlk.testing.simulators.interpreter import interpret

        dispatch.interpret_with(interpret)
    yield
    dispatch.interpret_with(before)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_completions_of_no_other_prompt_leave_the_loss_of_the_samples() -> None:
    """z of no completion is 0."""
    logp, ref_logp = normal(5).requires_grad_(), normal(5, seed=1)
    desirable = torch.tensor([True, False, True, True, False])
    made = ops.kto_loss(logp, ref_logp, desirable, mismatched=(NONE, NONE))
    (grad,) = torch.autograd.grad(made.loss, logp)
    plain = ops.kto_loss(logp, ref_logp, desirable)
    (wanted,) = torch.autograd.grad(plain.loss, logp)
    assert float(made.loss.detach()) > 0.1 and wanted.all()
    assert_same_bits(made.loss, plain.loss)
    assert_same_bits(grad, wanted)
    assert float(made.metrics["divergence"]) == 0


def test_no_sample_leaves_the_divergence_of_the_other_completions() -> None:
    none = torch.empty(0, dtype=torch.bool)
    made = ops.kto_loss(NONE, NONE, none, mismatched=(torch.tensor([-1.0, -2.0]), torch.tensor([-2.0, -4.0])))
    assert float(made.metrics["divergence"]) == 1.5
    assert float(made.loss) == 0 and made.per_sample.shape == (0,)


@pytest.mark.parametrize("order", ["chain16", "leaf8"])
def test_a_product_over_nothing_has_its_bias_and_residual(order: str) -> None:
    x, w = torch.empty(3, 0, dtype=torch.bfloat16), torch.empty(16, 0, dtype=torch.bfloat16)
    bias, residual = normal(16, dtype=torch.bfloat16), normal(3, 16, seed=1, dtype=torch.bfloat16)
    made = ops.matmul(x, w, bias=bias, residual=residual, order=order)
    ones = torch.zeros(3, 16, dtype=torch.bfloat16), torch.zeros(16, 16, dtype=torch.bfloat16)
    assert_same_bits(made, ops.matmul(*ones, bias=bias, residual=residual, order=order))
    assert made.any()
    assert not ops.matmul(x, w, order=order).any()


def test_a_head_of_no_features_is_uniform() -> None:
    hidden = torch.empty(3, 0, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.empty(64, 0, dtype=torch.bfloat16, requires_grad=True)
    made = ops.linear_logp(hidden, weight, torch.tensor([0, 63, 5]), needs=("logp", "lse", "entropy"))
    assert made.logp is not None and made.lse is not None and made.entropy is not None
    for found, wanted in ((made.logp, -math.log(64)), (made.lse, math.log(64)), (made.entropy, math.log(64))):
        torch.testing.assert_close(found.detach(), torch.full((3,), wanted), rtol=1e-6, atol=0)
    grads = torch.autograd.grad(made.logp.sum(), (hidden, weight))
    assert [x.shape for x in grads] == [hidden.shape, weight.shape]


def test_losses_of_no_token_are_zero_and_so_are_their_gradients() -> None:
    """The control: what depends on nothing else than the empty input is 0."""
    logp = torch.empty(0, requires_grad=True)
    layout = Layout.packed(torch.tensor([0]), tokens=0)
    made = ops.policy_loss(logp, NONE, NONE, layout=layout, loss="grpo_sequences", ref_logp=NONE)
    made.loss.backward()
    assert as_bits(made.loss.detach()) == 0 and logp.grad is not None and logp.grad.shape == (0,)


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda rows: ops.embedding(rows, normal(0, 4)), "weight.shape[0]=0"),
        (lambda rows: ops.logp(normal(*rows.shape, 0), rows), "logits.shape[-1]=0"),
        (lambda rows: ops.linear_logp(*tables(rows), rows), "weight.shape[0]=0"),
    ],
    ids=["embedding", "logp", "linear_logp"],
)
def test_a_table_of_nothing_is_refused_where_there_are_rows(call, name: str) -> None:
    """An axis in the `nonempty` of an operator; the control is a call without rows."""
    for shape in ((3,), (2, 3)):
        with pytest.raises(LaunchError, match=re.escape(name)):
            call(torch.zeros(shape, dtype=torch.int64))
    call(torch.zeros(0, dtype=torch.int64))
    with FakeTensorMode(), pytest.raises(LaunchError, match=re.escape(name)):
        call(torch.zeros(3, dtype=torch.int64))


def tables(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return hidden states of these rows, and a head of no token."""
    return normal(*rows.shape, 8, dtype=torch.bfloat16), normal(0, 8, dtype=torch.bfloat16)


T, N = Axis("T", dynamic=True), Axis("N")


@op()
def scaled(x: Tensor[f32, T, N], w: Tensor[f32, N]) -> Outputs:
    """Rows times w, and the squared norm of w, which has no row; and a number that reads nothing."""
    norm = L.sum(w * w, over=N, tree=Tree.halving)
    return L.out(y=x * w, norm=norm, columns=L.extent(N))


def test_no_rows_leave_what_other_inputs_decide() -> None:
    w = normal(8)
    some, none = scaled(normal(3, 8), w), scaled(normal(0, 8), w)
    assert none.y.shape == (0, 8) and int(none.columns) == 8
    assert_same_bits(none.norm, some.norm)
    assert float(scaled(normal(0, 8), 2.0 * w).norm) == pytest.approx(4.0 * float(some.norm))  # the control
