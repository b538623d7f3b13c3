"""Log ratios of on-policy tokens, watched in a training loop without waiting for the device."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlk.drift.metrics import LIMIT, bin_names, edges, histogram
from rlk.errors import Code, LaunchError
from rlk.observe import finite
from rlk.runtime.binding.checks import is_tensor

WORST = 16  # tokens kept until the next reading
PREFIX = "drift/"


class Monitor:
    """Statistics of d = log p_trainer - log p_rollout of tokens that the current weights sampled.

    `update` runs a few kernels; with tensors on the device it waits for it in its first call alone. `read`
    waits, returns numbers since the last reading and begins anew. With equal numerics on both sides, exact is
    1 and everything else 0.

    alarm: the largest |d| that is accepted, in nats; None never alarms. folder: where `read` writes the worst
    tokens of an alarm, `drift-<step>.json`; None writes nothing.

    Numbers are of the tokens that this process updated: with several ranks each has its own, reduces them if
    need be, and writes `drift-<step>-rank<rank>.json`.
    """

    def __init__(self, alarm: float | None = None, folder: str | os.PathLike[str] | None = None) -> None:
        if alarm is not None and not alarm >= 0:
            raise LaunchError(
                Code.ARG_VALUE, op="Monitor", name="alarm", value=alarm, wanted="a number from 0 on"
            )
        self.alarm, self.folder, self.step = alarm, None if folder is None else Path(folder), 0
        self.alarms: list[Path] = []
        self.last_histogram: dict[str, int] = {}
        self._sums: torch.Tensor | None = None
        self._largest: torch.Tensor
        self._edges: torch.Tensor | None = None  # a copy to a device waits for it: once, not at each reading
        self._counts: torch.Tensor

    @torch.no_grad()
    def update(
        self,
        trained: torch.Tensor,
        sampled: torch.Tensor,
        mask: torch.Tensor,
        ids: torch.Tensor | None = None,
    ) -> None:
        """Take the log-probs of one step, of any equal shape: the trainer's and the rollout's.

        mask: true or not 0 where a token was sampled by the weights that `trained` is of. ids: the tokens,
        for alarms. Where the mask is 0 nothing is read. A NaN or an infinity on one side is counted, and is
        above every limit. Raises LaunchError for other shapes,
        and for another device than that of the updates since the last reading.
        """
        for name, x in (("trained", trained), ("sampled", sampled), ("mask", mask), ("ids", ids)):
            if x is None and name == "ids":
                continue
            is_tensor("Monitor.update", name, x)
            if x.shape != trained.shape:
                why = "as trained has"
                raise LaunchError(
                    Code.ARG_SHAPE, op="Monitor.update", name=name, got=tuple(x.shape),
                    wanted=tuple(trained.shape), why=why,
                )  # fmt: skip
        x, y = trained.detach().flatten().float(), sampled.detach().flatten().float().to(trained.device)
        keep = (mask.flatten() != 0).to(x.device)
        self._begin(x.device)
        assert self._sums is not None
        exact = (x == y) & keep
        d = torch.where(exact | ~keep, 0.0, (x - y).nan_to_num(torch.inf, torch.inf, -torch.inf))
        size, inside = d.abs(), torch.where(d.isfinite(), d, 0.0)
        limited = inside.clamp(-LIMIT, LIMIT)
        self._sums += torch.stack(
            [
                keep.sum(), exact.sum(), (~d.isfinite()).sum(), inside.abs().sum(),
                (torch.expm1(limited) - limited).sum(),
            ]
        ).double()  # fmt: skip
        self._largest = torch.maximum(self._largest, inside.abs().amax() if len(d) else self._largest)
        self._counts += histogram(d, self._edges)
        self._counts[len(self._counts) // 2] -= (~keep).sum()
        self._keep_worst(size, x, y, None if ids is None else ids.flatten())
        self.step += 1

    def _begin(self, device: torch.device) -> None:
        if self._sums is not None:
            if self._sums.device != device:
                raise LaunchError(
                    Code.ARG_DEVICE, op="Monitor.update", name="trained", got=device,
                    other="what was updated before", wanted=self._sums.device,
                )  # fmt: skip
            return
        self._sums = torch.zeros(5, dtype=torch.float64, device=device)
        self._largest = torch.zeros((), device=device)
        if self._edges is None or self._edges.device != device:
            self._edges = edges(device)
        self._counts = torch.zeros(len(bin_names()), dtype=torch.int64, device=device)
        self._worst = torch.full((WORST, 6), -1.0, dtype=torch.float64, device=device)

    def _keep_worst(
        self, size: torch.Tensor, x: torch.Tensor, y: torch.Tensor, ids: torch.Tensor | None
    ) -> None:
        """Keep the largest differences since the last reading, with what is known of their tokens."""
        if self.alarm is None or not len(size):
            return
        top, at = size.topk(min(WORST, len(size)))
        tokens = torch.full_like(at, -1) if ids is None else ids.to(at.device)[at]
        steps = torch.full_like(at, self.step)
        found = torch.stack([t.double() for t in (top, steps, at, tokens, x[at], y[at])], 1)
        every = torch.cat([self._worst, found])
        self._worst = every[every[:, 0].topk(WORST).indices]

    def read(self) -> dict[str, float]:
        """Return the numbers since the last reading, and begin anew; waits for the device.

        tokens; exact: the share with d = 0; not_finite: how many d are infinite or NaN, which the next do not
        count; mean, max: of |d|; k3: of KL(rollout, trainer); alarm: 1 where max is above the limit or d not
        finite, whose tokens then are in a new file. Means of no token are left out. `last_histogram` has the
        counts.
        """
        if self._sums is None:
            return {}
        count, exact, lost, mean, k3 = self._sums.tolist()
        largest, n = float(self._largest), count - lost
        self.last_histogram = dict(zip(bin_names(), self._counts.tolist(), strict=True))
        made = {"tokens": count, "not_finite": lost}
        made |= {"exact": exact / count} if count else {}
        made |= {"mean": mean / n, "max": largest, "k3": k3 / n} if n else {}
        if self.alarm is not None:
            made["alarm"] = float(largest > self.alarm or lost > 0)
            if made["alarm"]:
                self._write(made)
        self._sums = None
        return {PREFIX + name: value for name, value in made.items()}

    def _write(self, made: Mapping[str, float]) -> None:
        if self.folder is None:
            return
        names = ("size", "step", "index", "id", "trained", "sampled")
        rows = [
            dict(zip(names, row, strict=True)) for row in self._worst.tolist() if row[0] > (self.alarm or 0.0)
        ]
        for row in rows:
            row |= {name: int(row[name]) for name in ("step", "index", "id")}
        self.folder.mkdir(parents=True, exist_ok=True)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank = f"-rank{torch.distributed.get_rank()}" if distributed else ""
        path = self.folder / f"drift-{self.step}{rank}.json"
        record = {"limit": self.alarm, **made, "histogram": self.last_histogram, "tokens_above": rows}
        path.write_text(json.dumps(finite(record), indent=1, allow_nan=False), encoding="utf-8")
        self.alarms.append(path)


# --- in other packages ------------------------------------------------------------------------------------


def trl_callback(trainer: Any, monitor: Monitor) -> Any:
    """Return a callback for a GRPOTrainer of TRL: `trainer.add_callback(trl_callback(trainer, monitor))`.

    It compares `old_per_token_logps` with `sampling_per_token_logps` of each batch, both of the weights that
    sampled it; where TRL keeps no old log-probs, since its steps are aligned, those of the loss. Numbers are
    read when the trainer logs, under `drift/`. Batches without log-probs of a sampler are not counted: TRL
    has them with vLLM or a rollout_func.
    """
    from transformers import TrainerCallback

    loss, logps = trainer._compute_loss, trainer._get_per_token_logps_and_entropies
    batch: list[Any] = []

    def compute_loss(model: Any, inputs: Any) -> Any:
        if inputs.get("sampling_per_token_logps") is None or not trainer.model.training:
            return loss(model, inputs)
        if (old := inputs.get("old_per_token_logps")) is not None:
            _take(monitor, old, inputs)
            return loss(model, inputs)
        batch.append(inputs)
        try:
            return loss(model, inputs)
        finally:
            batch.clear()

    def per_token_logps(*args: Any, **kwargs: Any) -> Any:
        made = logps(*args, **kwargs)
        if batch:
            _take(monitor, made[0], batch.pop())
        return made

    trainer._compute_loss, trainer._get_per_token_logps_and_entropies = compute_loss, per_token_logps

    class MonitorCallback(TrainerCallback):  # type: ignore[misc]
        """Numbers of a monitor among those that TRL logs."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if control.should_log:
                for name, value in monitor.read().items():
                    trainer._metrics["train"][name].append(value)

    return MonitorCallback()


def _take(monitor: Monitor, trained: torch.Tensor, inputs: Mapping[str, Any]) -> None:
    mask = inputs["completion_mask"]
    mask = mask if inputs.get("tool_mask") is None else mask * inputs["tool_mask"]
    monitor.update(trained, inputs["sampling_per_token_logps"], mask, inputs.get("completion_ids"))


def verl_metrics(data: Any, monitor: Monitor | None = None) -> dict[str, float]:
    """Return metrics of a DataProto of verl, where its `calculate_debug_metrics` is called; waits.

    Compares old_log_probs with rollout_log_probs where response_mask is not 0. monitor: one whose alarm and
    folder are to be used. Needs `actor_rollout_ref.rollout.calculate_log_probs=True`.
    """
    batch, watch = getattr(data, "batch", data), monitor or Monitor()
    watch.update(
        batch["old_log_probs"], batch["rollout_log_probs"], batch["response_mask"], batch["responses"]
    )
    return watch.read()
