"""Composed operators: a policy loss of a linear head is that of its log-probs, bit for bit, in any layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from loss_cases import RECORDS as EVERY

import rlk
from rlk import Layout, ops
from rlk.errors import Code, LaunchError, RlkError
from rlk.ops import Loss
from rlk.ops.losses import clip
from rlk.specs.linear_logp import linear_logp as linear_spec
from rlk.testing.bits import as_bits, assert_same_bits, differing

D, V = 48, 2100
LENGTHS, WIDTH = (17, 0, 31, 9), 33  # more tokens than a dot adds at once
TOKENS = sum(LENGTHS)
BF16 = torch.bfloat16
WRT = linear_spec.gradient.wrt if linear_spec.gradient is not None else ()
Tensors = dict[str, torch.Tensor]

RECORDS: dict[str, Loss | str] = {
    "ppo": "ppo",
    "grpo": "grpo",
    "entropy": Loss(clip(dual=3.0), beta=0.1, entropy_coef=0.05),
    "weighted": Loss(weighted=True, beta=0.1, entropy_coef=0.05),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "softcap, scale, portable": {"softcap": 20.0, "logit_scale": 1.5, "math": "portable"},
}


def batch(seed: int = 0, dtype: torch.dtype = BF16) -> Tensors:
    """Padded tokens on the right, with every number at the padding drawn too; log-probs near the policy's."""
    generator = torch.Generator().manual_seed(seed)
    tokens = (len(LENGTHS), WIDTH)
    hidden = torch.randn(*tokens, D, generator=generator).to(dtype)
    weight = (0.3 * torch.randn(V, D, generator=generator)).to(dtype)
    ids = torch.randint(V, tokens, generator=generator)
    near = ops.linear_logp(hidden, weight, ids).logp
    return {
        "hidden": hidden,
        "weight": weight,
        "ids": ids,
        "old_logp": near + 0.2 * torch.randn(tokens, generator=generator),
        "ref_logp": near + 0.2 * torch.randn(tokens, generator=generator),
        "advantages": torch.randn(len(LENGTHS), generator=generator),
        "mask": torch.rand(tokens, generator=generator) < 0.8,
        "token_weights": (2 * torch.randn(tokens, generator=generator)).round() / 2,
    }


def valid() -> torch.Tensor:
    return torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]


def to_the_right(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([row.roll(WIDTH - n, 0) for row, n in zip(x, LENGTHS, strict=True)])


Move = Callable[[torch.Tensor], torch.Tensor]
FORMS: dict[str, tuple[Move, Callable[[torch.Tensor], Layout]]] = {
    "packed": (
        lambda x: x[valid()],
        lambda mask: Layout.packed(torch.tensor([0, *LENGTHS]).cumsum(0), mask=mask),
    ),
    "right": (lambda x: x, lambda mask: Layout.padded(torch.tensor(LENGTHS), WIDTH, mask=mask)),
    "left": (to_the_right, lambda mask: Layout.padded(torch.tensor(LENGTHS), WIDTH, side="left", mask=mask)),
}


def formed(form: str, given: Tensors) -> tuple[dict[str, Any], Layout]:
    """Return the arguments of a call in one form of the batch."""
    move, make = FORMS[form]
    whole = ("weight", "advantages")
    moved = {n: x if n in whole else move(x).contiguous() for n, x in given.items()}
    layout = make(moved.pop("mask"))
    return {**moved, "layout": layout}, layout


def parts(arguments: dict[str, Any], record: Loss | str, **options: Any) -> Any:
    """The same loss in two calls."""
    rest = dict(arguments)
    layout, head = rest.pop("layout"), [rest.pop(n) for n in ("hidden", "weight", "ids")]
    masked = {"mask": layout.active, "needs": ("logp", "entropy"), **options}
    found = ops.linear_logp(*head, **masked)
    return ops.policy_loss(found.logp, **rest, layout=layout, loss=record, entropy=found.entropy)


def assert_same(got: Any, want: Any) -> None:
    assert_same_bits(got.loss, want.loss, "loss")
    assert_same_bits(got.per_token, want.per_token, "per_token")
    for name, value in want.metrics.items():
        assert_same_bits(got.metrics[name], value, name)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("form", ["packed", "right"])
@pytest.mark.parametrize("name", RECORDS)
def test_a_linear_policy_loss_has_the_bits_of_its_parts(name: str, form: str, option: str) -> None:
    arguments, layout = formed(form, batch())
    got = ops.linear_policy_loss(**arguments, loss=RECORDS[name], **OPTIONS[option])
    counted = layout.active & (arguments["token_weights"] != 0) if name == "weighted" else layout.active
    assert got.per_token.shape == layout.shape and int(got.metrics["active"]) == int(counted.sum())
    assert_same(got, parts(arguments, RECORDS[name], **OPTIONS[option]))


@cache
def small_head() -> Tensors:
    given = batch(8)
    few = {"hidden": given["hidden"][..., :16], "weight": given["weight"][:40, :16], "ids": given["ids"] % 40}
    rollout = given["old_logp"] + 0.1 * (given["ref_logp"] - given["old_logp"])
    return {**given, **few, "rollout_logp": rollout}


@pytest.mark.parametrize("name", EVERY)
def test_every_loss_has_the_bits_of_its_parts(name: str) -> None:
    """Of a small head: loss, what is reported, and both gradients."""
    found = []
    for call in (ops.linear_policy_loss, parts):
        arguments, _ = formed("right", small_head())
        leaf = leaves(arguments)
        made = call(**arguments, loss=EVERY[name]) if call is not parts else parts(arguments, EVERY[name])
        (1.7 * made.loss).backward()
        found.append((made, [x.grad for x in leaf.values()]))
    (got, got_grads), (want, want_grads) = found
    assert_same(got, want)
    for a, b in zip(got_grads, want_grads, strict=True):
        assert a is not None and b is not None
        assert_same_bits(a, b)


def test_weights_of_tokens_are_read_by_a_weighted_loss_alone() -> None:
    arguments, _ = formed("right", batch(12))
    moved = {**arguments, "token_weights": arguments["token_weights"] + 0.5}
    for name, changes in (("grpo", False), ("weighted", True)):
        one, other = (ops.linear_policy_loss(**a, loss=RECORDS[name]).loss for a in (arguments, moved))
        assert bool(differing(one, other)) == changes


def test_a_loss_that_reads_the_rollout_asks_for_it() -> None:
    arguments, _ = formed("packed", batch())
    with pytest.raises(LaunchError, match="linear_policy_loss: rollout_logp is required"):
        ops.linear_policy_loss(**arguments, loss="slime/tis")


def test_a_bias_and_a_temperature_of_each_row_reach_the_head() -> None:
    arguments, layout = formed("right", batch(1, torch.float16))
    options = {
        "bias": torch.randn(V).half(),
        "temperature": torch.linspace(0.5, 2.0, 4 * WIDTH).view(4, WIDTH),
    }
    got = ops.linear_policy_loss(**arguments, loss="grpo", **options)
    assert_same(got, parts(arguments, "grpo", **options))
    assert differing(got.loss, ops.linear_policy_loss(**arguments, loss="grpo").loss)


def test_logits_rounded_to_16_bits_are_seen() -> None:
    """The control: the same loss of the log-probs of rounded logits."""
    arguments, layout = formed("right", batch())
    logits = ops.matmul(arguments["hidden"], arguments["weight"])
    found = ops.logp(logits, arguments["ids"], mask=layout.active)
    rest = {n: arguments[n] for n in ("old_logp", "advantages", "ref_logp", "layout")}
    rounded = ops.policy_loss(found.logp, **rest, loss="grpo")
    got = ops.linear_policy_loss(**arguments, loss="grpo")
    assert differing(got.per_token, rounded.per_token) > 10


@pytest.mark.parametrize("name", RECORDS)
def test_padding_changes_no_bit(name: str) -> None:
    given = batch(2)
    packed, laid = formed("packed", given)
    want = ops.linear_policy_loss(**packed, loss=RECORDS[name])
    for form in ("right", "left"):
        arguments, layout = formed(form, given)
        got = ops.linear_policy_loss(**arguments, loss=RECORDS[name])
        assert_same_bits(got.loss, want.loss, form)
        assert_same_bits(got.per_token[layout.active], want.per_token[laid.active], form)


@pytest.mark.parametrize("junk", [math.nan, math.inf])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("record", ["entropy", "weighted"])
def test_nothing_of_an_inactive_token_is_seen(record: str, form: str, junk: float) -> None:
    arguments, layout = formed(form, batch(3))
    want = ops.linear_policy_loss(**arguments, loss=RECORDS[record])
    spoiled = dict(arguments)
    for name in ("hidden", "old_logp", "ref_logp", "token_weights"):
        x = arguments[name]
        alive = layout.active[..., None] if x.dim() > layout.active.dim() else layout.active
        spoiled[name] = torch.where(alive, x, junk)
    spoiled["ids"] = torch.where(layout.active, arguments["ids"], -100)
    got = ops.linear_policy_loss(**spoiled, loss=RECORDS[record])
    assert_same(got, want)
    assert (as_bits(got.per_token[~layout.active]) == 0).all()


@pytest.mark.parametrize("record", ["ppo", "grpo"])
def test_a_token_that_counts_needs_an_id(record: str) -> None:
    """The layout alone says which tokens count: -100 takes none out silently."""
    arguments, layout = formed("packed", batch(4))
    first = int(layout.active.nonzero()[0])
    arguments["ids"][first] = -100
    made = ops.linear_policy_loss(**arguments, loss=record)
    assert made.loss.isnan() and int(made.per_token.isnan().sum()) == 1 and made.per_token[first].isnan()


@pytest.mark.parametrize("tokens", [0, 5])
def test_no_active_token_is_no_loss(tokens: int) -> None:
    layout = Layout.packed(torch.tensor([0, tokens]), mask=torch.zeros(tokens, dtype=torch.bool))
    hidden = torch.full((tokens, D), math.nan, dtype=BF16)
    nothing = torch.full((tokens,), math.nan)
    made = ops.linear_policy_loss(
        hidden, batch()["weight"], torch.zeros(tokens, dtype=torch.int64), nothing, torch.ones(1),
        layout=layout, loss="grpo", ref_logp=nothing,
    )  # fmt: skip
    assert int(as_bits(made.loss)) == 0 and int(made.metrics["active"]) == 0


@pytest.mark.parametrize("name", RECORDS)
def test_the_loss_is_near_float64(name: str) -> None:
    arguments, _ = formed("right", batch(5))
    got = ops.linear_policy_loss(**arguments, loss=RECORDS[name], temperature=0.8)
    want = ops.linear_policy_loss.reference(**arguments, loss=RECORDS[name], temperature=0.8)
    torch.testing.assert_close(got.loss.double(), want.loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.per_token.double(), want.per_token, rtol=1e-4, atol=1e-4)


def test_the_entropy_is_computed_only_where_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlk.ops import composite

    asked: list[tuple[str, ...]] = []
    real = composite.linear_logp
    monkeypatch.setattr(composite, "linear_logp", lambda *a, **o: asked.append(o["needs"]) or real(*a, **o))
    arguments, _ = formed("packed", batch())
    for record in RECORDS.values():
        ops.linear_policy_loss(**arguments, loss=record)
    assert asked == [("logp",), ("logp",), ("logp", "entropy"), ("logp", "entropy")]


# what it says of itself


def test_the_id_is_that_of_both_parts_in_order() -> None:
    arguments, layout = formed("packed", batch())
    decision = rlk.explain(ops.linear_policy_loss, **arguments, loss="grpo")
    head = {n: arguments[n] for n in ("hidden", "weight", "ids")}
    first = ops.linear_logp.explain(**head, mask=layout.active)
    rest = {n: arguments[n] for n in ("old_logp", "advantages", "ref_logp", "layout")}
    second = ops.policy_loss.explain(arguments["old_logp"], **rest, loss="grpo")
    assert decision == rlk.runtime.prefetch.joined([first, second])
    assert decision.numerics_id not in (first.numerics_id, second.numerics_id)
    assert decision.numerics_id != rlk.runtime.prefetch.joined([second, first]).numerics_id
    assert [name for name, _ in decision.tiers] == [name for name, _ in second.tiers]


def test_the_id_follows_the_model_of_exp2() -> None:
    by_model = [ops.linear_policy_loss.numerics_id("cpu", math=m) for m in (None, "portable", "sm90")]
    assert by_model[0] == by_model[1] != by_model[2]


def test_a_call_that_adds_to_a_buffer_is_explained_as_one_that_does_not() -> None:
    arguments, _ = formed("packed", batch())
    buffer = torch.zeros(V, D)
    for op, given in ((ops.linear_policy_loss, arguments), (ops.linear_logp, batch())):
        head = {n: given[n] for n in ("hidden", "weight", "ids")} if op is ops.linear_logp else given
        assert rlk.explain(op, **head, weight_grad_out=buffer) == rlk.explain(op, **head)


def test_a_call_is_explained_without_running(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlk.runtime.call import oracle

    arguments, _ = formed("packed", batch())
    monkeypatch.setattr(oracle, "evaluate", None)
    assert "loss: exact" in str(ops.linear_policy_loss.explain(**arguments))


def test_a_part_that_is_pinned_leaves_nothing_exact() -> None:
    from dataclasses import replace

    from rlk.ir.numerics import Tier

    exact = [ops.linear_logp.explain("cpu"), ops.policy_loss.explain("cpu")]
    pinned = replace(exact[0], tiers=(("logp", Tier.PINNED), ("lse", Tier.EXACT)))
    joined = rlk.runtime.prefetch.joined
    assert {tier for _, tier in joined(exact).tiers} == {Tier.EXACT}
    assert {tier for _, tier in joined([pinned, exact[1]]).tiers} == {Tier.PINNED}


# refusals

WRONG: dict[str, tuple[dict[str, Any], Code, str]] = {
    "no tensor": ({"hidden": [1.0]}, Code.ARG_TYPE, "hidden"),
    "old log-probs that are no tensor": ({"old_logp": 0.0}, Code.ARG_TYPE, "old_logp"),
    "no layout": ({"layout": None}, Code.ARG_TYPE, "layout"),
    "an unknown loss": ({"loss": "pp0"}, Code.ARG_VALUE, "loss"),
    "no reference": ({"loss": "grpo", "ref_logp": None}, Code.ARG_MISSING, "ref_logp"),
    "no weights": ({"loss": RECORDS["weighted"], "token_weights": None}, Code.ARG_MISSING, "token_weights"),
    "weights of other tokens": (
        {"loss": RECORDS["weighted"], "token_weights": torch.zeros(3)}, Code.LAYOUT_MISMATCH, "token_weights"
    ),
    "weights of bf16": (
        {"loss": RECORDS["weighted"], "token_weights": torch.zeros(TOKENS).to(BF16)}, Code.ARG_DTYPE,
        "token_weights",
    ),
    "hidden states of other tokens": ({"hidden": torch.zeros(3, D).to(BF16)}, Code.LAYOUT_MISMATCH, "hidden"),
    "ids of other tokens": ({"ids": torch.zeros(3, dtype=torch.int64)}, Code.LAYOUT_MISMATCH, "ids"),
    "old log-probs of other tokens": ({"old_logp": torch.zeros(3)}, Code.LAYOUT_MISMATCH, "old_logp"),
    "too many advantages": ({"advantages": torch.zeros(9)}, Code.LAYOUT_MISMATCH, "or (4,)"),
    "old log-probs of bf16": ({"old_logp": torch.zeros(TOKENS).to(BF16)}, Code.ARG_DTYPE, "old_logp"),
    "advantages elsewhere": ({"advantages": torch.zeros(4, device="meta")}, Code.ARG_DEVICE, "advantages"),
    "a weight of another depth": ({"weight": torch.zeros(V, D + 1).to(BF16)}, Code.ARG_SIZE, "weight"),
    "a weight of f32": ({"weight": torch.zeros(V, D)}, Code.ARG_DTYPE, "weight"),
    "a temperature of 0": ({"temperature": 0.0}, Code.ARG_VALUE, "temperature"),
    "a softcap below 0": ({"softcap": -1.0}, Code.ARG_VALUE, "softcap"),
    "old log-probs with a gradient": (
        {"old_logp": torch.zeros(TOKENS, requires_grad=True)}, Code.NOT_DIFFERENTIABLE, "for old_logp"
    ),
    "a temperature with a gradient": (
        {"temperature": torch.ones(TOKENS, requires_grad=True)}, Code.NOT_DIFFERENTIABLE, "hidden, weight"
    ),
    "a model of another machine": ({"math": "exact"}, Code.ARG_VALUE, "math"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_by_name_and_nothing_runs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlk.runtime.call import oracle

    changed, code, word = WRONG[name]
    arguments, _ = formed("packed", batch())
    monkeypatch.setattr(oracle, "evaluate", None)
    with pytest.raises(LaunchError) as refused:
        ops.linear_policy_loss(**{**arguments, **changed})
    assert refused.value.code is code and word in str(refused.value), str(refused.value)
    if name != "a model of another machine":
        assert str(refused.value).startswith("linear_policy_loss"), str(refused.value)


def test_a_layout_elsewhere_is_named() -> None:
    arguments, _ = formed("packed", batch())
    arguments["layout"] = Layout.packed(torch.tensor([0, TOKENS], device="meta"), tokens=TOKENS)
    arguments["advantages"] = torch.zeros(1)
    with pytest.raises(RlkError, match="layout.active is on meta"):
        ops.linear_policy_loss(**arguments)


# gradients


def leaves(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Make hidden and weight leaves of the call."""
    for name in ("hidden", "weight"):
        arguments[name] = arguments[name].detach().clone().requires_grad_()
    return {name: arguments[name] for name in ("hidden", "weight")}


def gradients(call: Callable[..., Any], arguments: dict[str, Any], **options: Any) -> dict[str, torch.Tensor]:
    """Return the gradients of 1.7 times a loss."""
    found = leaves(arguments)
    (1.7 * call(**arguments, **options).loss).backward()
    return {name: x.grad for name, x in found.items() if x.grad is not None}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", RECORDS)
def test_gradients_are_near_float64(name: str, option: str) -> None:
    options = {"loss": RECORDS[name], **OPTIONS[option]}
    got = gradients(ops.linear_policy_loss, formed("right", batch(6))[0], **options)
    want = gradients(ops.linear_policy_loss.reference, formed("right", batch(6))[0], **options)
    for leaf, grad in got.items():
        exact = want[leaf].double()
        assert grad.dtype is BF16 and float((grad.double() - exact).norm() / exact.norm()) < 8e-3, leaf


@pytest.mark.skipif("bias" not in WRT, reason="linear_logp is not differentiable in its bias yet")
def test_the_gradient_of_a_bias_is_near_float64() -> None:
    found = []
    for call in (ops.linear_policy_loss, ops.linear_policy_loss.reference):
        bias = torch.linspace(-1.0, 1.0, V).bfloat16().requires_grad_()
        gradients(call, formed("right", batch(6))[0], loss="grpo", bias=bias)
        assert bias.grad is not None
        found.append(bias.grad.double())
    assert float((found[0] - found[1]).norm() / found[1].norm()) < 8e-3


@pytest.mark.parametrize("name", RECORDS)
def test_gradients_have_the_bits_of_the_parts(name: str) -> None:
    got = gradients(ops.linear_policy_loss, formed("packed", batch(7))[0], loss=RECORDS[name])
    arguments, _ = formed("packed", batch(7))
    found = leaves(arguments)
    (1.7 * parts(arguments, RECORDS[name]).loss).backward()
    want = {leaf: x.grad for leaf, x in found.items()}
    for leaf, grad in got.items():
        assert_same_bits(grad, want[leaf], leaf)


def test_kept_logits_change_no_bit() -> None:
    want = gradients(ops.linear_policy_loss, formed("right", batch(7))[0], loss="grpo")
    got = gradients(ops.linear_policy_loss, formed("right", batch(7))[0], loss="grpo", keep_logits=1 << 30)
    for leaf, grad in want.items():
        assert_same_bits(got[leaf], grad, leaf)


def test_a_buffer_takes_the_gradient_of_the_weight() -> None:
    arguments, _ = formed("right", batch(7))
    want = gradients(ops.linear_policy_loss, dict(arguments), loss="grpo")
    buffer = torch.zeros(V, D)
    got = gradients(ops.linear_policy_loss, arguments, loss="grpo", weight_grad_out=buffer)
    assert set(got) == {"hidden"}
    assert_same_bits(got["hidden"], want["hidden"])
    assert_same_bits(buffer.bfloat16(), want["weight"])


@pytest.mark.parametrize("name", ["grpo", "entropy"])
def test_padding_changes_no_bit_of_a_gradient(name: str) -> None:
    given = batch(8)
    packed, laid = formed("packed", given)
    want = gradients(ops.linear_policy_loss, packed, loss=RECORDS[name])
    for form in ("right", "left"):
        arguments, layout = formed(form, given)
        got = gradients(ops.linear_policy_loss, arguments, loss=RECORDS[name])
        assert_same_bits(got["weight"], want["weight"], form)
        assert_same_bits(got["hidden"][layout.active], want["hidden"][laid.active], form)
        assert (as_bits(got["hidden"][~layout.active]) == 0).all()


def test_another_order_of_tokens_is_seen_by_the_weight() -> None:
    """The control of the law above: sequences in another order sum dW in another order."""
    given = batch(8)
    want = gradients(ops.linear_policy_loss, formed("right", given)[0], loss="grpo")
    turned = {n: x if n == "weight" else x.flip(0) for n, x in given.items()}
    layout = Layout.padded(torch.tensor(LENGTHS).flip(0), WIDTH, mask=turned.pop("mask"))
    got = gradients(ops.linear_policy_loss, {**turned, "layout": layout}, loss="grpo")
    assert differing(got["weight"], want["weight"])


@pytest.mark.parametrize("form", FORMS)
def test_an_inactive_token_gives_no_gradient(form: str) -> None:
    arguments, layout = formed(form, batch(9))
    want = gradients(ops.linear_policy_loss, dict(arguments), loss="grpo")
    spoiled = {**arguments, "hidden": torch.where(layout.active[..., None], arguments["hidden"], math.nan)}
    got = gradients(ops.linear_policy_loss, spoiled, loss="grpo")
    for leaf, grad in want.items():
        assert_same_bits(got[leaf], grad, leaf)


def test_a_frozen_weight_costs_no_gradient() -> None:
    arguments, _ = formed("packed", batch(9))
    want = gradients(ops.linear_policy_loss, dict(arguments), loss="grpo")
    arguments["hidden"].requires_grad_()
    (1.7 * ops.linear_policy_loss(**arguments, loss="grpo").loss).backward()
    assert_same_bits(arguments["hidden"].grad, want["hidden"])
    assert arguments["weight"].grad is None


def test_a_compiled_loss_has_the_bits_of_an_eager_one() -> None:
    arguments, _ = formed("packed", batch(10))
    compiled = torch.compile(
        lambda **given: ops.linear_policy_loss(**given), fullgraph=True, backend="aot_eager"
    )
    assert_same(compiled(**arguments, loss="grpo"), ops.linear_policy_loss(**arguments, loss="grpo"))


@pytest.mark.parametrize("form", ["packed", "right"])
def test_generated_source_has_the_bits_of_the_oracle(form: str) -> None:
    pytest.importorskip("triton")
    from rlk.runtime.call.dispatch import dispatch
    from rlk.testing.simulators.interpreter import interpret

    options, before = {"loss": RECORDS["entropy"], "math": "sm90"}, dispatch.interpreter
    made, slopes = [], []
    try:
        for interpreter in (None, interpret):
            dispatch.interpret_with(interpreter)
            arguments, _ = formed(form, batch(11))
            made.append(ops.linear_policy_loss(**arguments, **options))
            slopes.append(gradients(ops.linear_policy_loss, arguments, **options))
    finally:
        dispatch.interpret_with(before)
    assert_same(made[1], made[0])
    for leaf, grad in slopes[0].items():
        assert_same_bits(slopes[1][leaf], grad, leaf)
