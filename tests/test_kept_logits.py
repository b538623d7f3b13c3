"""Logits are kept where a gradient will read them and they fit; a buffer takes what would be rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from linear_cases import cotangents, gradients, head, options_of
from rank_turns import Exchange, in_turn

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.runtime.binding.invocation import Invocation, Run, Tensors
from rlk.runtime.call import dispatch as runtime
from rlk.runtime.call.dispatch import dispatch
from rlk.testing.bits import assert_same_bits, differing

ROWS, V = (2, 7), 304
FITS = 4 * 14 * V
Tensor3 = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Invocation]]:
    """Give the invocations that a test runs for the first time."""
    found: list[Invocation] = []
    real = runtime.bind

    def bind(invocation: Invocation, tensors: Tensors) -> Run:
        found.append(invocation)
        return real(invocation, tensors)

    monkeypatch.setattr(runtime, "bind", bind)
    dispatch.interpret_with(None)  # forget what is bound
    yield found


def leaves(*wanted: str) -> Tensor3:
    hidden, weight, ids = head(ROWS, vocabulary=V)
    hidden.requires_grad_("hidden" in wanted)
    weight.requires_grad_("weight" in wanted)
    return hidden, weight, ids


def saved_by(call: Callable[[], object]) -> list[tuple[int, ...]]:
    """Return the shapes of what a call keeps for its gradient."""
    shapes: list[tuple[int, ...]] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(x.shape))
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        call()
    return shapes


def keeps(invocations: list[Invocation]) -> list[bool]:
    return [bool(dict(i.variant.statics)["keep"]) for i in invocations]


# --- what is kept ---


@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("wanted", [("hidden",), ("weight",), ("hidden", "weight")], ids=" ".join)
@pytest.mark.parametrize("limit", [FITS, 1 << 40])
def test_logits_that_fit_are_kept_for_any_gradient(
    limit: int, wanted: tuple[str, ...], buffered: bool, bound: list[Invocation]
) -> None:
    hidden, weight, ids = leaves(*wanted)
    buffer = torch.zeros(weight.shape) if buffered else None
    shapes = saved_by(lambda: ops.linear_logp(hidden, weight, ids, keep_logits=limit, weight_grad_out=buffer))
    assert shapes.count((*ROWS, V)) == 1 and keeps(bound) == [True]


@pytest.mark.parametrize("limit", ["never", 0, FITS - 1])
def test_logits_that_do_not_fit_are_not_kept(limit: int | str, bound: list[Invocation]) -> None:
    hidden, weight, ids = leaves("hidden", "weight")
    shapes = saved_by(lambda: ops.linear_logp(hidden, weight, ids, keep_logits=limit))
    assert (*ROWS, V) not in shapes and shapes and keeps(bound) == [False]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_a_gradient_nothing_is_kept(mode: Callable[[], object], bound: list[Invocation]) -> None:
    hidden, weight, ids = leaves("hidden", "weight")
    want = ops.linear_logp(hidden, weight, ids).logp
    bound.clear()
    with mode():  # type: ignore[attr-defined]
        shapes = saved_by(lambda: ops.linear_logp(hidden, weight, ids, keep_logits=FITS))
        got = ops.linear_logp(hidden, weight, ids, keep_logits=FITS).logp
    assert not shapes and not any(keeps(bound))
    assert got is not None and not got.requires_grad
    assert_same_bits(got, want, "logp")


def test_of_frozen_inputs_nothing_is_kept(bound: list[Invocation]) -> None:
    hidden, weight, ids = leaves()
    assert not saved_by(lambda: ops.linear_logp(hidden, weight, ids, keep_logits=FITS))
    assert keeps(bound) == [False]


@pytest.mark.parametrize(("limit", "kept"), [(FITS // 2, True), (FITS // 2 - 1, False)])
def test_a_rank_keeps_what_fits_of_its_own_words(limit: int, kept: bool) -> None:
    def step(rank: int, group: dist.ProcessGroup) -> list[tuple[int, ...]]:
        hidden, weight, ids = leaves("hidden")
        part = weight[rank * V // 2 : (rank + 1) * V // 2]
        return saved_by(
            lambda: ops.linear_logp(
                hidden, part, ids, group=group, vocab_start=rank * V // 2, keep_logits=limit
            )
        )

    for shapes in in_turn(step, Exchange(2)):
        assert ((*ROWS, V // 2) in shapes) == kept


# --- what a buffer takes ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", options_of(ROWS, V, torch.bfloat16))
def test_rounding_an_empty_buffer_gives_the_gradient(name: str, dtype: torch.dtype) -> None:
    options = options_of(ROWS, V, dtype)[name]
    tensors, given = head(ROWS, vocabulary=V, dtype=dtype), cotangents(ROWS, ("logp", "entropy"))
    want = gradients(*tensors, given, **options)
    hidden, weight, ids = tensors
    hidden.requires_grad_(), weight.requires_grad_()
    buffer = torch.zeros(weight.shape)
    made = ops.linear_logp(hidden, weight, ids, needs=tuple(given), weight_grad_out=buffer, **options)
    torch.autograd.backward([made.logp, made.entropy], list(given.values()))
    assert weight.grad is None and hidden.grad is not None
    assert_same_bits(buffer.to(dtype), want["weight"], "weight")
    assert_same_bits(hidden.grad, want["hidden"], "hidden")
    assert differing(buffer, want["weight"].float()) > buffer.numel() // 4  # it was never rounded


def test_two_backward_calls_through_one_graph_add_twice() -> None:
    hidden, weight, ids = leaves("weight")
    once, twice = torch.zeros(weight.shape), torch.zeros(weight.shape)
    given = cotangents(ROWS)["logp"]
    ops.linear_logp(hidden, weight, ids, weight_grad_out=once).logp.backward(given)
    made = ops.linear_logp(hidden, weight, ids, weight_grad_out=twice).logp
    made.backward(given, retain_graph=True)
    assert_same_bits(twice, once, "after one")
    made.backward(given)
    assert_same_bits(twice, once + once, "after two")


def test_a_buffer_of_a_frozen_weight_stays() -> None:
    hidden, weight, ids = leaves("hidden")
    buffer = torch.full(weight.shape, -0.0)
    ops.linear_logp(hidden, weight, ids, weight_grad_out=buffer).logp.sum().backward()
    assert_same_bits(buffer, torch.full(weight.shape, -0.0), "buffer")


BUFFERS: dict[str, tuple[torch.Tensor, Code]] = {
    "bf16": (torch.zeros(V, 40, dtype=torch.bfloat16), Code.ARG_DTYPE),
    "f64": (torch.zeros(V, 40, dtype=torch.float64), Code.ARG_DTYPE),
    "a row less": (torch.zeros(V - 1, 40), Code.ARG_VALUE),
    "flat": (torch.zeros(V * 40), Code.ARG_VALUE),
    "every second column": (torch.zeros(V, 80)[:, ::2], Code.ARG_VALUE),
    "a row for all rows": (torch.zeros(1, 40).expand(V, 40), Code.ARG_VALUE),
    "elsewhere": (torch.zeros(V, 40, device="meta"), Code.ARG_VALUE),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_what_no_gradient_can_be_added_to_is_refused(name: str) -> None:
    buffer, code = BUFFERS[name]
    for wanted in ((), ("hidden", "weight")):
        hidden, weight, ids = leaves(*wanted)
        with pytest.raises(LaunchError, match="weight_grad_out") as refused:
            ops.linear_logp(hidden, weight, ids, weight_grad_out=buffer)
        assert refused.value.code is code
