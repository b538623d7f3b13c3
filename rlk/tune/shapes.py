"""Operators that can be tuned, their default sizes, and how sizes are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlk.env import whole
from rlk.errors import Code, LaunchError

ROWS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)
SIDES = (4096, 14336)
PIECE_ROWS = (16, 64, 128, 256, 512)  # of a product by pieces, whose columns are few: 4096
HEAD_ROWS = (1, 64, 300, 1024, 8192)
GRADIENT_ROWS = (64, 1024, 8192)
VOCABULARY, HIDDEN = 128256, 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """A contraction's sizes: columns are the vocabulary of a head, length is what its forward contracts."""

    op: str
    rows: int
    columns: int
    length: int

    def __str__(self) -> str:
        return f"{self.op} {self.rows} x {self.columns} x {self.length}"


@dataclass(frozen=True, slots=True)
class Subject:
    """A tunable problem: the letters of rows, columns and length, and the default sizes, few rows first."""

    letters: tuple[str, str, str]
    sizes: tuple[tuple[int, int, int], ...]


SUBJECTS: Mapping[str, Subject] = {
    "matmul": Subject(("M", "N", "K"), tuple((m, n, k) for m in ROWS for n in SIDES for k in SIDES)),
    "matmul_leaf8": Subject(("M", "N", "K"), tuple((m, SIDES[0], k) for m in PIECE_ROWS for k in SIDES)),
    "linear_logp": Subject(("N", "V", "D"), tuple((m, VOCABULARY, HIDDEN) for m in HEAD_ROWS)),
    "linear_logp_grad": Subject(("N", "V", "D"), tuple((m, VOCABULARY, HIDDEN) for m in GRADIENT_ROWS)),
}
GRADIENT = "_grad"  # of an operator's name


def subject(op: str, gradient: bool) -> str:
    """Return the name of what is tuned; raise LaunchError with the operators that can be."""
    name = op + GRADIENT * gradient
    if op.endswith(GRADIENT) or name not in SUBJECTS:
        choices = [n for n in SUBJECTS if not n.endswith(GRADIENT)]
        if gradient:
            choices = [n.removesuffix(GRADIENT) for n in SUBJECTS if n.endswith(GRADIENT)]
        what = "operator with a gradient to tune" if gradient else "operator to tune"
        raise LaunchError(Code.UNKNOWN_NAME, what=what, name=op, choices=", ".join(choices))
    return name


def shapes(name: str) -> tuple[Shape, ...]:
    """Return the default shapes of what is tuned."""
    return tuple(Shape(name, *sizes) for sizes in SUBJECTS[name].sizes)


def shape(name: str, text: str) -> Shape:
    """Return what "M=64,N=4096,K=4096" means; raise LaunchError for anything else."""
    letters = SUBJECTS[name].letters
    pairs = [part.partition("=") for part in text.split(",")]
    sizes = {letter.strip(): count for letter, _, size in pairs if (count := whole(size))}
    if sorted(sizes) != sorted(letters) or len(pairs) != len(letters):
        wanted = ",".join(f"{letter}=4096" for letter in letters)
        raise LaunchError(Code.ARG_VALUE, op="rlk tune", name="--shape", value=text[:60], wanted=wanted)
    return Shape(name, *(sizes[letter] for letter in letters))
