"""Log-probs of a linear head over a sampler's support: the bits of those of its products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from linear_cases import NEEDS, active_rows, cotangents, head, hidden_gradient, weight_gradient

from rlk import Layout, ops
from rlk.errors import Code, LaunchError
from rlk.ops import Csr
from rlk.ops.support import kept_tokens, words_from
from rlk.runtime.call.dispatch import dispatch
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators.interpreter import interpret

ROWS, DEPTH, V = 24, 40, 301
F32 = torch.float32


@pytest.fixture(params=["oracle", "generated source"])
def runner(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run calls in the oracle or in interpreted source; memory that nobody wrote is NaN, and seen."""
    before = dispatch.interpreter
    torch.use_deterministic_algorithms(True, warn_only=True)
    dispatch.interpret_with(interpret if request.param == "generated source" else None)
    yield request.param
    torch.use_deterministic_algorithms(False)
    dispatch.interpret_with(before)


def csr_of(ids: torch.Tensor) -> Csr:
    """Keep a third of the vocabulary in each row, the id of the row among it."""
    kept = torch.rand(ROWS, V, generator=torch.Generator().manual_seed(3)) < 0.33
    kept[torch.arange(ROWS), ids.clamp(min=0)] = True
    return Csr(torch.tensor([0, *kept.sum(-1).cumsum(0)]), kept.nonzero()[:, 1])


def sampled(hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Return the tokens that a sampler draws from the products, and its support."""
    who = torch.arange(ROWS)
    made = ops.sample(
        ops.matmul(hidden, weight, out_dtype=F32), seed=1, request_id=who, position=who, top_k=40
    )
    return made.token, made.support


@pytest.fixture(params=["threshold", "ids"])
def case(request: pytest.FixtureRequest) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Any]:
    hidden, weight, ids = head((ROWS,), DEPTH, V)
    if request.param == "threshold":
        return hidden, weight, *sampled(hidden, weight)
    return hidden, weight, ids, csr_of(ids)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": torch.linspace(-1, 1, V).bfloat16()},
    "softcap, temperature": {"softcap": 5.0, "temperature": 0.7},
    "mask": {"mask": torch.arange(ROWS) % 3 > 0},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_log_probs_have_the_bits_of_those_of_products(name: str, case: Any, runner: str) -> None:
    hidden, weight, ids, support = case
    options = OPTIONS[name]
    got = ops.linear_logp(hidden, weight, ids, needs=NEEDS, support=support, **options)
    of_logits = options | ({"bias": options["bias"].float()} if "bias" in options else {})
    logits = ops.matmul(hidden, weight, out_dtype=F32)
    want = ops.logp(logits, ids, needs=NEEDS, support=support, **of_logits)
    for each in NEEDS:
        assert_same_bits(getattr(got, each), getattr(want, each), each)
    # the control: the whole vocabulary
    assert differing(got.logp, ops.linear_logp(hidden, weight, ids, **options).logp) > ROWS // 3


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_are_those_of_the_products_over_the_support(name: str, case: Any, runner: str) -> None:
    hidden, weight, ids, support = case
    options, given = OPTIONS[name], cotangents((ROWS,), NEEDS)
    leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    made = ops.linear_logp(*leaves, ids, needs=NEEDS, support=support, **options)
    got = torch.autograd.grad([getattr(made, n) for n in NEEDS], leaves, list(given.values()))
    dz, active = scores_over(support, hidden, weight, ids, given, options)
    want = torch.zeros_like(hidden)
    want[active] = hidden_gradient(dz[active], weight).to(hidden.dtype)
    assert_same_bits(got[0], want, "d hidden")
    assert_same_bits(got[1], weight_gradient(dz[active], hidden[active]).to(weight.dtype), "d weight")
    assert (dz == 0).sum() > ROWS * V // 2


def scores_over(
    support: Any, hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, given: Any, options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rounded gradient of `logp` over the support, and the active rows."""
    logits = ops.matmul(hidden, weight, out_dtype=F32).requires_grad_()
    more = options | ({"bias": options["bias"].float()} if "bias" in options else {})
    made = ops.logp(logits, ids, needs=NEEDS, support=support, **more)
    (found,) = torch.autograd.grad([getattr(made, n) for n in NEEDS], [logits], list(given.values()))
    return found.to(hidden.dtype), active_rows(ids, options)


def test_the_bias_has_the_gradient_of_its_support(case: Any) -> None:
    """Its pieces of the vocabulary are cut at words of a support."""
    hidden, weight, ids, support = case
    bias = OPTIONS["bias"]["bias"].clone().requires_grad_()
    given = cotangents((ROWS,), ("logp",))
    made = ops.linear_logp(hidden, weight, ids, bias=bias, support=support)
    (got,) = torch.autograd.grad(made.logp, bias, given["logp"])
    logits = ops.matmul(hidden, weight, out_dtype=F32).requires_grad_()
    ops.logp(logits, ids, bias=bias.detach().float(), support=support).logp.backward(given["logp"])
    dz = logits.grad.bfloat16()
    want = dz[active_rows(ids, {})].double().sum(0)
    assert (got.double() - want).abs().max() <= 2**-8 * want.abs().max() + 1e-6
    assert ((got == 0) == (want == 0)).all()


def test_kept_logits_and_a_buffer_change_no_bit(case: Any) -> None:
    hidden, weight, ids, support = case
    found = []
    for options in ({}, {"keep_logits": 1 << 30}, {"weight_grad_out": torch.zeros(V, DEPTH)}):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        ops.linear_logp(h, w, ids, support=support, **options).logp.sum().backward()
        found.append((h.grad, options.get("weight_grad_out", w.grad).bfloat16()))
    for other in found[1:]:
        for a, b in zip(other, found[0], strict=True):
            assert_same_bits(a, b)


def test_a_policy_loss_replays_the_support(case: Any) -> None:
    hidden, weight, ids, support = case
    ids = ids.clamp(min=0)
    layout = Layout.packed(torch.tensor([0, 5, ROWS]), tokens=ROWS)
    old, advantages = torch.full((ROWS,), -3.0), torch.tensor([1.0, -0.5])
    got = ops.linear_policy_loss(hidden, weight, ids, old, advantages, layout=layout, support=support)
    logp = ops.linear_logp(hidden, weight, ids, mask=layout.active, support=support).logp
    want = ops.policy_loss(logp, old, advantages, layout=layout)
    assert_same_bits(got.loss, want.loss, "loss")
    assert differing(
        got.loss, ops.linear_policy_loss(hidden, weight, ids, old, advantages, layout=layout).loss
    )


def test_a_compiled_call_has_the_bits_of_an_eager_one() -> None:
    hidden, weight, _ = head((ROWS,), DEPTH, V)
    token, support = sampled(hidden, weight)

    def step(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ops.linear_logp(h, w, token, support=support).logp

    torch._dynamo.reset()
    found = []
    for call in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        made = call(h, w)
        made.sum().backward()
        found.append((made.detach(), h.grad, w.grad))
    for a, b in zip(*found, strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize("start", [0, 1, 31, 32, 33, 64, 190, 271])
def test_the_bits_of_a_shard_begin_at_its_first_token(start: int) -> None:
    """Words of tokens from any one on are those of a support that begins there."""
    kept = torch.rand(ROWS, V, generator=torch.Generator().manual_seed(4)) < 0.5
    count = min(40, V - start)
    bits = torch.arange(32, dtype=torch.int32)

    def unpacked(words: torch.Tensor) -> torch.Tensor:
        return ((words[..., None] >> bits) & 1).flatten(1).bool()

    def words_of(kept: torch.Tensor) -> torch.Tensor:
        csr = Csr(torch.tensor([0, *kept.sum(-1).cumsum(0)]), kept.nonzero()[:, 1])
        return kept_tokens("test", csr, kept.shape[1], torch.zeros(ROWS))["words"]

    whole = words_of(kept)
    assert torch.equal(unpacked(whole)[:, :V], kept)
    assert torch.equal(unpacked(words_from(whole, start, count))[:, :count], kept[:, start : start + count])


def test_bad_supports_are_refused_by_name() -> None:
    hidden, weight, ids = head((ROWS,), DEPTH, V)
    token, support = sampled(hidden, weight)
    for wrong, code in ((3, Code.ARG_TYPE), (ops.Support(*(x[:-1] for x in support)), Code.ARG_SIZE)):
        with pytest.raises(LaunchError) as refused:
            ops.linear_logp(hidden, weight, token, support=wrong)
        assert refused.value.code is code and "support" in str(refused.value)
