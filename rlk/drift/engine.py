"""The tokens that two engines score, what an engine says of itself and returns, and its protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

import torch

from rlk.drift.digests import Digest
from rlk.errors import Code, LaunchError

Padding = Literal["none", "left", "right"]
Stage = Literal["logits", "log-probs", "none"]
X = TypeVar("X")


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """Sequences of token ids, one after the other. ids: int64 [T]. cu_seqlens: int64 [B + 1], offsets."""

    ids: torch.Tensor
    cu_seqlens: torch.Tensor

    @staticmethod
    def of(sequences: Sequence[Sequence[int]]) -> Sequences:
        """Lay lists of ids behind each other. Raises LaunchError for an empty sequence or none at all."""
        lengths = [len(s) for s in sequences]
        if not lengths or min(lengths) == 0:
            found = "no sequence" if not lengths else f"an empty sequence, number {lengths.index(0)}"
            raise _bad("sequences", found, "one or more, of at least one token each")
        flat = [int(token) for s in sequences for token in s]
        if min(flat) < 0:
            raise _bad("sequences", f"token {min(flat)}", "ids from 0 on")
        cu = torch.tensor([0, *lengths]).cumsum(0)
        return Sequences(torch.tensor(flat, dtype=torch.int64), cu)

    def __len__(self) -> int:
        return len(self.cu_seqlens) - 1

    @property
    def lengths(self) -> list[int]:
        """Return the number of tokens of each sequence."""
        found: list[int] = self.cu_seqlens.diff().tolist()
        return found

    @property
    def owners(self) -> torch.Tensor:
        """Return the number of the sequence of each token, int64 [T]."""
        return torch.repeat_interleave(torch.arange(len(self)), self.cu_seqlens.diff())

    @property
    def places(self) -> torch.Tensor:
        """Return the place of each token in its sequence, int64 [T]."""
        return torch.arange(len(self.ids)) - self.cu_seqlens[self.owners]

    @property
    def next_ids(self) -> torch.Tensor:
        """Return the token behind each token, 0 behind the last of a sequence."""
        following = torch.nn.functional.pad(self.ids[1:], (0, 1))
        return torch.where(self.has_next, following, 0)

    @property
    def has_next(self) -> torch.Tensor:
        """Return whether a token follows in the sequence, bool [T]."""
        return self.places + 1 < self.cu_seqlens.diff()[self.owners]

    def lists(self) -> list[list[int]]:
        """Return the ids of each sequence."""
        return [part.tolist() for part in self.ids.split(self.lengths)]


@dataclass(frozen=True, slots=True)
class Facts:
    """Settings of an engine that must be equal on both sides. None or empty: the engine does not know.

    dtype: of weights and hidden states; logits_dtype: of logits when log-probs are taken. temperature: of
    log-probs; stage: where it divides. padding: the side on which shorter sequences are filled. special: ids
    of special tokens by name (bos, eos, pad). weights: a checksum for each tensor by its Hugging Face name.
    """

    dtype: str | None = None
    logits_dtype: str | None = None
    temperature: float | None = None
    stage: Stage | None = None
    padding: Padding | None = None
    vocabulary: int | None = None
    special: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """The result of an engine, and the inputs as its model received them.

    tokens: the ids that the model read. logps: f32 [T], log p(ids[t] | ids before t); NaN where the engine
    gives none, as for the first token of a sequence, for which known is false. positions: int64 [T], those of
    the rotary embedding. context: int64 [T], the number of keys that a token sees by its mask, its own
    included. digest: of each token's distribution over the vocabulary.
    """

    tokens: Sequences
    logps: torch.Tensor
    known: torch.Tensor
    positions: torch.Tensor | None = None
    context: torch.Tensor | None = None
    digest: Digest | None = None


class Watch(Protocol):
    """The observer of a run, which an engine tells what it computes."""

    def rows(self, rows: torch.Tensor) -> None:
        """Take the tokens of the forward that follows.

        rows: int64 [N], for each row of the model's input, flattened, the number of its token among all T
        tokens; -1 for padding.
        """
        ...

    def call(
        self, name: str, function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
    ) -> torch.Tensor:
        """Return function(x) of rows x [N, ...], observed as the operator `name`."""
        ...


class Unwatched:
    """A watch that observes nothing."""

    def rows(self, rows: torch.Tensor) -> None:
        pass

    def call(self, name: str, function: Callable[[X], X], x: X) -> X:
        return function(x)


class Engine(Protocol):
    """An engine that scores tokens: three methods.

    `variants`, an attribute that an engine may have: by the name of a trigger ("batch", "padding", "chunk",
    "page", "rank", "graph"), the same engine without it, which tells what a difference depends on.
    """

    name: str

    def facts(self) -> Facts:
        """Return the engine's settings."""
        ...

    def score(self, sequences: Sequences, watch: Watch) -> Scores:
        """Score the tokens; tell the watch the rows of each forward before it."""
        ...

    def modules(self) -> Mapping[str, torch.nn.Module]:
        """Return the modules whose calls can be hooked, by Hugging Face's names; none if there are none."""
        ...


def _bad(name: str, value: object, wanted: str) -> LaunchError:
    return LaunchError(Code.ARG_VALUE, op="rlk drift", name=name, value=value, wanted=wanted)
