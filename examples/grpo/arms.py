"""Two trainers of the same loss: rlk's operators on exact rollouts, and transformers with torch's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from examples.grpo import task
from examples.grpo.engine import Answer, Engine, RlkEngine, StockEngine
from examples.grpo.setting import ExampleError, Setting
from examples.grpo.vllm_engine import VllmEngine
from rlk import ops
from rlk.nn import CausalLM
from rlk.ops.losses import Loss, clip

LOW, HIGH = 0.2, 0.28  # bounds of a ratio below and above 1 (clip-higher, DAPO)
LOSS = Loss(clip(LOW, HIGH), aggregation="sum", metrics=("clip_fraction",))


class Sample(NamedTuple):
    """A prompt, an answer, and its advantage over its group."""

    prompt: list[int]
    answer: Answer
    advantage: float


class Measured(NamedTuple):
    """Of the drawn tokens of a forward pass: f32 log-probs and entropies [n], and how many were clipped."""

    logps: torch.Tensor
    entropy: torch.Tensor
    clipped: torch.Tensor


class Trainer(Protocol):
    """An arm's model, its engine and its loss. exact: whether the engine's log-probs are the trainer's."""

    model: Any
    engine: Engine
    exact: bool

    def advantages(self, rewards: torch.Tensor, group: int) -> torch.Tensor:
        """Return the advantage of each sample over its group."""
        ...

    def old_logps(self, samples: list[Sample]) -> torch.Tensor:
        """Return the log-probs of drawn tokens, one sample after the other, that ratios are taken to."""
        ...

    def backward(self, samples: list[Sample], old_logps: torch.Tensor, tokens: int) -> Measured:
        """Add the gradient of the loss of some samples; tokens: what the loss of the minibatch counts."""
        ...


@dataclass(slots=True, eq=False)
class RlkTrainer:
    """`rlk.nn.CausalLM` and `rlk.ops`: the engine's log-probs are taken as they are."""

    model: CausalLM
    engine: Engine
    exact: bool = True

    def advantages(self, rewards: torch.Tensor, group: int) -> torch.Tensor:
        return ops.group_advantage(rewards, torch.arange(0, len(rewards) + 1, group, device=rewards.device))

    def old_logps(self, samples: list[Sample]) -> torch.Tensor:
        return torch.cat([s.answer.logps for s in samples])

    def backward(self, samples: list[Sample], old_logps: torch.Tensor, tokens: int) -> Measured:
        device = self.model.lm_head.weight.device
        texts = [[*s.prompt, *s.answer.ids] for s in samples]
        ids = torch.tensor([token for text in texts for token in text], device=device)
        offsets = torch.tensor([0, *map(len, texts)], device=device).cumsum(0)
        # row t predicts token t + 1: the rows before drawn tokens count
        drawn = torch.cat([_drawn(s, len(text)) for s, text in zip(samples, texts, strict=True)]).to(device)
        old = torch.zeros(len(ids), device=device)
        old[drawn] = old_logps.to(device)
        layout = ops.Layout.packed(offsets, mask=drawn)
        hidden = self.model(ids, ops.Layout.packed(offsets, tokens=len(ids)))
        head, following = self.model.lm_head.weight, ids.roll(-1)
        advantages = torch.tensor([s.advantage for s in samples], device=device)
        made = ops.linear_policy_loss(
            hidden, head, following, old, advantages, layout=layout, loss=LOSS, advantages_of="sequences"
        )
        (made.loss / tokens).backward()
        with torch.no_grad():  # the bits that the loss had, from the hidden states that it read
            probs = ops.linear_logp(hidden, head, following, mask=drawn, needs=("logp", "entropy"))
        assert probs.logp is not None and probs.entropy is not None
        clipped = made.metrics["clip_fraction"] * made.metrics["active"]
        return Measured(probs.logp[drawn].cpu(), probs.entropy[drawn].cpu(), clipped.cpu())


@dataclass(slots=True, eq=False)
class StockTrainer:
    """transformers' model and torch's functions: old log-probs are computed again before the updates."""

    model: Any
    engine: Engine
    exact: bool = False

    def advantages(self, rewards: torch.Tensor, group: int) -> torch.Tensor:
        each = rewards.reshape(-1, group)
        spread = each - each.mean(-1, keepdim=True)
        return (spread / (each.std(-1, keepdim=True) + 1e-4)).reshape(-1)

    @torch.no_grad()
    def old_logps(self, samples: list[Sample]) -> torch.Tensor:
        return self._scores(samples)[0].cpu()

    def backward(self, samples: list[Sample], old_logps: torch.Tensor, tokens: int) -> Measured:
        logps, entropy = self._scores(samples)
        device = logps.device
        counts = torch.tensor([len(s.answer.ids) for s in samples], device=device)
        advantages = torch.tensor([s.advantage for s in samples], device=device).repeat_interleave(counts)
        ratio = (logps - old_logps.to(device)).exp()
        plain, bounded = -advantages * ratio, -advantages * ratio.clamp(1 - LOW, 1 + HIGH)
        (torch.maximum(plain, bounded).sum() / tokens).backward()
        return Measured(logps.detach().cpu(), entropy.cpu(), (bounded > plain).sum().cpu())

    def _scores(self, samples: list[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropies of drawn tokens [n], from a batch that is padded on the right."""
        device = self.model.device
        texts = [[*s.prompt, *s.answer.ids] for s in samples]
        width = max(map(len, texts))
        ids = torch.tensor([t + [task.PAD] * (width - len(t)) for t in texts], device=device)
        exists = torch.tensor([[1] * len(t) + [0] * (width - len(t)) for t in texts], device=device)
        drawn = torch.stack([_drawn(s, width) for s in samples])[:, :-1].to(device)
        logits = self.model(input_ids=ids, attention_mask=exists, use_cache=False).logits
        scores = logits[:, :-1][drawn].float().log_softmax(-1)
        logps = scores.gather(-1, ids[:, 1:][drawn][:, None])[:, 0]
        with torch.no_grad():
            entropy = -(scores.exp() * scores).sum(-1)
        return logps, entropy


def _drawn(sample: Sample, width: int) -> torch.Tensor:
    """Return which of `width` rows predict the drawn tokens of a sample, bool."""
    at = torch.arange(width)
    first = len(sample.prompt) - 1
    return (at >= first) & (at < first + len(sample.answer.ids))


def trainer_of(setting: Setting, folder: Path) -> Trainer:
    """Return the trainer of an arm, with the weights of a checkpoint."""
    match setting.arm:
        case "rlk":
            model = CausalLM.from_pretrained(folder, device=setting.device)
            engine: Engine = RlkEngine(model, setting.size.micro)
            if setting.engine == "vllm":
                engine = VllmEngine.of(folder, setting.size)
            return RlkTrainer(model, engine)
        case "stock":
            from transformers import AutoModelForCausalLM

            stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(setting.device)
            return StockTrainer(stock, StockEngine(stock))
    raise ExampleError(f"arm {setting.arm!r} is not known")
