"""Refusals of rlk's plugin for vLLM before a model is loaded or after, and models that it leaves alone."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

if os.environ.get("RLK_REQUIRE_VLLM") != "1":
    pytest.importorskip("vllm", reason="make test-vllm has vLLM")

from safetensors.torch import load_file, save_file
from vllm_cases import engine, saved

from rlk.errors import LaunchError, UnsupportedError

CONNECTOR = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("policy")
    saved(made, num_hidden_layers=1)
    return made


def config(path: Path, **options: Any) -> Any:
    """Return the config of an engine, which loads no model."""
    from vllm import EngineArgs

    given = {"skip_tokenizer_init": True, "dtype": "bfloat16", "quantization": "rlk", "max_model_len": 64}
    return EngineArgs(str(path), **given | options).create_engine_config()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative decoding"),
        ({"kv_cache_dtype": "fp8"}, r"a cache of fp8.*\n.*leave kv_cache_dtype out"),
        ({"tensor_parallel_size": 2}, r"tensor parallelism over 2 ranks.*leaves=1.*\n.*rlk_leaves"),
        ({"tensor_parallel_size": 4}, r"over 4 ranks of num_key_value_heads=2.*\n.*a divisor of 2"),
        ({"tensor_parallel_size": 2, "enable_lora": True}, r"adapters with tensor parallelism.*\n.*merge"),
        ({"pipeline_parallel_size": 2}, r"pipeline parallelism over 2 ranks.*\n.*use 1"),
        ({"data_parallel_size": 2}, r"data parallelism over 2 ranks.*\n.*use 1"),
        ({"kv_transfer_config": CONNECTOR}, r"a cache that is sent or offloaded.*\n.*leave kv_transfer"),
        ({"kv_offloading_size": 1.0}, r"a cache that is sent or offloaded.*\n.*kv_offloading_size out"),
        ({"enable_prompt_embeds": True}, r"prompts of embeddings.*\n.*leave enable_prompt_embeds out"),
        ({"attention_backend": "TRITON_ATTN"}, r"attention by TRITON_ATTN.*\n.*CUSTOM"),
        ({"quantization": "fp8"}, r"quantization='fp8' beside RLK_VLLM"),
        ({"enable_lora": True, "lora_dtype": "float16"}, r"adapters of torch.float16"),
    ],
)
def test_options_without_a_form_are_refused(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        config(path, **options)


def test_a_machine_without_a_device_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.platforms import current_platform

    from examples.grpo import cli

    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the example sets it
    monkeypatch.setattr(current_platform, "device_type", "")
    with pytest.raises(UnsupportedError, match=r"without a device.*\n.*RLK_VLLM=cpu"):
        config(path)
    monkeypatch.setattr(cli, "_run", lambda *_: pytest.fail("a run began"))
    assert cli.main(["--engine", "vllm", "--device", "cpu", "--out", str(path / "runs")]) == 1


def test_leaves_of_ranks_may_be_given_to_the_engine(path: Path) -> None:
    made = config(path, tensor_parallel_size=2, hf_overrides={"rlk_leaves": 4})
    assert made.quant_config.model.leaves == 4


def test_the_attention_backend_has_no_form_of_connectors() -> None:
    from rlk.integrations.vllm.attention import RlkBackend

    assert not RlkBackend.supports_kv_connector()


def test_all_findings_are_told_at_once(path: Path) -> None:
    with pytest.raises(UnsupportedError) as error:
        config(path, kv_cache_dtype="fp8", tensor_parallel_size=2)
    assert len(error.value.diagnostics) == 2


def test_batches_in_parts_are_refused(path: Path) -> None:
    from rlk.integrations.vllm.coverage import check_options

    made = config(path)
    made.parallel_config.enable_dbo = True  # vLLM itself turns it off on a CPU
    with pytest.raises(UnsupportedError, match=r"batches in parts.*\n.*leave enable_dbo"):
        check_options(made)


def test_models_without_a_form_are_refused(path: Path) -> None:
    from transformers import GPT2Config

    from rlk.integrations.vllm.coverage import check_options
    from rlk.integrations.vllm.layers import RlkConfig

    with pytest.raises(LaunchError, match=r"model_type='gpt2'.*\n.*qwen3"):
        RlkConfig().maybe_update_config("a model", GPT2Config())
    made = config(path)
    made.model_config._architecture = "TransformersForCausalLM"
    with pytest.raises(UnsupportedError, match=r"the architecture Transformers.*\n.*Qwen3ForCausalLM"):
        check_options(made)


def test_weights_that_a_checkpoint_has_not_are_named(tmp_path: Path) -> None:
    """Also a part of what vLLM merges, which it would leave as its memory was."""
    saved(tmp_path, num_hidden_layers=1)
    file = tmp_path / "model.safetensors"
    lost = ("model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.up_proj.weight")
    save_file({n: x for n, x in load_file(file).items() if n not in lost}, file, metadata={"format": "pt"})
    with pytest.raises(LaunchError, match=rf"missing tensors, 2 in all: {', '.join(lost)}"):
        engine(tmp_path)


def test_callers_who_ask_for_nothing_get_rlk(path: Path) -> None:
    made = config(path, quantization=None)
    assert (made.quant_config.get_name(), made.attention_config.backend.name) == ("rlk", "CUSTOM")


def test_other_models_keep_vllms_layers() -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    with set_current_vllm_config(VllmConfig()):
        norm = RMSNorm(16)
        rotary = RotaryEmbedding(16, 16, 32, 1e4, True, torch.bfloat16)
    assert (type(norm), type(rotary)) == (RMSNorm, RotaryEmbedding)
    assert "rms_norm" in (norm.name, RMSNorm.name)


def test_another_vllm_is_refused_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from dataclasses import replace

    from rlk.env import Env
    from rlk.integrations import swap
    from rlk.integrations.vllm import plugin

    monkeypatch.setattr(swap, "version", lambda peer: "0.27.1")
    with pytest.raises(UnsupportedError, match=r"vllm 0.27.1 is not one that rlk knows \(0.26.0\)"):
        plugin.install()
    env = replace(Env.current(), vllm=None)
    monkeypatch.setattr(Env, "current", staticmethod(lambda: env))
    with caplog.at_level(logging.WARNING, logger="rlk"):
        plugin.install()  # others who use this vLLM are left alone
    assert "not registered: vllm 0.27.1" in caplog.text


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({"model.layers.0.mlp.down_proj": 0.75}, "lora_alpha / r is 0.75"),
        ({"model.layers.0.mlp.down_proj": 2.0, "lm_head": 2.0}, "an adapter of lm_head"),
    ],
)
def test_adapters_that_round_otherwise_are_refused(layers: dict[str, float], message: str) -> None:
    from types import SimpleNamespace

    from rlk.integrations.vllm.lora import check_adapter

    check_adapter({"model.layers.0.mlp.down_proj": SimpleNamespace(scaling=0.5)})
    with pytest.raises(UnsupportedError, match=message):
        check_adapter({name: SimpleNamespace(scaling=scaling) for name, scaling in layers.items()})
