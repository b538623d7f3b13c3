"""`rlk.sync` of vLLM's model in its worker: merged and padded weights have the digests of the trainer's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from nn_cases import model

if os.environ.get("RLK_REQUIRE_VLLM") != "1":
    pytest.importorskip("vllm", reason="make test-vllm has vLLM")

from vllm_cases import closed, engine, saved

from rlk.sync import compare, digest


@pytest.mark.parametrize("options", [{"tie_word_embeddings": True}, {"attention_bias": True}])
def test_weights_that_an_update_left_out_are_seen(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # apply_model sends a function
    options["num_hidden_layers"] = 1
    old, new = saved(tmp_path, **options), model(seed=1, **options)
    llm = engine(tmp_path)
    (before,) = llm.apply_model(digest)
    assert compare(digest(old), before) == () and digest(old).total == before.total
    sent = [(name, p) for name, p in new.named_parameters() if not name.endswith("v_proj.weight")]
    llm.apply_model(lambda loaded: len(loaded.load_weights(sent)))
    (after,) = llm.apply_model(digest)
    closed(llm)
    found = compare(digest(new), after, before)
    assert [(each.name, each.kind) for each in found] == [("model.layers.0.self_attn.v_proj.weight", "stale")]
