"""Tools for tests and authors: comparison of bits, and generated kernels without a device."""

from __future__ import annotations
