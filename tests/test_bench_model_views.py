"""The benchmark of a model's views counts what differs, and its controls do."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import model_views
from benchmarks.model_views import Asked, Run, Sizes
from benchmarks.rows import label

SMALL = ["--shape", "tiny", "--tokens", "100", "--longest", "60", "--call", "80", "--page", "16"]
DECODES = ["--steps", "4", "--few", "8", "--batches", "1", "3"]


def run_of(tokens: int = 60) -> Run:
    sizes = Sizes(tokens, call=80, longest=40, steps=4, batches=(1, 2), page=16)
    model = model_views.random_model("tiny", 1, 40, "cpu")
    made = Run(model, sizes, model_views.random_sequences(sizes, 96, "cpu"), random.Random(0))
    model_views.train(made, float("inf"))
    return made


def test_all_views_of_a_tiny_model_are_equal_and_all_controls_differ(tmp_path: Path) -> None:
    file = tmp_path / "views.json"
    assert model_views.main([*SMALL, *DECODES, "--seconds", "200", "--out", str(file)]) == 0
    record = json.loads(file.read_text(encoding="utf-8"))
    assert 3 <= record["logits_sigma"] <= 5
    rows = record["rows"]
    assert {row["op"] for row in rows} == {"causal_lm"}
    assert all(label(row).startswith("causal_lm fwd") for row in rows)
    assert [row["unequal"] > 0 for row in rows] == [row["control"] for row in rows]
    whole = ("packed, other batches", "one by one", "padded", "prefill, chunked", "gradient checkpointing")
    counts = {row["case"]: row.get("tokens") for row in rows}
    assert {counts[case] for case in whole} == {record["trained_tokens"]}
    assert counts["decode, batch 1"] == 8 and counts["decode, batch 3"] == 12
    assert counts["decode, 1 of 3 slots empty"] == 8


def test_a_view_that_differs_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the count: what should be equal is computed by another product, and by the same one."""

    def wrong(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, w) * 1.01

    for control, product, status in ((False, wrong, 1), (True, wrong, 0), (True, None, 1)):
        view = partial(model_views.with_product, product=product) if product else model_views.one_by_one

        def cases(run: Run, few: int, view: Any = view, control: bool = control) -> Iterator[Asked]:
            yield Asked("one", view, control=control)

        monkeypatch.setattr(model_views, "cases", cases)
        args = [*SMALL, *DECODES, "--tokens", "30", "--layers", "1", "--out", str(tmp_path / "x.json")]
        assert model_views.main(args) == status


def test_a_run_ends_after_its_time() -> None:
    run = run_of()
    slow = Asked("slow", lambda r: iter([torch.zeros(3, dtype=torch.bool)] * 10))
    assert model_views.measured(run, slow, float("-inf"))["tokens"] == 3
    assert model_views.measured(run, slow, float("inf"))["tokens"] == 30
    few = Asked("few", slow.view, most=7)
    assert model_views.measured(run, few, float("inf"))["tokens"] == 9
    run.want.clear()
    model_views.train(run, float("-inf"))
    assert 0 < len(run.want) <= len(run.sequences)


def test_a_changed_token_is_counted_at_its_place() -> None:
    run = run_of()
    i, n = 0, len(run.want[0])
    digests = run.want[i].clone()
    digests[n - 2] ^= 1
    assert run.differs(i, 0, digests).nonzero().tolist() == [[n - 2]]
    assert run.differs(i, n - 2, digests[n - 2 :]).tolist() == [True, False]


def test_sequences_too_short_to_decode_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        model_views.main([*SMALL, "--steps", "64", "--out", str(tmp_path / "x.json")])
    assert "--longest 60 is below --steps 64" in capsys.readouterr().err


def test_the_shapes_are_the_models() -> None:
    for shape, layers in (("qwen3-8b", 36), ("llama-3-8b", 32), ("qwen3-0.6b", 28)):
        config = model_views.ModelConfig.of(model_views.SHAPES[shape] | {"max_position_embeddings": 64})
        assert config.num_hidden_layers == layers and config.head_dim == 128
