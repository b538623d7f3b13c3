"""What tests and authors use to compare bits and to run generated kernels without a device."""

from __future__ import annotations
