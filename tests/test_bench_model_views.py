"""The benchmark of a model's views writes rows of `rlk verify`, and fails where one does not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import model_views
from benchmarks.rows import label
from rlk.nn import CausalLM, ModelConfig
from rlk.nn.config import Experts
from rlk.verify import views

SMALL = ["--shape", "tiny", "--tokens", "60", "--longest", "40", "--call", "60", "--page", "16"]
DECODES = ["--steps", "4", "--few", "8", "--batches", "1", "3"]


def test_all_views_of_a_tiny_model_are_equal_and_all_controls_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No token of any view changes experts, and some of a control do; then decoding takes other ones."""
    file = tmp_path / "views.json"
    args = [*SMALL, *DECODES, "--shape", "tiny-moe", "--seconds", "2000", "--out", str(file)]
    assert model_views.main(args) == 0
    record = json.loads(file.read_text(encoding="utf-8"))
    assert 3 <= record["logits_sigma"] <= 5 and record["trained_tokens"] == 60
    rows = {row["case"]: row for row in record["rows"]}
    assert all(row["op"] == "causal_lm" and label(row).startswith("causal_lm fwd") for row in rows.values())
    assert all((row["unequal"] > 0) == row["control"] and row["holds"] for row in rows.values())
    assert sum(row["control"] for row in rows.values()) == 4
    assert rows["training: one by one"]["tokens"] == 60
    assert rows["decode: 1 of 3 slots empty"]["tokens"] == 8
    for row in rows.values():
        if "gradients" not in row["case"]:
            assert row["routed_tokens"] >= row.get("tokens", 1)
            assert row["control"] or row["flipped_tokens"] == sum(row["flips_by_layer"]) == 0
    assert rows["decode: token by token from the first, pages of 16"]["routed_tokens"] == 60
    assert rows["control: routers by torch, split-K, halves rounded"]["flipped_tokens"] > 0
    own = CausalLM.decode
    monkeypatch.setattr(CausalLM, "decode", lambda self, ids, *a, **k: own(self, (ids + 1) % 96, *a, **k))
    monkeypatch.setattr(model_views, "GROUPS", ("decode",))
    assert model_views.main([*args, "--skip", "batch"]) == 1
    (control, row, *others) = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert control["case"].startswith("control: routers") and control["holds"]
    assert not row["holds"] and row["flipped_tokens"] > 0
    assert others and not any("batch" in other["case"] for other in others)


def test_a_control_without_flips_fails() -> None:
    """Routers by torch must flip some tokens: differing bits alone are not enough."""
    experts = {"compared": 9, "changed": 1, "by_layer": [1, 0]}
    row = {
        "key": "control: routers by torch, split-K",
        "view": "routers by torch, split-K", "group": "control", "seconds": 0.1,
        "operator": "logits", "unit": "tokens", "compared": 9, "unequal": 9, "reason": None,
        "status": "detected", "experts": experts,
    }  # fmt: skip
    about = {"model": "qwen3-30b-a3b", "hidden_size": 2048, "layers": 4}
    made = model_views.row_of(row, about)
    assert made["holds"] and made["shape"] == {
        "model": "qwen3-30b-a3b", "hidden": 2048, "layers": 4, "of_layers": 48,
    }  # fmt: skip
    for other in (None, {**experts, "changed": 0, "by_layer": [0, 0]}):
        assert not model_views.row_of(row | {"experts": other}, about)["holds"]


def test_a_row_that_differs_or_compares_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No prefix fills a page as long as all sequences; the batch is one; then a result is another."""
    file = tmp_path / "x.json"
    args = [*SMALL, *DECODES[:-3], "--batches", "1", "--tokens", "30", "--layers", "1", "--out", str(file)]
    own = views.packed
    monkeypatch.setattr(model_views, "GROUPS", ("prefill", "decode"))
    assert model_views.main([*args, "--page", "64"]) == 1
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    (wrong,) = (row for row in rows if not row["holds"] and not row["control"])
    assert wrong["case"].startswith("prefill: after a shared prefix") and wrong["tokens"] == 0
    monkeypatch.setattr(model_views, "GROUPS", ("training",))
    monkeypatch.setattr(views, "packed", lambda *a: own(*a) * (1.0 if torch.is_grad_enabled() else 1.01))
    assert model_views.main(args) == 1
    rows = {row["case"]: row for row in json.loads(file.read_text(encoding="utf-8"))["rows"]}
    changed, alone = rows["training: the same call again"], rows["training: one by one"]
    assert changed["unequal"] > 0 == alone["unequal"] and not changed["holds"] and alone["holds"]


def test_sequences_too_short_to_decode_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        model_views.main([*SMALL, "--steps", "64", "--out", str(tmp_path / "x.json")])
    assert "--longest 40 is below --steps 64" in capsys.readouterr().err


def test_the_shapes_are_the_models() -> None:
    for shape, layers in (("qwen3-8b", 36), ("llama-3-8b", 32), ("qwen3-0.6b", 28), ("qwen3-30b-a3b", 4)):
        config = ModelConfig.of(model_views.SHAPES[shape] | {"max_position_embeddings": 64})
        assert config.num_hidden_layers == layers and config.head_dim == 128
    assert config.experts == Experts(128, 8, 768, renormalize=True)
