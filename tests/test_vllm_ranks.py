"""vLLM with tensor parallelism: two ranks have the log-probs, the id and the weights of a trainer on one."""

from __future__ import annotations

import os
from copy import deepcopy

import pytest
import torch

if os.environ.get("RLK_REQUIRE_VLLM") != "1":
    pytest.importorskip("vllm", reason="make test-vllm has vLLM")

import rank_cases
from nn_cases import texts
from rank_cases import Found
from test_vllm_models import GEMMA, LLAMA
from vllm_cases import saved
from vllm_rank_cases import changed

from rlk.nn import CausalLM
from rlk.sync import digest

WORLD, SECONDS = 2, 240
Both = tuple[dict[str, CausalLM], list[Found]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Return trainers of models, and what each rank of the engines finds."""
    folder = tmp_path_factory.mktemp("ranks")
    policies = {
        "V1": saved(folder / "V1", **LLAMA, num_hidden_layers=1),  # its row-parallel layers have biases
        "V2": saved(folder / "V2", **GEMMA, rlk_leaves=4),
    }
    return policies, rank_cases.run("gloo", WORLD, folder, "vllm_rank_cases", SECONDS)


def differing(policy: CausalLM, found: Found) -> tuple[int, int]:
    """Return how many log-probs of prompts, and of drawn tokens, differ from the trainer's."""
    counts = [0, 0]
    for ids, one in zip(texts((5, 40)), found["requests"], strict=True):
        with torch.no_grad():
            want = policy.logps(torch.tensor([*ids, *one["ids"]])).logp[1:].view(torch.int32)
        counts[0] += int((want[: len(ids) - 1] != one["prompt"]).sum())
        counts[1] += int((want[len(ids) - 1 :] != one["logps"]).sum())
    return counts[0], counts[1]


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_two_ranks_have_the_trainers_log_probs_id_and_weights(runner: str, both: Both) -> None:
    policies, ranks = both
    policy = policies[runner]
    want = digest(policy)
    for found in (each[runner] for each in ranks):
        assert differing(policy, found) == (0, 0)
        assert found["id"] == policy.numerics_id("cpu")
        assert (sorted(found["names"]), found["total"]) == (sorted(want.weights), want.total)
        assert found["unseeded"] == ranks[0][runner]["unseeded"]


def test_weights_go_from_fsdp2_to_shares_and_from_shares_to_the_engine(both: Both) -> None:
    policies, ranks = both
    policy = changed(deepcopy(policies["V1"]))
    for found in (each["V1"]["updated"] for each in ranks):
        assert found["total"] == digest(policy).total
        assert differing(policy, found) == (0, 0)
        assert min(differing(policies["V1"], found)) > 0  # the control: the weights of before


def test_plain_sums_of_ranks_do_not(both: Both) -> None:
    """The control."""
    policies, ranks = both
    assert all(min(differing(policies["V1"], each["V1"]["plain sums"])) > 0 for each in ranks)
