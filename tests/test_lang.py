"""Every mistake that a spec can make is found at its line, with what to write; its neighbour passes."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import stream_mistakes
import value_mistakes
from spec_pairs import PAIRS, Spec, T, V, of_row, of_stream, trace

from rlk.errors import NOWHERE, Code, Loc, SpecError
from rlk.ir.nodes import Load, Role
from rlk.ir.types import DType
from rlk.lang import Axis, L, Outputs, Tile
from rlk.lang.op import Variant

NAMES = [f"{code.name}: {wrong.__qualname__.split('.')[0]}" for code, wrong, _ in PAIRS]


def marked(spec: Spec) -> int:
    lines, first = inspect.getsourcelines(spec)
    (at,) = (i for i, line in enumerate(lines) if line.rstrip().endswith("# <-"))
    return first + at


@pytest.mark.parametrize("code, wrong, right", PAIRS, ids=NAMES)
def test_a_mistake_is_found_where_it_is(code: Code, wrong: Spec, right: Spec) -> None:
    with pytest.raises(SpecError) as caught:
        wrong()
    assert caught.value.code is code, caught.value
    (found,) = caught.value.diagnostics
    assert found.loc == Loc(wrong.__code__.co_filename, marked(wrong))
    text = str(caught.value)
    assert text.startswith(f"tests/{Path(wrong.__code__.co_filename).name}:{marked(wrong)}: ")
    assert found.loc.source() in text and text.endswith(f"[{code.name}]")
    assert code.fixes and all(fix.format(**dict(found.fields)) in text for fix in code.fixes)
    right()


def test_every_code_of_authors_has_a_mistake() -> None:
    codes = list(Code)
    of_authors = codes[: codes.index(Code.MERGE_NEEDS_STATES)]
    assert {code for code, _, _ in PAIRS} == set(of_authors)


def test_an_error_ends_its_trace() -> None:
    """A failed trace must not leave its state to the next."""
    for _, wrong, _ in PAIRS:
        with pytest.raises(SpecError):
            wrong()
        with pytest.raises(SpecError) as caught:
            L.exp(1.0)
        assert caught.value.code is Code.TRACE_OUTSIDE


def test_a_trace_is_made_once_and_is_repeatable() -> None:
    first, second = value_mistakes.square(), value_mistakes.square()
    assert trace(first) is trace(first)
    assert trace(first) == trace(second) and trace(first) is not trace(second)


def test_places_are_the_authors_lines() -> None:
    program = stream_mistakes.SumOrder.right()
    places = {let.loc for kernel in program.kernels for let in kernel.body.lets} - {NOWHERE}
    assert {loc.file for loc in places} == {stream_mistakes.__file__}


def test_a_variant_selects_dtypes_and_statics() -> None:
    spec = value_mistakes.square()
    traced = {d: spec.trace(Variant.of({"F": d})) for d in (DType.BF16, DType.F32)}
    for dtype, program in traced.items():
        (x,) = (d for d in program.kernels[0].params if d.name == "x")
        assert x.type.dtype is dtype and x.role is Role.IN
    assert traced[DType.BF16] != traced[DType.F32]


def test_tiles_show_their_types() -> None:
    shown: list[str] = []

    def body(x: Tile) -> Outputs:
        shown.append(repr(x * 1.0))
        return L.out(y=x)

    of_row(body)
    assert shown[0].endswith(": f32[T, N]>")


@pytest.mark.parametrize(
    ("inside", "compared"), [(False, True), (True, False), (V, False), ((T, V), False), (T, True), ((), True)]
)
def test_an_index_that_is_said_to_be_inside_is_not_compared(
    inside: bool | Axis | tuple[Axis, ...], compared: bool
) -> None:
    """The oracle refuses it where it is not: `test_an_unguarded_index_out_of_range_is_refused`."""
    program = of_stream(lambda x, k: L.out(y=x.at(T, k, inside=inside)))
    (load,) = (let.node for let in program.kernels[0].body.lets if getattr(let.node, "param", "") == "x")
    assert isinstance(load, Load) and (load.guard is not None) is compared


@pytest.mark.parametrize("inside", [1, "V", [V]])
def test_what_is_said_to_be_inside_is_a_dim(inside: object) -> None:
    with pytest.raises(SpecError, match="names no dims") as caught:
        of_stream(lambda x, k: L.out(y=x.at(T, k, inside=inside)))
    assert caught.value.diagnostics[0].code is Code.INSIDE_WHAT


@pytest.mark.parametrize(
    ("fold", "takes"),
    [
        (L.total, "lanes kept open after"),
        (L.softmax_sum, "lanes kept open after entropy"),
        (L.power_sum, "lanes kept open after entropy"),
        (L.argmax, "kept"),
    ],
)
def test_a_fold_has_a_signature_and_takes_nothing_beside_it(fold: type, takes: str) -> None:
    found = inspect.signature(fold).parameters
    assert list(found) == takes.split()
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in found.values())
    with pytest.raises(TypeError):
        fold(("payload",))
