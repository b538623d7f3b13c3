"""Text of the demo: public domain, with its tokenizer, and prompts and completions cut from it."""

from __future__ import annotations

import bz2
import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DATA = Path(__file__).parent / "data"
TEXT = DATA / "text.txt.bz2"
VOCABULARY = 32768
PAD, END = "<|pad|>", "<|end|>"


@cache
def shipped() -> str:
    """Return the shipped text."""
    return bz2.decompress(TEXT.read_bytes()).decode("utf-8")


@cache
def tokenizer() -> Tokenizer:
    """Train and return a byte-level BPE tokenizer of VOCABULARY entries, in about a second."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=1,
        special_tokens=[PAD, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator([shipped()], trainer)
    return made


@cache
def encoded() -> list[int]:
    """Return the tokens of the shipped text, which nobody may change; a second or two."""
    return list(tokenizer().encode(shipped()).ids)


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt with one completion, as token ids, and the reward of the completion."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    reward: float

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)


@dataclass(frozen=True, slots=True)
class Shape:
    """Number of samples to cut, and bounds of their lengths in tokens, between which lengths are drawn."""

    groups: int
    group_size: int
    prompt: tuple[int, int]
    completion: tuple[int, int]


def reward_of(completion: str, continuation: str) -> float:
    """Score a completion by a rule anyone can check: 1 if the text goes on so, and 0.5 if it ends a sentence.

    Surrounding white space does not count.
    """
    said = completion.strip()
    true = bool(said) and continuation.strip().startswith(said)
    return float(true) + 0.5 * bool(re.search(r"[.!?][”’\"')]*$", said))


def cut(shape: Shape, seed: int) -> tuple[Sample, ...]:
    """Cut groups from the text: one prompt, and completions of which every other one is the continuation.

    The rest are passages from elsewhere. Samples of a group stand together.
    """
    ids = encoded()
    draw = random.Random(seed)
    longest = shape.prompt[1] + shape.completion[1]
    samples: list[Sample] = []
    for _ in range(shape.groups):
        start = draw.randrange(len(ids) - longest)
        split = start + draw.randint(*shape.prompt)
        continuation = tokenizer().decode(ids[split : start + longest + shape.completion[1]])
        for member in range(shape.group_size):
            length = draw.randint(*shape.completion)
            begin = split if member % 2 == 0 else draw.randrange(len(ids) - length)
            completion = ids[begin : begin + length]
            reward = reward_of(tokenizer().decode(completion), continuation)
            samples.append(Sample(tuple(ids[start:split]), tuple(completion), reward))
    return tuple(samples)
