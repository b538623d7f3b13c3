"""The public preference losses: which constants and references a loss takes, and what it is called."""

from __future__ import annotations

from typing import Literal

import torch

from rlk.errors import Code, LaunchError
from rlk.ops.checks import (
    are_tensors,
    has_dims,
    is_among,
    is_tensor,
    number,
    positive,
    wrong_type,
    wrong_value,
)
from rlk.ops.results import KTOLoss, PreferenceLoss
from rlk.runtime.calls import call, worded
from rlk.runtime.invocation import Scalars, Tensors
from rlk.specs import preference as preference_spec
from rlk.specs.preference import KINDS, OF_MARGIN

worded(preference_spec.kto_loss, "kto_loss", other_logp="mismatched[0]", other_ref_logp="mismatched[1]")
WITHOUT_REFERENCE = {"cpo": "sigmoid", "simpo": "sigmoid", "orpo": "orpo"}
"""Losses of the log-probs alone, by the formula that they share."""
NAMES = (*KINDS, "cpo", "simpo")
SMOOTHED = ("sigmoid", "robust", "exo_pair")
PER_TOKEN = ("simpo", "orpo")
Name = Literal[
    "sigmoid", "robust", "hinge", "ipo", "exo_pair", "discopop", "nca_pair", "bco_pair", "sppo_hard",
    "apo_zero", "apo_down", "orpo", "cpo", "simpo",
]  # fmt: skip


def preference_loss(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    ref_chosen: torch.Tensor | None = None,
    ref_rejected: torch.Tensor | None = None,
    *,
    loss: Name = "sigmoid",
    beta: float = 0.1,
    smoothing: float = 0.0,
    margin: float = 0.0,
    tau: float = 0.05,
    chosen_tokens: torch.Tensor | None = None,
    rejected_tokens: torch.Tensor | None = None,
) -> PreferenceLoss:
    """Return the mean over pairs of a preference loss, on log-probs summed over completions.

    chosen, rejected, ref_chosen, ref_rejected: f32 [P]. chosen_tokens, rejected_tokens: int32 or int64 [P];
    with them scores are per token: log-probs, minus those of the reference, over the count.

    loss, with a = beta chosen score, b = beta rejected score, u = a - b - margin, ls = log sigmoid:
    "sigmoid" -ls(u) (DPO, Rafailov 2023; with smoothing s: -(1 - s) ls(u) - s ls(-u)); "robust"
    (s ls(-u) - (1 - s) ls(u)) / (1 - 2 s) (Chowdhury 2024); "hinge" max(0, 1 - u) (SLiC, Zhao 2023); "ipo"
    (chosen - rejected - 1 / (2 beta))^2 of the scores (Azar 2024); "exo_pair" (Ji 2024); "discopop", at
    temperature tau (Lu 2024); "nca_pair" (Chen 2024); "bco_pair" -ls(a) - ls(-b) (Jung 2024); "sppo_hard"
    (Wu 2024); "apo_zero", "apo_down" (D'Oosterlinck 2024). Without a reference: "cpo" as sigmoid (Xu 2024);
    "simpo" as sigmoid, per token, with its margin (Meng 2024); "orpo" -beta ls(log odds ratio), per token
    (Hong 2024). The likelihood terms that CPO and ORPO add are the caller's.

    per_pair is f32 [P]; metrics: accuracy (how often chosen scores higher), chosen_reward and
    rejected_reward (means of a and b). Sums run over pairs in a fixed order. No pair: loss 0.
    Differentiable in chosen and rejected. Raises LaunchError.
    """
    op = "preference_loss"
    is_among(op, "loss", loss, NAMES)
    kind = WITHOUT_REFERENCE.get(loss, loss)
    tensors: Tensors = {"chosen": chosen, "rejected": rejected}
    tensors |= _references(loss, ref_chosen, ref_rejected)
    tensors |= _counts(loss, chosen_tokens, rejected_tokens)
    _rows(op, tensors)
    scalars: Scalars = {"beta": positive(op, "beta", beta)} | _smoothing(kind, smoothing)
    if number(op, "margin", margin) != 0.0:
        if kind not in OF_MARGIN or kind == "ipo":
            raise wrong_value(op, "margin", margin, f"0 for {loss}")
        scalars["margin"] = float(margin)
    if kind == "discopop":
        scalars["tau"] = positive(op, "tau", tau)
    made = call(preference_spec.preference_loss, tensors, scalars, {"kind": kind})
    metrics = {name: made[name] for name in ("accuracy", "chosen_reward", "rejected_reward")}
    return PreferenceLoss(made["loss"], made["per_pair"], metrics)


def _references(loss: str, chosen: torch.Tensor | None, rejected: torch.Tensor | None) -> Tensors:
    """Return the log-probs of the reference: both, or none where a loss has none."""
    op, given = "preference_loss", {"ref_chosen": chosen, "ref_rejected": rejected}
    there = {name: x for name, x in given.items() if x is not None}
    if loss in WITHOUT_REFERENCE and there:
        name = next(iter(there))
        raise wrong_value(op, name, "a tensor", f"None for {loss}")
    if loss not in WITHOUT_REFERENCE and len(there) < 2:
        name = next(name for name, x in given.items() if x is None)
        raise LaunchError(Code.ARG_MISSING, op=op, name=name, why=f"by {loss}")
    return there


def _counts(loss: str, chosen: torch.Tensor | None, rejected: torch.Tensor | None) -> Tensors:
    """Return the numbers of tokens: both, or none where a loss needs none."""
    op, given = "preference_loss", {"chosen_tokens": chosen, "rejected_tokens": rejected}
    there = {name: x for name, x in given.items() if x is not None}
    if len(there) == 1 or (loss in PER_TOKEN and not there):
        name = next(name for name, x in given.items() if x is None)
        why = f"by {loss}, which is per token" if not there else "where the other count is there"
        raise LaunchError(Code.ARG_MISSING, op=op, name=name, why=why)
    return there


def _smoothing(kind: str, value: float) -> Scalars:
    """Return the smoothing of a loss that has one; sigmoid without it is another formula."""
    op, given = "preference_loss", number("preference_loss", "smoothing", value)
    if kind not in SMOOTHED:
        allowed, wanted = given == 0.0, f"0 for {kind}"
    else:
        least = "above 0" if kind == "exo_pair" else "0 or more"
        allowed, wanted = 0.0 <= given < 0.5 and (given > 0.0 or kind != "exo_pair"), f"{least}, below 0.5"
    if not allowed:
        raise wrong_value(op, "smoothing", value, wanted)
    return {"smoothing": given} if given or kind == "robust" else {}


def kto_loss(
    logp: torch.Tensor,
    ref_logp: torch.Tensor,
    desirable: torch.Tensor,
    *,
    beta: float = 0.1,
    mismatched: tuple[torch.Tensor, torch.Tensor] | None = None,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> KTOLoss:
    """Return the mean over samples of w (1 - sigmoid(beta (r - z))), r - z negated for undesirable ones.

    r = logp - ref_logp, on log-probs summed over completions, f32 [P]. desirable: bool [P]; w is
    desirable_weight, or undesirable_weight. z = max(0, mean of logp - ref_logp over completions of other
    prompts): mismatched=(logp, ref_logp), f32 [M], of all ranks if there are several; without it z = 0
    (Ethayarajh 2024). per_sample is f32 [P]; metrics: divergence, z. Sums run over samples in a fixed order.
    No sample: loss 0. Differentiable in logp; z has no gradient. Raises LaunchError.
    """
    op = "kto_loss"
    tensors: Tensors = {"logp": logp, "ref_logp": ref_logp, "desirable": desirable}
    if mismatched is not None:
        if not isinstance(mismatched, (tuple, list)) or len(mismatched) != 2:
            raise wrong_type(op, "mismatched", mismatched, "pair (logp, ref_logp)")
        others = dict(zip(("other_logp", "other_ref_logp"), mismatched, strict=True))
        for i, x in enumerate(mismatched):
            is_tensor(op, f"mismatched[{i}]", x)
        tensors |= {name: x.detach() for name, x in others.items()}
    _rows(op, tensors)
    weights = {"desirable_weight": desirable_weight, "undesirable_weight": undesirable_weight}
    scalars: Scalars = {"beta": positive(op, "beta", beta)}
    scalars |= {name: number(op, name, x, least=0.0) for name, x in weights.items()}
    made = call(preference_spec.kto_loss, tensors, scalars, {})
    divergence = made["divergence"] if mismatched is not None else torch.zeros_like(made["loss"].detach())
    return KTOLoss(made["loss"], made["per_sample"], {"divergence": divergence})


def _rows(op: str, tensors: Tensors) -> None:
    """Refuse tensors that are not one number for each row."""
    are_tensors(op, **tensors)
    for name, x in tensors.items():
        has_dims(op, name, x.shape, 1, "1 dim")
