"""Attention on Hopper leaves the counter of its tiles at zero for the next launch of its stream."""

from __future__ import annotations

from itertools import repeat

import pytest
import torch

from rlk import ops
from rlk.backends import cute
from rlk.runtime.binding import host_stub
from rlk.runtime.binding.invocation import target_of

ROUNDS, LENGTHS, HEADS, SHARED, WIDTH = 50, (1000, 1, 1023, 500), 32, 8, 128

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available()
    or getattr(target_of(torch.device("cuda", 0)), "name", "") != "sm_90a"
    or not cute.compiles(),
    reason="no Hopper, or no CuTe DSL",
)


@pytest.fixture(scope="module")
def given() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    edges = torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32).cuda()
    heads = (HEADS, SHARED, SHARED)
    tensors = (torch.randn(sum(LENGTHS), n, WIDTH, dtype=torch.bfloat16, device="cuda") for n in heads)
    return (*tensors, edges, edges)


def attended(given: tuple[torch.Tensor, ...]) -> torch.Tensor:
    with torch.no_grad():
        return ops.varlen_attention(*given).o


def left_over() -> bool:
    """Return whether a stream's word is not zero."""
    torch.cuda.synchronize()
    words = (next(found) for found in host_stub._COUNTERS.values() for _ in range(host_stub.COUNTERS))
    return any(bool(word.any()) for word in words)


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def test_launches_of_streams_and_of_a_graph_have_the_same_bits(given: tuple[torch.Tensor, ...]) -> None:
    """Each stream has counters of its own, and so has each launch of a graph, wherever it is replayed."""
    want = attended(given)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            attended(given)
    torch.cuda.synchronize()
    before, graph = {*host_stub._COUNTERS}, torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=streams[0]):
        captured = [attended(given), attended(given)]
    assert {*host_stub._COUNTERS} == before and len(before) >= 4
    for _ in range(ROUNDS):
        made = []
        with torch.cuda.stream(streams[2]):
            for x in captured:
                x.fill_(float("nan"))
            graph.replay()
        for stream in streams[:2]:  # beside the replay
            with torch.cuda.stream(stream):
                made.append(attended(given))
        torch.cuda.synchronize()
        assert all(equal(x, want) for x in (*made, *captured))
    assert not left_over()


def test_a_counter_that_is_not_zero_loses_tiles(
    given: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = attended(given)
    attended(given)
    wrong = torch.ones(1, dtype=torch.int32, device="cuda")
    monkeypatch.setattr(host_stub, "_COUNTERS", dict.fromkeys(host_stub._COUNTERS, repeat(wrong)))
    torch.full_like(want, float("nan"))  # what the next result's memory holds
    assert not equal(attended(given), want)
