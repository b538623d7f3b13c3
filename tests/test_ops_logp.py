"""Laws of `rlk.ops.logp` on the CPU: its formula in float64, its edges, and rows that stay apart."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.ops.results import LogProbs
from rlk.runtime.call.dispatch import dispatch
from rlk.testing.bits import as_bits, assert_same_bits, differing

NEEDS = ("logp", "lse", "entropy", "argmax", "lse2")
SMOOTH = ("logp", "lse", "entropy")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ULP = {torch.float32: 2.0**-22, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
SHAPE, VOCABULARY = (3, 5), 700
INF = math.inf


def drawn(shape: tuple[int, ...], vocabulary: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(*shape, vocabulary, generator=generator)).to(dtype)
    return logits, torch.randint(vocabulary, shape, generator=generator)


def options(name: str, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(7)
    rows = 0.5 + torch.rand(SHAPE, generator=generator)
    bias = torch.randn(VOCABULARY, generator=generator).to(dtype)
    mask = torch.rand(SHAPE, generator=generator) < 0.6
    return {
        "plain": {},
        "temperature": {"temperature": 0.7},
        "temperature of each row": {"temperature": rows},
        "bias": {"bias": bias},
        "softcap": {"softcap": 5.0},
        "logit scale": {"logit_scale": 0.3},
        "mask": {"mask": mask},
        "every step": {
            "bias": bias,
            "temperature": rows,
            "softcap": 4.0,
            "logit_scale": 1.7,
            "mask": mask,
            "ignore_index": 3,
        },
    }[name]


NAMES = (
    "plain", "temperature", "temperature of each row", "bias", "softcap", "logit scale", "mask", "every step"
)  # fmt: skip


def exact(
    logits: torch.Tensor, ids: torch.Tensor, *, bias: torch.Tensor | None = None, temperature: Any = 1.0,
    softcap: float | None = None, logit_scale: float = 1.0, mask: torch.Tensor | None = None,
    ignore_index: int = -100,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """The formulas in float64, differentiable by torch."""
    z = logits if bias is None else logits + bias.double()
    z = z * logit_scale
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    z = z / (temperature.double()[..., None] if isinstance(temperature, torch.Tensor) else temperature)
    active = (ids != ignore_index) & (torch.ones_like(ids, dtype=torch.bool) if mask is None else mask)
    logs = torch.log_softmax(z, -1)
    found = {
        "logp": logs.gather(-1, torch.where(active, ids, 0)[..., None].long())[..., 0],
        "lse": torch.logsumexp(z, -1),
        "entropy": torch.distributions.Categorical(logits=z).entropy(),
        "lse2": torch.logsumexp(2 * z, -1),
    }
    made = {name: torch.where(active, x, 0.0) for name, x in found.items()}
    return made | {"argmax": torch.where(active, z.argmax(-1), -1)}


def close(got: torch.Tensor, want: torch.Tensor, rtol: float, atol: float) -> None:
    torch.testing.assert_close(got.detach().double(), want.detach().double(), rtol=rtol, atol=atol)


def backward(made: LogProbs, cotangents: dict[str, torch.Tensor]) -> None:
    torch.autograd.backward(
        [getattr(made, n) for n in cotangents], [g.to(getattr(made, n).dtype) for n, g in cotangents.items()]
    )


def weights(shape: tuple[int, ...], names: tuple[str, ...] = SMOOTH) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=generator) for name in names}


# formulas


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_its_formula_with_its_gradient(name: str, dtype: torch.dtype) -> None:
    logits, ids = drawn(SHAPE, VOCABULARY, dtype)
    ids[0, 0], ids[1, 2] = -100 if "ignore_index" not in options(name, dtype) else 3, 3
    given = options(name, dtype)
    wide = logits.double().requires_grad_()
    want = exact(wide, ids, **given)
    logits.requires_grad_()
    got = ops.logp(logits, ids, needs=NEEDS, **given)
    for field in NEEDS:
        close(getattr(got, field), want[field], 1e-6, 4e-6)
    assert_same_bits(got.argmax, want["argmax"].int(), "argmax")
    cotangents = weights(SHAPE)
    backward(got, cotangents)
    torch.autograd.backward([want[n] for n in SMOOTH], [cotangents[n].double() for n in SMOOTH])
    assert logits.grad is not None and wide.grad is not None and logits.grad.dtype is dtype
    close(logits.grad, wide.grad, ULP[dtype] + 2e-5, 1e-6 if dtype is not torch.float16 else 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_the_formula(name: str) -> None:
    logits, ids = drawn(SHAPE, VOCABULARY)
    ids[0, 0] = -100
    given = options(name, torch.float32)
    if "ignore_index" in given:
        ids[0, 0] = 3
    want = exact(logits.double(), ids, **given)
    got = ops.logp.reference(logits, ids, needs=NEEDS, **given)
    for field in NEEDS:
        close(getattr(got, field), want[field], 1e-12, 1e-12)


@pytest.mark.parametrize("outputs", [("logp",), ("lse",), ("entropy",), ("lse", "entropy"), ("logp", "lse")])
def test_each_result_has_its_own_gradient(outputs: tuple[str, ...]) -> None:
    logits, ids = drawn(SHAPE, VOCABULARY)
    wide = logits.double().requires_grad_()
    logits.requires_grad_()
    cotangents = weights(SHAPE, outputs)
    backward(ops.logp(logits, ids, needs=NEEDS, temperature=0.9), cotangents)
    want = exact(wide, ids, temperature=0.9)
    torch.autograd.backward([want[n] for n in outputs], [g.double() for g in cotangents.values()])
    assert logits.grad is not None and wide.grad is not None
    close(logits.grad, wide.grad, 2e-5, 1e-6)


def test_what_else_is_asked_for_changes_no_bit() -> None:
    logits, ids = drawn((4,), 1000, torch.bfloat16)
    whole = ops.logp(logits, ids, needs=NEEDS)
    for count in range(1, 6):
        for needs in itertools.combinations(NEEDS, count):
            got = ops.logp(logits, ids, needs=needs)
            for name in NEEDS:
                if name in needs:
                    assert_same_bits(getattr(got, name), getattr(whole, name), f"{name} of {needs}")
                else:
                    assert getattr(got, name) is None


def test_results_are_f32_and_argmax_i32() -> None:
    got = ops.logp(*drawn((2,), 40, torch.bfloat16), needs=NEEDS)
    assert [x.dtype for x in got] == [torch.float32] * 3 + [torch.int32, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_width_of_ids_changes_no_bit(dtype: torch.dtype) -> None:
    logits, ids = drawn((6,), 300, dtype)
    ids[2] = -100
    assert_same_bits(ops.logp(logits, ids.int()).logp, ops.logp(logits, ids).logp)


def test_one_temperature_for_all_rows_is_that_temperature() -> None:
    logits, ids = drawn(SHAPE, VOCABULARY)
    one = ops.logp(logits, ids, needs=NEEDS, temperature=0.7)
    for form in (torch.full(SHAPE, 0.7), torch.full((SHAPE[0], 1), 0.7), torch.tensor(0.7)):
        for a, b in zip(ops.logp(logits, ids, needs=NEEDS, temperature=form), one, strict=True):
            assert_same_bits(a, b)


def test_a_temperature_is_the_f32_of_the_number_before_it_divides() -> None:
    """As a number and as a row of a tensor it is one temperature; 1 / t in f64 would differ in a quarter."""
    numbers = np.random.default_rng(0).uniform(0.01, 3, 200)
    one, ids = torch.ones(1, 1), torch.zeros(1, dtype=torch.int64)
    scales = torch.cat([ops.logp(one, ids, needs=("lse",), temperature=t).lse for t in numbers.tolist()])
    rows = torch.tensor(numbers, dtype=torch.float32)
    of_rows = ops.logp(one.expand(200, 1), ids.expand(200), needs=("lse",), temperature=rows).lse
    assert_same_bits(scales, of_rows)
    assert_same_bits(scales, torch.reciprocal(rows))
    assert differing(scales, (1.0 / numbers).astype(np.float32)) > 30, "the control: rounded once, from f64"


def test_steps_that_do_nothing_change_no_bit() -> None:
    logits, ids = drawn((4,), 500)
    plain = ops.logp(logits, ids).logp
    same = ops.logp(logits, ids, temperature=1.0, logit_scale=1.0, mask=torch.ones(4, dtype=torch.bool)).logp
    assert_same_bits(same, plain)
    assert differing(ops.logp(logits, ids, temperature=1.5).logp, plain)


def test_who_defines_exp2_changes_bits_and_little_else() -> None:
    logits, ids = drawn((64,), 700)
    portable, sm90 = (ops.logp(logits, ids, math=m).logp for m in ("portable", "sm90"))
    assert differing(portable, sm90)
    close(portable, sm90, 1e-6, 4e-6)


# shapes


@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (1, 2, 3), (3, 1, 2)])
def test_leading_dims_are_kept_and_change_no_bit(shape: tuple[int, ...]) -> None:
    logits, ids = drawn((6,), 333, torch.bfloat16)
    rows = max(1, math.prod(shape))
    want = ops.logp(logits[:rows].requires_grad_(), ids[:rows], needs=NEEDS)
    shaped = logits[:rows].detach().reshape(*shape, 333).requires_grad_()
    got = ops.logp(shaped, ids[:rows].reshape(shape), needs=NEEDS)
    for a, b in zip(got, want, strict=True):
        assert a.shape == shape
        assert_same_bits(a.reshape(-1), b)
    got.logp.sum().backward()
    assert shaped.grad is not None and shaped.grad.shape == shaped.shape


def test_another_order_of_the_vocabulary_has_other_bits() -> None:
    """The control of the laws about shapes and strides: the same scores, the last first."""
    logits, ids = drawn((64,), 700)
    turned = ops.logp(logits.flip(-1).contiguous(), 699 - ids, needs=NEEDS)
    plain = ops.logp(logits, ids, needs=NEEDS)
    for name in ("logp", "lse", "entropy"):
        assert differing(getattr(turned, name), getattr(plain, name)), name
    close(turned.lse, plain.lse, 1e-6, 1e-6)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0), (2, 0, 5)])
def test_no_rows_give_no_rows(shape: tuple[int, ...]) -> None:
    logits, ids = drawn(shape, 50)
    logits.requires_grad_()
    got = ops.logp(logits, ids, needs=NEEDS)
    assert all(x.shape == shape for x in got)
    got.logp.sum().backward()
    assert logits.grad is not None and logits.grad.shape == logits.shape


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 5, 7, 8, 9, 15, 255, 257, 2047, 2049, 50257])
def test_any_vocabulary_is_folded_whole(vocabulary: int) -> None:
    logits, ids = drawn((3,), vocabulary)
    wide = logits.double().requires_grad_()
    logits.requires_grad_()
    got, want = ops.logp(logits, ids, needs=NEEDS), exact(wide, ids)
    for field in NEEDS:
        close(getattr(got, field), want[field], 1e-6, 4e-6)
    cotangents = weights((3,))
    backward(got, cotangents)
    torch.autograd.backward([want[n] for n in SMOOTH], [g.double() for g in cotangents.values()])
    assert logits.grad is not None and wide.grad is not None
    close(logits.grad, wide.grad, 2e-5, 1e-6)


def test_every_id_is_read_from_its_own_column() -> None:
    logits, _ = drawn((1,), 41)
    rows = logits.expand(41, 41)
    got = ops.logp(rows.contiguous(), torch.arange(41)).logp
    close(got, torch.log_softmax(rows.double(), -1).diagonal(), 1e-6, 2e-6)


def test_a_slice_of_rows_is_read_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, ids = drawn((3, 7), 129, torch.bfloat16)
    seen: list[tuple[int, tuple[int, ...]]] = []
    find = dispatch.find

    def spy(invocation: Any, tensors: dict[str, torch.Tensor]) -> Any:
        seen.append((tensors["logits"].data_ptr(), tensors["logits"].stride()))
        return find(invocation, tensors)

    dispatch.interpret_with(dispatch.interpreter)  # forget bound calls
    monkeypatch.setattr(dispatch, "find", spy)
    sliced = logits[:, :-1]
    got = ops.logp(sliced, ids[:, 1:], needs=NEEDS)
    assert seen == [(logits.data_ptr(), (7 * 129, 129, 1))] and not sliced.is_contiguous()
    for a, b in zip(got, ops.logp(sliced.contiguous(), ids[:, 1:].contiguous(), needs=NEEDS), strict=True):
        assert_same_bits(a, b)


CUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "[:, :-1]": lambda x: x[:, :-1],
    "[:, 1:]": lambda x: x[:, 1:],
    "[::2]": lambda x: x[::2],
    "[:, ::2]": lambda x: x[:, ::2],
    "[2:, 1:4]": lambda x: x[2:, 1:4],
    "transposed": lambda x: x.transpose(0, 1),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("vocabulary", [130, 100])
def test_strides_change_no_bit(cut: str, vocabulary: int) -> None:
    whole, ids = drawn((4, 6), 130)
    whole.requires_grad_()
    view, picked = CUTS[cut](whole)[..., :vocabulary], CUTS[cut](ids) % vocabulary
    copy = view.detach().contiguous().requires_grad_()
    got, want = ops.logp(view, picked, needs=NEEDS), ops.logp(copy, picked.contiguous(), needs=NEEDS)
    for a, b in zip(got, want, strict=True):
        assert_same_bits(a, b)
    cotangents = weights(tuple(picked.shape))
    backward(got, cotangents)
    backward(want, cotangents)
    assert whole.grad is not None
    assert_same_bits(CUTS[cut](whole.grad)[..., :vocabulary], copy.grad)


def test_a_cotangent_may_have_any_strides() -> None:
    logits, ids = drawn((2, 3, 4), 31)
    logits.requires_grad_()
    g = torch.randn(4, 3, 2).permute(2, 1, 0)
    made = []
    for cotangent in (g, g.contiguous(), torch.ones(()).expand(2, 3, 4), torch.ones(2, 3, 4)):
        (grad,) = torch.autograd.grad(ops.logp(logits, ids).logp, logits, cotangent)
        made.append(grad)
    assert_same_bits(made[0], made[1])
    assert_same_bits(made[2], made[3])


def test_expanded_rows_are_read_in_place() -> None:
    logits, ids = drawn((1,), 77)
    assert_same_bits(ops.logp(logits.expand(5, 77), ids.expand(5)).logp, ops.logp(logits, ids).logp.expand(5))


# edges


def test_the_lowest_index_wins_a_tie() -> None:
    logits, ids = torch.zeros(4, 2049), torch.zeros(4, dtype=torch.int64)
    logits[1, [300, 700, 2048]] = 5.0
    logits[2, [2047, 2048]] = 5.0
    logits[3] = -INF
    logits[3, 1500] = -3.0
    assert ops.logp(logits, ids, needs=("argmax",)).argmax.tolist() == [0, 300, 2047, 1500]


def test_a_chunk_of_minus_infinity_has_no_effect() -> None:
    logits, ids = drawn((4,), 3000)
    logits[0, :700] = -INF
    logits[1, 1000:] = -INF
    logits[2, ::2] = -INF
    logits[3, :2999] = -INF
    ids = torch.tensor([2000, 10, 11, 2999])
    wide = logits.double().requires_grad_()
    logits.requires_grad_()
    got = ops.logp(logits, ids, needs=NEEDS)
    want = torch.log_softmax(wide, -1).gather(-1, ids[:, None])[:, 0]
    close(got.logp, want, 1e-6, 4e-6)
    p = torch.softmax(wide, -1)
    close(got.entropy, -torch.where(p > 0, p * p.log(), 0.0).sum(-1), 1e-6, 4e-6)
    assert got.argmax.tolist()[3] == 2999
    (got.logp + got.entropy).sum().backward()
    want.sum().backward()
    assert logits.grad is not None and torch.isfinite(logits.grad).all()
    assert (logits.grad[torch.isinf(logits.detach())] == 0).all()


def test_a_selected_logit_of_minus_infinity_is_minus_infinity() -> None:
    logits, ids = drawn((2,), 50)
    logits[0, ids[0]] = -INF
    assert ops.logp(logits, ids).logp[0] == -INF


def test_a_row_of_minus_infinity_spoils_only_itself() -> None:
    logits, ids = drawn((5,), 600)
    want = ops.logp(logits, ids, needs=NEEDS)
    logits[2] = -INF
    got = ops.logp(logits, ids, needs=NEEDS)
    assert got.lse[2] == -INF and torch.isnan(got.logp[2])
    others = torch.tensor([0, 1, 3, 4])
    for a, b in zip(got, want, strict=True):
        assert_same_bits(a[others], b[others])


@pytest.mark.parametrize("wrong", [700, 701, -1, -99, -101, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_an_id_outside_the_vocabulary_gives_nan_in_its_row_only(wrong: int, dtype: torch.dtype) -> None:
    logits, ids = drawn((5,), 700)
    want = ops.logp(logits, ids, needs=NEEDS)
    ids = ids.to(dtype)
    ids[1] = wrong
    got = ops.logp(logits, ids, needs=NEEDS)
    assert torch.isnan(got.logp[1])
    assert_same_bits(got.logp[[0, 2, 3, 4]], want.logp[[0, 2, 3, 4]])
    assert_same_bits(got.lse, want.lse)


CHECKED = """
import torch
from rlk import ops
from rlk.errors import Code, LaunchError
logits, ids = torch.zeros(3, 40), torch.tensor([1, 40, 2])
def code(call):
    try:
        call()
    except LaunchError as error:
        return error.code
assert code(lambda: ops.logp(logits, ids)) is Code.BAD_ROW, "logp"
assert code(lambda: ops.embedding(ids, logits)) is Code.BAD_ROW, "embedding"
logits[0] = -float("inf")
assert code(lambda: ops.logp(logits, ids.clamp(max=3))) is Code.BAD_ROW, "no finite logit"
ids[:2] = -100
assert code(lambda: ops.logp(logits, ids)) is None, "inactive rows are not checked"
"""


def test_rlk_check_raises_what_is_wrong_with_the_data(tmp_path: Any) -> None:
    environment = {**os.environ, "RLK_CHECK": "1", "RLK_CACHE_DIR": str(tmp_path)}
    made = subprocess.run(
        [sys.executable, "-c", CHECKED], env=environment, capture_output=True, text=True, timeout=120
    )
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("how", ["mask", "ignored id", "both"])
@pytest.mark.parametrize("junk", [math.nan, INF, -INF])
def test_nothing_of_an_inactive_row_is_seen(how: str, junk: float) -> None:
    logits, ids = drawn((6,), 800)
    temperature = 0.5 + torch.rand(6)
    dead = torch.tensor([1, 4])
    alive = torch.tensor([0, 2, 3, 5])
    cotangents = weights((6,))

    def run(x: torch.Tensor, i: torch.Tensor, t: torch.Tensor, g: dict[str, torch.Tensor], m: Any) -> Any:
        x = x.clone().requires_grad_()
        made = ops.logp(x, i, needs=NEEDS, temperature=t, mask=m)
        backward(made, g)
        return (*made, x.grad)

    want = run(logits, ids, temperature, cotangents, None)
    mask, picked = None, ids.clone()
    if how != "ignored id":
        mask = torch.ones(6, dtype=torch.bool)
        mask[dead] = False
    if how != "mask":
        picked[dead] = -100
    else:
        picked[dead] = 10**6
    logits[dead], temperature[dead] = junk, junk
    spoiled = {n: g.clone().index_fill_(0, dead, junk) for n, g in cotangents.items()}
    got = run(logits, picked, temperature, spoiled, mask)
    for name, a, b in zip((*NEEDS, "gradient"), got, want, strict=True):
        assert_same_bits(a[alive], b[alive], name)
        assert (a[dead] == (-1 if name == "argmax" else 0)).all()
        if name != "argmax":
            assert (as_bits(a[dead]) == 0).all(), f"{name} of an inactive row is +0"


def test_the_ignored_id_can_be_any_number() -> None:
    logits, ids = drawn((4,), 30)
    ids = torch.tensor([0, 7, -100, 7])
    got = ops.logp(logits, ids, ignore_index=7).logp
    assert got[1] == 0 and got[3] == 0 and torch.isnan(got[2]) and got[0] < 0


def test_large_logits_do_not_overflow() -> None:
    logits, ids = drawn((3,), 500)
    # a shift by a power of two is exact in f32 for coarse logits
    coarse = (logits * 8).round() / 8
    close(ops.logp(coarse + 65536.0, ids).logp, ops.logp(coarse, ids).logp, 1e-2, 1e-2)
    huge = torch.tensor([[3e38, -3e38, 0.0]])
    assert ops.logp(huge, torch.tensor([0])).logp.item() == 0.0
    assert ops.logp(huge, torch.tensor([0]), needs=("entropy",)).entropy.item() == 0.0


def test_nan_spoils_its_own_row_only() -> None:
    logits, ids = drawn((3,), 600)
    want = ops.logp(logits, ids, needs=("logp", "entropy"))
    logits[1, 17] = math.nan
    got = ops.logp(logits, ids, needs=("logp", "entropy"))
    assert torch.isnan(got.logp[1]) and torch.isnan(got.entropy[1])
    assert_same_bits(got.logp[[0, 2]], want.logp[[0, 2]])


def test_inputs_are_left_alone() -> None:
    logits, ids = drawn((3,), 90)
    before = logits.clone(), ids.clone()
    logits.requires_grad_()
    ops.logp(logits, ids, needs=NEEDS, temperature=torch.ones(3)).logp.sum().backward()
    assert_same_bits(logits, before[0])
    assert_same_bits(ids, before[1])


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"needs": ("rank",)}, Code.ARG_VALUE),
        ({"temperature": 0.0}, Code.ARG_VALUE),
        ({"temperature": -1.0}, Code.ARG_VALUE),
        ({"temperature": math.nan}, Code.ARG_VALUE),
        ({"temperature": torch.ones(4)}, Code.ARG_SHAPE),
        ({"temperature": torch.ones(3, 1)}, Code.ARG_SHAPE),
        ({"temperature": "hot"}, Code.ARG_TYPE),
        ({"softcap": 0.0}, Code.ARG_VALUE),
        ({"softcap": "soft"}, Code.ARG_TYPE),
        ({"logit_scale": "big"}, Code.ARG_TYPE),
        ({"ignore_index": 1.5}, Code.ARG_TYPE),
        ({"math": "fast"}, Code.ARG_VALUE),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, Any], code: Code) -> None:
    with pytest.raises(LaunchError) as caught:
        ops.logp(*drawn((3,), 20), **given)
    assert caught.value.code is code and next(iter(given)) in str(caught.value)
