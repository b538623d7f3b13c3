"""Variants of the fused attention kernel beside each other and FlashAttention: bits, then time.

`python -m benchmarks.attention_variants --out FILE [--only d128] [--seconds 0.4]`. A variant is an edit of
the generated text, or a choice of the lowering's; all have the bits of the first one, or are not timed.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks import bench_attention
from benchmarks.peers import Absent
from rlk.lower import cute
from rlk.lower.common.emitted import Emitted
from rlk.lower.common.layout import on_one_line, statements, without_place
from rlk.lower.cute.attention import consumer
from rlk.lower.cute.attention.plan import AttentionPlan
from rlk.runtime.binding.invocation import geometry_of, target_of
from rlk.runtime.binding.selection import invoke
from rlk.runtime.call.dispatch import bind_lowered, dispatch, entry_key, lowered
from rlk.runtime.kernels.build import obtain_later
from rlk.schedule.schedule import Schedule
from rlk.specs.attention import varlen_attention

Edit = Callable[[str], str]
FA4 = "fa4"


@dataclass(frozen=True, slots=True)
class Variant:
    """An edit of the text, whether maxima lag as before, and the rows of a persistent block."""

    edit: Edit = lambda text: text
    compares: bool = False
    rows: int | None = None


def behind_softmax(text: str) -> str:
    """Issue S of the next step behind the softmax of this one: it needs no other registers."""
    issue = re.search(
        r" {4}if cutlass.const_expr\(more\):\n {8}k_ring.consumer_wait.*\n {8}multiply.*\n", text
    )
    assert issue is not None
    before = "    v_ring.consumer_wait(v_consumer_state)\n"
    assert text.count("\n" + before) == 1
    return text.replace(issue[0], "").replace("\n" + before, "\n" + issue[0] + before)


def rows_in_registers(text: str, share: float) -> str:
    """Keep a share of each row of Q in registers: the first products of S read K alone from shared memory."""
    found = re.search(r"make_smem_layout_a\(ROW_MAJOR, \((\d+), (\d+), (\d+)\)", text)
    assert found is not None
    rows, keys, width = (int(n) for n in found.groups())
    count = int(width // 16 * share)
    shared = "q_factor[None, None, None, 0]"
    old = f"multiply(mma_qk, qk_fragment, {shared}, "
    assert text.count(old) == 2
    text = text.replace(old, f"multiply_both(mma_qr, mma_qk, qk_fragment, q_registers_fragment, {shared}, ")
    helper = f"""def multiply_both(first, unit, to, early, a, b, onto, count):
    atoms = [cute.make_mma_atom(first.op), cute.make_mma_atom(unit.op)]
    atoms[0].set(warpgroup.Field.ACCUMULATE, onto)
    atoms[1].set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.fence()
    for i in range(count):
        factor = early if i < {count} else a
        cute.gemm(atoms[int(i >= {count})], to, factor[None, None, i], b[None, None, i], to)
        atoms[0].set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()


def negative_zero():"""
    text = text.replace("def negative_zero():", helper, 1)
    text = text.replace(
        "v_ring, q_factor, k_factor", "v_ring, q_registers_fragment, mma_qr, q_factor, k_factor"
    )
    unit = f"""    mma_qr = sm90.make_trivial_tiled_mma(
        BFloat16, BFloat16, k, k, Float32, groups, tiler_mn=(64, {keys}),
        a_source=warpgroup.OperandSource.RMEM
    )
    mma_pv = sm90.make_trivial"""
    text = text.replace("    mma_pv = sm90.make_trivial", unit, 1)
    for old, new in (
        ("return mma_qk, mma_pv", "return mma_qk, mma_qr, mma_pv"),
        ("mma_qk, mma_pv = varlen", "mma_qk, mma_qr, mma_pv = varlen"),
        ("mma_qk: cute.TiledMma, mma_pv", "mma_qk: cute.TiledMma, mma_qr: cute.TiledMma, mma_pv"),
        ("varlen_attention(mma_qk, mma_pv,", "varlen_attention(mma_qk, mma_qr, mma_pv,"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    made = f"""        q_shape = mma_qr.partition_shape_A(({rows}, {16 * count}))
        q_registers_fragment = cute.make_rmem_tensor(q_shape, BFloat16)
        q_registers = by_rows(q_registers_fragment, {2 * count})
        k_factor = mma_qk.make_fragment_B"""
    text = text.replace("        k_factor = mma_qk.make_fragment_B", made, 1)
    read = f"""            cute.arch.fence_view_async_shared()
            for r in cutlass.range_constexpr(2):
                for c in cutlass.range_constexpr(0, {4 * count}, 2):
                    place = (64 * (group - 1) + row % 64 + 8 * r, quad + 4 * c, 0)
                    at = cute.assume(cute.crd2idx(place, q_tiles.layout), divby=2)
                    pair = cute.make_rmem_tensor((2,), BFloat16)
                    cute.autovec_copy(cute.make_tensor(q_tiles.iterator + at, (2,)), pair)
                    q_registers[r, c], q_registers[r, c + 1] = pair[0], pair[1]
            k_ring.consumer_wait(k_consumer_state)
            multiply_both"""
    waits = "            k_ring.consumer_wait(k_consumer_state)\n            multiply_both"
    old = f"            cute.arch.fence_view_async_shared()\n{waits}"
    assert text.count(old) == 1
    return text.replace(old, read)


VARIANTS: dict[str, Variant] = {
    "compares": Variant(compares=True),
    "lags": Variant(),
    "lags, S late": Variant(behind_softmax),
    "lags, S late, half of Q": Variant(lambda text: rows_in_registers(behind_softmax(text), 0.5)),
    "lags, quarter of Q": Variant(lambda text: rows_in_registers(text, 0.25)),
    "lags, all of Q": Variant(lambda text: rows_in_registers(text, 1.0)),
    "lags, 128 rows": Variant(rows=128),
    "lags, 128 rows, Q": Variant(lambda text: rows_in_registers(text, 1.0), rows=128),
}
WIDE = ("compares", "lags")
CASES: dict[str, tuple[list[int], bench_attention.Heads, tuple[str, ...]]] = {
    "d128": ([4096] * 4, (32, 8, 128), tuple(VARIANTS)),
    "d128 long": ([16384], (32, 8, 128), tuple(VARIANTS)),
    "d64": ([4096] * 4, (24, 8, 64), tuple(VARIANTS)),
    "d96": ([4096] * 4, (32, 8, 96), (*WIDE, "lags, S late")),
    "d256": ([8191, 5000, 3000, 2000, 7000, 100], (16, 2, 256), (*WIDE, "lags, S late")),
}


@contextmanager
def as_(variant: Variant) -> Iterator[None]:
    """Lower by a variant from now on."""
    real = cute.lower

    def edited(*args: object, **options: object) -> Emitted:
        emitted: Emitted = real(*args, **options)  # type: ignore[arg-type]
        return replace(emitted, source=variant.edit(joined(emitted.source)))

    def persistent(plan: AttentionPlan) -> bool:
        return plan.ahead and plan.by_tma and plan.consumers > 1

    dispatch.forget()
    with mock.patch.object(cute, "lower", edited):
        if variant.compares:
            with mock.patch.object(consumer, "lagging_maximum", lambda *_: None):
                yield
        elif variant.rows is not None:
            with mock.patch.object(AttentionPlan, "dynamic_schedule", property(persistent)):
                yield
        else:
            yield
    dispatch.forget()


def joined(source: str) -> str:
    """Return a module's text with each statement on one line."""
    lines = source.split("\n")
    made, done = [], 0
    for first, last in statements(source):
        made += lines[done:first]
        done = last + 1
        code, _ = without_place(lines[first : last + 1])
        indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
        comments = [line for line in code if line.lstrip().startswith("#")]
        made += [*comments, indent + on_one_line(code)]
    return "\n".join([*made, *lines[done:]])


def runs(
    lengths: list[int], heads: bench_attention.Heads, names: tuple[str, ...]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each variant of a call, compiled; all compile at once."""
    x = bench_attention.packed(lengths, heads)
    tensors, scalars = arguments(x)
    invocation = invoke(varlen_attention, tensors, scalars, {"causal": True}, None)
    geometry, device = geometry_of(invocation, tensors), tensors["q"].device
    on = target_of(device)
    assert on is not None
    waiting, chosen = {}, {}
    for name in names:
        variant = VARIANTS[name]
        with as_(variant):
            given = (invocation, on.softmax, geometry, tensors, on)
            program, _, schedules, _ = lowered(*given, None, "cute")
            chosen[name] = tuple(scheduled(each, variant.rows) for each in schedules)
            emitted = lowered(*given, chosen[name], "cute")[3]
            key = entry_key(program, chosen[name], emitted, on)
            waiting[name] = obtain_later(key, partial(itself, emitted), label=emitted.file)
    for name in names:
        try:
            waiting[name].result()
            with as_(VARIANTS[name]):
                run = bind_lowered(
                    invocation, on.softmax, geometry, tensors, on, device, chosen[name], "cute"
                )
            yield name, partial(run, tensors, scalars)
        except Exception as error:  # a variant that the compiler refuses is a result
            print(f"  {name}: {type(error).__name__}: {str(error)[-300:]}", flush=True)
    try:
        yield FA4, bench_attention.fa4_cute(x)
    except Absent as error:
        print(f"  {FA4}: {error}", flush=True)


def itself(emitted: Emitted) -> Emitted:
    return emitted


def scheduled(schedule: Schedule, rows: int | None) -> Schedule:
    if rows is None:
        return schedule
    tiles = tuple((axis, rows if axis.startswith("Q") else n) for axis, n in schedule.tiles)
    return replace(schedule, tiles=tiles, stages=8)


def arguments(x: bench_attention.Packed) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the tensors and scalars of a call of the operator's spec."""
    bounds = {f"{edge}_{n}": t for n in "qk" for edge, t in (("begin", x.cu[:-1]), ("end", x.cu[1:]))}
    tensors = {"q": x.q.unflatten(1, (x.heads[1], -1)), "k": x.k, "v": x.v, **bounds}
    return tensors, {"scale": x.heads[-1] ** -0.5}


def timed(launch: Callable[[], object], seconds: float) -> float:
    """Return the median of milliseconds of launches, ten at a time, for so many seconds."""
    rounds: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds) < 3:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(10):
            launch()
        last.record()
        last.synchronize()
        rounds.append(first.elapsed_time(last) / 10)
    return statistics.median(rounds[len(rounds) // 3 :])


def differing(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> int:
    """Return how many halves of words of two results differ."""
    return sum(int((a[n].view(torch.int16) != b[n].view(torch.int16)).sum()) for n in a)


def main() -> None:
    """Print and write the times of every variant, in alternation."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--budget", type=float, default=170.0, help="seconds after which no case begins")
    given = parser.parse_args()
    begin, made = time.perf_counter(), {}
    for case, (lengths, heads, names) in CASES.items():
        if case.partition(" ")[0] not in (given.only or case) or time.perf_counter() - begin > given.budget:
            continue
        torch.manual_seed(0)
        wanted, every = None, {}
        for name, launch in runs(lengths, heads, names):
            if name != FA4:
                got = launch()
                torch.cuda.synchronize()
                wanted = got if wanted is None else wanted
                wrong = differing(wanted, got)
                if wrong:
                    print(f"  {case}, {name}: {wrong} differ", flush=True)
                    continue
            every[name] = launch
        times: dict[str, list[float]] = {name: [] for name in every}
        for _ in range(given.rounds):
            for name, launch in every.items():
                times[name].append(timed(launch, given.seconds))
        made[case] = times
        least = min(times.get(FA4, [0.0]))
        for name, ms in times.items():
            ratio = f" {min(ms) / least:.3f} of fa4" if least else ""
            print(f"{case:10} {name:26} {' '.join(f'{t:.4f}' for t in ms)}{ratio}", flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
