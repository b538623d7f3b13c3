"""Laws of `linear_jsd_loss`: the bits of its parts, whatever its row pieces; its gradient; its memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlk import ops
from rlk.env import Env
from rlk.errors import Code, LaunchError
from rlk.ops import linear_distill
from rlk.runtime.call import entry as calls
from rlk.runtime.call.library import through_dispatcher as through
from rlk.testing.bits import as_bits, assert_same_bits, differing

ROWS, D, D2, V = 37, 48, 80, 1037
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
BETAS = (0.0, 0.3, 1.0)
Given = dict[str, torch.Tensor]


def batch(rows: int = ROWS, vocabulary: int = V, of: tuple[torch.dtype, torch.dtype] = (BF16, BF16)) -> Given:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "hidden": normal(rows, D).to(of[0]),
        "weight": (0.3 * normal(vocabulary, D)).to(of[0]),
        "teacher_hidden": normal(rows, D2).to(of[1]),
        "teacher_weight": (0.3 * normal(vocabulary, D2)).to(of[1]),
    }


def per_row(rows: int = ROWS) -> torch.Tensor:
    return torch.linspace(0.5, 2.0, rows)


def some(rows: int = ROWS) -> torch.Tensor:
    return torch.arange(rows) % 3 != 1


OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "temperature": lambda: {"temperature": 0.7, "math": "sm90"},
    "temperature of each row, mask": lambda: {"temperature": per_row(), "mask": some()},
}


def logits(given: Given, dtype: torch.dtype | None = F32) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the products of both heads."""
    return (
        ops.matmul(given["hidden"], given["weight"], out_dtype=dtype),
        ops.matmul(given["teacher_hidden"], given["teacher_weight"], out_dtype=dtype),
    )


def cotangent(made: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1.0, 2.0, made.numel()).reshape(made.shape).to(made.dtype)


def pulled(
    given: Given, call: Any = ops.linear_jsd_loss, slope: torch.Tensor | None = None, **options: Any
) -> Given:
    """Return the loss and both gradients, of a cotangent (slope) that differs by row."""
    leaves = {name: given[name].detach().clone().requires_grad_() for name in ("hidden", "weight")}
    made = call(**{**given, **leaves}, **options)
    made.backward(cotangent(made) if slope is None else slope)
    return {"loss": made.detach(), **{name: x.grad for name, x in leaves.items()}}  # type: ignore[dict-item]


def assert_same(got: Given, want: Given) -> None:
    for name, x in want.items():
        assert_same_bits(got[name], x, name)


# bits of the parts


@pytest.mark.parametrize("of", [(BF16, BF16), (F16, BF16)])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("beta", BETAS)
def test_a_loss_has_the_bits_of_its_parts(
    beta: float, name: str, of: tuple[torch.dtype, torch.dtype]
) -> None:
    given, options = batch(of=of), OPTIONS[name]()
    want = ops.jsd_loss(*logits(given), beta=beta, **options)
    made = ops.linear_jsd_loss(**given, beta=beta, **options)
    assert made.dtype is F32
    assert_same_bits(made, want)


def test_logits_rounded_to_16_bits_are_seen() -> None:
    """The control of the law above."""
    given = batch()
    assert differing(ops.linear_jsd_loss(**given), ops.jsd_loss(*logits(given, None))) > ROWS // 2


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("beta", BETAS)
def test_gradients_have_the_bits_of_products_of_the_rounded_gradient_of_logits(
    beta: float, name: str
) -> None:
    """d hidden by `matmul` in 8 pieces of the vocabulary, d weight by one accumulator over active rows."""
    given, options = batch(), OPTIONS[name]()
    student, teacher = logits(given)
    student.requires_grad_()
    made = ops.jsd_loss(student, teacher, beta=beta, **options)
    made.backward(cotangent(made))
    assert student.grad is not None
    dz = student.grad.to(BF16)
    active = options.get("mask", torch.ones(ROWS, dtype=torch.bool))
    of_rows = (dz[active].t().contiguous(), given["hidden"][active].t().contiguous())
    got = pulled(given, beta=beta, **options)
    assert_same_bits(got["hidden"], ops.matmul(dz, given["weight"].t().contiguous(), order="leaf8"))
    assert_same_bits(got["weight"], ops.matmul(*of_rows))
    # the control: no rounding of the logits' gradient
    assert differing(got["hidden"], (student.grad.double() @ given["weight"].double()).to(BF16))


def test_another_order_of_sums_is_seen() -> None:
    """The control of the law above: in f16 and many rows, whose rounding hides less of the f32 sums."""
    given = batch(400, of=(F16, F16))
    student, teacher = logits(given)
    made = ops.jsd_loss(student.requires_grad_(), teacher)
    made.backward(cotangent(made))
    assert student.grad is not None
    dz, across = student.grad.half(), given["weight"].t().contiguous()
    got = pulled(given)["hidden"]
    assert_same_bits(got, ops.matmul(dz, across, order="leaf8"))
    assert differing(got, ops.matmul(dz, across))


@pytest.mark.parametrize("vocabulary", [1, 3, 7, 9, 41, 300])
def test_pieces_merge_as_those_of_a_product_do(vocabulary: int) -> None:
    """In f32, before any rounding, also where there are fewer pieces than 8."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, vocabulary, generator=generator).bfloat16() for n in (50, 40))
    sums: list[tuple[int, torch.Tensor]] = []
    for v in linear_distill._pieces(vocabulary):
        linear_distill._merge(sums, ops.matmul(x[:, v], w[:, v], out_dtype=F32))
    merged = linear_distill._merged(sums)
    assert_same_bits(merged, ops.matmul(x, w, order="leaf8", out_dtype=F32))
    # the control: one accumulator
    assert bool(differing(merged, ops.matmul(x, w, out_dtype=F32))) is (vocabulary > 1)


@pytest.mark.parametrize(("masked", "vocabulary"), [(True, 3), (False, 9), (True, 41)])
def test_both_products_are_those_of_linear_logp(
    masked: bool, vocabulary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given the gradient of its logits: of more rows than an accumulator sums, and of few pieces."""
    rows = 2 * linear_distill.ROWS + 100
    given, ids = batch(rows, vocabulary, (F16, F16)), torch.arange(rows) % vocabulary
    mask = {"mask": some(rows)} if masked else {}
    order = torch.argsort(~some(rows), stable=True) if masked else torch.arange(rows)
    student = logits(given)[0].requires_grad_()
    ops.logp(student, ids, **mask).logp.backward(cotangent(ids.float()))
    assert student.grad is not None
    rounded = student.grad.half()[order]
    taken = 0

    def of_logp(heads: Any, v: slice, *_: Any) -> torch.Tensor:
        nonlocal taken
        size = linear_distill.ROWS
        start = taken // vocabulary * size
        taken += v.stop - v.start
        return rounded[start : start + size, v].contiguous()

    monkeypatch.setattr(linear_distill, "_d_logits", of_logp)
    got = pulled(given, **mask)
    leaves = [given[name].requires_grad_() for name in ("hidden", "weight")]
    ops.linear_logp(*leaves, ids, **mask).logp.backward(cotangent(ids.float()))
    assert taken == 3 * vocabulary
    for name, leaf in zip(("hidden", "weight"), leaves, strict=True):
        assert_same_bits(got[name], leaf.grad, name)
    if vocabulary == 41:  # the control
        taken = 0
        monkeypatch.setattr(linear_distill, "ROWS", 4096)
        assert differing(pulled(given, **mask)["weight"], leaves[1].grad)


# pieces


@pytest.mark.parametrize("rows", [1, 5, 16])
@pytest.mark.parametrize("beta", BETAS)
def test_how_many_logits_are_held_changes_no_bit(
    beta: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"beta": beta, **OPTIONS["temperature of each row, mask"]()}
    want = pulled(batch(), **options)
    monkeypatch.setattr(linear_distill, "LOGITS_BYTES", rows * 8 * V)
    assert_same(pulled(batch(), **options), want)


@pytest.mark.parametrize(("name", "size", "leaf"), [("ROWS", 16, "weight"), ("PIECES", 4, "hidden")])
def test_the_pieces_of_a_sum_are_seen(
    name: str, size: int, leaf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the laws above."""
    given = batch(400, of=(F16, F16))
    want = pulled(given)
    monkeypatch.setattr(linear_distill, name, size)
    got = pulled(given)
    assert_same_bits(got["loss"], want["loss"])
    assert differing(got[leaf], want[leaf])


def test_rows_beside_a_row_change_none_of_its_bits() -> None:
    given, heat = batch(), per_row()
    want = pulled(given, temperature=heat)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))

    def moved(rows: Any) -> Given:
        made = {name: x if "weight" in name else x[rows] for name, x in given.items()}
        return pulled(made, temperature=heat[rows], slope=cotangent(want["loss"])[rows])

    for rows in (order, slice(5, 6), slice(0, 17)):
        got = moved(rows)
        assert_same_bits(got["loss"], want["loss"][rows])
        assert_same_bits(got["hidden"], want["hidden"][rows])
    # the control: another order of rows sums d weight in another order
    assert differing(moved(order)["weight"], want["weight"])


def test_shape_and_strides_of_rows_change_no_bit() -> None:
    given = batch(36)
    want = pulled(given)
    shaped = {name: x if "weight" in name else x.view(4, 9, -1) for name, x in given.items()}
    got = pulled(shaped)
    assert got["loss"].shape == (4, 9) and got["hidden"].shape == (4, 9, D)
    assert_same({name: x if name == "weight" else x.flatten(0, 1) for name, x in got.items()}, want)
    wide = {name: torch.cat((x, x), -1)[..., : x.shape[-1]] for name, x in given.items()}
    assert_same_bits(ops.linear_jsd_loss(**wide), want["loss"])


@pytest.mark.parametrize("junk", [math.nan, math.inf])
def test_nothing_of_an_inactive_row_is_seen(junk: float) -> None:
    given, mask = batch(), some()
    want = pulled(given, mask=mask)
    spoiled = {
        name: x if "weight" in name else torch.where(mask[:, None], x, junk) for name, x in given.items()
    }
    assert_same(pulled(spoiled, mask=mask), want)
    assert (as_bits(want["loss"][~mask]) == 0).all() and (as_bits(want["hidden"][~mask]) == 0).all()
    alone = {name: x if "weight" in name else x[mask] for name, x in given.items()}
    got = pulled(alone, slope=cotangent(want["loss"])[mask])
    assert_same_bits(got["weight"], want["weight"])
    assert pulled(spoiled)["weight"].isnan().any(), "it would be seen"


# memory


class Largest(TorchDispatchMode):
    """The most bytes of a tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {
            x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)
        }
        for x in tree_leaves(made):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in given:
                self.bytes = max(self.bytes, x.untyped_storage().nbytes())
        return made


def heads_of(given: Given) -> linear_distill.Heads:
    return linear_distill.Heads(*given.values(), None, some(len(given["hidden"])), None, 0.5, "mixture", None)


@torch.no_grad()
def test_no_tensor_has_more_than_a_piece_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, piece = 400, 16
    given = batch(rows)
    held, whole = 4 * piece * V, 4 * rows * V
    monkeypatch.setattr(linear_distill, "LOGITS_BYTES", 2 * held)
    with Largest() as forward:
        made = linear_distill.divergence(heads_of(given))
    assert forward.bytes == held
    with Largest() as backward:
        linear_distill.gradients(heads_of(given), made, torch.ones(rows), ("hidden", "weight"))
    kept = 2 * rows * -(-V // 8)  # the rounded gradient of the logits of a piece of the vocabulary
    assert backward.bytes == max(held, kept, 2 * V * D) < whole // 8
    with Largest() as parts:  # the control
        ops.jsd_loss(*logits(given))
    assert parts.bytes == whole


# gradients


@pytest.mark.parametrize("of", [BF16, F16])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("beta", BETAS)
def test_loss_and_gradients_are_near_float64(beta: float, name: str, of: torch.dtype) -> None:
    given, options = batch(of=(of, of)), {"beta": beta, **OPTIONS[name]()}
    got = pulled(given, **options)
    want = pulled({n: x.double() for n, x in given.items()}, ops.linear_jsd_loss.reference, **options)
    torch.testing.assert_close(got["loss"].double(), want["loss"], rtol=2e-5, atol=1e-6)
    for leaf in ("hidden", "weight"):
        assert got[leaf].dtype is of
        assert float((got[leaf].double() - want[leaf]).norm() / want[leaf].norm()) < 8e-3, leaf


@pytest.mark.parametrize("leaf", ["hidden", "weight"])
def test_a_gradient_alone_has_the_bits_of_both(leaf: str) -> None:
    given = batch()
    want = pulled(given)
    frozen = {name: x.clone().requires_grad_(name == leaf) for name, x in given.items()}
    made = ops.linear_jsd_loss(**frozen)
    made.backward(cotangent(made))
    assert_same_bits(frozen[leaf].grad, want[leaf])
    assert all(x.grad is None for name, x in frozen.items() if name != leaf)


def test_a_second_derivative_is_refused() -> None:
    given = batch(3)
    given["hidden"].requires_grad_()
    loss = ops.linear_jsd_loss(**given).sum()
    (grad,) = torch.autograd.grad(loss, given["hidden"], create_graph=True)
    with pytest.raises(LaunchError) as caught:
        grad.sum().backward()
    assert caught.value.code is Code.DOUBLE_BACKWARD


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("masked", [False, True])
def test_torch_accepts_the_registration(beta: float, masked: bool) -> None:
    """opcheck of the op and of its gradient."""
    op = torch.ops.rlk.linear_jsd_loss
    given = batch(6, 50)
    given["hidden"].requires_grad_()
    given["weight"].requires_grad_()
    options = (per_row(6), some(6), None) if masked else (None, None, 1.5)
    taken = (*given.values(), *options, beta, "mixture" if beta else "forward", None)
    torch.library.opcheck(op.default, taken)
    loss, *saved = (x.detach() for x in op(*taken))
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in taken]
    torch.library.opcheck(
        torch.ops.rlk.linear_jsd_loss_grad.default, (loss, *saved, ["hidden", "weight"], *plain)
    )


@pytest.mark.parametrize("rows", [0, 3])
def test_empty_inputs(rows: int) -> None:
    got = pulled(batch(rows), mask=torch.zeros(rows, dtype=torch.bool))
    assert got["loss"].shape == (rows,)
    assert all((as_bits(x) == 0).all() for x in got.values()) and got["weight"].shape == (V, D)
    hollow = {name: x[:, :0] for name, x in batch(rows).items()}
    assert_same_bits(ops.linear_jsd_loss(**hollow), torch.zeros(rows))


# refusals

SMALL = batch(3, 8)
SQUARE = {name: x if "weight" in name else x.expand(3, *x.shape) for name, x in SMALL.items()}
REFUSED: dict[str, tuple[dict[str, Any], Code, str]] = {
    "a teacher of another vocabulary": (
        {"teacher_weight": SMALL["teacher_weight"][1:]},
        Code.ARG_SIZE,
        "teacher_weight has V = 7, but weight has V = 8",
    ),
    "a weight of another width": ({"weight": SMALL["teacher_weight"]}, Code.ARG_SIZE, "weight has D = 80"),
    "a teacher's weight of another width": (
        {"teacher_weight": SMALL["weight"]},
        Code.ARG_SIZE,
        "teacher_weight has D = 48, but teacher_hidden has D = 80",
    ),
    "a teacher of other rows": (
        {"teacher_hidden": SMALL["teacher_hidden"][1:]},
        Code.ARG_SIZE,
        "teacher_hidden has rows = (2,), but hidden has rows = (3,)",
    ),
    "f32 hidden states": ({"hidden": SMALL["hidden"].float()}, Code.ARG_DTYPE, "hidden has dtype"),
    "a weight of another dtype": ({"weight": SMALL["weight"].half()}, Code.ARG_DTYPE, "weight has dtype"),
    "a teacher's weight of another dtype": (
        {"teacher_weight": SMALL["teacher_weight"].half()},
        Code.ARG_DTYPE,
        "teacher_weight has dtype",
    ),
    "a weight of one dim": ({"weight": SMALL["weight"][0]}, Code.ARG_RANK, "weight has 1 dims"),
    "a number as hidden": ({"hidden": torch.ones((), dtype=BF16)}, Code.ARG_RANK, "hidden has 0 dims"),
    "no teacher": ({"teacher_hidden": None}, Code.ARG_TYPE, "teacher_hidden must be a torch.Tensor"),
    "a transposed weight": (
        {"weight": SMALL["weight"].t().contiguous().t()},
        Code.ARG_STRIDE,
        "weight has last-dim stride 8",
    ),
    "a teacher elsewhere": (
        {"teacher_weight": SMALL["teacher_weight"].to("meta")},
        Code.ARG_DEVICE,
        "teacher_weight is on meta",
    ),
    "no vocabulary": (
        {"weight": SMALL["weight"][:0], "teacher_weight": SMALL["teacher_weight"][:0]},
        Code.ARG_VALUE,
        "weight.shape[0]=0",
    ),
    "a beta above 1": ({"beta": 1.5}, Code.ARG_VALUE, "beta=1.5"),
    "a temperature of 0": ({"temperature": 0.0}, Code.ARG_VALUE, "temperature=0.0"),
    "a temperature of integers": ({"temperature": torch.arange(1, 4)}, Code.ARG_DTYPE, "temperature"),
    "a temperature of other rows": (
        {"temperature": torch.ones(4)},
        Code.ARG_SHAPE,
        "temperature has shape (4,), expected (3,)",
    ),
    "a temperature of fewer dims": (
        {**SQUARE, "temperature": torch.ones(3)},
        Code.ARG_SHAPE,
        "temperature has shape (3,), expected (3, 3) as the rows of hidden have",
    ),
    "a temperature elsewhere": (
        {"temperature": torch.ones(3, device="meta")},
        Code.ARG_DEVICE,
        "temperature is on meta",
    ),
    "a temperature with a gradient": (
        {"temperature": torch.ones(3, requires_grad=True)},
        Code.NOT_DIFFERENTIABLE,
        "temperature",
    ),
    "a mask of numbers": ({"mask": torch.ones(3)}, Code.ARG_DTYPE, "mask has dtype"),
    "a mask of other rows": (
        {"mask": torch.ones(4, dtype=torch.bool)},
        Code.ARG_SIZE,
        "mask has rows = (4,)",
    ),
    "an unknown model of exp2": ({"math": "fast"}, Code.ARG_VALUE, "math='fast'"),
    "a teacher with a gradient": (
        {"teacher_weight": SMALL["teacher_weight"].clone().requires_grad_()},
        Code.NOT_DIFFERENTIABLE,
        "teacher_weight",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_by_name(name: str) -> None:
    options, code, text = REFUSED[name]
    with pytest.raises(LaunchError) as caught:
        ops.linear_jsd_loss(**{**SMALL, **options})
    message = str(caught.value)
    assert caught.value.code is code and message.startswith("linear_jsd_loss") and text in message


def test_a_call_is_explained_by_its_parts() -> None:
    decision = ops.linear_jsd_loss.explain(**batch())
    assert {name for name, _ in decision.tiers} >= {"loss"} and "exact" in str(decision)
    ids = {ops.linear_jsd_loss.explain(**batch(), math=math).numerics_id for math in ("sm90", "portable")}
    assert len(ids) == 2 and decision.numerics_id in ids
    ran: list[str] = []

    def observe(op: Any, *given: Any) -> Any:
        ran.append(op.name)
        return through(op, *given)

    with calls.observed(observe):
        made = ops.linear_jsd_loss(**batch())
    assert ran == ["matmul", "matmul", "jsd_loss"]
    assert_same_bits(made, ops.linear_jsd_loss(**batch()))


def test_a_bad_row_is_named_as_the_caller_numbers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given = batch()
    given["hidden"][29] = math.nan
    assert ops.linear_jsd_loss(**given).isnan().nonzero().tolist() == [[29]]
    monkeypatch.setattr(linear_distill, "LOGITS_BYTES", 2 * 4 * V * 8)
    monkeypatch.setattr(Env, "current", staticmethod(lambda: Env.read({"RLK_CHECK": "1"})))
    with pytest.raises(LaunchError, match="^linear_jsd_loss: row 29 has logits") as caught:
        ops.linear_jsd_loss(**given)
    assert caught.value.code is Code.BAD_ROW
