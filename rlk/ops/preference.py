"""The public preference losses: their names, constants and references."""

from __future__ import annotations

import math
from typing import Literal

import torch

from rlk.errors import Code, LaunchError
from rlk.ops.offsets import all_good, on_the_host
from rlk.ops.results import KTOLoss, PreferenceLoss
from rlk.runtime.binding.checks import (
    are_tensors,
    has_dims,
    has_dtype,
    is_among,
    is_tensor,
    number,
    positive,
    same_device,
    wrong_type,
    wrong_value,
)
from rlk.runtime.binding.invocation import Scalars, Tensors
from rlk.runtime.call.entry import call, worded
from rlk.specs import preference as preference_spec
from rlk.specs.packing import TOKENS
from rlk.specs.preference import KINDS, OF_MARGIN, OF_RANK

worded(preference_spec.kto_loss, "kto_loss", other_logp="mismatched[0]", other_ref_logp="mismatched[1]")
WITHOUT_REFERENCE = {"cpo": "sigmoid", "simpo": "sigmoid", "alphapo": "sigmoid", "orpo": "orpo"}
"""Losses of the log-probs alone, by the formula that they share."""
NAMES = (*KINDS, "cpo", "simpo", "alphapo")
SMOOTHED = ("sigmoid", "robust", "exo_pair", *OF_RANK)
PER_TOKEN = ("simpo", "alphapo", "orpo")
DIVERGENCES = ("reverse_kl", "forward_kl", "js", "alpha")
UNPAIRED = ("kto", "apo_zero_unpaired")
Name = Literal[
    "sigmoid", "robust", "hinge", "ipo", "exo_pair", "discopop", "nca_pair", "bco_pair", "sppo_hard",
    "apo_zero", "apo_down", "orpo", "cpo", "simpo", "alphapo", "aot", "aot_unpaired",
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
    divergence: Literal["reverse_kl", "forward_kl", "js", "alpha"] = "reverse_kl",
    alpha: float | None = None,
    weights: torch.Tensor | None = None,
) -> PreferenceLoss:
    """Return the mean over pairs of a preference loss, on log-probs summed over completions.

    chosen, rejected, ref_chosen, ref_rejected: f32 [P]. chosen_tokens, rejected_tokens: int32 or int64 [P],
    at least 1 each (on a device another one gives NaN and sets the error word); with them scores are per
    token: log-probs, minus those of the reference, over the count. weights: f32 [P], which multiply what
    pairs add, without a gradient; the mean is over P all the same (WPO, Zhou 2024: see `sequence_logp`).

    divergence: a score is f'(t) of the ratio t to the reference, before it is one per token (Wang 2023):
    "reverse_kl" log t; "forward_kl" 1 - 1 / t; "js" log(2 t / (1 + t)); "alpha" (t^(alpha - 1) - 1) /
    (alpha - 1), its exponent limited to 80, log t for alpha 1. For sigmoid, robust, hinge, ipo, exo_pair and
    discopop.

    loss, with a = beta chosen score, b = beta rejected score, u = a - b - margin, ls = log sigmoid:
    "sigmoid" -ls(u) (DPO, Rafailov 2023; with smoothing s: -(1 - s) ls(u) - s ls(-u)); "robust"
    (s ls(-u) - (1 - s) ls(u)) / (1 - 2 s) (Chowdhury 2024); "hinge" max(0, 1 - u) (SLiC, Zhao 2023); "ipo"
    (chosen - rejected - 1 / (2 beta))^2 of the scores (Azar 2024); "exo_pair" (Ji 2024); "discopop", at
    temperature tau (Lu 2024); "nca_pair" (Chen 2024); "bco_pair" -ls(a) - ls(-b) (Jung 2024); "sppo_hard"
    (Wu 2024); "apo_zero", "apo_down" (D'Oosterlinck 2024). Without a reference: "cpo" as sigmoid (Xu 2024);
    "simpo" as sigmoid, per token, with its margin (Meng 2024); "alphapo" as simpo, of scores
    (1 - p^-alpha) / alpha, p the mean of log-probs exponentiated (Gupta 2025; alpha 0: simpo); "orpo" -beta
    ls(log odds ratio), per token (Hong 2024). The likelihood terms that CPO, ORPO and RPO add: `nll_loss`.
    Of ranks in the batch (AOT, Melnyk 2024), sigmoid of beta times a difference of sorted numbers: "aot" of
    chosen - rejected and ref_chosen - ref_rejected; "aot_unpaired" of chosen - ref_chosen and rejected -
    ref_rejected. Each is ranked by its f32 difference, equal ones in the order of the batch, NaN last; a pair
    adds the term of its first difference.

    per_pair is f32 [P]; metrics: accuracy (how often chosen scores higher), chosen_reward and
    rejected_reward (means of a and b). Sums run over pairs in chunks of 1024 as halving trees, ascending. No
    pair: loss 0. Differentiable in chosen and rejected. Raises LaunchError.
    """
    op = "preference_loss"
    is_among(op, "loss", loss, NAMES)
    kind = WITHOUT_REFERENCE.get(loss, loss)
    tensors: Tensors = {"chosen": chosen, "rejected": rejected}
    tensors |= _references(loss, ref_chosen, ref_rejected)
    counts = _counts(loss, chosen_tokens, rejected_tokens)
    tensors |= counts
    if weights is not None:
        tensors["weights"] = weights
    _rows(op, tensors)
    tensors |= _counted(tensors, counts)
    if kind in OF_RANK:
        tensors |= _ranked(kind, tensors)
    scalars: Scalars = {"beta": positive(op, "beta", beta)} | _smoothing(kind, smoothing)
    scalars |= _margin(loss, kind, margin)
    link, power = _link(loss, kind, divergence, alpha)
    scalars |= power
    if kind == "discopop":
        scalars["tau"] = positive(op, "tau", tau)
    made = call(preference_spec.preference_loss, tensors, scalars, {"kind": kind, "link": link})
    metrics = {name: made[name] for name in ("accuracy", "chosen_reward", "rejected_reward")}
    return PreferenceLoss(made["loss"], made["per_pair"], metrics)


def _margin(loss: str, kind: str, value: float) -> Scalars:
    """Return the margin of a loss that has one, where it is not 0."""
    if number("preference_loss", "margin", value) == 0.0:
        return {}
    if kind not in OF_MARGIN or kind == "ipo":
        raise wrong_value("preference_loss", "margin", value, f"0 for {loss}")
    return {"margin": float(value)}


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


def _counted(tensors: Tensors, counts: Tensors) -> Tensors:
    """Return log-probs that are NaN where their count of tokens is not positive: host counts are refused."""
    op, found = "preference_loss", {}
    for name, count in counts.items():
        has_dtype(op, name, count, torch.int32, torch.int64)
        side = name.removesuffix("_tokens")
        if on_the_host(count):
            if bool((count < 1).any()):
                raise wrong_value(op, name, int(count.min()), "numbers of at least 1")
        elif count.shape == tensors[side].shape and count.device == tensors[side].device:
            bad = count < 1
            all_good(op, bad, TOKENS)
            found[side] = torch.where(bad, torch.nan, tensors[side])
    return found


def _link(loss: str, kind: str, divergence: str, alpha: float | None) -> tuple[str, Scalars]:
    """Return the link function of scores, and its number; alpha must be given if and only if it is read."""
    op = "preference_loss"
    is_among(op, "divergence", divergence, DIVERGENCES)
    if divergence != "reverse_kl" and (kind not in OF_MARGIN or loss in WITHOUT_REFERENCE):
        raise wrong_value(op, "divergence", divergence, f"reverse_kl for {loss}")
    link = "alphapo" if loss == "alphapo" else divergence
    if link not in ("alphapo", "alpha"):
        if alpha is not None:
            raise wrong_value(op, "alpha", alpha, f"None for {loss} with {divergence}")
        return "none" if link == "reverse_kl" else link, {}
    if alpha is None:
        raise LaunchError(Code.ARG_MISSING, op=op, name="alpha", why=f"by {link}")
    value = number(op, "alpha", alpha)
    if not math.isfinite(value):
        raise wrong_value(op, "alpha", alpha, "a finite number")
    power = -value if link == "alphapo" else value - 1.0
    return (link, {"power": power}) if power != 0.0 else ("none", {})


def _ranked(kind: str, given: Tensors) -> Tensors:
    """Return which pair has the rank of each on the other side, and the inverse: int32 [P]."""
    op = "preference_loss"
    for name in ("chosen_tokens", "rejected_tokens", "weights"):
        if name in given:
            raise wrong_value(op, name, "a tensor", f"None for {kind}")
    first = ("chosen", "rejected") if kind == "aot" else ("chosen", "ref_chosen")
    other = ("ref_chosen", "ref_rejected") if kind == "aot" else ("rejected", "ref_rejected")
    sizes = {name: tuple(x.shape) for name, x in given.items()}
    for name, size in sizes.items():
        same_device(op, name, given[name], "chosen", given["chosen"].device)
        if size != sizes["chosen"]:
            got, wanted = size, sizes["chosen"]
            raise LaunchError(
                Code.ARG_SIZE, op=op, name=name, axis="P", got=got, other="chosen", wanted=wanted
            )
    orders = [
        torch.sort(given[a].detach() - given[b].detach(), stable=True).indices for a, b in (first, other)
    ]
    found = []
    for one, two in (orders, orders[::-1]):
        partner = torch.empty_like(one)
        found.append(partner.scatter(0, one, two).to(torch.int32))
    return {"partner": found[0], "back": found[1]}


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
    loss: Literal["kto", "apo_zero_unpaired"] = "kto",
) -> KTOLoss:
    """Return the mean over samples of w (1 - sigmoid(beta (r - z))), r - z negated for undesirable ones.

    r = logp - ref_logp, on log-probs summed over completions, f32 [P]. desirable: bool [P]; w is
    desirable_weight, or undesirable_weight. z = max(0, mean of logp - ref_logp over completions of other
    prompts): mismatched=(logp, ref_logp), f32 [M], of all ranks if there are several; without it z = 0
    (Ethayarajh 2024). loss: "apo_zero_unpaired" (D'Oosterlinck 2024) is that with z = 0, and takes no
    mismatched completions. per_sample is f32 [P]; metrics: divergence, z. Sums run over samples in a fixed
    order. No sample: loss 0. Differentiable in logp; z has no gradient. Raises LaunchError.
    """
    op = "kto_loss"
    is_among(op, "loss", loss, UNPAIRED)
    if loss != "kto" and mismatched is not None:
        raise wrong_value(op, "mismatched", "a pair of tensors", f"None for {loss}")
    tensors: Tensors = {"logp": logp, "ref_logp": ref_logp, "desirable": desirable}
    if mismatched is not None:
        if not isinstance(mismatched, (tuple, list)) or len(mismatched) != 2:
            raise wrong_type(op, "mismatched", mismatched, "pair (logp, ref_logp)")
        others = dict(zip(("other_logp", "other_ref_logp"), mismatched, strict=True))
        for i, x in enumerate(mismatched):
            name = f"mismatched[{i}]"
            has_dims(op, name, is_tensor(op, name, x).shape, 1, "1 dim")
            if x.requires_grad and torch.is_grad_enabled():
                raise LaunchError(Code.NOT_DIFFERENTIABLE, op=op, name=name, choices="logp")
        tensors |= others
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
