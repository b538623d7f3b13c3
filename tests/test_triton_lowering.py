"""Generated Triton kernels have the oracle's bits under any schedule; their text is stable and compiles."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np
import pytest

triton = pytest.importorskip("triton")

from rlk.errors import ScheduleError, UnsupportedError  # noqa: E402
from rlk.interp import floats  # noqa: E402
from rlk.interp.run import run  # noqa: E402
from rlk.ir.nodes import Load, Loop, MathModel, Program, Role  # noqa: E402
from rlk.lang import (  # noqa: E402
    Axis,
    L,
    Op,
    Ragged,
    Scalar,
    Tensor,
    Tree,
    bf16,
    boolean,
    f16,
    f32,
    i32,
    i64,
    op,
    u32,
)
from rlk.lower.common.emitted import Emitted, From, Signature  # noqa: E402
from rlk.lower.common.hoist_loads import hoist_loads, load_levels  # noqa: E402
from rlk.lower.triton import TritonOptions, lower, module  # noqa: E402
from rlk.passes.pipeline import canonical, launched, specialize  # noqa: E402
from rlk.passes.walk import walk  # noqa: E402
from rlk.schedule.heuristics import choose, variety  # noqa: E402
from rlk.schedule.schedule import Schedule, Span  # noqa: E402
from rlk.target.facts import target  # noqa: E402
from rlk.testing.bits import assert_same_bits, differing  # noqa: E402
from rlk.testing.generated import extents_of, run_generated  # noqa: E402
from rlk.testing.simulators.interpreter import interpret  # noqa: E402

SM90 = MathModel.SM90
T = Axis("T", dynamic=True)
R = Axis("R", chunk=1, piece=4, dynamic=True)
C = Axis("C", chunk=16, piece=64, dynamic=True)
F = Axis("F", chunk=4, piece=8, fan_in=16, dynamic=True)
V = Axis("V", chunk=16, split=4)
N = Axis("N")
B = Axis("B", dynamic=True)
Q = Ragged("Q", over=B, chunk=8)


@op()
def scores(z: Tensor[bf16, T, V], y: Tensor[i64, T], scale: Scalar[f32]):
    """Every kind of fold over a split axis, and a gather."""
    soft, total, best = L.softmax_sum(), L.total(), L.argmax()
    for v in L.stream(V):
        x = z[v].to(f32) * scale
        soft.absorb(x, mean=x)
        total.absorb(x)
        best.absorb(x)
    at = z.at(T, y, fill=-1.0).to(f32)
    L.check(y < 0, "a negative index")
    return L.out(lse=soft.lse(), mean=soft.mean("mean"), total=total.value, best=best.index, at=at)


@op()
def norms(x: Tensor[f16, T, N], w: Tensor[f32, N], eps: Scalar[f32]):
    """Trees of several orders over a whole axis."""
    h = x.to(f32)
    mean = L.sum(h * h, over=N, tree=Tree.halving) / L.extent(N).to(f32)
    scale = L.rsqrt(mean + eps)
    y = (h * scale * w).to(f16)
    pairs = L.sum(h, over=N, tree=Tree.pairwise)
    top, low, some = L.max(h, over=N), L.min(h, over=N), L.any(h > 2.0, over=N)
    return L.out(y=y, scale=scale, pairs=pairs, top=top, low=low, found=some)


@op()
def walks(x: Tensor[bf16, R, N], d: Tensor[bf16, R, N]):
    """Rows one after the other, written as they go, and a sum over them in pieces."""
    columns = L.total()
    for r in L.stream(R):
        g = d[r].to(f32) * x[r].to(f32)
        row = L.sum(g, over=N, tree=Tree.pairwise)
        L.emit(dx=(g * row).to(bf16))
        columns.absorb(g)
    return L.out(dw=columns.value)


@op()
def masked_mean(x: Tensor[f32, C], active: Tensor[boolean, C]):
    s, n = L.total(), L.total()
    for c in L.stream(C):
        s.absorb(L.where(active[c], x[c], -0.0))
        n.absorb(L.where(active[c], 1.0, 0.0))
    return L.out(mean=s.value / L.maximum(n.value, 1.0))


@op()
def fanned_sum(x: Tensor[f32, F, N], active: Tensor[boolean, F]):
    """A sum of rows, and how many there are, whose pieces are added several at a time."""
    s, n = L.total(), L.total()
    for f in L.stream(F):
        s.absorb(L.where(active[f], x[f], -0.0))
        n.absorb(active[f].to(i32))
    return L.out(s=s.value, n=n.value)


@op()
def segments(x: Tensor[f32, Q, N], start: Tensor[i32, B], stop: Tensor[i32, B]):
    s = L.total()
    for q in L.stream(Q, begin=start, end=stop):
        s.absorb(x[q])
    return L.out(s=s.value)


@op()
def maps(x: Tensor[f32, T], y: Tensor[f32, T, N], k: Tensor[i64, T]):
    """Every elementwise function."""
    z = L.exp(x) + L.log(L.where(x < 0.0, 0.5, x)) + L.tanh(x) + L.sigmoid(x) + L.expm1(x) + L.log1p(abs(x))
    z = z + L.sin(x) * L.cos(x) + L.k3(x) + L.rsqrt(abs(x)) + L.log2(abs(x)) + L.exp2(x) + L.sqrt(abs(x))
    u = k.to(u32)
    return L.out(
        z=z + L.floor(x),
        q=-y / x,
        f=L.fma(x, y, -0.0),
        small=L.where(y > 0.0, 1e-42, -3.4028234663852886e38),
        i=(k % 7) * 3 + (k // 5),
        h=L.mulhi(u, x.bits(u32)),
        s=(x.bits(i32) >> 3) ^ (x.bits(i32) << 2),
        n=(L.isnan(y) | (y == 0.0)) & ~(x < y),
        u=(u >> 3) + u * 0x9E3779B9,
        e=L.softmax_exp2(x),
        top=L.maximum(x, 0.0),
        low=L.minimum(-0.0, x),
    )


def normal(*shape: int) -> Any:
    return (np.random.default_rng(sum(shape)).standard_normal(shape) * 3).astype(np.float32)


def _scores(t: int, v: int) -> dict[str, Any]:
    z = normal(t, v)
    z[0, : v // 2] = -np.inf
    z[-1] = -np.inf
    y = np.random.default_rng(v).integers(0, v, t)
    y[0] = v + 3
    return {"z": floats.bf16_bits(z), "y": y, "scale": 0.7}


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 3e38, 1e-30], np.float32)
EDGES = np.concatenate([normal(40), SPECIAL])
CASES: dict[str, tuple[Op, dict[str, Any]]] = {
    **{f"scores {t} x {v}": (scores, _scores(t, v)) for t, v in ((5, 200), (2, 128), (3, 3), (1, 1))},
    **{
        f"norms {t} x {n}": (norms, {"x": normal(t, n).astype(np.float16), "w": normal(n), "eps": 1e-6})
        for t, n in ((5, 100), (7, 64), (1, 1))
    },
    **{
        f"walks {r} x {n}": (
            walks,
            {k: floats.bf16_bits(normal(s, r, n)[0]) for s, k in ((1, "x"), (2, "d"))},
        )
        for r, n in ((7, 100), (8, 5), (1, 1))
    },
    **{
        f"masked_mean {n}": (masked_mean, {"x": normal(n), "active": normal(n) < 1}) for n in (1, 63, 64, 200)
    },
    **{
        f"fanned_sum {f} x {n}": (fanned_sum, {"x": normal(f, n), "active": normal(f) < 1})
        for f, n in ((1, 1), (128, 3), (301, 1), (129, 8))
    },
    "segments": (
        segments,
        {"x": normal(100, 5), "start": np.int32([3, 50, 90]), "stop": np.int32([3, 71, 100])},
    ),
    "maps": (maps, {"x": EDGES, "y": normal(len(EDGES), 3), "k": np.arange(len(EDGES)) * 2**33 + 5}),
}


@cache
def program(spec: Op) -> Program:
    return canonical(spec.trace(spec.default_variant()))


def schedules(c: Program, inputs: Mapping[str, Any]) -> Iterator[list[Schedule]]:
    """Yield several schedules for every kernel of a program."""
    extents = extents_of(c, inputs)
    dynamic = {a.name for k in c.kernels for d in k.params for a in d.type.axes if a.dynamic}
    bound = specialize(c, {n: e for n, e in extents.items() if n not in dynamic}, SM90)
    found = [variety(k, target("sm_90a"), extents) for k in bound.kernels]
    for i in range(max(map(len, found))):
        yield [options[i % len(options)] for options in found]


def emitted(spec: Op, extents: Mapping[str, int], on: str = "sm_90a", **more: Any) -> Emitted:
    device = target(on)
    bound = specialize(program(spec), extents, device.softmax)
    signature = Signature(tuple(sorted(extents.items())))
    chosen = [choose(k, device, signature, extents) for k in bound.kernels]
    return lower(bound, chosen, device, signature, **more)


@pytest.mark.parametrize("case", CASES)
def test_every_schedule_has_the_bits_of_the_oracle(case: str) -> None:
    spec, inputs = CASES[case]
    c = program(spec)
    want = run(c, inputs, softmax=SM90)
    kinds = {d.name: str(d.type.dtype) for k in c.kernels for d in k.params if d.type.dtype.is_float}
    tried = 0
    for chosen in schedules(c, inputs):
        got = run_generated(c, inputs, schedules=chosen)
        for name in want.tensors:
            assert_same_bits(got.tensors[name], want[name], f"{case} {name} {chosen[0]}", kinds.get(name))
        assert bool(got.errors[0]) == bool(want.errors)
        tried += 1
    assert tried >= 6


def test_the_portable_model_is_another_function() -> None:
    device = target("gfx942")
    for case in ("scores 5 x 200", "maps"):
        spec, inputs = CASES[case]
        want = run(program(spec), inputs, softmax=device.softmax)
        got = run_generated(program(spec), inputs, on=device)
        for name in want.tensors:
            assert_same_bits(got.tensors[name], want[name], name)
    hardware = run(program(spec), inputs, softmax=SM90)
    assert differing(hardware["e"], want["e"]) > 0


def test_rows_in_two_dims_have_the_same_bits() -> None:
    """A slice such as logits[:, :-1] cannot be flattened: its rows come with two strides."""
    spec, inputs = CASES["scores 5 x 200"]
    whole = np.random.default_rng(3).integers(0, 60000, (2, 4, 200)).astype(np.uint16) & 0xBFFF
    rows = np.ascontiguousarray(whole[:, :3].reshape(6, 200))
    given = {**inputs, "z": rows, "y": np.arange(6)}
    want = run(program(spec), given, softmax=SM90)
    got = run_generated(program(spec), given, split_rows=3)
    kinds = {a.kind for a in got.emitted.call}
    assert {From.OUTER_STRIDE, From.INNER_STRIDE, From.INNER_EXTENT} <= kinds
    assert_same_bits(got.tensors["lse"], want["lse"])


def test_a_sum_in_one_go_fails_the_comparison() -> None:
    """The negative control: the same kernel with tl.sum over a whole axis in the place of its trees."""
    spec, inputs = CASES["norms 5 x 100"]
    want = run(program(spec), inputs)
    got = run_generated(program(spec), inputs, schedules=[Schedule(warps=1)])
    assert_same_bits(got.tensors["scale"], want["scale"])
    text = got.emitted.source
    tree = re.search(r"def sum_over_n\(x\):\n(.*\n)+?    return x\n", text)
    assert tree is not None
    broken = text.replace(tree.group(0), "def sum_over_n(x):\n    return tl.sum(x, 0)\n")
    kernel = interpret(broken).norms
    out = {n: np.zeros_like(want[n]) for n in ("y", "scale", "pairs", "top", "low", "found")}
    names = {"T": 5, "x_t_stride": 100, "y_t_stride": 100, **{f"{n}_ptr": v for n, v in out.items()}}
    names |= {"x_ptr": inputs["x"], "w_ptr": inputs["w"], "eps": inputs["eps"]}
    kernel[(5,)](**{n: names[n] for n in kernel.arg_names})
    assert differing(out["scale"], want["scale"]) > 0
    assert differing(out["top"], want["top"]) == 0


def test_checks_report_a_code_and_a_row() -> None:
    spec, inputs = CASES["scores 5 x 200"]
    bad = {**inputs, "y": np.array([0, 1, -7, 3, -1])}
    for schedule in (Schedule(), Schedule(tiles=(("T", 4),))):
        got = run_generated(program(spec), bad, schedules=[schedule])
        assert got.errors == (1, 5) and got.emitted.checks == ("a negative index",)


def test_no_float_sum_has_more_than_two_terms() -> None:
    for spec, extents in ((scores, {"V": 5000}), (norms, {"N": 3000}), (walks, {"N": 700})):
        seen = 0
        for line in emitted(spec, extents).source.splitlines():
            found = re.search(r"tl\.(sum|reduce)\(.*, (\d+)(?:, \w+)?\)$", line.partition("  #")[0].strip())
            if found:
                seen += 1
                shape = re.search(r"tl\.reshape\(\w+, \(([\d, ]+)\)\)", line)
                assert shape is not None, line
                assert shape.group(1).strip(",").split(", ")[int(found.group(2))] == "2", line
        assert seen, spec


def test_text_is_the_same_in_another_process() -> None:
    mine = emitted(scores, {"V": 5000}, options=TritonOptions((3, 6))).source
    code = (
        "from importlib.util import spec_from_file_location as f, module_from_spec as m\n"
        f"s = f('t', {__file__!r}); t = m(s); s.loader.exec_module(t)\n"
        "print(t.emitted(t.scores, {'V': 5000}, options=t.TritonOptions((3, 6))).source, end='')"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    )
    assert other.stdout == mine


def test_a_module_says_what_it_is() -> None:
    text = emitted(scores, {"V": 5000}, numerics_id="abc123").source
    assert "numerics: abc123" in text and "on sm_90a" in text and "schedule: " in text
    assert re.search(r"  # test_triton_lowering\.py:\d+\n(?: +\w+ = .*\n)* +p = tl\.exp2\(\w+\)\n", text)
    assert not re.search(r"-0\.0(?!\d)", re.sub(r"#.*", "", text))  # Triton reads it as +0.0


def test_steps_that_are_full_compute_no_mask() -> None:
    """A loop whose factors hardware copies is one loop: its body asks whether the step is full."""
    from attention_cases import batch, packed  # not above: another process reads this file alone
    from attention_cases import of as attention

    static = {"H": 1, "G": 2, "E": 64, "W": 64}
    known = {**static, "B": 2, **dict.fromkeys("TSQXJZ", 256), "R": 512}
    divisible = frozenset(
        {
            *"qkv",
            *(f"{n}_{a}_stride" for n, axes in zip("qkv", ("thg", "sh", "sh"), strict=True) for a in axes),
        }
    )
    device, signature = target("sm_90a"), Signature(tuple(sorted(static.items())), divisible=divisible)
    attended = attention(packed(batch((9, 3), (70, 3), e=64, w=64)))
    bound = launched(attended, static, device.softmax, known)
    chosen = [replace(choose(k, device, signature, known), descriptors=True) for k in bound.kernels]
    asked = re.findall(r"if s_step (.+?):", lower(bound, chosen, device, signature).source)
    assert asked == [">= first_full_steps"]


def test_without_triton_the_version_is_one_that_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert module.installed.__wrapped__() == (3, 6)


def test_placement_must_name_each_bit_once() -> None:
    bound = specialize(program(scores), {"V": 5000}, SM90)
    signature = Signature((("V", 5000),))
    for spans in (
        (Span("V.lane", 0, 2),),
        (Span("V.lane", 0, 3), Span("V.lane", 2, 2)),
        (Span("V.lane", 0, 9),),
    ):
        with pytest.raises(ScheduleError, match="placed"):
            lower(bound, [Schedule(placed=spans)], target("sm_90a"), signature)
    with pytest.raises(ScheduleError, match="tiles"):
        lower(bound, [Schedule(tiles=(("T", 1 << 14),))], target("sm_90a"), signature)


def test_hardware_functions_belong_to_their_target() -> None:
    bound = specialize(program(scores), {"V": 5000}, SM90)
    with pytest.raises(UnsupportedError, match="exp2 as sm90"):
        lower(bound, [Schedule()], target("gfx942"), Signature((("V", 5000),)))


@pytest.mark.parametrize("on", ["sm_90a", "gfx942"])
@pytest.mark.parametrize(
    "name", ["scores", "norms", "walks", "masked_mean", "fanned_sum", "segments", "maps"]
)
def test_kernels_compile_without_a_device(name: str, on: str, tmp_path: Any) -> None:
    toolchain = importlib.import_module("rlk.backends.triton")
    spec: Op = globals()[name]
    toolchain.compile_triton(emitted(spec, {"V": 5000, "N": 700}, on), on, tmp_path)
    built = {p.suffix for p in tmp_path.iterdir()}
    assert {".cubin", ".ptx"} <= built if on == "sm_90a" else {".hsaco", ".amdgcn"} <= built


def test_the_chunk_of_a_wide_vocabulary_stays_inside_a_warp(tmp_path: Any) -> None:
    """Loads of 16 bytes, and no barrier but those of the merge over pieces, once a row."""
    from rlk.specs.logp import logp

    toolchain = importlib.import_module("rlk.backends.triton")
    bound = specialize(canonical(logp.trace(logp.default_variant())), {"V": 128256}, SM90)
    signature = Signature((("V", 128256),), False, frozenset({"logits", "logits_t_stride"}))
    chosen = [choose(k, target("sm_90a"), signature, {"V": 128256}) for k in bound.kernels]
    toolchain.compile_triton(lower(bound, chosen, target("sm_90a"), signature), "sm_90a", tmp_path)
    ptx = (tmp_path / "logp.ptx").read_text()
    loops = [m.end() for m in re.finditer(r"bra(\.uni)?\s+\$L__BB\d+_\d+;", ptx)]
    assert ptx.count("ld.global.v4.b32") >= 4
    assert ptx.count("bar.sync") <= 2 and loops
    assert "ex2.approx.ftz.f32" in ptx
    fused = re.findall(r"fma\.rn\.f32", ptx)
    assert len(fused) <= 12  # those of the portable log alone


def test_loads_at_loaded_indices_are_issued_in_levels() -> None:
    from rlk.runtime.registry import operators

    def levels(name: str) -> list[list[tuple[Any, ...]]]:
        op = operators()[name]
        kernels = canonical(op.trace_for_kernels(op.default_variant())).kernels
        found = []
        for kernel in (hoist_loads(k, lambda type: not type.axes) for k in kernels):
            inputs = frozenset(d.name for d in kernel.params if d.role is Role.IN)
            loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
            found += [load_levels(loop.body.lets, inputs) for loop in loops]
        return found

    order, tokens, rest = levels("nll_loss")[0]
    assert [let.node.param for let in order if isinstance(let.node, Load)] == ["order"]
    assert sum(isinstance(let.node, Load) for let in tokens) >= 2
    assert not any(isinstance(let.node, Load) for let in rest)
    assert [len(each) for each in levels("logp")] == [1]  # one load at a loaded index needs no level
    op = operators()["nll_loss"]
    bound = specialize(canonical(op.trace(op.default_variant())), {}, SM90)
    signature = Signature((), False, frozenset())
    for apart, barriers in ((False, 0), (True, 4)):  # of whole steps, and of the last one
        chosen = [replace(choose(k, target("sm_90a"), signature, {}), levels=apart) for k in bound.kernels]
        made = lower(bound, chosen, target("sm_90a"), signature)
        assert made.source.count("tl.debug_barrier()") == barriers
        # neighbours in lanes, not in vectors
        assert made.source.count("tl.max_contiguous(tl.arange(0, 1024), 1)") == barriers // 4
