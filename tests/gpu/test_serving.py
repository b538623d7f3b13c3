"""On a device a token's attention has one result: trained on, prefilled in chunks, decoded, in any batch."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu.children import Children
from gpu.serving import (
    DEVICE,
    Result,
    Tokens,
    cached,
    drawn,
    offsets,
    served,
    trained,
    unequal,
    unequal_when_served,
)

from rlk import ops
from rlk.testing.bits import differing

CHUNKS = (1, 17, 64, 100, 512, 2048)
HITS = (0, 1, 15, 16, 17, 255, 4096)
Whole = tuple[list[Tokens], list[Result]]


@pytest.fixture(scope="module", params=[64, 128])
def whole(request: pytest.FixtureRequest) -> Whole:
    given = drawn(width=request.param)
    return given, trained(given)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunked_prefill_has_the_bits_of_training(chunk: int, whole: Whole) -> None:
    given, want = whole
    cache, longest = cached(given, 64), len(given[0])
    firsts = range(0, longest, chunk) if chunk > 64 else range(longest // 2, longest // 2 + 40 * chunk, chunk)
    for first in firsts:
        begins, ends = ([min(at, len(x)) for x in given] for at in (first, first + chunk))
        assert not any(unequal_when_served(given, want, cache, begins, ends)), first


@pytest.mark.parametrize("hit", HITS)
@pytest.mark.parametrize("page", [16, 64, 256])
def test_a_prefix_that_is_cached_changes_no_bit(page: int, hit: int, whole: Whole) -> None:
    given, want = whole
    ends = [len(x) for x in given]
    firsts = [min(hit, n - 1) for n in ends]
    assert not any(unequal_when_served(given, want, cached(given, page), firsts, ends))


@pytest.mark.parametrize("options", [{}, {"window": 700}])
@pytest.mark.parametrize("batch", [1, 2, 7, 64, 256])
def test_decoding_in_any_batch_has_the_bits_of_training(batch: int, options: dict[str, int]) -> None:
    how = random.Random(batch)
    given = drawn([how.randrange(1, 3000) for _ in range(batch)], seed=batch)
    want, cache = trained(given, **options), cached(given, 64)
    ends = [how.randrange(1, len(x) + 1) for x in given]
    firsts = [max(0, end - how.choice((1, 1, 1, 4))) for end in ends]  # some verify guessed tokens
    assert not any(unequal_when_served(given, want, cache, firsts, ends, **options))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_bit(side: str, whole: Whole) -> None:
    """A padded batch is packed with sequences of padding between: neighbours do not count."""
    given, want = whole
    pads = drawn([37] * len(given), width=given[0].q.shape[2], seed=9)
    rows = [x for x, pad in zip(given, pads, strict=True) for x in ((pad, x) if side == "left" else (x, pad))]
    found = trained(rows)[1 if side == "left" else 0 :: 2]
    assert not any(unequal(got, expected) for got, expected in zip(found, want, strict=True))


def packed(given: list[Tokens], name: str) -> torch.Tensor:
    return torch.cat([getattr(x, name) for x in given])


LIE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "heads first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "a part of every row": lambda x: torch.cat([x, 0 * x], dim=1)[:, : x.shape[1]],
    "one head for all": lambda x: x[:, :1].expand(-1, x.shape[1], -1),
}


@pytest.mark.parametrize("name", LIE)
def test_keys_and_values_may_lie_in_any_way(name: str, whole: Whole) -> None:
    given, _ = whole
    cu, q = offsets([len(x) for x in given]), packed(given, "q")
    k, v = (LIE[name](packed(given, n)) for n in "kv")
    assert not k.is_contiguous() and not v.is_contiguous()
    got, want = (ops.varlen_attention(q, *kv, cu, cu) for kv in ((k, v), (k.contiguous(), v.contiguous())))
    assert unequal((got.o, got.lse), (want.o, want.lse)) == 0


def test_what_is_not_a_number_stays_in_its_sequence(whole: Whole) -> None:
    """A chunk of keys that a sequence ends in reads on into the next one."""
    given, want = whole
    for spoilt in (1, 4):
        wrong = [
            Tokens(x.q, x.k * float("nan"), x.v * float("nan")) if i == spoilt else x
            for i, x in enumerate(given)
        ]
        for i, (got, right) in enumerate(zip(trained(wrong), want, strict=True)):
            assert (unequal(got, right) == 0) == (i != spoilt)


def test_a_graph_decodes_token_after_token_with_the_bits_of_training(whole: Whole) -> None:
    """The graph is captured once; contexts and queries are written into the tensors that it reads."""
    given, want = whole
    long = [(x, w) for x, w in zip(given, want, strict=True) if len(x) >= 300]
    rows, results = [x for x, _ in long], [w for _, w in long]
    cache, q = cached(rows, 64), torch.stack([x.q[0] for x in rows])
    held, cu = torch.ones(len(rows), dtype=torch.int32, device=DEVICE), offsets([1] * len(rows))

    def step() -> Any:
        return ops.paged_attention(q, cache.k, cache.v, cache.table, held, cu)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    for at in (0, 1, 63, 64, 255, 299):
        q.copy_(torch.stack([x.q[at] for x in rows]))
        held.fill_(at + 1)
        graph.replay()
        for i, expected in enumerate(results):
            got = made.o[i : i + 1], made.lse[:, i : i + 1]
            assert unequal(got, expected, at, at + 1) == 0, (i, at)


def test_two_streams_at_once_have_the_bits_of_one(whole: Whole) -> None:
    given, want = whole
    cache, ends = cached(given, 64), [len(x) for x in given]
    firsts = [max(0, n - 100) for n in ends]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(50):
        found = []
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(served(given, cache, firsts, ends))
        torch.cuda.synchronize()
        for results in found:
            assert not any(unequal(*spans) for spans in zip(results, want, firsts, ends, strict=True))


WRONG: dict[str, Callable[[Tokens], Tokens]] = {
    "keys in another order": lambda x: Tokens(x.q, x.k.flip(0), x.v.flip(0)),
    "one value moved": lambda x: Tokens(x.q, x.k, torch.cat((x.v[:1] + 1, x.v[1:]))),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_order_is_seen(name: str, whole: Whole) -> None:
    """The control: without a mask the same keys turned around are the same sum in another order."""
    given, _ = whole
    first = given[0]
    want = trained([first], causal=False)[0]
    got = trained([WRONG[name](first)], causal=False)[0]
    assert unequal(got, want) > 1000


def test_cute_and_triton_have_the_same_bits(tmp_path_factory: pytest.TempPathFactory) -> None:
    if importlib.util.find_spec("cutlass") is None or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs the CuTe DSL and a Hopper device")
    found = []
    for backend in ("cute", "triton"):
        folder = tmp_path_factory.mktemp(backend)
        found.append(
            Children(folder, "gpu.serving", 300.0, 1, RLK_BACKEND=backend).run("", folder / "found.pt")
        )
    for got, want in zip(*(x["found"] for x in found), strict=True):
        for a, b in zip(got, want, strict=True):
            assert differing(a, b) == 0
