"""Contractions: linear log-probs are those of the logits, and rows do not know each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from linear_cases import DTYPES

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.interp.dot import leaf8
from rlk.testing.bits import assert_same_bits, differing

NEEDS = ("logp", "lse", "entropy")
D, V = 72, 3001


def head(dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return hidden, weight and ids; one id is ignored."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(2, 7, D).to(dtype), (torch.randn(V, D) * 0.4).to(dtype)
    ids = torch.randint(0, V, (2, 7))
    ids[0, 1] = -100
    return hidden, weight, ids


OPTIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "temperature by row": {"temperature": torch.linspace(0.5, 2.0, 14).view(2, 7)},
    "softcap and scale": {"softcap": 20.0, "logit_scale": 1.5},
    "mask": {"mask": torch.arange(14).view(2, 7) % 3 != 0},
}


@pytest.mark.parametrize("math", ["portable", "sm90"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPTIONS)
def test_linear_logp_has_the_bits_of_logp_of_the_product(name: str, dtype: torch.dtype, math: str) -> None:
    hidden, weight, ids = head(dtype)
    options = {**OPTIONS[name], "needs": NEEDS, "math": math}
    linear = ops.linear_logp(hidden, weight, ids, **options)
    logits = ops.matmul(hidden, weight, out_dtype=torch.float32)
    for field, got, want in zip(NEEDS, linear, ops.logp(logits, ids, **options), strict=False):
        assert_same_bits(got, want, field)


def test_logits_rounded_to_16_bits_are_seen() -> None:
    """The control: the same fold over rounded logits."""
    hidden, weight, ids = head()
    rounded = ops.logp(ops.matmul(hidden, weight), ids)
    assert differing(ops.linear_logp(hidden, weight, ids).logp, rounded.logp) > 10


def test_a_bias_is_added_to_the_logits() -> None:
    hidden, weight, ids = head()
    bias = torch.randn(V).bfloat16()
    linear = ops.linear_logp(hidden, weight, ids, bias=bias)
    logits = ops.matmul(hidden, weight, out_dtype=torch.float32) + bias.float()
    assert_same_bits(linear.logp, ops.logp(logits, ids).logp, "logp")


@pytest.mark.parametrize("name", OPTIONS)
def test_linear_logp_is_near_float64(name: str) -> None:
    hidden, weight, ids = head()
    got = ops.linear_logp(hidden, weight, ids, needs=NEEDS, **OPTIONS[name])
    want = ops.linear_logp.reference(hidden, weight, ids, needs=NEEDS, **OPTIONS[name])
    for field, a, b in zip(NEEDS, got, want, strict=False):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=5e-5, msg=field)


def test_a_row_does_not_know_its_neighbours() -> None:
    hidden, weight, ids = head()
    rows, names = hidden.view(14, D), ids.view(14)
    together = ops.linear_logp(rows, weight, names, needs=NEEDS)
    order = torch.randperm(14)
    permuted = ops.linear_logp(rows[order], weight, names[order], needs=NEEDS)
    alone = [ops.linear_logp(rows[i], weight, names[i], needs=NEEDS) for i in range(14)]
    for i, field in enumerate(NEEDS):
        assert_same_bits(permuted[i], together[i][order], field)
        assert_same_bits(torch.stack([a[i] for a in alone]), together[i], field)


@pytest.mark.parametrize("m", [1, 2, 33])
def test_rows_of_a_product_do_not_depend_on_their_number(m: int) -> None:
    torch.manual_seed(1)
    x, w = torch.randn(40, 200).bfloat16(), torch.randn(30, 200).bfloat16()
    residual, bias = torch.randn(40, 30).bfloat16(), torch.randn(30).bfloat16()
    whole = ops.matmul(x, w, bias=bias, residual=residual)
    assert_same_bits(ops.matmul(x[:m], w, bias=bias, residual=residual[:m]), whole[:m], "y")
    exact = ops.matmul.reference(x, w, bias=bias, residual=residual)
    torch.testing.assert_close(whole.double(), exact, rtol=2**-7, atol=1e-2)


def test_two_halves_of_k_added_have_other_bits() -> None:
    """The control: split-K."""
    torch.manual_seed(2)
    x, w = torch.randn(40, 512).bfloat16(), torch.randn(64, 512).bfloat16()
    whole = ops.matmul(x, w, out_dtype=torch.float32)
    halves = [ops.matmul(x[:, p], w[:, p], out_dtype=torch.float32) for p in (slice(256), slice(256, 512))]
    assert differing(whole, halves[0] + halves[1]) > 100


WRONG: dict[str, tuple[dict[str, object], Code]] = {
    "a limit in words": ({"keep_logits": "always"}, Code.ARG_VALUE),
    "a limit below zero": ({"keep_logits": -1}, Code.ARG_VALUE),
    "a limit that is a flag": ({"keep_logits": True}, Code.ARG_VALUE),
    "a shard without a group": ({"vocab_start": 8}, Code.ARG_VALUE),
    "a buffer of 16 bits": ({"weight_grad_out": torch.zeros(V, D).bfloat16()}, Code.ARG_DTYPE),
    "a buffer of another shape": ({"weight_grad_out": torch.zeros(D, V)}, Code.ARG_VALUE),
    "a transposed buffer": ({"weight_grad_out": torch.zeros(D, V).T}, Code.ARG_VALUE),
    "a buffer that is no tensor": ({"weight_grad_out": [0.0]}, Code.ARG_TYPE),
    "a result of logp alone": ({"needs": ("argmax",)}, Code.ARG_VALUE),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_an_option_cannot_be_is_refused(name: str) -> None:
    options, code = WRONG[name]
    with pytest.raises(LaunchError) as refused:
        ops.linear_logp(*head(), **options)
    assert refused.value.code is code and next(iter(options)) in str(refused.value)


def test_factors_of_two_dtypes_are_refused() -> None:
    hidden, weight, ids = head()
    with pytest.raises(LaunchError) as wrong:
        ops.linear_logp(hidden, weight.float(), ids)
    assert wrong.value.code is Code.ARG_DTYPE
    with pytest.raises(LaunchError) as unknown:
        ops.matmul(hidden, weight, order="fastest")
    assert unknown.value.code is Code.ARG_VALUE


def test_inputs_without_a_gradient_are_refused() -> None:
    hidden, weight, ids = head()
    temperature = torch.ones(ids.shape, requires_grad=True)
    with pytest.raises(LaunchError) as refused:
        ops.linear_logp(hidden, weight, ids, temperature=temperature)
    assert refused.value.code is Code.NOT_DIFFERENTIABLE and "for temperature" in str(refused.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 30, 200), (7, 5, 3), (40, 33, 1024), (3, 2, 129)])
def test_leaf8_is_eight_chains_and_a_pairwise_tree(dtype: torch.dtype, m: int, n: int, k: int) -> None:
    torch.manual_seed(3)
    x, w = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
    got = ops.matmul(x, w, order="leaf8", out_dtype=torch.float32)
    assert_same_bits(got, leaf8(patterns(x), patterns(w), DTYPES[dtype]), "y")
    if k > 500:
        assert differing(got, ops.matmul(x, w, out_dtype=torch.float32)) > 100


def patterns(x: torch.Tensor) -> np.ndarray:
    """Return a tensor as the arithmetic of contractions reads it."""
    return x.view(torch.uint16).numpy() if x.dtype is torch.bfloat16 else x.numpy()


def test_an_id_outside_the_vocabulary_is_nan_in_its_row_only() -> None:
    hidden, weight, ids = head()
    ids[1, 2], ids[1, 3] = V, -5
    made = ops.linear_logp(hidden, weight, ids).logp.isnan()
    assert made[1, 2] and made[1, 3] and int(made.sum()) == 2


def test_a_buffer_is_added_to_outside_of_compiled_graphs() -> None:
    hidden, weight, ids = head()

    def step(x: torch.Tensor, w: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        return ops.linear_logp(x * 2, w, ids, weight_grad_out=buffer).logp.sum() + 1

    found = []
    for run in (step, torch.compile(step, backend="aot_eager")):
        x, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        buffer = torch.zeros(weight.shape)
        loss = run(x, w, buffer)
        loss.backward()
        assert x.grad is not None and w.grad is None
        found.append((loss.detach(), x.grad, buffer))
    for eager, compiled in zip(*found, strict=True):
        assert_same_bits(eager, compiled)
