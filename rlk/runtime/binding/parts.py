"""Parts of weights in state dicts, which torch.distributed.checkpoint would take for whole ones."""

from __future__ import annotations

from copy import deepcopy
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch

from rlk.errors import Code, LaunchError


class PartOfWeight(torch.Tensor):
    """A rank's part of a weight, or of what belongs to one, as a state dict holds it: refused by DCP.

    torch.distributed.checkpoint keeps one tensor of each name, so that the parts of the other ranks would be
    lost. Copies, casts and moves of a part are parts, also through queues of processes. Results of other
    functions are plain tensors, and so is what torch.save writes.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return a part of what copies one, what else computes of it as a plain tensor."""
        options = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **options)
            # DCP stages a copy in what it makes so, without dims
            staged = func is torch.Tensor.new_empty and "device" in options and not made.dim()
            of = args[0] if args else options.get("input")  # another one may be like a part: x.to(part)
            if (staged or func in KEPT) and isinstance(of, cls) and type(made) is torch.Tensor:
                return made.as_subclass(cls)
            return made

    def __create_write_items__(self, name: str, value: object) -> NoReturn:
        """Refuse to be saved."""
        raise _refusal(name)

    def __create_chunk_list__(self) -> NoReturn:
        """Refuse to be loaded."""
        raise _refusal("state_dict")

    def __copy__(self) -> torch.Tensor:
        """Return a part of the same memory."""
        return part(plain(self)).requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """Return a copy, which is a part; of parts of one memory, copies of one memory."""
        made = memo[id(self)] = part(deepcopy(plain(self), memo)).requires_grad_(self.requires_grad)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the pickled form of a plain tensor, which torch.load takes with weights_only."""
        return plain(self).__reduce_ex__(protocol)


METHODS = (
    *("clone", "contiguous", "cpu", "cuda", "detach", "pin_memory", "to", "view_as"),
    *("bfloat16", "double", "float", "half", "type"),
)
DATA: Any = torch.Tensor.data
KEPT = {torch.clone, torch.detach, DATA.__get__, *(getattr(torch.Tensor, name) for name in METHODS)}
"""Functions whose result is as much a part as their tensor."""


def _refusal(name: str) -> LaunchError:
    wanted = (
        "whole weight or a DTensor, since it keeps what one rank has: save and load a model by its "
        "rlk.parallel.sharded_state_dict(model), an optimizer by torch.save on each rank"
    )
    return LaunchError(
        Code.ARG_TYPE, op="torch.distributed.checkpoint", name=name, wanted=wanted, got="a rank's part of one"
    )


def part(x: torch.Tensor) -> torch.Tensor:
    """Return the same memory as a part of a weight: of a DTensor, one whose local tensor is a part.

    Tensors of other classes, as fake ones, stay what they are.
    """
    made: Any = x.detach()
    if hasattr(made, "_local_tensor"):
        made._local_tensor = _marked(made._local_tensor)
        return made  # type: ignore[no-any-return]
    return _marked(made)


def _marked(x: torch.Tensor) -> torch.Tensor:
    return x.as_subclass(PartOfWeight) if type(x) is torch.Tensor else x  # type: ignore[no-any-return]


def plain(x: torch.Tensor) -> torch.Tensor:
    """Return the memory of a part as a plain tensor, or a DTensor of one; anything else as it is."""
    made: Any = x
    if type(x) is torch.Tensor:  # what collectives of a step have
        return x
    with torch._C.DisableTorchFunctionSubclass():
        if isinstance(x, PartOfWeight):
            made = x.detach().as_subclass(torch.Tensor)
        elif isinstance(getattr(x, "_local_tensor", None), PartOfWeight):  # a DTensor
            made = x.detach()
            made._local_tensor = plain(made._local_tensor)
    return made  # type: ignore[no-any-return]


# torch registers how memory goes to other processes for its own classes alone
ForkingPickler.register(PartOfWeight, lambda x: (part, (plain(x),)))
