"""vLLM as the engine of the rlk arm, by rlk's plugin: its log-probs are the trainer's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from examples.grpo import task
from examples.grpo.engine import Answer
from examples.grpo.setting import POSITIONS, ExampleError, Size

CHUNK = 512  # tokens that the engine reads at a time
FREE = 0.02  # of the device's memory, which vLLM wants free at the start although its cache is given in bytes


def imported_vllm() -> Any:
    """Return vLLM; raise ExampleError where it, rlk's plugin or a device is missing."""
    # the engine's worker has to be in this process for its model to be reached
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    try:
        import vllm

        from rlk.integrations.vllm.coverage import check_device
    except ImportError as error:
        why = f"--engine vllm needs vLLM and rlk's plugin for it: {error}; leave the option out"
        raise ExampleError(why) from error
    check_device()
    return vllm


@dataclass(frozen=True, slots=True, eq=False)
class VllmEngine:
    """An engine of vLLM in the process of the trainer, with weights of its own."""

    llm: Any

    @staticmethod
    def of(folder: Path, size: Size) -> VllmEngine:
        """Start an engine of a checkpoint; raise ExampleError where vLLM or rlk's plugin is missing."""
        LLM = imported_vllm().LLM
        shape = size.shape
        token = 2 * 2 * shape.layers * shape.key_heads * shape.head_dim  # bytes: key and value, 16 bits each
        llm = LLM(
            str(folder), quantization="rlk", dtype="bfloat16", skip_tokenizer_init=True, seed=0,
            max_model_len=POSITIONS, max_num_seqs=size.micro, max_num_batched_tokens=CHUNK,
            kv_cache_memory_bytes=2 * size.micro * POSITIONS * token,  # the trainer has the rest
            gpu_memory_utilization=FREE,
        )  # fmt: skip
        return VllmEngine(llm)

    def generate(self, prompts: list[list[int]], seeds: list[int], most: int) -> list[Answer]:
        from vllm import SamplingParams

        options = {"max_tokens": most, "stop_token_ids": [task.END], "logprobs": 0, "detokenize": False}
        made = self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            [SamplingParams(seed=seed, **options) for seed in seeds],
            use_tqdm=False,
        )
        answers = []
        for one in (output.outputs[0] for output in made):
            logps = [at[token].logprob for at, token in zip(one.logprobs, one.token_ids, strict=True)]
            answers.append(Answer(tuple(one.token_ids), torch.tensor(logps)))
        return answers

    def update(self, model: torch.nn.Module) -> None:
        weights = [(name, p.detach()) for name, p in model.named_parameters()]
        self.llm.llm_engine.model_executor.driver_worker.get_model().load_weights(weights)
        if not self.llm.reset_prefix_cache():
            raise ExampleError("vLLM kept keys of the weights before the update")

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()
