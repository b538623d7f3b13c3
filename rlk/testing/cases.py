"""Small calls of any operator: which variants to try, and inputs drawn to fit their types and uses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from inspect import signature
from math import inf, lcm, prod
from types import MappingProxyType
from typing import Any

import numpy as np

from rlk.errors import Code, LaunchError
from rlk.interp import arithmetic
from rlk.ir.dims import Axis, Part, completed, steps_of
from rlk.ir.nodes import (
    Bits,
    Cast,
    Decl,
    Extent,
    Let,
    Load,
    Loop,
    Map2,
    Merge,
    Pos,
    Program,
    Reduce,
    Role,
    Select,
    Store,
    Value,
    operands,
)
from rlk.ir.text import axes_in
from rlk.ir.types import DType
from rlk.lang.op import OWN, Op, Variant
from rlk.lang.types import DTypeVar, ScalarType, StaticType, TensorType
from rlk.lang.variants import cotangents, differentiable, gradient_variant, statics
from rlk.passes.pipeline import canonical
from rlk.passes.walk import walk
from rlk.testing.examples import Example, Values

_SIZES = (24, 10, 18, 14, 22, 26)  # of static axes without chunks: no powers of two, no two alike
_ROWS = 11
_VECTORS = 64
_ELEMENTS = 2**15  # of an input at registered extents


@dataclass(frozen=True, slots=True)
class Case:
    """One variant of an operator with inputs: floats as f64, not yet rounded to the variant's dtypes.

    slope: the variant whose derivative the gradient is; another one only for straight-through estimators.
    static: whether the case differs from another one by a static alone, other than a choice of results.
    """

    label: str
    op: Op
    variant: Variant
    slope: Variant
    values: Values
    example: Example
    static: bool = False

    def __hash__(self) -> int:
        return hash((self.op, self.variant))


@cache
def forward_program(op: Op, variant: Variant) -> Program:
    """Return the canonical program of an operator's variant."""
    return canonical(op.trace(variant))


@cache
def gradient_program(op: Op, variant: Variant) -> Program:
    """Return the canonical program of the gradient; `variant` is what `gradient_variant` gives."""
    assert op.gradient is not None
    return canonical(op.gradient.trace(variant))


def cases(op: Op, example: Example, seed: int = 0) -> tuple[Case, ...]:
    """Return the variants to try: plain, everything present, and each value of each static."""
    made: list[Case] = []
    plain = op.default_variant()
    results = {f.name for f in op.formals if isinstance(f.type, StaticType) and f.type.several}
    for turn in range(max((len(c) for c in _choices(op).values()), default=0)):
        # also for dtypes that no case below has: a cotangent may follow a dtype that its output does not
        cotangents(op, replace(plain, dtypes=tuple(sorted(_dtypes(op, turn).items()))))
    for label, present, chosen in _variants(op, example):
        dtypes = _dtypes(op, len(made))
        variant = Variant.of(dtypes, present, chosen)
        slope = Variant.of(dtypes, present, {k: _slope(example, k, v) for k, v in chosen.items()})
        if (variant.present, variant.statics) not in [(c.variant.present, c.variant.statics) for c in made]:
            values = draw_all(op, variant, given_by(op, example, seed), seed)
            alone = "=" in label and label.partition("=")[0] not in results
            static = alone and any(c.variant.present == present for c in made)
            made.append(Case(label, op, variant, slope, values, example, static))
    return tuple(made)


def given_by(op: Op, example: Example, seed: int) -> Values:
    """Return the inputs that an operator's author gives; raise LaunchError for what they cannot be."""
    fn, at = example.inputs, f"the inputs of {op.qualified}"
    try:
        signature(fn).bind(None)
    except TypeError as error:
        wanted = "function of a generator of numpy, rng"
        raise LaunchError(Code.ARG_TYPE, op=at, name=fn.__name__, wanted=wanted, got=str(error)) from None
    made = fn(np.random.default_rng(seed))
    if not isinstance(made, Mapping):
        wanted = "function that returns a dict of arrays and numbers by name"
        raise LaunchError(Code.ARG_TYPE, op=at, name=fn.__name__, wanted=wanted, got=type(made).__name__)
    formals = {f.name: f for f in op.formals}
    if op.fn.__module__.partition(".")[0] == OWN:  # rlk's share functions among operators
        return made
    for name in made.keys() - formals.keys():
        raise LaunchError(Code.UNKNOWN_NAME, what=f"{at}: parameter", name=name, choices=", ".join(formals))
    for name, value in made.items():
        dtype = getattr(formals[name].type, "dtype", None)
        array = np.asarray(value)
        if isinstance(dtype, DType) and not dtype.is_float and array.dtype.kind == "f":
            if (broken := array[array != np.floor(array)]).size:
                wanted = f"whole numbers: it is a tensor of {dtype}"
                first = float(broken.flat[0])
                raise LaunchError(Code.ARG_VALUE, op=at, name=name, value=first, wanted=wanted)
    return made


def _variants(op: Op, example: Example) -> Iterator[tuple[str, frozenset[str], dict[str, object]]]:
    default = dict(op.default_variant().statics)
    everything = frozenset(f.name for f in op.formals if f.optional)
    yield "plain", frozenset(), default
    for some in example.present:
        yield f"with {', '.join(some)}", frozenset(some), default
    if everything:
        yield "every option", everything, default
    for name, choices in statics(op).items():
        type = op.formal(name).type
        if isinstance(type, StaticType) and type.several:  # each result alone, and all
            choices = tuple(dict.fromkeys((*((c,) for c in choices), choices)))
        for value in example.statics.get(name, choices):
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            yield f"{name}={text}", everything, {**default, name: value}


def _dtypes(op: Op, turn: int) -> dict[str, DType]:
    """Return the dtype of every variable, another choice each turn."""
    return {name: choices[turn % len(choices)] for name, choices in _choices(op).items()}


def _choices(op: Op) -> dict[str, tuple[DType, ...]]:
    types = [f.type.dtype for f in op.formals if isinstance(f.type, TensorType)]
    return {t.name: t.choices for t in types if isinstance(t, DTypeVar)}


def _slope(example: Example, name: str, value: object) -> object:
    return example.straight.get(name, {}).get(value, value)


def aligned(case: Case, seed: int = 0, extents: Mapping[str, int] | None = None) -> Case:
    """Return a case whose static axes have extents that vectors divide, where the author fixes no others.

    extents: those of some axes that no author fixes. Raises LaunchError for other axes.
    """
    program = forward_program(case.op, case.variant)
    given = given_by(case.op, case.example, seed)
    found = sizes(program, case.values, op=case.op)
    free = _free(program, given)
    steps = steps_of(axes_in(program))
    wide = {n: lcm(_VECTORS, steps.get(n, 1)) for n, axis in free.items() if not axis.dynamic}
    known = {n: -(-found[n] // step) * step for n, step in wide.items()}
    for name in (extents or {}).keys() - free.keys():
        choices = ", ".join(sorted(free)) or "none, its example fixes all"
        raise LaunchError(Code.UNKNOWN_NAME, what=f"open axis of {case.op.name}", name=name, choices=choices)
    known |= extents or {}
    return replace(case, values=draw_all(case.op, case.variant, given, seed, known))


def registered_extents(case: Case, seed: int = 0) -> dict[str, int]:
    """Return the extents of the operator's record for axes that its author does not fix in inputs.

    They are halved, the largest first, until no input has more than _ELEMENTS: simulators are slow. Threads
    of a kernel still have more than one element each, which they have not at the extents that are drawn.
    """
    program = forward_program(case.op, case.variant)
    free = _free(program, given_by(case.op, case.example, seed))
    made = {name: n for name, n in case.op.record.extents.items() if name in free}
    found = sizes(program, case.values, op=case.op)
    steps = steps_of(axes_in(program))
    for decl in inputs_of(program).values():
        while prod((found | made)[a.name] for a in decl.type.axes) > _ELEMENTS:
            mine = (a.name for a in decl.type.axes if a.name in made)
            largest = max(mine, key=made.__getitem__, default="")
            if not largest or made[largest] <= _VECTORS:
                break
            step = lcm(_VECTORS, steps.get(largest, 1))
            made[largest] = -(-made[largest] // 2 // step) * step
    return made


def _free(program: Program, given: Values) -> dict[str, Axis]:
    """Return the axes of inputs that no given array has, and no spec sizes, by name."""
    decls = inputs_of(program)
    fixed = {axis.name for name in given if name in decls for axis in decls[name].type.axes}
    fixed |= {axis.name for axis in axes_in(program) if axis.extent is not None}
    return {a.name: a for d in decls.values() for a in d.type.axes if a.name not in fixed}


# --- inputs ---------------------------------------------------------------------------------------


def draw_all(
    op: Op, variant: Variant, given: Mapping[str, Any], seed: int, known: Mapping[str, int] | None = None
) -> Values:
    """Draw the inputs that the forward of a variant reads, and those that only its gradient reads.

    Of the latter, those that types do not describe are left to the example's `gradient`.
    """
    scalars = {f.name: f.type for f in op.formals if isinstance(f.type, ScalarType)}
    values = draw(forward_program(op, variant), given, seed, known, scalars=scalars)
    wanted, pulls = differentiable(op, variant), cotangents(op, variant)
    if op.gradient is None or not wanted or not pulls:
        return values
    program = gradient_program(op, gradient_variant(variant, wanted, pulls))
    formals = {f.name for f in op.formals}
    for name in inputs_of(program).keys() & formals - values.keys():
        extents = sizes(forward_program(op, variant), values, known, op)
        with suppress(LaunchError):
            values |= draw(program, {**given, **values}, seed, extents, (name,), scalars)
    return values


def draw(
    program: Program, given: Mapping[str, Any], seed: int, known: Mapping[str, int] | None = None,
    names: Collection[str] | None = None, scalars: Mapping[str, ScalarType] = MappingProxyType({}),
) -> Values:  # fmt: skip
    """Draw missing inputs: normal floats, random bools and bytes, integers inside the dim that they index.

    names: of these inputs alone. scalars: those with a range.
    """
    decls = {n: d for n, d in inputs_of(program).items() if names is None or n in names}
    extents = sizes(program, given, known)
    domains = indexed(program)
    rng = np.random.default_rng(seed + 1)
    made: Values = {}
    for name, decl in decls.items():
        if name in given:
            made[name] = given[name]
        elif decl.role is Role.SCALAR:
            least, most = _range(scalars.get(name), decl.type.dtype)
            made[name] = float(rng.uniform(least, most)) if decl.type.dtype.is_float else int(most)
        else:
            shape = tuple(extents[a.name] for a in decl.type.axes)
            made[name] = _drawn(program.name, decl, shape, domains.get(name), extents, rng)
    return made


def _range(type: ScalarType | None, dtype: DType) -> tuple[float, float]:
    """Return the range in which a scalar is drawn: around 1, as far as its declaration allows it."""
    least, most = (0.5, 1.5) if dtype.is_float else (1, 1)
    if type is None:
        return least, most
    low = -inf if type.least is None else type.least
    high = inf if type.most is None else type.most
    if max(least, low) <= min(most, high):
        return max(least, low), min(most, high)
    nearest = low if low > most else high  # all that is allowed is on one side
    return (nearest, min(nearest + 1, high)) if nearest == low else (max(nearest - 1, low), nearest)


def _drawn(
    op: str, decl: Decl, shape: tuple[int, ...], domain: Axis | None, extents: Mapping[str, int],
    rng: np.random.Generator,
) -> Any:  # fmt: skip
    if decl.type.dtype.is_float:
        return rng.normal(size=shape)
    if decl.type.dtype is DType.BOOL:
        return rng.random(shape) < 0.7
    if decl.type.dtype in (DType.I8, DType.U8):
        limits = np.iinfo(arithmetic.storage(decl.type.dtype))
        return rng.integers(limits.min, limits.max + 1, shape)
    if domain is None:
        why = f"by the check: write {op}_inputs(rng) beside the spec, returning arrays by name"
        raise LaunchError(Code.ARG_MISSING, op=op, name=decl.name, why=why)
    return rng.integers(0, extents[domain.name], shape)


def inputs_of(program: Program) -> dict[str, Decl]:
    """Return the tensors and scalars that a program reads, by name."""
    read = (Role.IN, Role.SCALAR)
    return {d.name: d for k in program.kernels for d in k.params if d.role in read}


def sizes(
    program: Program, given: Mapping[str, Any], known: Mapping[str, int] | None = None, op: Op | None = None
) -> dict[str, int]:
    """Return the extent of every axis: a known one, a given array's, what these bound, else a small one."""
    found = dict(known or {})
    axes: dict[str, Axis] = {}
    for decl in (d for k in program.kernels for d in k.params):
        for at, axis in enumerate(decl.type.axes):
            axes.setdefault(axis.name, axis.whole)
            if decl.name in given:
                found.setdefault(axis.name, np.shape(given[decl.name])[at])
    for let in (let for k in program.kernels for let in walk(k.body)):
        if isinstance(let.node, Extent | Pos) and let.node.axis.part is not Part.LANE:
            axes.setdefault(let.node.axis.name, let.node.axis.whole)
    if op is not None and {name for _, factors in op.bounds for name in factors} <= found.keys():
        found = op.bounded(found)
    steps = steps_of(axes.values())
    for name in steps.keys() - axes.keys():  # an axis that no tensor has, and others' extents follow from
        axes[name] = Axis(name)
    left = [axis for name, axis in axes.items() if name not in found and axis.extent is None]
    found |= {axis.name: _size(axis, i, steps.get(axis.name, 1)) for i, axis in enumerate(left)}
    return completed(program.name, axes.values(), found)


def _size(axis: Axis, turn: int, step: int) -> int:
    """Return the extent of an axis of the checks, a multiple of `step`."""
    if axis.piece is not None:
        found = axis.piece * 3 // 2 - 1
    elif axis.chunk is not None and axis.chunk > 1:
        found = (axis.split or 2) * axis.chunk * 3 // 2 - 1
    else:
        found = _ROWS if axis.dynamic else _SIZES[turn % len(_SIZES)]
    return -(-found // step) * step


def indexed(program: Program) -> dict[str, Axis]:
    """Return, for each integer tensor whose elements are used as an index, the axis of the dim they index."""
    found: dict[str, Axis] = {}
    for kernel in program.kernels:
        decls = {d.name: d for d in kernel.params}
        lets = {let.value: let for let in walk(kernel.body)}
        for let in lets.values():
            if isinstance(let.node, Load | Store):
                for index, axis in zip(let.node.index, decls[let.node.param].type.axes, strict=True):
                    for name in _sources(index, lets):
                        found.setdefault(name, axis)
    return found


def counts(program: Program, axis: Axis) -> bool:
    """Return whether positions along an axis are numbers of the computation, not indices alone."""
    for kernel in program.kernels:
        lets = tuple(walk(kernel.body))
        own = {let.value for let in lets if let.node == Pos(axis)}
        for let in lets:
            index = let.node.index if isinstance(let.node, Load | Store) else ()
            if own.intersection(operands(let.node)[len(index) :]):
                return True
    return False


def mixes(program: Program, axis: Axis) -> bool:
    """Return whether an output along an axis is made of what is combined over it, as x / sum of x is."""
    tensors: set[str] = set()
    while True:
        before = len(tensors)
        for kernel in program.kernels:
            lets = tuple(walk(kernel.body))
            for let in (let for let in lets if _combined(lets, axis, tensors, let)):
                assert isinstance(let.node, Store)
                tensors.add(let.node.param)
        if len(tensors) == before:
            outputs = {d.name: d for k in program.kernels for d in k.params if d.role is Role.OUT}
            return any(axis in d.type.axes for name, d in outputs.items() if name in tensors)


def _combined(lets: tuple[Let, ...], axis: Axis, tensors: set[str], store: Let) -> bool:
    """Return whether a let stores what is combined over an axis, or is read from such tensors."""
    if not isinstance(store.node, Store):
        return False
    known, found, left = {let.value: let.node for let in lets}, set[Value](), [store.node.value]
    loops = [x.node for x in lets if isinstance(x.node, Loop) and x.node.axis.name == axis.name]
    carried = {value for loop in loops for value in loop.body.args[1:]}
    while left:
        value = left.pop()
        node = known.get(value)
        if value in carried:
            return True
        match node:
            case Reduce(over=over) | Merge(over=over) if over.name == axis.name:
                return True
            case Loop(axis=over) if over.name == axis.name:
                return True
            case Load(param=param) if param in tensors:
                return True
            case _ if node is not None and value not in found:
                found.add(value)
                left += operands(node)
                left += node.body.results if isinstance(node, Loop) else ()
            case _:
                pass
    return False


def _sources(value: Value, lets: Mapping[Value, Any]) -> Iterator[str]:
    """Yield the tensors that a value is loaded from, up to casts, selects and added constants."""
    match lets[value].node if value in lets else None:
        case Load(param=param):
            yield param
        case Cast(x=x) | Bits(x=x):
            yield from _sources(x, lets)
        case Select(a=a, b=b) | Map2(a=a, b=b):
            yield from _sources(a, lets)
            yield from _sources(b, lets)
        case _:
            return


# --- storage --------------------------------------------------------------------------------------


def stored(values: Mapping[str, Any], program: Program) -> Values:
    """Return a program's inputs as memory holds them: floats rounded to their dtypes, bf16 as patterns."""
    exact = arithmetic.Exact()
    made: Values = {}
    for name, decl in inputs_of(program).items():
        dtype = decl.type.dtype
        if decl.role is Role.SCALAR:
            made[name] = values[name]
            continue
        value, kept = np.asarray(values[name]), arithmetic.storage(dtype)
        if not dtype.is_float or value.dtype == kept:
            made[name] = value.astype(kept)  # a copy: views of one array overlap
        else:
            made[name] = arithmetic.encode(exact.cast(value.astype(np.float32), dtype), dtype)
    return made
