"""Contractions of i8 factors: exact sums of integers, the same in any order and on every target."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlk.interp.dot import dot
from rlk.ir.dotmodel import DotModel
from rlk.ir.numerics import numerics_id
from rlk.ir.types import DType
from rlk.lang import Axis, L, Outputs, Tensor, bf16, f32, i8, op
from rlk.passes.pipeline import canonical
from rlk.target.facts import target
from rlk.testing.check import Law, check
from rlk.testing.examples import Example

T = Axis("T", dynamic=True)
N = Axis("N")
K = Axis("K")


@op()
def w8a8(x: Tensor[i8, T, K], w: Tensor[i8, N, K], sx: Tensor[f32, T], sw: Tensor[f32, N]) -> Outputs:
    """A product of quantised rows and columns, and its i32 sums."""
    sums = L.dot(x, w, over=K)
    return L.out(y=(sums.to(f32) * sx * sw).to(bf16), sums=sums)


@op()
def quantised(x: Tensor[f32, T, K], w: Tensor[i8, K, N], scale: Tensor[f32, T]) -> Outputs:
    """Rows are rounded to i8 where they are read."""
    return L.out(sums=L.dot(L.round(L.clip(x * scale, -127.0, 127.0)).to(i8), w, over=K))


def drawn(rows: int = 5, columns: int = 7, depth: int = 300) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-128, 128, (n, depth), generator=g, dtype=torch.int8) for n in (rows, columns))
    return x, w, torch.rand(rows, generator=g), torch.rand(columns, generator=g)


def test_sums_are_those_of_integers() -> None:
    x, w, sx, sw = drawn()
    made = w8a8(x, w, sx, sw)
    want = (x.long() @ w.long().T).int()
    assert made.sums.dtype is torch.int32 and torch.equal(made.sums, want)
    assert torch.equal(made.y, (want.float() * sx[:, None] * sw).bfloat16())
    odd = torch.full((1, 2**11 + 1), 127, dtype=torch.int8)
    assert int(w8a8(odd, odd, sx[:1], sw[:1]).sums) == 127 * 127 * (2**11 + 1)
    assert float(odd.float() @ odd.float().T) != 127 * 127 * (2**11 + 1)  # the control: no f32 number


def test_sums_wrap_as_i32() -> None:
    low = np.full((1, 2**17 + 3), -128, np.int8)
    exact = 2**14 * (2**17 + 3)
    made = dot(low, low, DotModel.INTEGER, DType.I8)
    assert made.dtype == np.int32 and int(made[0, 0]) == (exact + 2**31) % 2**32 - 2**31 != exact


def test_rows_are_quantised_where_they_are_read() -> None:
    x, w, scale, _ = drawn()
    given = torch.randn(5, 300, generator=torch.Generator().manual_seed(1))
    q = (given * (scale * 40)[:, None]).clip(-127, 127).round().to(torch.int8)
    made = quantised(given, w.T.contiguous(), scale * 40)
    assert torch.equal(made, (q.long() @ w.long().T).int()) and len(q.unique()) > 100


@pytest.mark.parametrize("spec", [w8a8, quantised], ids=lambda spec: spec.name)
def test_every_law_holds(spec) -> None:
    laws = [Law.TEXT, Law.TILES, Law.ROWS, Law.SOURCE, Law.SIMULATED, Law.LOWERS]
    verdicts = list(check(spec, Example(), [target("sm_90a")], laws))
    assert [v for v in verdicts if v.ok is False] == []
    assert {v.law for v in verdicts if v.ok} == {*laws} - {Law.SIMULATED}
    refused = {v.backend: v.note for v in verdicts if v.law is Law.LOWERS and v.ok is None}
    assert refused.keys() == {"cute", "tilelang"}
    assert all("test_integer_dot.py" in note for note in refused.values())


def test_ids_are_the_same_on_every_target() -> None:
    program = canonical(w8a8.trace(w8a8.default_variant()))
    assert len({numerics_id((program,), on) for on in ("cpu", "sm_90a", "gfx942", "sm_100a")}) == 1
    assert w8a8.tier("cpu") == {"y": "exact", "sums": "exact"}
