"""The kernels of an engine's recorded launches on Hopper, by their keys: nothing is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from rlk.ir.nodes import Role
from rlk.nn import serving
from rlk.runtime.binding.invocation import (
    Invocation,
    Tensors,
    geometry_of,
    inputs_of,
    of_one_stride,
    scattered,
)
from rlk.runtime.call.dispatch import asked_for, lowered_code, requested
from rlk.target.facts import target

ON = target("sm_90a")
Key = tuple[str, str, tuple[str, ...]]


@dataclass
class Keys:
    """The kernels of recorded launches by the operator, with the extents of the rows that run them."""

    found: dict[tuple[str, Key], set[int]] = field(default_factory=dict)

    def note(self, invocation: Invocation, tensors: Tensors) -> None:
        tensors = of_one_stride(tensors, scattered(invocation, tensors))
        geometry = geometry_of(invocation, tensors)
        used = {d.name: tensors[d.name] for d in inputs_of(invocation) if d.role is Role.IN}
        used |= {name: tensors[name] for name in invocation.into}
        call = (invocation, ON.softmax, geometry, used, ON)
        code = lowered_code(requested(*call, None, asked_for(ON)))
        key = (code.backend, code.ir, code.schedules)
        self.found.setdefault((invocation.spec.name, key), set()).add(geometry.extents["T"])


@contextmanager
def samplers(*kept: tuple[bool, ...]) -> Iterator[None]:
    """Record the sampler with these choices of options alone: each takes a second to lower."""
    sample = serving._Calls.draw

    def draw(self: serving._Calls, rows: int, *options: bool) -> None:
        if options in kept:
            sample(self, rows, *options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving._Calls, "draw", draw)
        yield
