"""The public calls of attention: their results by query head, their edges, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attention_cases import batch, packed, paged

from rlk import ops
from rlk.errors import LaunchError
from rlk.ops.attention import paged_attention_into
from rlk.testing.bits import assert_same_bits

LENGTHS = ((9, 0, 5, 1), (70, 0, 5, 130))
GIVEN = batch(*LENGTHS, heads=2, group=3, e=24, w=40)


def tensor(x: Any) -> torch.Tensor:
    made = torch.from_numpy(np.ascontiguousarray(x))
    return made.view(torch.bfloat16) if x.dtype == np.uint16 else made


def offsets(which: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(LENGTHS[which])], dtype=dtype)


def arguments() -> dict[str, torch.Tensor]:
    inputs = packed(GIVEN)
    made = {n: tensor(inputs[n]) for n in ("q", "k", "v")}
    return {**made, "q": made["q"].flatten(1, 2), "cu_seqlens_q": offsets(0), "cu_seqlens_k": offsets(1)}


def in_pages() -> dict[str, torch.Tensor]:
    inputs = paged(GIVEN)
    names = ("k_cache", "v_cache", "block_table", "context_lens")
    return {**{n: tensor(inputs[n]) for n in names}, "q": arguments()["q"], "cu_seqlens_q": offsets(0)}


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": False}, {"window": 20}, {"softcap": 5.0, "scale": 0.7}, {"sinks": torch.arange(6.0)}],
)
def test_results_are_close_to_float64(options: dict[str, Any]) -> None:
    got, want = (
        ops.varlen_attention(**arguments(), **options),
        ops.varlen_attention.reference(**arguments(), **options),
    )
    assert got.o.shape == (15, 6, 40) and got.lse.shape == (6, 15)
    torch.testing.assert_close(got.o.double(), want.o, rtol=2**-7, atol=2**-7)
    torch.testing.assert_close(got.lse.double(), want.lse, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"window": 20}, {"sinks": torch.arange(6.0)}])
def test_pages_have_the_bits_of_packed_keys(options: dict[str, Any]) -> None:
    got, want = ops.paged_attention(**in_pages(), **options), ops.varlen_attention(**arguments(), **options)
    assert_same_bits(got.o, want.o)
    assert_same_bits(got.lse, want.lse)


def test_an_engine_gets_the_bits_of_pages_in_its_own_memory() -> None:
    given, every = in_pages(), torch.zeros(20, 6, 40, dtype=torch.bfloat16)
    paged_attention_into(every[2:17], **given, window=20)
    assert_same_bits(every[2:17], ops.paged_attention(**given, window=20).o)
    assert not every[:2].any() and not every[17:].any()
    assert not torch.equal(every[2:17], ops.paged_attention(**given).o)


@pytest.mark.parametrize(
    "out", [torch.zeros(15, 6, 41), torch.zeros(6, 15, 40).transpose(0, 1), torch.zeros(15, 6, 40)]
)
def test_memory_of_another_form_is_refused(out: torch.Tensor) -> None:
    with pytest.raises(LaunchError, match="out"):
        paged_attention_into(out, **in_pages())


def test_offsets_may_be_of_64_bits_and_rows_strided() -> None:
    given, want = arguments(), ops.varlen_attention(**arguments())
    both = torch.stack([given["q"], given["q"]], 2)
    wide = {
        "cu_seqlens_q": offsets(0, torch.int64),
        "cu_seqlens_k": offsets(1, torch.int64),
        "q": both[:, :, 0],
    }
    got = ops.varlen_attention(**given | wide)
    assert_same_bits(got.o, want.o)
    assert_same_bits(got.lse, want.lse)


@pytest.mark.parametrize("sinks", [None, torch.arange(6.0)])
def test_without_keys_there_is_nothing_but_the_sink(sinks: torch.Tensor | None) -> None:
    given = arguments()
    none = {"k": given["k"][:0], "v": given["v"][:0], "cu_seqlens_k": torch.zeros(5, dtype=torch.int32)}
    made = ops.varlen_attention(**given | none, sinks=sinks)
    assert not made.o.any()
    wanted = torch.full((6,), -torch.inf) if sinks is None else sinks
    assert torch.equal(made.lse, wanted[:, None].expand(6, 15))


def test_without_queries_the_result_is_empty() -> None:
    given = arguments()
    made = ops.varlen_attention(
        **given | {"q": given["q"][:0], "cu_seqlens_q": torch.zeros(5, dtype=torch.int32)}
    )
    assert made.o.shape == (0, 6, 40) and made.lse.shape == (6, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"q": torch.zeros(15, 5, 24, dtype=torch.bfloat16)}, "a multiple of the 2 heads of k"),
        ({"q": torch.zeros(15, 24, dtype=torch.bfloat16)}, "3 dims"),
        ({"window": 0}, "at least 1 key"),
        ({"window": 5, "causal": False}, "at least 1 key"),
        ({"scale": -1.0}, "positive"),
        ({"softcap": 0.0}, "positive"),
        ({"sinks": torch.zeros(5)}, "sinks"),
        ({"cu_seqlens_q": torch.zeros(3, 3, dtype=torch.int32)}, "cu_seqlens_q"),
        ({"cu_seqlens_k": offsets(1)[:-1]}, "cu_seqlens_k"),
        ({"k": torch.zeros(205, 2, 23, dtype=torch.bfloat16)}, "k"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        ops.varlen_attention(**{**arguments(), **change})


# --- gradients ---


def leaves(given: dict[str, torch.Tensor], dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """Return what a gradient is wanted for, each a leaf of its own."""
    names = [n for n in ("q", "k", "v", "sinks") if n in given]
    return {n: given[n].detach().to(dtype or given[n].dtype).requires_grad_() for n in names}


def gradients(call: Any, given: dict[str, torch.Tensor], **options: Any) -> list[torch.Tensor]:
    """Return the gradients of a sum of both results, weighted."""
    weight = torch.randn(15, 6, 40, generator=torch.Generator().manual_seed(1))
    dtype = None if call is ops.varlen_attention else torch.float64
    inputs = leaves(given, dtype)
    made = call(**{**given, **inputs}, **options)
    loss = (made.o * weight.to(made.o.dtype)).sum() + (made.lse * weight[:, :, 0].T.to(made.lse.dtype)).sum()
    loss.backward()
    return [x.grad for x in inputs.values() if x.grad is not None]


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": False}, {"window": 20}, {"softcap": 5.0, "scale": 0.7}, {"sinks": torch.arange(6.0)}],
)
def test_gradients_are_close_to_float64(options: dict[str, Any]) -> None:
    given = arguments() | {n: options[n] for n in ("sinks",) if n in options}
    rest = {n: x for n, x in options.items() if n != "sinks"}
    got = gradients(ops.varlen_attention, given, **rest)
    want = gradients(ops.varlen_attention.reference, given, **rest)
    assert len(got) == len(want) == 3 + ("sinks" in options)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype is (torch.float32 if mine.dim() == 1 else torch.bfloat16)
        torch.testing.assert_close(mine.double(), theirs, rtol=2**-6, atol=float(theirs.abs().max()) / 64)


def test_only_what_is_wanted_is_computed() -> None:
    given, want = arguments(), gradients(ops.varlen_attention, arguments())
    for name, theirs in zip(("q", "k", "v"), want, strict=True):
        one = leaves(given)[name]
        made = ops.varlen_attention(**{**given, name: one})
        weight = torch.randn(15, 6, 40, generator=torch.Generator().manual_seed(1))
        loss = (made.o * weight.to(made.o.dtype)).sum() + (made.lse * weight[:, :, 0].T).sum()
        loss.backward()
        assert one.grad is not None
        assert_same_bits(one.grad, theirs)


def test_a_gradient_through_lse_alone_says_what_it_needs() -> None:
    given = arguments()
    made = ops.varlen_attention(**{**given, **leaves(given)})
    with pytest.raises(LaunchError, match="o"):
        made.lse.sum().backward()


def test_pages_have_no_gradient() -> None:
    given = in_pages()
    with pytest.raises(LaunchError, match="q"):
        ops.paged_attention(**given | {"q": given["q"].requires_grad_()})


@pytest.mark.parametrize("empty", ["q", "k"])
def test_of_nothing_the_gradient_is_zero(empty: str) -> None:
    given = arguments()
    none = {n: given[n][:0] for n in (("q",) if empty == "q" else ("k", "v"))}
    given |= none | {f"cu_seqlens_{empty}": torch.zeros(5, dtype=torch.int32)}
    inputs = leaves(given)
    made = ops.varlen_attention(**{**given, **inputs})
    made.o.sum().backward()
    for name, x in inputs.items():
        assert x.grad is not None and x.grad.shape == x.shape and not x.grad.any(), name


@pytest.mark.parametrize("op", [ops.varlen_attention, ops.paged_attention, ops.prefix_attention])
def test_both_results_are_exact(op: Any) -> None:
    assert op.tier("cpu") == {"o": "exact", "lse": "exact"}
