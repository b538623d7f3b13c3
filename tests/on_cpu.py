"""A host that takes the place of a device, for what names one."""

from __future__ import annotations

from typing import Any

import torch
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
