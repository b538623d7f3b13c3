"""Heads side by side in the result of one product, whose gradients are written side by side too."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from rlk.runtime.call.autograd import place, transforming
from rlk.runtime.call.entry import observing, watched


def heads_side_by_side(x: torch.Tensor, counts: tuple[int, ...], width: int) -> list[torch.Tensor]:
    """Return the heads [T, count, width] inside of x [T, (sum of counts) width], as views.

    In backward the operators that read them write their gradients into that of x: no copy joins these. Under
    transforms of torch.func they are torch's own views.
    """
    is_plain = torch.is_grad_enabled() and x.requires_grad and not transforming()
    if not is_plain or watched(x) or observing():
        return _views(x, counts, width)
    gradient = _Gradient(x.shape, x.dtype, x.device, counts, width)
    parts = list(_Heads.apply(x, gradient))
    for i, part in enumerate(parts):
        place(part, partial(gradient.part, i))
    return parts


def _views(x: torch.Tensor, counts: tuple[int, ...], width: int) -> list[torch.Tensor]:
    sizes = [count * width for count in counts]
    return [part.unflatten(-1, (-1, width)) for part in x.split(sizes, -1)]


@dataclass(slots=True, eq=False)
class _Gradient:
    """The gradient of heads side by side, allocated when the first part of it is asked for.

    task: the backward that it is of. A backward that ended before x, at heads whose gradients were asked for,
    leaves memory that is theirs. asked: the parts whose memory somebody writes in this backward.
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    counts: tuple[int, ...]
    width: int
    memory: torch.Tensor | None = None
    task: int = -1
    asked: set[int] = field(default_factory=set)

    def begin(self) -> None:
        """Leave the memory of another backward."""
        task = torch._C._current_graph_task_id()
        if task != self.task:
            self.task, self.memory = task, None
            self.asked.clear()

    def parts(self) -> list[torch.Tensor]:
        if self.memory is None:
            self.memory = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        return _views(self.memory, self.counts, self.width)

    def part(self, index: int) -> torch.Tensor | None:
        """Return the memory of a part; None where it was asked for already."""
        self.begin()
        if index in self.asked:
            return None
        self.asked.add(index)
        return self.parts()[index]

    def whole(self, parts: tuple[torch.Tensor | None, ...]) -> torch.Tensor:
        """Return the gradient, with the parts that lie elsewhere copied into it."""
        self.begin()
        for to, part in zip(self.parts(), parts, strict=True):
            if part is None:
                to.zero_()
            elif part.data_ptr() != to.data_ptr() or part.stride() != to.stride():
                to.copy_(part)
        memory, self.memory = self.memory, None
        self.asked.clear()
        assert memory is not None
        return memory


class _Heads(torch.autograd.Function):
    """Views of heads side by side; backward returns their gradients side by side."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gradient: _Gradient) -> tuple[torch.Tensor, ...]:
        ctx.gradient = gradient
        ctx.set_materialize_grads(False)
        return tuple(_views(x, gradient.counts, gradient.width))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor, None]:
        return ctx.gradient.whole(grads), None
