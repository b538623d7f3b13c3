"""Show one operator: its signature by default, or its tile IR after a pass, or its generated source."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterable

from rlk.backends.registry import installed, of_name, registered
from rlk.cli.listing import choices_of, parts
from rlk.cli.text import fields, given_extents, pairs, table
from rlk.errors import Code, LaunchError, RlkError
from rlk.ir.dims import Axis
from rlk.ir.nodes import Decl, Program, Role
from rlk.ir.text import print_program
from rlk.ir.types import DType
from rlk.lang.op import Formal, Op, Variant, axes_of
from rlk.lang.types import DTypeVar, ScalarType, StaticType, TensorType
from rlk.lang.variants import cotangents, differentiable, gradient_variant, outputs
from rlk.pages.order import orders
from rlk.pages.spec_text import gradient_text
from rlk.passes.piecewise_launch import sweep
from rlk.passes.pipeline import CANONICAL, canonical, specialize
from rlk.runtime.reference import (
    TARGETS,
    emit,
    placed,
    reference_extents,
    reference_gradient,
    reference_variant,
    traces,
)
from rlk.runtime.registry import authored, numerics
from rlk.schedule.axes import kind
from rlk.schedule.heuristics import apart
from rlk.target.facts import Target, target

PASSES = ("trace", *(name for name, _ in CANONICAL), "specialize", "sweep")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk show`."""
    parser.add_argument("op", metavar="OP", help="an operator of rlk list, or path/to/spec.py:name")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--ir", action="store_true", help="the canonical tile IR, each line with its spec line")
    what.add_argument("--after", choices=PASSES, help="the tile IR after this pass")
    backends = sorted({each.name for each in registered()} | set(installed()))
    what.add_argument("--spec", action="store_true", help="with --grad: the gradient as an author writes it")
    what.add_argument("--source", choices=backends, help="the generated source for --target")
    parser.add_argument("--grad", action="store_true", help="of the gradient, not of the operator")
    parser.add_argument(
        "--with", dest="present", metavar="NAMES", help="optional inputs, with commas; '' for none"
    )
    parser.add_argument("--static", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--dtype", action="append", default=[], metavar="F=bf16", help="of a dtype variable")
    parser.add_argument("--extent", action="append", default=[], metavar="V=128256")
    parser.add_argument("--target", default=TARGETS[0], metavar="NAME")


def run(arguments: argparse.Namespace) -> int:
    """Print what was asked for, of an operator or of each part that it runs."""
    on, found = _target(arguments), parts(arguments.op)
    if len(found) == 1:
        _show(found[0], arguments, on)
        return 0
    if any((arguments.present, arguments.static, arguments.dtype, arguments.extent)):
        names = " and ".join(op.name for op in found)  # whose options they are
        raise LaunchError(Code.COMPOSED, name=arguments.op, parts=names)
    refused: list[RlkError] = []
    for op in found:
        print(f"# --- {op.name}, of {arguments.op}")
        try:
            _show(op, arguments, on)
        except RlkError as error:
            if error.code not in (Code.CANNOT_LOWER, Code.UNSUPPORTED, Code.NOT_DIFFERENTIABLE):
                raise
            refused.append(error)
            print("".join(f"# {line}\n" for line in str(error).splitlines()), end="")
        print()
    if len(refused) == len(found):
        raise refused[0]
    return 0


def _target(arguments: argparse.Namespace) -> Target:
    """Return the target of a name: a known one, or the one as which a backend runs CPU tensors."""
    own = of_name(arguments.source).cpu if arguments.source else None
    return own if own is not None and own.name == arguments.target else target(arguments.target)


def _show(op: Op, arguments: argparse.Namespace, on: Target) -> None:
    with authored(op):
        variant = chosen_variant(op, arguments)
        traced = _gradient(op, variant) if arguments.grad else op.trace(variant)
    extents = reference_extents(op, canonical(traced))
    extents |= given_extents("rlk show", arguments.extent, extents)
    if arguments.source:
        made, defined = (traced, None) if arguments.grad else traces(op, variant)
        what = canonical(made, apart=apart(canonical(made), extents))
        print(emit(what, extents, on, arguments.source, defined)[0].source, end="")
    elif arguments.after in ("specialize", "sweep"):
        axes = {axis for k in canonical(traced).kernels for d in k.params for axis in d.type.axes}
        static = {axis.name: extents[axis.name] for axis in axes if not axis.dynamic}
        bound = specialize(canonical(traced), static, on.softmax)
        shown = sweep(bound, extents) if arguments.after == "sweep" else bound
        print(print_program(shown, places=True), end="")
    elif arguments.ir or arguments.after:
        print(print_program(canonical(traced, arguments.after), places=True), end="")
    elif arguments.grad and arguments.spec:
        print(gradient_text(op, traced), end="")
    elif arguments.grad:
        _describe_gradient(op, variant, on, canonical(traced), extents)
    else:
        _describe(op, variant, on, extents)


def _gradient(op: Op, variant: Variant) -> Program:
    wanted, given = differentiable(op, variant), cotangents(op, variant)
    if op.gradient is None or not wanted or not given:
        raise LaunchError(Code.NOT_DIFFERENTIABLE, op=op.name, name="any input", choices="none")
    return op.gradient.trace(gradient_variant(variant, wanted, given))


# --- options -----------------------------------------------------------------------------------------


def chosen_variant(op: Op, arguments: argparse.Namespace) -> Variant:
    """Return the reference variant with the options' changes; raise LaunchError naming the choices."""
    base = reference_variant(op)
    dtypes, statics, present = dict(base.dtypes), dict(base.statics), base.present
    for name, text in pairs("rlk show", arguments.dtype):
        choices = _dtype_choices(op, name)
        if text not in choices:
            raise LaunchError(
                Code.UNKNOWN_NAME, what=f"dtype of {name}", name=text, choices=", ".join(choices)
            )
        dtypes[name] = DType(text)
    for name, text in pairs("rlk show", arguments.static):
        if name not in statics:
            raise LaunchError(
                Code.UNKNOWN_NAME, what="static", name=name, choices=", ".join(statics) or "none"
            )
        statics[name] = _static(op.formal(name), text, statics[name])
    if arguments.present is not None:
        present = frozenset(n for n in arguments.present.split(",") if n)
        optional = [f.name for f in op.formals if f.optional]
        for name in sorted(present - set(optional)):
            there = ", ".join(optional) or "none"
            raise LaunchError(Code.UNKNOWN_NAME, what="optional input", name=name, choices=there)
    return Variant.of(dtypes, present, statics)


def _dtype_choices(op: Op, name: str) -> list[str]:
    types = [f.type.dtype for f in op.formals if isinstance(f.type, TensorType)]
    found = {t.name: [str(c) for c in t.choices] for t in types if isinstance(t, DTypeVar)}
    if name not in found:
        raise LaunchError(
            Code.UNKNOWN_NAME, what="dtype variable", name=name, choices=", ".join(found) or "none"
        )
    return found[name]


def _static(formal: Formal, text: str, default: object) -> object:
    """Return the value that a text names: a listed choice, else a Python literal, else words with commas."""
    assert isinstance(formal.type, StaticType)
    if formal.type.choices:
        named = {str(choice): choice for choice in formal.type.choices}
        if text not in named:
            what = f"value of {formal.name}"
            raise LaunchError(Code.UNKNOWN_NAME, what=what, name=text, choices=", ".join(named))
        return named[text]
    if isinstance(default, tuple):
        return tuple(text.split(","))
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # no literal
        return text


# --- the default view --------------------------------------------------------------------------------


def _describe(op: Op, variant: Variant, on: Target, extents: dict[str, int]) -> None:
    forward = canonical(op.trace(variant))
    print(f"{op.qualified}   {op.loc}")
    print("\n".join(f"  {line}".rstrip() for line in op.doc.splitlines()))
    print()
    slopes = differentiable(op, Variant(variant.dtypes, frozenset(f.name for f in op.formals)))
    rows = [(f.name, _type(f), _what(f, variant), "yes" if f.name in slopes else "") for f in op.formals]
    print(table(("input", "type", "is", "gradient"), rows))
    print()
    name, tiers = numerics(forward, on)
    takes = cotangents(op, variant)
    rows = [
        (d.name, str(d.type), tiers[d.name].value, "yes" if d.name in takes else "") for d in outputs(forward)
    ]
    print(table(("output", "type", f"tier on {on.name}", "cotangent"), rows))
    print()
    print(table(("axis", "extent", "numerics"), [_axis(a, extents) for a in axes_of(op.formals)]))
    print()
    gradient = reference_gradient(op, variant)
    sums = [("forward", each) for each in orders(op.trace(variant))]
    if gradient is not None:
        sums += [("gradient", each) for each in orders(_gradient(op, variant))]
    if sums:
        print(table(("program", "order of float additions"), sums))
        print()
    programs = [placed(op, op.trace_for_kernels(variant)), *([] if gradient is None else [gradient])]
    known = [reference_extents(op, program) | extents for program in programs]
    _describe_kernels(zip(programs, known, strict=True), on)
    _describe_variant(name, variant)


def _describe_kernels(programs: Iterable[tuple[Program, dict[str, int]]], on: Target) -> None:
    kernels = []
    for program, extents in programs:
        _, schedules, bound = emit(program, extents, on)
        kernels += [(k.name, kind(k), str(s)) for k, s in zip(bound.kernels, schedules, strict=True)]
    print(table(("kernel", "nest", f"Triton schedule on {on.name}"), kernels))
    print()


def _describe_variant(name: str, variant: Variant) -> None:
    print(fields([("numerics id", name), ("dtypes", _bound(variant)), ("options", _options(variant))], ""))


def _describe_gradient(
    op: Op, variant: Variant, on: Target, program: Program, extents: dict[str, int]
) -> None:
    """Print the signature of a variant's gradient: of every input that has one, given every cotangent."""
    gradient, saved = op.gradient, {d.name for d in outputs(canonical(op.trace(variant)))}
    assert gradient is not None
    print(f"{gradient.name}   {gradient.loc}")
    print("\n".join(f"  {line}".rstrip() for line in gradient.doc.splitlines()))
    print()
    formals = {f.name for f in op.formals}

    def what(d: Decl) -> str:
        if d.role is Role.SCALAR:
            return "scalar"
        known = "saved output" if d.name in saved else "saved input" if d.name in formals else ""
        return known or ("cotangent" if d.name.startswith("d_") else "prepared")

    decls = {d.name: d for k in program.kernels for d in k.params if d.role in (Role.IN, Role.SCALAR)}
    rows = [(d.name, str(d.type).removesuffix("[]"), what(d)) for d in decls.values()]
    print(table(("input", "type", "is"), rows))
    print()
    name, tiers = numerics(program, on)
    print(table(("output", "type", f"tier on {on.name}"),
                [(d.name, str(d.type), tiers[d.name].value) for d in outputs(program)]))  # fmt: skip
    print()
    _describe_kernels([(program, extents)], on)
    _describe_variant(name, variant)


def _type(formal: Formal) -> str:
    match formal.type:
        case TensorType(dtype=dtype, axes=axes):
            name = dtype.name if isinstance(dtype, DTypeVar) else str(dtype)
            return f"{name}[{', '.join(map(str, axes))}]"
        case ScalarType(dtype=dtype):
            return str(dtype)
        case StaticType(choices=choices):
            return choices_of(choices)


def _what(formal: Formal, variant: Variant) -> str:
    match formal.type:
        case StaticType():
            return "static"
        case ScalarType():
            kind = "scalar"
        case TensorType():
            kind = "tensor"
    if not formal.optional:
        return kind
    return f"{kind}, optional: {'given here' if formal.name in variant.present else 'absent here'}"


def _axis(axis: Axis, extents: dict[str, int]) -> tuple[str, str, str]:
    cuts = (("chunk", axis.chunk), ("split", axis.split), ("piece", axis.piece), ("fan-in", axis.fan_in))
    extent = "run time" if axis.dynamic else str(extents.get(axis.name, "run time"))
    return str(axis), extent, ", ".join(f"{what} {n}" for what, n in cuts if n)


def _bound(variant: Variant) -> str:
    return ", ".join(f"{name}={dtype}" for name, dtype in variant.dtypes) or "all fixed"


def _options(variant: Variant) -> str:
    return ", ".join(f"{name}={value}" for name, value in variant.statics) or "none"
