"""The example and the edges of an operator's page, run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import rlk
from rlk.errors import RlkError
from rlk.lang.record import Record


def page_failures(f: Callable[..., Any], record: Record) -> tuple[int, list[str]]:
    """Run the example and the edges of a function's page; return how many, and what is not so.

    An edge that says "raises" holds if rlk refuses the call: another error may be a slip of the edge itself.
    """
    names: dict[str, Any] = {
        "torch": torch, "rlk": rlk, "f": f, "nan": math.nan, "inf": math.inf, "same": same_bits
    }  # fmt: skip
    failures: list[str] = []
    torch.manual_seed(0)
    if record.usage:
        try:
            exec(compile(record.usage, "<example of a page>", "exec"), names)
        except Exception as error:
            return 1, [f"the example raises {type(error).__name__}: {error}"]
    for edge in record.edges:
        raises = edge.happens.startswith("raises")
        try:
            made = eval(edge.code, names)
            holds, why = (False, "does not raise") if raises else (bool(made), "is not so")
        except RlkError as error:
            holds, why = raises, f"raises {type(error).__name__}: {error}"
        except Exception as error:
            holds, why = False, f"raises {type(error).__name__}: {error}"
        if not holds:
            failures.append(f"{edge.case}: {edge.code} {why}")
    return len(record.edges) + bool(record.usage), failures


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have the same dtype, shape and bits."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    raw = [x.detach().contiguous().view(torch.uint8) if x.dim() else x.detach().reshape(1).view(torch.uint8)
           for x in (a, b)]  # fmt: skip
    return torch.equal(*raw)
