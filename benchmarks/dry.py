"""A host that takes the place of a device: rows of benchmarks are built and called, their shapes alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    """Makes on the host what is asked of a device."""

    def __torch_function__(self, fn: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if fn is torch.Tensor.cuda:
            return args[0]
        given = {n: "cpu" if n == "device" and x is not None else x for n, x in (kwargs or {}).items()}
        return self.made(fn, *("cpu" if _names_a_device(x) else x for x in args), **given)

    def made(self, fn: Any, *args: Any, **options: Any) -> Any:
        """Return what a function of torch gives."""
        return fn(*args, **options)


def _names_a_device(x: object) -> bool:
    return str(x).startswith("cuda") if isinstance(x, str | torch.device) else False


READ = {
    torch.Tensor.__bool__: True,
    torch.Tensor.__float__: 0.5,
    torch.Tensor.__int__: 1,
    torch.Tensor.item: 1,
}
"""What a fake tensor says where a benchmark reads a number."""


class Told(OnCpu):
    """A host on which reading a tensor gives a number that is no tensor's."""

    def made(self, fn: Any, *args: Any, **options: Any) -> Any:
        return READ[fn] if fn in READ else super().made(fn, *args, **options)


@contextmanager
def shapes_alone() -> Iterator[None]:
    """Make fake tensors, which have no memory, of what names a device; no kernel runs."""
    with FakeTensorMode(allow_non_fake_inputs=True), Told():
        yield
