"""The operators in float64 torch, straight from their formulas: the accuracy reference."""

from __future__ import annotations

from typing import Any

import torch

from rlk.ops.float64 import policy
from rlk.ops.float64.policy import estimate
from rlk.ops.layout import Layout
from rlk.ops.losses import Loss
from rlk.ops.policy import AdvantagesOf, loss_of
from rlk.ops.results import LogProbs, PolicyLoss, RatioKL, RMSNorm
from rlk.ops.signatures import NEEDS


def logp(
    logits: torch.Tensor,
    ids: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    temperature: float | torch.Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    mask: torch.Tensor | None = None,
    ignore_index: int = -100,
    needs: tuple[str, ...] = ("logp",),
    **_: object,
) -> LogProbs:
    """Return `rlk.ops.logp` in float64."""
    z = logits.double()
    if bias is not None:
        z = z + bias.double()
    z = z * logit_scale
    if softcap is not None:
        z = torch.tanh(z / softcap) * softcap
    scale = temperature.double()[..., None] if isinstance(temperature, torch.Tensor) else temperature
    z = z / scale
    active = ids != ignore_index
    if mask is not None:
        active = active & mask
    chosen = torch.where(active, ids, 0).long()
    lse = torch.logsumexp(z, -1)
    p = torch.exp(z - lse[..., None])
    found = {
        "logp": z.gather(-1, chosen[..., None])[..., 0] - lse,
        "lse": lse,
        "entropy": lse - torch.where(p == 0, 0.0, p * z).sum(-1),
        "lse2": torch.logsumexp(2 * z, -1),
    }
    made = {n: torch.where(active, x, 0.0) for n, x in found.items()}
    made["argmax"] = torch.where(active, z.argmax(-1), -1)
    return LogProbs(**{n: made[n] if n in needs else None for n in NEEDS})


def linear_logp(hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, **options: object) -> LogProbs:
    """Return `rlk.ops.linear_logp` in float64."""
    return logp(hidden.double() @ weight.double().T, ids, **options)  # type: ignore[arg-type]


def jsd_loss(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    *,
    beta: float = 0.5,
    temperature: float | torch.Tensor = 1.0,
    mask: torch.Tensor | None = None,
    **_: object,
) -> torch.Tensor:
    """Return `rlk.ops.jsd_loss` in float64."""
    scale = temperature.double()[..., None] if isinstance(temperature, torch.Tensor) else temperature
    lq, lp = (torch.log_softmax(z.double() / scale, -1) for z in (student_logits, teacher_logits))

    def kl(la: torch.Tensor, lb: torch.Tensor) -> torch.Tensor:
        a = torch.exp(la)
        return torch.where(a == 0, 0.0, a * (la - lb)).sum(-1)

    if beta in (0.0, 1.0):
        made = kl(lp, lq) if beta == 0.0 else kl(lq, lp)
    else:
        lm = torch.log(beta * torch.exp(lp) + (1 - beta) * torch.exp(lq))
        made = beta * kl(lp, lm) + (1 - beta) * kl(lq, lm)
    return made if mask is None else torch.where(mask, made, 0.0)


def linear_jsd_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    teacher_hidden: torch.Tensor,
    teacher_weight: torch.Tensor,
    **options: object,
) -> torch.Tensor:
    """Return `rlk.ops.linear_jsd_loss` in float64."""
    student = hidden.double() @ weight.double().T
    teacher = teacher_hidden.double() @ teacher_weight.double().T
    return jsd_loss(student, teacher, **options)  # type: ignore[arg-type]


def matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    **_: object,
) -> torch.Tensor:
    """Return `rlk.ops.matmul` in float64."""
    y = x.double() @ w.double().T
    y = y if bias is None else y + bias.double()
    return y if residual is None else y + residual.double()


def grouped_matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    offsets: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    **_: object,
) -> torch.Tensor:
    """Return `rlk.ops.grouped_matmul` in float64."""
    rows = torch.arange(x.shape[0], device=x.device, dtype=offsets.dtype)
    expert = torch.searchsorted(offsets[1:].contiguous(), rows, right=True)
    y = torch.einsum("tk,tnk->tn", x.double(), w.double()[expert])
    return y if bias is None else y + bias.double()[expert]


def ratio_kl(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    ref_logp: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    kl: str = "k3",
) -> RatioKL:
    """Return `rlk.ops.ratio_kl` in float64."""
    ratio = torch.exp(logp.double() - old_logp.double())
    found = estimate(ref_logp.double() - logp.double(), kl)
    if mask is not None:
        ratio, found = torch.where(mask, ratio, 1.0), torch.where(mask, found, 0.0)
    return RatioKL(ratio, found)


def policy_loss(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    advantages: torch.Tensor,
    *,
    layout: Layout,
    loss: Loss | str = "ppo",
    ref_logp: torch.Tensor | None = None,
    rollout_logp: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
    advantages_of: AdvantagesOf | None = None,
    token_weights: torch.Tensor | None = None,
) -> PolicyLoss:
    """Return `rlk.ops.policy_loss` in float64 (metrics: only `active`)."""
    given = {"ref_logp": ref_logp, "rollout_logp": rollout_logp, "entropy": entropy}
    given["token_weights"] = token_weights
    return policy.policy_loss(
        logp, old_logp, advantages, layout=layout, loss=loss_of(loss), advantages_of=advantages_of, **given
    )


def linear_policy_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    ids: torch.Tensor,
    old_logp: torch.Tensor,
    advantages: torch.Tensor,
    *,
    layout: Layout,
    loss: Loss | str = "ppo",
    ref_logp: torch.Tensor | None = None,
    rollout_logp: torch.Tensor | None = None,
    advantages_of: AdvantagesOf | None = None,
    token_weights: torch.Tensor | None = None,
    **options: object,
) -> PolicyLoss:
    """Return `rlk.ops.linear_policy_loss` in float64 (metrics: only `active`)."""
    found = linear_logp(hidden, weight, ids, mask=layout.active, needs=("logp", "entropy"), **options)
    assert found.logp is not None
    return policy_loss(
        found.logp,
        old_logp,
        advantages,
        layout=layout,
        loss=loss,
        ref_logp=ref_logp,
        rollout_logp=rollout_logp,
        token_weights=token_weights,
        entropy=found.entropy,
        advantages_of=advantages_of,
    )


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float = 1e-6,
    profile: str = "hf_llama",
    residual: torch.Tensor | None = None,
) -> torch.Tensor | RMSNorm:
    """Return `rlk.ops.rms_norm` in float64, without the profile's roundings."""
    h = x.double() if residual is None else x.double() + residual.double()
    w = weight.double() + (1.0 if profile == "gemma" else 0.0)
    y = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + eps) * w
    return y if residual is None else RMSNorm(y, h)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return `rlk.ops.swiglu` in float64."""
    return torch.nn.functional.silu(gate.double()) * up.double()


def clamped_swiglu(x: torch.Tensor, *, limit: float = 7.0, alpha: float = 1.702) -> torch.Tensor:
    """Return `rlk.ops.clamped_swiglu` in float64."""
    gate, up = x.double()[..., ::2].clamp(max=limit), x.double()[..., 1::2].clamp(-limit, limit)
    return (up + 1.0) * (gate * torch.sigmoid(alpha * gate))


def geglu(gate: torch.Tensor, up: torch.Tensor, *, approximate: str = "tanh") -> torch.Tensor:
    """Return `rlk.ops.geglu` in float64."""
    return torch.nn.functional.gelu(gate.double(), approximate=approximate) * up.double()


def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    position_ids: torch.Tensor,
    interleaved: bool = False,
    rotary_dim: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `rlk.ops.rope` in float64."""
    width = q.shape[-1] if rotary_dim is None else rotary_dim
    half = width // 2
    c, s = (t[:, :half].double()[position_ids.long()][..., None, :] for t in (cos, sin))

    def rotate(whole: torch.Tensor) -> torch.Tensor:
        x, rest = whole.double().split((width, whole.shape[-1] - width), -1)
        a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
        first, second = a * c - b * s, b * c + a * s
        if interleaved:
            return torch.cat((torch.stack((first, second), -1).flatten(-2), rest), -1)
        return torch.cat((first, second, rest), -1)

    return rotate(q), rotate(k)


def qk_norm(x: torch.Tensor, weight: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return `rlk.ops.qk_norm` in float64."""
    norm = {n: options.pop(n) for n in ("eps", "profile") if n in options}
    y = rms_norm(x, weight, **norm)
    assert isinstance(y, torch.Tensor)
    return _rotated(y, **options)


def _rotated(x: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return heads in float64, rotated if there are tables."""
    given = {n: options.pop(n, None) for n in ("cos", "sin", "position_ids")}
    cos, sin, position_ids = given.values()
    if cos is None:
        return x.double()
    return rope(x, x, cos, sin, position_ids=position_ids, **options)[0]


def write_cache(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    **options: Any,
) -> None:
    """Do `rlk.ops.write_cache` in float64; caches of another dtype round what is written."""
    size = k_cache.shape[1]
    inside = (slots >= 0) & (slots < k_cache.shape[0] * size)
    at = slots[inside].long()
    k_cache[at // size, at % size] = _rotated(k, **options)[inside].to(k_cache.dtype)
    v_cache[at // size, at % size] = v[inside].to(v_cache.dtype)


def cache_qkv(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    profile: str = "hf_llama",
    **options: Any,
) -> torch.Tensor:
    """Return `rlk.ops.cache_qkv` in float64; caches of another dtype round what is written."""
    keys, width = k_cache.shape[2:]
    x = qkv.double().unflatten(-1, (-1, width))
    q, k, v = x.split((x.shape[-2] - 2 * keys, keys, keys), -2)
    if q_weight is not None and k_weight is not None:
        q, k = (qk_norm(y, w, eps=eps, profile=profile) for y, w in ((q, q_weight), (k, k_weight)))
    write_cache(k, v, k_cache, v_cache, slots, **options)
    return _rotated(q, **options)


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return `rlk.ops.embedding` in float64."""
    return weight.double()[ids.long()]
