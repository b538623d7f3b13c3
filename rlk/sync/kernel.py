"""Digests of blocks of memory: sums of products that no order of additions changes.

The spec is not registered as a shipped operator (`rlk/specs`): it has no function in `rlk.ops`, so no
page and no public arguments. It reads blocks that `rlk.sync.blocks` cuts; `rlk.sync.digest` defines its bits.
"""

from __future__ import annotations

from rlk.lang import Axis, L, Outputs, Tensor, Tile, i32, i64, op, u32

T = Axis("T", dynamic=True)  # blocks
S = Axis("S", chunk=1)
N = Axis("N")

STEPS, LANES = 16, 1024
MIX = ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1))
MASK, FACTORS = 0x9E3779B9, (0x3C6EF372, 0xDAA66D2B)


def _mixed(h: Tile) -> Tile:
    """Return the finalizer of MurmurHash3 (Appleby 2008), a bijection of 32-bit words."""
    for shift, factor in MIX:
        h = (h ^ (h >> shift)) * factor
    return h


@op()
def block_digest(words: Tensor[i32, T, S, N]) -> Outputs:
    """Sums over the words of each block, modulo 2**32 each; `rlk.sync.digest` has the formula.

    For lane i of N and step s of S, x = w ^ (mixed(i + MASK) + mixed(s)), and for each of the two FACTORS c
    f = (mixed(i + c) | 1) (mixed(s) | 1). `first` and `second`, of the two factors: the sum of the lower
    halves of x f, and 2**32 times that of the upper halves. As f is odd and x a bijection of w, every change
    of one word changes both.
    """
    i = L.pos(N).to(u32)
    mask = _mixed(i + MASK)
    odd = [_mixed(i + c) | 1 for c in FACTORS]
    low, high = [L.total() for _ in odd], [L.total() for _ in odd]
    for s in L.stream(S):
        step = _mixed(s.pos.to(u32))
        x = words[s].to(u32) ^ (mask + step)
        for lane, factor in enumerate(odd):
            f = factor * (step | 1)
            low[lane].absorb(x * f)
            high[lane].absorb(L.mulhi(x, f))
    made = [
        (L.sum(upper.value, over=N).to(i64) << 32) | L.sum(lower.value, over=N).to(i64)
        for lower, upper in zip(low, high, strict=True)
    ]
    return L.out(first=made[0], second=made[1])
