"""The plugin's entry: what it registers in vLLM, in each process."""

from __future__ import annotations

from rlk.integrations.swap import known_version
from rlk.integrations.vllm.hooks import PEER

VERSIONS = ("0.26.0",)
"""Releases of vLLM whose layers rlk was compared with; others are refused."""


def install() -> None:
    """Register quantization "rlk" and attention backend CUSTOM. Raises UnsupportedError."""
    known_version(PEER, VERSIONS)
