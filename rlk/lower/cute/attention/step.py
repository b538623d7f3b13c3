"""The step of the fused attention kernel as one function, with compile-time switches for its forms."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from rlk.ir.nodes import Load, Loop, Select, Value, operands
from rlk.lower.common.lines import Function, Line
from rlk.lower.common.peel import conjuncts

MASKED, MORE = "masked", "more"
SWITCHES = (MASKED, MORE)
PARAMETERS = {f"{name}: cutlass.Constexpr": name for name in SWITCHES}
"""Names of compile-time parameters by how a function declares them."""
K_STATE, V_STATE = "k_consumer_state", "v_consumer_state"  # S of the next step is issued ahead of this V
K_NEXT = "k_next_state"  # of K of the step after the next
STATE = "consumer_state"  # of all streamed factors of a step, where none is issued ahead
PRODUCER = "producer_state"  # of all streamed factors
TILE_PRODUCER, TILE_CONSUMER = "tile_producer_state", "tile_consumer_state"  # of resident rows and work tiles
STATES = (K_STATE, V_STATE, STATE, "rescales")
"""What a step changes beside memory: pipeline states, and how often accumulators in memory were rescaled."""
IMPORTED = frozenset("cuda cutlass cute pipeline utils sm90 cpasync warpgroup".split())
"""Modules that generated code imports; types and constants begin with a capital letter."""


@dataclass(frozen=True, slots=True)
class Masks:
    """The masks of a loop's steps, without which its full steps have the same bits.

    selects: those by the predicate that an element exists. rare: values that only their conditions need.
    """

    selects: frozenset[Value]
    rare: frozenset[Value]


def masks_of(loop: Loop) -> Masks:
    """Return the masks of a loop's steps."""
    if loop.exists is None:
        return Masks(frozenset(), frozenset())
    true = conjuncts(loop, loop.exists)
    lets = loop.body.lets
    selects = {let.value for let in lets if isinstance(let.node, Select) and let.node.cond in true}
    needed = set(loop.body.results)
    for let in reversed(lets):
        if let.value in selects and isinstance(let.node, Select):
            needed |= {let.node.a, let.node.b}
        elif let.value in needed:
            # whoever copies a factor knows which of its rows exist
            needed |= set(operands(let.node)) - {let.node.guard if isinstance(let.node, Load) else None}
    return Masks(frozenset(selects), frozenset(let.value for let in lets) - needed - selects)


def step_function(
    name: str,
    step: str,
    about: str,
    body: Iterable[Line],
    helpers: Collection[str],
    extents: Collection[str],
    groups: Iterable[str] = (),
) -> Function:
    """Return the function of a step; its parameters are the names that its lines read and do not define.

    step: name of the step's index, the first parameter. helpers: functions of the module. extents: names of
    dynamic extents, the only arguments of a kernel that begin with a capital letter. groups: names that come
    next, in this order; scalars follow in the order of their first use, then compile-time switches.
    """
    lines = tuple(body)
    read = _read_before_written([line.text for line in lines])
    known = {x for x in read if x[0].isupper() and x not in extents} | IMPORTED
    used = [x for x in read if x not in helpers and x not in known]
    given = [*(x for x in dict.fromkeys(groups) if x in used)]
    given += [x for x in used if x not in given]
    arguments = [step, *(x for x in given if x not in (step, *SWITCHES))]
    switches = [declared for declared, x in PARAMETERS.items() if x in given]
    result = Line(f"return {', '.join(x for x in STATES if x in given)}")
    return Function(name, (*arguments, *switches), about, (*lines, result))


def call(function: Function, step: str, *, states: bool = True, **switches: bool) -> str:
    """Return the statement that runs a step at an index; states: whether what it changes is read again."""
    _, *rest = (PARAMETERS.get(x, x) for x in function.arguments)
    given = [step, *(f"{x}={switches[x]}" if x in SWITCHES else x for x in rest)]
    call = f"{function.name}({', '.join(given)})"
    return f"{', '.join(x for x in STATES if x in rest)} = {call}" if states else call


def _read_before_written(lines: list[str]) -> list[str]:
    """Return the names that statements read before any of them writes them, in order."""
    names = list(_names(ast.parse("\n".join(lines)), frozenset()))
    # a statement is on one line here: its right-hand side is read before its left-hand side is written
    names.sort(key=lambda x: (x.lineno, isinstance(x.ctx, ast.Store), x.col_offset))
    written: set[str] = set()
    found: dict[str, None] = {}
    for x in names:
        if isinstance(x.ctx, ast.Store):
            written.add(x.id)
        elif x.id not in written:
            found[x.id] = None
    return [x for x in found if not hasattr(builtins, x)]


def _names(node: ast.AST, inside: frozenset[str]) -> Iterator[ast.Name]:
    """Yield the names in a tree but those that a comprehension has for itself."""
    match node:
        case ast.Name(id=name):
            if name not in inside:
                yield node
        case ast.ListComp(generators=generators) | ast.GeneratorExp(generators=generators):
            targets = (x for each in generators for x in ast.walk(each.target))
            inside = inside | {x.id for x in targets if isinstance(x, ast.Name)}
    for child in ast.iter_child_nodes(node):
        yield from _names(child, inside)
