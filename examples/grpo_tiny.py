"""Train a tiny transformers model with GRPO, through rlk from the sampler to the loss: `make example`.

The model's weights are random, and it learns to sort short strings from a rule alone. On the way the
importance ratio of every token of an on-policy minibatch must be 1, exactly: its log-prob has the bits of the
sampler's.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import grpo_report
import torch
from grpo_task import END, Task
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from rlk import Layout, ops
from rlk.ops.losses import METRICS, Loss, clip
from rlk.ops.results import Csr

LOSS = Loss(clip(0.2, 0.28), entropy_coef=0.06, metrics=METRICS)


@dataclass(frozen=True, slots=True)
class Setting:
    """A run. A step draws `minibatches` of `prompts`, answers each `group` times, and trains on each in turn.

    rollout: the model reads rows of the training's own shape ("fixed"), or only the columns that are written
    ("growing"), whose products have other shapes, and other bits. rate: of the first step; it falls to 0 in
    equal steps. scale: what advantages are multiplied by; 0 and -1 are controls, which must not learn.
    """

    task: Task = Task()
    device: str = "cpu"
    seed: int = 0
    steps: int = 100
    minibatches: int = 2
    prompts: int = 16
    group: int = 8
    hidden: int = 64
    layers: int = 1
    heads: int = 4
    rate: float = 3e-3
    temperature: float = 1.0
    min_p: float = 0.01
    rollout: Literal["fixed", "growing"] = "fixed"
    scale: float = 1.0

    @property
    def rows(self) -> int:
        """Return the number of samples of a minibatch."""
        return self.prompts * self.group


class Rollout(NamedTuple):
    """Samples. ids, drawn: [B, width]; old_logp, kept: of the token after each position, [B, width - 1].

    drawn: where a token was drawn. kept: bool [B, width - 1, V], what could be drawn there. rewards: [B], on
    the host.
    """

    ids: Tensor
    drawn: Tensor
    old_logp: Tensor
    kept: Tensor
    rewards: Tensor
    answers: list[str]

    @property
    def support(self) -> Csr:
        """Return the support by token ids: a threshold of scores would not hold for a changed policy."""
        sizes = self.kept.sum(-1).reshape(-1)
        return Csr(torch.cat((sizes.new_zeros(1), sizes.cumsum(0))), self.kept.nonzero()[:, -1])

    def part(self, start: int, stop: int) -> Rollout:
        """Return some of the samples."""
        return Rollout(*(x[start:stop] for x in self))


class Step(NamedTuple):
    """Measurements of a step: kl, clipped, entropy, loss are means over minibatches.

    tokens, exact: of the first minibatch, which is on-policy: how many there are, how many ratios are 1.
    """

    reward: float
    solved: float
    kl: float
    clipped: float
    entropy: float
    loss: float
    tokens: int
    exact: int


def make_model(setting: Setting) -> Any:
    """Return a Qwen3 of random weights, in f32."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(setting.seed)
    shape = Qwen3Config(
        vocab_size=len(setting.task.vocabulary),
        hidden_size=setting.hidden,
        intermediate_size=2 * setting.hidden,
        num_hidden_layers=setting.layers,
        num_attention_heads=setting.heads,
        num_key_value_heads=setting.heads,
        head_dim=setting.hidden // setting.heads,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation="eager",
    )
    return Qwen3ForCausalLM(shape).to(setting.device).train()


@torch.no_grad()
def roll_out(model: Any, setting: Setting, prompts: list[str], first_request: int) -> Rollout:
    """Answer each prompt `group` times.

    The model reads a minibatch at a time, in the shape that training has; the sampler takes whichever rows
    are not at their end, since its bits do not depend on which rows are beside a row.
    """
    task, device = setting.task, setting.device
    asked = [prompt for prompt in prompts for _ in range(setting.group)]
    ids, lengths = (x.to(device) for x in task.rows(asked))
    places = (len(asked), task.width - 1)
    drawn = torch.zeros_like(ids, dtype=torch.bool)
    tokens = torch.arange(len(task.vocabulary), device=device)
    old_logp = torch.zeros(places, device=device)
    kept = torch.zeros(*places, len(tokens), dtype=torch.bool, device=device)
    rows = torch.arange(len(asked), device=device)
    for number in range(task.answer_tokens):
        at = lengths[rows] + (number - 1)
        read = ids if setting.rollout == "fixed" else ids[:, : int(at.max()) + 1]
        scores = torch.cat([model(input_ids=x).logits for x in read.split(setting.rows)])[rows, at]
        made = ops.sample(
            scores,
            seed=setting.seed,
            request_id=rows + first_request,
            position=at + 1,
            temperature=setting.temperature,
            min_p=setting.min_p,
        )
        ids[rows, at + 1], drawn[rows, at + 1] = made.token, True
        old_logp[rows, at], kept[rows, at] = made.logp, made.support.holds(scores, tokens)
        rows = rows[made.token != END]
        if not len(rows):
            break
    answers = [task.decode(row[n:]) for row, n in zip(ids.tolist(), lengths.tolist(), strict=True)]
    rewards = torch.tensor([task.reward(p, a) for p, a in zip(asked, answers, strict=True)])
    return Rollout(ids, drawn, old_logp, kept, rewards, answers)


def advantages_of(setting: Setting, rewards: Tensor) -> Tensor:
    """Return the advantage of each sample over its group."""
    edges = torch.arange(0, len(rewards) + 1, setting.group, device=setting.device)
    return setting.scale * ops.group_advantage(rewards.to(setting.device), edges)


def train_on(
    model: Any, optimizer: Any, setting: Setting, batch: Rollout, advantages: Tensor
) -> dict[str, Tensor]:
    """Take one optimizer step, and return what the loss measured and how many ratios are exactly 1."""
    rows, width = batch.old_logp.shape
    lengths = torch.full((rows,), width, device=setting.device)
    layout = Layout.padded(lengths, width, mask=batch.drawn[:, 1:])
    probs = ops.logp(
        model(input_ids=batch.ids).logits[:, :-1],
        batch.ids[:, 1:],
        temperature=setting.temperature,
        mask=layout.active,
        support=batch.support,
        needs=("logp", "entropy"),
    )
    old = batch.old_logp
    made = ops.policy_loss(probs.logp, old, advantages, layout=layout, loss=LOSS, entropy=probs.entropy)
    ratio = ops.ratio_kl(probs.logp.detach(), old, old, mask=layout.active).ratio
    same = probs.logp.detach().view(torch.int32) == old.view(torch.int32)
    optimizer.zero_grad()
    made.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    entropy = ops.entropy_bonus(probs.entropy.detach(), layout=layout, coef=1.0).entropy
    exact = ((ratio == 1.0) & same & layout.active).sum()
    return {**made.metrics, "loss": made.loss.detach(), "entropy": entropy, "exact": exact}


def train(setting: Setting, model: Any = None) -> Iterator[tuple[Step, Rollout]]:
    """Yield what each step measured and its samples; raise RuntimeError for a ratio that should be 1.

    model: one to go on with; by default `make_model(setting)`.
    """
    model = make_model(setting) if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting.rate, weight_decay=0.0)
    rates = LambdaLR(optimizer, lambda number: 1 - number / setting.steps)
    draws = torch.Generator().manual_seed(setting.seed)
    for number in range(setting.steps):
        prompts = setting.task.prompts(setting.minibatches * setting.prompts, draws)
        samples = roll_out(model, setting, prompts, number * setting.minibatches * setting.rows)
        advantages = advantages_of(setting, samples.rewards)
        made = []
        for start in range(0, len(samples.ids), setting.rows):
            stop = start + setting.rows
            made.append(
                train_on(model, optimizer, setting, samples.part(start, stop), advantages[start:stop])
            )
        rates.step()
        step = summary(samples, made)
        if setting.rollout == "fixed" and step.exact != step.tokens:
            raise RuntimeError(
                f"step {number + 1}: {step.tokens - step.exact} ratios of {step.tokens} are not 1"
            )
        yield step, samples


def summary(samples: Rollout, made: list[dict[str, Tensor]]) -> Step:
    """Return what is reported of a step, given what its minibatches measured."""
    names = {"kl": "approx_kl", "clipped": "clip_fraction", "entropy": "entropy", "loss": "loss"}
    means = {name: float(torch.stack([m[of] for m in made]).mean()) for name, of in names.items()}
    return Step(
        reward=float(samples.rewards.mean()),
        solved=float((samples.rewards == 1.0).float().mean()),
        tokens=int(made[0]["active"]),
        exact=int(made[0]["exact"]),
        **means,
    )


def described(setting: Setting, seconds: float) -> dict[str, str]:
    """Return what a report says of a run."""
    task, cuda = setting.task, setting.device != "cpu"
    name = (
        torch.cuda.get_device_name()
        if cuda
        else f"a CPU ({platform.machine()}), {torch.get_num_threads()} threads"
    )
    each = f"{setting.minibatches} minibatches of {setting.prompts} prompts, {setting.group} answers each"
    return {
        "device": name,
        "versions": ", ".join(f"{n} {version(n)}" for n in ("rlk", "torch", "transformers")),
        "task": f"sort {task.shortest} to {task.longest} of {task.letters} letters",
        "model": f"Qwen3, layers {setting.layers}, hidden {setting.hidden}, f32, random weights",
        "step": f"{each}, one pass, {setting.rollout} rollouts",
        "seed": str(setting.seed),
        "sampler": ops.sample.numerics_id(setting.device),
        "time": f"{setting.steps} steps in {seconds:.0f} s, of which {time.process_time():.0f} s of CPU time",
    }


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=Setting().steps)
    parser.add_argument("--rollout", choices=("fixed", "growing"), default="fixed")
    parser.add_argument("--out", type=Path, default=Path("build/example"))
    given = parser.parse_args()
    setting = Setting(device=given.device, seed=given.seed, steps=given.steps, rollout=given.rollout)
    begin, steps, answers = time.perf_counter(), [], []
    for step, samples in train(setting):
        steps.append(step)
        answers.append(" ".join(samples.answers[:: setting.group][:3]))
        if len(steps) % 10 == 0:
            seconds = time.perf_counter() - begin
            print(
                f"step {len(steps):4}  reward {step.reward:.3f}  KL {step.kl:.4f}  {seconds:.0f} s",
                flush=True,
            )
    print()
    print(grpo_report.write(given.out, described(setting, time.perf_counter() - begin), steps, answers))
    print(f"report: {given.out / 'report.md'}, {given.out / 'report.json'}, {given.out / 'chart.png'}")


if __name__ == "__main__":
    main()
