"""`rlk.drift.Monitor`: its numbers, its alarms, no waiting; the callback of TRL, metrics of verl."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlk.drift import monitor as monitors
from rlk.drift.monitor import Monitor, trl_callback, verl_metrics
from rlk.errors import LaunchError

TRAINED = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, -7.0, math.nan]])
SAMPLED = torch.tensor([[-1.0, -2.5, -3.0], [-0.4, math.nan, 1.0]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])
IDS = torch.tensor([[10, 11, 12], [13, 14, 15]])


def test_the_numbers_are_those_of_the_tokens_of_the_mask() -> None:
    monitor = Monitor()
    monitor.update(TRAINED, SAMPLED, MASK)
    monitor.update(TRAINED[:1], SAMPLED[:1], MASK[:1])
    found = monitor.read()
    d = [0.0, 0.5, 0.0, -0.1, 0.0, 0.5, 0.0]
    assert found["drift/tokens"] == 7 and found["drift/exact"] == 4 / 7
    assert found["drift/mean"] == pytest.approx(1.1 / 7, abs=1e-6) and found["drift/max"] == 0.5
    assert found["drift/k3"] == pytest.approx(sum(math.exp(x) - 1 - x for x in d) / 7, abs=1e-6)
    assert monitor.last_histogram["0"] == 4 and sum(monitor.last_histogram.values()) == 7
    assert monitor.read() == {}  # begun anew
    monitor.update(TRAINED, TRAINED, MASK)
    assert monitor.read()["drift/exact"] == 1.0


def test_an_alarm_saves_the_tokens_above_the_limit(tmp_path: Path) -> None:
    monitor = Monitor(alarm=0.2, folder=tmp_path)
    monitor.update(TRAINED, TRAINED, MASK, IDS)
    monitor.update(TRAINED, SAMPLED, MASK, IDS)
    assert monitor.read()["drift/alarm"] == 1.0
    (path,) = monitor.alarms
    (row,) = json.loads(path.read_text())["tokens_above"]
    assert (row["id"], row["step"], row["index"]) == (11, 1, 1)
    assert (row["trained"], row["sampled"], row["size"]) == (-2.0, -2.5, 0.5)
    quiet = Monitor(alarm=0.6, folder=tmp_path)
    quiet.update(TRAINED, SAMPLED, MASK, IDS)
    assert quiet.read()["drift/alarm"] == 0.0 and not quiet.alarms
    exact = Monitor(alarm=0.0)
    exact.update(TRAINED, TRAINED, MASK)
    assert exact.read()["drift/alarm"] == 0.0


def test_a_nan_of_a_token_that_counts_is_an_alarm() -> None:
    monitor = Monitor(alarm=5.0)
    monitor.update(TRAINED, SAMPLED, torch.ones_like(MASK))
    found = monitor.read()
    assert found["drift/alarm"] == 1.0 and found["drift/not_finite"] == 2
    # the others are those of the mask
    assert (
        found["drift/mean"] == pytest.approx(0.6 / 4) and found["drift/k3"] < 1 and found["drift/max"] == 0.5
    )


def test_each_rank_writes_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    found = []
    for rank in (0, 1):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        monitor = Monitor(alarm=0.2, folder=tmp_path)
        monitor.update(TRAINED, SAMPLED, MASK, IDS)
        monitor.read()
        found += monitor.alarms
    assert [path.name for path in found] == ["drift-1-rank0.json", "drift-1-rank1.json"]
    assert all(path.exists() for path in found)


def test_a_second_device_is_refused_until_numbers_are_read() -> None:
    monitor = Monitor()
    monitor.update(TRAINED, SAMPLED, MASK)
    other = TRAINED.to("meta")
    with pytest.raises(LaunchError, match="trained is on meta, but what was updated before is on cpu"):
        monitor.update(other, other, MASK.to("meta"))
    assert monitor.read()["drift/tokens"] == 4


def test_means_of_no_token_are_left_out() -> None:
    monitor = Monitor(alarm=0.0)
    monitor.update(TRAINED, SAMPLED, torch.zeros_like(MASK))
    assert monitor.read() == {"drift/tokens": 0.0, "drift/not_finite": 0.0, "drift/alarm": 0.0}


def test_an_alarm_of_a_nan_is_a_file_of_json(tmp_path: Path) -> None:
    def refused(name: str) -> None:
        raise AssertionError(name)

    monitor = Monitor(alarm=5.0, folder=tmp_path)
    monitor.update(TRAINED, SAMPLED, torch.ones_like(MASK), IDS)
    monitor.read()
    rows = json.loads(monitor.alarms[0].read_text(), parse_constant=refused)["tokens_above"]
    assert {row["id"] for row in rows} == {14, 15}


class Waits(TorchDispatchMode):
    """Operators that wait for a device, counted."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(
            word in str(func)
            for word in ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal.")
        ):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def test_an_update_waits_for_nothing_and_a_reading_does() -> None:
    monitor = Monitor(alarm=0.2)
    with Waits() as waits:
        monitor.update(TRAINED, SAMPLED, MASK, IDS)
        assert not waits.found
        monitor.read()
        assert waits.found


def test_edges_of_bins_are_made_once_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made, plain = [], monitors.edges
    monkeypatch.setattr(monitors, "edges", lambda device: made.append(device) or plain(device))
    monitor = Monitor()
    for _ in range(3):
        monitor.update(TRAINED, SAMPLED, MASK)
        monitor.read()
    assert made == [torch.device("cpu")]


def test_other_shapes_and_limits_are_refused() -> None:
    with pytest.raises(LaunchError, match="sampled has shape"):
        Monitor().update(TRAINED, SAMPLED[:1], MASK)
    with pytest.raises(LaunchError, match="a number from 0 on"):
        Monitor(alarm=-1.0)


class Trainer:
    """The methods of TRL's GRPOTrainer that the callback exchanges, with its calls."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(1, 1)
        self._metrics: Any = {"train": defaultdict(list)}

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        return TRAINED, None, None

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        return self._get_per_token_logps_and_entropies(model)[0].nansum()


@pytest.mark.parametrize("old", [True, False])
def test_the_callback_watches_what_the_trainer_computes_and_logs_it(old: bool) -> None:
    pytest.importorskip("transformers")
    trainer, monitor = Trainer(), Monitor()
    callback = trl_callback(trainer, monitor)
    inputs = {"sampling_per_token_logps": SAMPLED, "completion_mask": MASK, "completion_ids": IDS}
    if old:
        inputs["old_per_token_logps"] = SAMPLED
    loss = trainer._compute_loss(trainer.model, inputs)
    trainer._compute_loss(trainer.model, {"completion_mask": MASK})  # sampled by the model itself
    assert loss == TRAINED.nansum()
    callback.on_step_end(None, None, SimpleNamespace(should_log=False))
    assert not trainer._metrics["train"]
    callback.on_step_end(None, None, SimpleNamespace(should_log=True))
    assert trainer._metrics["train"]["drift/tokens"] == [4.0]
    assert trainer._metrics["train"]["drift/exact"] == [1.0 if old else 0.5]


def test_the_metrics_of_verl_are_those_of_a_batch() -> None:
    batch = {"old_log_probs": TRAINED, "rollout_log_probs": SAMPLED, "response_mask": MASK, "responses": IDS}
    found = verl_metrics(SimpleNamespace(batch=batch))
    assert found["drift/tokens"] == 4 and found["drift/max"] == 0.5
