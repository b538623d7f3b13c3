"""Calls of attention for compute-sanitizer to watch: `python -m gpu.sanitized CASE`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from gpu.serving import DEVICE, cached, drawn, offsets, served, trained

from rlk import ops

RAGGED = (0, 1, 63, 64, 65, 130, 0, 513, 700)


def trains() -> None:
    """Forward and backward of ragged sequences, some without a token."""
    given = drawn(RAGGED, heads=4, shared=2)
    q, k, v = (torch.cat([getattr(x, n) for x in given]).requires_grad_() for n in "qkv")
    cu = offsets(RAGGED)
    made = ops.varlen_attention(q, k, v, cu, cu, window=100)
    made.o.float().sum().backward()


def serves() -> None:
    """Prefill that ends on and beside the edges of pages, and decoding in few and in many pieces."""
    given = drawn([n for n in RAGGED if n], heads=4, shared=2)
    for page in (16, 64):
        cache, ends = cached(given, page), [len(x) for x in given]
        served(given, cache, [0] * len(given), ends)
        served(given, cache, [n - 1 for n in ends], ends)
        served(given[-1:], cached(given[-1:], page), [699], [700])


def shares() -> None:
    """Completions of a shared prompt, one of no token."""
    prompt, *rest = drawn((65, 1, 64, 30), heads=4, shared=2)
    q, k, v = (torch.cat([getattr(x, n) for x in rest]) for n in "qkv")
    cu, groups = offsets([1, 64, 0, 30]), offsets([4])
    ops.prefix_attention(q, prompt.k, prompt.v, k, v, offsets([65]), cu, groups)


@triton.jit
def _beyond(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at))


def reads_beyond() -> None:
    """The control: half of what is read belongs to nobody."""
    x, out = torch.zeros(4096, device=DEVICE), torch.zeros(1 << 20, device=DEVICE)
    _beyond[(1,)](x, out, 1 << 16)


CASES: dict[str, Callable[[], None]] = {f.__name__: f for f in (trains, serves, shares, reads_beyond)}

if __name__ == "__main__":
    trained(drawn((5,)))  # what torch sets up is not watched for long
    CASES[sys.argv[1]]()
    torch.cuda.synchronize()
