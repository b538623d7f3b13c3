"""Two and four processes on one device have the bits of one, at the sizes of Qwen3-8B's layers.

Log-probs, entropies, logits and all gradients of shared weights, with and without sequence parallelism; a
step of AdamW of two replicas; sums that a backend adds, and another tree over ranks, are the controls.
`gpu.one_device` has the code, and runs it at tiny sizes where there is no device.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from gpu import one_device


def test_processes_that_share_a_device_have_the_bits_of_one() -> None:
    if not dist.is_gloo_available():
        pytest.skip("needs a torch with gloo")
    free, there = (n / 2**30 for n in torch.cuda.mem_get_info())
    if free < 70:
        pytest.skip(f"needs 70 GiB of the device's memory: {free:.1f} of {there:.1f} are free")
    one_device.check(one_device.everything("real"))
