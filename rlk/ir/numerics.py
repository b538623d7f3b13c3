"""What may be promised of an output's bits (its tier), and the name of a program's numerics (its id)."""

from __future__ import annotations

from enum import Enum

from rlk.digest import digest
from rlk.ir.nodes import Block, Load, Loop, Math, MathModel, Program, Role, Store, Value, operands
from rlk.ir.text import print_program


class Tier(Enum):
    """How much is known of an output's bits.

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

    An output is exact when each transcendental function that it depends on, through workspaces too, has a
    model validated there; every other node is correctly rounded or ordered by construction.
    """
    tainted: set[str] = set()
    for kernel in program.kernels:
        _taint(kernel.body, validated(target), set(), tainted)
    outputs = {d.name for k in program.kernels for d in k.params if d.role is Role.OUT}
    return {name: Tier.PINNED if name in tainted else Tier.EXACT for name in sorted(outputs)}


def _taint(block: Block, known: frozenset[MathModel], values: set[Value], tensors: set[str]) -> None:
    """Add to `values` and `tensors` what depends on a function without a validated model."""
    for let in block.lets:
        match let.node:
            case Math(model=model) if model not in known:
                values.add(let.value)
            case Load(param=param) if param in tensors:
                values.add(let.value)
            case Loop(body=body, init=init):
                values.update(a for a, v in zip(body.args[1:], init, strict=True) if v in values)
                before = len(values)
                _taint(body, known, values, tensors)
                if len(values) > before or values.intersection(body.results):
                    # a carried value may depend on any other of its loop: one more round reaches all
                    values.update(body.args[1:])
                    _taint(body, known, values, tensors)
                if values.intersection(body.results):
                    values.add(let.value)
            case _:
                pass
        if values.intersection(operands(let.node)):
            match let.node:
                case Store(param=param):
                    tensors.add(param)
                case _:
                    values.add(let.value)


def numerics_id(programs: tuple[Program, ...], target: str, toolchain: str | None = None) -> str:
    """Return the id of canonical programs with their math models on a target: 16 hex digits.

    Equal ids are interchangeable. toolchain (backend and versions) enters only when an output is pinned; the
    target only through the models, unless one of them is the target's own.
    """
    pinned = any(t is Tier.PINNED for p in programs for t in tier(p, target).values())
    portable = all(_models(k.body) <= {MathModel.PORTABLE} for p in programs for k in p.kernels)
    content = {
        "programs": [print_program(p) for p in programs],
        "target": None if portable and not pinned else target,
        "toolchain": toolchain if pinned else None,
    }
    return digest(content)[:16]


def _models(block: Block) -> set[MathModel]:
    found: set[MathModel] = set()
    for let in block.lets:
        match let.node:
            case Loop(body=body):
                found |= _models(body)
            case Math(model=model):
                found.add(model)
            case _:
                pass
    return found
