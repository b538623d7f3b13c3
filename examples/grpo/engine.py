"""Rollout engines: the interface, and those of rlk.nn and transformers.

An engine is a class with the methods of `Engine`. `generate` is called once a step with all prompts of the
step, `update` after each optimizer step, `close` at the end of a run. An engine that shares the trainer's
weights has nothing to do in `update`; one with weights of its own (`vllm_engine.py`) takes the model's
parameters there, by the names that `model.named_parameters()` gives them, and forgets keys of the weights
before. The log-probs are those of the distribution that a token was drawn from, at temperature 1. If they are
the trainer's bit for bit, the run needs no pass for old log-probs, and stops at the first that is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from examples.grpo import task
from rlk.nn import CausalLM


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """Drawn tokens, the end of the text included if it was drawn, and their log-probs, f32 on the host."""

    ids: tuple[int, ...]
    logps: torch.Tensor


class Engine(Protocol):
    """Draws answers from the weights that it was last given."""

    def generate(self, prompts: list[list[int]], seeds: list[int], most: int) -> list[Answer]:
        """Return an answer of at most `most` tokens for each prompt. seeds: one for each, all different."""
        ...

    def update(self, model: torch.nn.Module) -> None:
        """Take the weights of a model."""
        ...

    def close(self) -> None:
        """Give back what the engine holds; it is not called after that."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RlkEngine:
    """Continuous batching of `rlk.nn`: an answer depends on its prompt, its seed and the weights alone."""

    model: CausalLM
    batch: int

    def generate(self, prompts: list[list[int]], seeds: list[int], most: int) -> list[Answer]:
        made = self.model.generate(
            prompts,
            max_new_tokens=most,
            seed=seeds,
            request_ids=[0] * len(prompts),  # seeds alone tell requests apart, not their places
            eos_ids=(task.END,),
            max_batch=self.batch,
        )
        return [Answer(each.ids, each.logps) for each in made]

    def update(self, model: torch.nn.Module) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True, eq=False)
class StockEngine:
    """`generate` of transformers, padded on the left. One stream of random numbers serves the whole batch."""

    model: Any

    @torch.no_grad()
    def generate(self, prompts: list[list[int]], seeds: list[int], most: int) -> list[Answer]:
        device = self.model.device
        width = max(map(len, prompts))
        ids = torch.tensor([[task.PAD] * (width - len(p)) + p for p in prompts], device=device)
        exists = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        torch.manual_seed(seeds[0])
        made = self.model.generate(
            ids, attention_mask=exists, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            max_new_tokens=most, eos_token_id=task.END, pad_token_id=task.PAD, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        drawn = made.sequences[:, width:]
        scores = torch.stack(made.logits, 1).float().log_softmax(-1)
        logps = scores.gather(-1, drawn[..., None])[..., 0].cpu()
        return [Answer(ids, row[: len(ids)]) for ids, row in zip(map(_ended, drawn.tolist()), logps)]

    def update(self, model: torch.nn.Module) -> None:
        pass

    def close(self) -> None:
        pass


def _ended(row: list[int]) -> tuple[int, ...]:
    """Return tokens up to the first end."""
    return tuple(row[: row.index(task.END) + 1]) if task.END in row else tuple(row)
