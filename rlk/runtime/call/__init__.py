"""Calls of operators: dispatch, gradients, torch's library and DTensor, and the oracle."""

from __future__ import annotations
