"""Laws of the optimal token baseline: float64 formulas, places in a group, layouts, groups without others."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from rlk import Layout, ops
from rlk.errors import Code, LaunchError
from rlk.interp.run import run
from rlk.ops.advantages import _members, _places
from rlk.passes.pipeline import canonical
from rlk.specs.advantage import token_baseline as spec
from rlk.testing.bits import as_bits, assert_same_bits, differing

LENGTHS = (37, 0, 1, 64, 9, 12, 12, 5, 30, 0, 22, 8)
WIDTH = 70
GROUPS = torch.tensor([0, 5, 5, 6, 10, 12])
VALID = torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]
EDGES = torch.tensor([0, *LENGTHS]).cumsum(0)
Tensors = dict[str, torch.Tensor]
OPTIONS = [
    {"align": align, "tail": tail, "eps": eps}
    for align, tail, eps in itertools.product(("position", "active"), ("zero", "group"), (1e-8, 0.3))
]


def drawn(seed: int = 0) -> tuple[Tensors, torch.Tensor]:
    """Numbers of tokens of padded rows, and which of them count; the squares are those of a distribution."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), WIDTH)
    logp = -3 * torch.rand(shape, generator=generator)
    rest = (1 - logp.exp()) ** 2 * torch.rand(shape, generator=generator)
    given = {
        "rewards": torch.randn(shape, generator=generator),
        "logp": logp,
        "sum_pi_squared": (2 * logp).exp() + rest,
        "rollout_weights": 0.5 + torch.rand(shape, generator=generator),
    }
    return given, torch.rand(shape, generator=generator) < 0.7


def plain(seed: int = 0) -> tuple[Tensors, torch.Tensor]:
    given, mask = drawn(seed)
    del given["rollout_weights"]
    return given, mask


def padded(mask: torch.Tensor | None = None, **options: Any) -> Layout:
    return Layout.padded(torch.tensor(LENGTHS), WIDTH, mask=mask, **options)


def made(given: Tensors, layout: Layout, groups: torch.Tensor = GROUPS, **options: Any) -> Any:
    return ops.optimal_token_baseline(**given, groups=groups, layout=layout, **options)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: " ".join(map(str, o.values())))
def test_advantages_are_their_formula(options: dict[str, Any], weighted: bool) -> None:
    given, mask = drawn() if weighted else plain()
    found = made(given, padded(mask), **options)
    want = ops.optimal_token_baseline.reference(**given, groups=GROUPS, layout=padded(mask), **options)
    for got, exact in zip(found, want, strict=True):
        close(got, exact)
        assert (as_bits(got[~(mask & VALID)]) == 0).all()


def test_a_weight_is_the_squared_gradient_of_a_log_prob() -> None:
    """|onehot - p|^2 by autograd, with the sum of squares from `logp`: W of a token alone in its sequence."""
    logits = (2 * torch.randn(6, 50, generator=torch.Generator().manual_seed(1))).requires_grad_()
    ids = torch.arange(6)
    chosen = logits.log_softmax(-1)[ids, ids]
    (slope,) = torch.autograd.grad(chosen.sum(), logits)
    found = ops.logp(logits.detach(), ids, needs=("logp", "lse", "lse2"))
    squares = (found.lse2 - 2 * found.lse).exp()
    rewards = torch.randn(6, generator=torch.Generator().manual_seed(2))
    layout = Layout.packed(torch.arange(7), tokens=6)
    got = ops.optimal_token_baseline(
        rewards, found.logp, squares, torch.tensor([0, 6]), layout=layout, eps=0.0
    ).advantages
    weight = slope.double().square().sum(-1)
    close(got, rewards.double() - (weight * rewards.double()).sum() / weight.sum())


def test_a_weight_is_not_below_0() -> None:
    """Rounding of the sum of squares may leave less than 0 of a token that is nearly certain."""
    logp, rewards = torch.full((2,), -1e-7), torch.tensor([1.0, 2.0])
    squares = torch.tensor([1.0 - 2.0**-21, 1.0])
    assert (1 - 2 * logp.exp() + squares)[0] < 0
    layout = Layout.packed(torch.tensor([0, 1, 2]), tokens=2)
    found = ops.optimal_token_baseline(rewards, logp, squares, torch.tensor([0, 2]), layout=layout, eps=0.0)
    assert found.advantages.tolist() == [-1.0, 0.0]  # the baseline is the return of the second alone


# places in a group


def test_both_alignments_agree_where_all_tokens_count() -> None:
    given, mask = drawn(1)
    one, other = (made(given, padded(), align=align) for align in ("position", "active"))
    assert_same_bits(one.advantages, other.advantages)
    holed = [made(given, padded(mask), align=align).advantages for align in ("position", "active")]
    assert differing(*holed) > 50


def test_active_tokens_stand_at_the_places_of_a_batch_without_holes() -> None:
    given, mask = drawn(2)
    alive = mask & VALID
    counts = alive.sum(1)
    dense = {n: torch.cat([row[some] for row, some in zip(x, alive, strict=True)]) for n, x in given.items()}
    layout = Layout.packed(torch.cat((counts.new_zeros(1), counts.cumsum(0))), tokens=int(counts.sum()))
    assert_same_bits(
        made(given, padded(mask), align="active").advantages[alive], made(dense, layout).advantages
    )


@pytest.mark.parametrize("align", ["position", "active"])
def test_layouts_change_no_bit(align: str) -> None:
    given, mask = drawn(3)
    want = made(given, padded(mask), align=align)
    packed = Layout.packed(EDGES, mask=mask[VALID])
    right = [
        torch.stack([r.roll(WIDTH - n, 0) for r, n in zip(x, LENGTHS, strict=True)]) for x in given.values()
    ]
    turned = torch.stack([r.roll(WIDTH - n, 0) for r, n in zip(mask, LENGTHS, strict=True)])
    left = padded(turned, side="left")
    alive = mask & VALID
    for found, layout in (
        (made({n: x[VALID] for n, x in given.items()}, packed, align=align), packed),
        (made(dict(zip(given, right, strict=True)), left, align=align), left),
    ):
        for got, exact in zip(found, want, strict=True):
            assert_same_bits(got[layout.active], exact[alive])


@pytest.mark.parametrize("junk", [math.nan, math.inf, -1e30])
def test_nothing_of_an_inactive_token_is_seen(junk: float) -> None:
    given, mask = drawn(4)
    layout = padded(mask)
    want = made(given, layout)
    spoiled = {n: torch.where(layout.active, x, junk) for n, x in given.items()}
    for got, exact in zip(made(spoiled, layout), want, strict=True):
        assert_same_bits(got, exact)


@pytest.mark.parametrize("align", ["position", "active"])
def test_a_group_does_not_know_its_neighbours(align: str) -> None:
    given, mask = drawn(5)
    whole = made(given, padded(mask), align=align).advantages
    for begin, end in itertools.pairwise(GROUPS.tolist()):
        rows = slice(begin, end)
        layout = Layout.padded(torch.tensor(LENGTHS[rows], dtype=torch.int64), WIDTH, mask=mask[rows])
        some = {n: x[rows] for n, x in given.items()}
        alone = made(some, layout, torch.tensor([0, end - begin]), align=align)
        assert_same_bits(alone.advantages, whole[rows])


def test_a_batch_is_its_group() -> None:
    """The control: other sequences in the group, or the same in another order of sums, are seen."""
    given, _ = drawn(5)
    whole = made(given, padded()).advantages
    assert differing(made(given, padded(), torch.tensor([0, 12])).advantages[:5], whole[:5])
    many = {n: x[:1].expand(21, -1) + 0.01 * torch.arange(21)[:, None] for n, x in drawn(6)[0].items()}
    layout = Layout.padded(torch.full((21,), WIDTH), WIDTH)
    turned = made({n: x.flip(0).contiguous() for n, x in many.items()}, layout, torch.tensor([0, 21]))
    straight = made({n: x.contiguous() for n, x in many.items()}, layout, torch.tensor([0, 21]))
    assert differing(turned.advantages.flip(0).contiguous(), straight.advantages)


# sequences without others


def test_a_sequence_without_others_keeps_its_returns() -> None:
    given, mask = drawn(7)
    layout = padded(mask)
    groups = torch.arange(13)
    for tail in ("zero", "group"):
        found = made(given, layout, groups, tail=tail)
        assert_same_bits(found.advantages, found.returns)
    empty = mask.clone()
    empty[6:10] = False  # group [6, 10) has one sequence with tokens left
    empty[8] = True
    for tail, align in itertools.product(("zero", "group"), ("position", "active")):
        found = made(given, padded(empty), tail=tail, align=align)
        assert_same_bits(found.advantages[6:10], found.returns[6:10])
        assert differing(found.advantages[:5], found.returns[:5])


def test_tokens_beyond_all_others_keep_their_returns() -> None:
    """Sequence 3 of the first group has 64 tokens, the next one 37; equal lengths have no tail."""
    given, _ = plain(8)
    zero, group = (made(given, padded(), tail=tail) for tail in ("zero", "group"))
    assert_same_bits(zero.advantages[3, 37:64], zero.returns[3, 37:64])
    assert_same_bits(zero.advantages[3, :37], group.advantages[3, :37])
    assert group.advantages[3, 37:64].abs().max() < 1e-5 < zero.returns[3, 37:64].abs().min()
    pair = {n: x[5:7] for n, x in given.items()}
    layout = Layout.padded(torch.tensor([12, 12]), WIDTH)
    found = made(pair, layout, torch.tensor([0, 2]))
    assert differing(found.advantages[:, :12], found.returns[:, :12]) == 24


@pytest.mark.parametrize("tokens", [0, 6])
def test_no_active_token_is_no_advantage(tokens: int) -> None:
    layout = Layout.packed(torch.tensor([0, tokens]), mask=torch.zeros(tokens, dtype=torch.bool))
    nothing = torch.full((tokens,), math.nan)
    found = ops.optimal_token_baseline(nothing, nothing, nothing, torch.tensor([0, 1]), layout=layout)
    assert found.advantages.shape == (tokens,) and not as_bits(found.advantages).any()
    empty = Layout.packed(torch.tensor([0]), tokens=0)
    none = torch.zeros(0)
    assert ops.optimal_token_baseline(none, none, none, torch.tensor([0]), layout=empty).returns.shape == (0,)


# digits


def test_equal_returns_have_no_advantage() -> None:
    given, _ = plain(9)
    given["rewards"] = torch.zeros_like(given["rewards"])
    last = torch.tensor(LENGTHS)[:, None] - 1
    given["rewards"][torch.arange(WIDTH) == last] = 1000.1
    found = made(given, padded(), eps=0.0, tail="group").advantages
    assert (as_bits(found[:5]) == 0).all() and (as_bits(found[6:]) == 0).all()


def test_the_plain_formula_would_leave_what_rounding_leaves() -> None:
    """The control: sum W G / sum W of equal G in f32 is not G."""
    weight = torch.rand(13, generator=torch.Generator().manual_seed(3))
    returns = torch.full((13,), 1000.1)
    assert (returns - (weight * returns).sum() / weight.sum()).abs().max() > 1e-5


def test_certain_tokens_alone_have_no_baseline() -> None:
    """W = 0 everywhere: 0 over eps, and without eps no baseline."""
    ones, rewards = torch.ones(4), torch.tensor([1.0, 2.0, 3.0, 4.0])
    layout = Layout.packed(torch.tensor([0, 2, 4]), tokens=4)
    for eps in (0.0, 1e-8):
        found = ops.optimal_token_baseline(
            rewards, 0 * ones, ones, torch.tensor([0, 2]), layout=layout, eps=eps
        )
        assert_same_bits(found.advantages, found.returns)
        assert found.returns.tolist() == [3.0, 2.0, 7.0, 4.0]


def test_an_infinite_reward_is_nan_where_it_is_compared() -> None:
    given, _ = plain(10)
    given["rewards"][0, 36] = math.inf
    found = made(given, padded()).advantages
    assert found[3, :37].isnan().all() and found[3, 37:64].isfinite().all() and found[5:].isfinite().all()


# offsets

WRONG = {
    "one short": (0, 5, 11),
    "one late": (1, 5, 12),
    "descending": (0, 8, 5, 12),
    "negative": (-1, 5, 12),
}


@pytest.mark.parametrize("edges", WRONG.values(), ids=WRONG)
def test_offsets_that_miss_a_sequence_are_refused_at_the_call(edges: tuple[int, ...]) -> None:
    with pytest.raises(LaunchError, match="ascending offsets from 0 to 12") as caught:
        made(plain()[0], padded(), torch.tensor(edges))
    assert caught.value.diagnostics[0].code is Code.ARG_VALUE


@pytest.mark.parametrize("edges", [GROUPS.tolist(), *WRONG.values()], ids=["right", *WRONG])
def test_a_kernel_reports_offsets_that_miss(edges: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device nothing waits for offsets: the kernel sets the error word, and all advantages are NaN."""
    from rlk.ops import advantages

    monkeypatch.setattr(advantages, "on_the_host", lambda x: False)
    given, mask = plain()
    layout = padded(mask)
    found = made(given, layout)
    tables = {
        **_members("otb", torch.tensor(edges), layout),
        **_places(layout, "position"),
        "active": layout.active.reshape(-1),
        "sequence": layout.sequence.reshape(-1),
        "returns": found.returns.reshape(-1),
        "path": given["logp"].exp().reshape(-1),
    }
    inputs = {name: x.numpy() for name, x in tables.items()}
    reported = run(canonical(spec.trace(spec.default_variant())), {**inputs, "eps": 1e-8})
    wrong = edges != GROUPS.tolist()
    assert bool(reported.errors) == wrong
    alive = layout.active.reshape(-1).numpy()
    assert np.isnan(reported["advantages"][alive]).all() == wrong
    assert not reported["advantages"][~alive].any()


X = torch.zeros(len(LENGTHS), WIDTH)
BASE: dict[str, Any] = {
    "rewards": X,
    "logp": X,
    "sum_pi_squared": X + 1,
    "groups": GROUPS,
    "layout": padded(),
}
REFUSED: dict[str, tuple[dict[str, Any], Code, str]] = {
    "no layout": ({"layout": VALID}, Code.ARG_TYPE, "layout"),
    "other tokens": ({"logp": X[:, 1:]}, Code.LAYOUT_MISMATCH, "logp has"),
    "halves": ({"sum_pi_squared": X.half()}, Code.ARG_DTYPE, "sum_pi_squared"),
    "weights of halves": ({"rollout_weights": X.half()}, Code.ARG_DTYPE, "rollout_weights"),
    "groups of floats": ({"groups": GROUPS.float()}, Code.ARG_DTYPE, "groups"),
    "no offsets": ({"groups": GROUPS[:0]}, Code.ARG_VALUE, "groups"),
    "another alignment": ({"align": "time"}, Code.ARG_VALUE, "position, active"),
    "another tail": ({"tail": "own"}, Code.ARG_VALUE, "zero, group"),
    "eps below 0": ({"eps": -1.0}, Code.ARG_VALUE, "eps"),
    "no tensor": ({"rewards": 1.0}, Code.ARG_TYPE, "rewards"),
    "a gradient": ({"logp": X.clone().requires_grad_()}, Code.NOT_DIFFERENTIABLE, "logp"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named(name: str) -> None:
    changed, code, text = REFUSED[name]
    with pytest.raises(LaunchError, match=text) as caught:
        ops.optimal_token_baseline(**{**BASE, **changed})
    assert caught.value.diagnostics[0].code is code
    assert str(caught.value).startswith("optimal_token_baseline"), str(caught.value)


def test_a_compiled_call_has_the_bits_of_an_eager_one() -> None:
    given, mask = drawn(11)
    layout = padded(mask)
    compiled = torch.compile(
        lambda groups, **x: ops.optimal_token_baseline(**x, groups=groups, layout=layout, align="active"),
        fullgraph=True, backend="aot_eager",
    )  # fmt: skip
    for got, want in zip(compiled(GROUPS, **given), made(given, layout, align="active"), strict=True):
        assert_same_bits(got, want)
