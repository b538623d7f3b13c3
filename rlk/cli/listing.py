"""List the operators: what each computes, is differentiable in, and how its numerics are named on targets."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from types import ModuleType

from rlk.cli.text import fields
from rlk.errors import Code, LaunchError
from rlk.ir.numerics import Tier
from rlk.lang.op import Op
from rlk.lang.variants import differentiable, statics
from rlk.passes.pipeline import canonical
from rlk.runtime.reference import TARGETS
from rlk.runtime.registry import find, known, numerics, operators, others
from rlk.target.facts import Target, target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk list`."""
    parser.add_argument("op", nargs="*", metavar="OP", help="only these; default: all")
    parser.add_argument(
        "--target", action="append", metavar="NAME", help=f"default: {' and '.join(TARGETS)}; may be repeated"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the named operators, or every one."""
    targets = [target(name) for name in arguments.target or TARGETS]
    composed = composites()
    specs = [subject(name)[0] for name in arguments.op if name not in composed]
    for op in specs if arguments.op else known().values():
        print(f"{op.qualified}: {op.doc.splitlines()[0] if op.doc else ''}")
        print(fields(_about(op, targets)))
        print()
    for name, parts in composed.items():
        if arguments.op and name not in arguments.op:
            continue
        print(f"{name}: {(inspect.getdoc(public()[name]) or name).splitlines()[0]}")
        print(fields([("runs", ", ".join(parts))]))
        print()
    if not arguments.op and not others():
        print("(no operators of other packages: rlk new-op, docs/own-operators.md)\n")
    print("numerics: what rlk.ops.OP.numerics_id(device) says: equal ids, equal bits.")
    print("exact: the oracle predicts the bits of every output. pinned: they repeat.")
    return 0


def public() -> dict[str, Callable[..., object]]:
    """Return the public functions that have specs, by name."""
    from rlk.ops import OPERATORS  # which takes a second

    return {name: operator.fn for name, operator in OPERATORS.items()}


def composites() -> dict[str, tuple[str, ...]]:
    """Return the public operators that are no spec, with the operators that each runs."""
    runs = {name: [spec.name for spec in getattr(fn, "specs", ())] for name, fn in public().items()}
    return {name: tuple(dict.fromkeys(parts)) for name, parts in runs.items() if name not in operators()}


def parts(name: str) -> list[Op]:
    """Return an operator by name or place, or the operators that one without a spec runs, in order."""
    if name not in operators() and name in (composed := composites()):
        return [operators()[each] for each in composed[name]]
    return [subject(name)[0]]


def subject(name: str) -> tuple[Op, ModuleType]:
    """Return what `find` finds; raise LaunchError with the parts of an operator that has no spec."""
    try:
        return find(name)
    except LaunchError as error:
        parts = composites().get(name) if error.code is Code.UNKNOWN_NAME else None
        if parts is None:
            raise
        raise LaunchError(Code.COMPOSED, name=name, parts=" and ".join(parts)) from None


def _about(op: Op, targets: list[Target]) -> list[tuple[str, object]]:
    variant = op.default_variant()
    everything = type(variant)(variant.dtypes, frozenset(f.name for f in op.formals), variant.statics)
    pairs: list[tuple[str, object]] = [("gradients", ", ".join(differentiable(op, everything)) or "none")]
    optional = [f.name for f in op.formals if f.optional]
    if optional:
        pairs.append(("optional", ", ".join(optional)))
    if chosen := statics(op):
        pairs.append(
            ("statics", "\n".join(f"{name}: {choices_of(values)}" for name, values in chosen.items()))
        )
    names = []
    for on in targets:
        found, tiers = numerics(canonical(op.trace(variant)), on)
        exact = all(t is Tier.EXACT for t in tiers.values())
        names.append(f"{on.name:<7} {found}  {'exact' if exact else 'pinned'}")
    return [*pairs, ("numerics", "\n".join(names))]


def choices_of(values: tuple[object, ...]) -> str:
    """Return the choices of a static for people."""
    return " | ".join(map(str, values)) or "any value"
