"""Laws of the critic's loss and the entropy bonus: formulas with their gradients, layouts, infinities."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rlk import Layout, ops
from rlk.errors import Code, LaunchError
from rlk.testing.bits import as_bits, assert_same_bits, differing

LENGTHS = torch.tensor([700, 0, 1100, 3, 650])
WIDTH = 1200
VALID = torch.arange(WIDTH) < LENGTHS[:, None]
Tensors = dict[str, torch.Tensor]
F32 = torch.float32


def drawn(seed: int = 0) -> tuple[Tensors, torch.Tensor]:
    """Values near those of the rollout, returns, entropies, and which tokens of padded rows count."""
    generator = torch.Generator().manual_seed(seed)
    old, returns, moved, entropy = (torch.randn(5, WIDTH, generator=generator) for _ in range(4))
    mask = torch.rand(5, WIDTH, generator=generator) < 0.7
    return {"old": old, "returns": returns, "values": old + 0.3 * moved, "entropy": entropy.abs()}, mask


def close(got: torch.Tensor, want: torch.Tensor, rtol: float = 2e-6, atol: float = 1e-6) -> None:
    torch.testing.assert_close(got.detach().double(), want.detach().double(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("clip", [None, 0.2, 10.0])
def test_a_value_loss_is_its_formula_with_its_gradient(clip: float | None) -> None:
    """verl `compute_value_loss`, token mean: 0.5 max of both squared errors."""
    given, mask = drawn()
    layout = Layout.padded(LENGTHS, WIDTH, mask=mask)
    options: dict[str, Any] = {} if clip is None else {"old_values": given["old"], "clip": clip}
    leaf, wide = given["values"].clone().requires_grad_(), given["values"].double().requires_grad_()
    made = ops.value_loss(leaf, given["returns"], layout=layout, **options)
    target, old = given["returns"].double(), given["old"].double()
    plain = (wide - target) ** 2
    held = plain.detach() * 0 if clip is None else (torch.clamp(wide, old - clip, old + clip) - target) ** 2
    term = 0.5 * torch.maximum(plain, held)
    loss = term[layout.active].mean()
    close(made.loss, loss)
    close(made.per_token, torch.where(layout.active, term, 0.0))
    (1.7 * made.loss).backward()
    (1.7 * loss).backward()
    assert leaf.grad is not None and wide.grad is not None
    close(leaf.grad, wide.grad, 1e-5, 1e-9)
    assert int(made.metrics["active"]) == int(layout.active.sum())
    if clip is not None:
        close(made.metrics["clip_fraction"], (held > plain)[layout.active].double().mean())
    exact = ops.value_loss.reference(given["values"], given["returns"], layout=layout, **options)
    close(exact.loss, loss, 1e-12, 1e-12)
    close(exact.per_token, made.per_token)


AGGREGATIONS = [
    (aggregation, sequences, normalizer)
    for aggregation in ("token_mean", "sequence_mean", "sequence_sum", "sum")
    for sequences in ("active", "all")
    for normalizer in (None, 7.0)
]


def averaged(
    term: torch.Tensor, counts: torch.Tensor, aggregation: str, sequences: str, by: float | None
) -> torch.Tensor:
    """Return what verl's `agg_loss` gives; sequences: those with tokens, or all."""
    term = torch.where(counts, term, 0.0)
    lengths = counts.sum(-1)
    number = (lengths > 0).sum() if sequences == "active" else len(lengths)
    made = {
        "token_mean": term.sum() / counts.sum(),
        "sequence_mean": (term.sum(-1) / lengths.clamp(min=1)).sum() / number,
        "sequence_sum": term.sum() / number,
        "sum": term.sum(),
    }[aggregation]
    return made if by is None else made / by


@pytest.mark.parametrize(("aggregation", "sequences", "normalizer"), AGGREGATIONS)
def test_an_aggregation_is_its_formula_with_its_gradient(
    aggregation: str, sequences: str, normalizer: float | None
) -> None:
    given, mask = drawn(4)
    layout = Layout.padded(LENGTHS, WIDTH, mask=mask)
    options: dict[str, Any] = {"aggregation": aggregation, "sequences": sequences, "normalizer": normalizer}
    by_token = aggregation in ("token_mean", "sum")
    weights = torch.where(given["old"] > 0.5, 0.0, given["returns"]) if by_token else None
    calls: dict[str, Any] = {
        "value": (ops.value_loss, (given["returns"],), {}, layout.active),
        "nll": (ops.nll_loss, (), {"weights": weights}, layout.active),
    }
    for name, (op, rest, more, counts) in calls.items():
        leaf, wide = (given["values"].to(t, copy=True).requires_grad_() for t in (F32, torch.float64))
        made = op(leaf, *rest, layout=layout, **options, **more)
        if name == "value":
            term = 0.5 * (wide - given["returns"].double()) ** 2
        else:
            term = -wide if weights is None else -weights.double() * wide
            counts = counts if weights is None else counts & (weights != 0)
        want = averaged(term, counts, aggregation, sequences, normalizer)
        close(made.loss, want, 1e-5)
        (1.7 * made.loss).backward()
        (1.7 * want).backward()
        assert leaf.grad is not None and wide.grad is not None
        close(leaf.grad, wide.grad, 1e-5, 1e-9)
        exact = op.reference(given["values"], *rest, layout=layout, **options, **more)
        close(exact.loss, want, 1e-12, 1e-12)
        close(exact.per_token, made.per_token)
        assert int(made.metrics["active"]) == int(counts.sum()) == int(exact.metrics["active"])


def test_the_likelihood_of_nothing_is_no_loss() -> None:
    layout = Layout.packed(torch.tensor([0, 4]), tokens=4)
    row = torch.full((4,), math.nan)
    made = ops.nll_loss(row, layout=layout, weights=torch.zeros(4))
    assert int(as_bits(made.loss)) == 0 and not made.per_token.any()


def test_an_entropy_bonus_is_its_formula_with_its_gradient() -> None:
    given, mask = drawn(1)
    layout = Layout.padded(LENGTHS, WIDTH, mask=mask)
    leaf = given["entropy"].clone().requires_grad_()
    made = ops.entropy_bonus(leaf, layout=layout, coef=0.01)
    mean = given["entropy"].double()[layout.active].mean()
    close(made.entropy, mean)
    close(made.loss, -0.01 * mean, atol=1e-9)
    (1.7 * made.loss).backward()
    assert leaf.grad is not None
    close(leaf.grad, torch.where(layout.active, -0.017 / layout.active.sum(), 0.0), atol=1e-12)
    exact = ops.entropy_bonus.reference(given["entropy"], layout=layout, coef=0.01)
    close(exact.loss, -0.01 * mean, 1e-12, 1e-12)


def run(given: Tensors, layout: Layout) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return what does not depend on the shape of tokens, and what does, of both terms."""
    leaves = [given[n].clone().requires_grad_() for n in ("values", "entropy")]
    value = ops.value_loss(leaves[0], given["returns"], layout=layout, old_values=given["old"])
    bonus = ops.entropy_bonus(leaves[1], layout=layout, coef=0.5)
    nll = ops.nll_loss(leaves[0], layout=layout, weights=given["returns"])
    mean = ops.value_loss(leaves[0], given["returns"], layout=layout, aggregation="sequence_mean")
    (value.loss + bonus.loss + nll.loss + mean.loss).backward()
    of_all = [value.loss, nll.loss, mean.loss, *value.metrics.values(), bonus.loss, bonus.entropy]
    return of_all, [value.per_token, nll.per_token, *(x.grad for x in leaves if x.grad is not None)]


FORMS = {
    "packed": (
        lambda x: x[VALID],
        lambda m: Layout.packed(torch.cat((LENGTHS[:1] * 0, LENGTHS.cumsum(0))), mask=m),
    ),
    "left": (
        lambda x: torch.stack([row.roll(WIDTH - int(n)) for row, n in zip(x, LENGTHS, strict=True)]),
        lambda m: Layout.padded(LENGTHS, WIDTH, side="left", mask=m),
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("junk", [0.0, math.nan, math.inf])
def test_padding_changes_no_bit(form: str, junk: float) -> None:
    given, mask = drawn(2)
    layout = Layout.padded(LENGTHS, WIDTH, mask=mask)
    of_all, of_tokens = run(given, layout)
    move, lay = FORMS[form]
    there = lay(move(mask))
    spoiled = {n: torch.where(there.active, move(x), junk) for n, x in given.items()}
    others, other_tokens = run(spoiled, there)
    for a, b in zip(others, of_all, strict=True):
        assert_same_bits(a, b, form)
    for a, b in zip(other_tokens, of_tokens, strict=True):
        assert_same_bits(a[there.active], b[layout.active], form)
        assert (as_bits(a[~there.active]) == 0).all()


def test_another_order_of_the_sum_has_other_bits() -> None:
    """The control: the same tokens, the sequences in another order."""
    found = 0
    for seed in range(4):
        given, mask = drawn(seed)
        one, _ = run(given, Layout.padded(LENGTHS, WIDTH, mask=mask))
        turned = {n: x.flip(0) for n, x in given.items()}
        two, _ = run(turned, Layout.padded(LENGTHS.flip(0), WIDTH, mask=mask.flip(0)))
        found += differing(one[0], two[0]) + differing(one[-1], two[-1])
    assert found


def test_a_value_that_moved_too_far_has_no_slope_where_clipping_costs_more() -> None:
    """v0 = 0, clip 0.2: values beyond the clip on the side of the return, on the other side, and inside."""
    values = torch.tensor([0.5, 0.5, 0.1, -0.5]).requires_grad_()
    returns = torch.tensor([1.0, -1.0, 1.0, -1.0])
    layout = Layout.packed(torch.tensor([0, 4]), tokens=4)
    made = ops.value_loss(values, returns, layout=layout, old_values=torch.zeros(4), clip=0.2)
    made.loss.backward()
    torch.testing.assert_close(made.per_token, torch.tensor([0.32, 1.125, 0.405, 0.32]))
    assert values.grad is not None
    torch.testing.assert_close(values.grad, torch.tensor([0.0, 1.5, -0.9, 0.0]) / 4)
    assert made.metrics["clip_fraction"] == 0.5


@pytest.mark.parametrize("tokens", [0, 5])
def test_no_active_token_is_no_loss(tokens: int) -> None:
    layout = Layout.packed(torch.tensor([0, tokens]), mask=torch.zeros(tokens, dtype=torch.bool))
    nan = torch.full((tokens,), math.nan)
    of_all, of_tokens = run(dict.fromkeys(("values", "returns", "old", "entropy"), nan), layout)
    assert all((as_bits(x) == 0).all() for x in (*of_all, *of_tokens))


def test_a_value_that_is_nan_is_not_clipped_away() -> None:
    layout = Layout.packed(torch.tensor([0, 2]), tokens=2)
    values = torch.tensor([math.nan, 1.0])
    assert ops.value_loss(values, torch.zeros(2), layout=layout, old_values=torch.zeros(2)).loss.isnan()


def test_an_old_value_that_is_nan_is_no_clip() -> None:
    """The maximum of an error and of NaN is NaN, in the loss and in the gradient, of that token alone."""
    layout = Layout.packed(torch.tensor([0, 2]), tokens=2)
    values = torch.tensor([1.0, 1.0], requires_grad=True)
    old = torch.tensor([math.nan, 1.0])
    made = ops.value_loss(values, torch.zeros(2), layout=layout, old_values=old)
    made.loss.backward()
    want = ops.value_loss.reference(values.detach(), torch.zeros(2), layout=layout, old_values=old)
    assert made.loss.isnan() and made.per_token.isnan().tolist() == want.per_token.isnan().tolist() == [
        True,
        False,
    ]
    assert values.grad is not None and values.grad.isnan().tolist() == [True, False]
    assert float(made.metrics["clip_fraction"]) == 0


ROW, TWO = torch.zeros(2), Layout.packed(torch.tensor([0, 2]), tokens=2)
REFUSED = {
    "no layout": (lambda: ops.value_loss(ROW, ROW, layout=None), Code.ARG_TYPE, "layout"),  # type: ignore[arg-type]
    "one too many": (
        lambda: ops.value_loss(torch.zeros(3), ROW, layout=TWO), Code.LAYOUT_MISMATCH, "values has"
    ),
    "halves": (lambda: ops.value_loss(ROW, ROW.half(), layout=TWO), Code.ARG_DTYPE, "returns"),
    "a clip of nothing": (
        lambda: ops.value_loss(ROW, ROW, layout=TWO, old_values=ROW, clip=0.0), Code.ARG_VALUE, "clip"
    ),
    "a coefficient that is waited for": (
        lambda: ops.entropy_bonus(ROW, layout=TWO, coef=ROW[0]), Code.ARG_TYPE, "coef"  # type: ignore[arg-type]
    ),
    "a gradient of returns": (
        lambda: ops.value_loss(ROW, torch.zeros(2, requires_grad=True), layout=TWO),
        Code.NOT_DIFFERENTIABLE, "returns",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named(name: str) -> None:
    attempt, code, text = REFUSED[name]
    with pytest.raises(LaunchError, match=text) as caught:
        attempt()
    assert caught.value.diagnostics[0].code is code
