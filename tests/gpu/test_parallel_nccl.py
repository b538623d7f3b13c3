"""Two devices over NCCL have the bits of one: tensor, sequence and data parallelism, forward to optimizer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import rank_cases
import tensor_parallel_cases as cases
import torch
import torch.distributed as dist
from gpu.parallel_ranks import PARTS, SECONDS, WAYS, tiny
from parallel_cases import MICRO_BATCHES, MOST, active
from rank_cases import Found

from rlk import ops
from rlk.nn.ranks import Ranks
from rlk.parallel.plan import Cut, cuts_of
from rlk.testing.bits import assert_same_bits, differing

WORLD = 2
BACKEND, DEVICE = "nccl", torch.device("cuda", 0)
Both = tuple[list[Found], Found]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Return what each of two ranks finds, and what one device finds meanwhile."""
    if torch.cuda.device_count() < WORLD or not dist.is_nccl_available():
        pytest.skip("needs two devices and NCCL")

    def run(part: str) -> list[Found]:
        folder, (ranks, _) = tmp_path_factory.mktemp("parallel"), PARTS[part]
        return rank_cases.run(BACKEND, ranks, folder, "gpu.parallel_ranks", SECONDS, part)

    names = [name for name, (ranks, _) in PARTS.items() if ranks <= WORLD]
    with ThreadPoolExecutor(len(names)) as pool:
        found = dict(zip(names, pool.map(run, names), strict=True))
    ranks = [{"tp": a, "dp": b} for a, b in zip(found["tensor"], found["data"], strict=True)]
    return ranks, found["weights alone"][0] | found["batches alone"][0]


def cuts(name: str, rank: int) -> dict[str, Cut]:
    """Return a rank's part of each result that ranks share: gradients, and weights after a step."""
    found = cuts_of(tiny(name, "cpu"), Ranks(dist.ProcessGroup(rank, WORLD), WORLD, rank))
    return found | {f"stepped {key}": cut for key, cut in found.items()}


def unequal(got: Found, want: Found, parts: dict[str, Cut]) -> dict[str, int]:
    assert got.keys() == want.keys()
    return {name: differing(got[name], x[parts.get(name, ())]) for name, x in want.items()}


# --- tensor and sequence parallelism ---


@pytest.mark.parametrize(("name", "sp"), WAYS)
def test_two_devices_train_as_one(name: str, sp: bool, both: Both) -> None:
    """Log-probs, entropies, logits, all gradients, and the weights after a step."""
    ranks, one = both
    for rank, found in enumerate(ranks):
        made = unequal(found["tp"][cases.way(name, WORLD, sp)], one[name], cuts(name, rank))
        assert not any(made.values()), made
    assert all(one[name][key].any() for key in one[name] if key.endswith("weight"))


def test_a_patched_model_on_two_devices_trains_as_one_of_rlk(both: Both) -> None:
    pytest.importorskip("transformers")
    name, (ranks, one) = "qwen3, tied", both
    want = {key: x for key, x in one[name].items() if not key.startswith("stepped")}
    want["cached"] = want["logits"][1, : cases.PROMPT + 3]
    for rank, found in enumerate(ranks):
        made = unequal(found["tp"]["patched"], want, cuts(name, rank))
        assert not any(made.values()), made


def test_a_rollout_on_two_devices_has_the_bits_of_training_on_one(both: Both) -> None:
    ranks, one = both
    rows = len(one["rollout"]["logits"])
    for found in ranks:
        made = found["tp"]["rollout"]
        assert_same_bits(made["logits"], one["training of the rollout"][:rows])
        for name, x in one["rollout"].items():
            assert_same_bits(made[name], x, name)


def test_layers_on_two_devices_have_the_bits_of_one(both: Both) -> None:
    x, w, _ = (t.to(DEVICE) for t in cases.factors())
    want = ops.matmul(x, w, leaves=4).cpu()
    tree = ops.matmul(x, w, leaves=4, out_dtype=torch.float32).cpu()
    table = ops.embedding(cases.strange_ids(), cases.strange_table())
    ranks, one = both
    for rank, found in enumerate(ranks):
        made = found["tp"]
        for name, x in (("tree", tree), ("row", want), ("column", want)):
            assert_same_bits(made["products"][name], x, name)
        assert_same_bits(made["embedded"]["rows"], table)
        own = Ranks(dist.ProcessGroup(rank, WORLD), WORLD, rank, sequence=True).rows(167)
        heads = slice(4 * rank, 4 * rank + 4)
        for kind, part in (("rows", (own,)), ("heads", (slice(None), heads))):
            for name, x in one["norms"][kind].items():
                whole = "whole" in name
                assert_same_bits(made["norms"][kind][name], x if whole else x[part], f"{kind}: {name}")


def test_other_sums_are_seen(both: Both) -> None:
    """The controls: parts that are rounded first, a plain sum of halves, tokens cut within a piece."""
    x, w, _ = (t.to(DEVICE) for t in cases.factors())
    plain = ops.matmul(x, w, out_dtype=torch.float32).cpu()
    ranks, one = both
    name = "qwen3, tied"
    want = {key: x for key, x in one[name].items() if not key.startswith("stepped")}
    for rank, found in enumerate(ranks):
        made = found["tp"]
        assert differing(made["products"]["plain"], plain) > 1000
        counted = unequal(made["rounded first"], want, cuts(name, rank))
        assert all(counted[key] > 5 for key in ("logp", "entropy", "logits")), counted
        assert sum(n > 0 for n in counted.values()) > len(counted) // 2, counted
        for key in ("whole d_weight", "whole d_weight of a total"):
            assert differing(made["norms"]["pieces of 32"][key], one["norms"]["rows"][key]) > 5


# --- data parallelism ---


def assert_same(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() == want.keys()
    for name, x in got.items():
        assert_same_bits(x, want[name], name)


def check_steps(ranks: list[Found], want: Found) -> None:
    for made in ranks:
        assert_same(made["gradients"], want["gradients"])
        assert_same(made["masters"], want["masters"])
        assert_same({n: w.bfloat16() for n, w in made["weights"].items()}, want["weights"])
        assert_same_bits(torch.stack(made["norms"]), torch.stack(want["norms"]))
    assert min(want["norms"]) > MOST  # the gradients were clipped


def test_steps_of_four_devices_as_a_square_are_those_of_one(both: Both, tmp_path: Path) -> None:
    """HSDP, with torch's own sums as the control, and FSDP2 of the shares of tensor parallelism."""
    if torch.cuda.device_count() < 4:
        pytest.skip("needs four devices")
    ranks, want = (
        rank_cases.run(BACKEND, 4, tmp_path, "gpu.parallel_ranks", SECONDS, "square"),
        both[1]["steps"],
    )
    for kind in ("copies", "shares"):
        check_steps([found[kind]["fsdp"] for found in ranks], want)
    other = ranks[0]["copies"]["torch"]
    assert sum(differing(other[name], x) for name, x in want["gradients"].items())


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_steps_of_two_devices_are_those_of_one(kind: str, both: Both) -> None:
    """Gradients, norms, clipping, masters and weights after two steps of five micro-batches."""
    ranks, one = both
    check_steps([found["dp"][kind] for found in ranks], one["steps"])
    counted = sorted(n for found in ranks for n in found["dp"]["ddp"]["counted"])
    assert counted == list(range(MICRO_BATCHES))
    assert all(int(found["dp"]["tokens"]) == sum(map(active, counted)) for found in ranks)


def test_stochastic_rounding_on_two_devices_is_that_of_one(both: Both) -> None:
    ranks, one = both
    for found in ranks:
        assert_same(found["dp"]["stochastic"], one["stochastic"])
    assert any(differing(x, one["steps"]["weights"][name]) for name, x in one["stochastic"].items())


def test_torchs_own_reduction_has_other_bits(both: Both) -> None:
    """The control."""
    ranks, one = both
    want = one["steps"]["gradients"]
    assert sum(differing(ranks[0]["dp"]["torch"][name], x) for name, x in want.items())
