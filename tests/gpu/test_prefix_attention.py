"""On a device completions of a shared prompt have the bits of the unshared call, trained on or decoded."""

from __future__ import annotations

import pytest
import torch

from rlk import ops
from rlk.testing.bits import assert_same_bits, differing

PROMPTS = (0, 1, 15, 16, 17, 63, 64, 255, 511, 512, 513, 1500, 4096)


@pytest.mark.parametrize("asks", [None, 1])
@pytest.mark.parametrize("options", [{}, {"window": 700}])
@pytest.mark.parametrize("width", [64, 128])
def test_shared_prompts_have_the_bits_of_copies(
    width: int, options: dict[str, int], asks: int | None
) -> None:
    torch.manual_seed(0)
    counts = [1 + i % 8 for i in range(len(PROMPTS))]
    of = torch.arange(len(PROMPTS)).repeat_interleave(torch.tensor(counts))
    own = torch.randint(1, 600, (len(of),))
    queries = own if asks is None else torch.full_like(own, asks)
    prompts = torch.tensor(PROMPTS)

    def offsets(lengths: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int().cuda()

    def drawn(rows: int, heads: int) -> torch.Tensor:
        return torch.randn(rows, heads, width, device="cuda", dtype=torch.bfloat16)

    q, (k, v) = drawn(int(queries.sum()), 16), (drawn(int(own.sum()), 4) for _ in range(2))
    shared = [drawn(sum(PROMPTS), 4) for _ in range(2)]
    cu, asking = offsets(own), offsets(queries)
    args = (q, *shared, k, v, offsets(prompts), cu, offsets(torch.tensor(counts)))
    got = ops.prefix_attention(*args, **options, cu_seqlens_q=asking)

    def copied(of_prompts: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
        first, second = of_prompts.split(PROMPTS), mine.split(own.tolist())
        return torch.cat([x for p, y in zip(of.tolist(), second, strict=True) for x in (first[p], y)])

    keys = offsets(prompts[of] + own)
    want = ops.varlen_attention(q, copied(shared[0], k), copied(shared[1], v), asking, keys, **options)
    assert_same_bits(got.o.cpu(), want.o.cpu())
    assert_same_bits(got.lse.cpu(), want.lse.cpu())
    shared[0][-1] += 1
    moved = ops.prefix_attention(*args, **options, cu_seqlens_q=asking)
    assert differing(moved.lse.cpu(), want.lse.cpu())
