"""Which code a call runs: decided once per shape, and refused when no backend has the numerics asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from rlk.cache import CacheKey
from rlk.digest import digest
from rlk.env import Env
from rlk.errors import Code, LaunchError, UnsupportedError
from rlk.ir.dims import Axis
from rlk.ir.nodes import Decl, MathModel, Program, Role
from rlk.ir.numerics import Tier, home, numerics_id, tier
from rlk.ir.text import print_program
from rlk.lang.op import Op, Variant, Vjp, declared
from rlk.lang.types import TensorType
from rlk.lower.common.emitted import CallArg, Emitted, From, Signature
from rlk.passes.pipeline import canonical, specialize
from rlk.runtime.arguments import (
    TORCH_DTYPES,
    VECTOR,
    Geometry,
    axis_extent,
    contiguous,
    measure,
    output_shape,
)
from rlk.runtime.build import obtain, triton_key
from rlk.runtime.loader import Interpreter, interpret, load
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target, target

Spec = Op | Vjp
Tensors = dict[str, torch.Tensor]
Scalars = dict[str, float | int]
Run = Callable[[Tensors, Scalars], Tensors]
MOST_SHAPES = 4096  # bound calls that are kept; the oldest are dropped together


_numbers: dict[tuple[int, Variant, MathModel | None], int] = {}


@dataclass(frozen=True, slots=True)
class Invocation:
    """A spec, its variant, and who defines exp2 in softmax folds (None: the device decides)."""

    spec: Spec
    variant: Variant
    math: MathModel | None = None
    key: int = field(init=False, compare=False, default=-1)

    def __post_init__(self) -> None:
        # a small integer stands for the invocation in the keys of bound calls: hashing it is free
        object.__setattr__(
            self, "key", _numbers.setdefault((id(self.spec), self.variant, self.math), len(_numbers))
        )

    def __hash__(self) -> int:
        return self.key


@dataclass(frozen=True, slots=True)
class Decision:
    """What a call on a device runs: shown by `rlk.explain`."""

    backend: str
    target: str
    math: MathModel
    numerics_id: str
    tiers: tuple[tuple[str, Tier], ...]
    schedules: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"backend      {self.backend} on {self.target}", f"numerics id  {self.numerics_id}"]
        lines.append(f"exp2 model   {self.math.value} (softmax folds)")
        lines += [f"tier         {name}: {found.value}" for name, found in self.tiers]
        lines += [f"schedule     {text}" for text in self.schedules]
        return "\n".join(lines)


@cache
def traced(invocation: Invocation, apart: frozenset[str] = frozenset()) -> Program:
    """Return the canonical program of an invocation; `apart` as `canonical` takes it."""
    return canonical(invocation.spec.trace(invocation.variant), apart=apart)


@cache
def shape_givers(invocation: Invocation) -> tuple[Decl, ...]:
    """Return the declarations of the operator's own inputs, read by this invocation's kernels or not."""
    spec = invocation.spec
    op = spec.op if isinstance(spec, Vjp) else spec
    found = (declared(f, invocation.variant) for f in op.formals)
    return tuple(d for d in found if d is not None and d.role is Role.IN)


def row_axis(spec: Spec) -> Axis | None:
    """Return the axis that may stand for several leading dims: the first of the operator's first tensor."""
    op = spec.op if isinstance(spec, Vjp) else spec
    first = next(f.type.axes for f in op.formals if isinstance(f.type, TensorType))
    return first[0] if first and first[0].dynamic else None


@cache
def inputs_of(invocation: Invocation) -> tuple[Decl, ...]:
    """Return the tensors and scalars that the kernels of an invocation read, each once."""
    found = {
        d.name: d for k in traced(invocation).kernels for d in k.params if d.role in (Role.IN, Role.SCALAR)
    }
    return tuple(found.values())


@cache
def outputs_of(invocation: Invocation) -> tuple[Decl, ...]:
    """Return the outputs of an invocation, in the order in which the spec writes them."""
    order = [
        d.name for d in invocation.spec.trace(invocation.variant).kernels[0].params if d.role is Role.OUT
    ]
    found = {d.name: d for k in traced(invocation).kernels for d in k.params if d.role is Role.OUT}
    return tuple(found[name] for name in order)


def _workspaces(program: Program) -> tuple[Decl, ...]:
    return tuple({d.name: d for k in program.kernels for d in k.params if d.role is Role.WORK}.values())


@cache
def target_of(device: torch.device) -> Target | None:
    """Return the target that a device is, or None for the CPU; raise where rlk has no backend at all."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        raise UnsupportedError(
            Code.NO_BACKEND, op="rlk", device=device, why="unknown device type", alternatives="cuda, cpu"
        )
    if torch.version.hip:
        return target(torch.cuda.get_device_properties(device).gcnArchName.split(":")[0])
    major, minor = torch.cuda.get_device_capability(device)
    return target(f"sm_{major}{minor}a" if major >= 9 else f"sm_{major}{minor}")


def model_of(invocation: Invocation, device: torch.device) -> MathModel:
    """Return the model of exp2 in softmax folds: the caller's, else the target's, else portable."""
    on = target_of(device)
    chosen = invocation.math or (MathModel.PORTABLE if on is None else on.softmax)
    if on is not None and chosen is not MathModel.PORTABLE and chosen is not on.softmax:
        raise UnsupportedError(
            Code.UNSUPPORTED,
            what=f"math={chosen.value!r}",
            backend="every backend",
            target=on.name,
            alternatives=f"math={on.softmax.value!r}, math='portable'",
        )
    return chosen


def bound_program(invocation: Invocation, model: MathModel, extents: Mapping[str, int]) -> Program:
    """Return the program with static extents and the math model bound."""
    return specialize(traced(invocation), extents, model)


def decide(invocation: Invocation, device: torch.device) -> Decision:
    """Return what a call would run, without its sizes."""
    model, on = model_of(invocation, device), target_of(device)
    name = "cpu" if on is None else on.name
    identity, tiers = judged(invocation, model, name)
    return Decision(_backend(on), name, model, identity, tiers)


@cache
def judged(invocation: Invocation, model: MathModel, target: str) -> tuple[str, tuple[tuple[str, Tier], ...]]:
    """Return the numerics id of an invocation on a target, and the tier of each of its outputs."""
    program = bound_program(invocation, model, {})
    whose = home(program, target)
    return numerics_id((program,), whose), tuple(sorted(tier(program, whose).items()))


def _backend(on: Target | None) -> str:
    forced = Env.current().backend
    if on is None:
        return "triton-interpreter" if dispatch.interpreter is not None else "oracle"
    if forced not in (None, "triton"):
        raise UnsupportedError(
            Code.UNSUPPORTED, what="RLK_BACKEND", backend=forced, target=on.name, alternatives="triton"
        )
    return "triton"


# --- calls --------------------------------------------------------------------------------------------------


class Dispatcher:
    """Runs invocations; remembers, for every exact shape seen, the bound call.

    interpreter: when set, calls on CPU tensors run generated Triton source in it instead of the oracle.
    """

    def __init__(self) -> None:
        self.bound: dict[object, Run] = {}
        self.interpreter: Interpreter | None = None
        self.forgetting: list[Callable[[], None]] = [self.bound.clear]

    def forgets(self, forget: Callable[[], None]) -> None:
        """Call `forget` whenever bound calls become stale."""
        self.forgetting.append(forget)

    def interpret_with(self, interpreter: Interpreter | None) -> None:
        """Run calls on CPU tensors in an interpreter of Triton source from now on; None: in the oracle."""
        self.interpreter = interpreter
        for forget in self.forgetting:
            forget()

    def find(self, invocation: Invocation, tensors: Tensors) -> Run:
        """Return the bound call for tensors of these shapes, strides, devices and alignments.

        Raises LaunchError, before anything is launched, when an argument does not fit.
        """
        key = (
            invocation.key,
            *[(t.dtype, t.shape, t.stride(), t.device, t.data_ptr() % VECTOR) for t in tensors.values()],
        )
        run = self.bound.get(key)
        if run is None:
            if len(self.bound) >= MOST_SHAPES:
                self.bound.clear()
            run = self.bound[key] = bind(invocation, tensors)
        return run

    def __call__(self, invocation: Invocation, tensors: Tensors, scalars: Scalars) -> Tensors:
        """Run an invocation on the tensors' device and return its outputs by name."""
        return self.find(invocation, tensors)(tensors, scalars)


def geometry_of(invocation: Invocation, tensors: Tensors) -> Geometry:
    """Return the sizes of a call; raise LaunchError for an argument that is missing or does not fit."""
    name = invocation.spec.name
    decls = inputs_of(invocation)
    missing = [d.name for d in decls if d.role is Role.IN and d.name not in tensors]
    if missing:
        raise LaunchError(Code.ARG_MISSING, op=name, name=", ".join(missing), why="")
    read = {d.name for d in decls}
    # a gradient's kernels may not read the input whose gradient they write; its sizes count all the same
    sizes = (*decls, *(d for d in shape_givers(invocation) if d.name in tensors and d.name not in read))
    given = {d.name: tensors[d.name] for d in sizes if d.role is Role.IN}
    return measure(name, row_axis(invocation.spec), sizes, given)


def bind(invocation: Invocation, tensors: Tensors) -> Run:
    """Return the call for tensors of exactly these shapes, strides and alignments."""
    geometry = geometry_of(invocation, tensors)
    used = {d.name: tensors[d.name] for d in inputs_of(invocation) if d.role is Role.IN}
    device = next(iter(used.values())).device
    on = target_of(device)
    model = model_of(invocation, device)
    if any(size == 0 for size in geometry.extents.values()):
        return _empty(invocation, geometry, device)
    match _backend(on):
        case "oracle":
            from rlk.runtime.oracle import bind_oracle

            return bind_oracle(invocation, model, geometry)
        case "triton-interpreter":
            return bind_triton(invocation, model, geometry, used, target("sm_90a"), None, None)
        case _:
            assert on is not None
            return bind_triton(invocation, model, geometry, used, on, device, None)


def _empty(invocation: Invocation, geometry: Geometry, device: torch.device) -> Run:
    """Return the call for inputs without elements: zeros, nothing launched."""
    shapes = [(d.name, output_shape(d, geometry), TORCH_DTYPES[d.type.dtype]) for d in outputs_of(invocation)]

    def run(tensors: Tensors, scalars: Scalars) -> Tensors:
        return {n: torch.zeros(shape, dtype=dtype, device=device) for n, shape, dtype in shapes}

    return run


# --- Triton -------------------------------------------------------------------------------------------------


def lowered(
    invocation: Invocation,
    model: MathModel,
    geometry: Geometry,
    tensors: Tensors,
    on: Target,
    schedules: tuple[Schedule, ...] | None = None,
) -> tuple[Program, Signature, tuple[Schedule, ...], Emitted]:
    """Return the bound program, its signature, the schedules chosen, and its source."""
    from rlk.lower.triton import lower
    from rlk.schedule.heuristics import apart, choose

    static = static_extents(invocation, geometry)
    side_by_side = apart(traced(invocation), geometry.extents)
    program = specialize(traced(invocation, side_by_side), static, model)
    if schedules is not None and len(schedules) != len(program.kernels):
        program = specialize(traced(invocation), static, model)  # schedules of the serial form
    plain = Signature(tuple(sorted(static.items())), geometry.split)
    chosen = schedules or tuple(choose(k, on, plain, geometry.extents) for k in program.kernels)
    # what the host passes does not depend on what is divisible, so a first text tells what to look at
    identity, _ = judged(invocation, model, on.name)
    first = lower(program, chosen, on, plain, numerics_id=identity)
    work = _workspaces(program)
    values = _values(first.call, (*outputs_of(invocation), *work), geometry)
    made = {d.name for d in (*outputs_of(invocation), *work)}
    divisible = frozenset(name for name, value in values if _is_divisible(value, tensors, made))
    signature = Signature(plain.extents, geometry.split, divisible)
    return program, signature, chosen, lower(program, chosen, on, signature, numerics_id=identity)


def _is_divisible(value: int | str | None, tensors: Tensors, made: set[str]) -> bool:
    """Return whether a size is a multiple of 16, or a tensor aligned so; a scalar's value is not known.

    made: outputs and workspaces, which torch aligns.
    """
    match value:
        case None:
            return False
        case int():
            return value % VECTOR == 0
        case str():
            return value in made or (value in tensors and tensors[value].data_ptr() % VECTOR == 0)


def static_extents(invocation: Invocation, geometry: Geometry) -> dict[str, int]:
    """Return the extents that enter cache keys: those of the axes that are not dynamic."""
    dynamic = {
        a.name for k in traced(invocation).kernels for d in k.params for a in d.type.axes if a.whole.dynamic
    }
    return {name: size for name, size in geometry.extents.items() if name not in dynamic}


@cache
def _error_words(device: torch.device) -> torch.Tensor:
    return torch.zeros(2, dtype=torch.int32, device=device)


def bind_triton(
    invocation: Invocation,
    model: MathModel,
    geometry: Geometry,
    tensors: Tensors,
    on: Target,
    device: torch.device | None,
    schedules: tuple[Schedule, ...] | None,
) -> Run:
    """Return the call of the Triton lowering; without a device its kernels run in the interpreter."""
    program, _, chosen, emitted = lowered(invocation, model, geometry, tensors, on, schedules)
    if device is None:
        assert dispatch.interpreter is not None
        host = interpret(emitted, dispatch.interpreter)
        where = torch.device("cpu")
    else:
        host = _compiled(entry_key(program, chosen, emitted, on), emitted, on, device)
        where = device
    return _caller(invocation, program, emitted, geometry, tensors, where, host)


def entry_key(program: Program, schedules: tuple[Schedule, ...], emitted: Emitted, on: Target) -> CacheKey:
    """Return the cache key of a lowered program: the text says everything that the compiler sees."""
    ir = digest([print_program(program), emitted.source, repr(emitted.kernels)])
    return triton_key(ir, [str(s) for s in schedules], on.name)


def _compiled(key: CacheKey, emitted: Emitted, on: Target, device: torch.device) -> Callable[..., Any]:
    index = device.index if device.index is not None else torch.cuda.current_device()
    for _ in range(2):  # an entry may be evicted between being found and being read
        folder = obtain(key, lambda: emitted, label=emitted.file)
        try:
            host, _ = load(folder, "hip" if on.vendor == "amd" else "cuda", index)
        except FileNotFoundError:
            continue
        return host
    raise LaunchError(Code.INTERNAL, what=f"the cache entry of {emitted.file} keeps vanishing")


def _caller(
    invocation: Invocation,
    program: Program,
    emitted: Emitted,
    geometry: Geometry,
    tensors: Tensors,
    device: torch.device,
    host: Callable[..., Any],
) -> Run:
    """Return the bound call: sizes and strides are constants of it, tensors and scalars its arguments."""
    outs = [(d.name, output_shape(d, geometry), TORCH_DTYPES[d.type.dtype]) for d in outputs_of(invocation)]
    work = [
        (d.name, tuple(axis_extent(a, geometry.extents) for a in d.type.axes), TORCH_DTYPES[d.type.dtype])
        for d in _workspaces(program)
    ]
    values = [
        value
        for _, value in _values(emitted.call, (*outputs_of(invocation), *_workspaces(program)), geometry)
    ]
    check = Env.current().check
    run = _compose(outs, work, values, tensors, host, device)

    def checked(given: Tensors, scalars: Scalars) -> Tensors:
        made = run(given, scalars)
        raise_data_errors(invocation.spec.name, emitted.checks, device)
        return made

    return checked if check else run


Made = list[tuple[str, tuple[int, ...], torch.dtype]]


def _compose(
    outs: Made,
    work: Made,
    values: list[int | str | None],
    tensors: Tensors,
    host: Callable[..., Any],
    device: torch.device,
) -> Run:
    """Return the call as a function written for it: no loop over its arguments costs anything at run time."""
    scope: dict[str, Any] = {
        "empty": torch.empty,
        "empty_like": torch.empty_like,
        "host": host,
        "errors": _error_words(device),
        "device": device,
    }
    made: dict[str, str] = {}
    lines = ["def run(given, scalars):"]
    for i, (name, shape, dtype) in enumerate((*outs, *work)):
        scope |= {f"shape{i}": shape, f"dtype{i}": dtype}
        made[name] = f"made{i}"
        twin = next((n for n, t in tensors.items() if _is_twin(t, shape, dtype)), None)
        # torch.empty takes 0.5 us longer, for its keywords
        like = f"empty_like(given[{twin!r}])" if twin else f"empty(shape{i}, dtype=dtype{i}, device=device)"
        lines.append(f"    made{i} = {like}")
    arguments = [_argument(value, made, tensors) for value in values]
    lines.append(f"    host({', '.join(arguments)})")
    lines.append("    return {" + ", ".join(f"{name!r}: {made[name]}" for name, _, _ in outs) + "}")
    exec(compile("\n".join(lines), f"<call {host}>", "exec"), scope)
    run: Run = scope["run"]
    return run


def _is_twin(tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    return tuple(tensor.shape) == shape and tensor.dtype is dtype and tensor.is_contiguous()


def _argument(value: int | str | None, made: Mapping[str, str], tensors: Tensors) -> str:
    match value:
        case None:
            return "errors"
        case int():
            return repr(value)
        case str() if value in made:
            return made[value]
        case str():
            return f"{'given' if value in tensors else 'scalars'}[{value!r}]"


def _values(
    call: tuple[CallArg, ...], written: tuple[Decl, ...], geometry: Geometry
) -> list[tuple[str, int | str | None]]:
    """Return, for each parameter of the host function, its number, the name of its tensor or scalar, or None.

    None stands for the error words.
    """
    made = {d.name: contiguous(d, geometry) for d in written}
    strides = geometry.strides | made
    found: list[tuple[str, int | str | None]] = []
    for arg in call:
        match arg.kind:
            case From.TENSOR | From.SCALAR:
                found.append((arg.name, arg.source))
            case From.EXTENT:
                found.append((arg.name, geometry.extents[arg.source]))
            case From.STRIDE:
                found.append((arg.name, strides[arg.source][arg.dim]))
            case From.INNER_STRIDE:
                found.append((arg.name, strides[arg.source][0]))
            case From.OUTER_STRIDE:
                whole = strides[arg.source][0] * geometry.inner_extent
                found.append((arg.name, geometry.outer.get(arg.source, whole)))
            case From.INNER_EXTENT:
                found.append((arg.name, geometry.inner_extent))
            case From.ERRORS:
                found.append((arg.name, None))
    return found


def raise_data_errors(op: str, checks: tuple[str, ...], device: torch.device) -> None:
    """Synchronise, read the device's error words, reset them, and raise what they say."""
    words = _error_words(device)
    code, row = (int(v) for v in words.cpu())
    if code:
        words.zero_()
        what = checks[code - 1] if code <= len(checks) else f"data error {code}"
        raise LaunchError(Code.BAD_ROW, op=op, row=row - 1, what=what)


dispatch = Dispatcher()
