"""Products with gradients, put together from products of arrays, apart from every pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from linear_cases import TOKENS, ascending, pairwise, product

from rlk import ops

CHUNK = 64  # tokens that d bias adds by halving
NAMES = ("x", "w", "bias", "residual")
Merge = Callable[[list[torch.Tensor]], torch.Tensor]


@dataclass(frozen=True)
class Product:
    """Inputs of one call, and the gradient of its result."""

    x: torch.Tensor
    w: torch.Tensor
    bias: torch.Tensor
    residual: torch.Tensor
    d_y: torch.Tensor

    def gradients(self, wanted: tuple[str, ...] = NAMES, **options: Any) -> dict[str, torch.Tensor]:
        """Return the wanted gradients by autograd; all four inputs take part."""
        given = {name: getattr(self, name).detach().clone() for name in NAMES}
        asked = [given[name].requires_grad_() for name in wanted]
        y = ops.matmul(given["x"], given["w"], bias=given["bias"], residual=given["residual"], **options)
        found = torch.autograd.grad(y, asked, self.d_y.to(y.dtype))
        return dict(zip(wanted, found, strict=True))


def drawn(m: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Product:
    generator = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    return Product(some(m, k), some(n, k), some(n), some(m, n), some(m, n))


def leaves_of(extent: int, leaves: int) -> list[slice]:
    """Return the pieces of ceil(extent / leaves)."""
    size = -(-extent // leaves)
    return [slice(i * size, (i + 1) * size) for i in range(leaves)]


def forward(it: Product, leaves: int = 1, merge: Merge = pairwise) -> torch.Tensor:
    """Return x w^T in f32: a chain for each piece of K, merged."""
    return merge([product(it.x[:, p], it.w[:, p]) for p in leaves_of(it.x.shape[1], leaves)])


def input_gradient(it: Product, leaves: int = 1, merge: Merge = pairwise) -> torch.Tensor:
    """Return d_y w in f32: a chain for each piece of N, merged."""
    return merge([product(it.d_y[:, p], it.w[p].T) for p in leaves_of(len(it.w), leaves)])


def weight_gradient(it: Product, merge: Merge = ascending, piece: int = TOKENS) -> torch.Tensor:
    """Return d_y^T x in f32: a chain for each piece of tokens, merged."""
    cuts = [slice(low, low + piece) for low in range(0, len(it.x), piece)]
    return merge([product(it.d_y[p].T, it.x[p].T) for p in cuts])


def halving(rows: torch.Tensor) -> torch.Tensor:
    """Add the upper half of the rows to the lower, again and again; missing rows are -0.0."""
    missing = torch.full((CHUNK - len(rows), rows.shape[1]), -0.0)
    rows = torch.cat((rows, missing))
    while len(rows) > 1:
        half = len(rows) // 2
        rows = rows[:half] + rows[half:]
    return rows[0]


def bias_gradient(it: Product, merge: Merge = ascending) -> torch.Tensor:
    """Return the sum of d_y over tokens in f32."""
    pieces = [it.d_y[low : low + TOKENS].float() for low in range(0, len(it.d_y), TOKENS)]
    chunks = [[halving(p[low : low + CHUNK]) for low in range(0, len(p), CHUNK)] for p in pieces]
    return merge([ascending(c) for c in chunks])
