"""The task of grpo_tiny.py: sort the letters of a string, checked by a rule."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PAD, START, ASK, END = range(4)
SPECIAL = ("_", "^", ">", ".")


@dataclass(frozen=True, slots=True)
class Task:
    """Strings of `shortest` to `longest` of the first `letters` letters of the alphabet.

    A prompt is ^cab>, its answer abc. and the reward how much of the answer is right.
    """

    letters: int = 8
    shortest: int = 2
    longest: int = 3

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The characters that are tokens, by id."""
        return (*SPECIAL, *LETTERS[: self.letters])

    @property
    def answer_tokens(self) -> int:
        """Return the largest number of tokens of an answer, its end included."""
        return self.longest + 1

    @property
    def width(self) -> int:
        """Return the largest number of tokens of a prompt and an answer."""
        return self.longest + 2 + self.answer_tokens

    def encode(self, text: str) -> list[int]:
        """Return the ids of the characters of a text."""
        return [self.vocabulary.index(c) for c in text]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids."""
        return "".join(self.vocabulary[i] for i in ids)

    def prompts(self, count: int, generator: torch.Generator) -> list[str]:
        """Draw strings to be sorted."""
        lengths = torch.randint(self.shortest, self.longest + 1, (count,), generator=generator).tolist()
        drawn = (torch.randint(self.letters, (n,), generator=generator).tolist() for n in lengths)
        return ["".join(LETTERS[i] for i in row) for row in drawn]

    def rows(self, prompts: list[str]) -> tuple[Tensor, Tensor]:
        """Return prompts as rows of ids [B, width], padded on the right, and how many tokens each has [B]."""
        ids = torch.full((len(prompts), self.width), PAD)
        lengths = torch.tensor([len(prompt) + 2 for prompt in prompts])
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt) + 2] = torch.tensor([START, *self.encode(prompt), ASK])
        return ids, lengths

    def reward(self, prompt: str, answer: str) -> float:
        """Return the share of the right answer, its end included, that an answer has in place."""
        right = "".join(sorted(prompt)) + SPECIAL[END]
        return sum(a == b for a, b in zip(right, answer, strict=False)) / len(right)
