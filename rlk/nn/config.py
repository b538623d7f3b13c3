"""The sizes, layers and roundings of a decoder, read from the config of a transformers model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlk.errors import LaunchError
from rlk.ops.gated import Activation
from rlk.ops.moe import MOST_CHOICES, MOST_EXPERTS
from rlk.ops.rotary import OPTIONAL, SCALINGS, ZERO_IS_ABSENT
from rlk.runtime.binding.checks import wrong_type, wrong_value

Profile = Literal["hf_llama", "gemma", "vllm", "gpt_oss"]
LEAVES = "rlk_leaves"
"""The entry of config.json that holds a model's number of leaves."""
NEEDED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "rms_norm_eps", "max_position_embeddings",
)  # fmt: skip
"""What a config must hold; the other entries have defaults."""
INITIALIZER_RANGE = 0.02  # as transformers, where a config has none


@dataclass(frozen=True, slots=True)
class Rope:
    """The angles of a layer's rotary embedding: base, elements of a head that rotate, type of scaling."""

    theta: float
    dim: int
    scaling: tuple[tuple[str, float | str], ...] = (("rope_type", "default"),)


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer: how many, of which width, and how many a token goes through (k).

    renormalize: weights of a token add up to 1. dense: layers that have an MLP in their place. clamped: limit
    and alpha of `rlk.ops.clamped_swiglu`, for experts and a router with biases, as GPT-OSS has; None: SwiGLU
    without biases. choice: other options of `rlk.ops.route`, by name.
    """

    count: int
    k: int
    width: int
    renormalize: bool
    dense: tuple[int, ...] = ()
    clamped: tuple[float, float] | None = None
    choice: tuple[tuple[str, str | int | float], ...] = ()

    @property
    def router(self) -> str:
        """Return the name of a layer's router: "gate", or "router" in GPT-OSS."""
        return "gate" if self.clamped is None else "router"

    def number(self, layer: int) -> int:
        """Return the number of a layer among those with experts."""
        return layer - sum(i < layer for i in self.dense)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder. Names are those of transformers' configs where they have one.

    windows: of each layer, how many keys a query sees (its own included), None for all. ropes: of each
    layer. norm_profile: of every norm, as `rlk.ops.rms_norm` takes it. sandwich_norms: norms follow attention
    and MLP too (Gemma). embedding_scale: embeddings are multiplied by it, rounded to their dtype.
    attention_scale: of scores. sinks: heads have a sink each. leaves: pieces of contractions that ranks may
    share, and of the range of experts, 1, 2, 4 or 8; part of the numerics. experts: None in a dense model.
    initializer_range: the standard deviation of weights that are drawn. source: the entries that `of` read,
    which `CausalLM.save_pretrained` writes. Neither is compared: both say nothing of what a model computes.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    windows: tuple[int | None, ...]
    ropes: tuple[Rope, ...]
    attention_scale: float
    norm_profile: Profile = "hf_llama"
    activation: Activation = "silu"
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    sandwich_norms: bool = False
    embedding_scale: float | None = None
    attention_softcap: float | None = None
    final_softcap: float | None = None
    leaves: int = 1
    experts: Experts | None = None
    initializer_range: float = field(default=INITIALIZER_RANGE, compare=False)
    source: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def num_hidden_layers(self) -> int:
        """Return the number of decoder layers."""
        return len(self.windows)

    def is_dense(self, layer: int) -> bool:
        """Return whether a layer has an MLP, not experts."""
        return self.experts is None or layer in self.experts.dense

    @staticmethod
    def of(config: object, *, leaves: int | None = None) -> ModelConfig:
        """Return what a config of transformers (or its dict, with all defaults) says.

        leaves: by default what the config holds as "rlk_leaves", or 1. Raises LaunchError for a model or
        options that rlk does not have: one finding for each, with what was found and what is supported.
        """
        given = _entries(config)
        kind = given.get("model_type")
        if kind not in FAMILIES:
            wanted = f"one of {', '.join(FAMILIES)}"
            raise _refused("model_type", kind, wanted + PARTLY.get(str(kind), ""))
        if missing := [name for name in NEEDED if given.get(name) is None]:
            raise joined([_refused(name, None, "a number") for name in missing])
        problems: list[LaunchError] = []
        heads, layers = given["num_attention_heads"], given["num_hidden_layers"]
        head_dim = given.get("head_dim") or given["hidden_size"] // heads
        own = _tried(problems, {}, FAMILIES[kind], given)
        made = {
            **{name: given[name] for name in NEEDED if name != "num_hidden_layers"},
            "model_type": kind,
            "num_key_value_heads": given.get("num_key_value_heads") or heads,
            "head_dim": head_dim,
            "tie_word_embeddings": bool(given.get("tie_word_embeddings", False)),
            "windows": _tried(problems, (None,) * layers, _windows, given, layers),
            "ropes": _tried(problems, (), _ropes, given, layers, head_dim),
            "attention_scale": head_dim**-0.5,
            "leaves": given.get(LEAVES, 1) if leaves is None else leaves,
            "initializer_range": _tried(problems, 0.0, _initializer_range, given),
            "source": given,
            **own,
        }
        for check in (_check_activation, _check_weights):
            _tried(problems, None, check, given)
        found = ModelConfig(**made)
        problems += _problems(found, f"config.{LEAVES}" if leaves is None else "leaves")
        if problems:
            raise joined(problems)
        return found


def check_config(op: str, config: object) -> None:
    """Raise LaunchError for a config of transformers, or anything else that is no ModelConfig."""
    if not isinstance(config, ModelConfig):
        how = "CausalLM.from_pretrained(path) loads a checkpoint"
        if isinstance(config, Mapping) or hasattr(config, "to_dict"):
            how = "ModelConfig.of(config) makes one of a config of transformers or of its dict"
        raise wrong_type(op, "config", config, f"rlk.nn.ModelConfig ({how})")


def _entries(config: object) -> Mapping[str, Any]:
    """Return the entries of a config of transformers or of its dict, as a dict of their own."""
    if isinstance(config, Mapping):
        return copy.deepcopy(dict(config))
    if not hasattr(config, "to_dict"):
        raise wrong_type("ModelConfig.of", "config", config, "config of transformers, or its dict")
    made: dict[str, Any] = config.to_dict()
    return made


def joined(errors: Sequence[LaunchError]) -> LaunchError:
    """Return one error with the findings of several."""
    found = LaunchError.collected(tuple(d for error in errors for d in error.diagnostics))
    assert isinstance(found, LaunchError)
    return found


def _tried(problems: list[LaunchError], default: Any, read: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns; note what it refuses, and return the default."""
    try:
        return read(*args)
    except LaunchError as error:
        problems.append(error)
        return default


# --- families: what differs from Llama ---------------------------------------------------------------------


def _llama(given: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(given.get("attention_bias", False))
    return {"qkv_bias": bias, "o_bias": bias, "mlp_bias": bool(given.get("mlp_bias", False))}


def _mistral(given: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _qwen2(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"qkv_bias": True}


def _qwen3(given: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(given.get("attention_bias", False))
    return {"qkv_bias": bias, "o_bias": bias, "qk_norm": True}


def _qwen3_moe(given: Mapping[str, Any]) -> dict[str, Any]:
    count, layers = _count_of_experts(given), given["num_hidden_layers"]
    step, dense = given.get("decoder_sparse_step", 1), given.get("mlp_only_layers") or ()
    if not isinstance(step, int) or step < 1:
        raise _refused("decoder_sparse_step", step, "1 or more: every so many layers have experts")
    experts = Experts(
        count=count,
        k=_size(given, "num_experts_per_tok"),
        width=_size(given, "moe_intermediate_size"),
        renormalize=bool(given.get("norm_topk_prob", False)),
        dense=tuple(i for i in range(layers) if i in dense or (i + 1) % step),
    )
    return _qwen3(given) | {"experts": None if len(experts.dense) == layers else experts}


def _mixtral(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("router_jitter_noise"):
        raise _refused("router_jitter_noise", given["router_jitter_noise"], "0: scores without noise")
    k, width = _size(given, "num_experts_per_tok"), given["intermediate_size"]
    return {"experts": Experts(_count_of_experts(given), k, width, renormalize=True)}


def _gpt_oss(given: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(given.get("attention_bias", True))
    experts = Experts(
        count=_count_of_experts(given),
        k=_size(given, "num_experts_per_tok"),
        width=given["intermediate_size"],
        renormalize=True,
        clamped=(_positive(given, "swiglu_limit", 7.0), _positive(given, "swiglu_alpha", 1.702)),
    )
    return {"qkv_bias": bias, "o_bias": bias, "norm_profile": "gpt_oss", "sinks": True, "experts": experts}


def experts_of_deepseek(given: Mapping[str, Any]) -> Experts:
    """Return the experts of DeepSeek-V3. given: its config as a dict. Raises LaunchError."""
    count, k, groups, kept, width = (
        _size(given, name)
        for name in (
            "n_routed_experts", "num_experts_per_tok", "n_group", "topk_group", "moe_intermediate_size",
        )
    )  # fmt: skip
    scale = float(_size(given, "routed_scaling_factor"))
    choice: dict[str, str | int | float] = {
        "score": "sigmoid",
        "groups": groups,
        "kept_groups": kept,
        "scale": scale,
    }
    made = Experts(count, k, width, bool(given.get("norm_topk_prob")), choice=tuple(choice.items()))
    problems: list[LaunchError] = []
    _tried(problems, None, _check_activation, given)
    problems += _problems_of_experts(made, "n_routed_experts")
    if not 1 <= groups <= count or count % groups or (groups > 1 and count == groups):
        wanted = f"a divisor of n_routed_experts = {count}, with at least 2 experts in a group"
        problems.append(_refused("n_group", groups, wanted))
    elif not k <= kept * (count // groups) <= count:
        wanted = f"1 to n_group = {groups}, with at least num_experts_per_tok = {k} experts"
        problems.append(_refused("topk_group", kept, wanted))
    if problems:
        raise joined(problems)
    return made


def _count_of_experts(given: Mapping[str, Any]) -> int:
    """Return the number of experts, by the name of today's transformers or the older one."""
    return _size(given, "num_local_experts" if given.get("num_experts") is None else "num_experts")


def _initializer_range(given: Mapping[str, Any]) -> float:
    found = given.get("initializer_range") or INITIALIZER_RANGE  # 0 too, as transformers
    if not isinstance(found, int | float) or not 0 < found < math.inf:
        raise _refused("initializer_range", found, "a positive number")
    return float(found)


def _positive(given: Mapping[str, Any], name: str, default: float) -> float:
    found = given.get(name, default)
    if not isinstance(found, int | float) or not 0 < found < math.inf:
        raise _refused(name, found, "a positive finite number")
    return float(found)


def _size(given: Mapping[str, Any], name: str) -> int:
    found: int | None = given.get(name)
    if found is None:
        raise _refused(name, None, "a number")
    return found


def _gemma2(given: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(given.get("attention_bias", False))
    return {
        "qkv_bias": bias,
        "o_bias": bias,
        "norm_profile": "gemma",
        "activation": "gelu_tanh",
        "sandwich_norms": True,
        "embedding_scale": given["hidden_size"] ** 0.5,
        "attention_scale": given["query_pre_attn_scalar"] ** -0.5,
        "attention_softcap": given.get("attn_logit_softcapping"),
        "final_softcap": given.get("final_logit_softcapping"),
    }


def _gemma3(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("use_bidirectional_attention"):
        raise _refused("use_bidirectional_attention", True, "False: causal attention")
    # transformers' Gemma 3 reads attn_logit_softcapping and does not use it
    return _gemma2(given) | {"qk_norm": True, "attention_softcap": None}


FAMILIES: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "qwen3_moe": _qwen3_moe,
    "mixtral": _mixtral,
    "gpt_oss": _gpt_oss,
}
"""What each supported model_type of transformers has beside the parts of Llama."""
PARTLY = {
    "deepseek_v3": "; its latent attention (MLA) is not supported: rlk.patch(model, strict=False) exchanges "
    "router, experts, products and norms of a transformers model, and leaves attention"
}
"""What else is said of a model_type that is not supported."""
MIXED = ("qwen2", "qwen3", "gemma2", "gemma3_text", "gpt_oss")
"""Families of which some layers have a window and others none."""
ACTIVATIONS = {"silu": ("silu", "swish"), "gelu_tanh": ("gelu_pytorch_tanh",)}


def _check_activation(given: Mapping[str, Any]) -> None:
    wanted = "gelu_tanh" if given["model_type"].startswith("gemma") else "silu"
    key = "hidden_activation" if given.get("hidden_activation") or "hidden_act" not in given else "hidden_act"
    if given.get(key, ACTIVATIONS[wanted][0]) not in ACTIVATIONS[wanted]:  # as transformers, without it
        raise _refused(key, given.get(key), " or ".join(ACTIVATIONS[wanted]))


def _check_weights(given: Mapping[str, Any]) -> None:
    found = given.get("quantization_config")
    if not found:
        return
    wanted = "none: weights of 16 or 32 bits"
    if isinstance(found, Mapping) and found.get("quant_method") == "mxfp4":
        wanted += (
            "; load the checkpoint by transformers with Mxfp4Config(dequantize=True) and"
            " dtype=torch.bfloat16, and write it by save_pretrained"
        )
    raise _refused("quantization_config", found, wanted)


def _windows(given: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """Return the attention window of each layer."""
    window = given.get("sliding_window")
    if given.get("use_sliding_window") is False:
        window = None
    kinds = given.get("layer_types")
    if kinds is None:
        if window is not None and given["model_type"] in MIXED:
            wanted = "an entry for each layer, as AutoConfig of transformers makes it"
            raise _refused("layer_types", None, wanted)
        return (window,) * layers
    known = ("full_attention", "sliding_attention")
    for kind in kinds:
        if kind not in known:
            raise _refused("layer_types", kind, " or ".join(known))
    if len(kinds) != layers:
        raise _refused("layer_types", f"{len(kinds)} entries", f"one for each of {layers} layers")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _ropes(given: Mapping[str, Any], layers: int, head_dim: int) -> tuple[Rope, ...]:
    """Return the rotary embedding of each layer, from `rope_parameters` or the older entries."""
    kinds = given.get("layer_types") or ("full_attention",) * layers
    found = given.get("rope_parameters")
    if found and all(
        isinstance(x, Mapping) or x is None for x in found.values()
    ):  # one of each kind of layer
        missing = [kind for kind in dict.fromkeys(kinds) if not found.get(kind)]
        if missing:
            wanted = "the parameters of these layers"
            raise _refused(f'rope_parameters["{missing[0]}"]', found.get(missing[0]), wanted)
        problems: list[LaunchError] = []
        made = {
            kind: _tried(
                problems, None, _rope, found[kind], given, head_dim, f'rope_parameters["{kind}"]'
            )
            for kind in dict.fromkeys(kinds)
        }
        if problems:
            raise joined(problems)
        return tuple(made[kind] for kind in kinds)
    if found:
        return (_rope(found, given, head_dim, "rope_parameters"),) * layers
    local, scaling = given.get("rope_local_base_freq"), given.get("rope_scaling") or {}
    full = _rope({"rope_theta": given.get("rope_theta", 10000.0), **scaling}, given, head_dim, "rope_scaling")
    if local is None:
        return (full,) * layers
    sliding = _rope({"rope_theta": local}, given, head_dim, "rope_scaling")
    return tuple(sliding if kind == "sliding_attention" else full for kind in kinds)


def _rope(found: Mapping[str, Any], given: Mapping[str, Any], head_dim: int, place: str) -> Rope:
    """Return what entries of a config say of angles. place: the name of these entries there."""
    numbers = {name: value for name, value in found.items() if value is not None}
    key = "type" if not numbers.get("rope_type") and numbers.get("type") else "rope_type"
    kind = numbers.pop("rope_type", None) or numbers.pop("type", "default")
    numbers.pop("type", None)
    if kind not in SCALINGS:
        raise _refused(f'{place}["{key}"]', kind, f"one of {', '.join(SCALINGS)}")
    theta = numbers.pop("rope_theta", given.get("rope_theta", 10000.0))
    part = numbers.pop("partial_rotary_factor", given.get("partial_rotary_factor") or 1.0)
    if part != 1.0:
        raise _refused("partial_rotary_factor", part, "1: transformers rotates whole heads of these models")
    if missing := [name for name in SCALINGS[kind] if name not in numbers]:
        wanted = f"a number: the type {kind} has {', '.join(SCALINGS[kind])}"
        raise _refused(f'{place}["{missing[0]}"]', None, wanted)
    names = (*SCALINGS[kind], *OPTIONAL.get(kind, ()))
    absent = [name for name in ZERO_IS_ABSENT.get(kind, ()) if numbers.get(name) == 0]
    scaling = {name: float(numbers[name]) for name in names if name in numbers and name not in absent}
    return Rope(float(theta), head_dim, (("rope_type", kind), *sorted(scaling.items())))


def _problems(config: ModelConfig, leaves: str) -> list[LaunchError]:
    """Return an error for each size that no kernel can serve. leaves: what the caller calls them."""
    if config.leaves not in (1, 2, 4, 8):
        return [wrong_value("rlk.nn", leaves, config.leaves, "1, 2, 4 or 8")]
    count = "num_experts" if config.model_type == "qwen3_moe" else "num_local_experts"
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    found = []
    if heads % shared:
        wanted = f"a multiple of num_key_value_heads = {shared}"
        found.append(_refused("num_attention_heads", heads, wanted))
    dense = any(map(config.is_dense, range(config.num_hidden_layers)))
    for name, n in (
        ("num_attention_heads * head_dim", heads * config.head_dim),
        ("num_key_value_heads * head_dim", shared * config.head_dim),
        ("intermediate_size", config.intermediate_size if dense else 0),
        (count, 0 if config.experts is None else config.experts.count),
    ):
        if n % config.leaves:
            found.append(_refused(name, n, f"a multiple of {leaves} = {config.leaves}"))
    if config.experts is None:
        return found
    return found + _problems_of_experts(config.experts, count)


def _problems_of_experts(experts: Experts, name: str) -> list[LaunchError]:
    """Return an error for a number that no kernel can serve. name: of the number of experts."""
    found = []
    if not 1 <= experts.count <= MOST_EXPERTS:
        found.append(_refused(name, experts.count, f"1 to {MOST_EXPERTS}"))
    elif not 1 <= experts.k <= min(experts.count, MOST_CHOICES):
        wanted = f"1 to {min(experts.count, MOST_CHOICES)}"
        found.append(_refused("num_experts_per_tok", experts.k, wanted))
    return found


def _refused(name: str, found: object, wanted: str) -> LaunchError:
    return wrong_value("rlk.nn", f"config.{name}", found, wanted)
