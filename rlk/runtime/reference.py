"""The shapes and variants at which kernels are checked in, and their source there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from rlk.backends.interface import Bound
from rlk.backends.registry import complete, of_name, registered
from rlk.errors import UnsupportedError
from rlk.ir.nodes import Program
from rlk.lang.op import Op, Variant
from rlk.lang.variants import cotangents, differentiable, gradient_variant
from rlk.lower.common.abi import host_parameters
from rlk.lower.common.emitted import Emitted, From, Signature
from rlk.lower.common.memory import memory_shape
from rlk.passes.pipeline import canonical, launched, specialize
from rlk.runtime.binding.arguments import VECTOR
from rlk.runtime.binding.candidates import lowered_by
from rlk.runtime.binding.invocation import is_own
from rlk.runtime.registry import numerics, operators
from rlk.schedule.heuristics import apart, choose
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target, target

TARGETS = ("sm_90a", "gfx942")
UNSHOWN = frozenset(
    "sample penalize preference_loss kto_loss value_loss nll_loss entropy_bonus scatter_rewards".split()
    + ["take_rows", "take_whole", "linear_logp_backward", "linear_logp_join", "ratio_kl", "reported"]
    + [
        "policy_loss_of_sequences",
        "group_advantage",
        "rope_grad",
        "rope_partial",
        "rope_partial_grad",
        "embedding",
        "gae",
    ]
    + ["token_paths", "token_baseline"]
    + ["matmul_leaf2", "matmul_leaf4", "matmul_backward"]
    + ["matmul_leaf2_grad", "matmul_leaf4_grad", "matmul_leaf8_grad"]
    + [
        "triton/matmul_leaf8",
        "sequence_logp",
        "policy_covariance",
        "policy_covariance_of_sequences",
        "jsd_loss",
    ]
)
"""Programs whose kernels, of all backends or of one, are not checked in: too long to be read, or nothing that
others do not show."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The call of a checked-in kernel: extents (of a model with 4096 hidden units), options, statics."""

    extents: tuple[tuple[str, int], ...] = ()
    present: tuple[str, ...] = ()
    statics: tuple[tuple[str, object], ...] = ()


ROWS = 8192
_EXTENTS = (("H", 32), ("E", 128), ("C", 64), ("P", 40960), ("D", 4096), ("B", 64), ("U", 151937), ("R", 8))

_HEADS = (("H", 8), ("G", 4), ("E", 128), ("W", 128))

REFERENCES: dict[str, Reference] = {
    "logp": Reference((("V", 128256),), ("inv_temperature",), (("needs", ("logp", "entropy")),)),
    "linear_logp": Reference((("V", 128256),), ("inv_temperature",), (("needs", ("entropy",)),)),
    "matmul": Reference((("N", 14336),), ("residual",)),
    "rms_norm": Reference((("N", 4096),), ("residual",)),
    "swiglu": Reference((("N", 12288),)),
    "geglu": Reference((("N", 12288),)),
    "rope_partial": Reference((("C", 32),)),
    "embedding": Reference((("V", 151936),)),
    "group_advantage": Reference((("E", 2),)),
    "preference_loss": Reference((), ("ref_chosen", "ref_rejected")),
    "kto_loss": Reference((), ("other_logp", "other_ref_logp")),
    "value_loss": Reference((), ("old_values", "clip")),
    "scatter_rewards": Reference((("E", 2),)),
    "gae": Reference((("E", 2),), ("bootstrap",)),
    "token_paths": Reference((("E", 2),)),
    "token_baseline": Reference((("E", 2),)),
    "sample": Reference(
        (("T", 256), ("W", 151936), ("U", 151936)), ("inv_temperature", "top_k", "top_p", "min_p")
    ),
    "penalize": Reference((("V", 151936),), ("prompt",)),
    "varlen_attention": Reference((*_HEADS, ("B", 8))),
    "prefix_attention": Reference((*_HEADS, ("B", 64), ("N", 8))),
    "paged_attention": Reference((*_HEADS, ("B", 64), ("T", 64), ("P", 8192), ("O", 64), ("M", 128))),
}


def reference_of(op: Op) -> Reference:
    """Return the call at which an operator is shown: rlk's own table's, or that of its registration."""
    if is_own(op):
        return REFERENCES.get(op.name, Reference())
    record = op.record
    return Reference(tuple(record.extents.items()), record.present, tuple(record.statics.items()))


def reference_variant(op: Op) -> Variant:
    """Return the variant of an operator that stands for it: that of its reference, else the plain one."""
    found = reference_of(op)
    plain = op.default_variant()
    return Variant.of(dict(plain.dtypes), set(found.present), {**dict(plain.statics), **dict(found.statics)})


def reference_extents(op: Op, program: Program) -> dict[str, int]:
    """Return the extents of a program's axes at an operator's reference shapes."""
    given = dict(reference_of(op).extents)
    axes = {axis.name: axis for k in program.kernels for d in k.params for axis in d.type.axes}
    known = {**dict(_EXTENTS), **given}
    return op.bounded({name: known.get(name, ROWS if axis.dynamic else 4096) for name, axis in axes.items()})


def placed(op: Op, traced: Program) -> Program:
    """Return the canonical program with the chunks side by side that a call of these sizes would place so."""
    plain = canonical(traced)
    return canonical(traced, apart=apart(plain, reference_extents(op, plain)))


def reference_gradient(op: Op, variant: Variant) -> Program | None:
    """Return the gradient's canonical program with every cotangent, for every input; None without one."""
    wanted, given = differentiable(op, variant), cotangents(op, variant)
    if op.gradient is None or not wanted or not given:
        return None
    return canonical(op.gradient.trace(gradient_variant(variant, wanted, given)))


def emit(
    program: Program, extents: dict[str, int], on: Target, backend: str | None = None
) -> tuple[Emitted, tuple[Schedule, ...], Program]:
    """Return a canonical program's source at these extents, its schedules, and what was lowered.

    backend: by default the complete one. Raises UnsupportedError where a backend has no form for it.
    """
    by = complete() if backend is None else of_name(backend)
    axes = {axis.whole for k in program.kernels for d in k.params for axis in d.type.axes}
    static = {axis.name: extents[axis.name] for axis in axes if not axis.dynamic}
    bound = launched(program, static, on.softmax, extents)
    signature = Signature(tuple(sorted(static.items())))
    chosen = tuple(choose(kernel, on, signature, extents) for kernel in bound.kernels)
    name, _ = numerics(program, on)
    signature = replace(signature, divisible=divisible(bound, signature, extents))
    given = Bound(bound, chosen, lambda: specialize(program, static, on.softmax), on, extents)
    options = None if by.checked_in_options is None else by.checked_in_options()
    bound, chosen, emitted = lowered_by(by, given, signature, name, options=options)
    return emitted, chosen, bound


def divisible(program: Program, signature: Signature, extents: dict[str, int]) -> frozenset[str]:
    """Return the tensors and strides that compilers may take for multiples of 16 where all is contiguous."""
    decls = {d.name: d for k in program.kernels for d in k.params}
    call = host_parameters(program, signature)
    found = {argument.name for argument in call if argument.kind is From.TENSOR}
    for argument in call:
        if argument.kind is From.STRIDE:
            stride = math.prod(memory_shape(decls[argument.source], extents)[argument.dim + 1 :])
            found |= {argument.name} if stride % VECTOR == 0 else set()
    return frozenset(found)


def reference_sources(ops: Iterable[Op] | None = None) -> Iterator[tuple[str, str]]:
    """Yield the path below generated/ and the source of every checked-in kernel, or of all those of `ops`."""
    given = None if ops is None else tuple(ops)
    for on in map(target, TARGETS):
        for op in operators().values() if given is None else given:
            if given is None and op.name in UNSHOWN:
                continue
            variant = reference_variant(op)
            programs = [placed(op, op.trace(variant)), reference_gradient(op, variant)]
            for program in programs:
                if program is not None and (given is not None or program.name not in UNSHOWN):
                    left_out = UNSHOWN if given is None else frozenset()
                    yield from _sources(program, reference_extents(op, program), on, left_out)


def _sources(
    program: Program, extents: dict[str, int], on: Target, left_out: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """Yield a program's source by each backend that has a form for it."""
    for by in registered():
        if on.name not in by.checked_in or f"{by.name}/{program.name}" in left_out:
            continue
        try:
            emitted, _, _ = emit(program, extents, on, by.name)
        except UnsupportedError:
            if by.complete:
                raise
            continue
        yield f"{on.folder}/{by.name}/{program.name}.py", emitted.source
