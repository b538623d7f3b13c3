"""Simulators of devices on a CPU: Triton interpreter, Hopper threads and pipelines, CDNA emulator."""

from __future__ import annotations
