"""Refusals: options of an engine and parts of a model that rlk does not compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.models.utils import extract_layer_index

from rlk.errors import Code, LaunchError, UnsupportedError
from rlk.integrations.tensors import no_form
from rlk.integrations.vllm import ranks
from rlk.integrations.vllm.attention import NAME, Paged
from rlk.integrations.vllm.hooks import PEER
from rlk.integrations.vllm.layers import (
    Embedding,
    Linear,
    Replaced,
    RlkConfig,
    RlkGemmaRMSNorm,
    RlkRMSNorm,
    Rotary,
)
from rlk.nn import CausalLM
from rlk.nn.config import ModelConfig

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
}
"""vLLM's classes whose layers are those of rlk.nn, by the model_type of each."""
SIZES = ("pipeline", "data", "prefill_context", "decode_context")
"""Kinds of parallelism that are refused: replicas would draw the same tokens for requests without a seed."""

BIASES = {
    "qkv_proj": "qkv_bias", "o_proj": "o_bias", "gate_up_proj": "mlp_bias", "down_proj": "mlp_bias",
}  # fmt: skip
"""vLLM's linear layers, by the field of `ModelConfig` that says whether they have a bias."""
HOOKS = ("linear", "embedding", "rms_norm", "rope", "gated", "attention", "head")
"""What every model calls."""

LISTED = 8  # names of an error

Found = list[tuple[str, str]]


def check_options(config: Any) -> None:
    """Raise UnsupportedError with everything in a VllmConfig that rlk does not cover."""
    found = _speculative(config)
    cache, dtype = config.cache_config.cache_dtype, config.model_config.dtype
    if cache not in ("auto", str(dtype).removeprefix("torch.")):
        found.append(
            (f"a cache of {cache}", f'leave kv_cache_dtype out: "auto" keeps keys and values in {dtype}')
        )
    if config.kv_transfer_config is not None:  # vLLM makes one of kv_offloading_size
        what = "a cache that is sent or offloaded"
        found.append((what, "leave kv_transfer_config and kv_offloading_size out"))
    if config.model_config.enable_prompt_embeds:
        found.append(("prompts of embeddings", "leave enable_prompt_embeds out, and give token ids"))
    if config.parallel_config.use_ubatching:
        found.append(("batches in parts", "leave enable_dbo and ubatch_size out"))
    for kind in SIZES:
        size = getattr(config.parallel_config, f"{kind}_parallel_size")
        if size != 1:
            found.append((f"{kind.replace('_', ' ')} parallelism over {size} ranks", "use 1"))
    backend = config.attention_config.backend
    kinds = {x for x in (backend, *(config.attention_config.backend_per_kind or {}).values()) if x}
    if config.quant_config.model is not None:
        found += ranks.refusals(config, config.quant_config.model)
    if odd := sorted({getattr(x, "name", str(x)) for x in kinds} - {NAME}):
        found.append((f"attention by {', '.join(odd)}", f'give attention_backend="{NAME}", or none'))
    architecture = config.model_config.architecture
    if architecture not in ARCHITECTURES:
        found.append((f"the architecture {architecture}", f"use one of {', '.join(ARCHITECTURES)}"))
    if config.model_config.runner_type != "generate":
        found.append((f"the runner {config.model_config.runner_type!r}", "generate"))
    lora = config.lora_config
    if lora is not None and lora.lora_dtype != dtype:
        found.append((f"adapters of {lora.lora_dtype}", f"give lora_dtype={str(dtype)!r}, or none"))
    refuse(found)


def check_device() -> None:
    """Raise UnsupportedError where vLLM finds no device to run on."""
    from vllm.platforms import current_platform

    if not current_platform.device_type:
        how = "set RLK_VLLM=cpu before vllm is imported: it runs on rlk's oracle then, for tests"
        raise no_form(PEER, "a machine without a device that vLLM knows", how)


def check_arguments(given: Any) -> None:
    """Raise UnsupportedError for arguments of an engine from which vLLM would load other models first."""
    found: Found = []
    if given.quantization != RlkConfig.get_name():
        how = f'give quantization="{RlkConfig.get_name()}", or unset RLK_VLLM'
        found.append((f"quantization={given.quantization!r} beside RLK_VLLM", how))
    refuse(found + _speculative(given))


def _speculative(given: Any) -> Found:
    """Return whether a VllmConfig, or arguments of an engine, ask for speculative decoding."""
    if given.speculative_config is None:
        return []
    return [("speculative decoding", "leave speculative_config out")]


@contextmanager
def names_read() -> Iterator[set[str]]:
    """Yield the names of the weights that vLLM reads from a checkpoint meanwhile."""
    own, names = DefaultModelLoader.get_all_weights, set[str]()

    def noted(self: Any, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in own(self, *args, **kwargs):
            names.add(name)
            yield name, weight

    DefaultModelLoader.get_all_weights = noted
    try:
        yield names
    finally:
        DefaultModelLoader.get_all_weights = own


def check_read(names: set[str], config: ModelConfig, path: str) -> None:
    """Raise LaunchError for weights of a model that a checkpoint has not: vLLM looks at plain layers alone.

    Checkpoints of other names (Mistral's own format) and loaders that read none are vLLM's to check.
    """
    wanted = {name for name, _ in CausalLM(config, dtype=torch.bfloat16, device="meta").named_parameters()}
    if names & wanted and (missing := sorted(wanted - names)):
        raise LaunchError(
            Code.CHECKPOINT_LACKS,
            path=path, count=len(missing), names=", ".join(missing[:LISTED]), model=config.model_type,
        )  # fmt: skip


def check_model(model: torch.nn.Module, config: ModelConfig, size: int = 1) -> None:
    """Raise UnsupportedError for parts of a loaded model that are not rlk's. size: ranks that share it."""
    found: Found = []
    layer = 0
    # vLLM shares rotary embeddings among layers: each of them is compared
    for name, module in model.named_modules(remove_duplicate=False):
        what = type(module).__name__
        if isinstance(module, LinearBase):
            ours = isinstance(module.quant_method, Linear) and ranks.is_ours(module)
            found += _bias(name, module, config)
        elif isinstance(module, VocabParallelEmbedding):
            ours = isinstance(module.quant_method, Embedding) and ranks.is_ours(module)
        elif isinstance(module, Attention):
            ours = isinstance(module.impl, Paged)
            if ours:
                found += _differences(name, module.impl, _attention(config, layer, size))
            layer += 1
        elif isinstance(module, (CustomOp, LogitsProcessor)):
            ours = isinstance(module, Replaced) or not _computes(module)
            if isinstance(module, (RlkRMSNorm, RlkGemmaRMSNorm)):
                found += _differences(name, module, {"variance_epsilon": config.rms_norm_eps})
            elif isinstance(module, Rotary):
                rope = config.ropes[extract_layer_index(name)]
                wanted = {"base": rope.theta, "rotary_dim": rope.dim, "scaling": dict(rope.scaling)}
                found += _differences(name, module, wanted)
        else:
            ours = not [*module.parameters(recurse=False)]
        if not ours:
            found.append((f"{name or 'the model'}, a {what},", "use a model of a supported family"))
    if layer != config.num_hidden_layers:
        found.append((f"a model of {layer} layers of attention", f"one of {config.num_hidden_layers}"))
    refuse(found)


def _computes(module: torch.nn.Module) -> bool:
    """Return whether a layer's forward is called: that of a rotary embedding holds another, which is not."""
    return type(module).__name__ != "ApplyRotaryEmb"


def _bias(name: str, module: LinearBase, config: ModelConfig) -> Found:
    """Return whether a linear layer has a bias where `rlk.nn` has none, or none where it has one.

    vLLM loads a checkpoint without a word about biases that its model lacks, or that the checkpoint lacks.
    """
    name = name.removesuffix(".base_layer")  # adapters wrap it
    field = BIASES.get(name.rpartition(".")[2])
    has = module.bias is not None
    if field is None or has == getattr(config, field):
        return []
    words = ("with a bias", "without one") if has else ("without a bias", "with one")
    return [(f"{name} {words[0]}", f"rlk.nn and transformers compute it {words[1]}: use another model")]


def _attention(config: ModelConfig, layer: int, size: int) -> dict[str, Any]:
    """Return the options of a layer's attention in `rlk.nn`, of one of `size` ranks."""
    return {
        "num_heads": config.num_attention_heads // size,
        "num_kv_heads": config.num_key_value_heads // size,
        "head_size": config.head_dim,
        "scale": config.attention_scale,
        "window": config.windows[layer] if layer < len(config.windows) else None,
        "softcap": config.attention_softcap,
    }


def _differences(name: str, layer: Any, wanted: dict[str, Any]) -> Found:
    """Return what of a layer's options differs from `rlk.nn`'s."""
    return [
        (f"{name} with {option}={getattr(layer, option)}", f"rlk.nn has {value}")
        for option, value in wanted.items()
        if getattr(layer, option) != value
    ]


def refuse(found: Found) -> None:
    """Raise UnsupportedError with all findings, if there are any."""
    if found:
        errors = [no_form(PEER, what, instead) for what, instead in dict.fromkeys(found)]
        raise UnsupportedError.collected(tuple(d for error in errors for d in error.diagnostics))
