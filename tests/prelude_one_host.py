"""The functions of `rlk/lower/triton/prelude_ranks.py` for processes of one host that share memory: no PTX.

Text that `lower_sums(memory=)` copies, for the interpreter; never imported. x86 keeps the order of stores.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def put_words(address, bits, call, here):
    tl.store(address, (call.to(tl.int64) << 32) | (bits.to(tl.int64) & 0xFFFFFFFF), mask=here)


@triton.jit
def take_words(address, call, here, limit):
    word = tl.load(address, mask=here, other=0)
    while tl.max((here & ((word >> 32) != call)).to(tl.int32), 0) > 0:
        word = tl.load(address, mask=here, other=0)
    return word.to(tl.int32)


@triton.jit
def publish():
    tl.debug_barrier()


@triton.jit
def set_flag(address, count):
    tl.store(address, count)


@triton.jit
def wait_flag(address, count, limit):
    while tl.load(address) - count < 0:
        tl.debug_barrier()
