"""Attention on Hopper leaves the counter of its tiles at zero for the next launch of its stream."""

from __future__ import annotations

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


def counters() -> list[int]:
    torch.cuda.synchronize()
    return [int(word) for words in host_stub._WORK_COUNTERS.values() for word in words.cpu()]


def test_launches_of_streams_and_of_a_graph_have_the_same_bits(given: tuple[torch.Tensor, ...]) -> None:
    """Each stream has a counter of its own, and so has each launch of a graph, wherever it is replayed."""
    want = attended(given)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [attended(given), attended(given)]
    made = []
    for i in range(ROUNDS):
        with torch.cuda.stream(streams[i % 3]):
            made.append(attended(given))
        if i % 5 == 0:
            with torch.cuda.stream(streams[2]):
                graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(x.view(torch.int16), want.view(torch.int16)) for x in (*made, *captured))
    assert len({*host_stub._WORK_COUNTERS}) >= 4 and not any(counters())


def test_a_counter_that_is_left_behind_loses_tiles(given: tuple[torch.Tensor, ...]) -> None:
    want = attended(given)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        attended(given)
        host_stub.work_counter(given[0].device).fill_(1)
        torch.full_like(want, float("nan"))  # what the next result's memory holds
        made = attended(given)
    torch.cuda.synchronize()
    assert not torch.equal(made.view(torch.int16), want.view(torch.int16))
    assert not any(counters())  # the last draw is the same
