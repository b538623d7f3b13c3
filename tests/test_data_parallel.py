"""Training steps of any number of ranks, by DDP and by FSDP2, have the bits of one process."""

from __future__ import annotations

from collections import Counter
from typing import Any

import parallel_cases
import pytest
import rank_cases
import torch
import torch.distributed as dist
from parallel_cases import LENGTHS, MICRO_BATCHES, MOST, PARTS, active, loss_of, one_norm, one_step, part_of
from rank_cases import Found
from torch.distributed.device_mesh import init_device_mesh

from rlk.errors import Code, LaunchError
from rlk.parallel import accumulate_in_order, agree, global_count
from rlk.runtime.call import alike
from rlk.runtime.call.alike import check_alike, differences, text_of
from rlk.testing.bits import assert_same_bits, differing

TOKENS = sum(map(active, range(MICRO_BATCHES)))


@pytest.fixture(scope="module")
def alone() -> Found:
    """Return the steps of one process that runs all micro-batches in order."""
    return parallel_cases.steps(loss_of(), torch.tensor(TOKENS))


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """Return what four processes found: together, and as two pairs."""
    return rank_cases.run("gloo", 4, tmp_path_factory.mktemp("ranks"), "parallel_cases", seconds=400)


@pytest.fixture(params=["2-first", "2-second", "4"])
def ranks(request: pytest.FixtureRequest, every: list[Found]) -> list[Found]:
    world, _, pair = request.param.partition("-")
    members = {"": slice(4), "first": slice(2), "second": slice(2, 4)}[pair]
    return [found[world] for found in every[members]]


def assert_same(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() == want.keys()
    for name, x in got.items():
        assert_same_bits(x, want[name], name)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_gradients_norms_and_weights_are_those_of_one_process(
    kind: str, ranks: list[Found], alone: Found
) -> None:
    check_steps([found[kind] for found in ranks], alone)


@pytest.mark.parametrize("kind", ["copies", "shares"])
def test_steps_of_fsdp2_over_two_dims_of_a_mesh_are_those_of_one_process(
    kind: str, every: list[Found], alone: Found
) -> None:
    """HSDP, and FSDP2 of the shares of tensor parallelism, half of it with sequence parallelism."""
    check_steps([found[kind]["fsdp"] for found in every], alone)
    runs = 4 if kind == "copies" else 2  # ranks of a share run the same micro-batches
    counted = sorted(n for found in every[:runs] for n in found[kind]["fsdp"]["counted"])
    assert counted == list(range(MICRO_BATCHES))


def test_a_wrapper_around_shares_has_the_digest_and_the_norm_of_whole_weights(every: list[Found]) -> None:
    want = parallel_cases.measured(loss_of().float())
    for found in every:
        assert found["shares"]["digest"] == want["digest"]
        assert_same_bits(found["shares"]["norm"], want["norm"])
        assert differing(found["shares"]["norm without marks"], want["norm"])


def test_sums_of_torch_over_copies_have_other_bits(every: list[Found], alone: Found) -> None:
    """The control."""
    made = every[0]["copies"]["torch"]
    assert sum(differing(made[name], want) for name, want in alone["gradients"].items())


def test_copies_without_shards_are_refused(every: list[Found]) -> None:
    for found in every:
        code, text = found["copies alone"]
        assert code == Code.ARG_VALUE.name and "(4, 1)" in text and "two shards or more" in text


def test_shares_in_a_group_of_copies_are_refused(every: list[Found]) -> None:
    for found in every:
        for code, text in found["shares for copies"]:
            assert code == Code.ARG_VALUE.name and "share them. Make the model anew" in text


def check_steps(ranks: list[Found], alone: Found) -> None:
    for made in ranks:
        assert_same(made["gradients"], alone["gradients"])
        assert_same(made["masters"], alone["masters"])
        weights = {n: w.bfloat16() for n, w in made["weights"].items()}
        assert_same(weights, alone["weights"])
        assert_same_bits(torch.stack(made["norms"]), torch.stack(alone["norms"]))
    assert min(alone["norms"]) > MOST  # the gradients were clipped


def test_torchs_own_reduction_has_other_bits(ranks: list[Found], alone: Found) -> None:
    """The control: FSDP2 alone adds the sum of ranks to the sum before; the values are as good."""
    for name, want in alone["gradients"].items():
        torch.testing.assert_close(ranks[0]["torch"][name], want, rtol=1e-3, atol=1e-4)
    moved = sum(differing(ranks[0]["torch"][name], want) for name, want in alone["gradients"].items())
    assert moved  # few: sums of numbers that bf16 holds are often exact in f32


def test_ddps_own_reduction_has_other_bits(ranks: list[Found], alone: Found) -> None:
    """The control: sums of each rank's micro-batches, then of ranks, in the dtype of the model."""
    made = ranks[0]["ddp by torch"]
    for name, want in alone["gradients"].items():
        assert (made[name] - want).norm() < 0.02 * want.norm()
        assert differing(made[name], want), name


def test_every_micro_batch_counts_once(ranks: list[Found]) -> None:
    counted = sorted(n for found in ranks for n in found["ddp"]["counted"])
    assert counted == list(range(MICRO_BATCHES)) == list(range(len(LENGTHS)))
    assert len(ranks) * (MICRO_BATCHES // len(ranks)) < MICRO_BATCHES  # the last round is incomplete


def test_tokens_of_all_ranks_are_counted(ranks: list[Found]) -> None:
    assert [int(found["tokens"]) for found in ranks] == [TOKENS] * len(ranks)


def test_stochastic_rounding_does_not_depend_on_ranks(every: list[Found]) -> None:
    want = parallel_cases.steps(loss_of(), torch.tensor(TOKENS), seed=5)["weights"]
    for found in every:
        assert_same(found["2"]["stochastic"], want)
    assert any(differing(x, every[0]["2"]["ddp"]["weights"][name]) for name, x in want.items())


@pytest.mark.parametrize("name", PARTS)
def test_a_shard_is_updated_and_measured_as_a_part_of_the_whole(name: str, ranks: list[Found]) -> None:
    p, g = part_of(name), part_of(name, True)
    if name == "columns" and len(ranks) == 2:
        flat = one_norm(p.t().contiguous(), g.t().contiguous())
        assert differing(flat, one_norm(p, g))  # the control: another order of the same numbers
    for found in ranks:
        assert_same_bits(found["parts"][name]["weight"], one_step(p, g))
        assert_same_bits(found["parts"][name]["norm"], one_norm(p, g))


def test_a_backward_without_exchange_is_an_error(every: list[Found]) -> None:
    for rank, found in enumerate(every):
        code, text = found["2"]["misuse"]["no_sync"]
        assert code == Code.GRADIENT_ROUND.name, rank
        assert "14 parameters got no gradient: module.model.model.embed_tokens.weight, " in text, text
        assert " and 10 more\n" in text
        for code, text in found["2"]["misuse"]["second calls"]:
            assert code == Code.ARG_VALUE.name and "what the first call returned" in text


def test_ranks_with_other_numbers_of_micro_batches_raise_one_error(every: list[Found]) -> None:
    for rank, found in enumerate(every):
        first = rank // 2 * 2
        code, text = found["2"]["misuse"]["counts"]
        assert code == "RANKS_DIFFER", text
        assert f"count of numbers(): 4 on rank {first}, 5 on rank {first + 1}" in text
        for name, said in (("other", "4 on rank 0, 5"), ("bad", "4 on rank 0, str 4")):
            code, text = found["counts"][name]  # of two dims of a mesh, of whose groups half have the same
            assert code == "RANKS_DIFFER" and f"count of numbers(): {said} on rank 3" in text
        assert found["counts"]["bad on all"][0] == Code.ARG_VALUE.name
        assert found["counts"]["same"] == ("", "nothing was raised")


@pytest.mark.parametrize("name", ["evaluated", "list", "frozen"])
def test_sums_of_fsdp2_are_those_of_one_process(name: str, every: list[Found]) -> None:
    for found in every:
        made = found["2"]["products"]
        want = made["frozen alone" if name == "frozen" else "alone"]
        assert len(want) == 3 - (name == "frozen")
        assert_same(made[name], want)


@pytest.mark.parametrize("name", ["other", "unused"])
def test_a_parameter_of_fsdp2_without_a_gradient_is_an_error(name: str, every: list[Found]) -> None:
    for found in every:
        code, text = found["2"]["products"][name]
        left_out = "first" if name == "other" else "third"
        assert code == Code.GRADIENT_ROUND.name
        assert f"1 parameter got no gradient: {left_out}.weight" in text


def test_the_documented_loop_runs(every: list[Found]) -> None:
    for found in every:
        assert int(found["documented"]["tokens"]) == TOKENS
        assert found["documented"]["norm"] > 0
        assert found["documented"]["warned"] == []  # of FSDP2: of views that its modules return
        assert_same_bits(found["documented"]["norm"], every[0]["documented"]["norm"])


REFUSED = {
    "ignored": "trained parameters FSDP2 shards",
    "around fsdp": "0 is a FSDPProduct",
    "around ddp": "0 is a DistributedDataParallel",
    "outside": "outside of numbers(): a gradient",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_be_summed_is_refused(name: str, every: list[Found]) -> None:
    for found in every:
        assert REFUSED[name] in found["2"]["products"][name][1]


# --- ranks that disagree -----------------------------------------------------


def test_facts_of_many_elements_are_told_apart() -> None:
    ids = torch.arange(4000)
    other = ids.clone()
    other[2000] += 1
    assert str(ids) == str(other)  # what torch shows of them
    for form in (lambda x: x, lambda x: [x], lambda x: {"ids": (x,)}, lambda x: x.numpy()):
        assert text_of(form(ids)) == text_of(form(ids.clone())) != text_of(form(other))
    assert text_of(ids) != text_of(ids.int()) and text_of(ids) != text_of(ids.view(40, 100))
    assert text_of(1e-4) == "0.0001"
    assert text_of({"a": ids, "b": 2}) == text_of({"b": 2, "a": ids}) != text_of({"a": 2, "b": ids})


def test_ranks_that_disagree_raise_the_same_error(ranks: list[Found], every: list[Found]) -> None:
    first = rank_of(ranks[0], every)
    last = first + len(ranks) - 1
    for found in ranks:
        assert found["agree"]["same"] == ("", "nothing was raised")
        code, text = found["agree"]["other"]
        assert code == "RANKS_DIFFER" and f"leaves: 1 on rank {first}, 2 on rank {first + 1}" in text
        assert "numerics id: " in text and f"micro_batches: 5 on rank {first}, 6 on rank {last}" in text
        code, text = found["agree"]["shape"]
        shapes = f"float32 [4, 4] on rank {first}, float32 [5, 4] on rank {first + 1}"
        assert code == "RANKS_DIFFER" and f"weight: {shapes}" in text
        assert found["agree"]["shape"] == ranks[0]["agree"]["shape"]


def rank_of(found: Found, every: list[Found]) -> int:
    """Return the rank of the process that found something."""
    return next(r for r, each in enumerate(every) if found is each["2"] or found is each["4"])


def test_a_missing_rank_is_named_in_time(ranks: list[Found], every: list[Found]) -> None:
    *others, last = ranks
    for found in others:
        code, text = found["agree"]["missing"]
        assert code == "RANKS_MISSING" and f"rank {rank_of(last, every)} of {len(ranks)} ranks" in text
        assert found["agree"]["seconds"] >= 1
    assert "missing" not in last["agree"]


def test_a_fact_that_a_rank_lacks_differs() -> None:
    assert differences({0: {"a": "1"}, 1: {"a": "1", "b": "2"}}) == ["b: nothing on rank 0, 2 on rank 1"]
    assert differences({0: {"a": "1"}, 3: {"a": "1"}}) == []


def test_what_differs_has_its_own_remedy() -> None:
    numbers = [text_of(torch.full((3,), value).numpy()) for value in (1.0, 2.0)]
    for told, words in ((numbers, "the same own "), (("float32 [3]", "float32 [3] frozen"), "one model, ")):
        with pytest.raises(LaunchError, match=f"give all ranks {words}"):
            check_alike("agree", {rank: {"own": each} for rank, each in enumerate(told)})
    with pytest.raises(LaunchError, match="the same lr"):  # what refusals are called hides nothing
        check_alike("agree", {rank: {"refused": "0", "lr": f"{rank}"} for rank in range(2)})


def test_a_store_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(dist.HashStore):
        def wait(self, *_: object) -> None:
            raise RuntimeError("Connection reset by peer\nmore")

        check = wait

    store = Gone()
    monkeypatch.setattr(alike, "_get_default_store", lambda: store)
    monkeypatch.setattr(alike, "_calls", Counter())
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1])
    with pytest.raises(LaunchError, match="any more: RuntimeError: Connection reset by peer\n"):
        alike.compare("agree", dist.ProcessGroup(0, 2), 60, {"a": "1"}, kind="test")
    alike.check_none_waits("agree", dist.ProcessGroup(0, 2), {"a": "1"}, kind="test")  # raises nothing more


def test_a_rank_of_a_launcher_needs_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for call in (lambda: agree(micro_batches=5), lambda: global_count(3)):
        with pytest.raises(
            LaunchError, match=r"one of 2 ranks .*\n.*call torch.distributed.init_process_group"
        ):
            call()
    monkeypatch.setenv("WORLD_SIZE", "1")
    agree(micro_batches=5)


def test_one_process_needs_no_group() -> None:
    agree(torch.nn.Linear(2, 2), micro_batches=5)
    assert int(global_count(torch.tensor([3, 4]))) == 7
    with pytest.raises(LaunchError, match="init"):
        agree(group=3)  # type: ignore[arg-type]


# --- one process -----------------------------------------------------


def test_fsdp2_on_one_rank_refuses_what_it_refuses_on_two() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        product, summed = parallel_cases.product, parallel_cases.summed
        assert_same(summed(product(mesh), steps=2), summed(product()))
        for count, calls, found in (
            (0, [""], r"outside of numbers\(\): a gradient"),
            (1, ["", ""], "micro-batch 0: a second gradient of second.weight"),
            (1, ["third"], "micro-batch 0: 1 parameter got no gradient: third.weight"),
        ):
            model = product(mesh)
            order = accumulate_in_order(model)
            with pytest.raises(LaunchError, match=found):
                for number, _ in order.numbers(count) if count else [(0, True)]:
                    for without in calls:
                        model(number, without).backward()
    finally:
        dist.destroy_process_group()


class Twice(torch.nn.Module):
    """A model with a parameter that a part of its calls does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))

    def forward(self, both: bool) -> torch.Tensor:
        return (self.used + self.unused).sum() if both else self.used.sum()


def test_a_parameter_without_a_gradient_is_an_error() -> None:
    model = Twice()
    order = accumulate_in_order(model)
    with pytest.raises(LaunchError, match="1 parameter got no gradient: unused") as raised:
        for number, _ in order.numbers(2):
            model(number == 0).backward()
    assert raised.value.code is Code.GRADIENT_ROUND


def test_two_backwards_of_a_number_are_an_error() -> None:
    model = Twice()
    order = accumulate_in_order(model)
    next(order.numbers(1))
    model(True).backward()
    with pytest.raises(LaunchError, match="micro-batch 0: a second gradient of (un)?used"):
        model(True).backward()


def test_a_backward_outside_of_the_numbers_is_an_error() -> None:
    model = Twice()
    order = accumulate_in_order(model)
    with pytest.raises(LaunchError, match=r"outside of numbers\(\): a gradient"):
        model(True).backward()
    for _ in order.numbers(2):
        model(True).backward()
    with pytest.raises(LaunchError, match=r"outside of numbers\(\): a gradient"):
        model(True).backward()


def test_a_step_starts_anew() -> None:
    model = Twice()
    order = accumulate_in_order(model)
    with pytest.raises(LaunchError, match="a model once: go on with what the first call returned"):
        accumulate_in_order(model)
    for _ in range(2):
        for number, counts in order.numbers(3):
            assert counts
            (model(True) * (number + 1)).backward()
    assert model.used.main_grad.tolist() == [6.0] * 3 and model.used.grad is None


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"torch\.nn\.Module"):
        accumulate_in_order([])  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="count"):
        next(accumulate_in_order(Twice()).numbers(0))
