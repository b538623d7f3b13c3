"""The demo's text, tokenizer, batches and plain-torch peer are what they say."""

from __future__ import annotations

import hashlib
import re

import pytest
import torch

pytest.importorskip("tokenizers", reason="the demo extra is not installed")

from rlk.demo import batch, model, plain, text

SHAPE = text.Shape(groups=3, group_size=4, prompt=(5, 9), completion=(3, 12))


def test_the_text_is_the_recorded_one() -> None:
    recorded = re.search(r"`([0-9a-f]{64})`", (text.DATA / "README.md").read_text())
    assert recorded and recorded[1] == hashlib.sha256(text.shipped().encode()).hexdigest()


def test_the_tokenizer_covers_every_byte_and_returns_the_text() -> None:
    tokenizer = text.tokenizer()
    assert tokenizer.get_vocab_size() == text.VOCABULARY >= 32_000
    for sample in (text.shipped(), "tabs\tand\r\nother lines", "ascii, é, 漢字, 🐋"):
        assert tokenizer.decode(tokenizer.encode(sample).ids) == sample


def test_training_again_gives_the_same_tokenizer() -> None:
    again = text.tokenizer.__wrapped__()
    assert again is not text.tokenizer() and again.to_str() == text.tokenizer().to_str()


def test_samples_depend_on_the_seed_alone() -> None:
    assert text.cut(SHAPE, 1) == text.cut(SHAPE, 1) != text.cut(SHAPE, 2)


def test_samples_keep_their_bounds_and_true_continuations_are_rewarded() -> None:
    samples = text.cut(SHAPE, 3)
    assert len(samples) == 12
    assert all(5 <= len(s.prompt) <= 9 and 3 <= len(s.completion) <= 12 for s in samples)
    assert all(s.reward >= 1 for s in samples[::2])
    assert len({len(s) for s in samples}) > 1


def test_the_reward_is_the_rule_it_states() -> None:
    assert text.reward_of(" me Ishmael.", "me Ishmael. Some years ago") == 1.5
    assert text.reward_of("me Ishmael", " me Ishmael. Some") == 1.0
    assert text.reward_of("me Ahab!", "me Ishmael.") == 0.5
    assert text.reward_of("me Ahab", "me Ishmael.") == 0.0
    assert text.reward_of(" ", "me Ishmael.") == 0.0


def test_masks_mark_exactly_the_completions() -> None:
    samples = text.cut(SHAPE, 4)
    made = batch.make_batch(samples, SHAPE.group_size, "cpu")
    for row, sample in enumerate(samples):
        assert made.targets[row][made.mask[row]].tolist() == list(sample.completion)
        assert made.inputs[row, 0] == sample.prompt[0]
    assert (made.mask & ~made.real).sum() == 0
    packed = made.pack(made.targets)
    assert made.cu_seqlens[-1] == len(packed) == made.lengths.sum()
    for row, sample in enumerate(samples):
        part = packed[made.cu_seqlens[row] : made.cu_seqlens[row + 1]]
        assert part.tolist() == list(sample.prompt + sample.completion)[1:]


def test_a_group_of_equal_rewards_has_no_advantage() -> None:
    rewards = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    got = batch.advantages_of(rewards, 2)
    assert got[:2].tolist() == [0.0, 0.0]
    assert got[3] == -got[2] > 0


def test_weights_depend_on_the_seed_alone() -> None:
    pytest.importorskip("transformers")
    one, two = (model.make_model(model.SMALL, 5, "cpu") for _ in range(2))
    for net in (one, two):
        model.perturb(net, 0.01, 7)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_the_peer_agrees_with_its_float64_form() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2, 5, 97, generator=generator) * 3
    ids = torch.randint(0, 97, (2, 5), generator=generator)
    advantages = torch.randn(2, generator=generator)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    noise = [0.1 * torch.randn(z.shape, generator=generator) for _ in range(2)]
    old, ref = (plain.log_probs(z + moved, ids)[0] for moved in noise)
    narrow = plain.objective(*plain.log_probs(z, ids), old, ref, advantages, mask)
    probs = plain.log_probs(z.double(), ids)
    wide = plain.objective(*probs, old.double(), ref.double(), advantages.double(), mask)
    for a, b in zip(narrow, wide, strict=True):
        assert torch.allclose(a.double(), b, atol=1e-5)
    assert narrow.logp[1, 3:].eq(0).all() and narrow.ratio[1, 3:].eq(1).all()
