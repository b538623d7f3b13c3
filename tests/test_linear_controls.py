"""A linear head with one rule of its order broken has other bits: what the equality tests would notice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from edited_text import joined

from rlk import ops
from rlk.ir.text import parse_program, print_program
from rlk.lang.op import Op
from rlk.runtime.binding import invocation
from rlk.runtime.call import dispatch as runtime
from rlk.runtime.call.dispatch import dispatch
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators.interpreter import interpret

ROWS, DEPTH, VOCABULARY = 48, 64, 8 * 768
NEEDS = ("logp", "lse", "entropy")
Results = list[torch.Tensor]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = dispatch.interpreter
    yield
    dispatch.interpret_with(before)


def call() -> Results:
    """Return log-probs, lse, entropy and both gradients."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, DEPTH, generator=generator).bfloat16().requires_grad_()
    weight = (0.4 * torch.randn(VOCABULARY, DEPTH, generator=generator)).bfloat16().requires_grad_()
    ids = torch.randint(VOCABULARY, (ROWS,), generator=generator)
    seeds = [torch.randn(ROWS, generator=generator) for _ in NEEDS]
    made = ops.linear_logp(hidden, weight, ids, needs=NEEDS, temperature=0.7, math="sm90")
    outputs = [getattr(made, name) for name in NEEDS]
    torch.autograd.backward(outputs, seeds)
    assert hidden.grad is not None and weight.grad is not None
    return [*(y.detach() for y in outputs), hidden.grad, weight.grad]


def by_oracle() -> Results:
    dispatch.interpret_with(None)
    return call()


def rewritten(rule: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, Results]:
    """Return how many places of the source a rule changed, and what the changed source gives."""
    real, places = runtime.lowered, [0]

    def changed(*args: Any, **options: Any) -> Any:
        program, signature, schedules, emitted = real(*args, **options)
        source, count = re.subn(*rule, joined(emitted.source))
        places[0] += count
        return program, signature, schedules, replace(emitted, source=source)

    with monkeypatch.context() as patched:
        patched.setattr(runtime, "lowered", changed)
        dispatch.interpret_with(interpret)
        made = call()
    return places[0], made


RULES = {
    # the last tree step of a chunk takes all its terms at once
    "an unordered sum": (r"(def sum_over_v_lane\(x\):\n.*\n)(?:    x = .*\n)+", r"\1    x = tl.sum(x, 1)\n"),
    # x * y + u * v with one rounding less
    "fusion": (
        r"(\w+) = (\w+) \* (\w+)( +#.*)?\n(\s+)(\w+) = (\w+) \* (\w+)( +#.*)?\n\s+(\w+) = \1 \+ \6\b",
        r"\1 = \2 * \3\n\5\6 = \7 * \8\n\5\10 = tl.fma(\2, \3, \6)",
    ),
    # two chunks of a piece change places
    "chunks in another order": (
        r"(\w+) = v_step \* 256\b",
        r"\1 = tl.where(v_step == 1, 2, tl.where(v_step == 2, 1, v_step)) * 256",
    ),
    # the upper half of the contracted axis in an accumulator of its own
    "two accumulators": (
        (
            r"(\n +)for (\w+) in tl\.range\(0, 64, 64\):(.*)\n((?:.*\n)*?)"
            r"( +)(\w+) = tl\.dot\((\w+), ([\w.]+), \6, max_num_imprecise_acc=1\)"
        ),
        (
            r"\1for \2 in tl.range(0, 64, 64):\3\n\4"
            r"\5\6 = tl.dot(tl.where(tl.arange(0, 64)[None, :] < 32, \7, 0.0).to(\7.dtype), \8, \6)"
            r" + tl.dot(tl.where(tl.arange(0, 64)[None, :] < 32, 0.0, \7).to(\7.dtype), \8)"
        ),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_changes_bits(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    want = by_oracle()
    places, got = rewritten(RULES[rule], monkeypatch)
    assert places
    assert sum(differing(a, b) for a, b in zip(got, want, strict=True)) > 5


def test_a_rewriting_that_breaks_no_rule_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    places, got = rewritten((r"(\w+) = v_step \* 256\b", r"\1 = 256 * v_step"), monkeypatch)
    assert places
    for a, b in zip(got, by_oracle(), strict=True):
        assert_same_bits(a, b)


def test_another_chunk_changes_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunk is part of the operator: 128 entries a step give other sums."""
    want, real = by_oracle(), Op.trace

    def halved(op: Op, variant: Any) -> Any:
        return parse_program(print_program(real(op, variant)).replace("chunk=256", "chunk=128"))

    with monkeypatch.context() as patched:
        patched.setattr(Op, "trace", halved)
        invocation.traced.cache_clear()
        dispatch.interpret_with(None)  # forgets what is bound
        got = call()
    invocation.traced.cache_clear()
    dispatch.interpret_with(None)
    assert sum(differing(a, b) for a, b in zip(got[:3], want[:3], strict=True)) > 5
    assert_same_bits(call()[0], want[0], "afterwards")
