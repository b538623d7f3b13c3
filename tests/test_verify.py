"""`rlk verify` finds equal bits equal, changed ones changed, and says where; its runs stop and go on."""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from rlk import cli
from rlk.cli.verify import add_arguments
from rlk.errors import Code, LaunchError
from rlk.nn import CausalLM
from rlk.observe import finite, randomize
from rlk.verify import contract, models, peers, ranks, run, views
from rlk.verify.bench import Bench, Outcome, sizes_of
from rlk.verify.contract import Kind, Promise
from rlk.verify.page import page
from rlk.verify.report import closing, lines_of, opening
from rlk.verify.rows import NOT_FINITE, compared, stock
from rlk.verify.trace import Trace
from rlk.verify.watched import value_of

CPU = torch.device("cpu")
Rlk = Callable[..., tuple[int, str, str]]


def bench(tokens: int = 40, name: str = "tiny") -> Bench:
    return Bench.of(models.subject(name, torch.bfloat16, CPU), tokens)


@pytest.fixture
def rlk(capsys: pytest.CaptureFixture[str]) -> Rlk:
    def call(*argv: str) -> tuple[int, str, str]:
        try:
            status = cli.main(argv)
        except SystemExit as end:
            status = int(end.code or 0)
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def some(of: Bench, *keys: str) -> list[Promise]:
    """Return the rows of the contract whose names begin so."""
    return [p for p in contract.contract(of) if p.key.startswith(keys)]


@pytest.fixture(scope="module")
def report() -> run.Report:
    """A run of a few rows of each kind."""
    of = bench()
    rows = some(of, "training: packed", "training: torch", "decode: batch 1", "rollout", "control")
    return run.verify(of, rows)


# --- the contract -------------------------------------------------------------------------------------------


def test_a_row_is_equal_and_counts_every_operator(report: run.Report) -> None:
    row = next(r for r in report.rows if r["view"].startswith("packed"))
    tokens, layers = row["compared"], 2
    assert (row["status"], row["unequal"], row["first"]) == ("holds", 0, None)
    assert row["operators"] == {
        "logits": [tokens, 0],
        "embedding": [tokens, 0],
        "rms_norm": [(2 * layers + 1) * tokens, 0],
        "attention": [layers * tokens, 0],
        "gated mlp": [layers * tokens, 0],
    }
    assert row["values"] == tokens * (96 + 64 * (1 + 2 * layers + 1 + 2 * layers))


def test_controls_are_detected_where_they_break_the_model(report: run.Report) -> None:
    found = {r["view"]: r for r in report.rows if r["group"] == "control"}
    assert len(found) == 3 and {r["status"] for r in found.values()} == {"detected"}
    by_torch = found["one product by torch"]
    assert by_torch["first"]["inside"] == "layers.0.mlp"  # the layer half-way of two
    assert by_torch["operators"]["embedding"][1] == 0 < by_torch["operators"]["gated mlp"][1]
    (value, *_) = by_torch["first"]["values"]
    assert value["got_bits"] != value["want_bits"] and value["ulps"] >= 1


def test_what_needs_a_gpu_is_said_not_skipped(report: run.Report) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    row = next(r for r in report.rows if r["view"] == "torch.compile")
    assert (row["status"], row["reason"]) == ("not run", "needs a GPU")
    assert report.status == 0 and "not run (needs a GPU)" in closing(report)


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    of = bench()
    rows = some(of, "patch: packed", "accuracy: logits, root")
    for version, said in (
        (None, "needs transformers: pip install"),
        ("4.0.0", "rlk.patch knows transformers"),
    ):
        monkeypatch.setattr("rlk.verify.bench.installed_version", lambda name, version=version: version)
        assert said in (of.absent(rows[0].needs) or "")
    monkeypatch.setattr("rlk.verify.bench.FLOAT64_PARAMETERS", 1000)
    monkeypatch.setattr("rlk.verify.bench.installed_version", lambda name: "5.20.0")
    assert of.absent(rows[0].needs) is None
    row = run.run_row(of, rows[1], math.inf)
    assert row["status"] == "not run" and "a float64 copy of 823,680 parameters" in row["reason"]


def test_a_control_that_is_not_detected_fails_the_run() -> None:
    """A control that changes nothing; and a promise that is broken by one that changes something."""
    of = bench()
    broken = next(p for p in contract.contract(of) if p.view == "one product by torch")
    idle = Promise("control", "idle", "logits", "f32", Kind.CONTROL, "itself", compared(views.again))
    found = run.verify(of, [idle])
    assert [r["status"] for r in found.rows] == ["not detected"] and found.status == 1
    assert "NOT DETECTED  control: idle" in closing(found)
    found = run.verify(of, [replace(broken, kind=Kind.BITWISE, group="training")])
    assert [r["status"] for r in found.rows] == ["broken"] and found.status == 1
    said = closing(found)
    assert "BROKEN  training: one product by torch" in said and "in layers.0.mlp" in said
    assert re.search(r"\(0x[0-9a-f]{4}\) against \S+ \(0x[0-9a-f]{4}\), 1 ulp", said)


def test_short_sums_have_a_control_that_shows(rlk: Rlk, tmp_path: Path) -> None:
    """A model as transformers makes it: short sums, small weights. Split-K of rounded halves must be seen."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, **heads))
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    status, out, _ = rlk("verify", str(tmp_path), "--views", "rollout", "--tokens", "40", "--json")
    controls = {r["view"]: r for r in json.loads(out)["rows"] if r["group"] == "control"}
    assert status == 0
    assert controls["one product by torch, split-K, halves rounded"]["status"] == "detected"
    assert {r["status"] for r in controls.values()} <= {"detected", "no difference"}


def test_a_control_of_short_sums_that_finds_no_difference_says_so(tmp_path: Path) -> None:
    """With its counts, beside the controls that are detected; a run that goes on does not try it again."""
    of, state = bench(), tmp_path / "state.json"
    idle = Promise("control", "idle", "logits", "f32", Kind.CONTROL, "itself", compared(views.again))
    rows = [replace(idle, may_agree="sums of 96 terms"), *some(of, "control: one product by torch, split")]
    found = run.verify(of, rows, state=state)
    row, other = found.rows
    assert (row["status"], other["status"]) == ("no difference", "detected")
    assert row["compared"] == sum(map(len, of.run.sequences)) and row["values"] > 0
    assert row["reason"] == f"0 of {row['compared']} tokens differ: sums of 96 terms"
    said = [*lines_of(row, False)][0]
    assert f"{row['compared']} tokens, {row['values']:,} values" in said and row["reason"] in said
    assert "1 of 2 controls detected, 1 without a difference" in closing(found)
    assert "1 of 2 controls detected, 1 without a difference" in page(found.json())
    again = replace(rows[0], run=lambda *_: pytest.fail("it runs again"))
    assert run.verify(bench(), [again], state=state).rows == (row,)


def test_a_page_of_keys_that_is_lost_is_seen_in_attention() -> None:
    """The negative control of decoding: one value of one cached key changes by a bit that counts."""
    of = bench()
    own = views.fill

    def spoilt(of_run: Any, group: Any, cache: Any, table: Any, ends: Any) -> None:
        own(of_run, group, cache, table, ends)
        cache.keys[0] *= 1.5

    rows = some(of, "decode: batch 3, pages of 4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "fill", spoilt)
        (row,) = run.verify(of, rows).rows
    assert row["status"] == "broken" and row["first"]["inside"] == "layers.0.self_attn"
    assert run.run_row(of, rows[0], math.inf)["status"] == "holds"


def test_gradients_that_differ_are_named() -> None:
    of = bench()
    own = views.gradients_of

    def moved(of_run: Any, side: str | None = None) -> dict[str, torch.Tensor]:
        made = own(of_run, side)
        if side is not None:
            made["model.norm.weight"][3] += 1.0
        return made

    (row,) = (p for p in contract.contract(of) if p.view == "gradients, padded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "gradients_of", moved)
        (found,) = run.verify(of, [row]).rows
    assert (found["status"], found["unequal"]) == ("broken", 1)
    assert found["first"]["where"] == "gradient of model.norm.weight, row 0"
    assert found["first"]["values"][0]["column"] == 3


def test_gradients_that_a_view_loses_are_unequal() -> None:
    """In rows of rlk.nn, of a patched model, and of stock transformers."""
    pytest.importorskip("transformers")
    of = bench()
    run.verify(of, some(of, "training: the same"))
    name, count = "model.layers.1.mlp.up_proj.weight", 2048

    def losing(own: Callable[..., dict[str, torch.Tensor]], lost: str) -> Callable[..., Any]:
        def made(*given: Any) -> dict[str, torch.Tensor]:
            found = own(*given)
            if given[-1] == lost or lost == "all":
                del found[name]
            return found

        return made

    rows = [*some(of, "training: gradients, padded", "patch: gradients"), *contract.stock_contract(of)[-1:]]
    for row, (module, function, lost) in zip(
        rows,
        (
            (views, "gradients_of", "left"),
            (peers, "taken_gradients", "all"),
            (peers, "gradients_of", "packed"),
        ),
        strict=True,
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, function, losing(getattr(module, function), lost))
            found = run.run_row(of, row, math.inf)
        assert found["unequal"] >= count and found["status"] in ("broken", "measured"), row.key
        if row.group != contract.STOCK:
            assert found["unequal"] == count
            assert found["first"]["where"] == f"gradient of {name}, which is missing"


def test_a_row_that_compares_nothing_does_not_hold() -> None:
    none = Promise("decode", "none", "logits", "f32", Kind.BITWISE, "x", compared(lambda r: (x for x in ())))
    found = run.verify(bench(), [none])
    assert found.rows[0]["status"] == "not run" and found.status == 2


@pytest.mark.parametrize("name", ["tiny", "tiny-gemma3"])
def test_a_patched_model_and_the_error_against_float64(name: str) -> None:
    pytest.importorskip("transformers")
    of = bench(name=name)
    rows = some(of, "patch: padded on the left", "patch: gradients", "accuracy")
    found = {r["key"]: r for r in run.verify(of, rows).rows}
    assert {r["status"] for r in found.values()} == {"holds"}, found
    error = found["accuracy: logits, root mean square"]
    assert error["figures"]["ratio"] <= contract.BAR and len(error["profile"]) >= 10


def test_a_function_that_is_another_breaks_the_bar() -> None:
    """The negative control of accuracy: angles of another base."""
    pytest.importorskip("transformers")
    of = bench()
    config = of.run.model.config
    other = CausalLM(replace(config, ropes=tuple(replace(r, theta=2 * r.theta) for r in config.ropes)))
    other.load_state_dict(of.run.model.state_dict())
    with of.run.using(other):
        rows = [run.run_row(of, row, math.inf) for row in some(of, "accuracy")]
    assert {r["status"] for r in rows} == {"broken"}


def test_stock_transformers_is_measured() -> None:
    pytest.importorskip("transformers")
    of = bench(90)
    rows = [p for p in contract.stock_contract(of) if "token by token" in p.view or "gradients" in p.view]
    found = run.verify(of, rows)
    decode, gradients = found.rows
    assert {decode["status"], gradients["status"]} == {"measured"} and found.status == 2
    assert 0 < decode["unequal"] <= decode["compared"] and gradients["unequal"]
    figures = decode["figures"]
    assert 0 < figures["largest difference of log-probs"] < 1
    assert 0 < figures["largest error of log-probs"] < 1


def test_the_time_ends_accuracy_and_stock_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models run one sequence then; the float64 work is done once for both rows of accuracy."""
    pytest.importorskip("transformers")
    of = bench()
    run.verify(of, some(of, "training: the same"))
    count, stock = len(of.run.sequences[0]), contract.stock_contract(of)[0]
    rows = [run.run_row(of, row, -math.inf) for row in (*some(of, "accuracy"), stock)]
    assert [row["compared"] for row in rows] == [count] * 3
    assert not any(row["complete"] for row in rows)
    monkeypatch.setattr(of.exact, "forward", None)  # is not called again
    assert run.run_row(of, stock, math.inf)["compared"] == count


def test_log_probs_that_are_not_finite_are_counted() -> None:
    pytest.importorskip("transformers")
    of = bench()
    run.verify(of, some(of, "training: the same"))

    def spoilt(peer: peers.Peer) -> Any:
        for i, ids in enumerate(peer.sequences):
            logits = peer.logits(ids[None]).logits[0].detach()
            logits[0] = math.nan
            yield peer.see([(i, 0, len(ids))], logits, None)

    (like, *_) = contract.stock_contract(of)
    row = run.run_row(of, replace(like, run=stock(spoilt, None)), math.inf)
    figures, sequences = row["figures"], len(of.run.sequences)
    assert row["unequal"] == figures[NOT_FINITE] == figures["log-probs that differ"] == sequences
    assert figures["largest difference of log-probs"] == 0
    assert f"{sequences} log-probs not finite" in "\n".join(lines_of(row, False))


def test_bits_are_compared_as_integers() -> None:
    x = torch.tensor([1.0, -0.0, 3.0], dtype=torch.bfloat16)
    y = x.clone()
    assert value_of("x", x, y) is None
    y[1] = 0.0
    found = value_of("x", x, y)
    assert found is not None and (found.column, found.ulps, found.got_bits) == (1, 0, "0x8000")
    y[0] = torch.nextafter(torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(2.0, dtype=torch.bfloat16))
    found = value_of("x", x, y)
    assert found is not None and (found.column, found.ulps, found.differing) == (0, 1, 2)
    low = torch.tensor([-1e-40])
    found = value_of("x", low, -low)
    assert found is not None and found.ulps == 2 * int((-low).view(torch.int32))


@pytest.fixture(scope="module")
def partly_trained() -> run.Report:
    """All rows of a run whose time ended after the first group of training."""
    pytest.importorskip("transformers")
    of, own = bench(), views.train
    of.run.sizes = replace(of.run.sizes, call=32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "train", lambda of_run, deadline: own(of_run, -math.inf))
        found = run.verify(of, [*contract.contract(of), *contract.stock_contract(of)])
    assert 0 < len(of.run.want) < len(of.run.sequences)
    return found


def test_every_row_runs_on_what_was_trained(partly_trained: run.Report) -> None:
    tokens = partly_trained.about["tokens"]
    for row in partly_trained.rows:
        assert row["status"] in ("holds", "detected", "measured") or row["reason"] == "needs a GPU", row
        if row["unit"] == "tokens" and row["group"] in ("training", "patch", "stock"):
            assert row["compared"] <= tokens, row["key"]


def test_two_ranks_are_compared_with_one(partly_trained: run.Report) -> None:
    found = {row["view"]: row for row in partly_trained.rows if row["group"] == "ranks"}
    equal, controls = list(found.values())[:3], list(found.values())[3:]
    assert [row["status"] for row in equal + controls] == ["holds"] * 3 + ["detected"] * 3
    tokens, parameters = partly_trained.about["tokens"], 25
    counts = [tokens, parameters, parameters]
    assert [row["compared"] for row in equal] == [row["compared"] for row in controls] == counts


def test_ranks_compare_fewer_sequences_where_time_ends() -> None:
    of = bench()
    given = {"config": of.run.model.config, "dtype": torch.bfloat16, "weights": of.run.model.state_dict()}
    given |= {"sequences": of.run.sequences, "sizes": replace(of.run.sizes, call=32)}
    found = ranks.one_rank(given, -math.inf)
    assert 0 < len(found["digests"]) < len(of.run.sequences)
    of.run.want = [torch.zeros(len(ids)) for ids in of.run.sequences]
    for fewer in (0, 1):
        run_tokens = sum(map(len, of.run.want)) - fewer
        of.kept["ranks"] = [{"weights": torch.zeros(run_tokens), "tokens": torch.tensor(run_tokens)}]
        assert ranks.row("weights")(of, math.inf).complete == (not fewer)


def test_ranks_that_cannot_share_experts_share_micro_batches(tmp_path: Path) -> None:
    experts = {
        "model_type": "qwen3_moe", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32,
        "moe_intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
        "max_position_embeddings": 64,
    }  # fmt: skip
    (tmp_path / "experts.json").write_text(json.dumps(experts))
    of = Bench.of(models.subject(str(tmp_path / "experts.json"), torch.bfloat16, CPU), 40)
    shared = {p.view for p in some(of, "ranks") if of.absent(p.needs) is None}
    assert shared == {"two share micro-batches", "two share micro-batches, local sums first"}
    assert models.run_leaves(of.run.model.config) == 1
    given = {"config": of.run.model.config, "dtype": torch.bfloat16, "weights": of.run.model.state_dict()}
    given |= {"sequences": of.run.sequences, "sizes": of.run.sizes, "shared": False}
    given["want"] = ranks.one_rank(given, math.inf)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        found = ranks.compared(given, torch.distributed.group.WORLD)
        given["want"]["summed"]["model.norm.weight"][3] += 1  # the control
        other = ranks.compared(given, torch.distributed.group.WORLD)
    finally:
        torch.distributed.destroy_process_group()
    assert found.keys() == {"tokens", "micro-batches", "local sums first"} and int(found["tokens"]) == 40
    assert not found["micro-batches"].any() and other["micro-batches"].sum() == 1


def test_a_rank_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$4" = 1 ] && echo nothing to read && exit 3\nexec sleep {ranks.LIMIT}\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(ranks.sys, "executable", str(python))
    with pytest.raises(LaunchError, match=r"rank 1 of 2 ended with 3:\n +nothing to read") as raised:
        ranks._run(tmp_path)  # rank 0 would wait
    assert raised.value.code is Code.RANKS_ENDED
    monkeypatch.setattr(ranks, "LIMIT", 0.1)
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(LaunchError, match=r"rank 0 .*not end within 0.1 s:\n +it printed nothing"):
        ranks._run(tmp_path)


def test_what_ranks_cannot_share_is_said() -> None:
    config = models.subject("tiny", torch.bfloat16, CPU).model.config
    assert models.unshared(config) is None and models.shared_leaves(config) == 8
    assert "num_attention_heads=3" in str(models.unshared(replace(config, num_attention_heads=3)))


def test_every_row_of_tokens_compares_every_module(partly_trained: run.Report) -> None:
    layers = 2
    for row in partly_trained.rows:
        traced = row["group"] in ("training", "prefill", "decode", "patch", "control") and row["compared"]
        if not traced or row["unit"] != "tokens" or row["operator"] != "logits":
            assert row["unseen"] == [], row["key"]
            continue
        summed = row["key"] == "training: gradient checkpointing"
        assert row["unseen"] == summed * ["layers.1.input_layernorm"], row["key"]
        each = {name: count / row["compared"] for name, (count, _) in row["operators"].items()}
        norms = 2 * layers + 1 - summed
        assert each == {
            "logits": 1, "embedding": 1, "rms_norm": norms, "attention": layers, "gated mlp": layers
        }, row["key"]  # fmt: skip


def test_a_row_whose_modules_are_not_compared_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails where no module has results, in training neither, and where one has none in a view."""
    of = bench()
    (row,) = some(of, "training: the same")
    with monkeypatch.context() as patch:
        patch.setattr(Trace, "rows", lambda self, count, rows: {})
        (found,) = run.verify(of, [row]).rows
    assert found["status"] == "failed" and len(found["unseen"]) == 10
    own = Trace.rows

    def without(self: Trace, count: int, rows: torch.Tensor | None) -> dict[str, torch.Tensor]:
        return {name: y for name, y in own(self, count, rows).items() if name != "layers.1.mlp"}

    of = bench()
    assert run.verify(of, [row]).status == 0
    monkeypatch.setattr(Trace, "rows", without)
    found = run.run_row(of, row, math.inf)
    assert (found["status"], found["unseen"]) == ("failed", ["layers.1.mlp"])
    assert found["reason"] == "results of 1 modules were not compared, of layers.1.mlp first"


# --- states -------------------------------------------------------------------------------------------------


def test_a_run_that_is_interrupted_goes_on(tmp_path: Path) -> None:
    state, of = tmp_path / "state.json", bench()
    rows = some(of, "training: the same", "training: one by one", "training: packed")

    def interrupted(row: run.Row) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.verify(of, rows, state=state, told=interrupted)
    kept = json.loads(state.read_text())["rows"]
    assert [r["key"] for r in kept] == [rows[0].key]
    tried: list[str] = []
    first = replace(rows[0], run=lambda *_: tried.append("again") or Outcome())  # type: ignore[func-returns-value]
    found = run.verify(bench(), [first, *rows[1:]], state=state)
    assert not tried and [r["status"] for r in found.rows] == ["holds"] * 3
    assert found.rows[0] == kept[0]
    alone = run.verify(bench(), rows[1:])  # rows do not depend on those before them
    assert [r["compared"] for r in alone.rows] == [r["compared"] for r in found.rows[1:]]


def test_models_of_the_same_rows_in_another_order_are_others() -> None:
    model = bench().subject.model
    before = models.identity(model)
    assert models.identity(model) == before
    with torch.no_grad():
        weight = model.model.layers[0].mlp.up_proj.weight
        weight[:2] = weight[:2].flip(0)
    assert models.identity(model) != before


def test_rows_that_the_time_cut_short_are_run_again(tmp_path: Path) -> None:
    """A view that was cut, and views of a part of the tokens, which ended by themselves."""
    state, of = tmp_path / "state.json", bench()
    of.run.sizes = replace(of.run.sizes, call=32)
    rows = some(of, "training: the same", "training: packed", "training: one by one")
    about = {row["key"]: row for row in run.verify(of, rows, seconds=1e-3, state=state).rows}
    assert not any(row["complete"] for row in about.values())
    assert {row["trained"] for row in about.values()} == {30}
    again = bench()
    again.run.sizes = of.run.sizes
    found = run.verify(again, rows, state=state)
    assert found.about["resumed"] == 0 and found.about["tokens"] == sum(map(len, again.run.sequences))
    assert all(row["complete"] and row["compared"] == row["trained"] > 30 for row in found.rows)
    kept = run.verify(again, rows, state=state)
    assert kept.about["resumed"] == 3 and kept.rows == found.rows
    cut = run.run_row(again, rows[2], -math.inf)
    assert cut["compared"] == 8 and not cut["complete"]


def test_a_state_of_another_text_of_rlk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, of = tmp_path / "state.json", bench()
    run.write_state(state, run.described(of)["identity"], {})
    monkeypatch.setattr(run, "digest_sources", lambda folders: "0" * 64)
    with pytest.raises(LaunchError, match="the state of another run: sources differ"):
        run.verify(of, [], state=state)


def test_a_state_of_another_run_is_refused(tmp_path: Path) -> None:
    state, of = tmp_path / "state.json", bench()
    run.write_state(state, run.described(of)["identity"], {})
    other = bench()
    with torch.no_grad():
        other.subject.model.model.norm.weight[0] += 0.5
    other.subject = replace(other.subject, identity=models.identity(other.subject.model))
    for changed, name in ((other, "model"), (bench(50), "sizes")):
        with pytest.raises(LaunchError, match=f"the state of another run: {name} differ"):
            run.verify(changed, [], state=state)
    for text in ("{", "[]", '{"rows": [], "identity": 1, "format": 1}'):
        state.write_text(text)
        with pytest.raises(LaunchError, match="is no state of rlk verify"):
            run.verify(of, [], state=state)


# --- the report ---------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """The tags of a page that were opened and not closed, and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_no_network(report: run.Report) -> None:
    found = report.json() | {"model": "<b>&tiny</b>"}
    text = page(found)
    tags = Tags(text)
    assert tags.open == [] and tags.links == [] and "script" not in tags.seen
    assert not re.search(r"https?:|url\(|@import", text)
    assert "&lt;b&gt;&amp;tiny&lt;/b&gt;" in text and "<b>&tiny" not in text
    assert text.count("<svg") == text.count('role="img" aria-label=')
    for row in report.rows:
        assert row["view"] in text
    broken = json.loads(json.dumps(found))
    broken["rows"][0]["status"], broken["totals"]["broken"] = "broken", 1
    assert "✗ 1 of" in page(broken) and "✗ 1 of" not in text


def test_a_report_is_json_and_lines(report: run.Report) -> None:
    assert json.loads(json.dumps(report.json(), allow_nan=False))["status"] == 0
    assert "numerics id" in opening(report.about)
    assert "not finite" in opening(report.about | {"logits_sigma": "nan"})
    assert all("\n" not in line for row in report.rows for line in lines_of(row, True))
    assert finite({"x": (math.nan, 1.0, math.inf)}) == {"x": ["nan", 1.0, "inf"]}


def test_random_weights_of_experts_spread_by_the_terms_of_their_products() -> None:
    """The terms are along the last dim of each weight, also of experts' [E, 2 W, H]: outputs spread by 1."""
    model = torch.nn.Module()
    model.lm_head, model.experts = torch.nn.Linear(64, 8), torch.nn.Parameter(torch.empty(4, 512, 64))
    randomize(model)
    assert abs(float(model.experts.detach().std()) * 64**0.5 - 1.0) < 0.05


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_verifies_a_config_and_a_checkpoint(tmp_path: Path, rlk: Rlk) -> None:
    """Random weights of a config, saved and loaded: the same model, and the same bits."""
    transformers = pytest.importorskip("transformers")
    sizes = {n: x for n, x in models.TINY.items() if n not in ("rope_theta", "max_position_embeddings")}
    config = transformers.Qwen3Config(**sizes, max_position_embeddings=128)
    config.save_pretrained(tmp_path)
    file, html = tmp_path / "config.json", tmp_path / "page.html"
    some_views = ("--views", "rollout", "--tokens", "40", "--json")
    status, out, err = rlk("verify", str(file), *some_views, "--html", str(html))
    first = json.loads(out)
    assert status == 0 and first["totals"]["detected"] == 3 and "controls detected" in err
    assert html.read_text().startswith("<!doctype html>")
    made = models.subject(str(file), torch.bfloat16, CPU).model
    made.save_pretrained(tmp_path / "weights", config=config)
    status, out, _ = rlk("verify", str(tmp_path / "weights"), *some_views, "--seconds", "1")
    second = json.loads(out)
    assert status == 0 and second["source"] == "checkpoint"
    assert second["identity"]["numerics_id"] == first["identity"]["numerics_id"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("nothing", None, "expected a checkpoint's folder, a config .* tiny, tiny-qwen3"),
        ("x.json", "{", "is no JSON"),
        ("x.json", "[1]", 'it has no "model_type"'),
        ("x.json", '{"model_type": "phi3"}', "config.model_type='phi3' .*\n.*one of llama, mistral"),
        ("folder", "", "there is no config.json"),
    ],
)
def test_bad_models_are_refused_in_one_message(
    name: str, text: str | None, said: str, tmp_path: Path, rlk: Rlk
) -> None:
    path = tmp_path / name
    path.mkdir() if text == "" else path.write_text(text) if text else None
    status, out, err = rlk("verify", str(path))
    assert status == 2 and out == "" and re.search(said, err), err
    assert "Traceback" not in err


def test_bad_options_are_refused_before_anything_runs(tmp_path: Path, rlk: Rlk) -> None:
    for option, value, said in (
        ("--html", str(tmp_path / "no" / "x.html"), "is no folder"),
        ("--resume", str(tmp_path), "it is a folder"),
        ("--device", "cuda:99", "expected one of cpu"),
        ("--tokens", "0", "no whole number of at least 1"),
        ("--views", "decoding", "invalid choice"),
        ("--views", "rollout,decoding", "invalid choice: 'decoding' (choose from training, prefill, decode,"),
    ):
        status, _, err = rlk("verify", "tiny", option, value)
        assert status == 2 and said in err and option in err


def test_views_are_named_with_commas_or_one_by_one() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for given in (["--views", "rollout, decode", "--views=ranks"], ["--views=rollout,decode,ranks"]):
        assert parser.parse_args(["tiny", *given]).views == ["rollout", "decode", "ranks"]
    assert parser.parse_args(["tiny"]).views == parser.parse_args(["tiny"]).views == []


def test_a_reader_that_leaves_keeps_the_rows(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    command = f"{sys.executable} -m rlk.cli verify tiny --tokens 40 --views rollout --resume {state}"
    line = f"{command} | grep --max-count 1 'few pages'"  # which leaves after the first row
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert "few pages" in done.stdout and done.stderr == ""
    assert json.loads(state.read_text())["rows"][0]["status"] == "holds"


@pytest.mark.parametrize(("tokens", "positions"), [(1, 4096), (3, 4096), (90, 8), (None, 4096)])
def test_as_many_tokens_run_as_were_asked_for(tokens: int | None, positions: int) -> None:
    sizes = sizes_of(tokens, positions, CPU)
    found = [len(x) for x in views.random_sequences(sizes, 96, "cpu")]
    assert sum(found) == sizes.tokens and all(n >= sizes.steps for n in found[:-1])


@pytest.mark.parametrize(("tokens", "positions"), [(1, 4096), (3, 4096), (90, 8), (None, 4096)])
def test_sizes_fit_the_model(tokens: int | None, positions: int) -> None:
    for device in (CPU, torch.device("cuda")):
        sizes = sizes_of(tokens, positions, device)
        assert 0 < sizes.steps <= sizes.longest <= min(positions, max(2, sizes.tokens))
        assert sizes.call >= sizes.longest and sizes.chunks
