"""A token's f32 logits, all of the vocabulary, are the same bits in training, prefill and decoding."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from nn_cases import TorchLinear, integers, model, texts
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import rlk
from rlk.errors import LaunchError
from rlk.nn import CausalLM, PagedCache, PagedTokens
from rlk.testing.bits import differing
from rlk.testing.digests import row_digests

WIDE = {"hidden_size": 256, "intermediate_size": 1024, "head_dim": 64, "vocab_size": 1024}
PROMPT, NEW = 256, 32
SECONDS = 60  # of all threads, of which it takes 5


@pytest.fixture(scope="module")
def lm() -> CausalLM:
    return model()


def pages_for(lm: CausalLM, tokens: int, page_size: int = 16, seed: int = 0) -> tuple[PagedCache, Any]:
    """Return a cache with a page to spare, NaN in all of it, and the table of one sequence in any order."""
    count = -(-tokens // page_size)
    cache = lm.cache(count + 1, page_size)
    for x in (cache.keys, cache.values):
        x.fill_(torch.nan)
    order = torch.randperm(count + 1, generator=torch.Generator().manual_seed(seed))
    return cache, order[:count].to(torch.int32)[None]


def read(lm: CausalLM, ids: torch.Tensor, cuts: list[int], page_size: int = 16) -> torch.Tensor:
    """Return logits of a sequence that is prefilled up to each of the cuts in turn, then decoded."""
    cache, table = pages_for(lm, len(ids), page_size)
    rows = []
    for first, end in zip([0, *cuts], cuts, strict=False):
        rows.append(lm.prefill(ids[first:end], cache, table, integers(end), integers(0, end - first)))
    for at in range(cuts[-1], len(ids)):
        rows.append(lm.decode(ids[at : at + 1], cache, table, integers(at + 1)))
    return lm.logits(torch.cat(rows))


def test_a_tiny_qwen3_has_one_result_for_training_prefill_chunks_and_decoding() -> None:
    """2 layers, hidden 256, V 1024: 256 tokens of a prompt and 32 of decoding, and two controls."""
    began = time.process_time()
    lm = model(**WIDE)
    ids = torch.tensor(texts((PROMPT + NEW,), vocabulary=1024)[0])
    want = lm.logits(lm(ids))
    assert 3 < want.std() < 5
    assert differing(read(lm, ids, [len(ids)]), want) == 0
    assert differing(read(lm, ids, [PROMPT]), want) == 0
    assert differing(read(lm, ids, [1, 97, 100, 255, PROMPT], page_size=64), want) == 0
    for other in (with_torch(lm), with_leaves(lm, 2)):
        assert int((row_digests(other.logits(other(ids))) != row_digests(want)).sum()) > len(ids) // 2
    assert time.process_time() - began < SECONDS


def with_torch(lm: CausalLM) -> CausalLM:
    """The control: one product of the first layer by torch."""
    other = model(**WIDE)
    other.model.layers[0].mlp.down_proj = TorchLinear(other.model.layers[0].mlp.down_proj)
    return other


def with_leaves(lm: CausalLM, leaves: int) -> CausalLM:
    """The control: row-parallel products in another order."""
    other = CausalLM(replace(lm.config, leaves=leaves), device="cpu").requires_grad_(False)
    other.load_state_dict(lm.state_dict())
    return other


# --- pages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 3, 16, 128])
def test_page_sizes_change_no_bit(page_size: int, lm: CausalLM) -> None:
    ids = torch.tensor(texts((40,))[0])
    assert differing(read(lm, ids, [17, 38], page_size), lm.logits(lm(ids))) == 0


def test_a_mixed_batch_has_the_bits_of_each_sequence(lm: CausalLM) -> None:
    """One sequence reads a chunk, one its whole prompt, one decodes, one reads nothing."""
    seqs = [torch.tensor(x) for x in texts((30, 12, 21, 9))]
    table = torch.randperm(64, generator=torch.Generator().manual_seed(2)).to(torch.int32)[:32].view(4, 8)
    cache, ends = lm.cache(64, 4), ([10, 0, 20, 9], [25, 12, 21, 9])
    found: list[list[torch.Tensor]] = [[] for _ in seqs]
    begin = [0] * 4
    for end in ends:
        counts = [b - a for a, b in zip(begin, end, strict=True)]
        ids = torch.cat([s[a:b] for s, a, b in zip(seqs, begin, end, strict=True)])
        cu = integers(0, *torch.tensor(counts).cumsum(0).tolist())
        rows = lm.prefill(ids, cache, table, integers(*end), cu)
        for held, part in zip(found, rows.split(counts), strict=True):
            held.append(part)
        begin = end
    for s, parts in zip(seqs, found, strict=True):
        got = torch.cat(parts)
        assert differing(got, lm(s)[: len(got)]) == 0


def test_padding_of_a_step_changes_nothing(lm: CausalLM) -> None:
    """Sequences with a context of 0, and tokens behind the last sequence: as a CUDA graph has them."""
    ids = torch.tensor(texts((20,))[0])
    want = lm(ids)
    cache, table = pages_for(lm, 20)
    lm.prefill(ids[:18], cache, table, integers(18), integers(0, 18))
    before = [x[:, : cache.pages].clone() for x in (cache.keys, cache.values)]
    tables = torch.cat([torch.full_like(table, 1 << 30), table, torch.zeros_like(table)])
    got = lm.decode(torch.tensor([0, int(ids[18]), 0]), cache, tables, integers(0, 19, 0))
    assert differing(got[1], want[18]) == 0
    written = [
        (x[:, : cache.pages].view(torch.int16) != y.view(torch.int16)).flatten(3).any(3).any(0).sum()
        for x, y in zip((cache.keys, cache.values), before, strict=True)
    ]
    assert [int(n) for n in written] == [1, 1]  # the slot of the one token that there is
    padded = torch.cat([ids[19:], ids[:6]])
    got = lm.prefill(padded, cache, tables[1:2], integers(20), integers(0, 1))
    assert differing(got[0], want[19]) == 0
    assert int(PagedTokens.of(cache, integers(0, 1), integers(20), tables[1:2], 7).positions.sum()) == 19


def test_padding_that_is_not_told_is_seen(lm: CausalLM) -> None:
    """The control: a slot with a context of 1 in place of 0 writes into the first page of the table."""
    ids = torch.tensor(texts((20,))[0])
    cache, table = pages_for(lm, 20)
    lm.prefill(ids[:18], cache, table, integers(18), integers(0, 18))
    got = lm.decode(torch.tensor([0, int(ids[18])]), cache, table.expand(2, -1), integers(1, 19))
    assert differing(got[1], lm(ids)[18]) > 0


def test_nothing_is_a_batch(lm: CausalLM) -> None:
    ids, cache = torch.tensor([1, 2, 3]), lm.cache(2, 4)
    table = integers(0, 1)[None]
    none = torch.zeros(0, dtype=torch.int32)
    for new, rows, lens, cu in (
        (0, 0, none, integers(0)),  # no sequence
        (3, 0, none, integers(0)),  # padding alone
        (0, 1, integers(0), integers(0, 0)),  # a sequence without tokens
        (0, 1, integers(5), integers(0, 0)),  # without new ones
    ):
        assert lm.prefill(ids[:new], cache, table[:rows], lens, cu).shape == (new, 32)
    assert lm.prefill(ids, cache, table[:, :0], integers(0), integers(0, 0)).shape == (3, 32)
    assert lm.decode(ids[:0], cache, table[:0], none).shape == (0, 32)


@pytest.mark.filterwarnings("error:Accessing the data pointer")
def test_a_step_reads_no_number_that_is_on_a_device(lm: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors have sizes and no numbers: what waits for one raises. So sizes alone decide what runs."""
    tables = (torch.empty(512, 8), torch.empty(512, 8))  # made once on the host, before anything is captured
    monkeypatch.setattr("rlk.nn.rotary.ops.rope_table", lambda *a, **k: tables)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32)

    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = CausalLM(lm.config)
        cache = fake.cache(4, 4)
        for rows, columns, tokens in ((3, 4, 3), (2, 4, 9), (1, 0, 2), (0, 4, 2)):
            given = numbers(rows, columns), numbers(rows), numbers(rows + 1)
            assert fake.prefill(numbers(tokens), cache, *given).shape == (tokens, 32)
        assert fake.logits(fake.decode(numbers(3), cache, numbers(3, 4), numbers(3))).shape == (3, 96)
        with pytest.raises(DataDependentOutputException):  # the control: a step that looks at its contexts
            fake.decode(numbers(int(numbers(1)[0])), cache, numbers(3, 4), numbers(3))


T = torch.arange(4, dtype=torch.int32)[None]
BAD: dict[str, tuple[Callable[[CausalLM, torch.Tensor, PagedCache], Any], str]] = {
    "a context shorter than its new tokens": (
        lambda m, x, c: m.prefill(x[:5], c, T, integers(4), integers(0, 5)),
        r"CausalLM.prefill: context_lens\[0\]=4 .*at least the 5 new tokens",
    ),
    "a context longer than its pages": (
        lambda m, x, c: m.prefill(x[:5], c, T, integers(65), integers(0, 5)),
        r"CausalLM.prefill: context_lens\[0\]=65 .*0 to 64, the slots of a row of block_table",
    ),
    "a page outside of the cache": (
        lambda m, x, c: m.decode(x[:1], c, T + 1, integers(64)),
        r"CausalLM.decode: block_table\[0\]=\[1, 2, 3, 4\] .*pages from 0 to 3",
    ),
    "a row of the table too few": (
        lambda m, x, c: m.decode(x[:2], c, T, integers(5, 5)),
        r"CausalLM.decode: len\(ids\)=2 .*one new token for each of the 1 sequences of block_table",
    ),
    "a context too many": (
        lambda m, x, c: m.decode(x[:1], c, T, integers(5, 5)),
        r"context_lens has B = \(2,\), but cu_seqlens has B = 1",
    ),
    "offsets that descend": (
        lambda m, x, c: m.prefill(x[:5], c, T.expand(2, 4), integers(5, 5), integers(0, 5, 3)),
        r"cu_seqlens=\[0, 5, 3\] .*ascending offsets between 0 and 5",
    ),
    "offsets beyond the tokens": (
        lambda m, x, c: m.prefill(x[:5], c, T, integers(6), integers(0, 6)),
        r"cu_seqlens=\[0, 6\] .*ascending offsets between 0 and 5",
    ),
    "no offsets": (
        lambda m, x, c: m.prefill(x[:5], c, T[:0], integers(), integers()),
        r"cu_seqlens has 1 dims \(0,\), expected \[B \+ 1\]",
    ),
    "contexts of 64 bits": (
        lambda m, x, c: m.decode(x[:1], c, T, torch.tensor([5])),
        r"context_lens has dtype torch.int64, expected torch.int32",
    ),
    "ids of two dims": (
        lambda m, x, c: m.prefill(x[None], c, T, integers(5), integers(0, 5)),
        r"CausalLM.prefill: ids has 2 dims",
    ),
    "a table that is a list": (
        lambda m, x, c: m.decode(x[:1], c, [[0]], integers(5)),  # type: ignore[arg-type]
        r"block_table must be a torch.Tensor",
    ),
    "a context beyond the rotary table": (
        lambda m, x, c: m.decode(x[:1], m.cache(600, 1), torch.arange(600).int()[None], integers(513)),
        r"max\(context_lens\)=513 .*at most max_position_embeddings = 512",
    ),
    "no page": (lambda m, x, c: m.cache(0), r"PagedCache.empty: pages=0 "),
    "pages without slots": (lambda m, x, c: m.cache(1, 0), r"PagedCache.empty: page_size=0 "),
    "half a page": (lambda m, x, c: m.cache(1.5), r"pages must be a int"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pages_are_refused_before_they_are_written(name: str, lm: CausalLM) -> None:
    call, said = BAD[name]
    cache = lm.cache(4, 16)
    for x in (cache.keys, cache.values):
        x.fill_(7.0)
    with pytest.raises(LaunchError, match=f"(?s){said}"):
        call(lm, torch.arange(40), cache)
    assert bool((cache.keys == 7).all()) and bool((cache.values == 7).all())


def test_the_bytes_of_a_page_are_those_of_its_share_of_the_cache(lm: CausalLM) -> None:
    cache = lm.cache(5, 8)
    assert (cache.pages, cache.page_size) == (5, 8)
    each = PagedCache.page_bytes(lm.config, 8, torch.bfloat16)
    assert cache.keys.nbytes + cache.values.nbytes == cache.pages * each  # one is padding's


def test_a_layer_that_is_checkpointed_has_the_same_bits(lm: CausalLM) -> None:
    ids = torch.tensor(texts((30,))[0])
    layout = rlk.Layout.packed(torch.tensor([0, 11, 30]), tokens=30)
    want = lm(ids, layout)
    other = model().requires_grad_(True)
    other.gradient_checkpointing_enable()
    assert differing(other(ids, layout), want) == 0


# --- digests ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_bit_changes_the_digest_of_its_row_alone(dtype: torch.dtype) -> None:
    x = torch.randn(6, 1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    want = row_digests(x)
    assert len(set(want.tolist())) == 6
    width = 8 * x.element_size()
    bits = x.view(torch.int32 if width == 32 else torch.int16)
    for row, column, bit in ((0, 0, 0), (2, 999, width - 1), (5, 500, 7)):
        bits[row, column] ^= torch.iinfo(bits.dtype).min if bit == width - 1 else 1 << bit
        changed = row_digests(x) != want
        assert changed.nonzero().flatten().tolist() == [row]
        want = row_digests(x)


def test_numbers_that_change_places_change_the_digest() -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    assert not bool((row_digests(x) == row_digests(x.flip(1))).any())


def test_digests_do_not_depend_on_the_rows_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    want = row_digests(x)
    monkeypatch.setattr("rlk.testing.digests._BLOCK", 64 * 7)
    assert torch.equal(row_digests(x), want) and torch.equal(row_digests(x[20:21]), want[20:21])
    assert row_digests(x[:0]).shape == (0,)
    assert torch.equal(row_digests(torch.zeros(1, 4)), row_digests(torch.zeros(1, 4)))
    assert not torch.equal(row_digests(torch.zeros(1, 4)), row_digests(-torch.zeros(1, 4)))
