"""The tier of an output (how far its bits are promised) and the numerics id of a program."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from rlk.digest import digest
from rlk.ir import dotmodel
from rlk.ir.computed import computed
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import (
    Block,
    Dot,
    Let,
    Load,
    Loop,
    Math,
    MathModel,
    Merge,
    Philox,
    Program,
    Result,
    Role,
    Store,
    Value,
    operands,
)


class Tier(Enum):
    """The strength of the promise about an output's bits.
    exact: the oracle predicts them. pinned: they repeat, and no batch or schedule changes them.
    """

    EXACT = "exact"
    PINNED = "pinned"


EXACT_MODELS: dict[str, frozenset[MathModel]] = {
    "sm_90a": frozenset({MathModel.PORTABLE, MathModel.SM90}),
}
"""The models validated on a target; everywhere else only the portable one is."""


def validated(target: str) -> frozenset[MathModel]:
    """Return the math models whose bits are known on a target."""
    return EXACT_MODELS.get(target, frozenset({MathModel.PORTABLE}))


def tier(program: Program, target: str) -> dict[str, Tier]:
    """Return the tier of every output of a specialised program on a target.

    An output is exact when each transcendental function and each contraction that it depends on, through
    workspaces too, has a model validated there; all else is correctly rounded or ordered by construction.
    """
    taint = _Taint(validated(target), dotmodel.validated(target))
    taint.program(program)
    outputs = {d.name for k in program.kernels for d in k.params if d.role is Role.OUT}
    return {name: Tier.PINNED if name in taint.tensors else Tier.EXACT for name in sorted(outputs)}


@dataclass(slots=True)
class _Taint:
    """Tensors of a program, or values of one kernel, that depend on a function without a validated model."""

    known: frozenset[MathModel]
    dots: frozenset[DotModel]
    tensors: set[str] = field(default_factory=set)
    values: set[Value] = field(default_factory=set)
    parts: dict[Value, frozenset[int]] = field(default_factory=dict)

    def program(self, program: Program) -> None:
        for kernel in program.kernels:
            self.values, self.parts = set(), {}
            self.block(kernel.body)

    def block(self, block: Block) -> None:
        for let in block.lets:
            self.let(let)

    def let(self, let: Let) -> None:
        tainted = bool(self.values.intersection(operands(let.node)))
        match let.node:
            case Math(model=model) if model not in self.known:
                self.values.add(let.value)
            case Dot(model=model) if model not in self.dots:
                self.values.add(let.value)
            case Load(param=param) if tainted or param in self.tensors:
                self.values.add(let.value)
            case Store(param=param) if tainted:
                self.tensors.add(param)
            case Merge(monoid=monoid, states=states, exp2=exp2):
                # every other component is rescaled by exp2 of a difference of maxima, the first component
                inexact = monoid.is_softmax and exp2 not in self.known
                first = states[0] in self.values
                self.parts[let.value] = frozenset(
                    i for i, s in enumerate(states) if first or s in self.values or (inexact and i > 0)
                )
            case Philox():
                self.parts[let.value] = frozenset(range(4)) if tainted else frozenset()
            case Loop() as loop:
                self.parts[let.value] = self.loop(loop)
            case Result(of=of, index=index):
                if index in self.parts[of]:
                    self.values.add(let.value)
            case _ if tainted:
                self.values.add(let.value)
            case _:
                pass

    def loop(self, loop: Loop) -> frozenset[int]:
        """Iterate a loop's body to a fixed point; return the indices of the carried values that depend."""
        step, *carried = loop.body.args
        if self.values.intersection((loop.start, loop.stop)):
            # all carried values depend on the number of iterations
            self.values.update(loop.body.args)
        self.values.update(a for a, v in zip(carried, loop.init, strict=True) if v in self.values)
        while True:
            self.block(loop.body)
            results = zip(carried, loop.body.results, strict=True)
            new = {arg for arg, result in results if result in self.values} - self.values
            if not new:
                return frozenset(i for i, arg in enumerate(carried) if arg in self.values)
            self.values |= new


def numerics_id(programs: tuple[Program, ...], target: str, toolchain: str | None = None) -> str:
    """Return the id of canonical programs with their math models on a target: 16 hex digits.

    Programs with equal ids are interchangeable. An id digests the computation (rlk.ir.computed) without
    names, comments or the source of rlk. toolchain (backend and versions) enters only if an output is pinned;
    the target only if an output is pinned or a model is not the same on every target.
    """
    pinned = any(t is Tier.PINNED for p in programs for t in tier(p, target).values())
    anywhere = {MathModel.PORTABLE, DotModel.FMA, DotModel.INTEGER}
    portable = all(_models(k.body) <= anywhere for p in programs for k in p.kernels)
    content = {
        "programs": [computed(p) for p in programs],
        "target": None if portable and not pinned else target,
        "toolchain": toolchain if pinned else None,
    }
    return digest(content)[:16]


def home(program: Program, target: str) -> str:
    """Return the target whose numerics a program has: on a CPU the oracle computes those of the hardware.

    A program with a model of sm_90 (its exp2, its dots) has sm_90's numerics on a CPU, id and tier included.
    """
    used = {model for k in program.kernels for model in _models(k.body)}
    return "sm_90a" if target == "cpu" and used & {MathModel.SM90, DotModel.CHAIN16} else target


def _models(block: Block) -> set[MathModel | DotModel]:
    found: set[MathModel | DotModel] = set()
    for let in block.lets:
        match let.node:
            case Loop(body=body):
                found |= _models(body)
            case Math(model=model) | Dot(model=model):
                found.add(model)
            case _:
                pass
    return found
