"""The calls of peers that rlk's operators are compared with; a peer that is not installed raises Absent."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Launch = Callable[[], Any]


class Absent(Exception):
    """A peer cannot be measured here; the message says why."""


def module(name: str) -> Any:
    """Import a peer's module or raise Absent with the reason."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # peers fail to import in their own ways: CUDA versions, missing compilers
        raise Absent(f"{name}: {type(error).__name__}: {error}"[:200]) from error


def absent(why: str) -> Callable[[], Launch]:
    """Return a peer that is never there, with its reason."""

    def build() -> Launch:
        raise Absent(why)

    return build


def compiled(call: Callable[..., Any], *args: Any) -> Launch:
    """Return torch.compile's version of a call on these arguments, shapes static."""
    fast = static(call)
    return lambda: fast(*args)


def static(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch.compile's version of a function, one for each shape.

    One function may serve every case of a run, and torch would call it uncompiled from the ninth shape on.
    """
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(call, dynamic=False)


def without_grad(call: Launch) -> Launch:
    """Return the call with autograd off."""

    def launch() -> Any:
        with torch.no_grad():
            return call()

    return launch


def with_grad(call: Callable[[], Any], inputs: tuple[Tensor, ...], seed: Any) -> Launch:
    """Return forward and backward of a call as one launch; `seed` is the gradient of what it returns."""
    return lambda: torch.autograd.grad(call(), inputs, seed)


def backward_of(call: Callable[[], Tensor], inputs: tuple[Tensor, ...], seed: Tensor) -> Launch:
    """Run the forward now and return its backward as a launch."""
    output = call()
    return lambda: torch.autograd.grad(output, inputs, seed, retain_graph=True)


# --- log-probs ---


def plain_logp(logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob and lse the way a trainer writes them."""
    z = logits.float()
    lse = torch.logsumexp(z, -1)
    return z.gather(-1, ids[:, None].long())[:, 0] - lse, lse


def plain_logp_entropy(logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same with the entropy."""
    z = logits.float()
    lse = torch.logsumexp(z, -1)
    entropy = lse - (torch.softmax(z, -1) * z).sum(-1)
    return z.gather(-1, ids[:, None].long())[:, 0] - lse, lse, entropy


def plain_jsd(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """The Jensen-Shannon divergence of each row, beta 1/2, with the steps of TRL's `GKDTrainer`."""
    lq, lp = (F.log_softmax(z.float(), -1) for z in (student_logits, teacher_logits))
    lm = torch.logaddexp(lq, lp) - math.log(2.0)
    return 0.5 * sum(F.kl_div(lm, x, reduction="none", log_target=True).sum(-1) for x in (lp, lq))


def liger_logp(logits_and_one: Tensor, ids: Tensor) -> Launch:
    """Liger's selective log-softmax; it wants one position more than it reads."""
    op = module("liger_kernel.ops.grpo_loss").fused_selective_log_softmax
    return lambda: op(logits_and_one[None], ids[None], temperature=1.0)


def quack_logp(logits: Tensor, ids: Tensor) -> Launch:
    """quack's cross-entropy with lse."""
    op = module("quack.cross_entropy").cross_entropy_fwd
    return lambda: op(logits, ids, return_lse=True)


def quack_logp_grad(logits: Tensor, ids: Tensor, seed: Tensor) -> Launch:
    """quack's cross-entropy, forward and backward."""
    op = module("quack.cross_entropy").cross_entropy
    return with_grad(lambda: op(logits, ids, reduction="none"), (logits,), seed)


# --- sampling ---


def sorted_sample(
    logits: Tensor, top_k: int = 0, top_p: float = 1.0, temperature: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """A token with its raw and processed log-prob by sorting, as engines write it in torch."""
    z = logits.float()
    raw = torch.log_softmax(z, -1)
    values, order = torch.sort(z / temperature, descending=True, dim=-1)
    if top_k:
        values = values.masked_fill(values < values[:, top_k - 1 : top_k], -torch.inf)
    if top_p < 1.0:
        share = torch.softmax(values, -1)
        values = values.masked_fill(share.cumsum(-1) - share >= top_p, -torch.inf)
    kept = torch.log_softmax(values, -1)
    at = (kept.exp() / torch.empty_like(kept).exponential_()).argmax(-1, keepdim=True)
    token = order.gather(-1, at)
    return token[:, 0], raw.gather(-1, token)[:, 0], kept.gather(-1, at)[:, 0]


def flashinfer_sample(logits: Tensor, top_k: int = 0, top_p: float = 1.0, temperature: float = 1.0) -> Launch:
    """FlashInfer's rejection sampler on probabilities; it returns no log-probs."""
    op = module("flashinfer.sampling").top_k_top_p_sampling_from_logits
    most = top_k or logits.shape[-1]
    return lambda: op(logits.float() / temperature, most, top_p)


# --- norms ---


def plain_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm as Hugging Face's Llama writes it."""
    f = x.float()
    f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps)
    return weight * f.to(x.dtype)


def eager_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Callable[[], Tensor]:
    """PyTorch's own fused RMSNorm."""
    return lambda: F.rms_norm(x, (x.shape[-1],), weight, eps)


def liger_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Callable[[], Tensor]:
    """Liger's RMSNorm, gradients not written over the incoming ones."""
    op = module("liger_kernel.ops.rms_norm").LigerRMSNormFunction
    return lambda: op.apply(x, weight, eps, 0.0, "llama", False)


def quack_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Callable[[], Tensor]:
    """quack's RMSNorm."""
    op = module("quack.rmsnorm").rmsnorm
    return lambda: op(x, weight, eps=eps)


def liger_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Callable[[], Tensor]:
    """Liger's LayerNorm."""
    op = module("liger_kernel.ops.layer_norm").LigerLayerNormFunction
    return lambda: op.apply(x, weight, bias, eps)


def quack_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Callable[[], Tensor]:
    """quack's LayerNorm, which has a forward alone and f32 weights."""
    op = module("quack.rmsnorm").layernorm_fwd
    wide = weight.detach().float(), bias.detach().float()
    return lambda: op(x, *wide, eps)


# --- routers and linear attention ---


def quack_top_k(logits: Tensor, k: int) -> Callable[[], Tensor]:
    """quack's softmax over the best k, as [T, k] and not as rows of all experts."""
    op = module("quack.topk").topk
    return lambda: op(logits, k, softmax=True)[0]


def fla_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, gate: Tensor, sequences: int
) -> Callable[[], Tensor]:
    """flash-linear-attention's chunks of one head: sequences of one length, gates as logarithms."""
    op = module("fla.ops.simple_gla").chunk_simple_gla

    def call() -> Tensor:
        each = (x.unflatten(0, (sequences, -1)).unsqueeze(2) for x in (q, k, v, gate.log()))
        return op(*each, scale=1.0)[0].flatten(0, 2)

    return call


# --- losses ---


def liger_zloss_head(hidden: Tensor, weight: Tensor, targets: Tensor, scale: float) -> Callable[[], Tensor]:
    """Liger's fused linear cross-entropy with z-loss."""
    op = module("liger_kernel.ops.fused_linear_cross_entropy").LigerFusedLinearCrossEntropyFunction
    return lambda: op.apply(hidden, weight, targets, None, None, -100, scale, 0.0, "none")[0]


def plain_grpo_terms(logits: Tensor, ids: Tensor, old: Tensor, ref: Tensor, advantage: Tensor) -> Tensor:
    """GRPO's term of each token with k3, as TRL writes it (clip 0.2, beta 0.04), in the logits' type."""
    lp = logits.gather(-1, ids[..., None].long())[..., 0] - torch.logsumexp(logits, -1)
    ratio = torch.exp(lp - old)
    term = -torch.minimum(ratio * advantage, torch.clamp(ratio, 0.8, 1.2) * advantage)
    d = ref - lp
    return term + 0.04 * (torch.exp(d) - d - 1)


def plain_grpo(
    logits: Tensor, ids: Tensor, old: Tensor, ref: Tensor, advantages: Tensor, mask: Tensor
) -> Tensor:
    """The token mean of those terms."""
    terms = plain_grpo_terms(logits.float(), ids, old, ref, advantages[:, None])
    return (terms * mask).sum() / mask.sum().clamp(min=1)


def liger_grpo(
    logits_and_one: Tensor, ids: Tensor, old: Tensor, ref: Tensor, advantages: Tensor, mask: Tensor
) -> Callable[[], Tensor]:
    """Liger's Triton GRPO loss from logits[B, L + 1, V]; the gradient goes to a tensor of its own."""
    op = module("liger_kernel.transformers.grpo_loss").triton_grpo_loss
    clip = {"eps_low": 0.2, "eps_high": 0.2}
    options = {
        **clip,
        "temperature": 1.0,
        "beta": 0.04,
        "inplace": False,
        "loss_type": "bnpo",
        "reduce": True,
    }
    return lambda: op(logits_and_one, old, ref, ids, advantages, mask, **options)[0]
