"""Benchmarks of rlk's operators beside their peers: bench_<family> measures, report and plot read."""

from __future__ import annotations
