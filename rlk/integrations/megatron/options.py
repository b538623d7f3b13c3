"""Options of Megatron-core's models that rlk has an order for; every other one is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlk.errors import NOWHERE, Code, LaunchError, Loc
from rlk.nn.config import ModelConfig, Rope, joined
from rlk.ops.sharded import PIECES

PEER, VERSIONS = "megatron-core", ("0.16.1",)
OP = "rlk.integrations.megatron"
LEAVES = "rlk_leaves"
"""The attribute of a TransformerConfig that holds the model's number of leaves."""
ACCEPTED: dict[str, tuple[Any, ...]] = {
    # numerics
    "params_dtype": (torch.bfloat16, torch.float16),
    "normalization": ("RMSNorm",),
    "layernorm_zero_centered_gamma": (False,),
    "gated_linear_unit": (True,),
    "activation_func": (torch.nn.functional.silu,),
    "activation_func_clamp_value": (None,),
    "glu_linear_offset": (0.0,),
    "hidden_dropout": (0.0,),
    "attention_dropout": (0.0,),
    "fp32_residual_connection": (False,),
    "apply_residual_connection_post_layernorm": (False,),
    "enable_autocast": (False,),
    "fp8": (None,),
    "fp4": (None,),
    "use_kitchen": (False,),
    # attention
    "multi_latent_attention": (False,),
    "experimental_attention_variant": (None,),
    "window_size": (None,),
    "softmax_type": ("vanilla",),
    "apply_query_key_layer_scaling": (False,),
    "attention_output_gate": (False,),
    "qk_l2_norm": (False,),
    "qk_clip": (False,),
    "log_max_attention_logit": (False,),
    "rotary_interleaved": (False,),
    "no_rope_freq": (None,),
    # other models
    "num_moe_experts": (None,),
    "mtp_num_layers": (None,),
    "heterogeneous_block_specs": (False,),
    # parallelism, memory and time
    "sequence_parallel": (False,),
    "context_parallel_size": (1,),
    "pipeline_model_parallel_size": (1,),
    "gradient_accumulation_fusion": (False,),
    "recompute_granularity": (None,),
    "cpu_offloading": (False,),
    "fine_grained_activation_offloading": (False,),
    "cuda_graph_impl": ("none",),
    "delay_wgrad_compute": (False,),
    "defer_embedding_wgrad_compute": (False,),
    "tp_comm_overlap": (False,),
    "inference_fuse_tp_communication": (False,),
    "test_mode": (False,),
}
"""Values of TransformerConfig's options; those that are not here change nothing, or are read."""
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("rope",),
    "rope_scaling": (False,),
    "seq_len_interpolation_factor": (None,),
    "fp16_lm_cross_entropy": (False,),
    "mtp_block_spec": (None,),
    "pre_process": (True,),
    "post_process": (True,),
    "vp_stage": (None,),
}
"""The same of GPTModel's arguments."""


class BuildError(LaunchError):
    """A LaunchError that Megatron-core raises anew with more text, as `build_module` does: type(e)(text)."""

    def __init__(self, code: Code | str, loc: Loc = NOWHERE, **fields: object) -> None:
        if isinstance(code, str):
            super().__init__(Code.RAISED_ANEW, loc, text=code)
        else:
            super().__init__(code, loc, **fields)


def refused(name: str, found: Any, wanted: str) -> LaunchError:
    """Return the error of an option. name: with the object that has it."""
    return BuildError(Code.ARG_VALUE, op=OP, name=name, value=found, wanted=wanted)


def leaves_of(config: Any) -> int:
    """Return the number of leaves of a TransformerConfig, 1 where none was set."""
    found: int = getattr(config, LEAVES, 1)
    return found


def check_config(config: Any) -> None:
    """Raise LaunchError with every option of a TransformerConfig that rlk does not have."""
    found = _problems("config.", {name: getattr(config, name) for name in ACCEPTED}, ACCEPTED)
    leaves = leaves_of(config)
    if leaves not in (1, 2, 4, 8):
        found.append(refused(f"config.{LEAVES}", leaves, "1, 2, 4 or 8"))
    else:
        heads, groups = config.num_attention_heads, config.num_query_groups
        if heads % groups:
            wanted = f"a multiple of num_query_groups = {groups}"
            found.append(refused("config.num_attention_heads", heads, wanted))
        for name, n in (
            ("num_attention_heads * kv_channels", heads * config.kv_channels),
            ("num_query_groups * kv_channels", groups * config.kv_channels),
            ("ffn_hidden_size", config.ffn_hidden_size),
        ):
            if n % leaves:
                found.append(refused(f"config.{name}", n, f"a multiple of {LEAVES} = {leaves}"))
    if found:
        raise joined(found)


def check_arguments(given: Mapping[str, Any]) -> None:
    """Raise LaunchError with every argument of GPTModel that rlk does not have. given: by name."""
    if found := _problems("", given, ARGUMENTS):
        raise joined(found)


def check_ranks(config: Any, vocab_size: int, size: int) -> None:
    """Raise LaunchError with everything of a model that so many ranks cannot share; nothing was sent."""
    if size == 1:
        return
    found = []
    if (leaves := leaves_of(config)) % size:
        wanted = f"a multiple of {size}, the number of ranks: set config.{LEAVES} = 8"
        if size > PIECES or size & (size - 1):
            wanted = f"a multiple of the number of ranks, which must be 1, 2, 4 or 8 and is {size}"
        found.append(refused(f"config.{LEAVES}", leaves, wanted))
    for name in ("num_attention_heads", "num_query_groups"):
        if (heads := getattr(config, name)) % size:
            found.append(refused(f"config.{name}", heads, f"a multiple of {size}, the number of ranks"))
    if vocab_size % PIECES:
        found.append(
            refused("vocab_size", vocab_size, f"a multiple of {PIECES}, the pieces that ranks share")
        )
    if found:
        raise joined(found)


def model_config(
    config: Any, *, vocab_size: int, positions: int, tied: bool, rotary_base: float, rotary_percent: float
) -> ModelConfig:
    """Return the config of the `rlk.nn.CausalLM` that has the bits of a GPTModel of a TransformerConfig."""
    layers, width = config.num_layers, config.kv_channels
    # as RotaryEmbedding has it
    rope = Rope(float(rotary_base), int(width * rotary_percent) if rotary_percent < 1 else width)
    biases = config.add_bias_linear
    return ModelConfig(
        model_type="qwen3" if config.qk_layernorm else "qwen2" if config.add_qkv_bias else "llama",
        vocab_size=vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.ffn_hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_query_groups,
        head_dim=width,
        rms_norm_eps=config.layernorm_epsilon,
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
        windows=(None,) * layers,
        ropes=(rope,) * layers,
        attention_scale=scale_of(config),
        qkv_bias=biases or config.add_qkv_bias,
        o_bias=biases,
        mlp_bias=biases,
        qk_norm=config.qk_layernorm,
        leaves=leaves_of(config),
    )


def scale_of(config: Any) -> float:
    """Return the factor of scores."""
    found: float | None = config.softmax_scale
    return config.kv_channels**-0.5 if found is None else found


def _problems(
    prefix: str, given: Mapping[str, Any], accepted: Mapping[str, tuple[Any, ...]]
) -> list[LaunchError]:
    return [
        refused(f"{prefix}{name}", _named(given[name]), " or ".join(str(_named(x)) for x in wanted))
        for name, wanted in accepted.items()
        if name in given and given[name] not in wanted
    ]


def _named(x: Any) -> Any:
    """Return the name of a function, else the value."""
    return getattr(x, "__name__", x)
