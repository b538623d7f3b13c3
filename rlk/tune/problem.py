"""A shape as a call of its operator: its kernels, and the candidates of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from rlk.backends.registry import of_name
from rlk.errors import Code, ScheduleError, UnsupportedError
from rlk.ir.nodes import Kernel
from rlk.lang.op import Variant
from rlk.runtime.binding.arguments import Geometry
from rlk.runtime.binding.candidates import bound_for, formed
from rlk.runtime.binding.invocation import Invocation, geometry_of, label_of, operator_of
from rlk.runtime.binding.selection import invoke
from rlk.runtime.binding.shape_buckets import sizes_of
from rlk.runtime.call.dispatch import lowered
from rlk.schedule import cute_tiles, heuristics
from rlk.schedule.cute_table import Warpgroups
from rlk.schedule.entries import ROW_CLASSES, Facts, Range, row_class
from rlk.schedule.schedule import Schedule
from rlk.schedule.triton_table import Tiling
from rlk.schedule.user_table import Entry, Table, using
from rlk.specs.linear_logp import linear_logp
from rlk.specs.matmul import matmul, matmul_leaf8
from rlk.target.facts import Target
from rlk.tune.candidates import Use, candidates, tiling
from rlk.tune.registered import call_of, copying, traffic
from rlk.tune.row_candidates import row_candidates
from rlk.tune.shapes import ONE, SUBJECTS, Shape, axes_of

SHIPPED = "shipped"  # what a call runs today
FORGOTTEN = 160 * 2**20  # bytes read between two uses of a weight: three times the largest L2 that we know
ROWS_AT_ONCE = 1024  # of scores in memory
BARE = "cublas"  # the products alone; of other operators a copy of their bytes
MOST_COPIES = 64  # of the tensors of a small call

Schedules = tuple[Schedule, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """A shape as a call: tensors by name, in as many copies as forget each other, and what bounds its time.

    bare: that of contractions with a list of their own is their products by cuBLAS, that of others a copy of
    as many bytes as the call reads and writes.
    """

    shape: Shape
    invocation: Invocation
    tensors: list[dict[str, Tensor]]
    scalars: dict[str, Any]
    bare: Callable[[int], object]

    @property
    def bytes(self) -> int:
        """Return the bytes of a call's tensors."""
        return sum(t.nbytes for t in self.tensors[0].values())


def problem(shape: Shape, device: str) -> Problem:
    """Return a shape's call, its numbers drawn from N(0, 1) where the device has memory."""
    if shape.op not in SUBJECTS:
        return _registered(shape, device)
    rows, columns, length = shape.contraction
    weight = _drawn((columns, length), 3.0 / math.sqrt(length), device)
    copies = 1 if device == "meta" else 2 + FORGOTTEN // weight.nbytes
    weights = [weight, *(weight.clone() for _ in range(copies - 1))]
    x = _drawn((rows, length), 1.0, device)
    match shape.op:
        case "matmul" | "matmul_leaf8":
            spec = matmul if shape.op == "matmul" else matmul_leaf8
            tensors = [{"x": x, "w": w} for w in weights]
            found = invoke(spec, tensors[0], {}, {"keep_f32": False}, None)
            return Problem(shape, found, tensors, {}, _product(x, weights))
        case "linear_logp":
            given = {"hidden": x, "ids": _ids(rows, columns, device)}
            tensors = [{**given, "weight": w} for w in weights]
            found = invoke(linear_logp, tensors[0], {"ignore_index": -100}, {"needs": ()}, None)
            return Problem(shape, found, tensors, {"ignore_index": -100}, _product(x, weights))
        case "linear_logp_grad":
            return _gradient(shape, x, weights, device)
        case other:
            raise ValueError(f"{other} has no problem")


def _registered(shape: Shape, device: str) -> Problem:
    """Return a call of any registered operator, or of its gradient."""
    call = call_of(shape, device)
    moved = traffic(call)
    copies = 1 if device == "meta" else min(MOST_COPIES, 2 + FORGOTTEN // max(1, moved))
    others = [{name: t.clone() for name, t in call.tensors.items()} for _ in range(copies - 1)]
    bare = copying(moved, copies, device)
    return Problem(shape, call.invocation, [call.tensors, *others], call.scalars, bare)


def _gradient(shape: Shape, x: Tensor, weights: list[Tensor], device: str) -> Problem:
    """The gradient of log-probs to both factors, all rows active."""
    given = {
        "hidden": x,
        "ids": _ids(len(x), len(weights[0]), device),
        "lse": _lse(x, weights[0]),
        "order": torch.arange(len(x), device=device),
        "d_logp": _drawn((len(x),), 1.0, device, torch.float32),
    }
    tensors = [{**given, "weight": w} for w in weights]
    forward = {name: tensors[0][name] for name in ("hidden", "weight", "ids")}
    variant = invoke(linear_logp, forward, {"ignore_index": -100}, {"needs": ()}, None).variant
    assert linear_logp.gradient is not None
    wanted = frozenset({"hidden", "weight"})
    asked = Variant(variant.dtypes, variant.present | {"d_logp"}, variant.statics, wanted)
    found = Invocation(linear_logp.gradient, asked)
    return Problem(shape, found, tensors, {"ignore_index": -100}, _three_products(x, weights))


def _drawn(size: tuple[int, ...], std: float, device: str, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    made = torch.empty(size, dtype=dtype, device=device)
    return made if device == "meta" else made.normal_(0.0, std)


def _ids(rows: int, columns: int, device: str) -> Tensor:
    made = torch.empty(rows, dtype=torch.int64, device=device)
    return made if device == "meta" else made.random_(columns)


def _lse(x: Tensor, weight: Tensor) -> Tensor:
    """Return log sum exp of the scores: with another one the gradient would hold infinities."""
    if x.device.type == "meta":
        return torch.empty(len(x), device="meta")
    return torch.cat([torch.logsumexp((some @ weight.t()).float(), -1) for some in x.split(ROWS_AT_ONCE)])


def _product(x: Tensor, weights: list[Tensor]) -> Callable[[int], object]:
    """Return the bare product, written as bf16 into memory that stays."""
    out = torch.empty(len(x), len(weights[0]), dtype=x.dtype, device=x.device)
    return lambda i: torch.matmul(x, weights[i].t(), out=out)


def _three_products(x: Tensor, weights: list[Tensor]) -> Callable[[int], object]:
    """Return the products of a gradient: the scores again, those of hidden states, those of the weight."""
    z = torch.empty(len(x), len(weights[0]), dtype=x.dtype, device=x.device)
    d_x, d_weight = torch.empty_like(x), torch.empty_like(weights[0])

    def run(i: int) -> object:
        torch.matmul(x, weights[i].t(), out=z)
        torch.matmul(z, weights[i], out=d_x)
        return torch.matmul(z.t(), x, out=d_weight)

    return run


# --- what is tried ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """The schedules of a shape's kernels by name, the shipped ones first.

    sites: what tables may ask about the kernels that contract, by the name of the first of a kind. same: the
    candidates that are what is shipped. entries: of each candidate, what a user's table would have. kernels:
    the names that these entries have, in the order of launches.
    """

    sites: dict[str, Facts]
    schedules: dict[str, Schedules]
    same: tuple[str, ...]
    entries: dict[str, tuple[Entry, ...]] = field(default_factory=dict)
    kernels: tuple[str, ...] = ()


def named(site: str, text: str) -> str:
    """Return the name of a candidate: where, and what."""
    return f"{site}: {text}"


def backend_of(call: Problem, on: Target) -> str:
    """Return the backend that a call runs without a user's table."""
    with using(Table()):
        *_, emitted = lowered(
            call.invocation, on.softmax, geometry_of(call.invocation, call.tensors[0]), call.tensors[0], on
        )
    return emitted.backend


def plan(call: Problem, backend: str, on: Target) -> Plan:
    """Return what is tried for a shape; raise UnsupportedError where the backend has no form for it.

    What is shipped is what a call runs without a user's table.
    """
    geometry = geometry_of(call.invocation, call.tensors[0])
    with using(Table()):
        program, _, shipped, emitted = lowered(
            call.invocation, on.softmax, geometry, call.tensors[0], on, None, backend
        )
    if emitted.backend != backend:
        what, other = f"tuning {call.shape}", emitted.backend
        raise UnsupportedError(
            Code.UNSUPPORTED, what=what, backend=backend, target=on.name, alternatives=other
        )
    members, others = _members(program.kernels, on, geometry.extents)
    sites: dict[str, Facts] = {}
    schedules, same = {SHIPPED: shipped}, []
    for facts, places in members.items():
        site = program.kernels[places[0]].name
        sites[site] = facts
        computed = all(cute_tiles.in_registers(program.kernels[i], geometry.extents) for i in places)
        for text in candidates(facts, backend, computed):
            use, changed = tiling(text), list(shipped)
            if isinstance(use, Warpgroups) and not all(
                cute_tiles.fits(use, program.kernels[i]) for i in places
            ):
                continue
            for i in places:
                changed[i] = _scheduled(use, program.kernels[i], shipped[i], on, geometry.extents)
            if tuple(changed) == shipped:
                same.append(named(site, text))
            elif tuple(changed) not in schedules.values():
                schedules[named(site, text)] = tuple(changed)
    for i in others:
        if call.shape.op in SUBJECTS:
            break  # their other kernels take a small part of the time
        kernel = program.kernels[i]
        for text, made in row_candidates(kernel, shipped[i], geometry.extents).items():
            placed = (*shipped[:i], made, *shipped[i + 1 :])
            if _lowers(call, geometry, placed, backend, on):
                schedules[named(kernel.name, text)] = placed
    schedules |= _forms(call, geometry, len(program.kernels), backend, on)
    entries = _entries(call, program.kernels, schedules, backend, on, geometry.extents)
    return Plan(sites, schedules, tuple(same), entries, tuple(kernel.name for kernel in program.kernels))


def _entries(
    call: Problem, kernels: Sequence[Kernel], schedules: Mapping[str, Schedules], backend: str, on: Target,
    extents: Mapping[str, int],
) -> dict[str, tuple[Entry, ...]]:  # fmt: skip
    """Return the entries of a user's table by candidate: of kernels whose schedules are not the shipped."""
    when, label = conditions(call, extents), label_of(call.invocation.spec)
    dtypes = tuple(sorted((n, dtype.value) for n, dtype in call.invocation.variant.dtypes))
    one = call.shape.op.partition(ONE)[2]
    return {
        name: tuple(
            Entry(
                label, kernel.name, on.name, backend, when, values(made), "", name, dtypes, (one,) * bool(one)
            )
            for kernel, made, before in zip(kernels, chosen, schedules[SHIPPED], strict=True)
            if made != before
        )
        for name, chosen in schedules.items()
        if name != SHIPPED and len(chosen) == len(kernels)  # a table says nothing of forms
    }


def _members(
    kernels: tuple[Kernel, ...], on: Target, extents: Mapping[str, int]
) -> tuple[dict[Facts, list[int]], list[int]]:
    """Return the indices of kernels that contract, by their facts, and those of the others."""
    members: dict[Facts, list[int]] = {}
    others: list[int] = []
    for i, kernel in enumerate(kernels):
        facts = heuristics.facts_of(kernel, on, extents)
        if facts is not None:
            # kernels that differ in what follows the product alone are tried together
            members.setdefault(replace(facts, along=0), []).append(i)
        else:
            others.append(i)
    return members, others


def _forms(call: Problem, geometry: Geometry, kernels: int, backend: str, on: Target) -> dict[str, Schedules]:
    """Return the schedules of forms with other numbers of kernels, such as those that write factors first.

    Given schedules are for the first form of so many kernels (`Backend.program_of`): no later one is tried.
    """
    if call.shape.op in SUBJECTS:
        return {}
    sizes = sizes_of(call.invocation, geometry)
    what = call.invocation, on.softmax, sizes, on
    bound = bound_for(*what, *formed(*what))
    found: dict[str, Schedules] = {}
    seen = {kernels}
    for form in of_name(backend).candidates(bound):
        if len(form.program.kernels) in seen:
            continue
        seen.add(len(form.program.kernels))
        try:
            chosen = form.schedules()
        except (UnsupportedError, ScheduleError):
            continue
        if _lowers(call, geometry, chosen, backend, on):
            found[named("form", f"{len(chosen)} kernels")] = chosen
    return found


def _lowers(call: Problem, geometry: Geometry, schedules: Schedules, backend: str, on: Target) -> bool:
    """Return whether a backend itself writes a call under these schedules: no other one stands in."""
    given = (call.invocation, on.softmax, geometry, call.tensors[0], on, schedules, backend)
    try:
        return lowered(*given)[3].backend == backend
    except (UnsupportedError, ScheduleError):
        return False


def conditions(call: Problem, extents: Mapping[str, int]) -> tuple[tuple[str, Range], ...]:
    """Return the sizes of which an entry of a user's table is: static extents, classes of dynamic ones."""
    axes = axes_of(operator_of(call.invocation.spec))
    found = {}
    for name, size in sorted(extents.items()):
        if name in axes and axes[name].dynamic:
            rank = row_class(size)
            below = max((bound for bound in ROW_CLASSES if bound < rank), default=None)
            found[name] = Range(below, rank if rank in ROW_CLASSES else None)
        elif name in axes:
            found[name] = Range(size - 1, size)
    return tuple(found.items())


def values(schedule: Schedule) -> tuple[tuple[str, Any], ...]:
    """Return every field of a schedule: an entry that names all depends on no heuristic."""
    return tuple(sorted((f.name, getattr(schedule, f.name)) for f in fields(Schedule)))


def _scheduled(use: Use, kernel: Kernel, shipped: Schedule, on: Target, extents: dict[str, int]) -> Schedule:
    match use:
        case Tiling():
            return heuristics.scheduled(use, kernel, on, extents) or shipped
        case Warpgroups():
            return cute_tiles.scheduled(use, kernel, shipped, on, extents)
