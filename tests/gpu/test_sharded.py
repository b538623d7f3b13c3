"""On devices a vocabulary that ranks share has the bits of one rank, and of the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import rank_cases
import torch
from head_cases import IGNORED, ON_DEVICES, TEMPERATURE, Head, log_probs, shard_of
from linear_cases import DTYPES, cotangents, head
from rank_cases import Found
from rank_turns import Exchange, in_turn

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.interp.dot import leaf8
from rlk.ir.dotmodel import DotModel, validated
from rlk.runtime.binding.invocation import target_of
from rlk.testing.bits import assert_same_bits, differing

MOST_RANKS = 4
OF_THE_SHARD = ("d_weight", "buffer")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def contractions() -> None:
    """Skip where the dots of the device have another model, or none."""
    on = target_of(torch.device("cuda", 0))
    if on is None or DotModel.CHAIN16 not in validated(on.name):
        pytest.skip("the dots of this device have another model, or none")


def model() -> str:
    """Return the option that gives the oracle the exp2 of this device."""
    on = target_of(torch.device("cuda", 0))
    assert on is not None
    return on.softmax.value


def assert_same_found(got: Found, want: Found, world: int, rank: int) -> None:
    """Results and d_hidden are the whole's on every rank; of the weight's gradient a rank has its rows."""
    assert got.keys() == want.keys()
    for name, x in want.items():
        whole = x[shard_of(rank, world, len(x))] if name in OF_THE_SHARD else x
        assert_same_bits(got[name], whole, f"{name} on rank {rank} of {world}")


# --- a process for each device ---

Both = tuple[list[Found], dict[str, Found]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Return what every rank finds, and what one device with the whole weight finds meanwhile."""
    devices = min(torch.cuda.device_count(), MOST_RANKS)
    if devices < 2 or not torch.distributed.is_nccl_available():
        pytest.skip("needs two devices and NCCL")
    world = 1 << (devices.bit_length() - 1)
    folder = tmp_path_factory.mktemp("heads")
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(rank_cases.run, "nccl", world, folder, "head_cases")
        alone = {name: log_probs(case, torch.device("cuda", 0)) for name, case in ON_DEVICES.items()}
        yield found.result(), alone


@pytest.mark.parametrize("name", ON_DEVICES)
def test_every_device_has_the_bits_of_one(name: str, ranks: Both) -> None:
    found, alone = ranks
    for rank, each in enumerate(found):
        assert_same_found(each["heads"][name], alone[name], len(found), rank)


# --- ranks that take turns on one device ---

SMALL = Head(rows=(4, 33), depth=72, vocabulary=8 * 130)
IN_TURN = {
    "plain": (replace(SMALL, dtype=torch.bfloat16, given=("logp",)), 2),
    "a buffer, and all options": (
        replace(SMALL, options=("bias", *TEMPERATURE, *IGNORED), keep=True, buffer=True, edges=True),
        8,
    ),
}


@pytest.mark.parametrize("name", IN_TURN)
def test_ranks_of_one_device_have_the_bits_of_the_oracle(name: str) -> None:
    case, world = IN_TURN[name]
    device = torch.device("cuda", torch.cuda.current_device())
    found = in_turn(lambda rank, group: log_probs(case, device, world, rank, group), Exchange(world))
    want = log_probs(replace(case, math=model()), CPU)
    for rank, each in enumerate(found):
        assert_same_found(each, want, world, rank)


# --- a buffer that gradients are added to ---


def accumulated(device: torch.device | str, seeds: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return what is in a buffer after several gradients."""
    hidden, weight, ids = (x.to(device) for x in head((9, 33), 72, 1001, dtype))
    buffer = torch.zeros(weight.shape, device=device)
    weight.requires_grad_()
    for seed in seeds:
        given = cotangents((9, 33), seed=seed)["logp"].to(device)
        ops.linear_logp(hidden, weight, ids, weight_grad_out=buffer, math=model()).logp.backward(given)
    assert weight.grad is None
    return buffer.cpu()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_buffer_adds_up_in_the_order_of_the_calls(dtype: torch.dtype) -> None:
    got = accumulated("cuda", (0, 1, 2), dtype)
    assert_same_bits(got, accumulated("cpu", (0, 1, 2), dtype), "buffer")
    assert differing(got, accumulated("cuda", (2, 1, 0), dtype)) > got.numel() // 100


def test_a_buffer_on_another_device_is_refused() -> None:
    hidden, weight, ids = (x.cuda() for x in head((3,), 8, 16))
    with pytest.raises(LaunchError, match="weight_grad_out") as refused:
        ops.linear_logp(hidden, weight.requires_grad_(), ids, weight_grad_out=torch.zeros(16, 8))
    assert refused.value.code is Code.ARG_VALUE


# --- products of order leaf8 ---


def definition(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the f32 sum of bf16 factors as the rule of contractions has it."""
    a, b = (t.view(torch.uint16).numpy() for t in (x, w))
    return torch.from_numpy(np.array(leaf8(a, b, DTYPES[torch.bfloat16])))


@pytest.mark.parametrize("m", [1, 7, 16, 64, 200, 1030])
def test_a_product_of_any_number_of_rows_has_the_bits_of_eight_chains(m: int) -> None:
    drawn = torch.Generator().manual_seed(m)
    x, w = (torch.randn(n, 1000, generator=drawn).bfloat16() for n in (m, 72))
    got = ops.matmul(x.cuda(), w.cuda(), order="leaf8", out_dtype=torch.float32)
    assert_same_bits(got.cpu(), definition(x, w), f"M = {m}")


def test_chain16_is_another_order() -> None:
    """The control."""
    x, w = (torch.randn(n, 1000, generator=torch.Generator().manual_seed(n)).bfloat16() for n in (64, 72))
    got = ops.matmul(x.cuda(), w.cuda(), out_dtype=torch.float32)
    assert differing(got.cpu(), definition(x, w)) > got.numel() // 4
