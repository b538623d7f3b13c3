"""A step of a whole model in benchmarks: rlk's, and that of transformers with the kernels of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import rlk
from benchmarks import layers, peers
from benchmarks.layers import TorchLayer
from benchmarks.peers import Absent, Launch
from rlk.nn import CausalLM, ModelConfig, PagedCache, PagedTokens

CHUNK = 2048  # tokens whose logits are in memory at a time
FA4 = "cute_attention"  # transformers would load what has "flash" in its name


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed sequences of one length: ids and the next ones [B, L], and what GRPO needs of them."""

    ids: Tensor
    targets: Tensor
    old: Tensor
    ref: Tensor
    advantages: Tensor
    mask: Tensor
    layout: rlk.Layout

    @staticmethod
    def of(batch: int, length: int, vocabulary: int, device: str = "cuda") -> Batch:
        """Draw a batch; log-probs are near those of logits without a trained model."""
        shape = (batch, length)
        ids, targets = (torch.randint(vocabulary, shape, device=device) for _ in range(2))
        likely = -torch.log(torch.tensor(float(vocabulary)))
        old, ref = (likely.to(device) + 0.1 * torch.randn(shape, device=device) for _ in range(2))
        lengths = torch.full((batch,), length, dtype=torch.int32, device=device)
        return Batch(
            ids,
            targets,
            old,
            ref,
            torch.randn(batch, device=device),
            torch.ones(shape, dtype=torch.bool, device=device),
            rlk.Layout.padded(lengths, length),
        )


def gradients_of(loss: Tensor, model: torch.nn.Module) -> Tensor:
    """Run backward and let go of the gradients: whoever has an optimizer reads them before."""
    loss.backward()
    for weight in model.parameters():
        weight.grad = None
    return loss.detach()


# --- rlk ---


def model_of(config: ModelConfig, device: str = "cuda") -> CausalLM:
    """Make a model with random weights."""
    return CausalLM(config, device=device, dtype=torch.bfloat16)


def rlk_step(config: ModelConfig, b: Batch) -> Launch:
    """Return forward and backward of GRPO's loss, layers checkpointed."""
    model = model_of(config)
    model.gradient_checkpointing_enable()
    options = {"layout": b.layout, "loss": "grpo", "ref_logp": b.ref}

    def launch() -> Tensor:
        given = (model(b.ids), model.lm_head.weight, b.targets, b.old, b.advantages)
        return gradients_of(rlk.ops.linear_policy_loss(*given, **options).loss, model)

    return launch


# --- transformers ---


@cache
def modeling() -> tuple[ModuleType, dict[str, Any]]:
    """Return transformers' module of Qwen3, and what its names stand for before anyone exchanges them."""
    found = peers.module("transformers.models.qwen3.modeling_qwen3")
    return found, dict(vars(found))


def with_liger() -> None:
    """Let models of Qwen3 run Liger's norms, rotary positions and SwiGLU from now on."""
    apply = peers.module("liger_kernel.transformers").apply_liger_kernel_to_qwen3
    apply(rope=True, rms_norm=True, swiglu=True, cross_entropy=False, fused_linear_cross_entropy=False)


def with_fa4() -> str:
    """Make FlashAttention's CuTe kernel an attention of transformers, and return its name there."""
    op = peers.module("flash_attn.cute.interface").flash_attn_func

    def attention(
        module: torch.nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **given: Any
    ) -> tuple[Tensor, None]:
        made = op(*(t.transpose(1, 2) for t in (q, k, v)), softmax_scale=given.get("scaling"), causal=True)
        return made[0] if isinstance(made, tuple) else made, None

    peers.module("transformers").AttentionInterface.register(FA4, attention)
    return FA4


def transformers_model(config: ModelConfig, attention: str, device: str = "cuda") -> Any:
    """Make transformers' model of the same sizes, layers checkpointed."""
    t = peers.module("transformers")
    if config.model_type != "qwen3":
        raise Absent(f"transformers: {config.model_type} is not measured")
    theta = config.ropes[0].theta
    made = t.Qwen3Config(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        tie_word_embeddings=False,
        use_cache=False,
    )
    with torch.device(device):
        model = t.AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16, attn_implementation=attention)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def chunk_terms(
    hidden: Tensor, weight: Tensor, ids: Tensor, old: Tensor, ref: Tensor, advantage: Tensor
) -> Tensor:
    """The sum of GRPO's terms of some tokens."""
    return peers.plain_grpo_terms((hidden @ weight.t()).float(), ids, old, ref, advantage).sum()


def chunked_loss(hidden: Tensor, weight: Tensor, b: Batch) -> Tensor:
    """GRPO's loss by chunks of tokens, compiled; backward computes their logits again."""
    advantage = b.advantages[:, None].expand_as(b.old)
    given = (hidden.flatten(0, 1), *(t.flatten() for t in (b.targets, b.old, b.ref, advantage)))
    total: Any = 0.0
    for rows, *rest in zip(*(t.split(CHUNK) for t in given), strict=True):
        total = total + checkpoint(layers.fused(chunk_terms), rows, weight, *rest, use_reentrant=False)
    return total / b.mask.sum()


def liger_loss(hidden: Tensor, weight: Tensor, b: Batch) -> Tensor:
    """Liger's fused linear GRPO."""
    made = peers.module("liger_kernel.chunked_loss").LigerFusedLinearGRPOLoss(beta=0.04, loss_type="bnpo")
    given = {"ref_per_token_logps": b.ref, "old_per_token_logps": b.old}
    return made(hidden, weight, b.targets, b.mask.int(), b.advantages, **given)[0]


def transformers_step(
    config: ModelConfig, b: Batch, *, liger: bool, fa4: bool, loss: Callable[[Tensor, Tensor, Batch], Tensor]
) -> Launch:
    """Return forward and backward of transformers' model. Raises Absent where a kernel is not installed."""
    module, plain = modeling()
    vars(module).update(plain)
    if liger:
        with_liger()
    model = transformers_model(config, with_fa4() if fa4 else "sdpa")

    def launch() -> Tensor:
        hidden = model.model(b.ids).last_hidden_state
        return gradients_of(loss(hidden, model.lm_head.weight, b), model)

    return launch


# --- decoding ---


@dataclass(frozen=True, slots=True)
class Decoding:
    """One new token of each sequence over the pages of a whole model."""

    ids: Tensor
    cache: PagedCache
    table: Tensor
    lens: Tensor

    @staticmethod
    def of(model: CausalLM, batch: int, context: int, device: str = "cuda") -> Decoding:
        """Draw tokens, and keys and values in pages in any order."""
        count = -(-context // layers.PAGE)
        cache = model.cache(batch * count, layers.PAGE)
        for part in (cache.keys, cache.values):
            part.normal_()
        return Decoding(
            torch.randint(model.config.vocab_size, (batch,), device=device),
            cache,
            torch.randperm(batch * count, device=device).int().reshape(batch, count),
            torch.full((batch,), context, dtype=torch.int32, device=device),
        )


def rlk_decode(model: CausalLM, d: Decoding) -> Launch:
    """Return the logits of a step."""
    return peers.without_grad(lambda: model.logits(model.decode(d.ids, d.cache, d.table, d.lens)))


def torch_decode(model: CausalLM, d: Decoding) -> Launch:
    """Return the same by the layers in torch. Raises Absent where FlashAttention 4 is not installed."""
    c, decoder = model.config, model.model
    each = torch.arange(len(d.ids) + 1, dtype=torch.int32, device=d.ids.device)
    at = PagedTokens.of(d.cache, each, d.lens, d.table, len(d.ids))
    made = [TorchLayer.of(c, layer) for layer in decoder.layers]
    attends = [layers.attend_pages(at, layer, i) for i, layer in enumerate(made)]

    def step() -> Tensor:
        x = F.embedding(d.ids, decoder.embed_tokens.weight)
        residual = torch.zeros_like(x)  # as the sum of one stream
        for layer, attend in zip(made, attends, strict=True):
            x, residual = layer(x, residual, attend)
        x, _ = layers.fused(layers.add_norm)(x, residual, decoder.norm.weight, c.rms_norm_eps)
        return F.linear(x, model.lm_head.weight)

    return peers.without_grad(step)
