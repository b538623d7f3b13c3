"""vLLM as the engine of the GRPO example: exact ratios over updates of its weights, and not without them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from grpo_cases import TINY

if os.environ.get("RLK_REQUIRE_VLLM") != "1":
    pytest.importorskip("vllm", reason="make test-vllm has vLLM")

from examples.grpo import arms, loop, supervised, vllm_engine
from examples.grpo.setting import ExampleError, Setting


def test_ratios_are_1_after_updates_and_not_with_stale_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "CHUNK", 64)
    setting = Setting("rlk", replace(TINY, steps=4), engine="vllm")
    supervised.train(setting, tmp_path, lambda number, loss: None)
    run = loop.Run.of(setting, arms.trainer_of(setting, tmp_path))
    left = loop.steps(run, Event())
    first, second = next(left), next(left)
    assert all(step.exact == step.compared > 8 for step in (first, second))
    assert first.kl_after > 0 or second.kl_after > 0

    monkeypatch.setattr(vllm_engine.VllmEngine, "update", lambda *args: None)
    with pytest.raises(ExampleError, match="step 4: .* are not 1"):
        list(left)

    llm = run.trainer.engine.llm
    assert llm.llm_engine.vllm_config.cache_config.gpu_memory_utilization < 0.1
    run.trainer.engine.close()
    again = loop.Run.of(setting, arms.trainer_of(setting, tmp_path))  # as the next seed begins
    assert loop.make_step(again).exact > 8
    again.trainer.engine.close()
