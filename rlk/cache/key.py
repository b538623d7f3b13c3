"""The key of a built kernel: everything that its bytes depend on, digested."""

from __future__ import annotations

from dataclasses import dataclass

from rlk.digest import Json, digest, plain

CALLS = "calls"
"""The `backend` of records of calls: entries without a kernel, which name the kernel that a call runs."""
Flag = tuple[str, str | int | bool]


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Everything that changes the bytes of an entry; for kernels nothing that is known only at a call.

    `ir`, `emitter` are digests; `schedule` is a frozen dataclass or None; `toolchain` pairs tools with their
    versions; `flags` holds compile options and the compilers' environment variables; `abi` names the layout
    of an entry and of a launch. Sizes such as N, temperatures and lengths never belong in a kernel's.
    """

    ir: str
    schedule: object
    target: str
    backend: str
    emitter: str
    toolchain: tuple[tuple[str, str], ...]
    flags: tuple[Flag, ...] = ()
    abi: str = ""

    def digest(self) -> str:
        """Return the name of this key's entry: 64 hex digits."""
        return digest(self)

    def members(self) -> Json:
        """Return the key as JSON, as the manifest of its entry keeps it."""
        return plain(self)
