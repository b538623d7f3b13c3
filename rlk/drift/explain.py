"""Known mistakes in log-probs of equal logits: temperature, roundings, support of a sampler, shifts."""

from __future__ import annotations

from collections.abc import Iterator

import torch

NEAR = 2e-4  # of log-probs of one function, in nats


def explained(
    logits: torch.Tensor, ids: torch.Tensor, temperature: float, mine: torch.Tensor, other: torch.Tensor
) -> str | None:
    """Return the mistake that turns log-probs `mine` f32 [N] into `other`; None for none that is known.

    logits: [N, V], of both. ids: int64 [N], the tokens. temperature: that of `mine`.
    """
    z = logits.double()
    for text, made in _mistakes(z, ids, temperature):
        if _near(made, other) and not _near(made, mine):
            return text
    return _support(z / temperature, ids, mine.double(), other.double())


def _mistakes(z: torch.Tensor, ids: torch.Tensor, t: float) -> Iterator[tuple[str, torch.Tensor]]:
    def of(scores: torch.Tensor, at: torch.Tensor = ids) -> torch.Tensor:
        return torch.log_softmax(scores, -1).gather(-1, at[:, None])[:, 0]

    if t != 1.0:
        yield "the temperature is applied twice", of(z / t / t)
        yield "the temperature is not applied", of(z)
        yield "logits are multiplied by the temperature", of(z * t)
        yield "the temperature divides log-probs, after the softmax", of(z) / t
    yield "logits are rounded to bfloat16", of(z.bfloat16().double() / t)
    yield "logits are rounded to float16", of(z.half().double() / t)
    yield "scaled logits are rounded to bfloat16", of((z / t).bfloat16().double())
    yield "log-probs are rounded to bfloat16", of(z / t).bfloat16().double()
    yield "log-probs are those of the token before", of(z / t, ids.roll(1))
    yield "log-probs are those of the token behind", of(z / t, ids.roll(-1))
    yield "log-probs are those of the likeliest token", of(z / t, z.argmax(-1))
    yield "probabilities, not their logarithms", of(z / t).exp()
    yield "log-probs have the other sign", -of(z / t)
    yield "logits are returned in place of log-probs", (z / t).gather(-1, ids[:, None])[:, 0]


def _near(made: torch.Tensor, found: torch.Tensor) -> bool:
    """Return whether log-probs are equal but for f32 roundings, up to one in ten at the edge of a batch."""
    return float(((made - found.double()).abs() < NEAR).double().mean()) >= 0.9


def _support(z: torch.Tensor, ids: torch.Tensor, mine: torch.Tensor, other: torch.Tensor) -> str | None:
    """Explain larger log-probs by a sum over the likeliest tokens alone."""
    gain = other - mine
    if not bool((gain > -NEAR).all()) or not bool((gain > NEAR).any()):
        return None
    mass = torch.softmax(z, -1).sort(-1, descending=True).values.cumsum(-1)
    counts = ((mass - (-gain).exp()[:, None]).abs()).argmin(-1) + 1
    held = mass.gather(-1, counts[:, None] - 1)[:, 0]
    if not bool(((held.log() + gain).abs() < NEAR).all()):
        return None
    if int(counts.min()) == int(counts.max()):
        return f"log-probs are normalised over the {int(counts[0])} likeliest tokens (top-k), not over all"
    least = float(held.min())
    return f"log-probs are normalised over the likeliest tokens that hold {least:.3f} or more (top-p)"
