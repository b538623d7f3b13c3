"""Benchmark of heads before attention: norm and rotation of q and k, cache writes of a decode step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import rlk
from benchmarks.harness import Case, Checked, main
from benchmarks.identity import describe
from benchmarks.peers import Launch, backward_of, without_grad
from rlk.testing.bits import differing

MODELS = {"Qwen3-8B": (32, 8, 128), "Qwen3-0.6B": (16, 8, 128)}
"""Heads of q, heads of k, and their width."""
DECODE, TRAINING, PAGE = (1, 16, 64, 256), 8192, 16
POSITIONS = 40960


@dataclass(frozen=True, slots=True)
class Step:
    """qkv [T, (Hq + 2 Hk) E] of a product, weights of two norms, a rotation, and a cache with slots."""

    qkv: Tensor
    heads: tuple[int, int, int]
    weights: tuple[Tensor, Tensor]
    rotation: dict[str, Tensor]
    caches: tuple[Tensor, Tensor]
    slots: Tensor

    @property
    def split(self) -> tuple[Tensor, ...]:
        """Return the heads of q, k and v as views."""
        q, k, width = self.heads
        return self.qkv.unflatten(-1, (-1, width)).split((q, k, k), 1)


def drawn(tokens: int, heads: tuple[int, int, int]) -> Step:
    """Draw a step whose tokens go to slots that are far from each other."""
    q, k, width = heads
    qkv = torch.randn(tokens, (q + 2 * k) * width, dtype=torch.bfloat16, device="cuda")
    w_q, w_k = ((1.0 + 0.1 * torch.randn(width, device="cuda")).bfloat16() for _ in range(2))
    angles = torch.rand(POSITIONS, width // 2, device="cuda")
    cos, sin = angles.cos(), angles.sin()
    pages = 4 * tokens
    cache = torch.zeros(pages, k, PAGE, 2 * width, dtype=torch.bfloat16, device="cuda").transpose(1, 2)
    slots = torch.randperm(pages * PAGE, device="cuda")[:tokens]
    position = torch.randint(POSITIONS, (tokens,), device="cuda")
    rotation = {"cos": cos, "sin": sin, "position_ids": position}
    return Step(qkv, heads, (w_q, w_k), rotation, (cache[..., :width], cache[..., width:]), slots)


def ours(s: Step) -> Tensor:
    """Return q, and write keys and values, in one kernel."""
    w_q, w_k = s.weights
    return rlk.ops.cache_qkv(s.qkv, *s.caches, s.slots, q_weight=w_q, k_weight=w_k, **s.rotation)


def apart(s: Step) -> Tensor:
    """Return the same by an operator for each: two norms, two rotations, one write."""
    q, k, v = s.split
    q, k = turned(rlk.ops.rms_norm(q, s.weights[0]), rlk.ops.rms_norm(k, s.weights[1]), s)
    rlk.ops.write_cache(k, v, *s.caches, s.slots)
    return q


def by_torch(s: Step) -> Tensor:
    """Return the same with the writes of torch."""
    q, k, v = s.split
    q, k = turned(rlk.ops.rms_norm(q, s.weights[0]), rlk.ops.rms_norm(k, s.weights[1]), s)
    page, slot = s.slots // PAGE, s.slots % PAGE
    for cache, x in zip(s.caches, (k, v), strict=True):
        cache[page, slot] = x
    return q


def turned(q: Any, k: Any, s: Step) -> tuple[Tensor, Tensor]:
    """Return q and k rotated."""
    r = s.rotation
    return rlk.ops.rope(q, k, r["cos"], r["sin"], position_ids=r["position_ids"])


def check(s: Step) -> Checked:
    """Compare q and both caches with those of the operators apart, bit by bit."""
    with torch.no_grad():
        made = []
        for call in (ours, by_torch):
            for cache in s.caches:
                cache.zero_()
            made.append([call(s), *(cache.clone() for cache in s.caches)])
    return compared(*made)


def compared(got: list[Tensor], want: list[Tensor]) -> Checked:
    """Return how far results are from others, and how many differ in a bit."""
    pairs = list(zip(got, want, strict=True))
    worst = max(float((a.double() - b.double()).abs().max()) for a, b in pairs)
    return Checked(worst, sum(differing(a.cpu(), b.cpu()) for a, b in pairs))


def decode(model: str, tokens: int) -> Case:
    """One decode step of a layer."""
    s = drawn(tokens, MODELS[model])
    return Case(
        op="cache_qkv",
        passes="fwd",
        shape={"model": model, "M": tokens},
        rlk=lambda: without_grad(lambda: ours(s)),
        peers={
            "rlk_apart": lambda: without_grad(lambda: apart(s)),
            "rlk_torch": lambda: without_grad(lambda: by_torch(s)),
        },
        moved=2.0 * s.qkv.nbytes,
        reference="rlk_torch",
        check=lambda: check(s),
        describe=lambda: describe(rlk.ops.cache_qkv.explain("cuda")),
    )


def written(model: str, tokens: int) -> Case:
    """Keys and values of new tokens that lie inside the result of a product, written as they are."""
    s = drawn(tokens, MODELS[model])
    _, k, v = s.split

    def by_rlk() -> None:
        rlk.ops.write_cache(k, v, *s.caches, s.slots)

    def by_index() -> None:
        page, slot = s.slots // PAGE, s.slots % PAGE
        for cache, x in zip(s.caches, (k, v), strict=True):
            cache[page, slot] = x

    def same() -> Checked:
        made = []
        for call in (by_rlk, by_index):
            for cache in s.caches:
                cache.zero_()
            call()
            made.append([cache.clone() for cache in s.caches])
        return compared(*made)

    return Case(
        op="write_cache",
        passes="fwd",
        shape={"model": model, "M": tokens},
        rlk=lambda: without_grad(by_rlk),
        peers={"torch_eager": lambda: without_grad(by_index)},
        moved=4.0 * k.numel() * k.element_size(),
        reference="torch_eager",
        check=same,
        describe=lambda: describe(rlk.ops.write_cache.explain("cuda")),
    )


def training(model: str, passes: str) -> Case:
    """Norm and rotation of q in training, inside the result of a product."""
    s = drawn(TRAINING, MODELS[model])
    x = s.split[0].detach().requires_grad_(True)
    weight = s.weights[0].detach().requires_grad_(True)
    seed = torch.randn(x.shape, dtype=x.dtype, device="cuda")

    def whole() -> Tensor:
        return rlk.ops.qk_norm(x, weight, **s.rotation)

    def parts() -> Tensor:
        y = rlk.ops.rms_norm(x, weight)
        return turned(y, y[:, :1], s)[0]

    def launch(call: Callable[[], Tensor]) -> Callable[[], Launch]:
        return lambda: without_grad(call) if passes == "fwd" else backward_of(call, (x, weight), seed)

    def same() -> Checked:
        made = []
        for call in (whole, parts):
            y = call()
            made.append([y.detach(), *torch.autograd.grad(y, (x,), seed)])
        return compared(*made)

    size = x.numel() * x.element_size()
    return Case(
        op="qk_norm",
        passes=passes,
        shape={"model": model, "M": TRAINING},
        rlk=launch(whole),
        peers={"rlk_apart": launch(parts)},
        moved=(2.0 if passes == "fwd" else 3.0) * size,
        reference="rlk_apart",
        check=same,
        describe=lambda: describe(rlk.ops.qk_norm.explain(x, weight, **s.rotation)),
    )


def cases() -> Iterator[Case]:
    """Yield decode steps, then norms and rotations of training, forward and backward."""
    for model in MODELS:
        for tokens in DECODE:
            yield decode(model, tokens)
            yield written(model, tokens)
        for passes in ("fwd", "bwd"):
            yield training(model, passes)
        yield decode(model, TRAINING)
        yield written(model, TRAINING)


if __name__ == "__main__":
    main("step", cases)
