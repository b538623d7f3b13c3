"""Laws of the policy losses on the CPU: float64 formulas, ties, infinities, layouts that change no bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlk import Layout, ops
from rlk.errors import Code, LaunchError
from rlk.ops import Loss
from rlk.ops.losses import clip
from rlk.testing.bits import as_bits, assert_same_bits, differing

KL = ("k1", "k2", "k3", "abs", "k1+", "k3+")
LENGTHS = (700, 0, 1100, 3, 650)
WIDTH = 1200
INF = math.inf
Tensors = dict[str, torch.Tensor]


def close(got: torch.Tensor, want: torch.Tensor, rtol: float = 2e-6, atol: float = 1e-6) -> None:
    torch.testing.assert_close(got.detach().double(), want.detach().double(), rtol=rtol, atol=atol)


def estimate(d: torch.Tensor, kl: str) -> torch.Tensor:
    """The KL estimates of Schulman 2020 in float64; a trailing + has the gradient of k2."""
    value = {"k1": -d, "k2": d * d / 2, "k3": torch.expm1(d) - d, "abs": d.abs()}[kl.removesuffix("+")]
    return value.detach() + (d * d / 2 - (d * d / 2).detach()) if kl.endswith("+") else value


# ratio_kl


def logps(shape: tuple[int, ...], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mine = -3 * torch.rand(shape, generator=generator)
    old = mine + 0.3 * torch.randn(shape, generator=generator)
    return mine, old, mine + 0.3 * torch.randn(shape, generator=generator)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kl", KL)
def test_ratio_and_kl_are_their_formulas_with_their_gradients(kl: str, masked: bool) -> None:
    mine, old, ref = logps((400,))
    mask = torch.rand(400) < 0.7 if masked else None
    wide = mine.double().requires_grad_()
    mine.requires_grad_()
    got = ops.ratio_kl(mine, old, ref, kl=kl, mask=mask)
    ratio, value = torch.exp(wide - old.double()), estimate(ref.double() - wide, kl)
    if mask is not None:
        ratio, value = torch.where(mask, ratio, 1.0), torch.where(mask, value, 0.0)
    close(got.ratio, ratio)
    close(got.kl, value)
    a, b = torch.randn(400), torch.randn(400)
    torch.autograd.backward([got.ratio, got.kl], [a, b])
    torch.autograd.backward([ratio, value], [a.double(), b.double()])
    assert mine.grad is not None and wide.grad is not None
    close(mine.grad, wide.grad, 1e-5, 2e-6)
    exact = ops.ratio_kl.reference(mine, old, ref, kl=kl, mask=mask)
    close(exact.ratio, ratio, 1e-12, 1e-12)
    close(exact.kl, value, 1e-12, 1e-12)


@pytest.mark.parametrize("kl", ["k1", "k3"])
def test_a_straight_through_estimate_has_the_value_of_its_name_and_the_gradient_of_k2(kl: str) -> None:
    values, grads = {}, {}
    for name in (kl, f"{kl}+", "k2"):
        mine, old, ref = logps((100,))
        mine.requires_grad_()
        made = ops.ratio_kl(mine, old, ref, kl=name).kl
        made.sum().backward()
        values[name], grads[name] = made, mine.grad
    assert_same_bits(values[f"{kl}+"], values[kl])
    assert_same_bits(grads[f"{kl}+"], grads["k2"])
    assert differing(grads[f"{kl}+"], grads[kl])


def test_k3_keeps_its_digits_near_zero() -> None:
    magnitude = torch.logspace(-8, 1, 4000, dtype=torch.float64).float()
    d = torch.cat((magnitude, -magnitude))
    zero = torch.zeros_like(d)
    got = ops.ratio_kl(zero, zero, d, kl="k3").kl
    w = d.double()
    # the series where expm1(d) - d would cancel in float64 too
    want = torch.where(w.abs() < 1e-3, w * w / 2 * (1 + w / 3 + w * w / 12), torch.expm1(w) - w)
    assert (got >= 0).all()
    assert ((got.double() - want).abs() / want).max() < 4e-7
    naive = torch.exp(d) - d - 1
    assert ((naive.double() - want).abs() / want).max() > 0.5


def test_k3_of_equal_policies_is_zero_with_no_gradient() -> None:
    mine = torch.tensor([-1.5, -0.0, -700.0]).requires_grad_()
    made = ops.ratio_kl(mine, mine.detach(), mine.detach())
    made.kl.sum().backward()
    assert (made.kl == 0).all() and (made.ratio == 1).all() and mine.grad is not None
    assert (mine.grad == 0).all()


@pytest.mark.parametrize("junk", [math.nan, INF, -INF])
def test_masked_tokens_give_one_and_zero_and_no_gradient(junk: float) -> None:
    mine, old, ref = logps((7,))
    mask = torch.tensor([True, False, True, True, False, True, True])

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        lp = given[0].clone().requires_grad_()
        made = ops.ratio_kl(lp, *given[1:], mask=mask)
        torch.autograd.backward(list(made), [torch.full((7,), 2.0), torch.where(mask, 3.0, junk)])
        assert lp.grad is not None
        return [*made, lp.grad]

    want = run(mine, old, ref)
    got = run(*(torch.where(mask, x, junk) for x in (mine, old, ref)))
    for a, b in zip(got, want, strict=True):
        assert_same_bits(a, b)
    assert (got[0][~mask] == 1).all() and (as_bits(got[1][~mask]) == 0).all()
    assert (as_bits(got[2][~mask]) == 0).all()


@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (1, 2, 3), (0,), (2, 0)])
def test_the_tokens_shape_is_kept(shape: tuple[int, ...]) -> None:
    made = ops.ratio_kl(*logps(shape))
    assert made.ratio.shape == shape and made.kl.shape == shape


def test_strided_tokens_have_the_bits_of_contiguous_ones() -> None:
    wide = logps((4, 9))
    got = ops.ratio_kl(*(x[:, 1::2] for x in wide))
    want = ops.ratio_kl(*(x[:, 1::2].contiguous() for x in wide))
    assert_same_bits(got.ratio, want.ratio)
    assert_same_bits(got.kl, want.kl)


# policy_loss

RECORDS: dict[str, Loss | str] = {
    "ppo": "ppo",
    "grpo": "grpo",
    "dual_clip": "dual_clip",
    "asymmetric": Loss(clip(0.1, 0.3)),
    "everything": Loss(clip(dual=2.0), beta=0.2, entropy_coef=0.05),
    **{f"kl {kl}": Loss(beta=0.3, kl=kl) for kl in KL},  # type: ignore[arg-type]
}


def batch(seed: int = 0) -> Tensors:
    """Padded tokens on the right, with every number at the padding drawn too."""
    generator = torch.Generator().manual_seed(seed + 100)
    shape = (len(LENGTHS), WIDTH)
    mine, old, ref = logps(shape, seed)
    return {
        "logp": mine,
        "old_logp": old,
        "ref_logp": ref,
        "entropy": torch.rand(shape, generator=generator),
        "advantages": torch.randn(shape, generator=generator),
        "mask": torch.rand(shape, generator=generator) < 0.8,
    }


def valid() -> torch.Tensor:
    return torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]


def packed(x: torch.Tensor) -> torch.Tensor:
    return x[valid()]


def to_the_right(x: torch.Tensor) -> torch.Tensor:
    """Move every sequence to the end of its row."""
    return torch.stack([row.roll(WIDTH - n) for row, n in zip(x, LENGTHS, strict=True)])


def cu_seqlens() -> torch.Tensor:
    return torch.tensor([0, *LENGTHS]).cumsum(0)


FORMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], Layout]]] = {
    "packed": (packed, lambda mask: Layout.packed(cu_seqlens(), mask=mask)),
    "right": (lambda x: x, lambda mask: Layout.padded(torch.tensor(LENGTHS), WIDTH, mask=mask)),
    "left": (to_the_right, lambda mask: Layout.padded(torch.tensor(LENGTHS), WIDTH, side="left", mask=mask)),
    "one long row": (
        lambda x: torch.cat((packed(x), x.reshape(-1)[:300])),
        lambda mask: Layout.packed(cu_seqlens(), mask=mask, outside="padding"),
    ),
}


def run(form: str, given: Tensors, record: Loss | str, advantages: torch.Tensor | None = None) -> Any:
    """Return a loss, what is reported, and the gradients, all of one form of the batch."""
    move, make = FORMS[form]
    moved = {name: move(x).contiguous().clone() for name, x in given.items()}
    layout = make(moved.pop("mask"))
    a = moved.pop("advantages") if advantages is None else advantages
    moved.pop("advantages", None)
    leaves = {n: moved[n].requires_grad_() for n in ("logp", "entropy")}
    made = ops.policy_loss(**moved, advantages=a, layout=layout, loss=record)
    (1.7 * made.loss).backward()
    return made, {n: x.grad for n, x in leaves.items() if x.grad is not None}, layout


def exact(given: Tensors, record: Loss | str) -> tuple[torch.Tensor, dict[str, torch.Tensor], Tensors]:
    """The token mean of the loss in float64, its metrics and gradients."""
    record = record if isinstance(record, Loss) else ops.LOSSES[record]
    alive = valid() & given["mask"]
    names = ("logp", "old_logp", "ref_logp", "entropy", "advantages")
    lp, old, ref, entropy, a = (given[n].double() for n in names)
    lp.requires_grad_()
    entropy.requires_grad_()
    ratio = torch.exp(lp - old)
    bounds = dict(record.surrogate.numbers)
    plain, clipped = -ratio * a, -ratio.clamp(bounds["least"], bounds["most"]) * a
    term = torch.maximum(plain, clipped)
    if "dual" in bounds:
        term = torch.where(a < 0, torch.minimum(term, -bounds["dual"] * a), term)
    term = term + record.beta * estimate(ref - lp, record.kl) - record.entropy_coef * entropy
    count = alive.sum()
    loss = term[alive].sum() / count
    (1.7 * loss).backward()
    metrics = {
        "active": count,
        "clip_fraction": (clipped > plain)[alive].double().mean(),
        "approx_kl": estimate(old - lp, "k3")[alive].mean(),
        "per_token": torch.where(alive, term, 0.0),
    }
    assert lp.grad is not None
    grads = {"logp": lp.grad} | ({} if entropy.grad is None else {"entropy": entropy.grad})
    return loss, metrics, grads


@pytest.mark.parametrize("name", RECORDS)
def test_a_policy_loss_is_its_formula_with_its_gradients(name: str) -> None:
    given, record = batch(), RECORDS[name]
    made, grads, layout = run("right", given, record)
    loss, metrics, wanted = exact(given, record)
    close(made.loss, loss)
    for metric in ("active", "clip_fraction", "approx_kl"):
        close(made.metrics[metric], metrics[metric])
    close(made.per_token, metrics["per_token"], 1e-5, 2e-6)
    close(grads["logp"], wanted["logp"], 1e-5, 1e-9)
    if getattr(record, "entropy_coef", 0.0):
        close(grads["entropy"], wanted["entropy"], 1e-6, 1e-9)
    else:
        assert "entropy" not in grads
    reference = ops.policy_loss.reference(
        **{n: x for n, x in given.items() if n != "mask"}, layout=layout, loss=record
    )
    close(reference.loss, loss, 1e-12, 1e-12)


@pytest.mark.parametrize("name", RECORDS)
def test_padding_changes_no_bit_of_a_loss(name: str) -> None:
    given, record = batch(1), RECORDS[name]
    made, grads, layout = run("packed", given, record)
    alive = packed(valid() & given["mask"])
    for form in ("right", "left", "one long row"):
        other, others, laid = run(form, given, record)
        assert_same_bits(other.loss, made.loss, form)
        assert layout.digest() == laid.digest()
        for metric, value in made.metrics.items():
            assert_same_bits(other.metrics[metric], value, metric)
        assert_same_bits(other.per_token[laid.active], made.per_token[alive], form)
        for leaf, grad in grads.items():
            assert_same_bits(others[leaf][laid.active], grad[alive], f"{form}: {leaf}")
            assert (as_bits(others[leaf][~laid.active]) == 0).all()


def test_another_order_of_the_sum_has_other_bits() -> None:
    """Control of the law above: sums in the order of memory, and sequences in another order."""
    by_memory, by_sequence = 0, 0
    for seed in range(8):
        given = batch(seed)
        made, _, _ = run("packed", given, "grpo")
        padded, _, _ = run("right", given, "grpo")
        sums = [x.per_token.reshape(-1) for x in (made, padded)]
        chunks = [torch.stack([c.sum() for c in x.split(1024)]).sum() for x in sums]
        by_memory += differing(*chunks)
        turned = {n: x.flip(0) for n, x in given.items()}
        layout = Layout.padded(torch.tensor(LENGTHS).flip(0), WIDTH, mask=turned.pop("mask"))
        turned.pop("entropy")
        by_sequence += differing(ops.policy_loss(**turned, layout=layout, loss="grpo").loss, made.loss)
    assert by_memory and by_sequence


@pytest.mark.parametrize("form", FORMS)
def test_one_advantage_for_a_sequence_is_that_of_its_tokens(form: str) -> None:
    given, one = batch(2), torch.randn(len(LENGTHS))
    given["advantages"] = one[:, None].expand(-1, WIDTH).contiguous()
    made, grads, _ = run(form, given, "grpo")
    other, others, _ = run(form, given, "grpo", advantages=one)
    assert_same_bits(other.loss, made.loss)
    assert_same_bits(others["logp"], grads["logp"])


@pytest.mark.parametrize("junk", [math.nan, INF, -INF])
@pytest.mark.parametrize("form", FORMS)
def test_nothing_of_an_inactive_token_is_seen(form: str, junk: float) -> None:
    record = Loss(clip(dual=3.0), beta=0.1, entropy_coef=0.01)
    given = batch(3)
    alive = valid() & given["mask"]
    made, grads, _ = run(form, given, record)
    spoiled = {n: x if n == "mask" else torch.where(alive, x, junk) for n, x in given.items()}
    other, others, _ = run(form, spoiled, record)
    assert_same_bits(other.loss, made.loss)
    for metric, value in made.metrics.items():
        assert_same_bits(other.metrics[metric], value, metric)
    assert_same_bits(other.per_token, made.per_token)
    for leaf, grad in grads.items():
        assert_same_bits(others[leaf], grad)


@pytest.mark.parametrize("tokens", [0, 5, 1500])
def test_no_active_token_is_no_loss(tokens: int) -> None:
    lp = torch.zeros(tokens, requires_grad=True)
    entropy = torch.full((tokens,), math.nan, requires_grad=True)
    layout = Layout.packed(torch.tensor([0, tokens]), mask=torch.zeros(tokens, dtype=torch.bool))
    record = Loss(beta=0.1, entropy_coef=0.1)
    nan = torch.full((tokens,), math.nan)
    made = ops.policy_loss(lp, nan, torch.ones(1), layout=layout, loss=record, ref_logp=nan, entropy=entropy)
    made.loss.backward()
    assert int(as_bits(made.loss)) == 0 and int(made.metrics["active"]) == 0
    assert float(made.metrics["clip_fraction"]) == 0 and int(as_bits(made.metrics["approx_kl"])) == 0
    assert lp.grad is not None and entropy.grad is not None
    assert (as_bits(lp.grad) == 0).all() and (as_bits(entropy.grad) == 0).all()


def of_tokens(delta: list[float], advantages: list[float], loss: Loss | str = "ppo") -> Any:
    lp = torch.tensor(delta, requires_grad=True)
    n = len(delta)
    layout = Layout.packed(torch.arange(2) * n, tokens=n)
    given = torch.tensor(advantages)
    made = ops.policy_loss(lp, torch.zeros(n), given, layout=layout, loss=loss)
    made.loss.backward()
    return made, lp.grad


def test_an_infinite_ratio_without_advantage_counts_for_nothing() -> None:
    made, grad = of_tokens([200.0, 0.0, 200.0, -200.0], [0.0, 1.0, -0.0, 0.0])
    assert made.loss.item() == -0.25
    assert grad.tolist() == [0.0, -0.25, 0.0, 0.0]
    assert (made.per_token[[0, 2, 3]] == 0).all()


def test_a_delta_within_the_bounds_moves_what_the_clipped_branch_does_not_clip() -> None:
    logs = [math.log(r) for r in (0.5, 0.9, 1.1, 1.5)]
    _, grad = of_tokens(logs, [-4.0] * 4, Loss(clip(0.2, 0.2, delta=1.05)))
    assert grad.tolist() == pytest.approx([0.0, 0.9, 1.1, 0.0])  # -A r / 4 where it moves
    _, grad = of_tokens(logs, [4.0] * 4, Loss(clip(0.2, 0.2, delta=1.05)))
    assert grad.tolist() == pytest.approx([-0.5, -0.9, 0.0, 0.0])


@pytest.mark.parametrize("record", ["ppo", Loss(clip(dual=3.0))])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_log_prob_that_is_nan_is_not_clipped_away(record: Loss | str, advantage: float) -> None:
    made, grad = of_tokens([math.nan, 0.5], [advantage, advantage], record)
    assert made.loss.isnan() and made.per_token.isnan().tolist() == [True, False]
    assert grad.isnan().tolist() == [True, False]


def test_the_gradient_flows_on_ties() -> None:
    _, grad = of_tokens([0.0, 0.0], [2.0, -3.0], Loss(clip(0.0, 0.0)))
    assert grad.tolist() == [-1.0, 1.5]


def test_a_clipped_token_has_no_gradient_and_the_others_do() -> None:
    made, grad = of_tokens([1.0, 1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0])
    assert [g != 0 for g in grad.tolist()] == [False, True, True, False]
    close(made.per_token, torch.tensor([-1.2, math.e, -1 / math.e, 0.8], dtype=torch.float64))
    assert float(made.metrics["clip_fraction"]) == 0.5


def test_dual_clip_bounds_the_loss_of_negative_advantages_only() -> None:
    record = Loss(clip(dual=3.0))
    made, grad = of_tokens([2.0, 0.5, 2.0], [-1.0, -1.0, 1.0], record)
    close(made.per_token, torch.tensor([3.0, math.exp(0.5), -1.2], dtype=torch.float64))
    assert [g != 0 for g in grad.tolist()] == [False, True, False]
    plain, _ = of_tokens([2.0, 0.5, 2.0], [-1.0, -1.0, 1.0])
    close(plain.per_token[0], torch.tensor(math.exp(2.0), dtype=torch.float64))


def test_weights_of_zero_need_no_tensor_and_change_no_bit() -> None:
    given = batch(4)
    alone, _, _ = run("right", given, Loss(beta=0.0, entropy_coef=0.0))
    layout = Layout.padded(torch.tensor(LENGTHS), WIDTH, mask=given["mask"])
    bare = ops.policy_loss(given["logp"], given["old_logp"], given["advantages"], layout=layout)
    assert_same_bits(alone.loss, bare.loss)


@pytest.mark.parametrize("name", ["ref_logp", "entropy"])
def test_a_weight_needs_its_tensor(name: str) -> None:
    lp = torch.zeros(3)
    record = replace(Loss(), **{"beta" if name == "ref_logp" else "entropy_coef": 0.1})
    with pytest.raises(LaunchError) as caught:
        ops.policy_loss(lp, lp, lp, layout=Layout.packed(torch.tensor([0, 3]), tokens=3), loss=record)
    assert caught.value.code is Code.ARG_MISSING and name in str(caught.value)


def test_reports_are_detached() -> None:
    made, _, _ = run("packed", batch(), "ppo")
    assert made.loss.requires_grad and made.loss.shape == ()
    assert not any(x.requires_grad for x in (made.per_token, *made.metrics.values()))
    assert made.metrics["active"].dtype is torch.int32


# layouts


def test_a_layout_orders_active_tokens_by_sequence() -> None:
    mask = torch.tensor([[True, False, True], [True, True, True]])
    left = Layout.padded(torch.tensor([2, 3]), 3, side="left", mask=mask)
    assert left.active.tolist() == [[False, False, True], [True, True, True]]
    assert left.order.tolist() == [2, 3, 4, 5, 0, 1]
    right = Layout.padded(torch.tensor([2, 3]), 3, mask=mask)
    assert right.order.tolist() == [0, 3, 4, 5, 1, 2]
    assert left.sequence.tolist() == [[0, 0, 0], [1, 1, 1]] and left.tokens == 6


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_packed_layout_knows_empty_sequences_and_a_tail(dtype: torch.dtype) -> None:
    layout = Layout.packed(torch.tensor([0, 2, 2, 4], dtype=dtype), tokens=7, outside="padding")
    assert layout.active.tolist() == [True] * 4 + [False] * 3
    assert layout.sequence[layout.active].tolist() == [0, 0, 2, 2]
    assert layout.sequences == 3 and layout.shape == (7,)


def test_a_digest_tells_which_tokens_count() -> None:
    packed = Layout.packed(torch.tensor([0, 2, 5]), tokens=5)
    assert packed.digest() == Layout.padded(torch.tensor([2, 3]), 4).digest()
    assert packed.digest() == Layout.padded(torch.tensor([2, 3]), 9, side="left").digest()
    others = [
        Layout.packed(torch.tensor([0, 3, 5]), tokens=5),
        Layout.packed(torch.tensor([0, 2, 5, 5]), tokens=5),
        Layout.packed(torch.tensor([0, 2, 5]), mask=torch.tensor([True, True, True, True, False])),
    ]
    assert len({packed.digest(), *(layout.digest() for layout in others)}) == 4


TWO = torch.tensor([0, 2])
WRONG_LAYOUTS: dict[str, tuple[Callable[[], object], Code, str]] = {
    "no count": (lambda: Layout.packed(TWO), Code.ARG_MISSING, "tokens"),
    "floats": (lambda: Layout.packed(TWO.float(), tokens=2), Code.ARG_DTYPE, "torch.float32"),
    "a list": (lambda: Layout.packed([0, 2], tokens=2), Code.ARG_TYPE, "list"),  # type: ignore[arg-type]
    "two dims": (lambda: Layout.packed(TWO[None], tokens=2), Code.ARG_RANK, "(1, 2)"),
    "a mask of floats": (lambda: Layout.packed(TWO, mask=torch.ones(2)), Code.ARG_DTYPE, "mask"),
    "a long mask": (
        lambda: Layout.packed(TWO, mask=torch.ones(3, dtype=torch.bool), tokens=2),
        Code.ARG_SHAPE,
        "mask",
    ),
    "a mask of [L]": (
        lambda: Layout.padded(TWO, 3, mask=torch.ones(3, dtype=torch.bool)),
        Code.ARG_SHAPE,
        "mask has shape (3,), expected (2, 3)",
    ),
    "a side": (lambda: Layout.padded(TWO, 3, side="top"), Code.ARG_VALUE, "side"),  # type: ignore[arg-type]
    "lengths of floats": (lambda: Layout.padded(TWO.float(), 3), Code.ARG_DTYPE, "torch.float32"),
    "lengths of two dims": (lambda: Layout.padded(TWO[None], 3), Code.ARG_RANK, "(1, 2)"),
}


@pytest.mark.parametrize("name", WRONG_LAYOUTS)
def test_a_wrong_layout_is_named(name: str) -> None:
    make, code, word = WRONG_LAYOUTS[name]
    with pytest.raises(LaunchError) as caught:
        make()
    assert caught.value.code is code and word in str(caught.value)
