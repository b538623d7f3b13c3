"""Variants of gradients: gradients of inputs, cotangents of outputs, the gradient's variant."""

from __future__ import annotations

from rlk.errors import Code, SpecError
from rlk.ir.nodes import Decl, Program, Role
from rlk.lang.op import Op, Variant, check_cotangents, variants
from rlk.lang.types import StaticType


def differentiable(op: Op, variant: Variant) -> tuple[str, ...]:
    """Return the present inputs that have a gradient."""
    if op.gradient is None:
        return ()
    return tuple(n for n in op.gradient.wrt if n in variant.present or not op.formal(n).optional)


def cotangents(op: Op, variant: Variant) -> tuple[str, ...]:
    """Return the present outputs whose cotangents the gradient takes."""
    if op.gradient is None:
        return ()
    there = {d.name: d for d in outputs(op.trace(variant))}
    check_cotangents(op.gradient, there, variant)
    takes = (f.name.removeprefix("d_") for f in op.gradient.formals if f.name.startswith("d_"))
    return tuple(n for n in takes if n in there)


def gradient_variant(variant: Variant, wanted: tuple[str, ...], given: tuple[str, ...]) -> Variant:
    """Return the gradient's variant: for the wanted inputs, given the cotangents of these outputs."""
    present = variant.present | {f"d_{n}" for n in given}
    return Variant(variant.dtypes, present, variant.statics, frozenset(wanted))


def outputs(program: Program) -> tuple[Decl, ...]:
    """Return the outputs of a program, each once."""
    return tuple({d.name: d for k in program.kernels for d in k.params if d.role is Role.OUT}.values())


def statics(op: Op) -> dict[str, tuple[object, ...]]:
    """Return the statics of an operator with their choices; an empty tuple means any hashable value."""
    return {f.name: f.type.choices for f in op.formals if isinstance(f.type, StaticType)}


def check_names(op: Op) -> None:
    """Raise for a name in saves=, returns= or into= that no variant has as output, nor (saves) as input."""
    default = op.default_variant()
    there = {d.name for d in outputs(op.trace(default))}
    inputs = {f.name for f in op.formals}
    left = {n for n in op.saves if n not in inputs} | {*op.returns, *op.into}
    every = () if left <= there else tuple(variants(op))
    if not every:
        return
    for variant in every:
        try:
            there |= {d.name for d in outputs(op.trace(variant))}
        except SpecError:  # the author refuses this combination
            continue
    made = (("returns", op.returns, there), ("into", op.into, there))
    for what, names, choices in (("saves", op.saves, inputs | there), *made):
        for name in names:
            if name not in choices:
                listed = ", ".join(sorted(choices))
                raise SpecError(
                    Code.UNKNOWN_NAME, op.loc, what=f"name in {what}= of {op.name}", name=name, choices=listed
                )
