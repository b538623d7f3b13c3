"""Policy losses of every kind, and batches of tokens in every layout, for laws that hold for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from rlk import Layout, ops
from rlk.ops import LOSSES, Loss
from rlk.ops.losses import METRICS, Correction, Rejection, Selection, clip, clip_cov, kl_cov

Tensors = dict[str, torch.Tensor]
LENGTHS, WIDTH = (70, 0, 150, 3, 97), 160
GIVEN = ("ref_logp", "rollout_logp", "entropy", "token_weights")


def _levels() -> dict[str, Loss]:
    """Every level with every aggregation, and all terms that are added."""
    base = Loss(beta=0.1, kl="k3+", kl_enters="ratio", entropy_coef=0.1, normalizer=7.0)
    return {
        f"{level}, {aggregation}": replace(base, level=level, aggregation=aggregation)  # type: ignore[arg-type]
        for level in ("token", "sequence", "sequence_own", "sequence_sum")
        for aggregation in ("token_mean", "sequence_mean", "sequence_sum", "sum")
    }


def _corrections() -> dict[str, Loss]:
    base = Loss(level="sequence", aggregation="sequence_mean", entropy_coef=0.1, entropy_mean="tokens")
    return {
        f"{kind} {level}{', normalized' if normalized else ''}": replace(
            base, correction=Correction(kind, level, 0.5, 1.5, 20.0, normalized)  # type: ignore[arg-type]
        )
        for kind in ("truncate", "mask")
        for level in ("token", "sequence")
        for normalized in (False, True)
    }  # fmt: skip


def _rejections() -> dict[str, Loss]:
    base = Loss(level="sequence", aggregation="sequence_mean", metrics=METRICS)
    bounds: dict[str, tuple[float | None, float]] = {
        "k1 token": (-0.1, 0.1), "k1 sum": (-1.0, 0.9), "k1 mean": (-0.01, 0.01), "k1 max": (-0.3, 0.25),
        "k2 token": (None, 0.02), "k2 sum": (None, 0.6), "k2 mean": (None, 0.005), "k2 max": (None, 0.04),
        "k3 token": (None, 0.02), "k3 sum": (None, 0.6), "k3 mean": (None, 0.005), "k3 max": (None, 0.04),
    }  # fmt: skip
    both = Rejection("k2", "token", None, 0.05)
    return {
        f"rejected by {name}": replace(base, rejections=(Rejection(*name.split(), *b, 20.0), both))  # type: ignore[arg-type]
        for name, b in bounds.items()
    }


RECORDS: dict[str, Loss] = {
    **LOSSES,
    **_levels(),
    **_corrections(),
    **_rejections(),
    "drift": Loss(most_drift=0.001, aggregation="sequence_mean", correction=Correction()),
    "penalised advantages": Loss(beta=0.3, kl_enters="advantage", kl="abs", kl_log_limit=0.2, kl_limit=0.1),
    "vespo of corrected tokens": replace(
        LOSSES["vespo"], correction=Correction("truncate", "token", 0.5, 1.5)
    ),
    "vespo of normalized weights": replace(
        LOSSES["vespo"],
        correction=Correction("truncate", "token", 0.5, 1.5, normalized=True),
        rejections=(Rejection("k2", high=0.05),),
    ),
    "limited products of r and kl": Loss(beta=0.3, kl_enters="ratio", kl_limit=0.05),
    "weighted": Loss(weighted=True, beta=0.1, entropy_coef=0.1, kl_enters="ratio"),
    "weighted means of sequences": Loss(
        level="sequence",
        aggregation="sequence_mean",
        weighted=True,
        entropy_coef=0.1,
        rejections=(Rejection("k3", "mean", None, 0.005, 20.0),),
    ),
    "clip_cov of many": Loss(clip_cov(), selection=Selection(0.2, 0.05, 0.6, unclipped=True)),
    "kl_cov of many": Loss(kl_cov(0.5), selection=Selection(0.1)),
    "bypass": Loss(
        bypass=True,
        correction=Correction("mask", "sequence", 0.5, 1.5, 20.0),
        metrics=METRICS,
        rejections=(Rejection("k1", "mean", -0.05, 0.05),),
    ),
    "sequence_mask": Loss(correction=Correction("sequence_mask", "token", 0.99, 1.01, normalized=True)),
    "delta and dual": Loss(clip(dual=1.1, delta=1.3)),
    **{f"kl {kl}": Loss(beta=0.3, kl=kl) for kl in ("k1", "k2", "k3", "abs", "k1+", "k3+")},  # type: ignore[arg-type]
}
SEQUENCES = (
    "gspo", "verl/geo_mean", "sequence, sum", "mask sequence, normalized", "rejected by k1 mean",
    "rejected by k2 max", "drift", "sequence_mask", "weighted means of sequences",
    "vespo of corrected tokens", "sequence_own, sequence_mean",
)  # fmt: skip
"""Losses with every number that a sequence has."""


def batch(seed: int = 0, lengths: tuple[int, ...] = LENGTHS, width: int = WIDTH) -> Tensors:
    """Draw padded tokens on the right, and numbers at the padding too; log-probs near each other."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), width)

    def normal() -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    logp = -3 * torch.rand(shape, generator=generator)
    old = logp + 0.3 * normal()
    return {
        "logp": logp,
        "old_logp": old,
        "ref_logp": logp + 0.3 * normal(),
        "rollout_logp": old + 0.1 * normal(),
        "entropy": torch.rand(shape, generator=generator),
        "advantages": torch.randn(len(lengths), generator=generator),
        "mask": torch.rand(shape, generator=generator) < 0.8,
        "token_weights": (2 * normal()).round() / 2,
    }


@dataclass(frozen=True)
class Form:
    """The form of a batch: where its tokens go, and the layout of the active ones."""

    move: Callable[[torch.Tensor], torch.Tensor]
    layout: Callable[[torch.Tensor], Layout]


def forms(lengths: tuple[int, ...] = LENGTHS, width: int = WIDTH) -> dict[str, Form]:
    """Return the layouts of a batch by name; in all of them the same tokens count."""
    valid = torch.arange(width) < torch.tensor(lengths)[:, None]
    cu = torch.tensor([0, *lengths]).cumsum(0)

    def right(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([row.roll(width - n) for row, n in zip(x, lengths, strict=True)])

    return {
        "packed": Form(lambda x: x[valid], lambda mask: Layout.packed(cu, mask=mask)),
        "right": Form(lambda x: x, lambda mask: Layout.padded(torch.tensor(lengths), width, mask=mask)),
        "left": Form(right, lambda mask: Layout.padded(torch.tensor(lengths), width, side="left", mask=mask)),
        "wide": Form(
            lambda x: torch.nn.functional.pad(x, (0, 37)),
            lambda mask: Layout.padded(torch.tensor(lengths), width + 37, mask=mask),
        ),
    }


def laid_out(form: Form, given: Tensors) -> tuple[Tensors, Layout]:
    """Return a batch's tensors in a layout, and the layout."""
    per_sequence = given["advantages"].dim() == 1
    moved = {
        n: x if n == "advantages" and per_sequence else form.move(x).contiguous().clone()
        for n, x in given.items()
    }
    return moved, form.layout(moved.pop("mask"))


def run(
    form: Form, given: Tensors, loss: Loss | str, op: Any = ops.policy_loss
) -> tuple[Any, Tensors, Layout]:
    """Return a loss, its gradients by logp and entropy, and the layout."""
    moved, layout = laid_out(form, given)
    wide = torch.float64 if op is not ops.policy_loss else torch.float32
    leaves = {n: moved[n].to(wide).requires_grad_() for n in ("logp", "entropy")}
    made = op(**{**moved, **leaves}, layout=layout, loss=loss)
    (1.7 * made.loss).backward()
    return made, {n: x.grad for n, x in leaves.items() if x.grad is not None}, layout
