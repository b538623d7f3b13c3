"""Other families, compiled graphs, leaves and adapters in vLLM's engine on the oracle."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from nn_cases import texts

if os.environ.get("RLK_REQUIRE_VLLM") != "1":
    pytest.importorskip("vllm", reason="make test-vllm has vLLM")

from vllm_cases import differing, engine, run, saved

from rlk import ops
from rlk.errors import UnsupportedError
from rlk.nn import CausalLM

LLAMA = {
    "model_type": "llama",
    "attention_bias": True,
    "rlk_leaves": 2,
    "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    },
}  # fmt: skip
GEMMA = {
    "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24,
    "sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"],
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "tie_word_embeddings": True,
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 20},
    "qwen2": {"num_attention_heads": 2, "num_key_value_heads": 1},
    "gemma3_text": {
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24, "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": True,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
    },
}  # fmt: skip
ADAPTED = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
RANK, SCALE = 4, 2.0


def test_a_compiled_graph_has_the_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 2 as vLLM traces it: windows, softcaps, norms around blocks, GeGLU, a head that is tied."""
    monkeypatch.setenv("VLLM_CPU_CI_ENV", "1")  # traced, and not lowered by Inductor
    policy = saved(tmp_path, **GEMMA)
    llm = engine(tmp_path, enforce_eager=False)
    mode = llm.llm_engine.vllm_config.compilation_config.mode
    assert mode.name == "DYNAMO_TRACE_ONCE"
    assert differing(policy, run(llm, texts((50, 9)), new=3)) == 0


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("mistral", torch.bfloat16), ("qwen2", torch.float16), ("gemma3_text", torch.bfloat16)],
)
def test_other_families_have_the_bits(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    """A prompt is longer than the windows of Mistral and Gemma 3."""
    saved(tmp_path, model_type=family, **OTHERS[family])
    policy = CausalLM.from_pretrained(tmp_path, dtype=dtype)
    llm = engine(tmp_path, dtype=str(dtype).removeprefix("torch."))
    assert differing(policy, outputs := run(llm, texts((40, 9)), new=3)) == 0
    other = torch.float16 if dtype is torch.bfloat16 else torch.bfloat16
    assert differing(CausalLM.from_pretrained(tmp_path, dtype=other), outputs) > 0  # the control


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_bias": True}, "o_proj without a bias.*\n.*rlk.nn and transformers compute it with one"),
        ({"model_type": "mistral", "sliding_window": 20, "attention_bias": True}, "qkv_proj with a bias"),
        ({"model_type": "llama", "qkv_bias": True}, "qkv_proj with a bias"),
    ],
)
def test_biases_that_only_one_side_has_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    saved(tmp_path, num_hidden_layers=1, **options)
    with pytest.raises(UnsupportedError, match=message):
        engine(tmp_path)


class Adapted(torch.nn.Module):
    """A linear layer with an adapter, as peft computes it: scale b(a(x)) beside the layer."""

    def __init__(self, base: torch.nn.Module, a: torch.Tensor, b: torch.Tensor) -> None:
        super().__init__()
        self.base, self.a, self.b = base, a, b

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + ops.matmul(ops.matmul(x, self.a), self.b) * SCALE


def adapter(path: Path, policy: Any, scale: float = SCALE) -> Any:
    """Write an adapter of some layers, as peft does, and return the model with it at SCALE."""
    from safetensors.torch import save_file

    made, tensors = copy.deepcopy(policy), {}
    drawn = torch.Generator().manual_seed(7)
    for i, layer in enumerate(made.model.layers):
        for name in ADAPTED:
            holder, _, last = name.partition(".")
            base = getattr(getattr(layer, holder), last)
            a, b = (
                0.3 * torch.randn(shape, generator=drawn).bfloat16()
                for shape in ((RANK, base.in_features), (base.out_features, RANK))
            )
            setattr(getattr(layer, holder), last, Adapted(base, a, b))
            key = f"base_model.model.model.layers.{i}.{name}"
            tensors |= {f"{key}.lora_A.weight": a, f"{key}.lora_B.weight": b}
    save_file(tensors, path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK * scale, "bias": "none"}
    names = [name.rpartition(".")[2] for name in ADAPTED]
    (path / "adapter_config.json").write_text(json.dumps(config | {"target_modules": names}))
    return made


@pytest.mark.parametrize("runner", [1, 2])
def test_adapters_and_leaves_keep_the_bits(tmp_path: Path, runner: int) -> None:
    """Llama with scaled rotary angles and biases; requests with and without an adapter in a batch."""
    from vllm.lora.request import LoRARequest

    policy = saved(tmp_path, **LLAMA)
    assert policy.config.leaves == 2
    at, odd = tmp_path / "adapter", tmp_path / "odd"
    for folder in (at, odd):
        folder.mkdir()
    adapted = adapter(at, policy)
    adapter(odd, policy, scale=0.75)
    llm = engine(tmp_path, runner, enable_lora=True, max_lora_rank=8, max_loras=2)
    request = LoRARequest("one", 1, str(at))
    plain, with_adapter = run(llm, texts((30, 9)), new=3, lora=[None, request])
    assert differing(policy, [plain]) == 0
    assert differing(adapted, [with_adapter]) == 0
    assert differing(policy, [with_adapter]) > 0
    assert llm.collective_rpc("rlk_calls")[0]["lora"] > 0
    assert llm.collective_rpc("rlk_numerics_id") == [policy.numerics_id("cpu")]
    with pytest.raises(UnsupportedError, match="lora_alpha / r is 0.75"):
        run(llm, texts((9,)), lora=LoRARequest("odd", 2, str(odd)))
