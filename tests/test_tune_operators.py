"""Any registered operator can be tuned: candidates lower, compile and have the bits of what is shipped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import rlk
from rlk import cli
from rlk.backends.interface import Bound, Candidate
from rlk.backends.registry import of_name
from rlk.errors import LaunchError
from rlk.lang import Axis, DTypeVar, L, Outputs, Scalar, Tensor, Tree, bf16, f16, f32, i8, i32, i64, op
from rlk.runtime.binding.invocation import geometry_of
from rlk.runtime.call.dispatch import bind_lowered, dispatch, lowered
from rlk.runtime.registry import unregister
from rlk.schedule.entries import Range
from rlk.schedule.schedule import Schedule
from rlk.schedule.user_table import Table, parse, read, using, written
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits
from rlk.testing.simulators import hopper
from rlk.testing.simulators.interpreter import interpret
from rlk.tune import measure
from rlk.tune.candidates import candidates
from rlk.tune.precompile import Compiled, compile_all
from rlk.tune.problem import SHIPPED, plan, problem
from rlk.tune.propose import user_entries
from rlk.tune.record import write
from rlk.tune.registered import call_of, traffic
from rlk.tune.session import Row, Session
from rlk.tune.shapes import OTHER_ROWS, Shape, found, separately, shape, shapes, subject

H200 = target("sm_90a")
T, N, V = Axis("T", dynamic=True), Axis("N"), Axis("V")
D, W = Axis("D"), Axis("W", chunk=256)
F = DTypeVar("F", (f32, bf16, f16))


@op(saves=("x", "ids"))
def pick(x: Tensor[F, T, N], ids: Tensor[i64, T], scale: Scalar[f32, 2.0:3.0]) -> Outputs:
    """scale * (x[ids] - the mean of the row)."""
    mean = L.sum(x.to(f32), over=N, tree=Tree.halving) / L.extent(N).to(f32)
    return L.out(y=scale * (x.at(L.pos(T), ids).to(f32) - mean))


@pick.vjp("x")
def pick_grad(ctx: Any, d_y: Tensor[f32, T]) -> Outputs:
    """d x = scale d_y (1[n = id] - 1/N)."""
    one = L.where(L.pos(N) == ctx.ids.to(i32), 1.0, 0.0)
    slope = (ctx.scale * d_y) * (one - 1.0 / L.extent(N).to(f32))
    return L.out(d_x=slope.to(ctx.x.dtype))


@op()
def coded(x: Tensor[f32, T, V], code: Tensor[i32, T]) -> Outputs:
    """x where the code is 7, else 0."""
    return L.out(y=L.where(code == 7, x, 0.0))


def code_inputs(rng: np.random.Generator) -> dict[str, Any]:
    return {"code": np.array([7, 3, 7], np.int32)}


@op()
def head(hidden: Tensor[F, T, D], weight: Tensor[F, W, D]) -> Outputs:
    """Log sum exp of hidden weight^T: a contraction with a fold."""
    soft = L.softmax_sum()
    for w in L.stream(W):
        soft.absorb(L.dot(hidden, weight[w], over=D))
    return L.out(y=soft.lse())


@op()
def weighed(x: Tensor[F, T, D], w: Tensor[i8, N, D]) -> Outputs:
    """A product with a factor computed from bytes."""
    return L.out(y=L.dot(x, w.to(x.dtype), over=D))


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    """Register the operators of this file, as a package would."""
    rlk.register(pick, namespace="tuned", extents={"N": 96})
    rlk.register(coded, namespace="tuned", inputs=code_inputs)
    rlk.register(head, namespace="tuned", extents={"D": 256, "W": 8192})
    rlk.register(weighed, namespace="tuned", extents={"D": 1024, "N": 1024})
    found.cache_clear()
    yield
    for each in ("pick", "coded", "head", "weighed"):
        unregister(f"tuned.{each}")
    found.cache_clear()


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave the oracle in charge."""
    before = dispatch.interpreter
    yield
    dispatch.interpret_with(before)


# --- shapes and inputs --------------------------------------------------------------------------------------


def test_a_shape_is_sizes_of_axes_by_name() -> None:
    assert shape("tuned.pick", "T=33") == Shape("tuned.pick", (("T", 33), ("N", 96)))
    assert str(shape("tuned.pick", "N=7, T=5")) == "tuned.pick T=5, N=7"
    assert [dict(each.sizes) for each in shapes("tuned.pick_grad")] == [{"T": t, "N": 96} for t in OTHER_ROWS]
    with pytest.raises(LaunchError, match="V is required to tune: --shape V=4096, or extents= in its reg"):
        shapes("tuned.coded")
    with pytest.raises(LaunchError, match="T=4096,N=4096"):
        shape("tuned.pick", "V=3")
    with pytest.raises(LaunchError, match="has no gradient for tuned.coded"):
        subject("tuned.coded", gradient=True)


def test_inputs_fit_their_annotations() -> None:
    call = call_of(shape("tuned.pick", "T=501,N=13"), "cpu")
    x, ids = call.tensors["x"], call.tensors["ids"]
    assert x.shape == (501, 13) and x.dtype is torch.bfloat16 and 0.5 < float(x.float().std()) < 1.5
    assert ids.dtype is torch.int64 and int(ids.min()) >= 0 and int(ids.max()) == 12, (
        "inside the dim they index"
    )
    assert call.scalars == {"scale": 2.0}
    square = call_of(shape("tuned.pick", "T=64,N=64"), "cpu").tensors["ids"]
    assert sorted(square.tolist()) == list(range(64)), (
        "as many as the dim: each once, so that no two write a place"
    )
    assert traffic(call) == 501 * 13 * 2 + 501 * 8 + 501 * 4


def test_values_that_no_annotation_describes_are_the_authors_repeated() -> None:
    call = call_of(shape("tuned.coded", "T=5,V=4"), "cpu")
    assert call.tensors["code"].tolist() == [7, 3, 7, 7, 3]
    coded.record, before = type(coded.record)(), coded.record
    try:
        with pytest.raises(LaunchError, match="code is required by the tuner: register coded with inputs="):
            call_of(shape("tuned.coded", "T=5,V=4"), "cpu")
        call_of(shape("tuned.coded", "T=5,V=4"), "meta")
    finally:
        coded.record = before


def test_offsets_of_segments_keep_the_sizes_of_their_author() -> None:
    given = call_of(shape("varlen_attention", "T=64,H=4,G=2,E=16,S=64,W=16,B=3"), "meta").tensors
    assert all(t.device.type == "meta" for t in given.values())
    with pytest.raises(LaunchError, match="it has segments"):
        call_of(shape("varlen_attention", "T=64,H=4,G=2,E=16,S=64,W=16,B=3"), "cpu")


def test_a_gradient_reads_what_its_operator_saved() -> None:
    call = call_of(shape("tuned.pick_grad", "T=9,N=5"), "cpu")
    assert call.tensors.keys() == {"x", "ids", "d_y"} and call.invocation.spec is pick.gradient
    assert call.tensors["d_y"].dtype is torch.float32 and call.tensors["d_y"].shape == (9,)
    dispatch(call.invocation, call.tensors, call.scalars)


# --- candidates ---------------------------------------------------------------------------------------------

NAMES = ("tuned.pick", "tuned.pick_grad", "logp", "logp_grad", "rms_norm", "rms_norm_grad", "swiglu", "gae")


@pytest.mark.parametrize("backend", ["triton", "cute"])
@pytest.mark.parametrize("name", NAMES)
def test_every_candidate_of_row_kernels_lowers(name: str, backend: str) -> None:
    call = problem(shapes(name)[1], "meta")
    made = plan(call, backend, H200)
    geometry = geometry_of(call.invocation, call.tensors[0])
    assert not made.sites and len(made.schedules) > 4
    shipped = made.schedules[SHIPPED]
    fields = {"warps": set(), "tiles": set(), "stages": set()}  # type: ignore[var-annotated]
    for schedules in made.schedules.values():
        given = (call.invocation, H200.softmax, geometry, call.tensors[0], H200, schedules, backend)
        assert lowered(*given)[3].backend == backend
        for chosen in schedules:
            for field, seen in fields.items():
                seen.add(getattr(chosen, field))
        assert schedules is shipped or sum(a != b for a, b in zip(schedules, shipped, strict=True)) == 1
    assert len(fields["warps"]) > 1 and max(map(len, fields.values())) > 2


@pytest.mark.parametrize("backend", ["triton", "cute"])
def test_a_contraction_of_an_own_operator_has_the_candidates_of_contractions(backend: str) -> None:
    call = problem(shape("tuned.head", "T=300"), "meta")
    made = plan(call, backend, H200)
    ((site, facts),) = made.sites.items()
    listed = {f"{site}: {text}" for text in candidates(facts, backend)}
    tried = {name for name in made.schedules if name.startswith(f"{site}: ")}
    assert tried and tried | {name for name in made.same if name.startswith(site)} <= listed
    assert facts.kind == "stream_dot" and len(made.schedules) > len(tried) + 1, "its merge is tried as well"
    geometry = geometry_of(call.invocation, call.tensors[0])
    for schedules in made.schedules.values():
        given = (call.invocation, H200.softmax, geometry, call.tensors[0], H200, schedules, backend)
        assert lowered(*given)[3].backend == backend


@pytest.mark.parametrize("backend", ["triton", "cute"])
def test_forms_that_write_a_factor_first_or_do_not_are_timed(backend: str) -> None:
    few, many = (plan(problem(shape("tuned.weighed", f"T={t}"), "meta"), backend, H200) for t in (64, 4096))
    assert len(few.schedules[SHIPPED]) == 1 and len(few.schedules["form: 2 kernels"]) == 2
    assert len(many.schedules[SHIPPED]) == 2 and len(many.schedules["form: 1 kernels"]) == 1
    assert not any(name.startswith("form") for made in (few, many) for name in made.entries)
    assert ("weighed: 64x128 c2" in few.schedules) == (backend == "cute")  # clusters share x


def test_of_forms_with_as_many_kernels_the_one_that_would_run_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by = of_name("triton")

    def twice(bound: Bound) -> Iterator[Candidate]:
        for each in by.candidates(bound):
            yield each
            if len(each.program.kernels) == 2:
                first = each.schedules()
                other = tuple(replace(made, warps=2 * made.warps) for made in first)
                yield Candidate(each.program, lambda other=other: other)

    call = problem(shape("tuned.weighed", "T=64"), "meta")
    want = plan(call, "triton", H200).schedules
    monkeypatch.setattr("rlk.tune.problem.of_name", lambda name: replace(by, candidates=twice))
    assert plan(call, "triton", H200).schedules["form: 2 kernels"] == want["form: 2 kernels"]


@pytest.mark.parametrize("backend", ["triton", "cute"])
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("tuned.pick", "T=7,N=300"), ("tuned.pick_grad", "T=7,N=300"), ("swiglu", "T=5,N=512")],
)
def test_every_candidate_has_the_shipped_bits(name: str, sizes: str, backend: str) -> None:
    """By interpreters of the generated text, which launch what a device would."""
    call = problem(shape(name, sizes), "cpu")
    want = dispatch(call.invocation, call.tensors[0], call.scalars)
    made = plan(call, backend, H200)
    geometry = geometry_of(call.invocation, call.tensors[0])
    dispatch.interpret_with(interpret, **({"cute": hopper.interpret} if backend == "cute" else {}))
    assert len(made.schedules) > 4
    for chosen in made.schedules.values():
        given = (call.invocation, H200.softmax, geometry, call.tensors[0], H200, None, chosen, backend)
        got = bind_lowered(*given)(call.tensors[0], call.scalars)
        for output, value in want.items():
            assert_same_bits(got[output], value, f"{chosen}: {output}")


def test_a_users_table_is_not_what_is_shipped() -> None:
    call = problem(shape("tuned.pick", "T=64"), "meta")
    plain = plan(call, "triton", H200)
    head = 'op = "tuned.pick"\nkernel = "pick"\ntarget = "sm_90a"\nbackend = "triton"\n'
    with using(parse(f"[[entry]]\n{head}use = {{ warps = 32 }}", "mine")):
        assert plan(call, "triton", H200).schedules == plain.schedules
        geometry = geometry_of(call.invocation, call.tensors[0])
        chosen = lowered(call.invocation, H200.softmax, geometry, call.tensors[0], H200, None, "triton")[2]
        assert chosen[0].warps == 32, "the control: calls do ask the table"


# --- measuring: the shipped path, on a CPU ------------------------------------------------------------------


def measured(
    name: str, sizes: str, monkeypatch: pytest.MonkeyPatch, ms: dict[str, float], wrong: str = "no schedule"
) -> Row:
    """Return the row of a session whose child runs here, by an interpreter.

    ms: times of what is tried. wrong: schedules whose results are given other bits.
    """
    dispatch.interpret_with(interpret)
    monkeypatch.setattr(measure.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(measure.torch.cuda, "synchronize", lambda: None)
    real, at = measure.bind_lowered, [""]

    def bound(*given: Any) -> Any:
        at[0] = "; ".join(map(str, given[6]))
        run = real(*given[:5], None, *given[6:])
        if wrong not in at[0]:
            return run
        return lambda tensors, scalars: {n: t + 0.5 * (t == t[0]) for n, t in run(tensors, scalars).items()}

    def alone(launch: Callable[[int], object], copies: int, seconds: float) -> measure.Timing:
        launch(0)
        launch(copies - 1)
        took = next((t for text, t in ms.items() if text in at[0]), 1.0)
        return measure.Timing(took, (took, took), 0.0)

    monkeypatch.setattr(measure, "bind_lowered", bound)
    monkeypatch.setattr(measure, "alone", alone)
    each = shape(name, sizes)

    class Here:
        def ask(self, job: dict[str, Any]) -> None:
            call = problem(Shape(job["op"], tuple(json.loads(json.dumps(job["sizes"])).items())), "cpu")
            tried = {n: plan(call, job["backend"], H200).schedules[n] for n in job["tried"]}
            self.said = iter([*measure.reports(call, tried, job["backend"], H200, 0.1), {"done": True}])

        def next(self, seconds: float) -> Any:
            return next(self.said)

        def stop(self) -> None: ...

    compiled = Compiled({each: plan(problem(each, "meta"), "triton", H200)})
    return Session("triton", 0.1, 1.0, float("inf"), start=Here).measure(each, compiled)


def test_an_operator_is_measured_on_the_path_of_the_shipped_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = measured("tuned.pick", "T=40,N=96", monkeypatch, {", 4 warps": 0.5})
    assert row["sizes"] == {"T": 40, "N": 96} and len(row["cublas"]) == 2
    assert not row["errors"] and not row["differing"] and row["unfinished"] == [] and "failed" not in row
    assert len(row["tried"]) == len(row["schedules"]) - 1
    best = next(iter(row["tried"]))
    assert ", 4 warps" in best and row["tried"][best]["ms"] == 0.5

    (entry,) = user_entries([row], "a device")
    assert (entry.op, entry.kernel, entry.target, entry.backend) == ("tuned.pick", "pick", "sm_90a", "triton")
    assert entry.dtypes == (("F", "bf16"),) and dict(entry.sizes)["N"] == Range(95, 96)
    assert "0.5 ms, from 1" in entry.why and entry.why.endswith("a device")

    record, mine = tmp_path / "tune.json", tmp_path / "mine.toml"
    write(record, "a device", "", [row], "abc")
    mine.write_text("# mine\n")
    for _ in range(2):  # appended, and what is appended last counts
        assert cli.main(["tune", "tuned.pick", "--read", str(record), "--write", str(mine)]) == 0
    said = capsys.readouterr().out
    assert f"1 entry appended to {mine}" in said and "[[entry]]" in said
    assert mine.read_text().startswith("# mine\n") and len(read(mine).entries) == 2

    call = problem(shape("tuned.pick", "T=64,N=96"), "meta")  # of the same class of rows
    geometry = geometry_of(call.invocation, call.tensors[0])
    dispatch.interpret_with(None)
    with using(read(mine)):
        chosen = lowered(call.invocation, H200.softmax, geometry, call.tensors[0], H200, None, "triton")[2]
    assert str(chosen[0]) == row["schedules"][best]
    assert chosen == plan(call, "triton", H200).schedules[best]


def test_gradients_with_kernels_of_their_own_have_entries_of_their_own() -> None:
    both = separately([shape("matmul_grad", "T=64,N=96,K=128")])
    assert [each.op for each in both] == ["matmul_grad@x", "matmul_grad@w"]
    calls = [problem(each, "meta") for each in both]
    plans = [plan(call, "triton", H200) for call in calls]
    name = next(n for n in plans[0].schedules if n != SHIPPED)
    (entry,) = plans[0].entries[name]
    table = parse(written(entry), "mine.toml")
    assert table.entries[0].gradients == ("x",) and plans[1].kernels == (entry.kernel,)  # one name for both

    def chosen(i: int, table: Table) -> tuple[Schedule, ...]:
        geometry = geometry_of(calls[i].invocation, calls[i].tensors[0])
        with using(table):
            given = (calls[i].invocation, H200.softmax, geometry, calls[i].tensors[0], H200)
            return lowered(*given, None, "triton")[2]

    assert chosen(0, table) == plans[0].schedules[name] != plans[0].schedules[SHIPPED]
    assert chosen(1, table) == plans[1].schedules[SHIPPED]
    every = Table((replace(table.entries[0], gradients=(), use=(("warps", 8),)),))
    assert chosen(1, every)[0].warps == 8 != plans[1].schedules[SHIPPED][0].warps  # the control


def test_what_is_no_faster_is_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    row = measured("tuned.pick", "T=40,N=96", monkeypatch, {})
    assert user_entries([row], "x") == [] and row["tried"]


def test_a_candidate_with_other_bits_is_named_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the comparison, on the path of the tuner."""
    row = measured("tuned.pick", "T=40,N=96", monkeypatch, {", 4 warps": 0.5}, wrong=", 4 warps")
    assert row["differing"] and all(", 4 warps" in name for name in row["differing"])
    assert row["tried"] and not row["differing"].keys() & row["tried"].keys()
    assert user_entries([row], "x") == []


# --- the command --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [(), ("--grad",)], ids=["operator", "gradient"])
def test_a_dry_run_compiles_an_own_operator(
    grad: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["new-op", "mean_square", "--namespace", "drytuned", "-o", str(tmp_path)]) == 0
    path = tmp_path / "drytuned_ops" / "mean_square.py"
    argv = ["tune", f"{path}:mean_square", "--shape", "T=16,N=256", "--backend", "triton", "--dry", *grad]
    capsys.readouterr()
    try:
        status = cli.main(argv)
        said = capsys.readouterr()
        assert status == 0 and "1 shapes, " in said.out and "0 failed" in said.out
        kernel = "mean_square_grad" if grad else "mean_square"
        assert f"    {kernel}: tiles " in said.out and re.search(r"^    \d+ candidates$", said.out, re.M)
        assert cli.main([*argv[:1], "drytuned.mean_square", *argv[2:]]) == 0, "and by its registered name"
    finally:
        unregister("drytuned.mean_square")


def test_a_compilation_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import Future

    def broken(key: Any, emit: Any, *, label: str) -> Any:
        made: Any = Future()
        made.set_exception(RuntimeError("no registers left"))
        return made

    monkeypatch.setattr("rlk.tune.precompile.obtain_later", broken)
    each = shape("tuned.pick", "T=16")
    made = compile_all([each], "triton", H200, float("inf"))
    assert made.failed.keys() == {(each, name) for name in made.plans[each].schedules}
