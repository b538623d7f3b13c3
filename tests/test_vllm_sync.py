"""`rlk.sync` of vLLM's model in its worker: merged and padded weights have the digests of the trainer's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nn_cases import model

if os.environ.get("RLK_REQUIRE_VLLM") != "1":
    pytest.importorskip("vllm", reason="make test-vllm has vLLM")

import torch
import vllm
from safetensors.torch import load_file, save_file
from test_docs import blocks
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm_cases import differing, engine, run, saved

from rlk.errors import LaunchError
from rlk.sync import check, compare, digest


@dataclass
class Sent(WeightTransferUpdateInfo):
    path: str = ""


class FromFiles(WeightTransferEngine[Sent, Sent]):
    """A transport of vLLM's API that reads what was sent from a file, and loads it as NCCL's and IPC's do."""

    init_info_cls = update_info_cls = Sent

    def init_transfer_engine(self, init_info: Sent) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))  # there is no accelerator to wait for

    def receive_weights(self, update_info: Sent) -> None:
        self.model.load_weights(load_file(update_info.path).items())

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        raise NotImplementedError


def test_the_page_about_engines_runs_and_a_weight_that_an_update_left_out_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page compares log-probs, and a sync of all weights."""
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "0")  # the page sets it
    page = blocks("docs/engines.md")[2]
    monkeypatch.chdir(tmp_path)
    old, new = saved(tmp_path / "policy", num_hidden_layers=1), model(seed=1, num_hidden_layers=1)
    theirs = vllm.LLM

    def tiny(path: str, **_: Any) -> Any:
        monkeypatch.setattr(vllm, "LLM", theirs)
        return engine(Path(path))

    monkeypatch.setattr(vllm, "LLM", tiny)
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(page, "engines.py", "exec"), scope)
    llm = scope["engine"]
    assert [each.name for each in compare(digest(old), scope["received"])] == ["model.norm.weight"]
    before = scope["received"]
    sent = [(name, p) for name, p in new.named_parameters() if not name.endswith("v_proj.weight")]
    llm.apply_model(lambda loaded: len(loaded.load_weights(sent)))
    (after,) = llm.apply_model(digest)
    found = compare(digest(new), after, before)
    assert [(each.name, each.kind) for each in found] == [("model.layers.0.self_attn.v_proj.weight", "stale")]


def test_weights_that_vllms_transfer_lost_are_named_and_those_that_came_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WeightTransferEngineFactory._registry, "files", lambda: FromFiles)
    saved(tmp_path / "policy", num_hidden_layers=1)
    llm, new = engine(tmp_path / "policy", weight_transfer_config=WeightTransferConfig("files")), None
    for seed, lost in ((1, ()), (2, ("model.layers.0.self_attn.k_proj.weight", "model.norm.weight"))):
        (before,) = llm.apply_model(digest)
        new = model(seed=seed, num_hidden_layers=1)
        with torch.no_grad():
            new.model.norm.weight.add_(seed / 4)
        sent = {name: p.detach() for name, p in new.named_parameters() if name not in lost}
        save_file(sent, tmp_path / "sent.safetensors")
        llm.init_weight_transfer_engine({"init_info": {}})
        llm.start_weight_update()
        with pytest.raises(LaunchError, match="a tensor with memory"):
            llm.apply_model(digest)
        llm.update_weights({"update_info": {"path": str(tmp_path / "sent.safetensors")}})
        llm.finish_weight_update()
        assert llm.reset_prefix_cache()
        (received,) = llm.apply_model(digest)
        assert tuple(each.name for each in compare(digest(new), received, before)) == lost
        if not lost:  # the memory of a lost weight may hold anything, NaN too
            assert differing(new, run(llm, [list(range(20)), [5, 7, 11]], new=3)) == 0
    with pytest.raises(LaunchError, match=r"model.norm.weight: is still what was there before"):
        check(digest(new), received, before)
