"""`rlk drift` of vLLM in this process: the operators of a trainer, each on the same input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from nn_cases import texts

if os.environ.get("RLK_REQUIRE_VLLM") != "1":
    pytest.importorskip("vllm", reason="make test-vllm has vLLM")

from vllm_cases import engine, saved

from rlk.drift import Facts, Nn, Sequences, Vllm, compare
from rlk.drift.vllm_engine import Rows

PROMPTS = (5, 31, 9, 12)
"""Read three at a time, in chunks of 24 tokens."""


class Unknown(Vllm):
    """vLLM whose weights are not compared."""

    def facts(self) -> Facts:
        return self.settings()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policy")


@pytest.fixture(scope="module")
def policy(path: Path) -> Any:
    return saved(path)


@pytest.fixture(scope="module", params=(1, 2))
def llm(path: Path, policy: Any, request: pytest.FixtureRequest) -> Any:
    return engine(path, request.param, enable_prefix_caching=False)


def test_operators_of_both_are_equal(llm: Any, policy: Any) -> None:
    sequences = Sequences.of(texts(PROMPTS))
    report = compare(Nn(policy), Vllm(llm), sequences)
    assert report.equal and report.cause is None and not report.findings, report.text()
    assert "weights" not in report.unknown and report.operators is not None
    seen = {name.partition("layers.1.")[2] or name for name in report.operators.drift}
    wanted = {
        "self_attn.q_proj",
        "self_attn.v_proj",
        "self_attn.attention",
        "self_attn.o_proj",
        "mlp.up_proj",
    }
    wanted |= {"mlp.gated", "mlp.down_proj", "input_layernorm", "model.norm", "lm_head"}
    assert seen >= wanted, seen
    back = compare(Vllm(llm), Nn(policy), sequences)
    assert back.equal and back.operators is not None and "lm_head" in back.operators.drift, back.text()


def test_a_wrong_weight_is_named_by_its_tensor_or_its_operator(llm: Any, policy: Any) -> None:
    sequences = Sequences.of(texts(PROMPTS))
    model = llm.llm_engine.model_executor.driver_worker.get_model()
    layer = model.model.layers[1]
    products = {
        "self_attn.k_proj": (layer.self_attn.qkv_proj, layer.self_attn.qkv_proj.output_sizes[0]),
        "self_attn.o_proj": (layer.self_attn.o_proj, 0),
    }
    for name, (module, row) in products.items():
        kept = module.weight.detach().clone()
        with torch.no_grad():
            module.weight[row] += 1.0
        try:
            report = compare(Nn(policy), Unknown(llm), sequences)
            assert report.cause == f"model.layers.1.{name}", report.text()
            known = compare(Nn(policy), Vllm(llm), sequences)
            assert known.cause == "weights"
            assert [f.names for f in known.findings] == [(f"model.layers.1.{name}.weight",)]
        finally:
            module.weight.data.copy_(kept)


def test_another_function_is_named_and_log_probs_alone_where_no_operator_differs(
    llm: Any, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = Sequences.of(texts((9, 20)))
    model = llm.llm_engine.model_executor.driver_worker.get_model()
    norm = model.model.layers[0].post_attention_layernorm
    monkeypatch.setattr(norm, "variance_epsilon", 0.5)
    report = compare(Nn(policy), Vllm(llm), sequences)
    assert report.cause == "model.layers.0.post_attention_layernorm", report.text()
    monkeypatch.undo()

    class Warm(Vllm):
        def score(self, *args: Any) -> Any:
            made = super().score(*args)
            return type(made)(made.tokens, made.logps * 1.5, made.known)

    report = compare(Nn(policy), Warm(llm), sequences)
    assert report.cause == "log-probs" and report.operators is not None and not report.operators.local


def test_rows_are_found_by_ids_and_positions() -> None:
    rows = Rows(Sequences.of([[5, 6, 7], [5, 6, 9, 4], [5, 6, 7]]))
    rows.read([5, 6, 5, 6, 9, 0], [0, 1, 0, 1, 2, 0])
    found = rows.numbers.tolist()
    assert sorted(found[:2]) == found[:2] and found[2:] == [3, 4, 5, -1] and rows.ends == [1, 4]
    rows.read([7, 4, 5, 6, 7], [2, 3, 0, 1, 2])  # the rest, and a sequence like the first
    later = rows.numbers.tolist()
    assert sorted([*found[:2], *found[2:5], *later]) == list(range(10))
    rows.hidden = torch.zeros(5, 4)
    assert rows.of(rows.hidden[1:3]).tolist() == later[1:3]  # type: ignore[union-attr]
    assert rows.of(torch.zeros(3, 4)).tolist() == [later[i] for i in rows.ends]  # type: ignore[union-attr]
    assert rows.of(torch.zeros(2, 4)) is None
