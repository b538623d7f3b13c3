"""The computations of rlk that vLLM calls, and how often it did: one that is never called is an error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlk.errors import Code, UnsupportedError

PEER = "vllm"
VERSIONS = ("0.26.0",)
"""Releases of vLLM whose layers rlk was compared with; others are refused."""
_hooks: dict[str, Hook] = {}


@dataclass(slots=True)
class Hook:
    """A computation of rlk that vLLM calls. caller: what of vLLM calls it. calls: of this process.

    In a CUDA graph a call is counted when it is captured, not when it is replayed.
    """

    name: str
    caller: str
    calls: int = 0

    def count(self) -> None:
        """Note a call."""
        self.calls += 1


def hook(name: str, caller: str) -> Hook:
    """Return the hook of a name; the first call makes it."""
    return _hooks.setdefault(name, Hook(name, caller))


def calls() -> dict[str, int]:
    """Return how often each hook was called in this process."""
    return {name: found.calls for name, found in _hooks.items()}


def check_called(names: Iterable[str], before: dict[str, int]) -> None:
    """Raise UnsupportedError for hooks that were not called since `before`, what `calls` returned then."""
    silent = [name for name in names if name not in _hooks or _hooks[name].calls <= before.get(name, 0)]
    if silent:
        callers = ", ".join(f"{n} ({_hooks[n].caller})" if n in _hooks else n for n in silent)
        raise UnsupportedError(Code.HOOK_SILENT, peer=PEER, names=callers)
