"""Steps of AdamW and norms of gradients: values against float64, bits against their definitions."""

from __future__ import annotations

import math
import re
from copy import deepcopy
from itertools import chain
from typing import Any

import nn_cases
import numpy as np
import pytest
import torch
import torch.distributed as dist
from rank_cases import wide
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from rlk.errors import Code, LaunchError
from rlk.interp.floats import tree_sum
from rlk.ir.tree import Tree
from rlk.nn.ranks import Ranks
from rlk.optim import AdamW, clip_grad_norm, grad_norm
from rlk.optim.norm import padded_sum
from rlk.optim.shards import place
from rlk.parallel.plan import cuts_of, shares_of
from rlk.runtime.call.entry import call
from rlk.specs.optim import adamw
from rlk.testing.bits import assert_same_bits, differing

SHAPES = ((37, 5), (1,), (4, 3, 8))
STEPS = 6


def drawn(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(wide(*shape, seed=i).to(dtype)) for i, shape in enumerate(SHAPES)]


def give_gradients(params: list[torch.nn.Parameter], step: int, dtype: torch.dtype) -> None:
    for i, p in enumerate(params):
        p.grad = wide(*p.shape, seed=100 * step + i).to(dtype).to(p.dtype)


def test_a_share_knows_the_places_of_its_elements_in_the_whole_weight() -> None:
    whole = nn_cases.model()
    given = dict(whole.named_parameters())
    kept = []
    for rank in range(2):
        ranks = Ranks(dist.ProcessGroup(rank, 2), 2, rank)
        shared = shares_of(whole, ranks)
        for name, cut in cuts_of(whole, ranks).items():
            p, at = shared[name], place("AdamW", name, shared[name])
            t = torch.arange(p.numel())
            elements = torch.arange(given[name].numel()).view(given[name].shape)[cut]
            assert torch.equal(at.first + t // at.width * at.stride + t % at.width, elements.flatten()), name
        kept += [name for name, p in shared.items() if not hasattr(p, "tensor_model_parallel")]
    assert kept and all("norm" in name for name in kept)


def masters(optimizer: AdamW, params: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [optimizer.state[p].get("master", p.detach()) for p in params]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_steps_are_torchs_in_float64(dtype: torch.dtype) -> None:
    """Within a few roundings of f32 each step, of the same gradients; groups with numbers of their own."""
    params, exact = drawn(dtype), [torch.nn.Parameter(p.detach().double()) for p in drawn(dtype)]

    def groups(given: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
        return [{"params": given[:2]}, {"params": given[2:], "lr": 3e-3, "betas": (0.8, 0.99), "eps": 1e-3}]

    ours = AdamW(groups(params), lr=1e-2, weight_decay=0.1)
    theirs = torch.optim.AdamW(groups(exact), lr=1e-2, weight_decay=0.1)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.7) for o in (ours, theirs)]
    for step in range(STEPS):
        give_gradients(params, step, dtype)
        for p, e in zip(params, exact, strict=True):
            assert p.grad is not None
            e.grad = p.grad.double()
        for each in (ours, theirs, *schedules):
            each.step()
    for made, want, p in zip(masters(ours, params), exact, params, strict=True):
        torch.testing.assert_close(made.double(), want.detach(), rtol=4 * STEPS * 2.0**-24, atol=2.0**-24)
        assert_same_bits(p.detach(), made.to(dtype))


def test_a_state_is_loaded_without_rounding() -> None:
    params, again = drawn(torch.bfloat16), drawn(torch.bfloat16)
    first, second = AdamW(params, lr=1e-2), AdamW(again, lr=1.0)
    for step in range(2):
        give_gradients(params, step, torch.bfloat16)
        first.step()
    second.load_state_dict(first.state_dict())
    for p, q in zip(params, again, strict=True):
        q.data.copy_(p.data)
        for name, state in first.state[p].items():
            if name == "step":
                assert second.state[q]["step"] == state
            else:
                assert_same_bits(second.state[q][name], state, name)
                assert second.state[q][name].data_ptr() != state.data_ptr()
    for both in ((first, params), (second, again)):
        give_gradients(both[1], 7, torch.bfloat16)
        both[0].step()
    for p, q in zip(params, again, strict=True):
        assert_same_bits(q.detach(), p.detach())


def test_states_of_other_seeds_are_refused() -> None:
    (p,), (q,), (r,) = (drawn(torch.bfloat16)[:1] for _ in range(3))
    seeded, plain = AdamW([p], seed=3), AdamW([q])
    for optimizer, params in ((seeded, [p]), (plain, [q])):
        give_gradients(params, 0, torch.bfloat16)
        optimizer.step()
    assert seeded.state_dict()["param_groups"][0]["seed"] == 3
    for seed, state, words in (
        (None, seeded.state_dict(), "seed=3"),
        (4, seeded.state_dict(), "seed=3"),
        (3, plain.state_dict(), "seed=None"),
        (None, without_seed(seeded.state_dict()), "['master']='none'"),
        (3, without_seed(plain.state_dict()), "['master']='a master weight'"),
    ):
        other = AdamW([r], lr=0.5, seed=seed)
        with pytest.raises(LaunchError, match=re.escape(words)):
            other.load_state_dict(state)
        assert not other.state and other.param_groups[0]["lr"] == 0.5  # nothing was loaded
    again = AdamW([r], seed=3)
    r.data.copy_(p.data)
    again.load_state_dict(without_seed(seeded.state_dict()))
    assert again.state_dict()["param_groups"] == seeded.state_dict()["param_groups"]
    copied = deepcopy(again)  # torch keeps the groups alone
    (r,) = copied.param_groups[0]["params"]
    for optimizer, params in ((seeded, [p]), (copied, [r])):
        give_gradients(params, 1, torch.bfloat16)
        optimizer.step()
    assert_same_bits(r.detach(), p.detach())
    with pytest.raises(LaunchError, match="seed=5"):
        AdamW([{"params": [p], "seed": 5}], seed=3)


def without_seed(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state dict as it was before groups had a seed."""
    groups = [
        {key: value for key, value in group.items() if key != "seed"} for group in state["param_groups"]
    ]
    return {**state, "param_groups": groups}


def test_f32_gradients_of_16_bit_weights_are_read() -> None:
    (p,), (q,) = drawn(torch.bfloat16)[:1], drawn(torch.bfloat16)[:1]
    grad = wide(*p.shape, seed=9)
    p.main_grad, q.grad = grad, grad.bfloat16()  # type: ignore[attr-defined]
    made = []
    for each in (p, q):
        optimizer = AdamW([each])
        optimizer.step()
        made += masters(optimizer, [each])
        optimizer.zero_grad()
    assert differing(made[0], made[1])  # the control: rounded gradients
    assert q.grad is None and p.main_grad.signbit().all() and not p.main_grad.any()  # type: ignore[attr-defined]


def test_parameters_without_gradients_are_left() -> None:
    params = drawn()
    optimizer = AdamW(params)
    give_gradients(params[1:], 0, torch.float32)
    before = params[0].detach().clone()
    assert optimizer.step(lambda: 5.0) == 5.0
    assert_same_bits(params[0].detach(), before)
    assert params[0] not in optimizer.state


def test_a_graph_that_saved_a_weight_before_its_step_raises() -> None:
    (p,) = drawn()[:1]
    loss = (p * p).sum()
    p.grad = torch.ones_like(p)
    AdamW([p]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def rounded(value: float, count: int, seed: int = 1, first: int = 0) -> torch.Tensor:
    """Return bf16 roundings of one f32 value, by a step that moves nothing."""
    tensors = {"weight": torch.full((count,), value), "grad": torch.zeros(count)}
    tensors |= {name: torch.zeros(count) for name in ("exp_avg", "exp_avg_sq")}
    numbers = {"kept": 1.0, "rest1": 0.1, "beta2": 0.9, "rest2": 0.1, "rate": 0.0, "root": 1.0, "eps": 1.0}
    place = {"seed": seed, "step": 1, "parameter": 0, "first": first, "width": count, "stride": 0}
    call(adamw, tensors, {**numbers, **place}, {})
    return tensors["weight"]


def test_stochastic_rounding_takes_a_neighbour_as_often_as_it_is_near() -> None:
    low, gap, count = 1.0, 2.0**-7, 4096
    for part in (0.0, 0.25, 0.9):
        for sign in (1.0, -1.0):
            made = rounded(sign * (low + part * gap), count)
            assert set(made.tolist()) <= {sign * low, sign * (low + gap)}
            share = float((made.abs() > low).float().mean())
            assert abs(share - part) < 4 * math.sqrt(part * (1 - part) / count) + 1e-9


def test_stochastic_rounding_keeps_what_is_not_finite() -> None:
    for value in (math.inf, -math.inf, math.nan, 0.0):
        assert_same_bits(rounded(value, 8), torch.full((8,), value))


def test_draws_are_of_the_element_and_the_seed() -> None:
    value = 1.0 + 2.0**-8
    whole = rounded(value, 64)
    assert_same_bits(rounded(value, 24, first=40), whole[40:])
    assert differing(rounded(value, 24, first=39), whole[40:])  # the control
    assert differing(rounded(value, 64, seed=2), whole)
    assert differing(rounded(value, 64, seed=1 + 2**32), whole)
    assert differing(rounded(value, 64, first=2**32), whole)


# --- norms -----------------------------------------------------


def tree_norm(params: dict[str, torch.Tensor], leaves: int = 1) -> float:
    """Return the norm by its definition, with numpy: rows by vector8, all else neighbours first."""
    every = []
    for name in sorted(params):
        g = params[name].float().numpy()
        rows = (g * g).reshape(-1, 1) if g.ndim == 1 else (g * g).reshape(-1, g.shape[-1] // leaves)
        sums = [tree_sum(row, 0, Tree.vector8) for row in rows]
        every.append(neighbours(sums))
    return float(np.sqrt(neighbours(every)))


def neighbours(terms: list[Any]) -> Any:
    while len(terms) > 1:
        terms = [*terms, np.float32(0.0)] if len(terms) % 2 else terms
        terms = [a + b for a, b in zip(terms[0::2], terms[1::2], strict=True)]
    return terms[0]


@pytest.mark.parametrize("leaves", [1, 4])
def test_the_norm_is_the_tree_of_its_definition(leaves: int) -> None:
    grads = {"b.weight": wide(7, 16, seed=1), "a": wide(11, seed=2), "c": wide(3, 5, 8, seed=3).bfloat16()}
    params = {name: torch.nn.Parameter(torch.zeros_like(g)) for name, g in grads.items()}
    for name, p in params.items():
        p.grad = grads[name]
    norm = grad_norm(params.items(), leaves=leaves)
    assert float(norm) == tree_norm(grads, leaves)
    exact = torch.stack([g.double().square().sum() for g in grads.values()]).sum().sqrt()
    torch.testing.assert_close(norm.double(), exact, rtol=1e-6, atol=0)
    # wrappers' parts of names and the order in which parameters come change nothing
    wrapped = [(f"module._orig_mod.{name}", p) for name, p in reversed(params.items())]
    assert_same_bits(grad_norm(wrapped, leaves=leaves), norm)


def test_names_are_of_one_parameter_each() -> None:
    """Parameters of equal names would be one, and a name of the user's is no wrapper's."""
    actor, critic = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    for p in chain(actor.parameters(), critic.parameters()):
        p.grad = torch.ones_like(p)
    both = [*actor.named_parameters(), *critic.named_parameters()]
    for run in (grad_norm, lambda named: clip_grad_norm(named, 1.0)):
        with pytest.raises(LaunchError, match="two parameters named 'weight'"):
            run(both)
    assert all(p.grad is not None and p.grad.eq(1).all() for _, p in both)  # nothing was scaled
    named = [*actor.named_parameters(), *((f"module.{name}", p) for name, p in critic.named_parameters())]
    assert_same_bits(grad_norm(named), torch.tensor(12.0).sqrt())


def test_every_rank_refuses_columns_that_are_cut_within_a_piece() -> None:
    """Two columns over 4 ranks: the last two ranks have none, and would wait for the others."""
    said = set()
    for rank in range(4):
        dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (4,))
            part = torch.ones(3, 1 if rank < 2 else 0)
            p = torch.nn.Parameter(
                DTensor.from_local(part, mesh, [Shard(1)], run_check=False, shape=(3, 2), stride=(2, 1))
            )
            p.grad = p.detach().clone()
            with pytest.raises(LaunchError, match="of p, .*multiples of the 2 of a piece") as raised:
                grad_norm([("p", p)])
            said.add(str(raised.value))
        finally:
            dist.destroy_process_group()
    assert len(said) == 1


def test_another_order_of_squares_is_seen() -> None:
    squares = wide(1001, seed=5).square()
    assert float(padded_sum(squares)) != float(padded_sum(squares.flip(0)))
    assert float(padded_sum(squares)) == float(neighbours(list(squares.numpy())))
    assert float(padded_sum(squares[:1])) == float(squares[0]) and float(padded_sum(squares[:0])) == 0.0


def test_gradients_are_scaled_to_the_norm_asked_for() -> None:
    params = drawn()
    give_gradients(params, 0, torch.float32)
    named = [(str(i), p) for i, p in enumerate(params)]
    before = [p.grad.clone() for p in params if p.grad is not None]
    norm = clip_grad_norm(named, math.inf)
    assert all(p.grad is not None and torch.equal(p.grad, b) for p, b in zip(params, before, strict=True))
    assert_same_bits(clip_grad_norm(named, 0.5), norm)
    torch.testing.assert_close(grad_norm(named), torch.tensor(0.5), rtol=1e-5, atol=0)
    again = clip_grad_norm(named, 0.6)  # below the limit: nothing moves
    assert_same_bits(grad_norm(named), again)
    assert grad_norm([]) == 0.0


BAD = {
    "f64": (lambda: AdamW([torch.nn.Parameter(torch.ones(2).double())]), Code.ARG_DTYPE, "torch.float64"),
    "f16 without masters": (
        lambda: AdamW([torch.nn.Parameter(torch.ones(2).half())], seed=1), Code.ARG_DTYPE, "torch.bfloat16",
    ),
    "rows apart": (
        lambda: AdamW([torch.nn.Parameter(torch.ones(2, 4)[:, :2])]), Code.ARG_VALUE, "contiguous",
    ),
    "a negative rate": (lambda: AdamW(drawn(), lr=-1.0), Code.ARG_VALUE, "lr=-1.0"),
    "a beta of 1": (lambda: AdamW(drawn(), betas=(0.9, 1.0)), Code.ARG_VALUE, "betas[1]=1.0"),
    "a seed below 0": (lambda: AdamW(drawn(), seed=-1), Code.ARG_VALUE, "seed=-1"),
    "three leaves": (lambda: grad_norm([], leaves=3), Code.ARG_VALUE, "leaves=3"),
    "a negative norm": (lambda: clip_grad_norm([], -1.0), Code.ARG_VALUE, "max_norm=-1.0"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name: str) -> None:
    call, code, words = BAD[name]
    with pytest.raises(LaunchError) as raised:
        call()
    assert raised.value.code is code and words in str(raised.value)
