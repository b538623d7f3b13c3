"""GRPO in one process, with exact rollouts: `python -m examples.grpo --help`."""

from __future__ import annotations
