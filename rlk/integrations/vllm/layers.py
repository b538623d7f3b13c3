"""vLLM's linear layers, embeddings, norms, activations, rotary embeddings and head, computed by rlk."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.custom_op import CustomOp, PluggableLayer
from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.model_executor.layers.linear import LinearBase, RowParallelLinear, UnquantizedLinearMethod
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.rotary_embedding import (
    LinearScalingRotaryEmbedding,
    Llama3RotaryEmbedding,
    RotaryEmbedding,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from rlk import ops
from rlk.integrations.tensors import no_form
from rlk.integrations.vllm import computations, ranks
from rlk.integrations.vllm.hooks import PEER, hook
from rlk.nn.config import ModelConfig
from rlk.nn.logits import head_logits

QUANTIZATION = "rlk"
_head = hook("head", "LogitsProcessor")


class RlkConfig(QuantizationConfig):
    """The "quantization" whose weights stay as they are and whose products are rlk's. model: its sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.model: ModelConfig | None = None

    @classmethod
    def get_name(cls) -> str:
        return QUANTIZATION

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> RlkConfig:
        raise no_form(
            PEER, f"a checkpoint quantized by {config.get('quant_method')}", "load one of 16 or 32 bits"
        )

    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: Any = None) -> None:
        """Read the model's sizes and roundings. Raises LaunchError for one that rlk does not have."""
        self.model = ModelConfig.of(hf_config)
        if self.model.experts is not None:
            raise no_form(PEER, "a model of experts", "serve it by rlk.nn, or a dense model")

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        assert self.model is not None
        if isinstance(layer, LinearBase):
            return Linear(isinstance(layer, RowParallelLinear), self.model.leaves)
        if isinstance(layer, VocabParallelEmbedding):
            return Embedding()
        return None


def rlk_config(config: Any) -> RlkConfig | None:
    """Return the quantization of a VllmConfig, None if its model is not computed by rlk."""
    found = None if config is None else config.quant_config
    return found if isinstance(found, RlkConfig) else None


def current() -> RlkConfig | None:
    """Return the quantization of the model that is being made, None if it is not computed by rlk."""
    return rlk_config(get_current_vllm_config_or_none())


class Linear(UnquantizedLinearMethod):
    """Products of a linear layer. rows: it is row-parallel, and summed in leaves."""

    def __init__(self, rows: bool, leaves: int) -> None:
        super().__init__()
        self.rows, self.leaves = rows, leaves

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Leave weights as they are."""

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return computations.linear(x, layer.weight, bias, self.rows, self.leaves)


class Embedding(UnquantizedEmbeddingMethod):
    """An embedding, and a head, whose logits are f32."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Leave weights as they are."""

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        if bias is not None:
            raise no_form(PEER, "a head with a bias", "use a model without one")
        return head_logits(x, computations.plain(layer.weight), None)

    def embedding(self, layer: torch.nn.Module, input_: torch.Tensor) -> torch.Tensor:
        return computations.embedding(input_, layer.weight)


def adopt(model: torch.nn.Module) -> None:
    """Let rlk compute embeddings that a model made without asking for a quantization, as Gemma's are.

    And let it sum the layers whose weights ranks share.
    """
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding):
            if type(module.quant_method) is UnquantizedEmbeddingMethod:
                module.quant_method = Embedding()
        ranks.adopt(module)


# --- layers that vLLM makes in place of its own ------------------------------------------------------


class Replaced:
    """A layer that vLLM makes in place of one of its own; for a model of another quantization, its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if current() is None:
            theirs = theirs_of(type(self))
            object.__setattr__(self, "__class__", theirs)
            theirs.__init__(self, *args, **kwargs)  # type: ignore[misc]
        else:
            self.made(*args, **kwargs)

    def made(self, *args: Any, **kwargs: Any) -> None:
        """Initialise a layer that rlk computes."""
        super().__init__(*args, **kwargs)


class RlkRMSNorm(Replaced, RMSNorm):
    """`rlk.ops.rms_norm` as transformers rounds it: of the rounded sum, where there is a residual."""

    PROFILE = "hf_llama"

    def made(self, *args: Any, **kwargs: Any) -> None:
        super().made(*args, **kwargs)
        if self.variance_size_override is not None or not self.has_weight:
            raise no_form(PEER, "an RMSNorm of a part of its input, or without a weight", "use another model")

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        return _norm(self, x, residual)


class RlkGemmaRMSNorm(Replaced, GemmaRMSNorm):
    """`rlk.ops.rms_norm` with profile "gemma": by 1 + weight, before one rounding."""

    PROFILE = "gemma"

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        return _norm(self, x, residual)


def _norm(self: Any, x: torch.Tensor, residual: torch.Tensor | None) -> Any:
    given = (x, self.weight, self.variance_epsilon, self.PROFILE)
    if residual is None:
        return computations.rms_norm(*given)
    return computations.rms_norm_of_sum(*given, residual)


class RlkSiluAndMul(Replaced, SiluAndMul):
    """SwiGLU of gate and up side by side."""

    def made(self, *args: Any, **kwargs: Any) -> None:
        CustomOp.__init__(self)  # without vLLM's kernel, which its own __init__ looks up

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return computations.gated(x, "silu")


class RlkGeluAndMul(Replaced, GeluAndMul):
    """GeGLU of gate and up side by side, by the tanh approximation."""

    def made(self, approximate: str = "none") -> None:
        if approximate != "tanh":
            raise no_form(PEER, f"GeluAndMul(approximate={approximate!r})", 'rlk has "tanh"')
        CustomOp.__init__(self)
        self.approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return computations.gated(x, "gelu_tanh")


class Rotary(Replaced):
    """Rotary embeddings with the tables of `rlk.ops.rope_table`, rounded once to the dtype of the model."""

    def _compute_cos_sin_cache(self) -> torch.Tensor:
        cos, sin = ops.rope_table(self._rows(), self.rotary_dim, base=self.base, scaling=self.scaling)
        return torch.cat((cos, sin), -1).to(torch.get_default_device())

    def _rows(self) -> int:
        return self.max_position_embeddings  # type: ignore[attr-defined, no-any-return]

    @property
    def scaling(self) -> dict[str, Any]:
        return {"rope_type": "default"}

    def forward(self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None) -> Any:
        if key is None:
            raise no_form(PEER, "rotary embeddings of queries alone", "use a model without shared keys")
        table = self._match_cos_sin_cache_dtype(query)  # type: ignore[attr-defined]
        interleaved = not self.is_neox_style  # type: ignore[attr-defined]
        return computations.rope(positions, query, key, table, self.head_size, interleaved)  # type: ignore[attr-defined]


class RlkRotaryEmbedding(Rotary, RotaryEmbedding):
    """Rotary embeddings without scaling."""


class RlkLlama3RotaryEmbedding(Rotary, Llama3RotaryEmbedding):
    """Rotary embeddings with Llama 3's scaling."""

    @property
    def scaling(self) -> dict[str, Any]:
        return {
            "rope_type": "llama3",
            "factor": self.scaling_factor,
            "low_freq_factor": self.low_freq_factor,
            "high_freq_factor": self.high_freq_factor,
            "original_max_position_embeddings": self.orig_max_position,
        }


class RlkLinearScalingRotaryEmbedding(Rotary, LinearScalingRotaryEmbedding):
    """Rotary embeddings with linear scaling."""

    def _rows(self) -> int:
        return int(self.max_position_embeddings * self.scaling_factors[0])

    @property
    def scaling(self) -> dict[str, Any]:
        return {"rope_type": "linear", "factor": self.scaling_factors[0]}


class RlkLogitsProcessor(Replaced, LogitsProcessor):
    """f32 logits of a head, by `rlk.nn`'s product and softcap."""

    def forward(
        self,
        lm_head: VocabParallelEmbedding,
        hidden_states: torch.Tensor,
        embedding_bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if embedding_bias is not None or self.scale != 1.0 or self.logits_as_input:
            raise no_form(PEER, "logits with a bias or a scale", "use a model without one")
        _head.count()
        head = getattr(lm_head, "base_layer", lm_head)  # adapters wrap it
        weight = computations.plain(head.weight)
        if not ranks.over_ranks(head):
            return head_logits(hidden_states, weight[: self.org_vocab_size], self.soft_cap)
        # a logit is one chain on one rank: ranks exchange logits alone, and the padding is the last rows
        logits = self._gather_logits(head_logits(hidden_states, weight, self.soft_cap))
        return logits[..., : self.org_vocab_size].contiguous()


REPLACED = {
    CustomOp: (
        RlkRMSNorm,
        RlkGemmaRMSNorm,
        RlkSiluAndMul,
        RlkGeluAndMul,
        RlkRotaryEmbedding,
        RlkLlama3RotaryEmbedding,
        RlkLinearScalingRotaryEmbedding,
    ),
    PluggableLayer: (RlkLogitsProcessor,),
}
"""The layers that vLLM makes in place of its own, by the registry that they go into."""


def register() -> None:
    """Let vLLM make these layers in place of its own."""
    for registry, layers in REPLACED.items():
        for layer in layers:
            registry.register_oot(name=theirs_of(layer).__name__)(layer)


def theirs_of(layer: type) -> type:
    """Return vLLM's class that a layer replaces."""
    return next(c for c in layer.__mro__ if c.__module__.startswith("vllm."))
