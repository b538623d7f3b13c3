"""Between devices, sums over ranks have the bits of one rank that adds the same terms, and nothing waits."""

from __future__ import annotations

import pytest
import rank_cases
import torch
from rank_cases import GATHERS, SUMS, Found, shown, wide

from rlk.interp.floats import tree_sum
from rlk.ir.tree import Tree
from rlk.runtime.call.collective import pairwise_sum
from rlk.testing.bits import assert_same_bits, differing

MOST_RANKS = 4


@pytest.fixture(scope="module", params=["symmetric", "backend"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    devices = min(torch.cuda.device_count(), MOST_RANKS)
    if devices < 2 or not torch.distributed.is_nccl_available():
        pytest.skip("needs two devices and NCCL")
    world = 1 << (devices.bit_length() - 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RLK_TRANSPORT", request.param)
        return rank_cases.run("nccl", world, tmp_path_factory.mktemp("ranks"))


def gathered(name: str, world: int) -> torch.Tensor:
    return torch.stack([shown(SUMS[name](rank)) for rank in range(world)])


@pytest.mark.parametrize("name", SUMS)
def test_every_rank_gets_the_bits_of_one_that_adds_all_terms(name: str, ranks: list[Found]) -> None:
    terms = gathered(name, len(ranks))
    alone = torch.empty(terms.shape[1:], device="cuda")
    pairwise_sum(terms.cuda(), out=alone)
    want = tree_sum(terms.numpy(), 0, Tree.pairwise)
    assert_same_bits(alone, want, f"{name} on one device")
    for rank, found in enumerate(ranks):
        assert_same_bits(found["sums"][name], want, f"{name} on rank {rank} of {len(ranks)}")
        assert_same_bits(found["sums, not gathered"][name], want, f"{name} on rank {rank} of {len(ranks)}")


def test_other_orders_are_seen(ranks: list[Found]) -> None:
    """The control: the halves first, where there is more than one addition."""
    if len(ranks) < 4:
        pytest.skip("two terms have one order")
    terms = gathered("many", len(ranks)).numpy()
    wrong = tree_sum(terms, 0, Tree.halving)
    assert differing(wrong, ranks[0]["sums"]["many"]) > terms[0].size // 50


@pytest.mark.parametrize("name", GATHERS)
def test_gathering_stacks_in_rank_order(name: str, ranks: list[Found]) -> None:
    want = torch.stack([shown(GATHERS[name](rank)) for rank in range(len(ranks))])
    for found in ranks:
        assert_same_bits(found["gathers"][name], want, name)


def test_a_hundred_calls_repeat_their_bits_and_never_wait(ranks: list[Found]) -> None:
    assert [found["repeats"] for found in ranks] == [0] * len(ranks)


def test_a_group_sums_its_own_ranks(ranks: list[Found]) -> None:
    odd = torch.stack([wide(77, seed=rank) for rank in range(1, len(ranks), 2)]).numpy()
    for rank, found in enumerate(ranks):
        assert_same_bits(found["groups"]["alone"], wide(77, seed=rank))
        if rank % 2:
            assert_same_bits(found["groups"]["odd"], tree_sum(odd, 0, Tree.pairwise))


def test_refusals_keep_the_ranks_in_step(ranks: list[Found]) -> None:
    for found in ranks:
        codes = {name: code for name, (code, _) in found["errors"].items()}
        assert codes.pop("a gradient that is off") == "" and all(codes.values()), codes
        assert codes["a device without a backend"] == "ARG_DEVICE"
