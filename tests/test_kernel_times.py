"""Tests of the list of kernels that a profile of a layer holds."""

from __future__ import annotations

import torch
from torch.profiler import DeviceType, ProfilerActivity, profile

from benchmarks.kernel_times import Kernel, kernels_of, table


def test_events_of_a_profile_are_counted_per_call():
    x = torch.randn(64, 64)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(4):
            torch.mm(x, x)
            torch.mm(x, x)
            torch.relu(x)
    kernels = {k.name: k for k in kernels_of(found.events(), 4, DeviceType.CPU)}
    assert kernels["aten::mm"].launches == 2 and kernels["aten::relu"].launches == 1
    assert kernels["aten::mm"].us > 0
    assert kernels_of(found.events(), 4) == []  # nothing ran on a device


def test_the_table_has_the_sum_and_the_longest_first():
    lines = table("rlk", [Kernel("gemm", 2, 30.0), Kernel("norm", 1, 1.5)]).splitlines()
    assert lines[0] == "rlk: 31.5 us in 3 launches"
    assert [line.split()[-1] for line in lines[1:]] == ["gemm", "norm"]
