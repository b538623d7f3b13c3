"""Assembly text around a few instructions: the descriptor and metadata that every kernel has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlk.testing.simulators.cdna import Execution, emulate

_TEXT = """\t.text
small:
{body}
\ts_endpgm
\t.section .rodata
\t.amdhsa_kernel small
\t\t.amdhsa_group_segment_fixed_size {shared}
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_float_denorm_mode_32 3
\t.end_amdhsa_kernel
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
{arguments}
    .group_segment_fixed_size: {shared}
    .name:           small
    .private_segment_fixed_size: 0
    .vgpr_count:     16
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
...
\t.end_amdgpu_metadata
"""

POINTER = "s_load_dwordx2 s[4:5], s[0:1], 0x0"
"""Puts the first argument's address into s[4:5], once it is waited for."""


def assembly(body: str, sizes: Sequence[int] = (8,), shared: int = 0) -> str:
    """Return a kernel named small with these lines, arguments of these sizes, and bytes of LDS."""
    lines, offset = [], 0
    for size in sizes:
        offset += -offset % size
        kind = "global_buffer" if size == 8 else "by_value"
        lines.append(f"      - .offset: {offset}\n        .size: {size}\n        .value_kind: {kind}")
        offset += size
    text = "\n".join(f"\t{line.strip()}" for line in body.strip().splitlines())
    return _TEXT.format(body=text, arguments="\n".join(lines), shared=shared)


def emulated(body: str, *arguments: Any, shared: int = 0, waves: int = 1, **options: Any) -> Execution:
    """Run these lines in one workgroup of some waves."""
    sizes = [8 if isinstance(a, np.ndarray) else a.itemsize for a in arguments]
    text = assembly(body, sizes, shared)
    return emulate(text, "small", (1, 1, 1), (64 * waves, 1, 1), arguments, **options)
