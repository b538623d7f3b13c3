"""Parts of weights in state dicts, which torch.distributed.checkpoint would take for whole ones."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import reduce_tensor

from rlk.errors import Code, LaunchError


class PartOfWeight(torch.Tensor):
    """A rank's part of a weight, or of what belongs to one, as a state dict holds it: refused by DCP.

    torch.distributed.checkpoint keeps one tensor of each name, so that the parts of the other ranks would be
    lost. Copies and moves of a part, and its `to`, are parts; results of other functions are plain
    tensors, and so is what is pickled. rlk's operators and torch.func.functional_call take
    parts no more than other subclasses.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return a part of what copies one, a plain tensor otherwise."""
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
            return made.as_subclass(cls) if func in KEPT else made

    def __create_write_items__(self, name: str, value: object) -> NoReturn:
        """Refuse to be saved."""
        raise _refusal(name)

    def __create_chunk_list__(self) -> NoReturn:
        """Refuse to be loaded."""
        raise _refusal("state_dict")

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """Return a copy, which is a part."""
        made = memo[id(self)] = part(plain(self).clone())
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the pickled form of a plain tensor, which torch.load takes with weights_only."""
        return plain(self).__reduce_ex__(protocol)


KEPT = {
    *(getattr(torch.Tensor, name) for name in ("detach", "clone", "to", "cpu", "cuda", "contiguous")),
    *(torch.clone, torch.ops.aten.detach.default, torch.ops.aten.clone.default),
    torch.ops.aten._to_copy.default,
}
"""Functions whose result is as much a part as their tensor; those of aten are of DTensors' local ones."""


def _refusal(name: str) -> LaunchError:
    wanted = (
        "whole weight or a DTensor, since it keeps what one rank has: save and load a model by its "
        "rlk.parallel.sharded_state_dict(model), an optimizer by torch.save on each rank"
    )
    return LaunchError(
        Code.ARG_TYPE, op="torch.distributed.checkpoint", name=name, wanted=wanted, got="a rank's part of one"
    )


def part(x: torch.Tensor) -> torch.Tensor:
    """Return the same memory as a part of a weight: of a DTensor, one whose local tensor is a part."""
    if not isinstance(x, DTensor):
        return x.detach().as_subclass(PartOfWeight)  # type: ignore[no-any-return]
    made: Any = x.detach()
    made._local_tensor = made._local_tensor.as_subclass(PartOfWeight)
    return made  # type: ignore[no-any-return]


def plain(x: torch.Tensor) -> torch.Tensor:
    """Return the same memory as a plain tensor, or a DTensor of one."""
    made: Any = x
    with torch._C.DisableTorchFunctionSubclass():
        if isinstance(x, DTensor) and isinstance(x._local_tensor, PartOfWeight):
            made = x.detach()
            made._local_tensor = plain(x._local_tensor)
        elif isinstance(x, PartOfWeight):
            made = x.as_subclass(torch.Tensor)
    return made  # type: ignore[no-any-return]


ForkingPickler.register(PartOfWeight, lambda x: reduce_tensor(plain(x)))  # queues share memory by exact type
