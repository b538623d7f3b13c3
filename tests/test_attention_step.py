"""Laws of the function of an attention step: what its lines read and do not define are its parameters."""

from __future__ import annotations

import pytest

from rlk.lower.common.lines import Line
from rlk.lower.cute.attention.step import MASKED, step_function

BODY = (
    Line("kv = kv_step * 64"),
    Line("inside = kv < S"),
    Line("s = [mul(qk[c], Float32(2.0)) for c in range(4)]"),
    Line(f"m_new = cutlass.max(m[0], s[0]) if {MASKED} else m[0]"),
    Line("m[0] = m_new"),
)


def arguments(*extents: str) -> tuple[str, ...]:
    return step_function("f", "kv_step", "A step.", BODY, {"mul"}, extents).arguments


def test_names_that_are_read_before_they_are_written_are_parameters() -> None:
    assert arguments() == ("kv_step", "qk", "m", f"{MASKED}: cutlass.Constexpr")


def test_parameters_come_in_the_order_of_their_groups_and_scalars_last() -> None:
    """The groups may name more than a step reads; the index stays first, and switches last."""
    made = step_function(
        "f", "kv_step", "A step.", BODY, {"mul"}, (), ("kv_step", "m", "state", "qk")
    ).arguments
    assert made == ("kv_step", "m", "qk", f"{MASKED}: cutlass.Constexpr")
    assert made != arguments()


@pytest.mark.parametrize("extent", ["S", "T"])
def test_a_dynamic_extent_is_a_parameter_where_it_is_read(extent: str) -> None:
    """Its name begins with a capital letter, as those of types and constants do, which are not."""
    assert (extent in arguments("S", "T")) == (extent == "S")
    assert "Float32" not in arguments("S", "T")
