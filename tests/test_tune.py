"""The tuner's schedules can be entered in a table, and its proposals follow from its measurements."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from rlk import cli
from rlk.backends import cute
from rlk.errors import LaunchError
from rlk.lower.common.emitted import Emitted
from rlk.resources import installing
from rlk.runtime.binding.invocation import geometry_of
from rlk.runtime.call.dispatch import lowered
from rlk.schedule import cute_table, triton_table
from rlk.schedule.cute_table import Warpgroups, most_stages
from rlk.schedule.entries import ROW_CLASSES, Facts, row_class
from rlk.schedule.triton_table import Tiling
from rlk.target.facts import target
from rlk.tune import measure, session
from rlk.tune.candidates import FOLDS, PIECES, PRODUCTS, WARPGROUPS, candidates, tiling, written
from rlk.tune.measure import differing
from rlk.tune.precompile import Compiled
from rlk.tune.problem import BARE, SHIPPED, Plan, plan, problem
from rlk.tune.propose import proposals, summary
from rlk.tune.record import read, versions, write
from rlk.tune.session import Ended, Row, Session, Silent
from rlk.tune.shapes import SUBJECTS, Shape, shape, shapes, subject

H200 = target("sm_90a")
TABLES = {"triton": triton_table, "cute": cute_table}
LISTS = (PRODUCTS, PIECES, FOLDS, WARPGROUPS)
EVERY = [each for name in SUBJECTS for each in shapes(name)]


# --- candidates ---


def test_a_tiling_is_read_as_it_is_written() -> None:
    found = tiling("64x32x128 8w 5s p2 g16 flat turned")
    assert found == Tiling(64, 32, 128, 8, 5, group=16, per_core=2, flat=True, turned=True)
    assert tiling("16x32x64 4w 4s pointers") == Tiling(16, 32, descriptors=False)
    assert tiling("128x256 3s g16 c2") == Warpgroups(128, 256, 3, 16, 2)
    assert tiling("64x32") == Warpgroups(64, 32, most_stages(64, 32), 8)
    for text in sorted({text for lists in LISTS for texts in lists.values() for text in texts}):
        use = tiling(text)
        over = max(n for n in (16, *ROW_CLASSES) if n <= max(use.rows, 16))
        entry = f"[[entry]]\nwhen = {{ rows = {{ over = {over} }} }}\nuse = {written(use)}\nwhy = 'x'"
        assert TABLES["triton" if isinstance(use, Tiling) else "cute"].parse(entry)[0].use == use


def test_every_class_of_rows_has_a_short_list() -> None:
    for backend in TABLES:
        for kind, pieces in (("dot_map", 1), ("dot_map", 8), ("stream_dot", 1)):
            for rows in (1, *ROW_CLASSES, 8192, None):
                facts = Facts("sm_90a", kind, rows=rows, columns=4096, pieces=pieces)
                tried = candidates(facts, backend)
                assert 0 < len(set(tried)) == len(tried) <= (12 if backend == "cute" else 24)
                assert min(tiling(text).rows for text in tried) <= max(64, row_class(rows))


def test_warpgroups_are_tried_where_their_rows_are_and_no_wider_than_the_columns() -> None:
    def tried(**facts: Any) -> list[Warpgroups]:
        return [tiling(t) for t in candidates(Facts("sm_90a", "dot_map", **facts), "cute")]  # type: ignore[misc]

    assert {(u.rows, u.cluster) for u in tried(rows=64, columns=4096)} == {(64, 1)}
    assert {u.columns for u in tried(rows=64, columns=4096)} >= {32, 64, 128}
    assert {u.columns for u in tried(rows=64, columns=49)} == {32, 48, 64}
    assert {u.group for u in tried(rows=8192, columns=4096)} == {4, 8, 16}
    for listed in WARPGROUPS.values():
        for use in map(tiling, listed):
            assert isinstance(use, Warpgroups) and use.stages * (use.rows + use.columns) * 128 <= 226 << 10


@pytest.mark.parametrize("backend", TABLES)
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_candidate_lowers(name: str, backend: str) -> None:
    picked = (shapes(name)[0], shapes(name)[-1])
    for each in picked:
        call = problem(each, "meta")
        found = plan(call, backend, H200)
        geometry = geometry_of(call.invocation, call.tensors[0])
        tried = set(found.schedules)
        listed = {f"{s}: {t}" for s, facts in found.sites.items() for t in candidates(facts, backend)}
        assert SHIPPED in tried and tried - {SHIPPED} | set(found.same) <= listed and len(tried) > 2
        for schedules in found.schedules.values():
            given = (call.invocation, H200.softmax, geometry, call.tensors[0], H200, schedules, backend)
            assert lowered(*given)[3].backend == backend


def test_what_is_tried_changes_the_kernels_of_one_place_alone() -> None:
    found = plan(problem(Shape.of("linear_logp_grad", 1024, 2304, 256), "meta"), "cute", H200)
    shipped = found.schedules[SHIPPED]
    changed: dict[str, set[int]] = {site: set() for site in found.sites}
    for name, schedules in found.schedules.items():
        site = name.partition(": ")[0]
        if name != SHIPPED:
            changed[site] |= {i for i, (a, b) in enumerate(zip(schedules, shipped, strict=True)) if a != b}
    places = sorted(changed.values(), key=min)
    assert len(places) == 3 and all(a.isdisjoint(b) for a in places for b in places if a is not b)
    assert any(len(at) > 1 for at in places), "kernels that differ in what follows alone are one place"


# --- shapes ---


def test_sizes_are_read_by_their_letters() -> None:
    assert shape("matmul", "K=4096, M=1,N=33") == Shape.of("matmul", 1, 33, 4096)
    assert shape("linear_logp", "N=64,V=128256,D=4096") == Shape.of("linear_logp", 64, 128256, 4096)
    for text in ("M=1,N=2", "M=1,N=2,K=0", "M=1,N=2,K=x", "N=64,V=3,D=4,M=4", "1 x 2 x 3", "M=1,M=2,N=3,K=4"):
        with pytest.raises(LaunchError, match="M=4096,N=4096,K=4096"):
            shape("matmul", text)
    assert subject("linear_logp", gradient=True) == "linear_logp_grad"
    assert str(EVERY[0]) == "matmul 1 x 4096 x 4096"


# --- proposals ---


def row(rows: int, shipped: float = 1.0, columns: int = 4096, **fields: Any) -> Row:
    """A shape as a session leaves it: ms of what was tried, by tiling."""
    tried = {f"matmul: {name}": ms for name, ms in fields.pop("tried", {}).items()}
    facts = Facts("sm_90a", "dot_map", rows=rows, columns=columns, length=4096, plain=True)
    timed = {name: {"ms": ms, "spread": [ms, ms], "host_ms": 0.01} for name, ms in tried.items()}
    return {
        "op": "matmul", "sizes": {"M": rows, "N": columns, "K": 4096}, "backend": "cute",
        "sites": {"matmul": asdict(facts)}, "cublas": [0.9, 0.9], "cublas_ms": 0.9, "drift": 0.0,
        "shipped": {"ms": shipped, "spread": [shipped, shipped], "host_ms": 0.01},
        "tried": dict(sorted(timed.items(), key=lambda pair: pair[1]["ms"])), "same": [], "errors": {},
        "differing": {}, "hung": [], "unfinished": [], "schedules": {SHIPPED: "s"}, **fields,
    }  # fmt: skip


A, B = "64x64", "128x128 c2"


def test_what_was_faster_is_proposed_in_the_words_of_the_table() -> None:
    made = proposals([row(8192, tried={B: 0.8, A: 1.2})], "NVIDIA H200")
    assert len(made) == 1 and made[0].path == cute_table.TABLE
    (entry,) = cute_table.parse(made[0].text)
    assert entry.use == tiling(B)
    assert "8192 x 4096 x 4096: 0.8 ms, from 1, cuBLAS 0.9, next 64x64 1.2; NVIDIA H200" == entry.why
    at = made[0].above
    assert at is not None and cute_table.table()[at - 1].use.rows == 128
    assert str(made[0]).startswith(f"# warpgroups.toml, above entry {at}\n[[entry]]")
    facts = Facts("sm_90a", "dot_map", rows=8192, columns=4096, length=4096, plain=True)
    assert entry.meets(facts)
    for other in ({"rows": 1024}, {"columns": 4097}, {"length": 14336}, {"plain": False}, {"pieces": 8}):
        assert not entry.meets(Facts(**{**asdict(facts), **other})), "no more than what was measured"
    assert proposals([row(40, tried={A: 0.5})], "x")[0].above is None


def test_places_that_agree_are_one_entry() -> None:
    made = proposals([row(100, tried={A: 0.8}), row(100, columns=8192, tried={A: 0.9})], "x")
    (entry,) = [e for m in made for e in cute_table.parse(m.text)]
    assert (entry.columns.over, entry.columns.most, entry.rows.over, entry.rows.most) == (4095, 8192, 64, 128)
    apart = [row(100, tried={A: 0.8}), row(100, columns=8192, tried={A: 1.1, "64x128": 0.9})]
    assert len(proposals(apart, "x")) == 2


@pytest.mark.parametrize(
    "rows",
    [
        [row(64, tried={A: 0.995})],
        [row(64, tried={A: 0.95}, drift=0.06)],
        [row(17, tried={A: 0.5}), row(32, tried={A: 1.1})],
        [row(17, tried={A: 0.5}), row(32, tried={})],
        [row(64, tried={A: 0.5}, failed="its process ended")],
        [row(64, tried={A: 0.5}, cublas=[0.9])],
        [row(64, tried={A: 0.5}, differing={f"matmul: {A}": ["y"]})],
    ],
    ids=(
        "noise",
        "drift",
        "slower in the class",
        "not measured in the class",
        "failed",
        "cut off",
        "differs",
    ),
)
def test_what_is_not_shown_is_not_proposed(rows: list[Row]) -> None:
    assert proposals(rows, "x") == []


def test_a_length_that_no_call_fixes_is_asked_for_as_that() -> None:
    found = row(8192, tried={B: 0.8})
    found["sites"]["matmul"] |= {"length": None, "plain": False}
    (entry,) = cute_table.parse(proposals([found], "x")[0].text)
    assert entry.length.unknown and entry.plain is False


def test_a_shape_is_shown_beside_what_is_shipped_and_cublas() -> None:
    assert summary(row(1, tried={A: 0.8}))[1] == (
        f"matmul: {A}",
        "0.8000",
        "0.8000 - 0.8000",
        "1.250",
        "1.125",
    )
    assert summary({**row(1), "shipped": None}) == []


# --- sessions ---


class Script:
    """Stands for children: each takes the next list of reports; None: silence; an exception: raised."""

    lists: list[list[Any]] = []
    jobs: list[dict[str, Any]] = []
    stopped = 0

    def __init__(self) -> None:
        self.left = list(self.lists.pop(0))

    def ask(self, job: dict[str, Any]) -> None:
        self.jobs.append(job)

    def next(self, seconds: float) -> Any:
        report = self.left.pop(0)
        if report is None:
            raise Silent
        if isinstance(report, Exception):
            raise report
        return report

    def stop(self) -> None:
        type(self).stopped += 1


def ran(name: str, ms: float) -> list[Any]:
    return [{"at": name}, {"name": name, "ms": ms, "spread": [ms, ms], "host_ms": 0.0}]


def played(*lists: Iterable[Any], seconds: float = 60.0, failed: dict[str, str] | None = None) -> Row:
    """Return the row of a shape with two candidates whose children say this."""
    Script.lists, Script.jobs, Script.stopped = [list(each) for each in lists], [], 0
    each = Shape.of("matmul", 64, 4096, 4096)
    facts = Facts("sm_90a", "dot_map", rows=64, columns=4096, length=4096, plain=True)
    compiled = Compiled({each: Plan({"matmul": facts}, {SHIPPED: (), "matmul: a": (), "matmul: b": ()}, ())})
    compiled.failed = {(each, name): why for name, why in (failed or {}).items()}
    limit = session.time.monotonic() + seconds
    return Session("cute", 0.1, 1.0, limit, start=Script).measure(each, compiled)


BEGIN = [*ran(BARE, 0.8), *ran(SHIPPED, 1.0)]
END = [*ran(BARE, 0.9), {"done": True}]


def test_a_shape_is_measured_between_two_timings_of_cublas() -> None:
    found = played([*BEGIN, *ran("matmul: a", 1.2), *ran("matmul: b", 0.9), *END])
    assert list(found["tried"]) == ["matmul: b", "matmul: a"] and found["unfinished"] == []
    assert found["cublas"] == [0.8, 0.9] and found["drift"] == 0.125 and "failed" not in found
    assert Script.jobs[0]["tried"] == [SHIPPED, "matmul: a", "matmul: b"] and Script.stopped == 0


@pytest.mark.parametrize("end", [None, Ended("its process ended with status -6: bad address")])
def test_what_hangs_or_dies_costs_its_child_and_itself(end: Any) -> None:
    found = played([*BEGIN, {"at": "matmul: a"}, end], [*BEGIN, *ran("matmul: b", 0.9), *END])
    assert Script.jobs[1]["tried"] == [SHIPPED, "matmul: b"] and Script.stopped == 1
    assert list(found["tried"]) == ["matmul: b"] and list(found["errors"]) == ["matmul: a"]
    assert found["hung"] == (["matmul: a"] if end is None else []) and "failed" not in found


def test_a_child_is_silent_until_it_speaks_and_says_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    child = session.Child()
    try:
        with pytest.raises(Silent):
            child.next(0.0)
        sizes = {"M": 1, "N": 16, "K": 16}
        job = {"op": "matmul", "sizes": sizes, "backend": "triton", "seconds": 0.1, "tried": [SHIPPED]}
        child.ask(job)
        assert "Traceback" in child.next(60.0)["failed"]
        with pytest.raises(Ended, match="status 0"):
            child.next(60.0)
    finally:
        child.stop()


def test_a_shape_whose_shipped_schedule_hangs_is_given_up() -> None:
    found = played([*ran(BARE, 0.8), {"at": SHIPPED}, None])
    assert found["failed"].startswith("shipped: said nothing") and found["hung"] == [SHIPPED]
    assert proposals([found], "x") == []


def test_what_did_not_compile_is_not_tried() -> None:
    found = played([*BEGIN, *ran("matmul: b", 0.9), *END], failed={"matmul: a": "registers"})
    assert Script.jobs[0]["tried"] == [SHIPPED, "matmul: b"] and found["errors"] == {"matmul: a": "registers"}
    assert "registers" in played(failed={SHIPPED: "registers"})["failed"]


def test_time_that_is_up_ends_a_shape_and_keeps_what_is_known() -> None:
    found = played([*BEGIN, *ran("matmul: a", 0.7), {"at": "matmul: b"}, None], seconds=-1.0)
    assert found["unfinished"] == ["matmul: b"] and found["tried"] and not found["hung"]


def test_a_candidate_that_changes_a_bit_is_found_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measuring loop on a CPU: launches are stand-ins, outputs and their comparison are real."""
    good = {"y": torch.tensor([1.0, 0.0])}
    outputs = {"same": good, "zero": {"y": torch.tensor([1.0, -0.0])}, SHIPPED: good}
    monkeypatch.setattr(measure, "bind_lowered", lambda *given: lambda tensors, scalars: outputs[given[6]])
    monkeypatch.setattr(measure, "alone", lambda *given: measure.Timing(1.0, (1.0, 1.0), 0.0))
    monkeypatch.setattr(measure.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(measure.torch.cuda, "synchronize", lambda: None)
    call = problem(Shape.of("matmul", 4, 16, 16), "cpu")
    names: dict[str, Any] = {name: name for name in (SHIPPED, "zero", "same")}
    said = list(measure.reports(call, names, "cute", H200, 0.1))
    assert {"name": "zero", "differing": ["y"]} in said
    assert [r["name"] for r in said if "ms" in r] == [BARE, SHIPPED, "same", BARE]
    nan = {"y": torch.tensor([math.nan])}
    assert differing(nan, nan) == [] and differing(good, outputs["zero"]) == ["y"]


# --- the command ---

Rlk = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tune(capsys: pytest.CaptureFixture[str]) -> Rlk:
    def call(*argv: str) -> tuple[int, str, str]:
        status = cli.main(["tune", *argv])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("nothing",), "operator 'nothing' is unknown"),
        (("linear_logp_grad",), "choose one of: linear_logp --grad "),
        (("sample", "--grad"), "no gradient"),
        (("swiglu", "--shape", "X=4"), "T=4096,N=4096"),
        (("swiglu", "--shape", "T=4,T=5"), "T=4096,N=4096"),
        (("embedding",), "D is required to tune: --shape D=4096"),
        (("matmul", "--shape", "M=1"), "M=4096,N=4096,K=4096"),
        (("matmul", "--dry", "--only", "7 x 7"), "matmul 1 x 4096 x 4096"),
        (("matmul", "--lane", "3/2"), "I/N, such as 1/4"),
        (("matmul", "--read", "nothing.json"), "a record of rlk tune"),
        ((), "OP or --all is required"),
        (("matmul", "--all", "config.json"), "OP or --all is required"),
        (("--all", "config.json", "--grad"), "no --grad beside it"),
        (("--all", "nowhere.json"), "--all='nowhere.json' is not allowed"),
    ],
)
def test_what_cannot_be_tried_is_refused_with_what_can(tune: Rlk, argv: tuple[str, ...], said: str) -> None:
    status, out, err = tune(*argv)
    assert status == 2 and said in err and not out


def test_a_models_own_shapes_are_tried_by_the_backends_that_run_them(
    tune: Rlk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.json"
    sizes = {"hidden_size": 256, "vocab_size": 2048, "intermediate_size": 512, "num_attention_heads": 4}
    config.write_text(json.dumps({**sizes, "num_key_value_heads": 2, "head_dim": 32, "model_type": "gemma3"}))
    asked: dict[str, list[str]] = {}

    def compiled(wanted: Sequence[Shape], backend: str, *_: Any) -> Compiled:
        asked[backend] = list(map(str, wanted))
        return Compiled()

    monkeypatch.setattr("rlk.cli.tune.compile_all", compiled)
    chosen = {"matmul": "cute"}
    monkeypatch.setattr("rlk.cli.tune.backend_of", lambda call, on: chosen.get(call.shape.op, "triton"))
    monkeypatch.setattr("rlk.cli.tune.kernel_key", lambda *_: {})
    status, *_ = tune("--all", str(config), "--rows", "16", "--rows", "2048", "--dry")
    products = ("256 x 256", "256 x 128", "1024 x 256", "256 x 512")  # q, k and v; o; gate and up; down
    assert status == 0
    assert asked["cute"] == [f"matmul {rows} x {each}" for each in products for rows in (16, 2048)]
    assert "linear_logp 16 x 2048 x 256" in asked["triton"] and "geglu T=2048, N=512" in asked["triton"]
    gradients = [each for each in asked["triton"] if "_grad" in each]
    assert len(gradients) == 12 and not any("T=16" in each or " 16 x " in each for each in gradients)
    asked.clear()
    assert tune("--all", str(config), "--backend", "triton", "--only", "matmul", "--dry")[0] == 0
    assert list(asked) == ["triton"]  # the control: the backend that is given


def test_experts_are_tried_as_grouped_products_and_gradients_where_training_is(
    tune: Rlk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"hidden_size": 256, "vocab_size": 2048, "intermediate_size": 512, "num_attention_heads": 4}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
    asked: list[str] = []

    def compiled(wanted: Sequence[Shape], *_: Any) -> Compiled:
        asked[:] = map(str, wanted)
        return Compiled()

    monkeypatch.setattr("rlk.cli.tune.compile_all", compiled)
    monkeypatch.setattr("rlk.cli.tune.backend_of", lambda call, on: "triton")
    monkeypatch.setattr("rlk.cli.tune.kernel_key", lambda *_: {})
    write = (tmp_path / "config.json").write_text
    write(json.dumps({**sizes, **experts, "model_type": "qwen3_moe"}))
    assert tune("--all", str(tmp_path), "--rows", "16", "--rows", "1024", "--dry")[0] == 0  # a folder
    assert {
        "matmul 16 x 8 x 256",  # the router
        "grouped_matmul T=32, K=256, E=8, N=192",
        "grouped_matmul T=32, K=96, E=8, N=256",
        "swiglu T=32, N=96",
        "grouped_matmul_grad@x T=2048, K=256, E=8, N=192",
        "grouped_matmul_grad@w T=2048, K=256, E=8, N=192",
    } <= {*asked}
    assert not any(" x 1024 x 256" in each or "N=512" in each for each in asked)  # an MLP
    assert not any("_grad" in each and ("T=32" in each or "T=16" in each) for each in asked)
    assert tune("--all", str(tmp_path), "--rows", "16", "--dry")[0] == 0
    assert len(asked) > 8 and not any("_grad" in each for each in asked)  # decoding is not trained
    write(json.dumps({**sizes, **experts, "mlp_only_layers": [0], "n_shared_experts": 1}))
    assert tune("--all", str(tmp_path), "--rows", "16", "--dry")[0] == 0
    assert {"matmul 16 x 1024 x 256", "matmul 16 x 192 x 256", "swiglu T=16, N=512"} <= {*asked}
    write(json.dumps({**sizes, "num_experts": 8, "model_type": "qwen3_moe"}))
    status, _, err = tune("--all", str(tmp_path), "--dry")
    assert status == 2 and "num_experts_per_tok is None" in err


def test_rows_by_expert_are_drawn_at_any_size() -> None:
    call = problem(Shape("grouped_matmul", (("T", 40), ("K", 32), ("E", 5), ("N", 16))), "cpu")
    begin, end = (call.tensors[0][name].tolist() for name in ("begin", "end"))
    assert begin[0] == 0 and end[-1] == 40 and begin[1:] == end[:-1] and begin == sorted(begin)


def test_what_the_time_does_not_suffice_for_is_not_reached_and_no_failure(tune: Rlk) -> None:
    shapes = ("--shape", "M=16,N=64,K=512", "--shape", "M=16,N=64,K=1024")
    status, out, err = tune("matmul_leaf8", *shapes, "--backend", "triton", "--dry", "--limit-s", "1e-9")
    assert status == 0 and "0 failed, 2 not reached" in out and "FAILED" not in out + err
    assert "not reached in 1e-09 s" in out and "    matmul_leaf8 16 x 64 x 1024\n" in out


def test_a_schedule_that_was_not_compiled_in_time_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    each = Shape.of("matmul", 16, 64, 512)
    compiled = Compiled({each: plan(problem(each, "meta"), "triton", H200)})
    shipped, first, *_ = compiled.plans[each].schedules
    compiled.unreached.append((each, first))
    asked: list[list[str]] = []

    class Quiet(Session):
        def _ask(self, row: Any, tried: Sequence[str]) -> None:
            asked.append(list(tried))
            row["tried"] |= {name: {"ms": 1.0} for name in tried if name != shipped}

    row = Quiet("triton", 0.1, 1.0, 0.0).measure(each, compiled)
    assert asked[0][0] == shipped and first not in asked[0] and len(asked) == 1
    assert row["unfinished"] == [first] and not row["errors"] and "failed" not in row


def test_without_a_device_nothing_is_timed(tune: Rlk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, out, err = tune("matmul")
    assert status == 2 and "nothing can be timed without a GPU" in err and "--dry" in err and not out


def test_a_missing_compiler_is_named(tune: Rlk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cute, "toolchain", lambda: None)
    status, _, err = tune("matmul", "--backend", "cute", "--dry")
    assert status == 2 and installing("cute") in err


@pytest.mark.parametrize("backend", ["triton", pytest.param("cute", marks=pytest.mark.cutlass)])
def test_a_dry_run_compiles_what_would_be_tried(tune: Rlk, backend: str) -> None:
    status, out, err = tune("matmul_leaf8", "--shape", "M=16,N=64,K=512", "--backend", backend, "--dry")
    assert status == 0 and re.search(r"^1 shapes, \d+ schedules, \d+ modules", out)
    *_, last = err.splitlines()  # a slow compile shows lines before the last one
    assert re.fullmatch(r"compiled \[#{24}\] (\d+)/\1 in \d+ s", last)
    assert "0 failed" in out


def test_a_dry_run_says_what_does_not_compile(tune: Rlk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(key: Any, emit: Callable[[], Emitted], *, label: str) -> Any:
        from concurrent.futures import Future

        made: Any = Future()
        made.set_exception(RuntimeError("no registers left"))
        return made

    monkeypatch.setattr("rlk.tune.precompile.obtain_later", broken)
    status, out, err = tune("matmul", "--shape", "M=16,N=64,K=256", "--dry")
    assert "shipped: RuntimeError: no registers left" in err
    assert status == 1 and " 0 failed" not in out


def test_records_are_read_back_and_judged(tune: Rlk, tmp_path: Path) -> None:
    path = tmp_path / "a" / "tune.json"
    write(path, "NVIDIA H200", "rlk tune matmul", [row(64, tried={A: 0.8})], "abc")
    found = json.loads(path.read_text())
    assert found["versions"]["rlk"] == "abc" and "torch" in found["versions"]
    assert read([path], "linear_logp") == ("NVIDIA H200", [])
    (new,) = read([path], "matmul")[1]
    old = {key: value for key, value in new.items() if key not in ("sizes", "entries")}
    write(tmp_path / "old.json", "", "", [old | {"rows": 64, "columns": 4096, "length": 4096}], "abc")
    (same,) = read([tmp_path / "old.json"], "matmul")[1]
    assert same["sizes"] == new["sizes"] and proposals([same], "x") == proposals([new], "x")
    status, out, err = tune("matmul", "--read", str(path))
    assert status == 0 and "[[entry]]" in out and not err
    write(path, "NVIDIA H200", "", [row(64, tried={}, differing={f"matmul: {A}": ["y"]})], "abc")
    status, out, err = tune("matmul", "--read", str(path))
    assert status == 1 and "no entry" in out and "differs from the shipped bits in y" in err
    assert "rlk" in versions(())
