"""The operators through the CuTe lowering, interpreted thread by thread, have the bits of the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("triton")  # stands in where CuTe has no form

import matmul_cases
import test_interpreted_ops as interpreted
from linear_cases import cotangents, head

from rlk import ops
from rlk.runtime.call.dispatch import dispatch
from rlk.testing.bits import assert_same_bits
from rlk.testing.simulators import hopper, simt
from rlk.testing.simulators.interpreter import interpret

SM90 = {"math": "sm90"}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave the oracle in charge; fill memory that nobody wrote with NaN, so that reading it is seen."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
    dispatch.interpret_with(None)


def by_cute() -> None:
    dispatch.interpret_with(interpret, cute=hopper.interpret)


Case = Callable[[], list[torch.Tensor]]


def gradients(rows: int, depth: int, vocabulary: int, **options: Any) -> list[torch.Tensor]:
    """Return log-probs, lse and entropies of a head, and both gradients."""
    hidden, weight, ids = head((rows,), depth, vocabulary, torch.bfloat16)
    given = cotangents((rows,), ("logp", "lse", "entropy"))
    leaves = hidden.requires_grad_(), weight.requires_grad_()
    made = ops.linear_logp(*leaves, ids, needs=tuple(given), **SM90, **options)
    outputs = [getattr(made, name) for name in given]
    found = torch.autograd.grad(outputs, leaves, list(given.values()))
    return [*(x.detach() for x in outputs), *found]


def into_a_buffer(rows: int, depth: int, vocabulary: int) -> list[torch.Tensor]:
    """Return the gradient of hidden states, and a buffer to which that of the weight was added."""
    hidden, weight, ids = head((rows,), depth, vocabulary, torch.bfloat16)
    buffer = torch.ones(vocabulary, depth)
    leaves = hidden.requires_grad_(), weight.requires_grad_()
    made = ops.linear_logp(*leaves, ids, weight_grad_out=buffer, **SM90)
    (found,) = torch.autograd.grad(made.logp, leaves[:1], *cotangents((rows,), ("logp",)).values())
    return [found, buffer]


def products(m: int, n: int, k: int, **options: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(m)
    x, w = (torch.randn(rows, k, generator=generator).bfloat16() for rows in (m, n))
    bias = torch.randn(n, generator=generator).bfloat16()
    residual = torch.randn(m, n, generator=generator).bfloat16()
    return [ops.matmul(x, w, **options), ops.matmul(x, w, bias=bias, residual=residual, **options)]


def products_backward(m: int, n: int, k: int, **options: Any) -> list[torch.Tensor]:
    """Return the gradients of a product, and a buffer to which that of the weight was added."""
    it, buffer = matmul_cases.drawn(m, n, k), torch.ones(n, k)
    w = it.w.detach().clone().requires_grad_()
    ops.matmul(it.x, w, weight_grad_out=buffer).backward(it.d_y)
    return [*it.gradients(**options).values(), buffer]


def supported(rows: int, vocabulary: int) -> ops.Support:
    """Return a support of about half of the vocabulary, by thresholds."""
    threshold, last = torch.linspace(-1, 1, rows), torch.full((rows,), vocabulary, dtype=torch.int32)
    return ops.Support(threshold, torch.ones(rows, dtype=torch.int32), last)


CASES: dict[str, Case] = {
    "a head of one row": lambda: gradients(1, 64, 520),
    "a head": lambda: gradients(130, 64, 1040),
    "rows in two blocks, pieces of two tiles": lambda: gradients(200, 128, 2400),
    "a vocabulary of few": lambda: gradients(20, 16, 40),
    "a mask and a temperature by row": lambda: gradients(
        40, 64, 1040, mask=torch.arange(40) % 3 > 0, temperature=torch.linspace(0.5, 2.0, 40)
    ),
    "a temperature": lambda: gradients(40, 64, 1040, temperature=0.7),
    "scores that are capped": lambda: gradients(40, 64, 1040, softcap=5.0, logit_scale=0.5),
    "a support": lambda: gradients(40, 64, 1040, support=supported(40, 1040)),
    "kept logits": lambda: gradients(20, 64, 1040, keep_logits=1 << 30),
    "a buffer": lambda: into_a_buffer(40, 64, 1040),
    "two pieces of rows": lambda: gradients(8200, 16, 24),
    "products": lambda: products(130, 264, 112),
    "products as f32": lambda: products(70, 40, 64, out_dtype=torch.float32),
    "gradients of products": lambda: products_backward(130, 48, 64),
    "gradients of products, two pieces of rows": lambda: products_backward(8200, 16, 32),
    "gradients of products, pieces side by side": lambda: products_backward(20, 512, 64, grad_leaves=8),
    "gradients of products, pieces in turn": lambda: products_backward(640, 512, 256, grad_leaves=8),
    "eight chains": lambda: products(70, 40, 512, order="leaf8"),
}


@pytest.mark.parametrize("case", CASES)
def test_operators_have_the_bits_of_the_oracle(case: str, backends: list[str]) -> None:
    want = CASES[case]()
    by_cute()
    got = CASES[case]()
    assert set(backends) == {"cute"}, "every kernel has a form"
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert_same_bits(a, b, f"result {i}")


def test_what_has_no_form_runs_by_triton_with_the_same_bits(backends: list[str]) -> None:
    logits = torch.randn(2, 4, 1001, generator=torch.Generator().manual_seed(0)).bfloat16()[:, :-1]
    ids = torch.arange(6).reshape(2, 3)
    want = ops.logp(logits, ids, **SM90)
    by_cute()
    got = ops.logp(logits, ids, **SM90)
    assert backends == ["triton"]
    assert_same_bits(got.logp, want.logp, "logp")


def test_a_row_does_not_know_its_neighbours() -> None:
    by_cute()
    hidden, weight, ids = head((200,), 64, 1040, torch.bfloat16)
    whole = ops.linear_logp(hidden, weight, ids, **SM90).logp
    for rows in (slice(0, 1), slice(67, 131), slice(199, 200)):
        alone = ops.linear_logp(hidden[rows].contiguous(), weight, ids[rows], **SM90).logp
        assert_same_bits(alone, whole[rows], str(rows))


def test_a_row_that_is_read_in_the_place_of_another_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: one row of a TMA tile later."""
    hidden, weight, ids = head((200,), 64, 1040, torch.bfloat16)
    want = ops.linear_logp(hidden, weight, ids, **SM90).logp
    real = hopper.Rows.tile
    monkeypatch.setattr(
        hopper.Rows, "tile", lambda self: real(self) if self.rows > 128 else shifted(real(self))
    )
    by_cute()
    got = ops.linear_logp(hidden, weight, ids, **SM90).logp
    assert not torch.equal(got, want)


def shifted(tile: simt.Array) -> simt.Array:
    rolled: simt.Array = tile[[*range(1, len(tile)), 0]]
    return rolled


FAMILY = [name for name in interpreted.CASES if not name.startswith("sliced")]


@pytest.mark.parametrize("name", FAMILY)
def test_rows_and_elements_have_the_bits_of_the_oracle(name: str, backends: list[str]) -> None:
    case = interpreted.CASES[name]()
    want = interpreted.by_oracle(case)
    by_cute()
    got = interpreted.results(case)
    # rows of two strides, as of heads inside a wider product, have no form: Triton's kernel runs
    forms = {"cute", "triton"} if "of heads" in name else {"cute"}
    assert set(backends) <= forms and backends, "every kernel has a form"
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert_same_bits(a, b, f"result {i}")
