"""A linear head whose vocabulary is shared among ranks has the bits of one rank that has it all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, reduce
from typing import Any
from unittest.mock import patch

import pytest
import rank_cases
import torch
import torch.distributed as dist
from head_cases import HEADS, POLICIES, SENT, Head, drawn, log_probs, policy_losses, shard_of
from linear_cases import NEEDS, head
from rank_cases import Found, refused
from rank_turns import Exchange, in_turn, tree

from rlk import ops
from rlk.interp.run import run
from rlk.ir.text import parse_program, print_program
from rlk.ops import sharded
from rlk.ops.support import words_from
from rlk.passes.pipeline import canonical
from rlk.specs.linear_logp import linear_logp_join
from rlk.testing.bits import assert_same_bits, differing

CPU = torch.device("cpu")
OF_THE_SHARD = ("d_weight", "buffer")


@cache
def alone(kind: str, name: str) -> Found:
    """Return what one rank with the whole weight finds."""
    return log_probs(HEADS[name], CPU) if kind == "heads" else policy_losses(POLICIES[name], CPU)


def assert_same_found(got: Found, want: Found, world: int, rank: int) -> None:
    """Results and d_hidden are the whole's on every rank; of the weight's gradient a rank has its rows."""
    assert got.keys() == want.keys()
    for name, x in want.items():
        whole = x[shard_of(rank, world, len(x))] if name in OF_THE_SHARD else x
        assert got[name].dtype == whole.dtype
        assert_same_bits(got[name], whole, f"{name} on rank {rank} of {world}")


# --- ranks that are processes ---


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return rank_cases.run("gloo", 4, tmp_path_factory.mktemp("heads"), "head_cases", seconds=400)


def test_four_processes_compile_their_part_into_one_graph(ranks: list[Found]) -> None:
    for rank, found in enumerate(ranks):
        assert_same_found(found["compiled"], alone("heads", SENT[-2]), 4, rank)


CALLS = [("heads", name) for name in SENT] + [("policies", name) for name in POLICIES]


@pytest.mark.parametrize(("kind", "name"), CALLS)
def test_four_processes_have_the_bits_of_one(kind: str, name: str, ranks: list[Found]) -> None:
    for rank, found in enumerate(ranks):
        assert_same_found(found[f"{kind} of 4"][name], alone(kind, name), 4, rank)


@pytest.mark.parametrize(("kind", "name"), CALLS)
def test_two_processes_have_the_bits_of_one(kind: str, name: str, ranks: list[Found]) -> None:
    """Two groups of two, whose ranks are not neighbours: a rank's part goes by its place in the group."""
    for rank, found in enumerate(ranks):
        assert_same_found(found[f"{kind} of 2"][name], alone(kind, name), 2, rank // 2)


# --- ranks of one process ---


def heads(case: Head, world: int, **changed: Any) -> list[Found]:
    """Return what every rank finds."""
    return in_turn(lambda rank, group: log_probs(case, CPU, world, rank, group), Exchange(world, **changed))


WORLDS = [(n, w) for n in HEADS for w in ((1, 8) if n in SENT else (2, 4, 8))]  # the rest are processes


@pytest.mark.parametrize(("name", "world"), WORLDS)
def test_any_number_of_ranks_has_the_bits_of_one(name: str, world: int) -> None:
    for rank, found in enumerate(heads(HEADS[name], world)):
        assert_same_found(found, alone("heads", name), world, rank)


@pytest.mark.parametrize("world", [1, 8])
@pytest.mark.parametrize("name", POLICIES)
def test_any_number_of_ranks_has_the_policy_loss_of_one(name: str, world: int) -> None:
    def step(rank: int, group: dist.ProcessGroup) -> Found:
        return policy_losses(POLICIES[name], CPU, world, rank, group)

    for rank, found in enumerate(in_turn(step, Exchange(world))):
        assert_same_found(found, alone("policies", name), world, rank)


@pytest.mark.parametrize(
    ("name", "what", "broken"),
    [
        ("a support by thresholds", "last", lambda words, start, count: words),
        ("a support of ids", "words", lambda words, start, count: words[..., : -(-count // 32)]),
        ("a support of ids", "words", lambda words, start, count: words_from(words, start + 1, count)),
    ],
)
def test_a_support_that_is_not_cut_with_the_vocabulary_is_seen(name: str, what: str, broken: Any) -> None:
    """The control: ranks that count the tokens of a support from the wrong one."""

    def local(tensors: Any, scalars: Any, shard: Any) -> Any:
        return cut(tensors, scalars, shard) | ({"last": tensors["last"]} if what == "last" else {})

    cut = sharded._local
    with patch.object(sharded, "_local", local), patch.object(sharded, "words_from", broken):
        got = heads(HEADS[name], 4)
    assert differing(got[0]["lse"], alone("heads", name)["lse"])


def test_ids_outside_the_vocabulary_are_nan_in_their_rows_only() -> None:
    case = HEADS["ids at edges and outside"]
    _, _, ids, _ = drawn(case)
    outside = (ids != -100) & ((ids < 0) | (ids >= case.vocabulary))
    assert int(outside.sum()) == 3
    for found in heads(case, 8):
        assert torch.equal(found["logp"].isnan(), outside)
        assert not any(found[name].isnan().any() for name in found if name != "logp")


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_more_ranks_are_as_near_to_float64_as_one(world: int) -> None:
    case = HEADS["temperature by row, softcap, scale"]
    hidden, weight, ids, options = drawn(case)
    want = ops.linear_logp.reference(hidden, weight, ids, needs=NEEDS, **options)  # type: ignore[attr-defined]
    one = alone("heads", "temperature by row, softcap, scale")
    for found in heads(case, world):
        for name, exact in zip(NEEDS, want, strict=False):
            off = (found[name].double() - exact).abs().max()
            assert off <= (one[name].double() - exact).abs().max() and off < 5e-5, name


# --- controls: other orders of ranks, and other roundings, are seen ---

WIDE = Head(rows=(150,), depth=40, given=("logp",), vocabulary=8 * 130)


@pytest.fixture(scope="module")
def wide() -> Found:
    return log_probs(WIDE, CPU)


def reordered(x: torch.Tensor) -> torch.Tensor:
    """Let the second and the third rank trade places: others are neighbours."""
    return torch.cat([x[:1], x[2:3], x[1:2], x[3:]])


def swapped(x: torch.Tensor) -> torch.Tensor:
    """Let neighbours trade places, which no sum of two notices."""
    return x.view(len(x) // 2, 2, *x.shape[1:]).flip(1).reshape(x.shape)


@pytest.mark.parametrize("world", [4, 8])
def test_states_joined_in_another_order_of_ranks_are_seen(world: int, wide: Found) -> None:
    for found in heads(WIDE, world, stacked=reordered):
        assert all(differing(found[name], wide[name]) for name in NEEDS)
    for found in heads(WIDE, world, stacked=swapped):
        assert all(differing(found[name], wide[name]) == 0 for name in NEEDS)


@pytest.mark.parametrize(("world", "seen"), [(2, False), (4, True), (8, True)])
def test_states_joined_by_a_left_fold_are_seen(world: int, seen: bool, wide: Found) -> None:
    exchange = Exchange(world)
    with torch.no_grad():
        in_turn(lambda rank, group: log_probs(replace(WIDE, leaves=()), CPU, world, rank, group), exchange)
    m, s, hits, centred = torch.stack(exchange.sent[0]).unbind(1)
    states = {"m": m, "s": s, "hits": hits, "centred": centred}
    given = {"ids": drawn(WIDE)[2], **states, "ignore_index": -100, "vocabulary": WIDE.vocabulary}
    plain = linear_logp_join.default_variant()
    program = linear_logp_join.trace(replace(plain, present=frozenset({"centred"})))
    text, folded = print_program(program), "order=ascending exp2"
    assert text.count("order=pairwise exp2") == 1
    for order, differs in (("order=pairwise exp2", False), (folded, seen)):
        changed = canonical(parse_program(text.replace("order=pairwise exp2", order)))
        got = run(changed, {n: x.numpy() if isinstance(x, torch.Tensor) else x for n, x in given.items()})
        assert all((differing(got[name], wide[name]) > 0) == differs for name in NEEDS), order


ORDERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a left fold": lambda terms: reduce(torch.add, terms),
    "another order of ranks": lambda terms: tree(reordered(terms)),
}


@pytest.mark.parametrize("world", [4, 8])
@pytest.mark.parametrize("name", ORDERS)
def test_other_orders_of_d_hidden_are_seen(name: str, world: int) -> None:
    """In the f32 sums: 16 bits show one of thousands."""

    def added(terms: torch.Tensor) -> torch.Tensor:
        sums.append((tree(terms), ORDERS[name](terms)))
        return sums[-1][0]

    sums: list[tuple[torch.Tensor, torch.Tensor]] = []
    heads(WIDE, world, added=added)
    assert len(sums) == world and all(differing(a, b) > a.numel() // 20 for a, b in sums)


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("rounded", [torch.Tensor.half, torch.Tensor.bfloat16])
def test_partial_sums_of_16_bits_are_seen(
    rounded: Callable[[torch.Tensor], torch.Tensor], world: int, wide: Found
) -> None:
    wrong = heads(WIDE, world, added=lambda terms: tree(rounded(terms).float()))
    assert all(differing(x["d_hidden"], wide["d_hidden"]) > 100 for x in wrong)


@pytest.mark.parametrize("world", [2, 4, 8])
def test_a_sum_that_swaps_neighbours_has_the_same_bits(world: int, wide: Found) -> None:
    right = heads(WIDE, world, added=lambda terms: tree(swapped(terms)))
    assert all(differing(x["d_hidden"], wide["d_hidden"]) == 0 for x in right)


# --- refusals, each before anything is sent ---

DIFFER = {
    "rows": "in 1 fact\n    rows of hidden: 21 on rank 0, 20 on rank 3",
    "shards": "in 2 facts\n    weight: torch.bfloat16 [270, 8] on rank 0, torch.bfloat16 [272, 8] on rank 3",
    "begins": "in 1 fact\n    vocab_start: that of equal shards on rank 0, 0 on rank 3",
    "dtype": "in 2 facts\n    hidden: torch.bfloat16 [rows, 8] on rank 0, torch.float16 [rows, 8] on rank 3",
    "dtype of weight": "in 1 fact\n    weight: torch.bfloat16 [270, 8] on rank 0, torch.float32 [270, 8] on",
    "dtype of ids": "in 1 fact\n    ids: torch.int64 [rows] on rank 0, torch.int32 [rows] on rank 3",
    "bias": "in 1 fact\n    bias: torch.bfloat16 [270] on rank 0, torch.bfloat16 [269] on rank 3",
    "mask": "in 1 fact\n    mask: nothing on rank 0, torch.bool [rows] on rank 3",
    "softcap": "softcap: 2.0 on rank 0, 3.0 on rank 3",
    "needs": "needs: () on rank 0, ('entropy',) on rank 3",
    "frozen": "in 1 fact\n    gradient of hidden: summed on rank 0, none on rank 3",
}


def test_ranks_that_call_a_head_otherwise_all_raise(ranks: list[Found]) -> None:
    for found in ranks:
        made = found["disagreements"]
        for name, words in DIFFER.items():
            code, text = made[name]
            assert code == "RANKS_DIFFER" and words in text, (name, text)
        assert made["alike"] == ("", "nothing was raised")
        assert made["compared"] == 2  # of four calls with two numbers of rows
        assert made["forgotten"] == 4  # of five calls with three, where two are known
        assert made["keys"] == 1  # of a rank in the store: of no refusals


REFUSED = {
    "buffer": "linear_logp: weight_grad_out has dtype torch.float16",
    "temperature": "linear_logp: temperature=-1.0 is not allowed",
    "known": "linear_logp: temperature=-1.0 is not allowed",
    "math": "linear_logp: math=['sm90'] is not allowed",
    "kept": "linear_logp: support.ids[0]=-1 is not allowed",
    "start": "linear_logp: vocab_start must be a int, got str",
    "slope": "linear_logp has no gradient for inv_temperature_row",
    "tensors": "linear_logp: bias must be a dense torch.Tensor, got Kind",
}


def test_where_one_rank_refuses_a_head_all_raise(ranks: list[Found]) -> None:
    for rank, found in enumerate(ranks):
        for name, words in REFUSED.items():
            code, text = found["disagreements"]["refused"][name]
            assert (code == "RANKS_DIFFER") == (rank < 3) and words in text, (name, text)
            first = rank if name == "known" else 0  # nothing compared: of itself and who told
            assert (f"in 1 fact\n    refused: nothing on rank {first}, " in text) == (rank < 3)
            assert ("\n    see the error of rank 3 " in text) == (rank < 3)


def refusal(size: int, ranks: int, rank: int, **options: Any) -> tuple[str, str]:
    """Return the code and the text of what a rank with some rows of the weight is told."""
    hidden, weight, ids = head((5,), 8, size)
    given = {"vocab_start": rank * size, "group": dist.ProcessGroup(rank, ranks)} | options
    with patch.object(dist, "is_initialized", lambda: True), sharded.arguments_alike():
        return refused(lambda: ops.linear_logp(hidden, weight, ids.clamp(min=0), **given))


@pytest.mark.parametrize("ranks", [3, 5, 6, 16])
def test_ranks_that_share_no_whole_pieces_are_refused(ranks: int) -> None:
    code, text = refusal(48, ranks, 1)
    assert code == "ARG_VALUE" and f"group={ranks}" in text and "1, 2, 4 or 8 ranks" in text


@pytest.mark.parametrize(("ranks", "size"), [(1, 12), (2, 6), (2, 301), (4, 33)])
def test_a_shard_that_cuts_a_piece_is_refused(ranks: int, size: int) -> None:
    code, text = refusal(size, ranks, 0)
    assert code == "ARG_VALUE" and f"weight.shape[0]={size}" in text
    assert f"a multiple of {8 // ranks} rows" in text


@pytest.mark.parametrize(("rank", "start"), [(0, 8), (1, 0), (1, 23), (1, 48), (3, -24)])
def test_a_shard_that_begins_elsewhere_is_refused(rank: int, start: int) -> None:
    code, text = refusal(24, 4, rank, vocab_start=start)
    assert code == "ARG_VALUE" and f"vocab_start={start}" in text and f"expected {24 * rank}" in text


def test_a_buffer_is_as_large_as_the_shard() -> None:
    code, text = refusal(24, 4, 1, weight_grad_out=torch.zeros(96, 8))
    assert code == "ARG_VALUE" and "weight_grad_out=[96, 8]" in text and "[24, 8] on cpu" in text


@pytest.mark.parametrize("options", [{}, {"weight_grad_out": torch.zeros(24, 8)}], ids=["plain", "buffer"])
def test_a_shard_needs_a_group(options: dict[str, Any]) -> None:
    code, text = refusal(24, 1, 0, group=None, vocab_start=24, **options)
    assert code == "ARG_VALUE" and "vocab_start=24" in text and "0 without a group" in text


def test_what_is_no_group_is_refused() -> None:
    code, text = refusal(24, 1, 0, group=3)
    assert code == "ARG_TYPE" and "group must be a torch.distributed.ProcessGroup, got int" in text
    code, text = refusal(24, 1, 0, group=dist.GroupMember.NON_GROUP_MEMBER)
    assert code == "ARG_VALUE" and "a group that this rank belongs to" in text
    hidden, weight, ids = head((5,), 8, 24)
    code, text = refused(lambda: ops.linear_logp(hidden, weight, ids, group=dist.ProcessGroup(0, 1)))
    assert code == "ARG_VALUE" and "init_process_group" in text


@pytest.mark.parametrize("name", ["hidden", "weight", "weight_grad_out"])
def test_tensors_that_may_be_parts_of_others_are_refused(name: str) -> None:
    hidden, weight, ids = head((5,), 8, 24)
    given = {"hidden": hidden, "weight": weight, "weight_grad_out": torch.zeros(24, 8)}
    given[name] = given[name].as_subclass(rank_cases.Kind)
    code, text = refused(lambda: ops.linear_logp(ids=ids, **given))
    assert code == "ARG_TYPE" and f"{name} must be a dense torch.Tensor, got Kind" in text


def test_a_second_derivative_is_refused_on_every_rank() -> None:
    def step(rank: int, group: dist.ProcessGroup) -> tuple[str, str]:
        hidden, weight, ids, _ = drawn(HEADS["plain"])
        part = shard_of(rank, 2, len(weight))
        hidden.requires_grad_()
        made = ops.linear_logp(hidden, weight[part], ids, group=group, vocab_start=part.start)
        (found,) = torch.autograd.grad(made.logp.sum(), hidden, create_graph=True)
        return refused(lambda: found.float().square().sum().backward())

    for code, text in in_turn(step, Exchange(2)):
        assert code == "DOUBLE_BACKWARD" and "linear_logp" in text
