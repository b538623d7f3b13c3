"""`rlk.sync` of vLLM's model in its worker: merged and padded weights have the digests of the trainer's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from nn_cases import model

if os.environ.get("RLK_REQUIRE_VLLM") != "1":
    pytest.importorskip("vllm", reason="make test-vllm has vLLM")

import vllm
from test_docs import blocks
from vllm_cases import engine, saved

from rlk.sync import compare, digest


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
