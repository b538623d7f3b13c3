"""The supervised phase: a model of random weights learns demonstrations of which some have mistakes.

Both arms start from its checkpoint. It is trained by transformers in f32 and stored in bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import torch

from examples.grpo import task
from examples.grpo.checkpoints import written
from examples.grpo.setting import Setting

IGNORED = -100  # labels that transformers' loss leaves out


def train(setting: Setting, folder: Path, progress: Callable[[int, float], None]) -> None:
    """Train a model and store it; progress: called with each step's number, from 1, and its loss.

    On a GPU products are of TF32. Raises ExampleError if the folder cannot be written.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        _train(setting, folder, progress)
    finally:
        torch.set_float32_matmul_precision(before)


def _train(setting: Setting, folder: Path, progress: Callable[[int, float], None]) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    size, given = setting.size, setting.size.demonstrations
    torch.manual_seed(setting.seed)
    model = Qwen3ForCausalLM(Qwen3Config(**size.shape.config())).to(setting.device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=given.rate, weight_decay=0.01, fused=setting.device != "cpu"
    )
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 - n / given.steps)
    random = Random(f"demonstrations {setting.seed}")
    for number in range(given.steps):
        ids, labels = (x.to(setting.device) for x in demonstrations(setting, random))
        # padding stands behind everything else: a causal model needs no mask for it
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
        progress(number + 1, float(loss.detach()))
    with written(folder):
        model.to(torch.bfloat16).save_pretrained(folder)


def demonstrations(setting: Setting, random: Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and labels [B, L] of a batch of puzzles with answers; prompts have no labels."""
    given = setting.size.demonstrations
    texts = []
    for puzzle in task.draw(setting.size.kinds, given.levels, given.batch, random):
        wrong = random.random() < given.mistakes
        answer = task.mistaken(puzzle, random) if wrong else puzzle.answer
        texts.append((puzzle.prompt_ids, [*task.encode(answer), task.END]))
    width = max(len(prompt) + len(answer) for prompt, answer in texts)
    ids = torch.full((len(texts), width), task.PAD)
    labels = torch.full_like(ids, IGNORED)
    for row, (prompt, answer) in enumerate(texts):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return ids, labels
