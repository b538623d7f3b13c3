"""Operators called as users call them have on a device the bits of the oracle, gradients included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rlk import Layout, ops
from rlk.testing.bits import assert_same_bits

Move = Callable[[torch.Tensor], torch.Tensor]
LENGTHS, PAIRS, WIDE = (2100, 0, 5, 1030), 3000, 5000


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layout(on: Move) -> Layout:
    edges = torch.tensor([0, *LENGTHS]).cumsum(0)
    return Layout.packed(on(edges), mask=on(normal(sum(LENGTHS), seed=5) > -1.0))


TOKENS = sum(LENGTHS)
HEAD = (
    normal(300, 64).bfloat16(), (0.3 * normal(WIDE, 64, seed=2)).bfloat16(), normal(WIDE, seed=3).bfloat16()
)  # fmt: skip
THRESHOLDS = (normal(300), torch.ones(300, dtype=torch.int32), torch.full((300,), WIDE, dtype=torch.int32))
LISTED = torch.stack([7 * i + 3 * torch.arange(50) for i in range(300)]).reshape(-1) % WIDE
PRODUCT = tuple(
    normal(*shape, seed=i).bfloat16() for i, shape in enumerate(((300, 64), (512, 64), (512,), (300, 512)))
)
TEACHER = normal(40, WIDE, seed=1).bfloat16()
TEACHERS = (normal(300, 128, seed=1).bfloat16(), (0.2 * normal(WIDE, 128, seed=3)).bfloat16())
GROUPS = torch.tensor([0, 4, 9, 9, 40])
PREFERENCES: dict[str, dict[str, Any]] = {
    "alphapo": {"loss": "alphapo", "alpha": 0.25}, "aot": {"loss": "aot"},
    "aot_unpaired": {"loss": "aot_unpaired"}, "forward_kl": {"divergence": "forward_kl"},
    "js": {"divergence": "js"}, "alpha": {"divergence": "alpha", "alpha": 0.5}, "weights": {},
}  # fmt: skip


def preferred(on: Move, name: str, chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    options = dict(PREFERENCES[name])
    given = [on(normal(PAIRS, seed=i)) for i in (2, 3)] if name != "alphapo" else []
    if name == "alphapo":
        counts = on(torch.arange(PAIRS) % 7 + 1)
        options |= {"chosen_tokens": counts, "rejected_tokens": counts}
    if name == "weights":
        options["weights"] = on(normal(PAIRS, seed=4).abs())
    return ops.preference_loss(chosen, rejected, *given, **options).loss


def turned(on: Move, width: int) -> dict[str, Any]:
    """Return the options of a rotation of 300 tokens; none for a width of 0."""
    if not width:
        return {}
    cos, sin = map(on, ops.rope_table(512, width))
    return {"cos": cos, "sin": sin, "position_ids": on(torch.arange(300)), "rotary_dim": width}


def cached(on: Move, qkv: torch.Tensor, weight: torch.Tensor, name: str, layout: str) -> torch.Tensor:
    """Return q, if it is made, and a whole cache to which 8 heads of keys and values were written."""
    first = 1 if layout == "not aligned" else 0
    memory = on(torch.zeros(40 * 16 * 8 * 256 + 8, dtype=torch.bfloat16))
    whole = memory[first : first + 40 * 16 * 8 * 256]
    if layout == "HND":
        pages = whole.view(40, 8, 16, 256).transpose(1, 2)
        caches = [pages[..., :128], pages[..., 128:]]
    else:
        caches = list(whole.view(2, 40, 16, 8, 128))
    slots = torch.randperm(40 * 16, generator=torch.Generator().manual_seed(4))[:300]
    slots[::7] = -1
    if name == "write_cache":
        k, v = qkv[:, 2048:].unflatten(1, (2, 8, 128)).unbind(1)
        ops.write_cache(k, v, *caches, on(slots), **turned(on, 96))
        return memory
    options = {} if "copies" in name else {"q_weight": weight, "k_weight": weight, **turned(on, 128)}
    q = ops.cache_qkv(qkv, *caches, on(slots), **options)
    return torch.cat((q.flatten(), memory))


Case = tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]
CALLS: dict[str, Case] = {
    **{
        f"jsd_loss {beta}": (
            lambda on, s, beta=beta: ops.jsd_loss(
                s, on(TEACHER), beta=beta, temperature=0.9, mask=on(torch.arange(40) % 5 != 0), math="sm90"
            ),
            (2 * normal(40, WIDE).bfloat16(),),
        )
        for beta in (0.0, 0.3, 1.0)
    },
    **{
        f"linear_jsd_loss {beta}": (
            lambda on, x, w, beta=beta: ops.linear_jsd_loss(
                x, w, *map(on, TEACHERS), beta=beta, mask=on(torch.arange(300) % 5 != 0), math="sm90"
            ),
            (normal(300, 64).bfloat16(), (0.3 * normal(WIDE, 64, seed=2)).bfloat16()),
        )
        for beta in (0.0, 0.3, 1.0)
    },
    **{
        f"linear_logp {name}": (
            lambda on, x, w, b, kept=kept: ops.linear_logp(
                x, w, on(torch.arange(300) * 7), bias=b, support=kept(on), math="sm90"
            ).logp,
            HEAD,
        )
        for name, kept in (
            ("bias", lambda on: None),
            ("above thresholds", lambda on: ops.Support(*(on(t) for t in THRESHOLDS))),
            ("of listed ids", lambda on: ops.Csr(on(torch.arange(301) * 50), on(LISTED))),
        )
    },
    **{
        f"matmul {leaves}, {pieces}": (
            lambda on, x, w, b, r, leaves=leaves, pieces=pieces: ops.matmul(
                x, w, bias=b, residual=r, leaves=leaves, grad_leaves=pieces, round_product=pieces > 1
            ),
            PRODUCT,
        )
        for leaves, pieces in ((1, 1), (1, 8), (8, 1), (2, 4))
    },
    **{
        f"preference_loss {name}": (
            lambda on, a, b, name=name: preferred(on, name, a, b),
            (-normal(PAIRS).abs(), -normal(PAIRS, seed=1).abs()),
        )
        for name in PREFERENCES
    },
    "rms_norm of heads": (
        lambda on, qkv, w: torch.cat(
            [ops.rms_norm(qkv[:, at : at + n * 128].unflatten(1, (n, 128)), w)
             for at, n in ((0, 16), (2048, 8))],
            1,
        ),
        (normal(300, 4096).bfloat16(), (1 + 0.1 * normal(128, seed=1)).bfloat16()),
    ),
    **{
        f"qk_norm{' rotated' if width else ''}{f' {width} of 128' if width % 128 else ''}": (
            lambda on, qkv, w, width=width: torch.cat(
                [ops.qk_norm(qkv[:, at : at + n * 128].unflatten(1, (n, 128)), w, **turned(on, width))
                 for at, n in ((0, 16), (2048, 8))],
                1,
            ),
            (normal(300, 4096).bfloat16(), (1 + 0.1 * normal(128, seed=1)).bfloat16()),
        )
        for width in (0, 128, 96)
    },
    **{
        f"{name} {layout_of_pages}": (
            lambda on, qkv, w, name=name, pages=layout_of_pages: cached(
                on, qkv.detach(), w.detach(), name, pages
            ),
            (normal(300, 4096).bfloat16(), (1 + 0.1 * normal(128, seed=1)).bfloat16()),
        )
        for name in ("cache_qkv", "cache_qkv of copies", "write_cache")
        for layout_of_pages in ("NHD", "HND", "not aligned")
    },
    **{
        f"rope {width} of 128": (
            lambda on, q, k, width=width: torch.cat(
                ops.rope(q, k, *map(on, ops.rope_table(512, width)), position_ids=on(torch.arange(300)),
                         rotary_dim=width), 1,
            ),
            (normal(300, 16, 128).bfloat16(), normal(300, 8, 128, seed=1).bfloat16()),
        )
        for width in (32, 96)
    },
    **{
        f"value_loss {mean}": (
            lambda on, v, mean=mean: ops.value_loss(
                v, on(normal(TOKENS, seed=1)), layout=layout(on), aggregation=mean, normalizer=3.0
            ).loss,
            (normal(TOKENS),),
        )
        for mean in ("token_mean", "sequence_mean", "sequence_sum", "sum")
    },
    "nll_loss": (
        lambda on, x: ops.nll_loss(x, layout=layout(on), weights=on(normal(TOKENS, seed=1).abs())).loss,
        (-normal(TOKENS).abs(),),
    ),
    **{
        f"sequence_logp {over}": (
            lambda on, x, over=over: ops.sequence_logp(x, layout=layout(on), over=over), (-normal(TOKENS),)
        )
        for over in ("sum", "mean", "probability")
    },
    "kto_loss apo_zero_unpaired": (
        lambda on, x: ops.kto_loss(x, on(normal(40, seed=1)), on(normal(40, seed=2) > 0),
                                   loss="apo_zero_unpaired").loss,
        (normal(40),),
    ),
    "OPO": (
        lambda on, x: ops.group_advantage(
            x.detach(), on(GROUPS), baseline="length", lengths=on(torch.arange(40) % 9 + 1), scale="none"
        ),
        (normal(40),),
    ),
    **{
        f"optimal_token_baseline {align}": (
            lambda on, x, align=align: ops.optimal_token_baseline(
                x.detach(), on(-normal(TOKENS, seed=1).abs()), on(normal(TOKENS, seed=2).abs()),
                on(torch.arange(layout(on).sequences + 1) // 2 * 2), layout=layout(on), align=align,
            ).advantages,
            (normal(TOKENS),),
        )
        for align in ("position", "active")
    },
    "Pass@k": (lambda on, x: ops.group_advantage(x.detach(), on(GROUPS), baseline="best"), (normal(40),)),
}  # fmt: skip


def results(on: Move, case: Case, factor: float = 1.0) -> list[torch.Tensor]:
    call, given = case
    leaves = [on(factor * x).requires_grad_() for x in given]
    made = call(on, *leaves)
    if not made.requires_grad:
        return [made.cpu()]
    made.backward(on(normal(*made.shape, seed=9)).to(made.dtype))
    return [made.detach().cpu(), *(x.grad.cpu() for x in leaves if x.grad is not None)]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_the_bits_of_the_oracle(name: str) -> None:
    got, want = results(lambda x: x.cuda(), CALLS[name]), results(lambda x: x, CALLS[name])
    assert all(x.any() for x in want)
    for mine, theirs in zip(got, want, strict=True):
        assert_same_bits(mine, theirs, name)


def test_other_numbers_give_other_bits() -> None:
    """The control."""
    one = results(lambda x: x.cuda(), CALLS["nll_loss"])
    with pytest.raises(AssertionError):
        assert_same_bits(one[0], results(lambda x: x.cuda(), CALLS["nll_loss"], 1 + 2**-12)[0])
