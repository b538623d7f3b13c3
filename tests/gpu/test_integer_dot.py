"""Contractions of i8 factors on a device: the sums of integers, by tensor cores where tiles are large."""

from __future__ import annotations

import pytest
import torch
from test_integer_dot import drawn, quantised, w8a8

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("rows", "columns", "depth"), [(5, 7, 300), (1, 256, 4096), (300, 512, 1024)])
def test_sums(rows: int, columns: int, depth: int) -> None:
    x, w, sx, sw = (t.cuda() for t in drawn(rows, columns, depth))
    want = (x.double() @ w.double().T).int()
    made = w8a8(x, w, sx, sw)
    assert torch.equal(made.sums, want)
    assert torch.equal(made.y, (want.float() * sx[:, None] * sw).bfloat16())
    given = torch.randn(rows, depth, device="cuda")
    q = (given * 40).clip(-127, 127).round()
    ones = torch.full((rows,), 40.0, device="cuda")
    assert torch.equal(quantised(given, w.T.contiguous(), ones), (q.double() @ w.double().T).int())
