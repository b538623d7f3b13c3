"""A user's table chooses schedules before the reviewed tables, and can change no bit."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import rlk
from rlk.backends import triton
from rlk.cache import Store
from rlk.env import Env
from rlk.errors import Code, ScheduleError
from rlk.ir.text import print_program
from rlk.lang import Axis, L, Op, Outputs, Tensor, f32, op
from rlk.lang.variants import differentiable, gradient_variant
from rlk.lower import triton as triton_lowering
from rlk.ops import swiglu
from rlk.runtime import prefetch
from rlk.runtime.binding import invocation
from rlk.runtime.binding.arguments import TORCH_DTYPES
from rlk.runtime.binding.candidates import forms
from rlk.runtime.binding.invocation import Invocation, geometry_of
from rlk.runtime.binding.selection import invoke
from rlk.runtime.binding.shape_buckets import sizes_of
from rlk.runtime.call import dispatch as runtime
from rlk.runtime.call.dispatch import dispatch, lowered
from rlk.runtime.kernels import build, trace_cache
from rlk.runtime.launch.record import MODULE, ModuleRecord
from rlk.runtime.registry import operators, unregister
from rlk.schedule import user_table
from rlk.schedule.entries import Range
from rlk.schedule.schedule import Schedule, Span
from rlk.schedule.user_table import Table, parse, read, using, written
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators.interpreter import interpret

ROOT = Path(__file__).parent.parent
H200 = target("sm_90a")
FILE = "my.toml"


def entry(use: str, op: str = "swiglu", **other: str) -> str:
    """Return the text of an entry; other: fields as TOML has them."""
    given = {
        "op": f'"{op}"',
        "kernel": f'"{op.rpartition(".")[2]}"',
        "target": '"sm_90a"',
        "backend": '"triton"',
    }
    lines = "".join(f"{name} = {value}\n" for name, value in (given | other).items())
    return f"[[entry]]\n{lines}use = {use}\n"


def table(*entries: str) -> Table:
    return parse("\n".join(entries), FILE)


# --- operators of a test ------------------------------------------------------------------------------------

T, V, WIDE = Axis("T", dynamic=True), Axis("V", chunk=64), Axis("V", chunk=128)


@op()
def lse(x: Tensor[f32, T, V]) -> Outputs:
    """Log sum exp of rows, folded by chunks of 64."""
    soft = L.softmax_sum()
    for v in L.stream(V):
        soft.absorb(x[v])
    return L.out(y=soft.lse())


@op()
def wide_lse(x: Tensor[f32, T, WIDE]) -> Outputs:
    """The same by chunks of 128: other numerics."""
    soft = L.softmax_sum()
    for v in L.stream(WIDE):
        soft.absorb(x[v])
    return L.out(y=soft.lse())


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)


def run(spec: Op, tensors: dict[str, torch.Tensor], **statics: object) -> dict[str, torch.Tensor]:
    """Return the outputs of a call, by the oracle or an interpreter."""
    return dispatch(invoke(spec, tensors, {}, statics, None), tensors, {})


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave the oracle in charge, and nothing bound."""
    before = dispatch.interpreter
    yield
    dispatch.interpret_with(before)


def interpreted(chosen: Table, spec: Op, tensors: dict[str, torch.Tensor], **statics: object) -> Any:
    dispatch.interpret_with(interpret)
    with using(chosen):
        return run(spec, tensors, **statics)


def schedules(spec: Op, tensors: dict[str, torch.Tensor], **statics: object) -> tuple[Schedule, ...]:
    """Return what a call would run by Triton on a Hopper."""
    found = invoke(spec, tensors, {}, statics, None)
    given = (found, H200.softmax, geometry_of(found, tensors), tensors, H200)
    return lowered(*given, None, "triton")[2]


# --- the law ------------------------------------------------------------------------------------------------

ROWS = {"x": normal(23, 300)}
GATED = {"gate": normal(19, 96, dtype=torch.bfloat16), "up": normal(19, 96, dtype=torch.bfloat16)}
FACTORS = {"x": normal(40, 96, dtype=torch.bfloat16), "w": normal(48, 96, dtype=torch.bfloat16)}
CASES: dict[str, tuple[Op, dict[str, torch.Tensor], dict[str, object], tuple[str, ...]]] = {
    "lse": (
        lse, ROWS, {},
        ("{ warps = 1 }", "{ tiles = { T = 4 }, warps = 2 }", "{ stages = 3, unroll = 2 }"),
    ),
    "swiglu": (
        operators()["swiglu"], GATED, {},
        ("{ tiles = { N = 32 } }", "{ tiles = { T = 8, N = 128 }, warps = 8 }", "{ tiles = {}, warps = 1 }"),
    ),
    "matmul": (
        operators()["matmul"], FACTORS, {"keep_f32": False},
        (
            "{ tiles = { T = 16, N = 32 }, depth = 16, stages = 2 }",
            "{ tiles = { T = 32, N = 16 }, warps = 8, programs = 3, flat = true }",
            "{ group = 3, descriptors = false }",
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_no_table_changes_a_bit(name: str) -> None:
    spec, tensors, statics, uses = CASES[name]
    want = run(spec, tensors, **statics)
    plain, told = schedules(spec, tensors, **statics), set()
    for use in uses:
        chosen = table(entry(use, op=name))
        with using(chosen):
            told.add(schedules(spec, tensors, **statics))
        got = interpreted(chosen, spec, tensors, **statics)
        for output, value in want.items():
            assert_same_bits(got[output], value, f"{use}: {output}")
    assert plain not in told and len(told) == len(uses), "each table was used"


def test_other_numerics_are_seen_by_the_same_comparison() -> None:
    """The control: what no schedule may do, another chunk does."""
    want, other = run(lse, ROWS)["y"], interpreted(Table(), wide_lse, ROWS)["y"]
    assert differing(want, other), "chunks of 128 add in another order"
    assert torch.allclose(want, other)


# --- choosing -----------------------------------------------------------------------------------------------


def test_fields_that_an_entry_leaves_out_stay_as_they_were_chosen() -> None:
    plain = schedules(operators()["swiglu"], GATED)
    with using(table(entry("{ warps = 8, stages = 2 }"))):
        assert schedules(operators()["swiglu"], GATED) == (replace(plain[0], warps=8, stages=2),)
    assert schedules(operators()["swiglu"], GATED) == plain


@pytest.mark.parametrize(
    ("other", "used"),
    [
        ({}, True),
        ({"sizes": "{ T = { over = 16, most = 32 }, N = 96 }"}, True),
        ({"sizes": "{ T = { most = 16 } }"}, False),
        ({"sizes": "{ N = 128 }"}, False),
        ({"target": '"gfx942"'}, False),
        ({"backend": '"cute"'}, False),
        ({"kernel": '"another"'}, False),
        ({"dtypes": "{ F = 'bf16' }"}, True),
        ({"dtypes": "{ F = 'f32' }"}, False),
        ({"op": "my.swiglu", "kernel": '"swiglu"'}, False),
    ],
    ids=str,
)
def test_an_entry_is_for_its_kernel_target_backend_and_sizes(other: dict[str, str], used: bool) -> None:
    with using(table(entry("{ warps = 8 }", **other))):
        assert (schedules(operators()["swiglu"], GATED)[0].warps == 8) is used


def test_the_last_entry_of_a_kernel_is_used() -> None:
    with using(table(entry("{ warps = 1 }"), entry("{ warps = 8 }"))):
        assert schedules(operators()["swiglu"], GATED)[0].warps == 8


def test_every_backend_asks_the_table() -> None:
    found = invoke(operators()["swiglu"], GATED, {}, {}, None)
    sizes = sizes_of(found, geometry_of(found, GATED))
    entries = [entry("{ stages = 7 }", backend=f'"{name}"') for name in ("triton", "cute", "tilelang")]
    with using(table(*entries)):
        made = list(forms(found, H200.softmax, sizes, H200, ("triton", "cute", "tilelang")))
    assert {form.backend for form in made} == {"triton", "cute", "tilelang"}
    for form in made:
        assert [s.stages for s in form.schedules] == [7] and [e.backend for e in form.entries] == [
            form.backend
        ]


def test_a_gradient_has_entries_of_its_own() -> None:
    spec = operators()["swiglu"]
    variant = spec.default_variant()
    found = Invocation(spec.gradient, gradient_variant(variant, differentiable(spec, variant), ("y",)))
    dtype = TORCH_DTYPES[dict(variant.dtypes)["F"]]
    tensors = {name: torch.zeros(19, 96, dtype=dtype) for name in ("gate", "up", "d_y")}
    given = (found, H200.softmax, geometry_of(found, tensors), tensors, H200, None, "triton")
    with using(table(entry("{ warps = 1 }"))):
        plain = lowered(*given)[2]
    with using(table(entry("{ warps = 1 }", op="swiglu_grad"))):
        told = lowered(*given)[2]
    assert told[0] == replace(plain[0], warps=1) != plain[0]


def test_an_own_operator_is_named_with_its_namespace() -> None:
    rlk.register(lse, namespace="tabled")
    try:
        with using(table(entry("{ warps = 1 }", op="lse"))):
            plain = schedules(lse, ROWS)[0]
        with using(table(entry("{ warps = 16 }", op="tabled.lse"))):
            assert schedules(lse, ROWS)[0] == replace(plain, warps=16)
    finally:
        unregister("tabled.lse")


# --- errors -------------------------------------------------------------------------------------------------

GOOD = entry("{ warps = 8 }")


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("[[entry", FILE, "not TOML"),
        ("[other]\n", FILE, "unknown field 'other'"),
        ("entry = 3", FILE, "write [[entry]]"),
        (GOOD + entry("{ warp = 8 }"), f"{FILE}, entry 2", "unknown field 'warp'; fields are cluster"),
        (entry("{ warps = 8 }", rows="3"), f"{FILE}, entry 1", "unknown field 'rows'"),
        (GOOD.replace("kernel = ", "# "), f"{FILE}, entry 1", "kernel is missing"),
        (entry("{ warps = 3 }"), f"{FILE}, entry 1", "warps=3: 1, 2, 4, ... 32"),
        (entry("{ warps = true }"), f"{FILE}, entry 1", "use.warps is True, not of type int"),
        (entry("{ tiles = { N = 7 } }"), f"{FILE}, entry 1", "three or five times one"),
        (entry("{ tiles = 4 }"), f"{FILE}, entry 1", "indices by axis"),
        (entry("{ placed = ['N'] }"), f"{FILE}, entry 1", "such as 'N[7:3]'"),
        (entry("{}"), f"{FILE}, entry 1", "use is empty"),
        (GOOD.replace('"swiglu"', "3", 1), f"{FILE}, entry 1", "op is 3, not a text"),
        (entry("{ warps = 8 }", gradients="'x'"), f"{FILE}, entry 1", "gradients is 'x': write names"),
        (entry("{ warps = 8 }", dtypes="{ F = 'bf17' }"), f"{FILE}, entry 1", "dtypes is {'F': 'bf17'}"),
        (entry("{ warps = 8 }", dtypes="{ F = ['bf16'] }"), f"{FILE}, entry 1", "dtypes is {'F': ['bf16']}"),
        (entry("{ warps = 8 }", sizes="{ T = 'x' }"), f"{FILE}, entry 1", "sizes.T is 'x'"),
        (entry("{ warps = 8 }", sizes="{ T = { above = 3 } }"), f"{FILE}, entry 1", "{ over = n }"),
    ],
)  # fmt: skip
def test_a_bad_file_or_entry_is_one_error_that_names_it(text: str, place: str, said: str) -> None:
    with pytest.raises(ScheduleError) as raised:
        parse(text, FILE)
    assert raised.value.code is Code.SCHEDULE_TABLE
    assert f"table of schedules {place}" in str(raised.value) and said in str(raised.value)


@pytest.mark.parametrize(
    ("use", "other", "said"),
    [
        ("{ tiles = { X = 4 } }", {}, "the parallel axes of swiglu are T, N"),
        ("{ placed = ['N[12:3]'] }", {}, "the tile has"),
        ("{ placed = ['N[4:0]', 'N[4:2]'] }", {}, "it is placed twice"),
        ("{ tiles = { N = 96 } }", {}, "triton refuses swiglu with this schedule"),
        ("{ warps = 8 }", {"sizes": "{ X = 4 }"}, "the axes of swiglu are N, T"),
        ("{ warps = 8 }", {"dtypes": "{ X = 'f32' }"}, "the dtype variables of swiglu are F"),
        ("{ warps = 8 }", {"gradients": "['x']"}, "gradients has 'x': the inputs of swiglu are gate, up"),
        ("{ warps = 8 }", {"sizes": "{ T = { most = 1000 } }"}, "write 1023, or a power of two"),
    ],
)
def test_what_does_not_fit_the_kernel_is_an_error_of_its_entry(
    use: str, other: dict[str, str], said: str
) -> None:
    with using(table(entry(use, **other))), pytest.raises(ScheduleError, match="my.toml, entry 1") as raised:
        schedules(operators()["swiglu"], GATED)
    assert raised.value.code is Code.SCHEDULE_TABLE and said in str(raised.value)


def test_a_file_is_read_once_and_named_where_it_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    with pytest.raises(ScheduleError, match="mine.toml: it cannot be read"):
        read(path)
    path.write_text(GOOD)
    assert read(path).entries[0].place == f"{path}, entry 1"
    assert Env.read({"RLK_SCHEDULES": str(path)}).schedules == path
    assert (
        Env.read({}).schedules is None
        and Env.read({"RLK_SCHEDULES": "a.toml"}).schedules == Path.cwd() / "a.toml"
    )


def test_the_environment_names_the_table_of_every_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.toml"
    monkeypatch.setattr(
        user_table.Env, "current", staticmethod(lambda: Env.read({"RLK_SCHEDULES": str(path)}))
    )
    user_table._of_environment.cache_clear()
    try:
        with pytest.raises(ScheduleError, match="mine.toml: it cannot be read"):
            schedules(operators()["swiglu"], GATED)
        path.write_text(GOOD)
        assert schedules(operators()["swiglu"], GATED)[0].warps == 8
    finally:
        user_table._of_environment.cache_clear()


@pytest.mark.parametrize(("name", "value"), [("target", "sm90"), ("backend", "triton3")])
def test_a_target_or_backend_that_rlk_has_not_is_warned_of(
    name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not caplog.records and table(GOOD) and not caplog.records
    table(entry("{ warps = 8 }", **{name: f'"{value}"'}))
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"{FILE}, entry 1: ") and repr(value) in said


def test_what_is_written_reads_back() -> None:
    use = (
        ("descriptors", False), ("placed", (Span("N.lane", 3, 5), Span("N", 0, 1))), ("stages", 2),
        ("tiles", (("M.piece", 1), ("N", 64))), ("warps", 8),
    )  # fmt: skip
    sizes = (("N", Range(95, 96)), ("T", Range(512, 1024)), ("U", Range(over=1024)))
    made = user_table.Entry(
        "my.op", "my_op", "sm_90a", "cute", sizes, use, 'a "b"', "x, entry 1", (("F", "bf16"),)
    )
    assert parse(written(made), "x").entries == (made,)


# --- keys, and what is said ---------------------------------------------------------------------------------


def test_the_trace_cache_asks_for_the_entries_of_an_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with another table does not believe what one without it found, and the other way about."""
    lowerings: list[str] = []
    real, store = triton_lowering.lower, Store(tmp_path / "store")

    def lower(*given: Any, **options: Any) -> Any:
        lowerings.append(str(given[1][0]))
        return real(*given, **options)

    def compile(emitted: Any, on: str, folder: Path) -> None:
        (folder / MODULE).write_text(emitted.source)
        ModuleRecord((), emitted.call, emitted.checks, emitted.backend).write(folder)

    def load(folder: Path, kind: str, device: int) -> Any:
        return lambda *given: None, ModuleRecord.read(folder)

    for module in (runtime, invocation):
        monkeypatch.setattr(module, "target_of", lambda device: H200)
    monkeypatch.setattr(runtime, "_asked", lambda on, tensors: ("triton",))
    monkeypatch.setattr(runtime, "index_of", lambda device: 0)
    monkeypatch.setattr(runtime, "load", load)
    monkeypatch.setattr(triton, "triton_version", lambda: "3.6.0")
    monkeypatch.setattr(triton_lowering, "lower", lower)
    monkeypatch.setattr(build, "store", lambda: store)
    monkeypatch.setattr(build, "pool", lambda: SimpleNamespace(compile=compile, submit=lambda work: work()))
    monkeypatch.setattr(trace_cache, "own_text", lambda: "text")

    def called(chosen: Table) -> list[str]:
        lowerings.clear()
        dispatch.forget()
        with using(chosen):
            run(operators()["swiglu"], GATED)
        return list(lowerings)

    mine = table(entry("{ warps = 8 }"))
    (plain,), (told,) = called(Table()), called(mine)
    assert "8 warps" in told and "8 warps" not in plain
    assert called(Table()) == called(mine) == [], "both are kept, each under its own key"
    assert called(table(entry("{ warps = 8 }", op="logp"))) == [], (
        "an entry of another operator is no part of it"
    )
    dispatch.forget()


def test_explain_says_which_entry_a_schedule_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "target_of", lambda device: H200)
    monkeypatch.setattr(prefetch, "model_of", lambda invocation, device: H200.softmax)
    monkeypatch.setattr(prefetch, "asked_for", lambda on: ("triton",))
    monkeypatch.setattr(runtime, "_asked", lambda on, tensors: ("triton",))
    plain = rlk.explain(swiglu, *GATED.values())
    with using(table(entry("{ warps = 8 }"))):
        told = rlk.explain(swiglu, *GATED.values())
    assert [text.endswith(" (from my.toml, entry 1)") for text in told.schedules] == [True]
    assert "8 warps" in told.schedules[0] and "from" not in plain.schedules[0]
    assert f"schedule     {told.schedules[0]}" in str(told) and told.numerics_id == plain.numerics_id


def test_a_table_moves_no_program() -> None:
    """Entries are applied to what was chosen: no form of a program depends on them."""
    found = Invocation(operators()["logp"], operators()["logp"].default_variant())
    tensors = {"logits": normal(4, 4096, dtype=torch.bfloat16), "ids": torch.zeros(4, dtype=torch.int64)}
    sizes = sizes_of(found, geometry_of(found, tensors))

    def programs() -> list[str]:
        return [print_program(form.program) for form in forms(found, H200.softmax, sizes, H200, ("triton",))]

    plain = programs()
    with using(table(entry("{ warps = 1 }", op="logp"))):
        assert programs() == plain


def test_the_entry_of_the_document_is_used_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide, page = (ROOT / "docs" / name for name in ("writing-a-spec.md", "tuning.md"))
    (tmp_path / "tabled_zloss.py").write_text(
        re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)[0]
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(prefetch, "target_of", lambda device: H200)
    monkeypatch.setattr(prefetch, "model_of", lambda invocation, device: H200.softmax)
    monkeypatch.setattr(runtime, "_asked", lambda on, tensors: ("triton",))
    zloss = importlib.import_module("tabled_zloss").zloss
    rlk.register(zloss, namespace="my")
    text = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)[0]
    try:
        with using(parse(text, "zloss.toml")):
            x = torch.empty(2000, 128256, dtype=torch.bfloat16)
            (said,) = rlk.explain(zloss, x, weight=1.0).schedules
            few = rlk.explain(zloss, x[:512], weight=1.0).schedules
    finally:
        unregister("my.zloss")
    assert f"schedule     {said}\n" in page.read_text() and not any("from" in text for text in few)
