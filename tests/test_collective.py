"""Sums over ranks have the bits of a pairwise tree in rank order, and any other order is seen."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
import rank_cases
import torch
from rank_cases import DTYPES, GATHERS, SUMS, Found, cotangent, form_of, shown, wide

import rlk
from rlk import ops
from rlk.errors import Code, LaunchError, UnsupportedError
from rlk.interp.floats import tree_sum
from rlk.ir.tree import Tree
from rlk.runtime.call.collective import ordered_gather, pairwise_sum
from rlk.testing.bits import assert_same_bits, differing


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return rank_cases.run("gloo", request.param, tmp_path_factory.mktemp("ranks"))


def terms(name: str, world: int) -> list[np.ndarray]:
    return [shown(SUMS[name](rank)).numpy() for rank in range(world)]


def pairwise(found: list[np.ndarray]) -> np.ndarray:
    """Return the sum of a tree over ranks, written out: neighbours first."""
    with np.errstate(all="ignore"):
        while len(found) > 1:
            found = [left + right for left, right in zip(found[0::2], found[1::2], strict=True)]
    return found[0]


@pytest.mark.parametrize("name", SUMS)
def test_every_rank_gets_the_bits_of_the_tree(name: str, ranks: list[Found]) -> None:
    want = pairwise(terms(name, len(ranks)))
    for rank, found in enumerate(ranks):
        assert_same_bits(found["sums"][name], want, f"{name} on rank {rank} of {len(ranks)}")
        assert_same_bits(found["sums, not gathered"][name], want, f"{name} on rank {rank} of {len(ranks)}")


def test_the_tree_is_the_one_of_the_oracle() -> None:
    x = torch.stack([SUMS["many"](rank) for rank in range(8)])
    want = tree_sum(x.numpy(), 0, Tree.pairwise)
    assert_same_bits(pairwise(list(x.numpy())), want)
    made = torch.empty(x.shape[1:])
    pairwise_sum(x.clone(), out=made)
    assert_same_bits(made, want)


def test_other_orders_are_seen(ranks: list[Found]) -> None:
    """The controls: a left fold, the halves first, ranks in another order, and the backend's own sum."""
    found = terms("many", len(ranks))
    tree, few = pairwise(found), len(found[0]) // 50
    if len(ranks) == 2:  # one addition: no order to tell apart
        assert differing(ranks[0]["backend"], tree) == 0
        return
    wrong = {
        "a left fold": reduce(np.add, found),
        "halves first": tree_sum(np.stack(found), 0, Tree.halving),
        "another order": pairwise([found[i] for i in (0, 3, 1, 2)]),
        "the backend": ranks[0]["backend"].numpy(),
    }
    assert all(differing(got, tree) > few for got in wrong.values()), {
        name: differing(got, tree) for name, got in wrong.items()
    }
    special = terms("special values", len(ranks))
    with np.errstate(all="ignore"):
        assert differing(reduce(np.add, special), pairwise(special)) > 0


@pytest.mark.parametrize("name", GATHERS)
def test_gathering_stacks_in_rank_order(name: str, ranks: list[Found]) -> None:
    want = torch.stack([shown(GATHERS[name](rank)) for rank in range(len(ranks))])
    for found in ranks:
        assert found["gathers"][name].dtype == want.dtype
        assert_same_bits(found["gathers"][name], want, name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["one group", "nodes"])
def test_every_form_has_the_bits_of_the_tree(form: str, dtype: torch.dtype, ranks: list[Found]) -> None:
    """A sum in nodes first, a part of it and one from a gather: f32 throughout, rounded once."""
    world = len(ranks)
    terms = [form_of(rank, dtype).float().numpy() for rank in range(world)]
    want = torch.from_numpy(pairwise(terms)).to(dtype)
    rounded = terms[0]
    for term in terms[1:]:
        rounded = torch.from_numpy(rounded + term).to(dtype).float().numpy()
    if world == 4:  # the control: a chain, rounded at each step
        assert differing(torch.from_numpy(rounded).to(dtype), want) > 10
    for rank, found in enumerate(ranks):
        made = found["forms"][f"{form} {dtype}"]
        assert_same_bits(made["all"], want)
        assert_same_bits(made["odd"], want[:, :5].contiguous())
        assert_same_bits(made["gathered"], want)
        assert_same_bits(made["part"], want.chunk(world)[rank])
        assert_same_bits(made["part by shares"], want.chunk(world)[rank])
        assert_same_bits(made["all by shares"], want)
        for how in ("", " by shares") if dtype is torch.float32 else ():
            assert_same_bits(made[f"short{how}"], want.bfloat16())
            assert_same_bits(made[f"short part{how}"], want.chunk(world)[rank].bfloat16())


def test_gradients_are_gathered_or_passed_on(ranks: list[Found]) -> None:
    world = len(ranks)
    want = torch.cat([cotangent(rank, world) for rank in range(world)])
    for found in ranks:
        for form in ("one group", "nodes"):
            assert_same_bits(found["forms"][f"gradients {form}"]["part"], want)
            assert_same_bits(found["forms"][f"gradients {form}"]["gathered"], form_of(7, torch.float32))
            assert found["forms"][f"twice {form}"][0] == "DOUBLE_BACKWARD"


def test_the_reference_of_a_part_is_its_sum_in_float64(ranks: list[Found]) -> None:
    want = sum(form_of(rank, torch.float32).double() for rank in range(len(ranks))).chunk(len(ranks))
    for rank, found in enumerate(ranks):
        torch.testing.assert_close(found["forms"]["part in float64"], want[rank], rtol=1e-12, atol=1e-9)


def test_calls_repeat_their_bits(ranks: list[Found]) -> None:
    assert [found["repeats"] for found in ranks] == [0] * len(ranks)


def test_the_reference_is_the_sum_in_float64(ranks: list[Found]) -> None:
    want = np.sum(np.stack(terms("many", len(ranks))).astype(np.float64), 0)
    for found in ranks:
        assert found["reference"].dtype == torch.float64
        np.testing.assert_allclose(found["reference"].numpy(), want, rtol=1e-12, atol=1e-9)


def test_a_group_sums_its_own_ranks(ranks: list[Found]) -> None:
    x = [wide(77, seed=rank) for rank in range(len(ranks))]
    for rank, found in enumerate(ranks):
        made = found["groups"]
        assert_same_bits(made["alone"], x[rank])
        assert_same_bits(made["gathered alone"], x[rank][None])
        if rank % 2:
            assert_same_bits(made["odd"], pairwise([t.numpy() for t in x[1::2]]))
        else:
            code, text = made["not in odd"]
            assert code == "ARG_VALUE" and "a group that this rank belongs to" in text


def test_ranks_that_make_no_tree_are_refused(ranks: list[Found]) -> None:
    most = len(ranks) - 1
    x = torch.stack([wide(77, seed=rank) for rank in range(most)])
    for found in ranks[:most]:
        assert_same_bits(found["groups"]["gathered most"], x)  # what is gathered needs no tree
        code, text = found["groups"]["reduced most"]
        if most == 3:
            assert code == "ARG_VALUE" and "group.size()=3" in text and "a power of two" in text
        else:
            assert not code


ERRORS = {
    "f64": (Code.ARG_DTYPE, "x has dtype torch.float64, expected torch.float32 or torch.bfloat16"),
    "wider sums": (Code.ARG_DTYPE, "out_dtype has dtype torch.float32, expected torch.float16, that of x"),
    "a gradient of short sums": (Code.NOT_DIFFERENTIABLE, "no input with out_dtype"),
    "no whole parts": (Code.ARG_VALUE, "a multiple of the"),
    "three groups": (Code.ARG_VALUE, "between nodes and inside a node"),
    "integers": (Code.ARG_DTYPE, "torch.int32"),
    "no tensor": (Code.ARG_TYPE, "x must be a dense torch.Tensor, got list"),
    "a subclass": (Code.ARG_TYPE, "got Kind of torch.strided"),
    "sparse": (Code.ARG_TYPE, "got Tensor of torch.sparse_coo"),
    "a gradient": (Code.NOT_DIFFERENTIABLE, "ordered_all_reduce has no gradient for x\n    detach it"),
    "a gradient to gather": (Code.NOT_DIFFERENTIABLE, "mine has no gradient for x"),
    "a number as group": (Code.ARG_TYPE, "group must be a torch.distributed.ProcessGroup, got int"),
    "a device without a backend": (Code.ARG_DEVICE, "x is on meta, but group is on"),
}


DIFFER = {
    "count": "x: torch.float32 [4, 2] on rank 0, torch.float32 [5, 2] on rank {last}",
    "shape": "x: torch.float32 [6, 2] on rank 0, torch.float32 [2, 6] on rank {last}",
    "dtype": "dtype of the sum: torch.bfloat16 on rank 0, torch.float16 on rank {last}",
    "dtype of the sum": "dtype of the sum: torch.bfloat16 on rank 0, torch.float16 on rank {last}",
    "part": "x: torch.float32 [24, 2] on rank 0, torch.float32 [24, 4] on rank {last}",
    "function": "call: ordered_all_reduce on rank 0, ordered_gather_sum on rank {last}",
    "transport": "RLK_TRANSPORT: unset on rank 0, backend on rank {last}",
}


def test_ranks_that_sum_other_terms_all_raise(ranks: list[Found]) -> None:
    for found in ranks:
        made = found["other terms"]
        for name, words in DIFFER.items():
            code, text = made[name]
            assert code == "RANKS_DIFFER" and words.format(last=len(ranks) - 1) in text, (name, text)
        assert "differ in 1 fact\n" in made["count"][1] and "differ in 2 facts\n" in made["dtype"][1]
        assert made["alike"] == ("", "nothing was raised")  # the control: strides alone differ
        assert made["compared"] == 2  # of five sums of two shapes


def test_where_terms_are_new_to_one_rank_alone_both_raise(ranks: list[Found]) -> None:
    (first, said), (second, told) = (found["other terms"]["known"] for found in ranks[:2])
    assert (
        first == "RANKS_MISSING"
        and "of torch.float32 [1, 2], new here: rank 1 of 2 ranks said nothing" in said
    )
    assert (
        second == "RANKS_DIFFER"
        and "x: torch.float32 [6, 2] on rank 1, torch.float32 [1, 2] on rank 0" in told
    )


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_summed_is_refused_by_name(name: str, ranks: list[Found]) -> None:
    code, words = ERRORS[name]
    for found in ranks:
        raised, text = found["errors"][name]
        assert raised == code.name and words in text, text


def test_a_leaf_is_summed_where_gradients_are_off(ranks: list[Found]) -> None:
    assert not any(found["errors"]["a gradient that is off"][0] for found in ranks)


@pytest.mark.parametrize("fn", [ops.ordered_all_reduce, ordered_gather])
def test_without_a_process_group_the_call_says_how_to_get_one(fn: Callable[..., object]) -> None:
    with pytest.raises(LaunchError, match="init_process_group") as raised:
        fn(torch.ones(3), None)
    assert raised.value.code is Code.ARG_VALUE


def test_the_operator_says_what_it_runs() -> None:
    op: Any = ops.ordered_all_reduce
    assert len(op.numerics_id("cpu")) == 16 and op.numerics_id("cpu") == op.numerics_id(torch.device("cuda"))
    assert op.tier("cpu") == {"y": "exact"}
    assert op.numerics_id("cpu") in str(op.explain("cpu"))
    with pytest.raises(LaunchError, match="math"):
        op.numerics_id("cpu", math="fast")


def test_explaining_a_call_sends_nothing() -> None:
    with pytest.raises(UnsupportedError, match=r"ordered_all_reduce\.explain"):
        rlk.explain(ops.ordered_all_reduce, torch.ones(3), None)
