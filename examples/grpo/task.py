"""Puzzles of numbers and strings by difficulty level, their tokens, and the reward."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

PAD, START, END = range(3)
LETTERS = "abcdefgh"  # of strings
VOCABULARY = ("_", "^", ".", " ", *"+-=", *"0123456789", *"abcdefghijklmnopqrstuvwxyz")
"""The tokens by id: padding, start and end of a text, then its characters."""
IDS = {token: i for i, token in enumerate(VOCABULARY)}
LEVELS = {1: (9, 2), 2: (19, 3), 3: (99, 5), 4: (999, 8), 5: (99999, 12)}
"""The largest number and the most letters of each level."""
KINDS = ("add", "subtract", "reverse", "sort")


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A prompt, such as "add 7+5=" or "reverse abc=", with its right answer, "12" or "cba"."""

    level: int
    prompt: str
    answer: str

    @property
    def prompt_ids(self) -> list[int]:
        """Return the tokens of the prompt, the start of the text first."""
        return [START, *encode(self.prompt)]

    def reward(self, ids: tuple[int, ...]) -> float:
        """Return 1 for the tokens of the right answer, its end included; else half the share in place."""
        right = (*encode(self.answer), END)
        if ids == right:
            return 1.0
        return 0.5 * sum(a == b for a, b in zip(right, ids, strict=False)) / len(right)


def encode(text: str) -> list[int]:
    """Return the tokens of a text."""
    return [IDS[c] for c in text]


def decode(ids: tuple[int, ...]) -> str:
    """Return the text of tokens; "." is its end."""
    return "".join(VOCABULARY[i] for i in ids)


def longest_answer(levels: tuple[int, ...]) -> int:
    """Return the most tokens of an answer of some levels, its end included."""
    return 1 + max(max(letters, len(str(2 * number))) for number, letters in (LEVELS[n] for n in levels))


def draw(kinds: tuple[str, ...], levels: tuple[int, ...], count: int, random: Random) -> list[Puzzle]:
    """Draw puzzles: each of a kind and a level, all equally likely."""
    return [_puzzle(random.choice(kinds), random.choice(levels), random) for _ in range(count)]


def _puzzle(kind: str, level: int, random: Random) -> Puzzle:
    largest, letters = LEVELS[level]
    a, b = random.randint(0, largest), random.randint(0, largest)
    text = "".join(random.choice(LETTERS) for _ in range(random.randint(max(2, letters - 1), letters)))
    match kind:
        case "add":
            return Puzzle(level, f"add {a}+{b}=", str(a + b))
        case "subtract":
            a, b = max(a, b), min(a, b)
            return Puzzle(level, f"subtract {a}-{b}=", str(a - b))
        case "reverse":
            return Puzzle(level, f"reverse {text}=", text[::-1])
        case "sort":
            return Puzzle(level, f"sort {text}=", "".join(sorted(text)))
    raise ValueError(kind)


def mistaken(puzzle: Puzzle, random: Random) -> str:
    """Return an answer with one character exchanged for another one of its sort."""
    at = random.randrange(len(puzzle.answer))
    others = "0123456789" if puzzle.answer.isdigit() else LETTERS
    other = random.choice([c for c in others if c != puzzle.answer[at]])
    return puzzle.answer[:at] + other + puzzle.answer[at + 1 :]
