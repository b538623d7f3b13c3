"""Steps of GRPO with an engine of vLLM in the process of the trainer, a part of `benchmarks.engine_child`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

GROUP = 8
"""Samples of a prompt."""
MICRO = 16
"""Samples of a forward pass, in both arms."""
RATE = 1e-6


def steps(llm: Any, asked: Any, say: Callable[[dict[str, Any]], None]) -> None:
    """Make steps and say the seconds of each phase, and how many ratios of the drawn tokens are 1.

    The rlk arm takes the engine's log-probs as old ones; the other one computes them again, by transformers.
    """
    from examples.grpo.arms import RlkTrainer, Sample, StockTrainer
    from examples.grpo.loop import OLD, ROLLOUT, UPDATE, Clock
    from examples.grpo.optimizer import MasterAdamW
    from examples.grpo.vllm_engine import VllmEngine

    device = "cuda" if torch.cuda.is_available() else "cpu"
    engine = VllmEngine(llm)
    if asked.arm == "rlk":
        from rlk.nn import CausalLM

        trainer: Any = RlkTrainer(CausalLM.from_pretrained(asked.folder, device=device), engine)
    else:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(asked.folder, dtype=torch.bfloat16).to(device)
        trainer = StockTrainer(model.train(), engine)
    optimizer = MasterAdamW(trainer.model, RATE, 1000)
    vocabulary = llm.llm_engine.vllm_config.model_config.get_vocab_size()
    drawn = torch.Generator().manual_seed(0)
    (count,) = asked.batches
    for number in range(1 + asked.repeats):  # the first compiles
        clock = Clock(device)
        prompts = torch.randint(vocabulary, (count // GROUP, asked.prompt), generator=drawn).tolist()
        prompts = [prompt for prompt in prompts for _ in range(GROUP)]
        with clock(ROLLOUT):
            seeds = [number * count + i for i in range(count)]
            answers = engine.generate(prompts, seeds, asked.new)
        rewards = torch.tensor([sum(t % 2 == 0 for t in a.ids) / len(a.ids) for a in answers])
        advantages = trainer.advantages(rewards, GROUP).tolist()
        samples = [Sample(*given) for given in zip(prompts, answers, advantages, strict=True)]
        parts = [samples[at : at + MICRO] for at in range(0, count, MICRO)]
        with clock(OLD):
            old = [trainer.old_logps(part) for part in parts]
        with clock(UPDATE):
            tokens = sum(map(len, old))
            made = []
            for part, logps in zip(parts, old, strict=True):
                made.append(trainer.backward(part, logps, tokens).logps)
                optimizer.accumulate()
            optimizer.step()
            engine.update(trainer.model)
        sampled = torch.cat([s.answer.logps for s in samples])
        exact = int((torch.cat(made).view(torch.int32) == sampled.view(torch.int32)).sum())
        say(
            {
                "step": number, "phases": {name: round(x, 4) for name, x in clock.seconds.items()},
                "step_s": round(sum(clock.seconds.values()), 4), "tokens": tokens, "exact": exact,
            }
        )  # fmt: skip
