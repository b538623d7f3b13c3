"""Gradients of attention are the derivative, and those of a sequence have the same bits in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attention_cases import Batch, batch, of, packed
from attention_gradients import by_sequence, gradient_of, longest, oracle, pulled, wide, widened

from rlk.interp.run import run, run_wide
from rlk.ops.float64 import attention
from rlk.testing.bits import assert_same_bits, differing

SINKS = np.array([[0.5, -2.0, 3.0]], np.float32)
CAPPED = {"softcap": 2.0, "inv_softcap": 0.5}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "window": {"window": 20}, "softcap": CAPPED, "sinks": {"sinks": SINKS},
    "all": {"window": 20, "sinks": SINKS, **CAPPED},
}  # fmt: skip
WHOLE = batch((40, 3, 0, 30), (300, 3, 64, 130))
Found = list[dict[str, Any]]


def ragged(**options: Any) -> Batch:
    """Sequences without queries, without keys, with fewer keys than queries; three heads share keys."""
    return batch((9, 0, 5, 7, 4), (70, 6, 3, 130, 0), group=3, e=24, w=40, **options)


def wanted_of(options: dict[str, Any]) -> frozenset[str]:
    return frozenset({"q", "k", "v"} | ({"sinks"} & options.keys()))


def by_torch(given: dict[str, Any], causal: bool) -> dict[str, Any]:
    """Return the gradients of the float64 formula, by autograd."""
    leaves = {n: torch.tensor(given[n], requires_grad=True) for n in ("q", "k", "v", "sinks") if n in given}
    made = attention.varlen_attention(
        leaves["q"].flatten(1, 2), leaves["k"], leaves["v"],
        torch.tensor([0, *given["end_q"]]), torch.tensor([0, *given["end_k"]]),
        causal=causal, window=given.get("window"), softcap=given.get("softcap"), scale=given["scale"],
        sinks=leaves["sinks"].flatten() if "sinks" in leaves else None,
    )  # fmt: skip
    d_o, d_lse = torch.tensor(given["d_o"]).flatten(1, 2), torch.tensor(given["d_lse"]).flatten(0, 1)
    lse = torch.where(made.lse == -torch.inf, 0.0, made.lse * d_lse)
    ((made.o * d_o).sum() + lse.sum()).backward()
    return {n: x.grad.numpy() for n, x in leaves.items() if x.grad is not None}


# --- what it computes ---


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("option", OPTIONS)
def test_the_wide_oracle_has_the_gradients_of_the_formula(option: str, causal: bool) -> None:
    options = OPTIONS[option]
    if "window" in options and not causal:
        pytest.skip("a window is one of the keys up to a query's own")
    made, given = wide(packed(ragged(**options)), wanted_of(options), causal)
    want = by_torch(given, causal)
    assert wanted_of(options) == want.keys()
    for name, x in want.items():
        np.testing.assert_allclose(made[f"d_{name}"], x, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", ["q", "k", "v", "sinks"])
def test_gradients_are_the_slopes_of_the_wide_oracle(name: str) -> None:
    inputs = packed(ragged(**OPTIONS["all"]))
    made, given = wide(inputs, wanted_of(OPTIONS["all"]))
    direction = np.random.default_rng(3).normal(size=given[name].shape)

    def objective(step: float) -> float:
        moved = {n: x for n, x in given.items() if n in inputs} | {name: given[name] + step * direction}
        got = run_wide(of(inputs), moved, extents=longest(inputs))
        return float((got["o"] * given["d_o"]).sum() + (got["lse"] * given["d_lse"]).sum())

    by_difference = (objective(1e-5) - objective(-1e-5)) / 2e-5
    slope = float((made[f"d_{name}"] * direction).sum())
    assert abs(by_difference - slope) <= 1e-7 * max(1.0, abs(slope))
    assert abs(by_difference - 1.01 * slope) > 1e-3 * abs(slope)  # the control: one in a hundred is seen


@pytest.mark.parametrize("option", OPTIONS)
def test_bits_are_close_to_float64(option: str) -> None:
    """Weights and gradients of scores have 8 bits when they are contracted, and so have o and the results."""
    options = OPTIONS[option]
    inputs = packed(ragged(**options))
    made, (want, _) = oracle(inputs, wanted_of(options), lse=True), wide(inputs, wanted_of(options))
    for name in wanted_of(options):
        scale = np.abs(want[f"d_{name}"]).max()
        np.testing.assert_allclose(widened(made[f"d_{name}"]), want[f"d_{name}"], rtol=0, atol=scale / 64)


def test_who_meets_nobody_has_no_gradient() -> None:
    """Keys without queries, queries before every key, keys beyond a window: zeros, and no negative ones."""
    given = batch((0, 5), (4, 2))
    alone, before = by_sequence(oracle(packed(given)).tensors, given)
    for found in (alone["k"], alone["v"], before["q"][:3]):
        assert found.size and not found.any()
    assert before["q"][4].any() and before["k"].any()
    given = batch((3,), (300,), window=20)
    (found,) = by_sequence(oracle(packed(given)).tensors, given)
    assert not found["k"][:278].any() and not found["v"][:278].any() and found["v"][278:].any()


# --- the same bits ---


def assert_same(got: Found, want: Found) -> None:
    for i, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        for name in ("q", "k", "v"):
            assert_same_bits(mine[name], theirs[name], f"d_{name} of sequence {i}", "bf16")


def moved(got: Found, want: Found) -> dict[str, int]:
    return {n: sum(differing(a[n], b[n]) for a, b in zip(got, want, strict=True)) for n in ("q", "k", "v")}


def found(given: Batch, **more: Any) -> Found:
    return by_sequence(oracle(packed(given), **more).tensors, given)


@pytest.fixture(scope="module")
def training() -> Found:
    return found(WHOLE)


def test_neighbours_and_places_do_not_count(training: Found) -> None:
    for order in ((3, 0), (1,), (2, 1, 3)):
        assert_same(found(WHOLE.only(*order)), [training[i] for i in order])


def test_offsets_of_64_bits_do_not_count(training: Found) -> None:
    assert_same(by_sequence(oracle(packed(WHOLE, np.int64)).tensors, WHOLE), training)


def test_tiles_do_not_count() -> None:
    given = ragged(sinks=SINKS)
    inputs = pulled(packed(given))
    program = gradient_of(inputs, frozenset({"q", "k", "v", "sinks"}))
    want = run(program, inputs, extents=longest(inputs), tile={})
    for size in (1, 3, 17):
        tile = dict.fromkeys(("Q", "J", "H", "G", "B", "T", "X.piece"), size)
        got = run(program, inputs, extents=longest(inputs), tile=tile)
        for name in ("q", "k", "v", "sinks"):
            assert_same_bits(got[f"d_{name}"], want[f"d_{name}"], name, None if name == "sinks" else "bf16")


@pytest.mark.parametrize("count", [1, 17, 33])
def test_a_query_does_not_know_who_asked_before_it(training: Found, count: int) -> None:
    tail = WHOLE.tail(count)
    for mine, theirs in zip(found(tail), training, strict=True):
        assert_same_bits(mine["q"], theirs["q"][max(0, len(theirs["q"]) - count) :], "d_q", "bf16")


def test_a_gradient_alone_has_the_same_bits(training: Found) -> None:
    for name in ("q", "k", "v"):
        made = oracle(packed(WHOLE), frozenset({name}))
        assert [n for n in made.tensors if n.startswith("d_")] == [f"d_{name}"]
        want = np.concatenate([x[name] for x in training])
        assert_same_bits(made[f"d_{name}"], want, name, "bf16")


@pytest.mark.parametrize("chunk", [16, 32, 128])
def test_how_many_go_by_at_once_does_not_count(training: Found, chunk: int) -> None:
    """One accumulator takes all of them, sixteen by sixteen, and zeros leave it as it is."""
    assert_same(found(WHOLE, axis=f"chunk={chunk} leaf=segment"), training)


# --- controls: other orders have other bits ---


LONG = batch((150,), (200,), heads=2, group=4, e=64, w=64, dtype="f16")  # 11 bits of a result show more


def test_restarting_the_accumulator_is_seen() -> None:
    got = moved(found(LONG, axis="chunk=64 piece=128 leaf=piece"), found(LONG))
    assert got["q"] and got["k"] and got["v"]


def test_a_descending_order_is_seen() -> None:
    """Without a mask the order of keys and queries changes nothing but the order of additions."""
    turned = Batch((LONG.q[0][::-1],), (LONG.k[0][::-1],), (LONG.v[0][::-1],), LONG.dtype)
    want = {n: x[::-1] for n, x in found(LONG, causal=False)[0].items()}
    got = moved(found(turned, causal=False), [want])
    assert got["q"] and got["k"] and got["v"]


def test_another_order_of_heads_is_seen() -> None:
    """Heads that share a key are added query by query; sixteen products at once have no order among them."""
    for group, seen in ((4, False), (3, True)):
        given = batch((150,), (150,), heads=2, group=group, e=64, w=64, dtype="f16")
        turned = Batch((given.q[0][:, :, ::-1],), given.k, given.v, given.dtype)
        (want,), (got,) = found(given), found(turned)
        assert_same_bits(got["q"][:, :, ::-1], want["q"], "d_q")
        assert [differing(got[n], want[n]) > 0 for n in ("k", "v")] == [seen, seen]
