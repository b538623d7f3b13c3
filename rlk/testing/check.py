"""The laws that every operator obeys, each as a function that measures one case and says what it found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, partial
from importlib.util import find_spec
from itertools import chain, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from rlk.backends.interface import Backend
from rlk.backends.registry import complete, registered
from rlk.errors import (
    NOWHERE,
    Code,
    LaunchError,
    LoweringError,
    RlkError,
    ScheduleError,
    UnsupportedError,
)
from rlk.interp import arithmetic
from rlk.interp.memory import unwritten
from rlk.interp.run import Outcome, run, run_wide
from rlk.ir import dotmodel
from rlk.ir.dims import extent_of, steps_of
from rlk.ir.nodes import Decl, Dot, Kernel, Program, Role
from rlk.ir.text import axes_in, parse_program, print_program
from rlk.ir.types import DType
from rlk.ir.verify import verify
from rlk.lang.op import Op
from rlk.lang.variants import cotangents, differentiable, gradient_variant, outputs
from rlk.lower.common.emitted import Emitted, Signature
from rlk.lower.common.lists import columns, rows_of
from rlk.passes.in_place import in_place
from rlk.passes.pack_gqa import indices_of
from rlk.passes.pipeline import CANONICAL, canonical, launched
from rlk.passes.walk import walk
from rlk.schedule.axes import roles
from rlk.schedule.entries import ROW_CLASSES
from rlk.schedule.heuristics import apart, choose
from rlk.schedule.schedule import Schedule
from rlk.target.cdna3 import LIMITS
from rlk.target.facts import Target
from rlk.testing.bits import differing
from rlk.testing.cases import (
    Case,
    aligned,
    cases,
    counts,
    forward_program,
    gradient_program,
    indexed,
    inputs_of,
    mixes,
    registered_extents,
    sizes,
    stored,
)
from rlk.testing.examples import Example, Values

if TYPE_CHECKING:
    from rlk.runtime.reference import Prepared

STEP = 2.0**-16  # of a central difference in f64: truncation and cancellation both stay near 1e-9
EPSILON = 2.0**-50  # what an f64 sum may lose, relative to the sum of its terms' sizes
TOLERANCE = 1e-6
INTERLEAVED = (
    2  # the first random order of waves; tests/test_cdna_route.py tries others, of each kind of kernel
)
STAND_IN = "gfx942"  # whose published sums stand in for those that nobody has published
ELEMENTS = 8  # of each input, perturbed one by one
DIVISORS = (2, 3, 7)  # of parallel axes, into tiles
DIRECTIONS = 3  # in which all elements of an input move at once
_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

Oracle = Callable[..., Outcome]
Generated = Callable[..., Any]
Compiler = Callable[[Emitted, str, Path], None]  # of a module, for a target, into a folder


class Law(Enum):
    """A law that every operator must obey, in words."""

    TEXT = "printed and parsed back, every form is equal"
    FLOAT64 = "agrees with its float64 form"
    SLOPE = "gradients agree with central differences"
    TILES = "bits do not depend on tiles"
    ROWS = "bits of a row do not depend on other rows"
    SOURCE = "Triton source has the oracle's bits"
    SIMULATED = "source of other backends has the oracle's bits"
    LOWERS = "each backend lowers it, or says why not"
    COMPILES = "Triton source compiles"
    MACHINE = "CDNA machine code has the oracle's bits"
    PAGE = "the page's example and edges hold"
    """Of operators of other packages; the command tries it, which knows pages."""


COMPILED = frozenset({Law.COMPILES, Law.MACHINE})
"""The laws of what a compiler makes: a case that differs by a static alone says little new of it."""
ONCE = COMPILED | {Law.SIMULATED}
"""The laws that are not tried on a case that differs by a static alone."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a law in one case.

    ok: None where the law was not tried. count: how many comparisons were made. worst: the largest relative
    error of a slope or of an output, else how many elements, forms or rows differ. note: why, for people.
    ran: what was executed. backend: of a law that is tried by backend.
    """

    law: Law
    op: str
    case: str
    ok: bool | None
    count: int = 0
    worst: float = 0.0
    note: str = ""
    ran: str = ""
    backend: str = ""


def check(
    op: Op,
    example: Example,
    targets: Sequence[Target],
    laws: Collection[Law] = tuple(Law),
    seed: int = 0,
    compiler: Compiler | None = None,
    extents: Mapping[str, int] | None = None,
) -> Iterator[Verdict]:
    """Yield the verdict of every law on every case of an operator; a law that raises has failed.

    compiler: what compiles Triton source; without one the laws of what it makes are not tried. extents: of
    axes, at which simulators run a case once more; by default those of the operator's record.
    """
    tried = cases(op, example, seed)
    if Law.TEXT in laws and tried:
        names = _judged(Law.TEXT, tried[0], partial(check_names, tried), "names in every variant")
        if not names.ok:
            yield names
    if Law.LOWERS in laws and tried:
        reads = _judged(Law.LOWERS, tried[0], partial(check_reads, tried), "call on every target")
        if not reads.ok:
            yield replace(reads, backend="every backend")
    whole = [c.label for c in tried if not c.static]
    ends = {*whole[:1], *whole[-1:]}  # without options, and with every one
    for case in tried:
        for law, label, attempt in _attempts(case, targets, seed, compiler, case.label in ends):
            if law in laws and (law not in ONCE or not case.static):
                yield _judged(law, case, attempt, label)
        for on in targets if Law.LOWERS in laws else ():
            for what, backend, attempt in lowerings(case, on, case.label in ends):
                label = f"{what} on {on.name}"
                yield replace(_judged(Law.LOWERS, case, attempt, label), backend=backend)
        if Law.SIMULATED in laws and not case.static:
            yield from _simulations(case, aligned(case, seed), targets, seed)
    if Law.SIMULATED in laws and tried:
        case = next(c for c in reversed(tried) if not c.static)  # with every option
        at = registered_extents(case, seed) if extents is None else extents
        if at:
            sized = replace(aligned(case, seed, at), label=f"{case.label} at {named_extents(at)}")
            yield from _simulations(sized, sized, targets, seed)


def named_extents(extents: Mapping[str, int]) -> str:
    """Return extents as text: N=4096, V=128256."""
    return ", ".join(f"{name}={n}" for name, n in extents.items())


def _simulations(case: Case, drawn: Case, targets: Sequence[Target], seed: int) -> Iterator[Verdict]:
    """Yield what simulators of other backends say of a case, with the inputs of another."""
    for on in targets:
        for call, by in product(calls(drawn, seed), others(on)):
            attempt = partial(check_simulated, call, on, by)
            label = f"{call.label} on {on.name}"
            yield replace(_judged(Law.SIMULATED, case, attempt, label), backend=by.name)


def _attempts(
    case: Case, targets: Sequence[Target], seed: int, compiler: Compiler | None, every: bool
) -> Iterator[tuple[Law, str, Callable[[], Verdict]]]:
    """Yield each law of a case. every: in every schedule, else in one."""
    yield Law.TEXT, "", partial(check_text, case)
    yield Law.FLOAT64, "", partial(check_float64, case)
    yield Law.SLOPE, "", partial(check_slopes, case)
    for call in calls(case, seed):
        yield Law.TILES, call.label, partial(check_tiles, call, targets[0])
        yield Law.ROWS, call.label, partial(check_rows, call, targets[0])
        for on in targets:
            label = f"{call.label} on {on.name}"
            yield Law.SOURCE, label, partial(check_source, call, on, every=every)
            yield Law.COMPILES, label, partial(check_compiles, call, on, compiler)
            if on.name in LIMITS:
                yield Law.MACHINE, label, partial(check_machine, call, on, compiler)


def _judged(law: Law, case: Case, attempt: Callable[[], Verdict], label: str = "") -> Verdict:
    """Return the verdict, named after its case; whatever a law raises is its failure."""
    name = ", ".join(part for part in (case.label, label) if part)
    try:
        found = attempt()
    except (RlkError, *_BUGS) as error:
        return Verdict(law, case.op.name, name, False, note=f"{type(error).__name__}: {error}")
    return replace(found, law=law, op=case.op.name, case=name)


def verdict(law: Law, ok: bool | None, count: int = 0, worst: float = 0.0, note: str = "") -> Verdict:
    """Return a verdict whose case is named later."""
    return Verdict(law, "", "", ok, count, worst, note)


# --- text -----------------------------------------------------------------------------------------


def check_text(case: Case) -> Verdict:
    """Verify each form of forward and gradient, print it, parse it, and compare."""
    given = cotangents(case.op, case.variant)
    traced = [case.op.trace(case.variant)]
    if case.op.gradient is not None and given:
        wanted = differentiable(case.op, case.variant)
        traced.append(case.op.gradient.trace(gradient_variant(case.variant, wanted, given)))
    forms = [form for p in traced for form in _forms(p)]
    wrong = 0
    for form in forms:
        verify(form)
        text = print_program(form)
        again = parse_program(text)
        wrong += again != form or print_program(again) != text
    return verdict(Law.TEXT, not wrong, len(forms), wrong)


def check_names(tried: Sequence[Case]) -> Verdict:
    """Look for optional cotangents of a vjp whose output no variant has: they are never given."""
    op = tried[0].op
    made = {d.name for case in tried for d in outputs(op.trace(case.variant))}
    taken = () if op.gradient is None else op.gradient.formals
    names = [f.name for f in taken if f.name.startswith("d_") and f.name.removeprefix("d_") not in made]
    there = ", ".join(f"d_{name}" for name in sorted(made))
    note = "\n".join(f"{op.loc}: the vjp takes {n}; cotangents of outputs: {there}" for n in names)
    return verdict(Law.TEXT, not names, 1, len(names), note)


def check_reads(tried: Sequence[Case]) -> Verdict:
    """Look for a variant whose calls read a tensor, or write into one: others are refused."""
    op = tried[0].op
    for case in tried:
        given = inputs_of(forward_program(op, case.variant)).values()
        if op.into or any(d.role is Role.IN for d in given):
            return verdict(Law.LOWERS, True, 1)
    return verdict(
        Law.LOWERS, False, note=one_line(LaunchError(Code.READS_NOTHING, op.loc, op=op.name))
    )


def _forms(traced: Program) -> Iterator[Program]:
    """Yield a program as it was traced, and after each of the passes that make it canonical and change it."""
    yield traced
    for _, change in CANONICAL:
        before, traced = traced, change(traced)
        if traced != before:
            yield traced


# --- float64 --------------------------------------------------------------------------------------


def check_float64(case: Case) -> Verdict:
    """Compare the spec, every float an f64, with the float64 form of the operator's record."""
    if case.op.record.reference is None:
        return verdict(Law.FLOAT64, None, note="no float64 form: rlk.register(..., reference=)")
    from rlk.testing.float64 import TOLERANCE, worst_difference

    count, worst, where = worst_difference(case)
    ok = worst <= TOLERANCE
    return verdict(Law.FLOAT64, ok, count, worst, "" if ok else where)


# --- slopes ---------------------------------------------------------------------------------------


def check_slopes(case: Case, wide: Oracle = run_wide, tolerance: float = TOLERANCE) -> Verdict:
    """Compare the vjp of every input, from each output alone and from all, with differences in f64."""
    op = case.op
    given = cotangents(op, case.variant)
    wanted = tuple(n for n in differentiable(op, case.variant) if n in case.values)  # what no spec reads: 0
    if not wanted or not given:
        return verdict(Law.SLOPE, None, note="no gradient")
    forward = forward_program(op, case.slope)
    values = {n: _float64(v) for n, v in case.values.items()}
    rng = np.random.default_rng(7)
    forward_sizes = sizes(forward, values, op=op)
    made = wide(forward, values, extents=forward_sizes)
    # an infinity, such as the log-prob of a token that is left out, has no difference: nothing pulls at it
    there = {n: ~np.isinf(made[n]) for n in given}
    pulls = {n: np.where(there[n], rng.normal(size=np.shape(made[n])), 0.0) for n in given}
    groups = [(n,) for n in given] + ([given] if len(given) > 1 else [])
    slopes = {group: _gradients(case, values, wide, pulls, group, wanted) for group in groups}
    count, worst, where = 0, 0.0, ""
    for name in wanted:
        for move in _moves(values[name], rng):
            both = (values | {name: values[name] + s * STEP * move} for s in (1, -1))
            up, down = (wide(forward, moved, extents=forward_sizes) for moved in both)
            for group in groups:
                moved = sum(_pulled(pulls[n], there[n], up[n], down[n]) for n in group) / (2 * STEP)
                terms = sum(_pulled(np.abs(pulls[n]), there[n], np.abs(made[n])) for n in group)
                lost = EPSILON / STEP * terms
                gradient = slopes[group][name]
                error = _slope_error(gradient, move, moved, lost)
                count += 1
                if not error <= worst:  # NaN is the worst of all
                    along = float(np.sum(gradient * move))
                    what = f"d_{name} from d_{' and d_'.join(group)}"
                    worst, where = error, f"{what}: {along:.6g} by the vjp, {moved:.6g} by differences"
    ok = worst <= tolerance
    return verdict(Law.SLOPE, ok, count, worst, "" if ok else where)


def _pulled(pull: Any, there: Any, up: Any, down: Any = 0.0) -> float:
    """Return the sum of pull (up - down) over the elements that are there."""
    with np.errstate(invalid="ignore"):
        return float(np.sum(np.where(there, pull * (up - down), 0.0)))


def _gradients(
    case: Case, values: Values, wide: Oracle, pulls: Values, group: tuple[str, ...], wanted: tuple[str, ...]
) -> Mapping[str, Any]:
    """Return the gradients of the wanted inputs by the vjp; cotangents outside the group are absent, or 0."""
    op = case.op
    assert op.gradient is not None
    needed = {f.name for f in op.gradient.formals if not f.optional}
    there = tuple(n for n in pulls if n in group or f"d_{n}" in needed)
    program = gradient_program(op, gradient_variant(case.variant, wanted, there))
    plain = forward_program(op, case.variant)
    forward = wide(plain, values, extents=sizes(plain, values, op=op))
    saved = values | {n: forward[n] for n in forward.tensors}
    extra = case.example.gradient(saved)
    asked = {f"d_{n}": pulls[n] if n in group else np.zeros_like(pulls[n]) for n in there}
    given = {**saved, **extra, **asked}
    known = sizes(plain, values, op=op)
    found = wide(program, given, extents=sizes(program, given, known))
    return {n: found[f"d_{n}"] for n in wanted}


def _moves(value: Any, rng: np.random.Generator) -> Iterator[Any]:
    """Yield directions: a few single elements, then all elements at once."""
    size = value.size
    for at in rng.choice(size, min(ELEMENTS, size), replace=False):
        one = np.zeros(size)
        one[at] = 1.0
        yield one.reshape(value.shape)
    for _ in range(DIRECTIONS):
        yield rng.normal(size=value.shape)


def _slope_error(gradient: Any, move: Any, difference: float, lost: float) -> float:
    """Return |<gradient, move> - difference| relative to a gradient of this size and what cancels."""
    gap = abs(float(np.sum(gradient * move)) - difference)
    single = np.count_nonzero(move) == 1
    scale = float(np.max(np.abs(gradient)) if single else np.linalg.norm(gradient))
    if not np.isfinite(gap):
        return np.inf
    return gap / max(scale + lost / TOLERANCE, abs(difference)) if gap else 0.0


def _float64(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(np.float64) if array.dtype.kind == "f" else value


# --- bits -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """A canonical program with its inputs as memory holds them, and the extents of all its axes.

    placed: the same program with the chunks side by side that a lowering wants so; same bits, other kernels.
    into: outputs that are written into inputs, with the input of each.
    """

    label: str
    program: Program
    inputs: Values
    extents: dict[str, int]
    placed: Program
    into: Mapping[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> Values:
        """Its inputs, and a copy of each that an output is written into: the memory of that output."""
        return self.over(self.inputs)

    def over(self, inputs: Values) -> Values:
        """Return these inputs, and copies of those that outputs are written into."""
        return inputs | {out: inputs[name].copy() for out, name in self.into.items() if name in inputs}

    @property
    def shared(self) -> Values:
        """Its inputs, and memory of outputs: the input itself where kernels may write that, else a copy."""
        own = in_place(self.placed, self.into)
        made = self.whole
        made |= {name: made[out] for out, name in self.into.items() if out in own and out in made}
        return made | _sized_by_outputs(self)

    @property
    def stores(self) -> tuple[Decl, ...]:
        return outputs(self.program)


def calls(case: Case, seed: int = 0) -> tuple[Call, ...]:
    """Return the forward call of a case, and its gradient's, with infinities and NaN among the floats."""
    rng = np.random.default_rng(seed + 2)
    forward = forward_program(case.op, case.variant)
    values = {n: v if n in case.example.finite else _edges(v, rng) for n, v in case.values.items()}
    plain, kernels = case.op.trace(case.variant), case.op.trace_for_kernels(case.variant)
    made = [_call(case.op, "forward", plain, kernels, values, {})]
    wanted, given = differentiable(case.op, case.variant), cotangents(case.op, case.variant)
    if wanted and given:
        ran = run(forward, made[0].inputs, extents=made[0].extents)
        shapes = {n: np.shape(ran[n]) for n in given}
        pulls = {f"d_{n}": rng.normal(size=shape) for n, shape in shapes.items()}
        saved = {**values, **{d.name: ran[d.name] for d in outputs(forward)}}
        assert case.op.gradient is not None
        backward = case.op.gradient.trace(gradient_variant(case.variant, wanted, given))
        values = {**saved, **case.example.gradient(saved), **pulls}
        made.append(_call(case.op, "gradient", backward, backward, values, made[0].extents))
    return tuple(made)


def _call(
    op: Op, label: str, traced: Program, kernels: Program, values: Values, known: Mapping[str, int]
) -> Call:
    program = canonical(traced)
    for name in inputs_of(program).keys() - values.keys():
        either = f"{op.name}_inputs(rng) or {op.name}_grad_inputs(saved)"
        why = f"by the check of the {label}: let {either} return it"
        raise LaunchError(Code.ARG_MISSING, op=op.name, name=name, why=why)
    extents = sizes(program, values, known, op)
    whole = program if kernels is traced else canonical(kernels)
    names = apart(whole, extents)
    placed = canonical(kernels, apart=names) if names else whole
    into = {out: name for out, name in op.into.items() if out in [d.name for d in outputs(program)]}
    return Call(label, program, stored(values, program), extents, placed, into)


def _edges(value: Any, rng: np.random.Generator) -> Any:
    """Return floats with special values among them; the last row of a matrix is -inf, half the one before."""
    array = np.asarray(value)
    if array.dtype.kind != "f" or array.size < 50:
        return value
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 65504.0])
    out = array.copy()
    # the first half stays plain: a row with an infinity says little about the order of its sum
    at = array.size - 1 - rng.choice(array.size // 2, len(special), replace=False)
    out.reshape(-1)[at] = special
    if out.ndim > 1 and len(out) > 3:
        out[-1], out[-2, ..., : out.shape[-1] // 2] = -np.inf, -np.inf
    return out


def tile_cuts(whole: Mapping[str, int]) -> list[dict[str, int]]:
    """Return tiles by axis, for parallel axes with these numbers of indices.

    Each axis is cut in 2, 3 and 7 parts in turns, beside others in other numbers: equal numbers of tiles
    hide one that is taken for another. Two axes are cut in 7 parts at once, too: tiles that are small along
    both show a product that depends on the size of its tile. Of three axes and more that is left out: all in
    2, 3 and 7 at once took 20.0 s for rlk's own operators where turns take 13.6 (CPU, without statics).
    """
    cuts = [
        {name: max(1, n // DIVISORS[(turn + i) % len(DIVISORS)]) for i, (name, n) in enumerate(whole.items())}
        for turn in range(len(DIVISORS))
    ]
    if len(whole) == 2:
        cuts.append({name: max(1, n // max(DIVISORS)) for name, n in whole.items()})
    cuts += [{name: max(1, n // 16)} for name, n in whole.items()]
    return [c for i, c in enumerate(cuts) if c and c not in cuts[:i]]


def check_tiles(call: Call, on: Target, oracle: Oracle = run) -> Verdict:
    """Compare the outputs under several cuts of the parallel axes, bit by bit."""
    whole: dict[str, int] = {}
    for kernel in call.program.kernels:
        whole |= parallel(kernel, call)
    want = oracle(call.program, call.whole, softmax=on.softmax, extents=call.extents, tile={})
    count, wrong, note = 0, 0, ""
    for cut in tile_cuts(whole):
        got = oracle(call.program, call.whole, softmax=on.softmax, extents=call.extents, tile=cut)
        found = compared(call.stores, got.tensors, want.tensors)
        wrong += sum(found.values()) + (got.errors != want.errors)
        count += 1
        note = note or _first_wrong(found, f"tiles {cut}")
    return verdict(Law.TILES, not wrong, count, wrong, note)


def parallel(kernel: Kernel, call: Call) -> dict[str, int]:
    """Return how many indices each parallel axis of a kernel has."""
    found = roles(kernel, call.extents).parallel
    return {str(a): extent_of(a, indices_of(a, call.extents)) for a in found}


def compared(outs: Sequence[Decl], got: Mapping[str, Any], want: Mapping[str, Any]) -> dict[str, int]:
    """Return, for each output, in how many elements the bits differ."""
    return {d.name: differing(got[d.name], want[d.name], _kind(d)) for d in outs}


def _kind(decl: Decl) -> str | None:
    """Return how patterns of a float are named; integers and booleans have one pattern a value."""
    return decl.type.dtype.value if decl.type.dtype.is_float else None


def _first_wrong(found: Mapping[str, int], where: str) -> str:
    return next((f"{name}: {n} elements differ with {where}" for name, n in found.items() if n), "")


def check_rows(call: Call, on: Target, oracle: Oracle = run) -> Verdict:
    """Compare each row's bits in the whole batch with its bits in a reversed one and in a part of it."""
    lead = call.stores[0].type.axes[:1]
    rows = [d for d in call.stores if d.type.axes[:1] == lead and lead]
    inputs = inputs_of(call.program)
    with_rows = [n for n, d in inputs.items() if lead and d.type.axes[:1] == lead]
    index_rows = lead and lead[0] in indexed(call.program).values()
    elsewhere = [n for n, d in inputs.items() if lead and lead[0] in d.type.axes[1:]]
    dependent = index_rows or elsewhere or (lead and counts(call.program, lead[0]))
    dependent = dependent or (lead and mixes(call.program, lead[0]))
    dependent = dependent or (lead and lead[0].name in steps_of(axes_in(call.program)))
    if not rows or not lead[0].dynamic or not with_rows or dependent:
        return verdict(Law.ROWS, None, note="its rows are not independent by definition")
    total = call.extents[lead[0].name]
    want = oracle(call.program, call.whole, softmax=on.softmax, extents=call.extents)
    reverse, some = np.arange(total)[::-1], np.arange(total)[1 : max(2, total // 2)]
    wrong, note = 0, ""
    for pick, what in ((reverse, "rows reversed"), (some, "fewer rows"), (some[:1], "one row")):
        given = {n: np.ascontiguousarray(v[pick]) if n in with_rows else v for n, v in call.inputs.items()}
        extents = {**call.extents, lead[0].name: len(pick)}
        got = oracle(call.program, call.over(given), softmax=on.softmax, extents=extents)
        picked = {d.name: want[d.name][pick] for d in rows}
        found = compared(rows, got.tensors, picked)
        wrong += sum(found.values())
        note = note or _first_wrong(found, what)
    return verdict(Law.ROWS, not wrong, 3, wrong, note)


# --- generated source -----------------------------------------------------------------------------


def has_triton() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None


def check_source(
    call: Call, on: Target, generated: Generated | None = None, oracle: Oracle = run, every: bool = True
) -> Verdict:
    """Run the Triton source in the interpreter and compare with the oracle's bits.

    every: under schedules of smaller and larger tiles and on lists of tensors, too.
    """
    standard = generated is None
    if generated is None:
        if not has_triton():
            return verdict(Law.SOURCE, None, note="triton is not installed")
        from rlk.testing.generated import run_generated

        generated = run_generated
    want = oracle(call.program, call.whole, softmax=on.softmax, extents=call.extents)
    wrong, note = 0, ""
    plans = schedules(call, on) if every else [_chosen(*bound(call, on), call, on)]
    for plan in plans:
        given = call.shared
        got = generated(call.placed, given, schedules=plan, on=on, extents=call.extents)
        found = compared(call.stores, got.tensors, want.tensors)
        wrong += sum(found.values()) + (bool(got.errors[0]) != bool(want.errors))
        note = note or _first_wrong(found, " / ".join(map(str, plan)))
    if standard and every and (differ := on_lists(call, on, oracle)) is not None:
        wrong += differ
        note = note or (f"{differ} elements differ on lists of tensors" if differ else "")
        return verdict(Law.SOURCE, not wrong, len(plans) + 1, wrong, note)
    return verdict(Law.SOURCE, not wrong, len(plans), wrong, note)


def on_lists(call: Call, on: Target, oracle: Oracle = run) -> int | None:
    """Run a call and its first half by one launch on lists of tensors; return how many elements differ.

    None where the program has no such form: it is not elementwise along one dim.
    """
    from rlk.runtime.call.lists import as_tables, rows_of_table
    from rlk.testing.generated import array, buffer
    from rlk.testing.simulators.interpreter import reaching

    program, signature = bound(call, on)
    try:
        axis = rows_of(program)
    except LoweringError:
        return None
    (kernel,), by = program.kernels, complete()
    scalars = {d.name: call.inputs[d.name] for d in kernel.params if d.role is Role.SCALAR}
    extents = [n for n in (call.extents[axis.name], call.extents[axis.name] // 2) if n]
    inputs = [{n: v[:count] for n, v in call.inputs.items() if np.ndim(v)} for count in extents]
    given = [call.over({n: v.copy() for n, v in each.items()}) for each in inputs]
    tensors = [d for d in kernel.params if d.role is not Role.SCALAR]
    memory = [
        {d.name: buffer(d, item, {axis.name: count}) for d in tensors}
        for item, count in zip(given, extents, strict=True)
    ]
    chosen = [choose(kernel, on, signature, call.extents)]
    emitted = by.lower(program, chosen, on, replace(signature, listed=frozenset(scalars)))
    every = columns(kernel, axis, frozenset(scalars))
    counts = [-(-n // emitted.call[2].dim) for n in extents]
    decls = {d.name: d for d in kernel.params}
    rows = rows_of_table(every, decls, memory, extents, [scalars] * len(extents), counts)
    tables = as_tables(rows, counts)
    assert by.simulate is not None
    with by.simulate(emitted, on, 0) as (launch, kernels), reaching([t for m in memory for t in m.values()]):
        launch(kernels, *tables, sum(counts))
    wrong = 0
    for item, count, made in zip(inputs, extents, memory, strict=True):
        want = oracle(call.program, call.over(item | scalars), softmax=on.softmax, extents={axis.name: count})
        wrong += sum(compared(call.stores, {n: array(t) for n, t in made.items()}, want.tensors).values())
    return wrong


# --- other backends -------------------------------------------------------------------------------


def others(on: Target) -> tuple[Backend, ...]:
    """Return the backends for a target beside the one whose source `check_source` runs."""
    return tuple(by for by in registered() if on.name in by.targets and not by.complete)


def check_simulated(call: Call, on: Target, by: Backend, oracle: Oracle = run) -> Verdict:
    """Run the source of a backend's kernels in its simulator and compare with the oracle's bits."""
    why = "nothing runs its source on a CPU" if by.simulate is None else by.unsimulated(on.name)
    if why is not None:
        return verdict(Law.SIMULATED, None, note=f"{by.name} on {on.name} was not run: {why}")
    from rlk.runtime.reference import divisible
    from rlk.testing.generated import run_generated

    given = call.shared
    try:
        program, signature = bound(call, on)
        whole = divisible(program, signature, call.extents)
        got = run_generated(call.placed, given, on=on, extents=call.extents, backend=by.name, divisible=whole)
    except UnsupportedError as error:
        where = f"{by.name} on {on.name} was not run, {call.label} at {named_extents(call.extents)}"
        return verdict(Law.SIMULATED, None, note=f"{where}: {one_line(error)}")
    dots = dotmodel.native(on.name)
    want = oracle(call.program, call.whole, softmax=on.softmax, dots=dots, extents=call.extents)
    found = compared(call.stores, got.tensors, want.tensors)
    wrong = sum(found.values()) + (bool(got.errors[0]) != bool(want.errors))
    return verdict(Law.SIMULATED, not wrong, 1, wrong, _first_wrong(found, by.name))


def lowerings(
    case: Case, on: Target, every: bool = True
) -> Iterator[tuple[str, str, Callable[[], Verdict]]]:
    """Yield, for forward and gradient of a case and each backend of a target, the attempt to lower it.

    every: at each class of rows that a call can have, too.
    """
    from rlk.runtime.reference import placed, prepared, reference_extents

    op = case.op
    traced = {"forward": op.trace_for_kernels(case.variant)}
    wanted, given = differentiable(op, case.variant), cotangents(op, case.variant)
    if op.gradient is not None and wanted and given:
        traced["gradient"] = op.gradient.trace(gradient_variant(case.variant, wanted, given))

    def ready(program: Program, rows: Mapping[str, int]) -> Prepared:
        plain = placed(op, program, rows)
        return prepared(plain, reference_extents(op, plain, rows), on)

    for what, program in traced.items():
        # raises anew for each backend: it is the attempt that fails
        at = cache(partial(ready, program, {}))
        for by in registered():
            if on.name in by.targets:
                # where another backend runs what one refuses, its other classes are of no interest
                others = partial(_by_class, program, ready) if every and by.complete else tuple
                yield what, by.name, partial(check_lowers, at, by, others)


def _by_class(
    traced: Program, ready: Callable[[Program, Mapping[str, int]], Prepared]
) -> Iterator[tuple[str, Callable[[], Prepared]]]:
    """Yield each class of rows of each dynamic axis, and what prepares it; other extents are the reference's.
    """
    for axis in dict.fromkeys(a for k in canonical(traced).kernels for d in k.params for a in d.type.axes):
        if axis.dynamic and axis.extent is None and axis.whole == axis:
            for n in ROW_CLASSES:
                yield f"{axis} = {n}", partial(ready, traced, {axis.name: n})


def check_lowers(
    ready: Callable[[], Prepared],
    by: Backend,
    others: Callable[[], Iterable[tuple[str, Callable[[], Prepared]]]] = tuple,
) -> Verdict:
    """Lower what `prepared` returns; a refusal fails where no other backend can run the program.

    others: the same for calls of other sizes, each named. One of a program and schedules seen before is not
    lowered again.
    """
    from rlk.runtime.reference import by_backend

    count, place, seen = 0, "", set()
    try:
        for where, made in chain((("", ready),), others()):
            place = f"at {where}: " if where else ""
            given = made()
            if (given.bound.program, given.bound.chosen) not in seen:
                seen.add((given.bound.program, given.bound.chosen))
                emitted, _, _ = by_backend(given, by)
                count = count or len(emitted.kernels)
    except UnsupportedError as error:
        return verdict(Law.LOWERS, False if by.complete else None, note=f"{place}{one_line(error)}")
    return verdict(Law.LOWERS, True, count)


def one_line(error: RlkError) -> str:
    """Return an error's first finding, with its place and what to write instead, on one line."""
    first = error.diagnostics[0]
    place = f"{first.loc}: " if first.loc != NOWHERE else ""
    return f"{place}{first.message}; {'; '.join(first.fix)}"


def _sized_by_outputs(call: Call) -> Values:
    """Return memory for the outputs that have an axis which no input has: it says how long that axis is."""
    known = {a.name for d in inputs_of(call.program).values() for a in d.type.axes}
    made: Values = {}
    for d in call.stores:
        if not {a.name for a in d.type.axes} <= known:
            shape = tuple(call.extents[a.name] for a in d.type.axes)
            made[d.name] = unwritten(shape, arithmetic.storage(d.type.dtype))
    return made


def schedules(call: Call, on: Target) -> list[tuple[Schedule, ...]]:
    """Return the heuristics' schedules of a call's kernels, and those with smaller and with larger tiles."""
    program, signature = bound(call, on)
    first = _chosen(program, signature, call, on)
    pairs = [(s, parallel(k, call)) for s, k in zip(first, program.kernels, strict=True)]
    smaller, larger = tuple(_smaller(*p) for p in pairs), tuple(_larger(*p) for p in pairs)
    others = (s for s in (smaller, larger) if s != first and _fits(program, s, on, signature))
    return list(dict.fromkeys((first, *others)))


def _chosen(program: Program, signature: Signature, call: Call, on: Target) -> tuple[Schedule, ...]:
    return tuple(choose(k, on, signature, call.extents) for k in program.kernels)


def _fits(program: Program, schedules: tuple[Schedule, ...], on: Target, signature: Signature) -> bool:
    """Return whether a lowering takes these schedules: not every tile suits every kernel."""
    from rlk.lower.triton import lower

    try:
        lower(program, schedules, on, signature)
    except (ScheduleError, UnsupportedError):
        return False
    return True


def _smaller(schedule: Schedule, lengths: Mapping[str, int]) -> Schedule:
    """Return the schedule with tiles so small that several programs share each axis."""
    some = {a: 1 << max(0, (lengths[a] // 2).bit_length() - 1) for a, _ in schedule.tiles}
    return replace(schedule, tiles=tuple((a, max(1, min(n // 2, some[a]))) for a, n in schedule.tiles))


def _larger(schedule: Schedule, lengths: Mapping[str, int]) -> Schedule:
    """Return the schedule with twice as many indices of the outermost parallel axis in a program."""
    return next((schedule.with_tile(a, 2 * schedule.tile(a)) for a in lengths), schedule)


def bound(call: Call, on: Target) -> tuple[Program, Signature]:
    """Return the program with static extents and the target's models, and its signature."""
    axes = {a for k in call.placed.kernels for d in k.params for a in d.type.axes}
    static = {a.name: call.extents[a.name] for a in axes if not a.dynamic}
    return launched(call.placed, static, on.softmax, call.extents), Signature(tuple(sorted(static.items())))


def check_compiles(call: Call, on: Target, compiler: Compiler | None) -> Verdict:
    """Compile the source of the heuristics' schedules for a target; no device is needed."""
    if compiler is None or not has_triton():
        return verdict(Law.COMPILES, None, note="no compiler is installed")
    from rlk.lower.triton import lower

    program, signature = bound(call, on)
    emitted = lower(program, _chosen(program, signature, call, on), on, signature)
    with TemporaryDirectory(prefix="rlk-check-") as folder:
        compiler(emitted, on.name, Path(folder))
    return verdict(Law.COMPILES, True, len(emitted.kernels))


# --- machine code ---------------------------------------------------------------------------------


def check_machine(call: Call, on: Target, compiler: Compiler | None, orders: Sequence[int] = ()) -> Verdict:
    """Execute a CDNA target's machine code, its waves interleaved at random; compare with the oracle.

    Hardware approximations are perturbed: no bit may depend on them. A race in LDS is a fault in any order.
    orders: further schedules of the waves, in which nothing is perturbed.
    Kernels must have no spills, no scratch, LDS within limits, and MFMA where their source has a dot. Where
    no rule of a target's sums is known, factors are whole numbers, whose sums every rule has. A call with
    other sums is compared by the rule of STAND_IN: wrong if something differs, otherwise untried.
    """
    if compiler is None or not has_triton():
        return verdict(Law.MACHINE, None, note="no compiler is installed")
    from rlk.testing.simulators.cdna import Fault, FaultKind

    if on.name in dotmodel.NATIVE or not _contracts(call.program):
        return _executed(call, on, compiler, orders)
    try:
        found = _executed(_whole(call), on, compiler, orders)
        return replace(found, ran=f"{found.ran}, factors of 16 bits were whole numbers")
    except Fault as fault:
        if fault.kind is not FaultKind.UNPUBLISHED:
            raise
    found = _executed(call, on, compiler, orders, STAND_IN)
    note = f"the sums of {on.name}'s matrix units are published nowhere; by {STAND_IN}'s, nothing differs"
    return replace(found, ok=None, note=note, ran=f"not tried: {note}; {found.ran}") if found.ok else found


def _executed(
    call: Call, on: Target, compiler: Compiler, orders: Sequence[int], sums: str | None = None
) -> Verdict:
    """Return how what the machine code stores differs from the oracle, products summed as `sums` does."""
    from rlk.testing.generated import run_generated
    from rlk.testing.machine import Emulated, compiled, described

    dots = dotmodel.native(sums or on.name)
    want = run(call.program, call.whole, softmax=on.softmax, dots=dots, extents=call.extents)
    wrong, notes, ran = 0, [], ""
    random = max(INTERLEAVED, len(orders))
    for order, perturb in (*((order, None) for order in orders), (random, random)):
        device = Emulated(on.name, order, perturb, compiler, sums=sums)
        given = call.shared
        got = run_generated(call.placed, given, on=on, device=device, extents=call.extents)
        found = compared(call.stores, got.tensors, want.tensors)
        wrong += sum(found.values()) + (bool(got.errors[0]) != bool(want.errors))
        notes += [note] if (note := _first_wrong(found, f"waves in order {order}")) else []
        if not ran:
            notes += [w for code in compiled(got.emitted, on.name, compiler) for w in code.wrong(on.name)]
            ran = described(device.executions)
    return replace(
        verdict(Law.MACHINE, not notes and not wrong, len(orders) + 1, wrong, "\n".join(notes)), ran=ran
    )


def _contracts(program: Program) -> bool:
    """Return whether a program has a contraction."""
    return any(isinstance(let.node, Dot) for kernel in program.kernels for let in walk(kernel.body))


def _whole(call: Call) -> Call:
    """Return a call whose inputs of 16 bits are small whole numbers."""
    rng, made = np.random.default_rng(3), dict(call.inputs)
    for name, d in inputs_of(call.program).items():
        if d.type.dtype in (DType.BF16, DType.F16):
            x = rng.integers(-3, 4, np.shape(made[name])).astype(np.float32)
            made[name] = arithmetic.encode(x, d.type.dtype)
    return replace(call, inputs=made)
