"""How a call finds its kernel: from the store or the compilers, loaded once a device, launched cheaply."""

from __future__ import annotations
