"""The demo's measurements measure: differences are counted, errors found, memory and time seen."""

from __future__ import annotations

import math
import sys
import time

import pytest
import torch

from rlk.demo import measure


def test_differing_patterns_are_counted_and_nans_are_one() -> None:
    a = torch.tensor([1.0, 0.0, math.nan, 2.0])
    b = torch.tensor([1.0, -0.0, -math.nan, 2.0])
    row = measure.same_bits("x", "y", a, b)
    assert (row.compared, row.differing) == (4, 1)
    with pytest.raises(ValueError, match="against"):
        measure.same_bits("x", "y", a, b.double())


def test_the_largest_error_ignores_equal_infinities() -> None:
    wide = torch.tensor([1.0, -math.inf], dtype=torch.float64)
    assert measure.largest_error(torch.tensor([1.5, -math.inf]), wide) == 0.5
    assert measure.largest_error(torch.tensor([]), torch.tensor([], dtype=torch.float64)) == 0.0


def test_time_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that the work itself moves: 9 s while it warms up, then 7, 5 and 6 ms."""
    now = 0.0
    takes = iter((9.0, 0.007, 0.005, 0.006))

    def work() -> None:
        nonlocal now
        now += next(takes)

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    assert measure.milliseconds(work, "cpu", 3) == pytest.approx(6.0)


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory of a process is read on Linux only")
def test_peak_memory_is_seen_even_when_it_is_freed() -> None:
    peak = measure.peak_mib(lambda: torch.ones(32 * measure.MIB // 4).sum().item(), "cpu")
    if peak is None:
        pytest.skip("this system does not let a process reset its peak")
    assert 28 < peak < 64
