"""The model under test, its sequences and sizes, and transformers' models of it: shared by all rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import torch

from rlk.integrations.transformers import VERSIONS
from rlk.resources import installing
from rlk.verify.models import Subject, stock_model, unshared
from rlk.verify.views import Sizes, random_sequences
from rlk.verify.watched import Experts, First, Watched

T = TypeVar("T")
FLOAT64_PARAMETERS = 2**30  # of a model that is copied to float64: 8 GiB
CPU = Sizes(tokens=90, call=90, longest=32, steps=4, batches=(1, 3), page=4, chunks=(1, 3, 16))
GPU = Sizes(
    tokens=8192, call=4096, longest=1024, steps=32, batches=(1, 16, 64), page=16, chunks=(1, 17, 64, 100, 500)
)
ODD_PAGES = {"cpu": (1, 16), "cuda": (3, 128)}  # slots, beside those of the sizes


@dataclass(frozen=True, slots=True)
class Outcome:
    """The findings of a row.

    compared, unequal: in the row's unit. values: numbers that were compared by digests of their bits.
    operators: rows compared and rows that differ, by operator. figures: measured numbers by name.
    profile: relative errors by module, (module, rlk's, transformers'). complete: no deadline cut the row
    short. unseen: modules that a row should compare, and whose results were missing in some call. experts:
    of a view of a model that has some, the tokens that changed them.
    """

    compared: int = 0
    unequal: int = 0
    values: int = 0
    operators: dict[str, tuple[int, int]] = field(default_factory=dict)
    first: First | None = None
    figures: dict[str, float] = field(default_factory=dict)
    profile: tuple[tuple[str, float, float], ...] = ()
    complete: bool = True
    unseen: tuple[str, ...] = ()
    experts: Experts | None = None


def sizes_of(tokens: int | None, positions: int, device: torch.device) -> Sizes:
    """Return the sizes of a run on a device: tokens in all, no sequence longer than `positions`."""
    like = CPU if device.type == "cpu" else GPU
    count = like.tokens if tokens is None else tokens
    longest = min(like.longest, positions, max(count, 2))
    return Sizes(
        count, max(longest, min(like.call, count)), longest, min(like.steps, longest), like.batches,
        like.page, tuple(n for n in like.chunks if n <= longest),
    )  # fmt: skip


@dataclass(eq=False)
class Bench:
    """A model and the run of its tokens. few: tokens of a decode and of a control."""

    subject: Subject
    run: Watched
    few: int
    kept: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(subject: Subject, tokens: int | None) -> Bench:
        """Return a bench of random sequences of so many tokens in all, by default as suits the device."""
        model = subject.model
        device = model.lm_head.weight.device
        sizes = sizes_of(tokens, model.config.max_position_embeddings, device)
        return Bench.of_sizes(subject, sizes, 8 if device.type == "cpu" else max(64, sizes.tokens // 16))

    @staticmethod
    def of_sizes(subject: Subject, sizes: Sizes, few: int) -> Bench:
        """Return a bench of random sequences of given sizes."""
        model = subject.model
        sequences = random_sequences(sizes, model.config.vocab_size, str(model.lm_head.weight.device))
        return Bench(subject, Watched(model, sizes, sequences, random.Random(0)), few)

    @property
    def sizes(self) -> Sizes:
        """Return the sizes of the run."""
        return self.run.sizes

    @property
    def device(self) -> torch.device:
        """Return the device of the model."""
        return self.run.device

    @property
    def dtype(self) -> str:
        """Return the short name of the model's dtype."""
        return {torch.bfloat16: "bf16", torch.float16: "f16"}[self.run.model.lm_head.weight.dtype]

    @property
    def pages(self) -> tuple[int, ...]:
        """Return slots of pages that decodes take beside those of the sizes."""
        return ODD_PAGES[self.device.type]

    @property
    def chunked(self) -> tuple[tuple[int, int], ...]:
        """Return chunks of prefills that all sequences take, and slots of their pages."""
        chunks = self.sizes.chunks[1:3] or self.sizes.chunks
        return tuple(zip(chunks, self.pages, strict=False))

    @property
    def most_cached(self) -> int | None:
        """Return how many tokens a model of transformers reads over a cache in small steps, None for all."""
        return None if self.device.type == "cpu" else self.few

    @property
    def other_leaves(self) -> int:
        """Return another number of leaves than the model's, that divides its products."""
        c = self.run.model.config
        extents = (
            c.num_attention_heads * c.head_dim,
            c.num_key_value_heads * c.head_dim,
            c.intermediate_size,
            c.experts.count if c.experts else 0,
        )
        return next((n for n in (8, 4, 2, 1) if n != c.leaves and not any(e % n for e in extents)), c.leaves)

    def absent(self, needs: tuple[str, ...]) -> str | None:
        """Return why a row cannot be run here, None if it can."""
        for need in needs:
            match need:
                case "gpu":
                    why = None if self.device.type == "cuda" else "needs a GPU"
                case "cpu":
                    why = None if self.device.type == "cpu" else "needs --device cpu: ranks talk by gloo"
                case "shares":
                    why = unshared(self.run.model.config)
                case "transformers":
                    here = installed_version("transformers")
                    why = None if here else f"needs transformers: {installing('models')}"
                case "patch":
                    here = installed_version("transformers") or ""
                    why = (
                        None
                        if here in VERSIONS
                        else f"rlk.patch knows transformers {VERSIONS}, here is {here}"
                    )
                case "float64":
                    why = self._too_large()
                case _:
                    raise AssertionError(need)
            if why is not None:
                return why
        return None

    def _too_large(self) -> str | None:
        count = sum(p.numel() for p in self.run.model.parameters())
        if count <= FLOAT64_PARAMETERS:
            return None
        return f"a float64 copy of {count:,} parameters: at most {FLOAT64_PARAMETERS:,} are copied"

    def once(self, name: str, make: Callable[[Bench], T]) -> T:
        """Return what a function makes of this bench, made when it is first asked for."""
        if name not in self.kept:
            self.kept[name] = make(self)
        return self.kept[name]  # type: ignore[no-any-return]

    # --- transformers' models, made when a row first needs them ---------------------------------------------

    @cached_property
    def stock(self) -> Any:
        """Return transformers' model as it comes."""
        return stock_model(self.subject)

    @cached_property
    def eager(self) -> Any:
        """Return transformers' model with eager attention, the one whose roundings rlk follows."""
        return stock_model(self.subject, attention="eager")

    @cached_property
    def exact(self) -> Any:
        """Return transformers' model with the same weights in float64."""
        return stock_model(self.subject, attention="eager", dtype=torch.float64)


def installed_version(package: str) -> str | None:
    """Return the version of a package, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
