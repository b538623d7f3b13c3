"""The gradient of a linear head: near float64, with the bits of its definition, and sums over active rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from linear_cases import (
    NEEDS,
    TOKENS,
    Grads,
    active_rows,
    ascending,
    cotangents,
    gradients,
    head,
    hidden_gradient,
    options_of,
    pairwise,
    reference,
    rounded,
    scores_gradient,
    weight_gradient,
)

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.ir.nodes import Program, Role
from rlk.lang.op import Variant
from rlk.ops.float64.operators import logp as in_float64
from rlk.passes.pipeline import canonical
from rlk.runtime.binding.invocation import Invocation, Run, Tensors, traced
from rlk.runtime.call import dispatch as runtime
from rlk.runtime.call.dispatch import dispatch
from rlk.specs.linear_logp import linear_logp
from rlk.testing.bits import assert_same_bits, differing

ROWS, V = (2, 7), 301
OPTIONS = options_of(ROWS, V, torch.bfloat16)
SUBSETS = [s for n in (1, 2, 3) for s in itertools.combinations(NEEDS, n)]


def assert_same(got: Grads, want: Grads) -> None:
    assert got.keys() == want.keys()
    for name in want:
        assert_same_bits(got[name], want[name], name)


# --- near float64 ---


Judged = dict[str, tuple[torch.Tensor, torch.Tensor]]


def exact(
    hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, given: Grads, **options: Any
) -> Judged:
    """Return both gradients in float64, and for each element the sum of the sizes of its terms."""
    h, w = hidden.double().requires_grad_(), weight.double().requires_grad_()
    z = h @ w.T
    made = in_float64(z, ids, needs=tuple(given), **options)
    outputs = [getattr(made, name) for name in given]
    d_h, d_w, dz = torch.autograd.grad(outputs, [h, w, z], [g.double() for g in given.values()])
    sizes = dz.abs()
    flat, rows = sizes.reshape(-1, len(weight)), hidden.double().abs().reshape(-1, hidden.shape[-1])
    return {"hidden": (d_h, sizes @ w.detach().abs()), "weight": (d_w, flat.T @ rows)}


def assert_near(got: Grads, want: Judged, unit: float) -> None:
    """unit: half a step of the 16-bit type: terms are rounded to it once, and so are their sums."""
    for name, (value, terms) in want.items():
        off = (got[name].double() - value).abs()
        assert (off <= unit * (value.abs() + terms) * 1.01 + 1e-5).all(), (name, off.max())
        assert off.max() < 0.05 * value.abs().max(), name


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_near_float64(name: str) -> None:
    given, options = cotangents(ROWS, ("logp", "entropy")), OPTIONS[name]
    tensors = head(ROWS, vocabulary=V, ignored=options.get("ignore_index", -100))
    assert_near(gradients(*tensors, given, **options), exact(*tensors, given, **options), 2.0**-8)


@pytest.mark.parametrize("subset", SUBSETS, ids=" ".join)
def test_every_set_of_cotangents_is_near_float64(subset: tuple[str, ...]) -> None:
    given, options = cotangents(ROWS, subset), OPTIONS["everything"]
    tensors = head(ROWS, vocabulary=V, ignored=options["ignore_index"])
    assert_near(gradients(*tensors, given, **options), exact(*tensors, given, **options), 2.0**-8)


def test_a_wrong_sign_of_a_cotangent_is_far_from_float64() -> None:
    """The control."""
    tensors, given = head(ROWS, vocabulary=V), cotangents(ROWS, ("logp", "lse"))
    wrong = {**given, "lse": -given["lse"]}
    with pytest.raises(AssertionError):
        assert_near(gradients(*tensors, wrong), exact(*tensors, given), 2.0**-8)


# --- bits of the definition ---


@pytest.mark.parametrize("math", ["portable", "sm90"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPTIONS)
def test_both_gradients_have_the_bits_of_their_definition(name: str, dtype: torch.dtype, math: str) -> None:
    options = {**options_of(ROWS, V, dtype)[name], "math": math}
    tensors, given = head(ROWS, vocabulary=V, dtype=dtype), cotangents(ROWS, ("logp", "entropy"))
    assert_same(gradients(*tensors, given, **options), reference(*tensors, given, **options))


@pytest.mark.parametrize("subset", SUBSETS, ids=" ".join)
def test_every_set_of_cotangents_has_the_bits_of_its_definition(subset: tuple[str, ...]) -> None:
    tensors, given = head(ROWS, vocabulary=V), cotangents(ROWS, subset)
    got = gradients(*tensors, given, **OPTIONS["everything"])
    assert_same(got, reference(*tensors, given, **OPTIONS["everything"]))


SIZES = [(1, 40, 301), (7, 16, 1), (7, 33, 3), (5, 1, 9), (300, 64, 1001), (40, 72, 1024)]
LONG = [(TOKENS + 40, 5, 11), (2 * TOKENS + 1, 3, 2)]


@pytest.mark.parametrize(("rows", "depth", "vocabulary"), [*SIZES, *LONG])
def test_any_size_has_the_bits_of_the_definition(rows: int, depth: int, vocabulary: int) -> None:
    tensors, given = head((rows,), depth, vocabulary), cotangents((rows,))
    assert_same(gradients(*tensors, given), reference(*tensors, given))


def test_no_active_row_gives_zeros() -> None:
    hidden, weight, ids = head(ROWS)
    for options in ({"mask": torch.zeros(ROWS, dtype=torch.bool)}, {"ignore_index": 3}):
        nobody = torch.full_like(ids, 3) if "ignore_index" in options else ids
        got = gradients(hidden, weight, nobody, cotangents(ROWS), **options)
        assert_same(got, {"hidden": torch.zeros_like(hidden), "weight": torch.zeros_like(weight)})
    none = gradients(hidden[:0], weight, ids[:0], cotangents((0, 7)))
    assert_same(none, {"hidden": hidden[:0], "weight": torch.zeros_like(weight)})


def test_an_id_outside_the_vocabulary_keeps_the_definition() -> None:
    hidden, weight, ids = head(ROWS)
    ids[0, 3], ids[1, 2] = V, -5
    given = cotangents(ROWS)
    assert_same(gradients(hidden, weight, ids, given), reference(hidden, weight, ids, given))


# --- sums and neighbours ---


def test_a_row_of_d_hidden_does_not_know_its_neighbours() -> None:
    rows = 14
    hidden, weight, ids = head((rows,))
    given = cotangents((rows,), ("logp", "entropy"))

    def of(chosen: torch.Tensor) -> torch.Tensor:
        some = {name: g[chosen] for name, g in given.items()}
        return gradients(hidden[chosen], weight, ids[chosen], some)["hidden"]

    together = of(torch.arange(rows))
    for chosen in (*torch.arange(rows).split(1), torch.randperm(rows), torch.tensor([3, 3, 0])):
        assert_same_bits(of(chosen), together[chosen], f"rows {chosen.tolist()}")
    shaped = {name: g.view(2, 7) for name, g in given.items()}
    padded = gradients(hidden.view(2, 7, -1), weight, ids.view(2, 7), shaped)["hidden"]
    assert_same_bits(padded.view(rows, -1), together, "two dims")


def spread(x: torch.Tensor, at: torch.Tensor, rows: int, fill: float) -> torch.Tensor:
    """Return rows with x at some of them."""
    made = torch.full((rows, *x.shape[1:]), fill, dtype=x.dtype)
    made[at] = x
    return made


@pytest.mark.parametrize("hidden_by", ["ids", "mask"])
@pytest.mark.parametrize("rows", [1, 37, 300])
def test_d_weight_does_not_know_where_inactive_rows_lie(rows: int, hidden_by: str) -> None:
    """Padding before, between and after, whatever it holds, NaN included."""
    hidden, weight, ids = head((rows,), dtype=torch.float16)
    ids = ids.where(ids >= 0, 5)
    given = cotangents((rows,), ("logp", "lse"))
    want = gradients(hidden, weight, ids, given)
    for seed, total in enumerate((rows, rows + 1, 2 * rows + 50)):
        at = torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:rows].sort().values
        wide = {name: spread(g, at, total, float("nan")) for name, g in given.items()}
        options: dict[str, Any] = {}
        if hidden_by == "mask":
            options["mask"] = spread(torch.ones(rows, dtype=torch.bool), at, total, 0)
        names = spread(ids, at, total, 11 if hidden_by == "mask" else -100)
        got = gradients(spread(hidden, at, total, float("nan")), weight, names, wide, **options)
        assert_same_bits(got["weight"], want["weight"], f"{rows} of {total} rows")
        assert_same_bits(got["hidden"], spread(want["hidden"], at, total, 0.0), f"{rows} of {total} rows")


def test_pieces_of_rows_are_counted_over_active_rows() -> None:
    """More than 8192 rows, fewer active ones: there is one piece, as without the others."""
    rows, total = 300, TOKENS + 500
    hidden, weight, ids = head((rows,), 5, 11, torch.float16)
    ids = ids.where(ids >= 0, 5)
    at = torch.randperm(total, generator=torch.Generator().manual_seed(1))[:rows].sort().values
    given = cotangents((rows,))
    wide = {name: spread(g, at, total, 1.0) for name, g in given.items()}
    got = gradients(spread(hidden, at, total, 1.0), weight, spread(ids, at, total, -100), wide)
    assert_same_bits(got["weight"], gradients(hidden, weight, ids, given)["weight"], "weight")


# --- controls: what would change the definition changes bits ---


@pytest.fixture(scope="module")
def wide() -> Iterator[tuple[torch.Tensor, ...]]:
    """A head of f16, whose 16-bit results show more of the f32 sums, and its dz."""
    tensors, given = head((300,), 64, 1001, torch.float16), cotangents((300,))
    yield (*tensors, scores_gradient(*tensors, given))


def test_merging_the_vocabulary_in_ascending_order_is_seen(wide: tuple[torch.Tensor, ...]) -> None:
    _, weight, _, dz = wide
    pairs, serial = hidden_gradient(dz, weight, pairwise), hidden_gradient(dz, weight, ascending)
    assert differing(pairs, serial) > pairs.numel() // 10
    assert differing(pairs.half(), serial.half())


def test_partial_sums_of_16_bits_are_seen(wide: tuple[torch.Tensor, ...]) -> None:
    _, weight, _, dz = wide
    pairs, low = hidden_gradient(dz, weight, pairwise), hidden_gradient(dz, weight, rounded)
    assert differing(pairs.half(), low.half()) > pairs.numel() // 2


def test_one_accumulator_for_the_whole_vocabulary_is_seen(wide: tuple[torch.Tensor, ...]) -> None:
    _, weight, _, dz = wide
    whole = weight_gradient(dz.T, weight)  # one chain16 over 1001 entries
    assert differing(hidden_gradient(dz, weight).half(), whole.half())


def test_a_sum_over_rows_in_their_places_is_seen(wide: tuple[torch.Tensor, ...]) -> None:
    hidden, _, ids, dz = wide
    active = active_rows(ids, {})
    assert len(active) < len(ids)
    compact, loose = weight_gradient(dz[active], hidden[active]), weight_gradient(dz, hidden)
    assert differing(compact, loose) > compact.numel() // 10
    assert differing(compact.half(), loose.half())


def test_other_pieces_of_rows_are_seen(wide: tuple[torch.Tensor, ...]) -> None:
    hidden, _, _, dz = wide
    whole = weight_gradient(dz, hidden)
    halves = weight_gradient(dz[:160], hidden[:160]) + weight_gradient(dz[160:], hidden[160:])
    assert differing(whole, halves) > whole.numel() // 10
    assert differing(whole.half(), halves.half())


def test_sums_of_another_order_and_no_rounding_are_seen() -> None:
    """Compare with torch's f32 result, rounded once."""
    hidden, weight, ids = head(ROWS)
    given = cotangents(ROWS)
    leaves = [x.float().requires_grad_() for x in (hidden, weight)]
    chosen = torch.log_softmax(leaves[0] @ leaves[1].T, -1).gather(-1, ids.clamp(min=0)[..., None])[..., 0]
    want = torch.autograd.grad(chosen, leaves, given["logp"].where(ids >= 0, 0.0))
    got = gradients(hidden, weight, ids, given)
    for name, x in zip(got, want, strict=True):
        assert differing(got[name], x.bfloat16()) > x.numel() // 20, name


# --- what is launched ---


def gradient_program(*wanted: str) -> Program:
    assert linear_logp.gradient is not None
    plain = linear_logp.default_variant()
    variant = Variant(plain.dtypes, frozenset({"d_logp"}), plain.statics, frozenset(wanted))
    return canonical(linear_logp.gradient.trace(variant))


@pytest.mark.parametrize("name", ["hidden", "weight"])
def test_a_frozen_input_costs_nothing_and_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[Invocation] = []

    def bind(invocation: Invocation, tensors: Tensors) -> Run:
        bound.append(invocation)
        return real(invocation, tensors)

    real = runtime.bind
    monkeypatch.setattr(runtime, "bind", bind)
    dispatch.interpret_with(None)  # forget what is bound
    tensors, given = head(ROWS), cotangents(ROWS)
    alone = gradients(*tensors, given, wanted=(name,))
    assert [i.variant.wanted for i in bound] == [frozenset(), {name}]
    assert_same(alone, {name: gradients(*tensors, given)[name]})
    both, one = gradient_program("hidden", "weight"), traced(bound[1])
    assert one == gradient_program(name)
    written = {d.name for k in one.kernels for d in k.params if d.role is Role.OUT}
    assert written == {f"d_{name}"}
    assert len(one.kernels) == len(both.kernels) - 1


# --- what is kept, and where sums go ---


@pytest.mark.parametrize("name", OPTIONS)
def test_kept_logits_change_no_bit(name: str) -> None:
    tensors, given = head(ROWS), cotangents(ROWS, ("logp", "entropy"))
    want = gradients(*tensors, given, **OPTIONS[name])
    assert_same(gradients(*tensors, given, keep_logits=1 << 20, **OPTIONS[name]), want)


@pytest.mark.parametrize(("limit", "kept"), [(4 * 14 * V, True), (4 * 14 * V - 1, False), (0, False)])
def test_logits_are_kept_up_to_a_limit_and_for_a_gradient_alone(limit: int, kept: bool) -> None:
    hidden, weight, ids = head(ROWS)

    def saved() -> set[tuple[int, ...]]:
        node = ops.linear_logp(hidden, weight, ids, keep_logits=limit).logp.grad_fn
        return {tuple(x.shape) for x in node.saved_tensors} if node is not None else set()

    assert (*ROWS, V) not in saved()
    weight.requires_grad_()
    assert ((*ROWS, V) in saved()) == kept


@pytest.mark.parametrize("wanted", [("hidden", "weight"), ("weight",), ("hidden",)], ids=" ".join)
@pytest.mark.parametrize("rows", [14, TOKENS + 40])
def test_a_buffer_takes_the_f32_sum_and_all_else_stays(rows: int, wanted: tuple[str, ...]) -> None:
    hidden, weight, ids = head((rows,), 5, 11)
    given = cotangents((rows,))
    buffer = torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
    before = buffer.clone()
    leaves = {"hidden": hidden.clone(), "weight": weight.clone()}
    for name in wanted:
        leaves[name].requires_grad_()
    made = ops.linear_logp(*leaves.values(), ids, weight_grad_out=buffer)
    made.logp.backward(given["logp"])
    active, dz = active_rows(ids, {}), scores_gradient(hidden, weight, ids, given)
    total = weight_gradient(dz[active], hidden[active])
    assert_same_bits(buffer, before + total if "weight" in wanted else before, "buffer")
    assert leaves["weight"].grad is None
    if "hidden" in wanted:
        want = gradients(hidden, weight, ids, given)["hidden"]
        assert_same_bits(leaves["hidden"].grad, want, "hidden")


def test_a_buffer_adds_up_over_calls_in_order() -> None:
    hidden, weight, ids = head(ROWS)
    buffer = torch.zeros(weight.shape)
    want = torch.zeros(weight.shape)
    for seed in range(3):
        given = cotangents(ROWS, seed=seed)
        weight.requires_grad_()
        ops.linear_logp(hidden, weight, ids, weight_grad_out=buffer).logp.backward(given["logp"])
        dz, active = scores_gradient(hidden, weight, ids, given), active_rows(ids, {})
        want = want + weight_gradient(dz[active], hidden.reshape(14, -1)[active])
        assert_same_bits(buffer, want, f"after {seed + 1} calls")


# --- refusals ---


@pytest.mark.parametrize("options", [{}, {"weight_grad_out": torch.zeros(V, 40)}], ids=["plain", "buffer"])
def test_there_is_no_second_derivative(options: dict[str, Any]) -> None:
    hidden, weight, ids = head(ROWS)
    hidden.requires_grad_()
    made = ops.linear_logp(hidden, weight, ids, **options).logp.sum()
    (found,) = torch.autograd.grad(made, hidden, create_graph=True)
    assert found.requires_grad
    with pytest.raises(LaunchError) as refused:
        found.float().square().sum().backward()
    assert refused.value.code is Code.DOUBLE_BACKWARD and "linear_logp" in str(refused.value)
