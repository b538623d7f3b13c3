"""What is compiled before anybody calls it: wheels of kernels, and the kernels that a model will need."""

from __future__ import annotations
