"""Declared extents, outputs written into inputs, and lists of tensors: a device has the oracle's bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_declared_extents import inputs, pairs, unpacked
from test_into import OPS
from test_lists import RATES, SHIFTS, moved, one_by_one
from test_lists import drawn as drawn_lists
from torch.profiler import ProfilerActivity, profile

from rlk.lang.op import Op
from rlk.optim import AdamW
from rlk.testing.bits import assert_same_bits

pytestmark = pytest.mark.gpu


def test_axes_without_tensors_on_a_device() -> None:
    given = inputs(4096)
    assert_same_bits(unpacked(*(x.cuda() for x in given)).cpu(), unpacked(*given))
    x = torch.randn(100_002)
    assert_same_bits(pairs(x.cuda()).cpu(), pairs(x))


def drawn(spec: Op) -> tuple[tuple[torch.Tensor, ...], dict[str, float]]:
    """Return tensors and scalars of an operator that writes into its inputs, on the host."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 1000, generator=g)
    match spec.name:
        case "momentum":
            return (x, torch.randn(300, 1000, generator=g).bfloat16()), {"beta": 0.9}
        case "shifted":
            return (x.view(-1),), {}
        case "added":
            return (x, torch.randn(300, 1000, generator=g)), {}
        case "put":
            return (x, torch.randn(50, 1000, generator=g), torch.randperm(300, generator=g)[:50].int()), {}
        case "uniform":
            return (x,), {"seed": 2**40 + 3}
        case _:
            return (x,), {"value": 1.5}


@pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.name)
def test_what_is_written_into_inputs(spec: Op) -> None:
    tensors, scalars = drawn(spec)
    there = tuple(t.cuda() for t in tensors)
    address = there[0].data_ptr()
    spec(*there, **scalars)
    spec(*tensors, **scalars)
    assert there[0].data_ptr() == address
    assert_same_bits(there[0].cpu(), tensors[0])


SIZES = (4096, 100, 65536 + 16, 33, 1, 7 * 2048, 12, 1_000_001)


def parameters(dtype: torch.dtype, device: str) -> list[torch.nn.Parameter]:
    g = torch.Generator().manual_seed(1)
    made = []
    for n in SIZES * 4:
        p = torch.nn.Parameter(torch.randn(n, generator=g).to(dtype).to(device))
        p.grad = torch.randn(n, generator=g).to(dtype).to(device)
        made.append(p)
    return made


def launches(step: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    return sum(e.count for e in found.key_averages() if "adamw" in e.key)


KINDS = ((torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, 5))


@pytest.mark.parametrize(("dtype", "seed"), KINDS)
def test_adamw_steps_all_parameters_by_few_launches(dtype: torch.dtype, seed: int | None) -> None:
    here, there = parameters(dtype, "cpu"), parameters(dtype, "cuda")
    ours, theirs = (AdamW(x, lr=0.01, seed=seed) for x in (there, here))
    for _ in range(2):
        ours.step()
        theirs.step()
    for a, b in zip(there, here, strict=True):
        assert_same_bits(a.detach().cpu(), b.detach())
        for name in ("exp_avg", "exp_avg_sq"):
            assert_same_bits(ours.state[a][name].cpu(), theirs.state[b][name])
    assert launches(ours.step) == 2  # those whose sizes 16 divides, and the others; 32 before


def test_adamw_in_a_graph_has_the_same_bits() -> None:
    here, there = parameters(torch.float32, "cpu"), parameters(torch.float32, "cuda")
    ours, theirs = AdamW(there, lr=0.01), AdamW(here, lr=0.01)
    ours.step()  # makes the tables
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours.step()
    graph.replay()
    theirs.step()
    theirs.step()
    for a, b in zip(there, here, strict=True):
        assert_same_bits(a.detach().cpu(), b.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_item_of_lists(dtype: torch.dtype) -> None:
    x, g = drawn_lists(dtype)
    there = moved.each([t.cuda() for t in x], [t.cuda() for t in g], rate=RATES, shift=SHIFTS)
    for made, (want, twice) in zip(there, one_by_one(dtype), strict=True):
        assert_same_bits(made.x_out.cpu(), want)
        assert_same_bits(made.twice.cpu(), twice)
