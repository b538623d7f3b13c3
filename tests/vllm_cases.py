"""vLLM's engines of tiny models on a CPU, and the trainer's side of their log-probs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from nn_cases import QWEN3, model

from rlk.nn import CausalLM, ModelConfig

BLOCK = 16
ARCHITECTURES = {
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM"),
    "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
}


def saved(path: Path, seed: int = 0, **options: Any) -> CausalLM:
    """Return a model, after writing it into a folder."""
    import transformers

    made = model(seed=seed, **options)
    config, architecture = ARCHITECTURES[made.config.model_type]
    given = QWEN3 | options
    made.save_pretrained(
        path, config=getattr(transformers, config)(**given, architectures=[architecture], bos_token_id=0)
    )
    return made


def engine(path: Path, runner: int = 1, blocks: int = 64, **options: Any) -> Any:
    """Return an engine of a saved model: V1 or V2 of vLLM's runners, with so many blocks for keys."""
    import pytest
    import vllm.envs
    from transformers import AutoConfig
    from vllm import LLM

    vllm.envs.disable_envs_cache()
    config = ModelConfig.of(AutoConfig.from_pretrained(path))
    heads = config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    given = {
        "skip_tokenizer_init": True, "dtype": "bfloat16", "quantization": "rlk", "enforce_eager": True,
        "max_model_len": 160, "max_num_seqs": 3, "max_num_batched_tokens": 24, "block_size": BLOCK,
        "kv_cache_memory_bytes": blocks * BLOCK * heads * 4, "seed": 0,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", str(runner - 1))
        made = LLM(str(path), **given | options)
    sampler = made.llm_engine.model_executor.driver_worker.model_runner.sampler
    assert type(sampler).__name__ == f"SamplerV{runner}"
    return made


def run(llm: Any, prompts: list[list[int]], new: int = 4, lora: Any = None, **options: Any) -> list[Any]:
    from vllm import SamplingParams

    given = {"max_tokens": new, "ignore_eos": True, "detokenize": False, "logprobs": 0, "seed": 0} | options
    made = llm.generate(
        [{"prompt_token_ids": p} for p in prompts], SamplingParams(**given), use_tqdm=False, lora_request=lora
    )
    return list(made)


def drawn(output: Any) -> torch.Tensor:
    """Return the log-probs of an output's tokens, as integers: bits are compared."""
    one = output.outputs[0]
    found = [at[token].logprob for at, token in zip(one.logprobs, one.token_ids, strict=True)]
    return torch.tensor(found).view(torch.int32)


def prompted(output: Any) -> torch.Tensor:
    """Return the log-probs of a prompt's tokens but the first, as integers."""
    ids = output.prompt_token_ids[1:]
    found = [at[token].logprob for at, token in zip(output.prompt_logprobs[1:], ids, strict=True)]
    return torch.tensor(found).view(torch.int32)


def trained(policy: Any, output: Any) -> torch.Tensor:
    """Return the trainer's log-probs of a prompt and its continuation but the first token, as integers."""
    ids = torch.tensor([*output.prompt_token_ids, *output.outputs[0].token_ids])
    with torch.no_grad():
        made = policy.logps(ids if isinstance(policy, CausalLM) else ids[None]).logp
    assert made is not None
    return made.view(-1)[1:].view(torch.int32)


def differing(policy: Any, outputs: list[Any]) -> int:
    """Return how many log-probs of drawn tokens differ from the trainer's."""
    return sum(int((trained(policy, o)[len(o.prompt_token_ids) - 1 :] != drawn(o)).sum()) for o in outputs)
