"""A plugin for vLLM whose layers compute by rlk: `LLM(model, quantization="rlk")`, or RLK_VLLM=1."""

from __future__ import annotations

from rlk.integrations.vllm.hooks import calls

__all__ = ["calls", "register"]

_registered = False


def register() -> None:
    """Make quantization="rlk" known to vLLM: its entry point, which vLLM calls in each of its processes.

    Models of other quantizations are left as they are. A vLLM of another version is refused where it is
    asked for rlk.
    """
    global _registered
    if _registered:
        return
    from rlk.integrations.vllm import plugin  # imports vllm

    plugin.install()
    _registered = True
