"""Binding of a call: its arguments, invocation, sizes, program candidates and host stub."""

from __future__ import annotations
