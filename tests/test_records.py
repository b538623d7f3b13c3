"""Records of operators: rlk's own in one module, and the laws that compare an operator with its record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import rlk
from rlk.cli import main
from rlk.lang import Axis, L, Outputs, Scalar, Tensor, f32, op
from rlk.lang.record import Unshown
from rlk.runtime.reference import reference_sources, reference_variant
from rlk.runtime.registry import operators, unregister
from rlk.target.facts import target
from rlk.testing.check import Law, Verdict, check
from rlk.testing.examples import Example

T = Axis("T", dynamic=True)
N = Axis("N")
SM90 = target("sm_90a")


@op(saves=("x",), returns=("y",))
def squashed(x: Tensor[f32, T, N], slope: Scalar[f32]) -> Outputs:
    """y = x * sigmoid(slope * x)."""
    return L.out(y=x * L.sigmoid(slope * x))


def right(x: torch.Tensor, slope: float) -> torch.Tensor:
    return x * torch.sigmoid(slope * x)


def wrong(x: torch.Tensor, slope: float) -> torch.Tensor:
    """Differ from `right` by a millionth: less than f32 would show."""
    return x * torch.sigmoid(slope * x) * (1 + 1e-6)


def with_nan(x: torch.Tensor, slope: float) -> torch.Tensor:
    made = right(x, slope)
    made[0, 0] = torch.nan
    return made


def of_another_shape(x: torch.Tensor, slope: float) -> torch.Tensor:
    return right(x, slope).sum(1)


USAGE = """
x = torch.randn(3, 5)
y = rlk.ops.tried.squashed(x, slope=2.0)
"""
ZERO = ("a row of zeros", "zeros", "not f(0 * x, slope=1.0).any()")
REFUSED = ("x of f64", "raises", "f(x.double(), slope=1.0)")


@pytest.fixture
def registered(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Register `squashed` as the test asks, and remove it."""
    given = {"reference": right, "usage": USAGE, "edges": [ZERO, REFUSED]} | request.param
    rlk.register(squashed, namespace="tried", inputs=drawn, **given)
    yield given
    unregister("tried.squashed")


def drawn(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.normal(size=(6, 24)), "slope": 1.5}


def verdicts(law: Law) -> list[Verdict]:
    assert squashed.record.example is not None
    return list(check(squashed, squashed.record.example, [SM90], (law,)))


# --- rlk's own -------------------------------------------------------------------------------------------


def test_every_shipped_operator_has_a_record_of_its_own() -> None:
    records = [id(shipped.record) for shipped in operators().values()]
    assert len(set(records)) == len(records) == len(operators())
    named = {n for n, shipped in operators().items() if shipped.record != type(shipped.record)()}
    assert named | {"policy_loss"} == set(operators())


def test_a_record_names_parameters_and_axes_of_its_operator() -> None:
    for shipped in operators().values():
        record, formals = shipped.record, {f.name for f in shipped.formals}
        assert formals.issuperset(record.present) and formals.issuperset(record.statics)
        program = shipped.trace(reference_variant(shipped))
        axes = {axis.name for k in program.kernels for d in k.params for axis in d.type.axes}
        bounds = {name for name, _ in shipped.bounds}
        unknown = record.extents.keys() - axes - bounds
        assert not unknown, f"{shipped.name}: {unknown}"


def test_a_record_leaves_kernels_out_of_the_checked_in_ones() -> None:
    whole, one = Unshown("long"), Unshown("long", "gradient", "cute")
    assert whole.holds("forward", "triton") and whole.holds("gradient", "cute")
    assert one.holds("gradient", "cute")
    assert not one.holds("forward", "cute") and not one.holds("gradient", "triton")


def test_operators_that_are_named_are_shown_whole() -> None:
    rope = operators()["rope"]
    assert [each.program for each in rope.record.unshown] == ["gradient"]
    paths = [path for path, _ in reference_sources([rope])]
    assert any("rope_grad" in path for path in paths)


# --- float64 forms ---------------------------------------------------------------------------------------


def generated() -> list[str]:
    """Return the names of rlk's operators whose public functions are made from their specs."""
    specs = [spec for public in rlk.ops.OPERATORS.values() for spec in public.specs]
    return [spec.name for spec in specs if spec.record.reference is not None]


@pytest.mark.parametrize("name", generated())
def test_generated_functions_agree_with_their_float64_forms(name: str) -> None:
    shipped = operators()[name]
    found = list(check(shipped, shipped.record.example or Example(), [SM90], (Law.FLOAT64,)))
    assert found and all(v.ok and v.count for v in found), [v.note for v in found]


@pytest.mark.parametrize("registered", [{}], indirect=True)
def test_a_right_float64_form_passes(registered: dict[str, Any]) -> None:
    assert [v.ok for v in verdicts(Law.FLOAT64)] == [True]


@pytest.mark.parametrize(
    "registered", [{"reference": f} for f in (wrong, with_nan, of_another_shape)], indirect=True
)
def test_a_wrong_float64_form_fails(registered: dict[str, Any]) -> None:
    (found,) = verdicts(Law.FLOAT64)
    assert found.ok is False and "y: " in found.note
    assert found.worst < 1e-5 or registered["reference"] is not wrong


@pytest.mark.parametrize("registered", [{"reference": None}], indirect=True)
def test_without_a_float64_form_the_law_is_not_tried(registered: dict[str, Any]) -> None:
    (found,) = verdicts(Law.FLOAT64)
    assert found.ok is None and "float64" in found.note


# --- pages -----------------------------------------------------------------------------------------------

FAILING = {
    "an edge that is not so": ({"edges": [("zeros", "ones", "f(0 * x, slope=1.0).all()")]}, "is not so"),
    "an edge that does not raise": ({"edges": [("x", "raises", "f(x, slope=1.0)")]}, "does not raise"),
    "an edge that raises": ({"edges": [("f64", "zeros", "f(x.double(), slope=1.0)")]}, "raises LaunchError"),
    "an edge with a slip": ({"edges": [("f64", "raises", "f(xx, slope=1.0)")]}, "raises NameError"),
    "a raising example": ({"usage": "x = torch.randn(3, 5)\nf(x, steep=1.0)"}, "the example raises"),
    "an example that is no Python": ({"usage": "x ="}, "the example raises SyntaxError"),
}


@pytest.mark.parametrize("registered", [{}], indirect=True)
def test_the_page_of_a_registered_operator_is_a_line_of_rlk_check(
    registered: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "tried.squashed", "--law", "page", "--law", "float64"]) == 0
    said = capsys.readouterr().out
    assert Law.PAGE.value in said and "3 rows, 0 do not hold" in said
    assert Law.FLOAT64.value in said and "2 checks" in said


@pytest.mark.parametrize("registered", [given for given, _ in FAILING.values()], indirect=True, ids=FAILING)
def test_what_a_page_says_wrongly_fails(
    registered: dict[str, Any], capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    assert main(["check", "tried.squashed", "--law", "page"]) == 1
    said = capsys.readouterr().out
    assert FAILING[request.node.callspec.id][1] in said and "1 FAILED" in said


@pytest.mark.parametrize("registered", [{"usage": "", "edges": ()}], indirect=True)
def test_a_page_without_facts_is_not_tried(
    registered: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "tried.squashed", "--law", "page"]) == 0
    assert "neither usage= nor edges=" in capsys.readouterr().out
