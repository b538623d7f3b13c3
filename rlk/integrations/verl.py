"""verl's log-probs, losses and advantages through rlk: `with rlk.integrations.verl.patched(): ...`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlk import ops
from rlk.integrations import verl_losses
from rlk.integrations.swap import Swap, Swaps, known_version
from rlk.integrations.tensors import entropies, f32, no_form, rows_of
from rlk.integrations.vllm import hooks
from rlk.ops.losses import KL

VERSIONS = ("0.9.1",)
KL_NAMES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
MOST_K3 = 10.0


# --- log-probs ----------------------------------------------------------------------------------------------


def logprobs_from_logits(
    logits: torch.Tensor, labels: torch.Tensor, inplace_backward: bool = True
) -> torch.Tensor:
    """Return log-probs of labels [...] of logits [..., V], f32; logits are never written to."""
    found = ops.logp(logits, labels).logp
    assert found is not None
    return found


def entropy_from_logits(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy of each row of logits [..., V], f32."""
    return entropies(logits)


def entropy_from_logits_with_chunking(logits: torch.Tensor, chunk_size: int = 2048) -> torch.Tensor:
    """Return the entropy of each row of logits [N, V], f32; nothing is chunked, nothing needs to be."""
    return entropies(logits)


def kl_penalty(logprob: torch.Tensor, ref_logprob: torch.Tensor, kl_penalty: str) -> torch.Tensor:
    """Return a KL estimate of each token, f32 of the tokens' shape, by any of verl's names but "full"."""
    plain = kl_penalty.removesuffix("+")
    name = KL_NAMES.get(plain, plain)
    if name not in KL:
        raise no_form("verl", f"kl_penalty={kl_penalty!r}", f"use one of {', '.join((*KL, *KL_NAMES))}")
    bent = kl_penalty.endswith("+") and name in ("k1", "k3")
    logp, ref = f32(logprob), f32(ref_logprob).detach()
    kl: torch.Tensor = ops.ratio_kl(logp, logp.detach(), ref, kl=f"{name}+" if bent else name).kl  # type: ignore[arg-type]
    if name != "k3":
        return kl
    # verl limits d to +-20 and then the estimate to 10, which it exceeds at |d| = 20 anyway
    if bent:
        return kl - kl.detach() + kl.detach().clamp(max=MOST_K3)
    return kl.clamp(max=MOST_K3)


# --- advantages ---------------------------------------------------------------------------------------------

Pair = tuple[torch.Tensor, torch.Tensor]


def _outcome(rewards: torch.Tensor, mask: torch.Tensor, index: np.ndarray, **options: Any) -> Pair:
    """Return advantages of rows over groups that share an index, on all of their tokens; twice, as verl."""
    with torch.no_grad():
        scores = rewards.double().sum(-1).float()  # one rounding, in whatever order torch adds
        _, group = np.unique(np.asarray(index), return_inverse=True)
        order = torch.from_numpy(np.argsort(group, kind="stable")).to(scores.device)
        edges = torch.from_numpy(np.concatenate(([0], np.bincount(group).cumsum()))).to(scores.device)
        found = torch.empty_like(scores)
        found[order] = ops.group_advantage(scores[order], edges, **options)
        spread = found[:, None] * mask
    return spread, spread


def grpo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray,
    epsilon: float = 1e-6, norm_adv_by_std_in_grpo: bool = True, config: Any = None,
) -> Pair:  # fmt: skip
    """Return GRPO's advantages [B, L] twice; 0 for a lone sample and for equal rewards."""
    scale = "group" if norm_adv_by_std_in_grpo else "none"
    return _outcome(token_level_rewards, response_mask, index, scale=scale, eps=epsilon)


def rloo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray,
    epsilon: float = 1e-6, config: Any = None, **kwargs: Any,
) -> Pair:  # fmt: skip
    """Return RLOO's advantages [B, L] twice; 0 for a lone sample."""
    return _outcome(token_level_rewards, response_mask, index, scale="none", baseline="loo")


def gae(
    token_level_rewards: torch.Tensor, values: torch.Tensor, response_mask: torch.Tensor, gamma: float,
    lam: float,
) -> Pair:  # fmt: skip
    """Return advantages whitened by verl's own masked_whiten, and returns, which are 0 where the mask is."""
    from verl.utils.torch_functional import masked_whiten

    with torch.no_grad():
        layout = rows_of(response_mask)
        made = ops.gae(
            f32(values), f32(token_level_rewards), layout=layout, gamma=float(gamma), lam=float(lam)
        )
        white: torch.Tensor = masked_whiten(made.advantages, response_mask)
    return white, made.returns


# --- the rollout --------------------------------------------------------------------------------------------


def engine_kwargs() -> dict[str, Any]:
    """Return `actor_rollout_ref.rollout.engine_kwargs.vllm` of a rollout by vLLM whose layers are rlk's.

    Raises UnsupportedError for an installed vLLM that rlk's plugin does not know: also for 0.24.0, which
    verl 0.9.1 asks for.
    """
    known_version("verl", VERSIONS)
    known_version(hooks.PEER, hooks.VERSIONS)
    return {"quantization": "rlk"}


# --- the swap -----------------------------------------------------------------------------------------------

FUNCTIONAL, ALGORITHMS = "verl.utils.torch_functional", "verl.trainer.ppo.core_algos"
LOG_PROBS = Swap(
    "verl",
    VERSIONS,
    {
        f"{FUNCTIONAL}:logprobs_from_logits": logprobs_from_logits,
        f"{FUNCTIONAL}:entropy_from_logits": entropy_from_logits,
        f"{FUNCTIONAL}:entropy_from_logits_with_chunking": entropy_from_logits_with_chunking,
    },
)
LOSSES = Swap(
    "verl",
    VERSIONS,
    {
        f"{ALGORITHMS}:kl_penalty": kl_penalty,
        f"{ALGORITHMS}:agg_loss": verl_losses.agg_loss,
        **{f"{ALGORITHMS}:{name}": ours for name, ours in verl_losses.REPLACEMENTS.items()},
    },
    registries=(f"{ALGORITHMS}:POLICY_LOSS_REGISTRY",),
)
ADVANTAGES = Swap(
    "verl",
    VERSIONS,
    {
        f"{ALGORITHMS}:compute_grpo_outcome_advantage": grpo,
        f"{ALGORITHMS}:compute_rloo_outcome_advantage": rloo,
        f"{ALGORITHMS}:compute_gae_advantage_return": gae,
    },
    registries=(f"{ALGORITHMS}:ADV_ESTIMATOR_REGISTRY",),
)
SWAPS = Swaps((LOG_PROBS, LOSSES, ADVANTAGES))
patch, unpatch, patched = SWAPS.patch, SWAPS.unpatch, SWAPS.patched
