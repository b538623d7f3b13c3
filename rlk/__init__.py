"""The names that `import rlk` offers; each is imported on first use, so that the import is cheap."""

from __future__ import annotations

import importlib
from typing import Any

import rlk.digest  # noqa: F401 - which notes when rlk's text began to be read

__version__ = "0.1.0"

# name -> (module, attribute); no attribute: the module itself.
LAZY: dict[str, tuple[str, str | None]] = {
    "ops": ("rlk.ops", None),
    "lang": ("rlk.lang", None),
    "Layout": ("rlk.ops.layout", "Layout"),
    "nn": ("rlk.nn", None),
    "patch": ("rlk.integrations.patching", "patch"),
    "explain": ("rlk.runtime.prefetch", "explain"),
    "prefetch": ("rlk.runtime.prefetch", "prefetch"),
    "register": ("rlk.runtime.registry", "register"),
    "sync": ("rlk.sync", None),
}

__all__ = ["Layout", "explain", "lang", "nn", "ops", "patch", "prefetch", "register", "sync"]


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module 'rlk' has no attribute {name!r}")
    module, attribute = LAZY[name]
    found = importlib.import_module(module)
    value = found if attribute is None else getattr(found, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY})
