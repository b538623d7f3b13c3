"""Comparison of engines: statistics against their formulas, engines by name, reports, chart, bad input."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from rlk.cli import main
from rlk.drift import (
    Digest,
    Facts,
    Scores,
    Sequences,
    Transformers,
    Unwatched,
    Watch,
    compare,
    engines,
    weight_checksums,
)
from rlk.drift.engines import asked_for, opened, options_of, split_name
from rlk.drift.explain import explained
from rlk.drift.faults import FAULTS, located, paged_pair, tiny_model, tiny_sequences
from rlk.drift.metrics import EDGES, bin_names, histogram, log_prob_drift
from rlk.drift.operators import measured
from rlk.drift.options import Options
from rlk.drift.recorded import Recorded, save_scores
from rlk.drift.writers import write_rollouts
from rlk.errors import LaunchError, RlkError


def scores(logps: list[float], lengths: tuple[int, ...] = (3, 4)) -> Scores:
    tokens = Sequences.of([[5] * n for n in lengths])
    return Scores(tokens, torch.tensor(logps), tokens.places > 0)


# --- statistics ---------------------------------------------------------------------------------------------


def test_statistics_are_those_of_their_formulas() -> None:
    a = scores([math.nan, -1.0, -2.0, math.nan, -0.5, -3.0, -1.5])
    b = scores([math.nan, -1.0, -1.5, math.nan, -0.6, -3.0, -2.5])
    found = log_prob_drift(a, b)
    d = [0.0, 0.5, -0.1, 0.0, -1.0]
    assert found is not None and found.tokens == 5 and found.exact == 2 / 5
    assert found.mean == pytest.approx(1.6 / 5, abs=1e-6) and found.largest == pytest.approx(1.0)
    assert found.k1 == pytest.approx(-sum(d) / 5, abs=1e-6)
    assert found.k2 == pytest.approx(sum(x * x / 2 for x in d) / 5, abs=1e-6)
    assert found.k3 == pytest.approx(sum(math.exp(x) - 1 - x for x in d) / 5, abs=1e-6)
    assert found.clipped == 2 / 5  # e^0.5 and e^-1, but not e^-0.1
    assert found.by_sequence[0] == pytest.approx((0.25, 0.5, 0.5), abs=1e-6)
    assert [n for _, n in found.histogram if n] == [1, 1, 2, 1]


def test_each_log_ratio_falls_into_the_bin_that_names_it() -> None:
    values = torch.tensor([-5.0, -0.5, -1e-5, -1e-7, 0.0, 1e-7, 2e-3, 0.5, 5.0, -torch.inf, torch.inf])
    counts = histogram(values)
    want = torch.zeros_like(counts)
    for x in values.tolist():
        if x == 0:
            want[len(EDGES) - 1] += 1
            continue
        low, high = next(
            (i, name) for i, name in enumerate(bin_names())
            if name != "0" and float(name.split(" to ")[0]) <= x <= float(name.split(" to ")[1])
        )  # fmt: skip
        want[low] += 1
    assert counts.tolist() == want.tolist() and counts.sum() == len(values)


def test_a_nan_is_a_difference_and_equal_infinities_are_none() -> None:
    a = scores([math.nan, -math.inf, -2.0, math.nan, -0.5, -3.0, -1.5])
    b = scores([math.nan, -math.inf, math.nan, math.nan, -0.5, -3.0, -1.5])
    found = log_prob_drift(a, b)
    assert found is not None and found.not_finite == 1 and found.exact == 4 / 5
    assert found.largest == found.mean == found.k3 == 0.0 and found.clipped == 1 / 5
    none = scores([math.nan] * 7)
    lost = log_prob_drift(a, none)
    assert lost is not None and lost.not_finite == lost.tokens == 5 and lost.exact == lost.mean == 0.0


def test_a_report_is_json_whatever_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(name: str) -> None:
        raise AssertionError(name)

    one, other = (str(tmp_path / f"{name}.safetensors") for name in "ab")
    write_rollouts(one, "x", [([0, 5, 9], [math.nan, -1.0, -2.0])])
    write_rollouts(other, "x", [([0, 5, 9], [math.nan, -math.inf, math.nan])])
    assert main(["drift", f"recorded:{one}", f"recorded:{other}", "--json"]) == 1
    written = json.loads(capsys.readouterr().out, parse_constant=refused)
    assert written["log_probs"]["not_finite"] == 2
    report = compare(Recorded(one), Recorded(other), Recorded(one).sequences)
    assert "2 tokens differ by infinity or NaN" in report.text()
    fault = FAULTS["attention: scale"]
    with fault.pair() as (a, b, sequences):
        with torch.no_grad():
            b.model.lm_head.weight[3] = torch.inf
        files = compare(a, b, sequences, depends=False).save(tmp_path / "out")
    json.loads(files[1].read_text(), parse_constant=refused)


def test_the_distance_of_digests_is_near_that_of_distributions() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 2000)
    y = x + 0.1 * torch.randn(64, 2000)
    a, b = Digest.of(x), Digest.of(y)
    exact = (x.softmax(-1) - y.softmax(-1)).norm(dim=-1)
    ratio = a.distance(b) / exact
    assert 0.8 < float(ratio.mean()) < 1.2
    assert not Digest.of(x).distance(a).any() and (a.bits != b.bits).all()
    assert a.sketch.shape == (64, 16)


def test_rounding_is_told_from_another_function() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 128)
    short = x.bfloat16()
    assert measured("op", short, short.clone()) is None
    ulp = short.clone()
    ulp.view(torch.int16)[7, 3] += 1
    one = measured("op", short, ulp)
    assert one is not None and one.verdict == "rounding" and (one.tokens, one.first) == (1, 7)
    other = measured("op", short, (x * 1.1).bfloat16())
    assert other is not None and other.verdict == "another function"
    broken = short.clone()
    broken[3] = torch.nan
    lost = measured("op", short, broken)
    assert lost is not None and lost.verdict == "not finite"


@pytest.mark.parametrize(("dtype", "steps"), [(torch.float32, 68), (torch.bfloat16, 4)])
def test_the_limit_of_roundings_is_where_it_is_said(dtype: torch.dtype, steps: int) -> None:
    eps = torch.finfo(dtype).eps
    one = torch.ones(1, 1, dtype=dtype)
    within, above = (measured("op", one, one + n * eps) for n in (steps, steps + 1))
    assert within is not None and within.verdict == "rounding" and within.ulps == steps
    assert above is not None and above.verdict == "another function" and above.ulps == steps + 1


def test_a_known_mistake_explains_log_probs_and_an_unknown_one_does_not() -> None:
    torch.manual_seed(0)
    z, ids = torch.randn(50, 40) * 3, torch.randint(40, (50,))
    of = lambda s: torch.log_softmax(s, -1).gather(-1, ids[:, None])[:, 0]  # noqa: E731
    mine = of(z / 0.7)
    assert "applied twice" in (explained(z, ids, 0.7, mine, of(z / 0.49)) or "")
    assert explained(z, ids, 0.7, mine, of(z / 0.6)) is None
    p = z.softmax(-1)
    cut = torch.where(p >= p.topk(30).values[:, -1:], p, 0.0)
    kept = cut.gather(-1, ids[:, None])[:, 0] > 0
    over = (cut.gather(-1, ids[:, None])[:, 0] / cut.sum(-1)).log()
    assert "30 likeliest" in (explained(z[kept], ids[kept], 1.0, of(z)[kept], over[kept]) or "")


# --- engines ------------------------------------------------------------------------------------------------


class Own:
    """An engine of a program's own: three methods and a module."""

    def __init__(self, model: Any, name: str, rank: int = 1) -> None:
        self.inner, self.name, self.rank = Transformers(model), name, rank

    @property
    def variants(self) -> dict[str, Own]:
        return {"rank": Own(self.inner.model, self.name)} if self.rank > 1 else {}

    def facts(self) -> Facts:
        return replace(self.inner.facts(), weights={})

    def score(self, sequences: Sequences, watch: Watch) -> Scores:
        model = self.inner.model
        ranks = model.model.layers[0].mlp.down_proj
        plain = ranks.forward
        if self.rank > 1:  # the sum over two ranks rounds each part
            half = ranks.weight.shape[1] // 2
            ranks.forward = lambda x: (
                x[..., :half] @ ranks.weight[:, :half].T + x[..., half:] @ ranks.weight[:, half:].T
            )
        try:
            return self.inner.score(sequences, watch)
        finally:
            ranks.forward = plain

    def modules(self) -> Mapping[str, torch.nn.Module]:
        return self.inner.modules()


def test_an_engine_of_ones_own_is_compared_and_its_trigger_named() -> None:
    model = tiny_model()
    found = compare(Own(model, "one rank"), Own(tiny_model(), "two ranks", 2), tiny_sequences())
    assert found.cause == "model.layers.0.mlp.down_proj" and found.depends == ("rank",)
    assert "weights" in found.unknown and "weights" in found.text()
    assert found.operators is not None
    held = found.operators.tensors(found.cause)
    assert held["a"].shape == held["b"].shape == (42, 64) and held["input"].shape == (42, 96)
    assert torch.equal(held["a"], held["input"] @ model.model.layers[0].mlp.down_proj.weight.T)


def test_stock_attention_implementations_differ_in_attention_alone(tmp_path: Path) -> None:
    a, b = Transformers(tiny_model(), name="eager"), Transformers(tiny_model(attention="sdpa"), name="sdpa")
    found = compare(a, b, tiny_sequences())
    assert found.cause == "model.layers.0.self_attn.attention" and found.operators is not None
    assert {d.verdict for d in found.operators.local} == {"rounding"}
    assert {d.name.rpartition(".")[2] for d in found.operators.local} == {"attention"}
    # what follows differs in a whole run, though not on equal inputs
    assert found.operators.drift["model.layers.1.mlp.up_proj"] > 0 and not found.equal
    files = {file.name for file in found.save(tmp_path)}
    assert files == {"report.txt", "report.json", "drift.svg", "operator.safetensors"}
    chart = (tmp_path / "drift.svg").read_text()
    assert "layer 1" in chart and chart.count("<circle") >= 2 * 6
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["cause"] == found.cause and written["log_probs"]["exact"] < 1


def test_another_temperature_is_said_before_anything_else() -> None:
    model = tiny_model()
    found = compare(Transformers(model), Transformers(model, Options(temperature=0.5)), tiny_sequences())
    assert found.cause == "temperature" and "0.5" in found.findings[0].message


def test_rlk_has_equal_bits_in_training_pages_and_a_patched_model() -> None:
    from rlk import patch
    from rlk.drift import Nn, Patched

    with paged_pair(0, lambda b: nullcontext(), Options(page=4, chunk=3)) as (_, b, _):
        sequences = tiny_sequences(0, (5, 9))
        found = compare(Nn(b.model), b, sequences)
        assert found.equal and found.cause is None, found.text()
        assert {"position ids", "mask"} <= {*found.unknown}
        assert found.operators is not None and len(found.operators.drift) > 25
        stock = tiny_model()
        with patch(stock):
            assert compare(Nn(b.model), Patched(stock, Options(side="left")), sequences).equal
        control = compare(Nn(b.model), Transformers(stock), sequences)
        assert not control.equal and control.operators is not None and control.operators.local
    fault = FAULTS["cache: stale page"]
    with fault.pair() as (a, b, sequences):
        wrong = compare(a, b, sequences)
    assert located(fault, wrong), wrong.text()


def test_names_of_engines_are_read_and_wrong_ones_refused() -> None:
    kind, given = split_name("transformers:attn=eager,chunk=4,side=left")
    assert kind == "transformers" and options_of("x", given, 1.0).chunk == 4
    assert split_name("recorded:/a:b")[1] == {"file": "/a:b"}
    for name, wanted in (
        ("torch", "write one of transformers"),
        ("recorded", "write recorded:FILE"),
        ("transformers:heads=3", "a name of model, dtype, batch"),
        ("vllm:chunk=3", "a name of model, dtype, batch"),
        ("transformers:attn", "name=value"),
    ):
        with pytest.raises(LaunchError, match=re.escape(wanted)):
            split_name(name)
    for given, wanted in (
        ({"chunk": "0"}, "at least 1"),
        ({"side": "up"}, "left or right"),
        ({"temperature": "-1"}, "above 0"),
    ):
        with pytest.raises(LaunchError, match=wanted):
            options_of("x", given, 1.0)
    assert asked_for("vllm:memory=0.4").memory == 0.4 and asked_for("vllm").memory is None
    assert asked_for("vllm:eager=1").eager and not asked_for("vllm").eager
    with pytest.raises(LaunchError, match="eager=yes is not allowed\n.*expected 0 or 1"):
        asked_for("vllm:eager=yes")
    for share in ("0", "2", "much"):
        with pytest.raises(LaunchError, match="above 0, at most 1"):
            asked_for(f"vllm:memory={share}")


def test_an_engine_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def start(**settings: Any) -> None:
        asked.update(settings)
        raise RuntimeError("Device string must not be empty\nand more lines")

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=start))
    with pytest.raises(LaunchError, match="engine vllm:memory=0.3: Device string must not be empty\n"):
        with opened("vllm:memory=0.3", "some folder"):
            pass
    assert asked["gpu_memory_utilization"] == 0.3


# --- files and the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(folder)
    return folder


def test_the_command_compares_and_its_status_says_the_result(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ids.json").write_text("[[0, 5, 9, 1], [0, 7, 3, 8, 2, 1]]")
    record = tmp_path / "a.safetensors"
    rest = ["--model", str(model), "--tokens", str(tmp_path / "ids.json")]
    eager = "transformers:attn=eager"
    assert main(["drift", eager, f"{eager},side=left", *rest, "--record", str(record)]) == 0
    assert "result: no difference" in capsys.readouterr().out
    assert main(["drift", f"recorded:{record}", f"{eager},chunk=2", "--model", str(model)]) == 0
    capsys.readouterr()
    assert (
        main(["drift", f"recorded:{record}", f"{eager},temperature=2", "--model", str(model), "--json"]) == 1
    )
    said = json.loads(capsys.readouterr().out)
    # the record was made at its own temperature, and applied it
    assert said["cause"] == "temperature" and said["explanation"] is None
    assert main(["drift", "transformers", "vllm", *rest]) == 2
    assert "vllm is not installed" in capsys.readouterr().err


def test_weights_are_digested_once_for_each_engine(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, plain = [], engines.weight_checksums
    monkeypatch.setattr(engines, "weight_checksums", lambda model: counted.append(1) or plain(model))
    record = tmp_path / "a.safetensors"
    rest = ["--model", str(model), "--lengths", "5,4", "--record", str(record)]
    assert main(["drift", "transformers", "transformers:temperature=0.7", *rest]) == 1
    assert len(counted) == 2
    assert Recorded(record).facts().weights


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["transformers", "nothing"], "engine 'nothing': unknown"),
        (["recorded:none.safetensors", "transformers"], "there is no such file"),
        (["transformers", "transformers", "--tokens", "bad.json"], "a JSON list of lists"),
        (["transformers", "transformers", "--tokens", "flat.json"], "a JSON list of lists"),
        (["transformers", "transformers", "--tokens", "large.json"], "ids below 96"),
        (["transformers", "transformers", "--tokens", "empty.json"], "an empty sequence, number 1"),
        (["transformers", "transformers", "--tokens", "none.json"], "No such file"),
        (["transformers", "transformers", "--lengths", "3,x"], "numbers above 0"),
        (["transformers", "transformers", "--lengths", "1,1"], "one of at least 2"),
        (["transformers", "transformers:chunk=0"], "chunk=0 is not allowed"),
        (["transformers:page=4", "transformers"], "'page=4' is no setting"),
        (
            ["transformers:attn=flash_attention_9", "transformers"],
            "engine transformers:attn=flash_attention_9",
        ),
        (["transformers:device=foo", "transformers"], "device=foo is not allowed"),
        (["transformers:device=meta", "transformers"], "device=meta is not allowed"),
        (["transformers:model=folder", "transformers"], "engine transformers:model=folder"),
        (["rlk.nn:model=folder", "transformers"], "rlk drift: "),
        (["transformers", "transformers", "--record", "no/x.safetensors"], "--record"),
        (["transformers", "transformers", "--out", "bad.json"], "--out"),
        (["transformers", "transformers", "--clip", "-1"], "--clip"),
        (["transformers", "transformers", "--temperature", "nan"], "a number above 0"),
        (["recorded:negative.safetensors", "transformers"], "ids has -2"),
    ],
)
def test_bad_input_is_one_clear_message(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name, text in (
        ("bad", "{}"),
        ("flat", "[4, [true]]"),
        ("large", "[[4, 96]]"),
        ("empty", "[[4], []]"),
    ):
        Path(f"{name}.json").write_text(text)
    Path("folder").mkdir()
    write_rollouts("negative.safetensors", "x", [([0, -2], [math.nan, -1.0])])
    assert main(["drift", *arguments, "--model", str(model)]) == 2
    assert message in capsys.readouterr().err


def test_a_recorded_rollout_keeps_what_was_scored(tmp_path: Path) -> None:
    engine, path = Transformers(tiny_model()), tmp_path / "a.safetensors"
    sequences = tiny_sequences()
    mine = engine.score(sequences, Unwatched())
    save_scores(path, "transformers", engine.facts(), mine)
    read = Recorded(path)
    assert compare(engine, read, sequences).equal
    assert read.facts() == engine.facts()
    held = read.score(sequences, Unwatched())
    assert held.digest is not None and mine.digest is not None
    assert torch.equal(held.digest.bits, mine.digest.bits)
    other = compare(Transformers(tiny_model(1)), read, sequences)
    assert other.cause == "weights" and other.operators is None and "not compared" in other.text()


def test_a_file_that_is_no_record_is_refused_by_what_is_wrong(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    good = {
        "ids": torch.tensor([1, 2]), "cu_seqlens": torch.tensor([0, 2]), "positions": torch.tensor([0, 1]),
        "logps": torch.tensor([math.nan, -1.0]), "sampled": torch.tensor([False, True]),
    }  # fmt: skip
    head = {"format": "rlk.drift", "version": "2", "engine": "x"}
    path = tmp_path / "x.safetensors"
    for tensors, texts, message in (
        (good, {**head, "format": "other"}, "format is 'other'"),
        (good, {**head, "version": "1"}, "version is '1'"),
        ({n: x for n, x in good.items() if n != "logps"}, head, "tensor logps is missing"),
        ({**good, "logps": torch.tensor([1, 2])}, head, "tensor logps is torch.int64"),
        ({**good, "cu_seqlens": torch.tensor([0, 1])}, head, "cu_seqlens do not ascend"),
        ({**good, "positions": torch.tensor([0])}, head, "tensor positions has 1 rows"),
        (good, {**head, "temperature": "warm"}, "metadata cannot be read"),
        (good, {**head, "dtype": "torch.bfloat16"}, "dtype is 'torch.bfloat16', expected one of"),
    ):
        save_file(tensors, path, texts)
        with pytest.raises(RlkError, match=re.escape(message)):
            Recorded(path).facts()
    path.write_bytes(b"nothing")
    with pytest.raises(RlkError, match="no safetensors file"):
        Recorded(path)


def test_a_nan_within_a_recorded_completion_is_found(tmp_path: Path) -> None:
    engine, sequences = Transformers(tiny_model()), tiny_sequences()
    mine = engine.score(sequences, Unwatched())
    mine.logps[5] = math.nan
    save_scores(tmp_path / "a.safetensors", "x", engine.facts(), mine)
    found = compare(Recorded(tmp_path / "a.safetensors"), engine, sequences)
    assert found.cause == "log-probs" and "sequence 0, token 5" in found.findings[0].message


@pytest.mark.parametrize("places", [[1, 2], [1, 2, 3, 4]], ids=["at its start", "everywhere"])
def test_a_sequence_whose_sampled_tokens_have_no_log_prob_is_found(tmp_path: Path, places: list[int]) -> None:
    rows, path = [[0, 5, 9, 7, 1], [0, 7, 3]], str(tmp_path / "a.safetensors")
    engine, sequences = Transformers(tiny_model()), Sequences.of(rows)
    logps = [part.tolist() for part in engine.score(sequences, Unwatched()).logps.split(sequences.lengths)]
    for i in places:
        logps[0][i] = math.nan
    sampled = [[0, 1, 1, 1, 1], [0, 1, 1]]
    write_rollouts(path, "x", zip(rows, logps, strict=True), sampled=sampled)
    found = compare(Recorded(path), engine, sequences)
    assert found.cause == "log-probs" and not found.equal
    wanted = f"{len(places)} tokens without a log-prob (NaN), in sequences 0"
    assert wanted in found.text()
    prompt = [[0] * (max(places) + 1) + [1] * (4 - max(places)), [0, 1, 1]]
    write_rollouts(path, "x", zip(rows, logps, strict=True), sampled=prompt)
    found = compare(Recorded(path), engine, sequences)
    assert found.equal == (len(places) < 4)  # a prompt needs none, but a sequence without any says nothing
    assert found.equal or "no log-prob at all of sequences 0" in found.text()


@pytest.mark.parametrize("dtype", [None, str(torch.bfloat16), "bfloat16"])
def test_checksums_of_a_record_are_compared_unless_dtypes_are_known_to_differ(
    tmp_path: Path, dtype: str | None
) -> None:
    engine, path = Transformers(tiny_model()), str(tmp_path / "a.safetensors")
    ids = tiny_sequences().lists()
    logps = [p.tolist() for p in engine.score(tiny_sequences(), Unwatched()).logps.split([11, 24, 7])]
    sums = weight_checksums(engine.model)
    write_rollouts(path, "x", zip(ids, logps, strict=True), weights=sums, dtype=dtype)
    same = compare(Recorded(path), engine, tiny_sequences())
    assert same.equal and not same.findings and "weights" not in same.unknown
    assert {"position ids", "mask"} <= {*same.unknown}  # nobody observed the sampler's
    sums["model.norm.weight"] = "0" * 32
    write_rollouts(path, "x", zip(ids, logps, strict=True), weights=sums, dtype=dtype)
    found = compare(Recorded(path), engine, tiny_sequences())
    assert found.cause == "weights" and found.findings[0].names == ("model.norm.weight",)
    write_rollouts(path, "x", zip(ids, logps, strict=True), weights=sums, dtype="float32")
    other = compare(Recorded(path), engine, tiny_sequences())
    assert "weights" in other.unknown and other.findings[0].kind == "dtype"


@pytest.mark.parametrize("first", [True, False], ids=["a", "b"])
def test_a_record_s_top_k_is_explained_by_the_other_engine_s_logits(tmp_path: Path, first: bool) -> None:
    """Sample 2 sequences from the 8 likeliest tokens at temperature 0.7, and record their log-probs."""
    model, path = tiny_model(dtype=torch.float32), str(tmp_path / "a.safetensors")
    drawn, rows = torch.Generator().manual_seed(0), []
    for start in (0, 7):
        ids, logps = [start], [math.nan]
        for _ in range(9):
            with torch.no_grad():
                top = (model(input_ids=torch.tensor([ids])).logits[0, -1] / 0.7).topk(8)
            at = int(torch.multinomial(top.values.softmax(-1), 1, generator=drawn))
            ids, logps = [*ids, int(top.indices[at])], [*logps, float(top.values.log_softmax(-1)[at])]
        rows.append((ids, logps))
    write_rollouts(path, "x", rows, temperature=0.7, stage="logits")
    record = Recorded(path)
    engine = Transformers(model, Options(temperature=0.7))
    pair = (record, engine) if first else (engine, record)
    found = compare(*pair, record.sequences)
    assert found.cause == "log-probs" and found.operators is None
    assert f"in {'a' if first else 'b'}, log-probs are normalised over the 8 likeliest" in found.text()
    noise = [(ids, [x + 0.01 * (i % 3) for i, x in enumerate(logps)]) for ids, logps in rows]
    write_rollouts(path, "x", noise, temperature=0.7, stage="logits")
    assert compare(Recorded(path), engine, record.sequences).explanation is None


def test_two_records_differ_in_token_ids_and_one_in_positions(tmp_path: Path) -> None:
    one, other = (str(tmp_path / f"{name}.safetensors") for name in "ab")
    write_rollouts(one, "x", [([0, 5, 9], [math.nan, -1.0, -2.0])], positions=[[1, 2, 3]])
    write_rollouts(other, "x", [([0, 6, 9], [math.nan, -1.0, -2.0])])
    found = compare(Recorded(one), Recorded(other), Recorded(one).sequences)
    assert found.cause == "token ids" and "sequence 0, token 1" in found.text()
    assert compare(Recorded(one), Transformers(tiny_model()), Recorded(one).sequences).cause == "position ids"


def test_the_faults_of_the_command_s_model_are_of_its_operators() -> None:
    for experts in (False, True):
        model = tiny_model(experts=experts)
        names = {n for n, _ in model.named_modules()} | {n for n, _ in model.named_parameters()}
        faults = [f for f in FAULTS.values() if f.experts == experts and f.where.startswith("model.")]
        wanted = {f.where.removesuffix(".residual") for f in faults}
        computed = (".attention", ".gated", ".cos", ".gate.weights")
        assert wanted and not {w for w in wanted if w not in names and not w.endswith(computed)}
