"""On a device a token's logits are one: training, prefill, eager decoding, a CUDA graph, any batch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from nn_cases import DEVICE, model, texts

import rlk
from rlk.env import Env
from rlk.nn import CausalLM, PagedCache
from rlk.testing.digests import row_digests

SIZES = {
    "hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 64, "vocab_size": 4096, "num_hidden_layers": 3, "max_position_embeddings": 2048,
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "num_local_experts": 16, "num_experts_per_tok": 4, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1.5e5, "factor": 32.0, "truncate": False,
        "original_max_position_embeddings": 64,
    },
}  # fmt: skip
LENGTHS = (900, 700, 1, 130)
LAST, PAGE = 70, 16  # tokens that are decoded: they cross a chunk of 64 keys; slots of a page


@pytest.fixture(scope="module")
def lm() -> CausalLM:
    return model(DEVICE, **SIZES)


def sequences(batch: int) -> list[torch.Tensor]:
    lengths = [LENGTHS[i % len(LENGTHS)] + LAST + i for i in range(batch)]
    return [torch.tensor(x, device=DEVICE) for x in texts(lengths, vocabulary=4096, seed=batch)]


def offsets(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).to(torch.int32)


def trained(lm: CausalLM, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the digests of each sequence's logits, of a packed pass with gradients."""
    lengths = [len(x) for x in given]
    layout = rlk.Layout.packed(offsets(lengths), tokens=sum(lengths))
    hidden = lm.requires_grad_(True)(torch.cat(given), layout).detach()
    lm.requires_grad_(False)
    return list(row_digests(lm.logits(hidden)).split(lengths))


def paged(lm: CausalLM, given: list[torch.Tensor]) -> tuple[PagedCache, torch.Tensor]:
    """Return NaN pages for the sequences in any order, and their table."""
    columns = max(-(-len(x) // PAGE) for x in given)
    cache = lm.cache(columns * len(given) + 3, PAGE)
    for x in (cache.keys, cache.values):
        x.fill_(torch.nan)
    order = torch.randperm(cache.pages, generator=torch.Generator().manual_seed(0))
    return cache, order[: columns * len(given)].to(DEVICE, torch.int32).view(len(given), columns)


def prefilled(
    lm: CausalLM, given: list[torch.Tensor], cache: PagedCache, table: torch.Tensor, chunk: int
) -> list[torch.Tensor]:
    """Read all but the last tokens of each sequence chunk by chunk; return their digests."""
    found: list[list[torch.Tensor]] = [[] for _ in given]
    ends = [len(x) - LAST for x in given]
    for first in range(0, max(ends), chunk):
        spans = [(min(first, n), min(first + chunk, n)) for n in ends]
        counts = [b - a for a, b in spans]
        ids = torch.cat([x[a:b] for x, (a, b) in zip(given, spans, strict=True)])
        lens = torch.tensor([b for _, b in spans], dtype=torch.int32, device=DEVICE)
        digests = row_digests(lm.logits(lm.prefill(ids, cache, table, lens, offsets(counts))))
        for held, part in zip(found, digests.split(counts), strict=True):
            held.append(part)
    return [torch.cat(parts) for parts in found]


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_prefill_eager_decoding_and_a_graph_have_the_bits_of_training(batch: int, lm: CausalLM) -> None:
    compared(lm, batch)


def test_gpt_oss_has_the_same_bits_in_every_view() -> None:
    compared(model(DEVICE, **SIZES | GPT_OSS), 3)


def compared(lm: CausalLM, batch: int) -> None:
    """Compare prefill in chunks, eager steps, and steps of a graph with a packed pass."""
    assert not Env.current().check, "run it without RLK_CHECK: a graph cannot wait for the device"
    given = sequences(batch)
    want = trained(lm, given)
    cache, table = paged(lm, given)
    read = prefilled(lm, given, cache, table, 256)
    for got, x in zip(read, want, strict=True):
        assert torch.equal(got, x[:-LAST])
    ends = torch.stack([x[-LAST:] for x in want])
    lens = torch.tensor([len(x) - LAST for x in given], dtype=torch.int32, device=DEVICE)
    ids = torch.zeros(batch, dtype=torch.int64, device=DEVICE)
    newest = torch.stack([x[-LAST:] for x in given])

    def step() -> torch.Tensor:
        return lm.logits(lm.decode(ids, cache, table, lens))

    for at in range(3):  # eager; the steps of the graph write the same keys again
        ids.copy_(newest[:, at])
        lens += 1
        with NoWaiting() if at else nullcontext():  # the first one compiles
            made = step()
        assert torch.equal(row_digests(made), ends[:, at]), at
    begin = lens - 3
    lens.zero_()  # all slots are empty while the graph is made: its first runs write nothing
    graph = captured(step)
    lens.copy_(begin)
    for at in range(LAST):
        ids.copy_(newest[:, at])
        lens += 1
        graph[0].replay()
        assert torch.equal(row_digests(graph[1]), ends[:, at]), at


def test_a_step_met_again_is_replayed_with_its_bits() -> None:
    fresh = model(DEVICE, **SIZES)
    given = sequences(3)
    cache, table = paged(fresh, given)
    prefilled(fresh, given, cache, table, 256)
    lens = torch.tensor([len(x) - LAST + 1 for x in given], dtype=torch.int32, device=DEVICE)
    ids = torch.stack([x[-LAST] for x in given])
    looked_up = row_digests(fresh.logits(fresh.decode(ids, cache, table, lens)))
    for _ in range(3):  # writes the same keys again
        again = row_digests(fresh.logits(fresh.decode(ids, cache, table, lens)))
        assert torch.equal(again, looked_up)
    for layer in fresh.model.layers:
        assert any(map(callable, layer.replays.made.values()))
    other = row_digests(fresh.logits(fresh.decode(ids.flip(0), cache, table, lens)))
    assert not torch.equal(other, looked_up)


def test_empty_slots_of_a_graph_change_nothing(lm: CausalLM) -> None:
    """A graph of 8 slots with 3 sequences in it: the others have a context of 0 and no pages."""
    given, slots = sequences(3), [1, 4, 6]
    want = trained(lm, given)
    cache, small = paged(lm, given)
    prefilled(lm, given, cache, small, 512)
    table = torch.full((8, small.shape[1]), 1 << 30, dtype=torch.int32, device=DEVICE)
    table[slots] = small
    lens, ids = torch.zeros(8, dtype=torch.int32, device=DEVICE), torch.zeros(8, dtype=torch.int64).to(DEVICE)
    graph, made = captured(lambda: lm.logits(lm.decode(ids, cache, table, lens)))
    for at in range(LAST):
        for slot, x in zip(slots, given, strict=True):
            ids[slot], lens[slot] = x[len(x) - LAST + at], len(x) - LAST + at + 1
        graph.replay()
        digests = row_digests(made)[slots]
        assert torch.equal(digests, torch.stack([x[len(x) - LAST + at] for x in want])), at


class HalvesOfK(torch.nn.Module):
    """The control: the product of two halves of K, which are added, as kernels with split-K do.

    Whole products of torch may have rlk's bits: where cuBLAS does not split K, it is one chain as well.
    """

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.weight = like.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        halves = zip(x.float().chunk(2, -1), self.weight.float().chunk(2, -1), strict=True)
        return sum(a @ b.T for a, b in halves).to(x.dtype)


def test_a_product_with_split_k_is_seen(lm: CausalLM) -> None:
    other = model(DEVICE, **SIZES)
    other.model.layers[1].mlp.down_proj = HalvesOfK(other.model.layers[1].mlp.down_proj)
    given = sequences(3)
    for got, want in zip(trained(other, given), trained(lm, given), strict=True):
        assert int((got != want).sum()) > len(want) // 2


def test_a_generation_is_the_same_in_any_batch(lm: CausalLM) -> None:
    prompts = texts((40, 300, 7), vocabulary=4096)
    options = {"max_new_tokens": 16, "seed": 1, "top_p": 0.95}
    want = lm.generate(prompts, **options)
    for i, prompt in enumerate(prompts):
        (alone,) = lm.generate([prompt], request_ids=[i], chunk=33, page_size=64, **options)
        assert alone.ids == want[i].ids
        assert torch.equal(alone.logps.view(torch.int32), want[i].logps.view(torch.int32))
    lengths = [len(x.sequence) for x in want]
    ids = torch.tensor([t for x in want for t in x.sequence], device=DEVICE)
    logps = lm.logps(ids, rlk.Layout.packed(offsets(lengths), tokens=len(ids))).logp
    assert logps is not None
    for row, x in zip(logps.cpu().split(lengths), want, strict=True):
        assert torch.equal(row[len(x.prompt) :].view(torch.int32), x.raw_logps.view(torch.int32))


def captured(step: object) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """Return a graph of a step, and what it writes; the step ran before, so that all is compiled."""
    assert callable(step)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    return graph, made


class NoWaiting:
    """Raise where the host waits for the device."""

    def __enter__(self) -> None:
        torch.cuda.set_sync_debug_mode("error")

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_sync_debug_mode("default")
