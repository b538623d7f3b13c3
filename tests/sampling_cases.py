"""An independent account of sampling: sort, add up integer weights, walk along them; and who draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rlk.interp import floats
from rlk.interp.philox import philox

Array = NDArray[np.float32]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Options:
    """The options of one row."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True)
class Drawn:
    """The expected result of one row: the ids of its support, ascending, and the token."""

    kept: tuple[int, ...]
    token: int


def weights(x: Array, temperature: float) -> NDArray[np.int64]:
    """Return exp((x - max x) / temperature) in units of 2**-22, with the exp2 of the portable model."""
    inverse = np.float32(1.0) / np.float32(temperature)
    best = x.max()
    with np.errstate(all="ignore"):
        power = (x * inverse - best * inverse) * np.float32(1.4426950408889634)
    e = np.where(x == best, np.float32(1.0), floats.portable("exp2")(power))
    return np.rint(e.astype(np.float64) * 2**22).astype(np.int64)


def numerator(seed: int, request: int, position: int) -> int:
    """Return the numerator of the draw, of 2**24."""
    words = [w for x in (request, position, seed) for w in (x & 0xFFFFFFFF, x >> 32 & 0xFFFFFFFF)]
    first, *_ = philox((words[0], words[1], words[2], words[3]), (words[4], words[5]))
    return 2 * (int(first) >> 9) + 1


def by_sorting(row: torch.Tensor, options: Options, part: int) -> Drawn:
    """Return what a row of scores keeps and draws: a stable sort, then running sums in Python integers."""
    x = np.where(np.isnan(row.float().numpy()), -np.inf, row.float().numpy()).astype(np.float32)
    greedy = options.temperature == 0.0
    temperature = 1.0 if greedy else options.temperature
    weight = weights(x, temperature)
    order = [int(i) for i in np.argsort(-x, kind="stable") if x[i] > -np.inf]
    if greedy:
        return Drawn((order[0],), order[0])
    if options.min_p > 0:
        margin = floats.portable("log")(np.float32([options.min_p]))[0]
        bound = x.max() + margin / (np.float32(1.0) / np.float32(temperature))
        order = [i for i in order if x[i] >= bound]
    if 0 < options.top_k < len(x):
        order = order[: options.top_k]
    if options.top_p < 1.0:
        fraction = int(np.float32(options.top_p) * np.float32(2**20))
        goal = max(1, -(-int(weight[order].sum()) * fraction // 2**20))
        before = np.cumsum(weight[order]) - weight[order]
        order = [i for i, mass in zip(order, before, strict=True) if mass < goal]
    kept = sorted(order)
    target = int(weight[kept].sum()) * part // 2**24
    return Drawn(tuple(kept), kept[int(np.searchsorted(np.cumsum(weight[kept]), target, side="right"))])


def scores(rows: int, vocabulary: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Return logits with many ties, and in every fifth row a NaN, -inf and +-0."""
    made = 3 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))
    made = (made * 8).round() / 8
    if vocabulary > 4:
        made[::5, 1], made[::5, 2], made[::5, 3], made[::5, 4] = torch.nan, -torch.inf, 0.0, -0.0
    return made.to(dtype)


def requests(rows: int) -> dict[str, torch.Tensor]:
    """Return who asks in each row, and at which position: beyond 32 bits too."""
    index = torch.arange(rows)
    return {"seed": 7 + (index << 40), "request_id": index * 3 + (1 << 35), "position": 100 - index}


EVERY = (
    Options(), Options(top_k=1), Options(top_k=5), Options(0.7, 50, 0.9), Options(1.3, 0, 0.5),
    Options(0.0, 9, 0.3, 0.2), Options(0.5, 3000, 0.999), Options(2.0, min_p=0.1), Options(1.0, 7, 0.0),
    Options(0.8, 20, 0.7, 0.05), Options(top_p=0.25), Options(100.0, 2000, 0.99, 0.9),
)  # fmt: skip
"""Options that meet each other: one row has the first, the next the second."""


def by_row(rows: int, turn: int = 0) -> tuple[list[Options], dict[str, torch.Tensor]]:
    """Return options for each row, and as tensors."""
    chosen = [EVERY[(i + turn) % len(EVERY)] for i in range(rows)]
    names = {
        "temperature": torch.float32,
        "top_k": torch.int32,
        "top_p": torch.float32,
        "min_p": torch.float32,
    }
    return chosen, {
        name: torch.tensor([getattr(o, name) for o in chosen], dtype=dtype) for name, dtype in names.items()
    }
