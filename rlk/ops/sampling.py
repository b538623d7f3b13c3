"""The public sampler: a token, the log-probs it was drawn with, and the support that a trainer replays."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import NamedTuple

import torch

from rlk.errors import Code, LaunchError
from rlk.ops.results import Support
from rlk.ops.signatures import logp
from rlk.runtime.binding.checks import (
    F32_LEAST,
    F32_MOST,
    has_dims,
    has_dtype,
    is_tensor,
    wrong_type,
    wrong_value,
)
from rlk.runtime.binding.invocation import Tensors
from rlk.runtime.call.entry import call, watched, worded
from rlk.specs import sampling as spec

worded(spec.sample, "sample", scores="logits", blocks="logits", inv_temperature="temperature")
PerRow = float | torch.Tensor
INTEGERS = (torch.int64, torch.int32)
Limits = tuple[float, float]
EVERY, ABOVE_ZERO = (-F32_MOST, F32_MOST), (F32_LEAST, F32_MOST)
WIDE, COUNT = (-(2**63), 2**63 - 1), (-1, 2**31 - 1)


class Sample(NamedTuple):
    """token: i64 [B], -1 where a row has no finite score. raw_logp, logp: f32 [B].

    raw_logp: under the softmax of the logits as they are. logp: under the distribution that was drawn from.
    support: what that distribution runs over; `logp(scores, token, temperature=..., support=support)` gives
    `logp` again, bit for bit.
    """

    token: torch.Tensor
    raw_logp: torch.Tensor
    logp: torch.Tensor
    support: Support


@dataclass(frozen=True, slots=True)
class Penalties:
    """Penalties of tokens that occurred before, applied before the temperature.

    counts: int32 or int64 [B, V], how often each token was generated. prompt: bool [B, V], which tokens are
    in the prompt; None stands for none. repetition r: scores of tokens in either are divided by r where
    positive, else multiplied by it (Keskar et al. 2019; 1 changes nothing). frequency: subtracted once for
    each time that a token was generated. presence: subtracted once if it was. Each a number, or floats [B].
    """

    counts: torch.Tensor
    prompt: torch.Tensor | None = None
    repetition: PerRow = 1.0
    frequency: PerRow = 0.0
    presence: PerRow = 0.0


def penalize(logits: torch.Tensor, penalties: Penalties) -> torch.Tensor:
    """Return scores: logits, f32, with penalties: repetition, then frequency, then presence.

    logits: [B, V] bf16, f16 or f32. `sample(logits, penalties=p)` draws from these scores, and
    `logp(penalize(logits, p), token, temperature=..., support=...)` is its log-prob.
    Differentiable in no input. Raises LaunchError.
    """
    if not isinstance(penalties, Penalties):
        raise wrong_type("penalize", "penalties", penalties, "Penalties")
    _matrix("penalize", logits)
    _like("penalize", "counts", penalties.counts, logits, INTEGERS)
    tensors: Tensors = {"logits": logits, "counts": _saturated(penalties.counts)}
    if penalties.prompt is not None:
        _like("penalize", "prompt", penalties.prompt, logits, (torch.bool,))
        tensors["prompt"] = penalties.prompt
    for name, limits in (("repetition", ABOVE_ZERO), ("frequency", EVERY), ("presence", EVERY)):
        tensors[name] = _rows("penalize", name, getattr(penalties, name), logits, torch.float32, limits)
    return call(spec.penalize, tensors, {}, {})["scores"]


def sample(
    logits: torch.Tensor,
    *,
    seed: int | torch.Tensor,
    request_id: torch.Tensor,
    position: torch.Tensor,
    temperature: PerRow = 1.0,
    top_k: int | torch.Tensor = 0,
    top_p: PerRow = 1.0,
    min_p: PerRow = 0.0,
    penalties: Penalties | None = None,
    math: str | None = None,
) -> Sample:
    """Draw a token from each row of logits, and say with which probability.

    logits: [B, V] bf16, f16 or f32, V <= 523264. seed: an integer, or one for each row; request_id, position:
    [B]; int64 or int32. They are all that a draw depends on beside its row and options: Philox 4x32-10 has
    (request_id, position) as counter and seed as key, and its first word becomes (2 k + 1) / 2**24, which is
    strictly between 0 and 1. Neither the slot in the batch, nor its size, nor a graph's capture matters.

    Options are numbers, or one for each row [B], and apply in this order: penalties; temperature (0: the
    largest score, the first of equals); min_p, which drops tokens less likely than min_p times the likeliest;
    top_k, which keeps the k likeliest (0 or -1: all); top_p, which keeps the likeliest that together weigh
    top_p of what is left (1: all). Of equal scores those with lower indices are kept. NaN and -inf are never
    drawn.
    Numbers outside of these ranges raise. In a tensor, top_p and min_p above 1 or below 0 are as 1 or 0, NaN
    is off, and a top_k below 1 keeps all; a row with a negative, infinite or NaN temperature draws nothing,
    as a row without a finite score.

    Tokens weigh exp((z - max z) / temperature) in units of 2**-22, rounded. top_p, to 2**-20, and the draw
    (the first token at which the running weight by index exceeds its part of the whole) are exact integers,
    which no order changes. A row without a finite score, or with +inf, gives token -1, log-probs NaN, and
    sets the device's error word. Differentiable in no input: replay with `logp` for gradients.
    math: "portable" or "sm90" overrides who defines exp2. Raises LaunchError.
    """
    who = {"seed": seed, "request_id": request_id, "position": position}
    made = draw(logits, who, temperature, top_k, top_p, min_p, penalties, math)
    raw = logp(logits.detach(), made.token, math=math).logp
    drawn = logp(made.scores, made.token, temperature=made.temperature, support=made.support, math=math).logp
    assert raw is not None and drawn is not None
    return Sample(made.token, raw, drawn, made.support)


class Draw(NamedTuple):
    """A draw without its log-prob, and what that is of: `logp(scores, token, temperature=..., support=...)`.

    scores: the logits with penalties.
    """

    token: torch.Tensor
    scores: torch.Tensor
    temperature: PerRow
    support: Support


def draw(
    logits: torch.Tensor,
    who: dict[str, int | torch.Tensor],
    temperature: PerRow,
    top_k: int | torch.Tensor,
    top_p: PerRow,
    min_p: PerRow,
    penalties: Penalties | None = None,
    math: str | None = None,
) -> Draw:
    """Draw as `sample` does. who: its seed, request_id and position, by name. Raises LaunchError."""
    _matrix("sample", logits)
    if not 0 < logits.shape[1] <= spec.MOST_TOKENS:
        wanted = f"1 to {spec.MOST_TOKENS}"
        raise LaunchError(
            Code.ARG_VALUE, op="sample", name="logits.shape[1]", value=logits.shape[1], wanted=wanted
        )
    logits = logits.detach()
    scores = logits if penalties is None else penalize(logits, penalties)
    tensors: Tensors = {"scores": scores, "blocks": scores}
    tensors |= {name: _rows("sample", name, x, logits, torch.int64, WIDE) for name, x in who.items()}
    if _is_set(temperature, 1.0):
        made_of = partial(_heats, temperature, logits)
        tensors["inv_temperature"], temperature = _constant("temperature", temperature, logits, made_of)
    tensors |= _cuts(logits, top_k, top_p, min_p)
    made = call(spec.sample, tensors, {}, {}, math)
    support = Support(made["threshold"], made["ties"], made["last"])
    return Draw(made["token"], scores, temperature, support)


def _cuts(logits: torch.Tensor, top_k: int | torch.Tensor, top_p: PerRow, min_p: PerRow) -> Tensors:
    """Return the options that cut tokens off, one for each row, but for those that are off."""
    cuts = (
        ("top_k", top_k, 0, torch.int32, COUNT),
        ("top_p", top_p, 1.0, torch.float32, (0.0, 1.0)),
        ("min_p", min_p, 0.0, torch.float32, (0.0, 1.0)),
    )
    return {
        name: _constant(name, x, logits, partial(_row, "sample", name, x, logits, dtype, limits))[0]
        for name, x, off, dtype, limits in cuts
        if _is_set(x, off)
    }


def _heats(temperature: PerRow, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return 1 / temperature of each row, and the temperature at which its log-prob is taken."""
    heat = _rows("sample", "temperature", temperature, logits, torch.float32, (0.0, F32_MOST))
    inverse = torch.reciprocal(heat)
    # a draw at a temperature whose reciprocal is no f32 number is greedy, as at 0
    return inverse, torch.where(inverse == inf, 1.0, heat)


def _row(
    op: str, name: str, x: object, logits: torch.Tensor, dtype: torch.dtype, limits: Limits
) -> tuple[torch.Tensor]:
    return (_rows(op, name, x, logits, dtype, limits),)


# --- constants

MOST_CONSTANTS = 64
_constants: dict[tuple[object, ...], tuple[torch.Tensor, ...]] = {}


def _constant(
    name: str, option: PerRow, logits: torch.Tensor, make: Callable[[], tuple[torch.Tensor, ...]]
) -> tuple[torch.Tensor, ...]:
    """Return what `make` gives for an option; of a number on a device, what it gave for this one before.

    Making one takes a launch. What is kept is never freed, for a recorded graph may read it: so there are
    few, and none that a recorded stream makes.
    """
    device = logits.device
    if device.type == "cpu" or isinstance(option, torch.Tensor) or watched(logits):
        return make()
    key = (name, type(option), repr(option), len(logits), device)  # 0.0 and -0.0 differ
    found = _constants.get(key)
    if found is None:
        if len(_constants) >= MOST_CONSTANTS or torch.cuda.is_current_stream_capturing():
            return make()
        # another thread: no memory of a graph's pool, no tensor of an inference mode
        with ThreadPoolExecutor(1) as outside:
            found = _constants[key] = outside.submit(_finished, make, device).result()
    return found


def _finished(make: Callable[[], tuple[torch.Tensor, ...]], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return tensors that every stream may read."""
    made = make()
    torch.cuda.current_stream(device).synchronize()
    return made


# --- checks -------------------------------------------------------------------------------------------------


def _is_set(option: PerRow, off: float) -> bool:
    """Return whether an option is one; a tensor's values are not looked at."""
    return isinstance(option, torch.Tensor) or option != off


def _matrix(op: str, logits: object) -> None:
    has_dims(op, "logits", is_tensor(op, "logits", logits).shape, 2, "2 dims [B, V]")


def _like(op: str, name: str, x: torch.Tensor, logits: torch.Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    has_dtype(op, name, is_tensor(op, name, x), *dtypes)
    if x.shape != logits.shape:
        got, wanted = tuple(x.shape), tuple(logits.shape)
        raise LaunchError(
            Code.ARG_SIZE, op=op, name=name, axis="B, V", got=got, other="logits", wanted=wanted
        )


def _saturated(x: torch.Tensor) -> torch.Tensor:
    """Return integers as int32, the nearest there is: a count of 2**40 is not taken modulo 2**32."""
    return x if x.dtype is torch.int32 else x.clamp(-(2**31), 2**31 - 1).to(torch.int32)


def _rows(
    op: str, name: str, x: object, logits: torch.Tensor, dtype: torch.dtype,
    limits: Limits,
) -> torch.Tensor:  # fmt: skip
    """Return an option as one number for each row; limits: of a number, for a tensor's are not looked at."""
    whole = not dtype.is_floating_point
    if isinstance(x, torch.Tensor):
        if whole and x.dtype not in INTEGERS or not whole and not x.dtype.is_floating_point:
            wanted = "int64 or int32" if whole else "a float"
            raise LaunchError(Code.ARG_DTYPE, op=op, name=name, got=x.dtype, wanted=wanted)
        if tuple(x.shape) != (logits.shape[0],):
            got, rows = tuple(x.shape), (logits.shape[0],)
            raise LaunchError(Code.ARG_SIZE, op=op, name=name, axis="B", got=got, other="logits", wanted=rows)
        return _saturated(x) if dtype is torch.int32 else x.to(dtype)
    # no `int | float`: torch.compile follows unions from torch 2.10 on
    if not isinstance(x, (int,) if whole else (int, float)) or isinstance(x, bool):
        raise wrong_type(op, name, x, "int" if whole else "number")
    if not limits[0] <= x <= limits[1]:
        wanted = "{} to {}" if whole else "{:g} to {:g}"
        raise wrong_value(op, name, x, wanted.format(*limits))
    return torch.full((logits.shape[0],), x, dtype=dtype, device=logits.device)
