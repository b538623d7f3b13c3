"""The ways to run an engine, and the words for its settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from rlk.drift.engine import Sequences


@dataclass(frozen=True, slots=True)
class Options:
    """A way to run a model, which changes no log-prob but by rounding.

    batch: sequences of a call, None for all. side: of padding. chunk: tokens of a call, over a cache of keys
    and values; 1 is decoding, None whole sequences. page: slots of a page of the cache, None for none.
    temperature: of log-probs. digest: of each token's distribution too.
    """

    batch: int | None = None
    side: Literal["left", "right"] = "right"
    chunk: int | None = None
    page: int | None = None
    temperature: float = 1.0
    digest: bool = True

    def without(self) -> dict[str, Options]:
        """Return the same options without one of them, by the name of the trigger."""
        found = {}
        if self.chunk is not None:
            found["chunk"] = replace(self, chunk=None, page=None)
        if self.page is not None:
            found["page"] = replace(self, page=None)
        if self.side == "left" and self.batch != 1:
            found["padding"] = replace(self, side="right")
        if self.batch != 1:
            found["batch"] = replace(self, batch=1)
        return found


PLAIN = Options()


def groups_of(sequences: Sequences, batch: int | None) -> Iterator[range]:
    """Yield the numbers of the sequences of each call."""
    step = batch or len(sequences)
    for first in range(0, len(sequences), step):
        yield range(first, min(first + step, len(sequences)))


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without "torch."."""
    return str(dtype).removeprefix("torch.")


def special_ids(config: Any) -> dict[str, int]:
    """Return the ids of special tokens that a config names."""
    found = {n: getattr(config, f"{n}_token_id", None) for n in ("bos", "eos", "pad")}
    return {name: value for name, value in found.items() if isinstance(value, int)}
