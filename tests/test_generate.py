"""A request's tokens and log-probs are its own: whatever batch, chunk, pages and preemptions there were."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
import torch
from nn_cases import TorchLinear, model, texts

import rlk
from rlk.errors import LaunchError
from rlk.nn import CausalLM, Generation, packed_support
from rlk.nn.generate import requests_of
from rlk.testing.bits import differing

NEW, EOS = 8, tuple(range(8))
CUT: dict[str, Any] = {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.01}
PROMPTS = texts((5, 33, 17, 1, 40, 20))


@pytest.fixture(scope="module")
def lm() -> CausalLM:
    return model()


@pytest.fixture(scope="module")
def want(lm: CausalLM) -> list[Generation]:
    return made(lm)


def made(lm: CausalLM, prompts: list[list[int]] = PROMPTS, **options: Any) -> list[Generation]:
    given = {"max_new_tokens": NEW, "seed": 3, "eos_ids": EOS, "supports": True, **CUT, **options}
    return lm.generate(prompts, **given)


def unequal(got: Generation, want: Generation) -> int:
    """Count the draws that differ in their token, log-probs or support."""
    if len(got.ids) != len(want.ids):
        return max(len(got.ids), len(want.ids))
    assert got.support is not None and want.support is not None
    pairs = zip((got.raw_logps, got.logps, *got.support), (want.raw_logps, want.logps, *want.support))
    wrong = torch.tensor(got.ids) != torch.tensor(want.ids)
    for a, b in pairs:
        wrong |= a.view(torch.int32) != b.view(torch.int32)
    return int(wrong.sum())


def replayed(lm: CausalLM, found: list[Generation], **options: Any) -> list[torch.Tensor]:
    """Return the log-probs of drawn tokens by one packed pass over the finished sequences."""
    lengths = [len(x.sequence) for x in found]
    ids = torch.tensor([t for x in found for t in x.sequence])
    layout = rlk.Layout.packed(torch.tensor([0, *lengths]).cumsum(0), tokens=len(ids))
    logps = lm.logps(ids, layout, **options).logp
    assert logps is not None
    return [row[len(x.prompt) :] for row, x in zip(logps.split(lengths), found, strict=True)]


def test_a_request_is_the_same_alone(lm: CausalLM, want: list[Generation]) -> None:
    for i in (1, 3):
        (alone,) = made(lm, [PROMPTS[i]], request_ids=[i])
        assert unequal(alone, want[i]) == 0
    assert {x.finish for x in want} == {"eos", "length"}
    assert all(x.ids[-1] in EOS for x in want if x.finish == "eos")
    assert all(len(x.ids) == NEW for x in want if x.finish == "length")


@pytest.mark.parametrize(
    "limits",
    [
        {"max_batch": 2, "chunk": 7},
        {"chunk": 3, "page_size": 1},
        {"page_size": 64, "chunk": 50, "pages": 3},
    ],
    ids=str,
)
def test_batch_chunk_and_page_size_change_no_draw(
    limits: dict[str, int], lm: CausalLM, want: list[Generation]
) -> None:
    assert [unequal(a, b) for a, b in zip(made(lm, **limits), want, strict=True)] == [0] * len(want)


def test_draws_after_a_preemption_are_the_same(lm: CausalLM) -> None:
    """Three short prompts fit into the pages that their long continuations do not."""
    prompts, options = texts((6, 8, 7)), {"max_new_tokens": 10, "eos_ids": (), "page_size": 2}
    want = made(lm, prompts, **options)
    got = made(lm, prompts, **options, pages=17)
    assert not any(x.preempted for x in want)
    assert got[0].preempted == 0 and got[2].preempted > 0
    assert [unequal(a, b) for a, b in zip(got, want, strict=True)] == [0, 0, 0]


def test_the_order_of_requests_changes_no_draw(lm: CausalLM, want: list[Generation]) -> None:
    order = [4, 0, 5, 2, 1, 3]
    got = made(lm, [PROMPTS[i] for i in order], request_ids=order, max_batch=4)
    assert [unequal(x, want[i]) for x, i in zip(got, order, strict=True)] == [0] * len(want)


@pytest.mark.parametrize("change", [{"request_ids": range(1, 7)}, {"seed": 4}], ids=["request", "seed"])
def test_another_request_or_seed_draws_other_tokens(
    change: dict[str, Any], lm: CausalLM, want: list[Generation]
) -> None:
    """The control of the draws: equal prompts give other tokens."""
    got = made(lm, **change)
    assert sum(a.ids != b.ids for a, b in zip(got, want, strict=True)) >= 4


def test_log_probs_are_those_of_whole_sequences(lm: CausalLM, want: list[Generation]) -> None:
    support = packed_support(want)
    drawn = replayed(lm, want, temperature=CUT["temperature"], support=support)
    raw = replayed(lm, want)
    assert sum(differing(a, x.logps) for a, x in zip(drawn, want, strict=True)) == 0
    assert sum(differing(a, x.raw_logps) for a, x in zip(raw, want, strict=True)) == 0


def test_log_probs_of_another_temperature_differ(lm: CausalLM, want: list[Generation]) -> None:
    """The control of the replay: another temperature, and no support."""
    uncertain = sum(int((x.logps < 0).sum()) for x in want)  # the others' supports are one token
    for options in ({"temperature": 0.71, "support": packed_support(want)}, {"temperature": 0.7}):
        other = replayed(lm, want, **options)
        assert sum(differing(a, x.logps) for a, x in zip(other, want, strict=True)) >= uncertain // 2 > 5


def test_a_product_of_torch_is_seen() -> None:
    """The control of the model: one kind of linear layer by torch, in training alone."""
    sizes = {"hidden_size": 64, "intermediate_size": 2048}  # sums of 64 numbers seldom tell their order
    lm, other = model(**sizes), model(**sizes)
    for layer in other.model.layers:
        layer.mlp.down_proj = TorchLinear(layer.mlp.down_proj)
    found = made(lm, texts((60, 60)), temperature=1.0, top_k=None, top_p=None, min_p=None, eos_ids=())
    counts = [
        sum(differing(a, x.raw_logps) for a, x in zip(replayed(m, found), found, strict=True))
        for m in (lm, other)
    ]
    assert counts[0] == 0 and counts[1] > 0


def test_requests_may_have_seeds_and_lengths_of_their_own(lm: CausalLM) -> None:
    prompts = [PROMPTS[0]] * 3
    first, second, third = made(
        lm, prompts, seed=[3, 3, 8], request_ids=[1, 1, 1], max_new_tokens=[4, 6, 6], eos_ids=()
    )
    assert second.ids[:4] == first.ids and len(second.ids) == 6
    assert third.ids != second.ids


def test_greedy_tokens_are_the_largest_scores(lm: CausalLM) -> None:
    (found,) = made(lm, [PROMPTS[1]], temperature=0.0, top_k=None, top_p=None, min_p=None, eos_ids=())
    hidden = lm(torch.tensor(found.sequence))
    at = torch.arange(len(found.prompt) - 1, len(found.sequence) - 1)
    assert lm.logits(hidden[at]).argmax(-1).tolist() == list(found.ids)


def test_no_prompts_give_no_generations(lm: CausalLM) -> None:
    assert made(lm, []) == []
    assert packed_support([]).threshold.shape == (0,)


@pytest.mark.parametrize(
    ("prompts", "options", "said"),
    [
        ("text", {}, r"prompts\[0\]='t' .*\n.*a list of lists"),
        ([1, 2], {}, r"prompts\[0\]=1 .*\n.*a list of lists"),
        (["123"], {}, r"prompts\[0\]='123' .*\n.*a list of lists"),
        ([b"hello"], {}, r"prompts\[0\]=b'hello' .*\n.*a list of lists"),
        ([[1], {1: 2}], {}, r"prompts\[1\]=\{1: 2\} .*\n.*a list of lists"),
        ([[1.7, 2.2]], {}, r"prompts\[0\]=\[1.7, 2.2\] .*\n.*a list of lists"),
        ([torch.ones(2)], {}, r"prompts\[0\]=tensor.*a list of lists"),
        ([[1, True]], {}, r"prompts\[0\]=\[1, True\] .*\n.*a list of lists"),
        ([[1], []], {}, r"prompts\[1\]=\[\] .*at least one token"),
        ([[1, 96]], {}, r"prompts\[0\]=96 .*ids from 0 to 95"),
        ([[1]], {"max_new_tokens": 0}, r"max_new_tokens\[0\]=0 .*1 to"),
        ([[1]], {"max_new_tokens": 600}, r"max_new_tokens\[0\]=600 .*within 512 positions"),
        ([[1] * 42], {"pages": 3}, r"pages=3 .*at least 4, which the longest request fills"),
        ([[1]], {"pages": 0}, r"pages=0 "),
        ([[1]], {"page_size": 0}, r"page_size=0 "),
        ([[1]], {"chunk": 0}, r"chunk=0 "),
        ([[1]], {"max_batch": 0}, r"max_batch=0 "),
        ([[1]], {"seed": [1, 2]}, r"seed has requests = 2, but prompts has requests = 1"),
        ([[1]], {"request_ids": []}, r"request_ids has requests = 0"),
        ([[1]], {"temperature": -1.0}, r"temperature=-1.0 "),
        ([[1]], {"top_p": 1.5}, r"top_p=1.5 "),
    ],
)
def test_what_cannot_be_generated_is_refused(
    prompts: list[list[int]], options: dict[str, Any], said: str, lm: CausalLM
) -> None:
    with pytest.raises(LaunchError, match=f"(?s){said}"):
        made(lm, prompts, **options)


def test_prompts_are_sequences_arrays_and_tensors_of_integers() -> None:
    ids = torch.tensor([3, 1])
    given: list[Any] = [[3, 1], (3, 1), ids, ids.numpy(), list(ids), list(ids.numpy()), array("i", [3, 1])]
    made = requests_of(given, 1, 0, None)
    assert [request.prompt for request in made] == [(3, 1)] * len(given)
    assert {type(x) for request in made for x in request.prompt} == {int}
    assert requests_of([range(2)], 1, 0, None)[0].prompt == (0, 1)


def test_scores_that_are_no_numbers_are_refused() -> None:
    broken = model()
    broken.lm_head.weight.fill_(torch.nan)
    with pytest.raises(LaunchError, match="finite scores of request 0 at 1"):
        made(broken, [[1]])


def test_supports_are_replayed_only_if_they_were_asked_for(lm: CausalLM) -> None:
    found = made(lm, [[1]], supports=False, max_new_tokens=1)
    assert found[0].support is None
    with pytest.raises(LaunchError, match=r"generations\[0\].support=None(.|\n)*supports=True"):
        packed_support(found)
