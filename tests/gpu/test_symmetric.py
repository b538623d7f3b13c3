"""Between devices, sums by symmetric memory have the bits of those that NCCL carries, also in CUDA graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rank_cases
import torch
from gpu.symmetric_ranks import SOON, given
from rank_cases import Found

from rlk.interp.floats import tree_sum
from rlk.ir.tree import Tree
from rlk.testing.bits import assert_same_bits, differing

SECONDS = 150


def world() -> int:
    devices = min(torch.cuda.device_count(), 8)
    if devices < 2 or not torch.distributed.is_nccl_available():
        pytest.skip("needs two devices and NCCL")
    return 1 << (devices.bit_length() - 1)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    count, folder = world(), tmp_path_factory.mktemp("symmetric")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RLK_TRANSPORT", "symmetric")  # or an error
        return rank_cases.run("nccl", count, folder, "gpu.symmetric_ranks", SECONDS)


def test_sums_have_the_bits_of_those_that_nccl_carries(ranks: list[Found]) -> None:
    for found in ranks:
        wrong = {name: n for name, n in found["differing"].items() if n}
        assert not wrong and len(found["differing"]) > 100, wrong


def test_both_forms_have_the_bits_of_the_tree(ranks: list[Found]) -> None:
    device = torch.device("cuda", 0)
    every = [given(4096, torch.float32, r, device).cpu().numpy() for r in range(len(ranks))]
    want = torch.from_numpy(tree_sum(np.stack(every), 0, Tree.pairwise))
    rounded = sum(torch.from_numpy(x).bfloat16().float() for x in every)  # the control
    for rank, found in enumerate(ranks):
        for name in ("small", "words", "chunks"):
            assert_same_bits(found[name], want, f"{name} on rank {rank}")
            assert differing(found[name], rounded) > 1000


def test_calls_of_two_streams_repeat_their_bits_and_never_wait(ranks: list[Found]) -> None:
    assert [found["repeats"] for found in ranks] == [0] * len(ranks)


def test_a_graph_replays_sums(ranks: list[Found]) -> None:
    assert [found["graph"] for found in ranks] == [0] * len(ranks)


def test_numbers_of_calls_go_on_over_a_wrap(ranks: list[Found]) -> None:
    assert [found["wrap"] for found in ranks] == [0] * len(ranks)


def test_a_rank_that_died_ends_the_others(tmp_path: Path) -> None:
    """After the timeout of the group, not never."""
    count = world()
    found = rank_cases.run("nccl", count, tmp_path, "gpu.symmetric_ranks", 90, "dies")
    for rank, each in enumerate(found):
        if rank != 1:
            assert each["error"] and each["seconds"] < 4 * SOON.seconds, each
