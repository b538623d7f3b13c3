"""vLLM's platform plugin for RLK_VLLM=cpu: its Python alone on a CPU, for tests and examples."""

from __future__ import annotations

from rlk.env import Env


def platform() -> str | None:
    """Return the path of the platform that vLLM is to use, None for its own."""
    return f"{__package__}.cpu_platform.OraclePlatform" if Env.current().vllm == "cpu" else None
