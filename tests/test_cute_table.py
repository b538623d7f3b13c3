"""The reviewed table of warpgroup schedules says only what it may, and is used where its conditions hold."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("triton")

from rlk.errors import ScheduleError
from rlk.ir.dims import Axis
from rlk.ir.nodes import MathModel, Program
from rlk.lang.op import Op, Variant
from rlk.lower.common.emitted import Signature
from rlk.lower.cute import lower
from rlk.passes.pipeline import canonical, launched
from rlk.schedule import cute_tiles
from rlk.schedule.cute_table import Warpgroups, most_stages, parse, table, tabled
from rlk.schedule.cute_tiles import warpgroups
from rlk.schedule.entries import Entry, Facts, Range
from rlk.schedule.heuristics import apart, choose, facts_of
from rlk.schedule.schedule import Schedule
from rlk.specs.linear_logp import linear_logp
from rlk.specs.matmul import matmul, matmul_leaf8
from rlk.target.facts import target

H200 = target("sm_90a")
M, N = Axis("M", dynamic=True), Axis("N")
USE = "rows = 128, columns = 256, stages = 4, group = 8"
HEAD = {"V": 128256, "D": 4096}
SQUARE = {"N": 4096, "K": 4096}


def entry(when: str = "", use: str = USE) -> str:
    return f"[[entry]]\nwhen = {{ {when} }}\nuse = {{ {use} }}\nwhy = 'measured'\n"


def bound(spec: Op, extents: dict[str, int]) -> Program:
    plain = spec.default_variant()
    traced = spec.trace(Variant.of(dict(plain.dtypes), set(), dict(plain.statics)))
    placed = canonical(traced, apart=apart(canonical(traced), extents))
    static = {name: size for name, size in extents.items() if name != "T"}
    return launched(placed, static, MathModel.SM90, extents)


def chosen(spec: Op, rows: int, extents: dict[str, int]) -> Schedule:
    """Return the schedule of what contracts."""
    extents = {**extents, "T": rows}
    kernel = bound(spec, extents).kernels[0]
    return warpgroups(kernel, choose(kernel, H200, None, extents), H200, extents)


def test_an_entry_is_read_as_it_is_written() -> None:
    text = entry("plain = true, rows = { over = 1024 }, length = { unknown = true }", f"{USE}, cluster = 2")
    use = Warpgroups(128, 256, 4, 8, cluster=2)
    rows, length = Range(over=1024), Range(unknown=True)
    assert parse(text) == (Entry(use, "measured", plain=True, rows=rows, length=length),)
    plain = Schedule(flat=True, programs=3, parts=4)
    want = Schedule((("M", 128), ("N", 256)), stages=4, group=8, programs=132, cluster=2)
    assert use.schedule(plain, (M, N), {}, 132) == want
    held = use.schedule(plain, (M, N), {N: 512}, 132)
    assert held.tiles == (("M", 128),) and held.stages == 2, "what is held sets how many stages fit"


WRONG = {
    "a key of another table": (entry(use=f"{USE}, warps = 8"), "use='warps'"),
    "no stages": (entry(use="rows = 64, columns = 64, group = 1"), "use='stages': missing"),
    "a condition": (entry('op = "matmul"'), "when='op'"),
    "a type": (entry(use=USE.replace("= 8", "= true")), "use.group=True: of type int"),
    "rows of no warpgroup": (entry(use="rows = 256, columns = 64, stages = 2, group = 1"), "rows=256"),
    "columns": (entry(use="rows = 64, columns = 72, stages = 2, group = 1"), "columns=72: a power of two"),
    "few columns": (entry(use="rows = 64, columns = 16, stages = 2, group = 1"), "columns=16"),
    "few rows of many columns": (entry(use="rows = 16, columns = 256, stages = 2, group = 1"), "columns=256"),
    "fewer rows than columns": (entry(use="rows = 4, columns = 64, stages = 2, group = 1"), "rows=4"),
    "one stage": (entry(use="rows = 64, columns = 64, stages = 1, group = 1"), "stages=1: 2 to 13"),
    "stages beyond memory": (entry(use=USE.replace("4", "5")), "stages=5: 2 to 4, each of 48 KiB"),
    "a group of none": (entry(use=USE.replace("group = 8", "group = 0")), "group=0"),
    "blocks of a core": (entry(use=f"{USE}, per_core = 0"), "per_core=0"),
    "blocks without memory": (entry(use=f"{USE}, per_core = 2"), "stages=4: 2 to 2"),
    "a large cluster": (entry(use=f"{USE}, cluster = 4"), "cluster=4: 1 or 2"),
    "a cluster of few rows": (entry("rows = { over = 64 }", f"{USE}, cluster = 2"), "when.rows=64: over 128"),
    "a cluster of any rows": (entry("", f"{USE}, cluster = 2"), "when.rows=None: over 128"),
    "rows between classes": (entry("rows = { over = 1000 }"), "when.rows=1000: a class of rows"),
    "an unknown bound": (entry("length = { unknown = false }"), "when.length"),
    "a bound of what is unknown": (entry("length = { unknown = true, most = 3 }"), "when.length"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_an_entry_may_not_say_is_refused(name: str) -> None:
    text, said = WRONG[name]
    with pytest.raises(ScheduleError, match=re.escape(said)):
        parse(text)


def test_stages_fill_the_memory_of_a_core() -> None:
    assert {(r, n): most_stages(r, n) for r in (64, 128) for n in (64, 256)} == {
        (64, 64): 13, (64, 256): 5, (128, 64): 9, (128, 256): 4
    }  # fmt: skip


def test_an_entry_may_ask_for_a_length_that_is_not_known() -> None:
    listed = parse(entry("length = { unknown = true }"))
    assert tabled(Facts("sm_90a", "dot_map"), listed)
    assert tabled(Facts("sm_90a", "dot_map", length=4096), listed) is None


MEASURED = {"head": (linear_logp, HEAD), "product": (matmul, SQUARE)}


@pytest.mark.parametrize("name", MEASURED)
def test_the_shapes_that_were_measured_have_an_entry(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, extents = MEASURED[name]
    kernel = bound(spec, {**extents, "T": 8192}).kernels[0]
    facts = facts_of(kernel, H200, {**extents, "T": 8192})
    assert facts is not None and tabled(facts) == Warpgroups(128, 256, 4, 8, 2)
    monkeypatch.setattr(cute_tiles, "tabled", lambda facts: Warpgroups(64, 32, 3, 5))
    assert chosen(spec, 8192, extents).group == 5, "the control: the table decides"


@pytest.mark.parametrize(
    ("spec", "rows", "extents"),
    [
        (linear_logp, 300, HEAD),
        (matmul, 1, SQUARE),
        (matmul, 16, SQUARE),
        (matmul, 8192, {"N": 1024, "K": 4096}),
        (matmul_leaf8, 8192, SQUARE),
    ],
)
def test_other_shapes_get_what_fills_the_cores(spec: Op, rows: int, extents: dict[str, int]) -> None:
    kernel = bound(spec, {**extents, "T": rows}).kernels[0]
    facts = facts_of(kernel, H200, {**extents, "T": rows})
    assert facts is not None and tabled(facts) is None
    tiles = dict(chosen(spec, rows, extents).tiles)
    assert tiles.popitem()[1] in ({1: (8,), 16: (16,)}.get(rows, (64, 128, 256)))


def test_every_entry_says_why_and_can_be_reached() -> None:
    entries = table()
    for at, listed in enumerate(entries):
        assert re.search(r"\d x \d+ x \d+: \d", listed.why)
        assert listed not in entries[:at]


@pytest.mark.parametrize("use", [e.use for e in table()] + [Warpgroups(64, 32, 8, 1)])
@pytest.mark.parametrize("name", MEASURED)
def test_tilings_of_the_table_lower(name: str, use: Warpgroups) -> None:
    spec, extents = MEASURED[name]
    extents = {**extents, "T": 8192}
    program = bound(spec, extents)
    plain = [choose(k, H200, None, extents) for k in program.kernels]
    first = cute_tiles.scheduled(use, program.kernels[0], plain[0], H200, extents)
    decls = [d for k in program.kernels for d in k.params]
    strides = {f"{d.name}_{a.name.lower()}_stride" for d in decls for a in d.type.axes}
    divisible = frozenset(strides | {d.name for d in decls})
    static = tuple(sorted((n, e) for n, e in extents.items() if n != "T"))
    made = lower(program, (first, *plain[1:]), H200, Signature(static, False, divisible))
    assert made.backend == "cute" and f"{first.stages} stages" in made.source
