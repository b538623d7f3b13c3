"""Tables of cosines and sines for rotary embeddings, with the same bits on every host."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from rlk.errors import Code, LaunchError
from rlk.runtime.binding.checks import integer, is_among, number, positive, wrong_type, wrong_value

F32 = NDArray[np.float32]
NAME = "rope_table"
BASE = 10000.0
ROWS = 256  # of a table at once, so that their numbers in f64 stay in a cache
SCALINGS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
"""The types of scaling, and the numbers that each is given by, as the config of a model names them."""
OPTIONAL = {"yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")}
"""Numbers that a type has defaults for."""
ZERO_IS_ABSENT = {"yarn": ("mscale", "mscale_all_dim")}
"""Those of which configs write 0 where they mean none."""
# pi / 2 in three parts: of 26 bits, so that n times a part is exact for n < 2**27, twice; and the rest
HALF_PI = (1.5707963109016418, 1.5893254712295857e-08, 6.123233995736766e-17)
LAST_COSINE, LAST_SINE = 16, 17  # powers of the last terms: the next one is below 2**-58 up to pi / 4


def rope_table(
    positions: int,
    dim: int,
    *,
    base: float | None = None,
    scaling: Mapping[str, object] | None = None,
    device: torch.device | str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin f32 [positions, dim / 2] of the angles of positions 0, 1, ..., for `rope`.

    dim: how many elements of a head are rotated, an even number: its `rotary_dim`. base: `rope_theta`, by
    default 10000. scaling: as `rope_parameters` (or `rope_scaling`) in the config of a model: "rope_type"
    "default", "linear" with "factor", "llama3" with "factor", "low_freq_factor", "high_freq_factor" and
    "original_max_position_embeddings" (Dubey et al. 2024), or "yarn" with "factor" and
    "original_max_position_embeddings" (Peng et al. 2023) and, where they are not its defaults, "beta_fast"
    (32), "beta_slow" (1), "truncate" (True), "attention_factor", or "mscale" and "mscale_all_dim" (0: none);
    its cosines and sines are multiplied by its attention factor in f32. "rope_theta" may stand there instead
    of `base`.

    The angle is position * frequency in f32, with the bits that transformers gives both on a CPU. Its cosine
    and sine are made in f64 by additions and products alone and rounded once: unlike those of math libraries,
    which differ between devices and builds of torch, they are the same on every host. Made on the CPU: build
    a table once for a model. Raises LaunchError.
    """
    count = integer(NAME, "positions", positions, 1, 2**24)  # f32 holds every one of them
    if integer(NAME, "dim", dim, 2, 2**16) % 2:
        raise wrong_value(NAME, "dim", dim, "an even number")
    kind, numbers = _scaling(scaling)
    frequencies = _frequencies(dim, base, scaling).numpy()
    made = np.empty((2, count, dim // 2), np.float32)
    for first in range(0, count, ROWS):
        rows = np.arange(first, min(first + ROWS, count), dtype=np.float32)
        made[:, first : first + ROWS] = _cos_sin(rows[:, None] * frequencies)
    if kind == "yarn":
        made *= np.float32(_attention_factor(numbers))
    cos, sin = torch.from_numpy(made).to(device)
    return cos, sin


def _frequencies(dim: int, base: float | None, scaling: Mapping[str, object] | None) -> torch.Tensor:
    """Return the f32 angles of position 1, by the operations of transformers' modeling_rope_utils."""
    kind, numbers = _scaling(scaling)
    theta = numbers.get("rope_theta")
    if base is not None:
        if theta is not None:
            raise wrong_value(NAME, "base", base, "None where scaling has a rope_theta")
        theta = positive(NAME, "base", base)
    steps = torch.arange(0, dim, 2, dtype=torch.float32, device="cpu")  # engines set another default device
    if kind == "yarn" and theta is not None and theta <= 1:
        name = "base" if base is not None else 'scaling["rope_theta"]'
        raise wrong_value(NAME, name, theta, "a number above 1: yarn divides by its logarithm")
    theta = BASE if theta is None else theta
    powers: torch.Tensor = theta ** (steps / dim)
    plain = 1.0 / powers
    match kind:
        case "linear":
            return plain / numbers["factor"]
        case "llama3":
            return _llama3(plain, *(numbers[name] for name in SCALINGS["llama3"]))
        case "yarn":
            kept = 1 - _ramp(dim, theta, numbers)
            return 1.0 / (numbers["factor"] * powers) * (1 - kept) + plain * kept
        case _:
            return plain


def _llama3(plain: torch.Tensor, factor: float, low: float, high: float, context: float) -> torch.Tensor:
    """Divide the frequencies of long waves by the factor, leave short ones, interpolate between them."""
    length = 2 * math.pi / plain
    scaled = torch.where(length > context / low, plain / factor, plain)
    share = (context / length - low) / (high - low)
    between = (1 - share) * scaled / factor + share * scaled
    return torch.where((length >= context / high) & (length <= context / low), between, scaled)


def _ramp(dim: int, theta: float, numbers: Mapping[str, float]) -> torch.Tensor:
    """Return by how much each frequency is interpolated by yarn: 0 for short waves, 1 for long ones."""
    context = numbers["original_max_position_embeddings"]

    def place(rotations: float) -> float:  # the dim that turns so often within the original context
        return (dim * math.log(context / (rotations * 2 * math.pi))) / (2 * math.log(theta))

    low, high = place(numbers.get("beta_fast", 32)), place(numbers.get("beta_slow", 1))
    if numbers.get("truncate", 1.0):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    return torch.clamp((torch.arange(dim // 2, dtype=torch.float32, device="cpu") - low) / (high - low), 0, 1)


def _attention_factor(numbers: Mapping[str, float]) -> float:
    """Return the factor of yarn's cosines and sines."""
    given = numbers.get("attention_factor")
    if given is not None:
        return given
    scale, both = numbers["factor"], (numbers.get("mscale"), numbers.get("mscale_all_dim"))

    def grown(by: float) -> float:
        return 0.1 * by * math.log(scale) + 1.0 if scale > 1 else 1.0

    return grown(both[0]) / grown(both[1]) if both[0] and both[1] else grown(1)


def _scaling(scaling: object) -> tuple[str, dict[str, float]]:
    """Return the type of a scaling and its numbers; raise LaunchError for one that is not known."""
    if scaling is None:
        return "default", {}
    if not isinstance(scaling, Mapping):
        raise wrong_type(NAME, "scaling", scaling, "mapping")
    given = {name: value for name, value in scaling.items() if value is not None}
    kind = given.pop("rope_type", None) or given.pop("type", "default")
    given.pop("type", None)  # older configs name it twice
    is_among(NAME, 'scaling["rope_type"]', kind, tuple(SCALINGS))
    for name in ZERO_IS_ABSENT.get(kind, ()):
        if given.get(name) == 0:
            del given[name]
    wanted = SCALINGS[kind]
    if missing := [name for name in wanted if name not in given]:
        why = f"for the type {kind}"
        raise LaunchError(Code.ARG_MISSING, op=NAME, name=f'scaling["{missing[0]}"]', why=why)
    known = (*wanted, *OPTIONAL.get(kind, ()), "rope_theta")
    if unknown := [name for name in given if name not in known]:
        accepted = ", ".join(known)
        name = unknown[0]
        raise wrong_value(NAME, f'scaling["{name}"]', given[name], f"only {accepted} for the type {kind}")
    truncate = given.pop("truncate", True)
    if truncate not in (True, False):
        raise wrong_value(NAME, 'scaling["truncate"]', truncate, "True or False")
    numbers = {name: positive(NAME, f'scaling["{name}"]', value) for name, value in given.items()}
    if kind == "yarn":
        numbers["truncate"] = float(truncate)
    if kind == "llama3":
        number(
            NAME, 'scaling["high_freq_factor"]', numbers["high_freq_factor"], above=numbers["low_freq_factor"]
        )
    return kind, numbers


def _cos_sin(angles: F32) -> tuple[F32, F32]:
    """Return cos and sin of f32 angles from 0 to 2**24, rounded from f64.

    Every operation is a sum, product or rounding that IEEE 754 defines, each by itself: no fma, no library.
    """
    x = angles.astype(np.float64)
    n = np.rint(x * (2 / math.pi))
    r = x
    for part in HALF_PI:
        r = r - n * part
    square = r * r
    cosine = _series(square, LAST_COSINE)
    sine = _series(square, LAST_SINE) * r
    quadrant = n.astype(np.int64) & 3
    odd = (quadrant & 1) == 1
    cos, sin = np.where(odd, sine, cosine), np.where(odd, cosine, sine)
    signs = np.where((quadrant == 1) | (quadrant == 2), -1.0, 1.0), np.where(quadrant >= 2, -1.0, 1.0)
    return (cos * signs[0]).astype(np.float32), (sin * signs[1]).astype(np.float32)


def _series(square: NDArray[np.float64], last: int) -> NDArray[np.float64]:
    """Return sum of (-1)^(k // 2) x^k / k! over even or odd k up to the last, less a factor x if odd."""
    total = np.full_like(square, (-1.0) ** (last // 2) / math.factorial(last))
    for k in range(last - 2, -1, -2):
        total *= square
        total += (-1.0) ** (k // 2) / math.factorial(k)
    return total
