"""Losses by name: as published, and with every constant of a framework that implements them."""

from __future__ import annotations

import math
from dataclasses import replace

from rlk.ops.losses import (
    Correction,
    Loss,
    Selection,
    cispo,
    clip,
    clip_cov,
    dppo_kl,
    dppo_tv,
    dro,
    ipo_mask,
    kl_cov,
    lower_mask,
    reinforce,
    sapo,
    vespo,
)

_VESPO_LIMITS = {"token_limits": (-20.0, 20.0), "sequence_limits": (math.log(1e-8), 20.0)}
_GSPO = clip(3e-4, 4e-4)

PUBLISHED: dict[str, Loss] = {
    "ppo": Loss(),
    "grpo": Loss(beta=0.04),
    "grpo_sequences": Loss(beta=0.04, aggregation="sequence_mean"),
    "dual_clip": Loss(clip(dual=3.0)),
    "delta": Loss(clip(delta=4.0)),
    "dr_grpo": Loss(aggregation="sequence_sum", sequences="all"),
    "bnpo": Loss(),
    "dapo": Loss(clip(0.2, 0.28)),
    "gspo": Loss(_GSPO, level="sequence", aggregation="sequence_mean"),
    "cispo": Loss(cispo()),
    "sapo": Loss(sapo(), aggregation="sequence_mean"),
    "gmpo": Loss(clip(None, None), level="sequence", token_limits=(-0.4, 0.4), pessimistic=True,
                 aggregation="sequence_mean"),
    "luspo": Loss(_GSPO, level="sequence", aggregation="sequence_sum"),
    "vespo": Loss(vespo(), level="sequence_sum", **_VESPO_LIMITS),  # type: ignore[arg-type]
    "dppo_tv": Loss(dppo_tv()),
    "dppo_kl": Loss(dppo_kl(0.05, 0.05)),
    "ipo_mask": Loss(ipo_mask(0.1)),
    "dro": Loss(dro()),
    "gpg": Loss(reinforce()),
    "reinforce": Loss(reinforce(), aggregation="sequence_sum"),
}  # fmt: skip
"""As their papers say (GRPO: Shao 2024; dual clip: Ye 2020; GSPO: arXiv 2507.18071; GMPO: 2507.20673)."""


def _trl() -> dict[str, Loss]:
    """Return the losses of TRL's GRPOTrainer, `loss_type` by name, for one micro-batch.

    Its clip range is 0.2, beta 0, KL k3 without limits; means over sequences count empty ones, and the
    entropy bonus is a mean over tokens whatever the loss is. cispo: epsilon_high is a ratio, 5 as its
    documentation recommends (its default would be 0.2). grpo_mis: with rollouts by vLLM. dr_grpo: set
    normalizer to max_completion_length.
    """
    base = Loss(sequences="all", entropy_mean="tokens")
    return {
        "grpo": replace(base, aggregation="sequence_mean"),
        "grpo_mis": replace(
            base, aggregation="sequence_mean", correction=Correction("mask", "sequence", high=3.0)
        ),
        "bnpo": base,
        "dapo": base,
        "dr_grpo": replace(base, aggregation="sequence_sum"),
        "gspo": replace(base, level="sequence", aggregation="sequence_mean"),
        "luspo": replace(base, level="sequence", aggregation="sequence_sum"),
        "cispo": replace(base, surrogate=cispo(None, 5.0)),
        "sapo": replace(base, surrogate=sapo(), aggregation="sequence_mean"),
        "vespo": replace(base, surrogate=vespo(), level="sequence_sum", **_VESPO_LIMITS),  # type: ignore[arg-type]
    }


def _verl() -> dict[str, Loss]:
    """Return verl's policy losses by their registered names, `loss_agg_mode` as each recommends.

    Log ratios are limited to +-20 (gspo: at most 10, geo_mean and dro: not at all), the difference and value
    of k3 to +-20 and +-10, and the dual clip c = 3 is always on. tis, sequence_tis, icepop: its rollout
    corrections, whose log ratios are limited to +-20 too. dro has no default penalty: 0.1. bypass_ppo,
    bypass_reinforce: bypass_mode by its loss_type, without a rejection and with rollout_is "token". clip_cov
    takes the largest covariances, where verl draws.
    """
    base = Loss(clip(dual=3.0), token_limits=(-20.0, 20.0), kl_log_limit=20.0, kl_limit=10.0)
    plain = replace(base, token_limits=(None, None))
    means = {"aggregation": "sequence_mean"}
    return {
        "vanilla": base,
        "dppo_tv": replace(base, surrogate=dppo_tv(most=20.0)),
        "dppo_kl": replace(base, surrogate=dppo_kl(0.2, 0.2, most=20.0)),
        "gspo": replace(plain, surrogate=clip(), level="sequence_own", sequence_limits=(None, 10.0), **means),  # type: ignore[arg-type]
        "sapo": replace(base, surrogate=sapo(), **means),  # type: ignore[arg-type]
        "gpg": replace(plain, surrogate=reinforce()),
        "geo_mean": replace(plain, surrogate=clip(None, None), level="sequence", token_limits=(-0.2, 0.2),
                            pessimistic=True, sequences="all", **means),  # type: ignore[arg-type]
        "dro": replace(plain, surrogate=dro()),
        "cispo": replace(base, surrogate=cispo(0.8, 1.2)),
        "reinforce": replace(plain, surrogate=reinforce(), aggregation="sequence_sum"),
        "tis": replace(base, correction=Correction("truncate", "token", None, 2.0, 20.0)),
        "sequence_tis": replace(base, correction=Correction("truncate", "sequence", None, 2.0, 20.0)),
        "icepop": replace(base, correction=Correction("mask", "token", 0.5, 5.0, 20.0)),
        "clip_cov": replace(plain, surrogate=clip_cov(), selection=Selection(2e-4, 1.0, 5.0, unclipped=True)),
        "kl_cov": replace(plain, surrogate=kl_cov(0.1), selection=Selection(2e-4)),
        "bypass_ppo": replace(base, bypass=True),
        "bypass_reinforce": replace(plain, surrogate=reinforce(), bypass=True,
                                    correction=Correction("truncate", "token", None, 2.0, 20.0)),
    }  # fmt: skip


def _slime() -> dict[str, Loss]:
    """Return slime's losses: the mean of each sample's token mean; low_var_kl is limited to +-10."""
    base = Loss(aggregation="sequence_mean", sequences="all", kl_limit=10.0)
    return {
        "ppo": base,
        "gspo": replace(base, level="sequence"),
        "cispo": replace(base, surrogate=cispo(0.8, 1.2)),
        "tis": replace(base, correction=Correction("truncate", low=0.0, high=2.0)),
        "icepop": replace(base, correction=Correction("mask", low=0.0, high=2.0)),
        "unbiased_kl": replace(base, beta=0.001, kl_enters="ratio"),
    }


def _prime() -> dict[str, Loss]:
    """Return prime-rl's losses: old_logp is the rollout's; a sum over tokens, divided by the global count.

    ref_kl: advantages are those that are given, 0, plus ref_logp - logp. Its weights of tokens: weighted.
    """
    return {
        "default": Loss(dppo_tv(0.2, 0.2, most=None, drift=1e-3)),
        "ipo": Loss(ipo_mask(0.1, drift=1e-3)),
        "ref_kl": Loss(lower_mask(0.2, drift=1e-3), beta=1.0, kl="k1", kl_enters="advantage"),
    }


def _openrlhf() -> dict[str, Loss]:
    """Return OpenRLHF's policy losses by the type of their correction, with its default bounds."""
    base = Loss(token_limits=(-20.0, 20.0))
    kinds = {"tis": "truncate", "icepop": "mask", "seq_mask_tis": "sequence_mask"}
    corrected = {
        name: replace(base, correction=Correction(kind, low=0.5, high=5.0))  # type: ignore[arg-type]
        for name, kind in kinds.items()
    }
    return {"ppo": base, **corrected}


PEERS = {
    "trl": _trl(), "verl": _verl(), "slime": _slime(), "prime": _prime(), "openrlhf": _openrlhf()
}  # fmt: skip
LOSSES: dict[str, Loss] = PUBLISHED | {
    f"{peer}/{name}": loss for peer, losses in PEERS.items() for name, loss in losses.items()
}
"""Every loss that has a name: a published one, or peer/name with the peer's constants."""
