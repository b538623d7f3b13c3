"""Small linear heads, and their gradient put together from products of arrays, apart from every pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from rlk import ops
from rlk.interp.dot import dot
from rlk.ir.dotmodel import DotModel
from rlk.ir.types import DType
from rlk.runtime.call.dispatch import dispatch

NEEDS = ("logp", "lse", "entropy")
TOKENS = 8192  # of a piece of rows
DTYPES = {torch.bfloat16: DType.BF16, torch.float16: DType.F16}
Grads = dict[str, torch.Tensor]
Given = Mapping[str, torch.Tensor]


def head(
    rows: tuple[int, ...] = (2, 7),
    depth: int = 40,
    vocabulary: int = 301,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    ignored: int = -100,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return hidden, weight and ids, of which every fifth is ignored."""
    drawn = torch.Generator().manual_seed(seed)
    hidden = torch.randn(*rows, depth, generator=drawn).to(dtype)
    weight = (torch.randn(vocabulary, depth, generator=drawn) * 0.4).to(dtype)
    ids = torch.randint(vocabulary, rows, generator=drawn)
    ids.view(-1)[1::5] = ignored
    return hidden, weight, ids


def options_of(rows: tuple[int, ...], vocabulary: int, dtype: torch.dtype) -> dict[str, dict[str, Any]]:
    """Return every option by name, and all of them together."""
    drawn = torch.Generator().manual_seed(9)
    single: dict[str, dict[str, Any]] = {
        "plain": {},
        "temperature": {"temperature": 0.7},
        "temperature by row": {"temperature": torch.rand(rows, generator=drawn) + 0.5},
        "softcap": {"softcap": 5.0},
        "logit_scale": {"logit_scale": 1.5},
        "mask": {"mask": torch.rand(rows, generator=drawn) < 0.7},
        "ignore_index": {"ignore_index": 7},
        "bias": {"bias": torch.randn(vocabulary, generator=drawn).to(dtype)},
    }
    together = {name: x for given in single.values() for name, x in given.items()}
    return {**single, "everything": together}


def cotangents(rows: tuple[int, ...], names: tuple[str, ...] = ("logp",), seed: int = 5) -> Grads:
    """Return a cotangent for each named result."""
    drawn = torch.Generator().manual_seed(seed)
    return {name: torch.randn(rows, generator=drawn) for name in names}


def gradients(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    ids: torch.Tensor,
    given: Given,
    wanted: tuple[str, ...] = ("hidden", "weight"),
    **options: Any,
) -> Grads:
    """Return the gradients of linear_logp by autograd."""
    leaves = {"hidden": hidden.detach().clone(), "weight": weight.detach().clone()}
    asked = [leaves[name].requires_grad_() for name in wanted]
    made = ops.linear_logp(leaves["hidden"], leaves["weight"], ids, needs=tuple(given), **options)
    outputs = [getattr(made, name) for name in given]
    found = torch.autograd.grad(outputs, asked, list(given.values()))
    return dict(zip(wanted, found, strict=True))


def active_rows(ids: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
    """Return the positions of the rows that count, ascending."""
    active = ids != options.get("ignore_index", -100)
    if "mask" in options:
        active = active & options["mask"]
    return active.reshape(-1).nonzero()[:, 0]


# --- the reference ---


def scores_gradient(
    hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, given: Given, **options: Any
) -> torch.Tensor:
    """Return dz [rows, V]: the gradient that `logp` has for the f32 products, rounded to their dtype.

    It is the oracle's, whatever runs other calls: of 8492 rows an interpreter took 50 s of CPU time for it.
    """
    with by_oracle():
        logits = ops.matmul(hidden.detach(), weight.detach(), out_dtype=torch.float32).requires_grad_()
        if "bias" in options:
            options = {**options, "bias": options["bias"].float()}
        made = ops.logp(logits, ids, needs=tuple(given), **options)
        (found,) = torch.autograd.grad([getattr(made, n) for n in given], [logits], list(given.values()))
    return found.reshape(-1, len(weight)).to(hidden.dtype)


@contextmanager
def by_oracle() -> Iterator[None]:
    """Run calls in the oracle, where others run generated source."""
    before = dispatch.interpreters
    dispatch.interpret_with(None)
    try:
        yield
    finally:
        dispatch.interpreters = before
        dispatch.forget()


Merge = Callable[[list[torch.Tensor]], torch.Tensor]


def pairwise(parts: list[torch.Tensor]) -> torch.Tensor:
    """Add neighbours, then neighbours of those sums."""
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def ascending(parts: list[torch.Tensor]) -> torch.Tensor:
    """Add one part after the other."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def rounded(parts: list[torch.Tensor]) -> torch.Tensor:
    """Add neighbours that were rounded to 16 bits: a mistake."""
    return pairwise([part.bfloat16().float() for part in parts])


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a[M, K] b[N, K]^T in f32 as chain16 has it."""
    left, right = (
        x.contiguous().view(torch.uint16).numpy() if x.dtype is torch.bfloat16 else x.contiguous().numpy()
        for x in (a, b)
    )
    return torch.from_numpy(np.array(dot(left, right, DotModel.CHAIN16, DTYPES[a.dtype])))


def hidden_gradient(dz: torch.Tensor, weight: torch.Tensor, merge: Merge = pairwise) -> torch.Tensor:
    """Return dz weight in f32: a product for each of 8 pieces of ceil(V / 8), merged."""
    size = -(-len(weight) // 8)
    pieces = [slice(i * size, (i + 1) * size) for i in range(8)]
    return merge([product(dz[:, piece], weight[piece].T) for piece in pieces])


def weight_gradient(dz: torch.Tensor, rows: torch.Tensor, merge: Merge = ascending) -> torch.Tensor:
    """Return dz^T rows in f32: a product for each 8192 rows, merged."""
    if not len(rows):
        return torch.zeros(dz.shape[1], rows.shape[1])
    pieces = [slice(low, low + TOKENS) for low in range(0, len(rows), TOKENS)]
    return merge([product(dz[piece].T, rows[piece].T) for piece in pieces])


def reference(
    hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, given: Given, **options: Any
) -> Grads:
    """Return both gradients, from the active rows alone."""
    dz = scores_gradient(hidden, weight, ids, given, **options)
    active = active_rows(ids, options)
    rows = hidden.reshape(-1, hidden.shape[-1])
    d_hidden = torch.zeros_like(rows)
    if len(active):
        d_hidden[active] = hidden_gradient(dz[active], weight).to(hidden.dtype)
    d_weight = weight_gradient(dz[active], rows[active]).to(weight.dtype)
    return {"hidden": d_hidden.view(hidden.shape), "weight": d_weight}
