"""Axes whose extents a spec declares: numbers, and extents that follow from other axes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import rlk
from rlk.errors import Code, LaunchError, SpecError
from rlk.interp.run import run
from rlk.ir.dims import completed
from rlk.ir.numerics import numerics_id
from rlk.ir.text import parse_program, print_program
from rlk.lang import Axis, L, Outputs, Tensor, Tree, f32, i32, op, u8
from rlk.passes.pipeline import canonical
from rlk.runtime.binding.invocation import interface
from rlk.runtime.binding.selection import invoke
from rlk.runtime.kernels.trace_cache import read_interface, write_interface
from rlk.runtime.registry import unregister
from rlk.target.facts import target
from rlk.testing.check import Law, check
from rlk.testing.examples import Example

T = Axis("T", dynamic=True)
P = Axis("P")
N = Axis("N", extent=P * 2)
G = Axis("G", extent=-(-P * 2 // 8))
K = Axis("K", extent=4)
H = Axis("H", extent=T // 2)


@op()
def unpacked(packed: Tensor[u8, T, P], scale: Tensor[f32, T, G], mix: Tensor[f32, K]) -> Outputs:
    """Two numbers of 4 bits in a byte, low one first; a scale for each 8 of a row, and the sum of mix."""
    n = L.pos(N)
    byte = packed.at(T, n // 2, inside=True).to(i32)
    number = L.where(n % 2 == 0, byte & 15, byte >> 4)
    scales = scale.at(T, n // 8, inside=True)
    return L.out(y=number.to(f32) * scales + L.sum(mix.whole(), over=K, tree=Tree.halving))


@op()
def pairs(x: Tensor[f32, T]) -> Outputs:
    """The sums of neighbours: half as many, a number of the call."""
    at = L.pos(H) * 2
    return L.out(sums=x.at(at, inside=True) + x.at(at + 1, inside=True))


def inputs(columns: int = 10) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    packed = torch.randint(0, 256, (3, columns), dtype=torch.uint8, generator=generator)
    return packed, torch.randn(3, -(-columns // 4), generator=generator), torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_an_output_has_an_axis_that_no_input_has() -> None:
    packed, scale, mix = inputs()
    numbers = torch.stack([packed & 15, packed >> 4], dim=-1).reshape(3, 20).float()
    made = unpacked(packed, scale, mix)
    assert torch.equal(made, numbers * scale.repeat_interleave(8, dim=1)[:, :20] + 10.0)
    assert not torch.equal(
        made, numbers * scale.roll(1, 1).repeat_interleave(8, dim=1)[:, :20] + 10.0
    )  # the control
    both = torch.stack([packed, packed])  # leading dims
    assert torch.equal(unpacked(both, torch.stack([scale, scale]), mix)[1], made)


def test_the_extent_of_an_axis_may_follow_from_a_dynamic_one() -> None:
    assert H.dynamic and not N.dynamic
    x = torch.arange(8.0)
    assert pairs(x).tolist() == [1.0, 5.0, 9.0, 13.0]
    found = interface(invoke(pairs, {"x": x}, {}, {}, None))
    assert found.dynamic == {"T", "H"}
    with pytest.raises(LaunchError, match=r"T = 7 is not a multiple of 2, and H has the extent T//2"):
        pairs(torch.arange(7.0))


def test_a_call_with_another_extent_is_refused_by_name() -> None:
    packed, scale, mix = inputs()
    wrong = {
        "mix has K = 5, expected 4": (packed, scale, torch.ones(5)),
        "scale has G = 2, expected 3, which is -(-P*2//8) where P = 10": (packed, scale[:, :2].clone(), mix),
    }
    for message, given in wrong.items():
        with pytest.raises(LaunchError, match=re.escape(message)):
            unpacked(*given)
    program = canonical(pairs.trace(pairs.default_variant()))
    with pytest.raises(LaunchError, match="not a multiple"):
        run(program, {"x": np.ones(7, np.float32)})
    assert len(run(program, {"x": np.ones(6, np.float32)})["sums"]) == 3


@pytest.mark.parametrize(
    ("code", "make"),
    [
        (Code.AXIS_EXTENT, lambda: Axis("K", extent=0)),
        (Code.AXIS_EXTENT, lambda: Axis("K", extent=True)),
        (Code.AXIS_EXTENT, lambda: Axis("K", extent=4, dynamic=True)),
        (Code.AXIS_EXTENT, lambda: Axis("K", extent=-P // 2)),
        (Code.AXIS_EXTENT, lambda: Axis("P", extent=P // 2)),
        (Code.EXTENT_OF, lambda: P * 1.5),
        (Code.EXTENT_OF, lambda: P // 4 * 2),
        *((Code.EXTENT_OF, make) for make in (
            lambda: P + 1, lambda: 8 - P, lambda: P // 4 + 1, lambda: P / 4, lambda: P * T, lambda: P // T,
        )),
        (Code.EXTENT_OF, lambda: Axis("V", chunk=2).lanes // 2),
    ],
)
def test_what_is_no_extent_is_refused_where_it_is_written(code: Code, make: object) -> None:
    with pytest.raises(SpecError) as caught:
        make()  # type: ignore[operator]
    assert caught.value.code is code and "test_declared_extents.py" in str(caught.value)


@pytest.mark.parametrize(("axes", "said"), [
    ((Axis("G", extent=P * 2), Axis("G", extent=P * 3)), "another axis of this name has P*2"),
    ((Axis("U", extent=Axis("ZZ") * 2),), "no tensor of taken has the axis ZZ"),
])  # fmt: skip
def test_axes_of_one_name_and_of_unknown_ones_are_refused(axes: tuple[Axis, ...], said: str) -> None:
    @op()
    def taken(x: Tensor[f32, T, P]) -> Outputs:
        return L.out(**{f"y{i}": x.at(T, L.pos(axis) // 6) for i, axis in enumerate(axes)})

    with pytest.raises(SpecError, match=re.escape(said)) as caught:
        taken(torch.ones(2, 4))
    assert caught.value.code is Code.AXIS_EXTENT


def test_outputs_without_rows_have_their_declared_extents() -> None:
    """Beside one that has elements."""

    @op()
    def spread(x: Tensor[f32, T, P]) -> Outputs:
        return L.out(y=x.at(T, L.pos(N) // 2), n=L.pos(P))

    made = spread(torch.ones(0, 4))
    assert made.y.shape == (0, 8) and made.n.tolist() == [0, 1, 2, 3]


def test_extents_are_printed_and_count_in_the_numerics_id() -> None:
    traced = unpacked.trace(unpacked.default_variant())
    assert "axis N extent=P*2\n" in (text := print_program(traced)) and "extent=-(-P*2//8)" in text
    assert parse_program(text) == traced
    dynamic = pairs.trace(pairs.default_variant())
    assert parse_program(print_program(dynamic)) == dynamic
    program = canonical(dynamic)
    thirds = print_program(program).replace("T//2", "T//3")
    assert numerics_id((parse_program(thirds),), "cpu") != numerics_id((program,), "cpu")
    renamed = print_program(program).replace("axis H", "axis Z").replace("H]", "Z]").replace("=H", "=Z")
    assert numerics_id((parse_program(renamed),), "cpu") == numerics_id((program,), "cpu")


def test_what_is_kept_of_an_interface_has_the_declared_axes() -> None:
    packed, scale, mix = inputs()
    found = interface(invoke(unpacked, {"packed": packed, "scale": scale, "mix": mix}, {}, {}, None))
    assert {a.name for a in found.sized} == {"N", "G", "K"}
    assert read_interface(write_interface("unpacked", found)) == found


def test_extents_follow_through_others_and_unknown_ones_stay_open() -> None:
    Q = Axis("Q", extent=N * 3)
    assert completed("f", (Q, N), {"P": 5}) == {"P": 5, "N": 10, "Q": 30}
    assert completed("f", (Q, N, K), {}) == {"K": 4}


def test_every_law_holds_for_declared_extents() -> None:
    laws = [Law.TEXT, Law.TILES, Law.ROWS, Law.SOURCE, Law.SIMULATED, Law.LOWERS]
    for each in (unpacked, pairs):
        verdicts = list(check(each, Example(), [target("sm_90a")], laws))
        assert [v for v in verdicts if v.ok is False] == []
        assert {v.law for v in verdicts if v.ok} >= {Law.TEXT, Law.TILES, Law.SOURCE, Law.LOWERS}


def test_torch_compile_sees_the_derived_shape() -> None:
    registered = rlk.register(unpacked, namespace="declared_extents")
    try:
        packed, scale, mix = inputs()
        compiled = torch.compile(lambda *given: registered(*given) + 1.0, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(packed, scale, mix), unpacked(packed, scale, mix) + 1.0)
    finally:
        unregister(unpacked.qualified)
