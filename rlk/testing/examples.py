"""Conditions of drawn inputs that types do not state: those of an operator's record, or of its spec file.

A user's spec file states them by functions of its own: `<op>_inputs(rng)` returns arrays and numbers by
name, `<op>_grad_inputs(saved)` the inputs that its gradient takes beside saved tensors and cotangents.
"""

from __future__ import annotations

from rlk.lang.op import Op
from rlk.lang.record import Example, Values

__all__ = ["Example", "Values", "of_module"]


def of_module(module: object, op: Op) -> Example:
    """Return an operator's example: that of its record, of its spec file, or none."""
    if op.record.example is not None:
        return op.record.example
    inputs = getattr(module, f"{op.name}_inputs", None)
    gradient = getattr(module, f"{op.name}_grad_inputs", None)
    return Example(inputs or Example().inputs, gradient or Example().gradient)
