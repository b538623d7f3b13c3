"""Results of an earlier process or call: the same launches, neither traced nor lowered."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import serving_cases
import torch
from hypothesis import given
from hypothesis import strategies as st
from serving_cases import BF16, MODEL, numbers, samplers, step

from rlk import ops
from rlk.backends import triton
from rlk.cache import Store
from rlk.cache.gc import is_of_calls
from rlk.cache.known import Known
from rlk.cli.cache import _list as listed
from rlk.ir.text import parse_program, print_program
from rlk.lang import Axis, L, Op, Outputs, Tensor, f32, op
from rlk.lang.reads import Unset
from rlk.lang.variants import cotangents, differentiable, gradient_variant
from rlk.lower import triton as triton_lowering
from rlk.lower.common.emitted import Emitted
from rlk.lower.common.memory import placed as places
from rlk.lower.common.memory import workspaces
from rlk.nn import serving
from rlk.ops import policy
from rlk.ops.attention import paged_attention_into
from rlk.ops.layout import Layout
from rlk.ops.losses import Loss, surrogate
from rlk.passes.pipeline import launched
from rlk.runtime import prefetch
from rlk.runtime.binding import invocation
from rlk.runtime.binding import shape_buckets as sizes
from rlk.runtime.binding.invocation import Interface, Invocation, geometry_of, interface
from rlk.runtime.binding.shape_buckets import STEPS, class_of, sizes_of
from rlk.runtime.call import autograd, dispatch
from rlk.runtime.call.entry import call
from rlk.runtime.kernels import build, trace_cache
from rlk.runtime.launch.record import MODULE, ModuleRecord
from rlk.runtime.reference import placed, reference_extents, reference_gradient, reference_variant
from rlk.runtime.registry import operators
from rlk.specs.policy import policy_spec
from rlk.specs.surrogates import Term, Token
from rlk.target.facts import target

H200 = target("sm_90a")
CPU = torch.device("cpu")


@dataclass
class Machine:
    """A device that is not there: what would be launched on it, and what was done for that."""

    done: dict[str, int] = field(default_factory=dict)
    launches: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    def counting(self, what: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.done[what] = self.done.get(what, 0) + 1
            return real(*args, **options)

        return counted

    def compile(self, emitted: Emitted, on: str, folder: Path) -> None:
        (folder / MODULE).write_text(emitted.source)
        ModuleRecord((), emitted.call, emitted.checks, emitted.backend).write(folder)

    def load(self, folder: Path, kind: str, device: int) -> tuple[Callable[..., None], ModuleRecord]:
        text = (folder / MODULE).read_text()

        def host(*args: Any) -> None:
            # tensors that a call makes stand for themselves by what they are
            plain = [(x.shape, x.stride(), x.dtype) if isinstance(x, torch.Tensor) else x for x in args]
            self.launches.append((text, tuple(plain)))

        return host, ModuleRecord.read(folder)

    def restart(self) -> None:
        """Forget what a process knows, and what this one has done."""
        dispatch.dispatch.forget()
        invocation.interfaces.clear()
        invocation.traced.cache_clear()
        invocation.judged.cache_clear()
        autograd._backward.cache_clear()
        self.done.clear()
        self.launches.clear()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Let tensors of the host lie on a Hopper whose kernels do nothing."""
    made, store = Machine(), Store(tmp_path / "store")
    for module in (dispatch, invocation):
        monkeypatch.setattr(module, "target_of", lambda device: H200)
    monkeypatch.setattr(dispatch, "_asked", lambda on, tensors: ("triton",))
    monkeypatch.setattr(dispatch, "index_of", lambda device: 0)
    monkeypatch.setattr(dispatch, "load", made.load)
    monkeypatch.setattr(triton, "triton_version", lambda: "3.6.0")
    monkeypatch.setattr(build, "store", lambda: store)
    monkeypatch.setattr(trace_cache, "own_text", lambda: "text")
    compiled = made.counting("compiled", made.compile)
    workers = SimpleNamespace(compile=compiled, submit=lambda work: work())
    monkeypatch.setattr(build, "pool", lambda: workers)
    monkeypatch.setattr(triton_lowering, "lower", made.counting("lowered", triton_lowering.lower))
    monkeypatch.setattr(invocation, "canonical", made.counting("traced", invocation.canonical))
    monkeypatch.setattr(invocation, "numerics_id", made.counting("judged", invocation.numerics_id))
    made.restart()
    yield made
    made.restart()


def tensors_of(rows: int, columns: int = 512) -> dict[str, torch.Tensor]:
    x = torch.zeros(rows, columns, dtype=torch.bfloat16)
    return {"gate": x, "up": x}


def swiglu(rows: int, columns: int = 512) -> torch.Tensor:
    made: torch.Tensor = call(operators()["swiglu"], tensors_of(rows, columns), {}, {})["y"]
    return made


def everything() -> None:
    """Call operators of every kind, with their gradients."""
    h, w = torch.zeros(40, 64, requires_grad=True), torch.zeros(300, 64, requires_grad=True)
    ids, one = torch.zeros(40, dtype=torch.int64), torch.ones(40)
    torch.autograd.grad(ops.linear_logp(h.bfloat16(), w.bfloat16(), ids).logp, [h, w], one)
    x, gain = torch.zeros(40, 512, requires_grad=True), torch.zeros(512, requires_grad=True)
    torch.autograd.grad(ops.rms_norm(x, gain), [x, gain], torch.zeros(40, 512))
    lp = torch.zeros(40, requires_grad=True)
    layout = Layout.packed(torch.tensor([0, 10, 40], dtype=torch.int32), tokens=40)
    torch.autograd.grad(ops.policy_loss(lp, one, torch.ones(2), layout=layout, loss="ppo").loss, [lp])
    q = torch.zeros(40, 4, 64, dtype=torch.bfloat16)
    k = torch.zeros(40, 2, 64, dtype=torch.bfloat16)
    edges = torch.tensor([0, 10, 40], dtype=torch.int32)
    ops.varlen_attention(q, k, k, edges, edges)


# --- an earlier process ---


def test_a_later_process_launches_the_same_and_neither_traces_nor_lowers(machine: Machine) -> None:
    everything()
    first, done = list(machine.launches), dict(machine.done)
    assert min(done["traced"], done["lowered"], done["compiled"]) >= 7
    machine.restart()
    everything()
    assert machine.launches == first
    assert not machine.done


def test_another_text_of_rlk_or_other_tools_find_it_out_anew(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what is kept is kept under what decided it."""
    swiglu(48)
    for name, value in (
        ("own_text", lambda: "other"),
        ("_tools", lambda: (("triton", "3.7"),)),
    ):
        machine.restart()
        swiglu(48)
        assert not machine.done
        monkeypatch.setattr(trace_cache, name, value)
        machine.restart()
        swiglu(48)
        assert machine.done["traced"] == 1 and machine.done["lowered"] == 1, name


def test_a_kernel_that_was_evicted_is_compiled_again(machine: Machine) -> None:
    swiglu(48)
    (kernel,) = (e for e in build.store().entries() if not is_of_calls(e))
    assert len(build.store().entries()) == 5
    machine.restart()
    for path in sorted(kernel.path.rglob("*"), reverse=True):
        path.unlink()
    kernel.path.rmdir()
    swiglu(48)
    assert machine.done["compiled"] == 1 and machine.launches


def kept() -> list[Path]:
    """Return the files of what is kept beside kernels."""
    return [e.path / trace_cache.FILE for e in build.store().entries() if is_of_calls(e)]


def test_a_damaged_record_is_set_aside_and_made_anew(machine: Machine) -> None:
    swiglu(48)
    first = list(machine.launches)
    for file in kept():
        file.write_bytes(file.read_bytes()[:-1] + b" ")
    for traced in (1, 0):
        machine.restart()
        build.store()._known = Known()  # another process trusts nothing
        swiglu(48)
        assert machine.launches == first and machine.done.get("traced", 0) == traced


@pytest.mark.parametrize("text", ["{", "[]", "{}", "null", '{"program": "program x", "call": 1}'])
def test_a_record_that_cannot_be_read_is_as_none(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    """Whole, by its digests, and still no record."""
    keys, real = [], trace_cache._key
    monkeypatch.setattr(trace_cache, "_key", lambda *args: keys.append(real(*args)) or keys[-1])
    swiglu(48)
    first, store = list(machine.launches), Store(tmp_path / "other")
    for key in keys:
        assert key is not None and store.offer(
            key, lambda folder: (folder / trace_cache.FILE).write_text(text)
        )
    monkeypatch.setattr(build, "store", lambda: store)
    machine.restart()
    swiglu(48)
    assert machine.launches == first and machine.done["lowered"] == 1


def test_a_record_whose_kernel_never_came_is_not_believed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compile the source that this process lowered, under its own key."""
    swiglu(48)
    first = list(machine.launches)
    real = trace_cache.known_code
    wrong = lambda *args: replace(real(*args), ir="of another text")  # noqa: E731
    monkeypatch.setattr(dispatch, "known_code", wrong)
    machine.restart()
    swiglu(48)
    assert machine.launches == first and machine.done["lowered"] == 1 and "compiled" not in machine.done


def test_what_was_found_with_text_that_changed_meanwhile_is_not_kept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_cache, "_changed", lambda: True)
    swiglu(48)
    assert machine.launches and not kept()


# --- operators of others ---


def outside(factor: float) -> Op:
    """Return an operator as another process has it, whose spec and gradient read a number beside them."""

    @op(saves=("x",))
    def scaled_square(x: Tensor[f32, T, N]) -> Outputs:
        x = x.to(f32)
        return L.out(y=x * x * factor)

    @scaled_square.vjp("x")
    def scaled_square_grad(ctx: Any, d_y: Tensor[f32, T, N]) -> Outputs:
        return L.out(d_x=ctx.x.to(f32) * d_y * (2.0 * factor))

    return scaled_square


def differentiate(op: Op, rows: int = 40) -> None:
    x = torch.zeros(rows, 64, requires_grad=True)
    torch.autograd.grad(op(x), [x], torch.zeros(rows, 64))


def test_a_later_process_traces_no_operator_of_others(machine: Machine) -> None:
    differentiate(outside(2.0))
    first = list(machine.launches)
    assert machine.done["traced"] == machine.done["lowered"] == 2
    machine.restart()
    differentiate(outside(2.0))
    assert machine.launches == first and not machine.done
    machine.restart()
    differentiate(outside(3.0))
    assert machine.done["traced"] == machine.done["lowered"] == 2
    changed = [text for text, _ in machine.launches]
    assert len(changed) == 2 and not {text for text, _ in first} & set(changed)


def test_nothing_is_kept_of_a_trace_that_is_older_than_what_it_read(machine: Machine) -> None:
    """A process with the old program must not keep it for one that starts with what is there now."""
    spec = outside(2.0)
    differentiate(spec)
    before = len(kept())
    (cell,) = spec.fn.__closure__ or ()
    cell.cell_contents = 3.0
    differentiate(spec, 400)  # another bucket, whose text is lowered from the program of before
    assert len(kept()) == before and machine.done["lowered"] == 4
    machine.restart()
    differentiate(outside(3.0), 400)
    assert machine.done["traced"] == 2


def written_by(fn: object) -> Op:
    """Return swiglu as if this function were its spec."""
    made = copy(operators()["swiglu"])
    made.fn = fn  # type: ignore[assignment]
    made._reads = Unset.UNSET
    return made


@pytest.mark.parametrize("file", ["<stdin>", "x.py", str(Path(__file__))])
def test_a_function_of_no_file_of_rlk_is_not_one_of_rlks(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the working folder is the package's."""
    own = operators()["swiglu"]
    found = Invocation(own, own.default_variant())
    name = trace_cache.name_of(found)
    assert name is not None
    monkeypatch.chdir(trace_cache.PACKAGE)
    strange = SimpleNamespace(__code__=SimpleNamespace(co_filename=file))
    assert trace_cache.name_of(replace(found, spec=written_by(strange))) is None
    moved = FunctionType(own.fn.__code__.replace(co_filename=file), own.fn.__globals__)
    assert trace_cache.name_of(replace(found, spec=written_by(moved))) not in (None, name)


def test_nothing_is_kept_by_a_process_whose_text_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.py").write_text("x = 1")
    (tmp_path / "__pycache__").mkdir()
    for name in ("PACKAGE", "templates"):
        monkeypatch.setattr(trace_cache, name, tmp_path if name == "PACKAGE" else lambda: tmp_path)
    (tmp_path / "__pycache__" / "one.cpython-311.pyc.123").write_text("of another process")
    monkeypatch.setattr(trace_cache, "STARTED", (tmp_path / "one.py").stat().st_ctime + 1e-3)
    assert trace_cache.own_text.__wrapped__() is not None
    assert not trace_cache._changed()
    time.sleep(0.01)
    (tmp_path / "one.py").write_text("x = 2")
    assert trace_cache.own_text.__wrapped__() is None and trace_cache._changed()


def test_what_was_prepared_starts_so(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "target_of", lambda device: H200)
    monkeypatch.setattr(prefetch, "model_of", lambda invocation, device: H200.softmax)
    monkeypatch.setattr(prefetch, "asked_for", lambda on: ("triton",))
    prefetch.prefetch(ops.swiglu, *tensors_of(48).values())
    assert machine.done == {"traced": 1, "judged": 1, "lowered": 1, "compiled": 1}
    machine.restart()
    swiglu(48)
    assert machine.launches and not machine.done


def attention(tokens: int, sequences: int) -> None:
    q, o = (torch.zeros(tokens, 4, 64, dtype=torch.bfloat16) for _ in range(2))
    cache = torch.zeros(64, 16, 2, 64, dtype=torch.bfloat16)
    table = torch.zeros(sequences, 64, dtype=torch.int32)
    edges = torch.linspace(0, tokens, sequences + 1).to(torch.int32)
    paged_attention_into(o, q, cache, cache, table, torch.ones(sequences, dtype=torch.int32), edges)


def test_sizes_of_the_same_choices_are_neither_traced_nor_lowered(machine: Machine) -> None:
    attention(48, 48)
    assert machine.done["lowered"] == 1
    machine.done.clear()
    for size in (32, 64, 96):  # of other classes, all with pieces in parallel
        attention(size, size)
    assert not machine.done and len({text for text, _ in machine.launches}) == 1
    machine.restart()
    attention(80, 80)  # in a later process
    assert not machine.done
    attention(2048, 1)  # the control: another choice
    assert machine.done["lowered"] == 1


def test_after_a_start_no_size_of_a_step_is_traced_lowered_or_compiled(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prepare a small model's steps, then launch steps of random sizes in a later process."""
    for module in (prefetch, serving):
        monkeypatch.setattr(module, "asked_for", lambda on: ("triton",))
    pool = SimpleNamespace(compiled=0)
    monkeypatch.setattr(serving, "pool", lambda: pool)
    def submit(work: Callable[[], Path]) -> Future[Path]:
        made: Future[Path] = Future()
        made.set_result(work())
        return made

    monkeypatch.setattr(build.pool(), "submit", submit)
    with samplers((True, False, False, False)):
        made = serving.prepare(MODEL, BF16, serving_cases.STEPS, 1, H200)
    assert made.entries and not made.failed and machine.done["lowered"] > 20
    machine.restart()
    again = serving.prepare(MODEL, BF16, serving_cases.STEPS, 1, H200)
    assert again == made and not machine.done, "a second start looks up one entry"
    with torch.no_grad():
        for tokens, sequences in numbers(60):
            step(tokens, sequences, 4097 - tokens % 2)
    assert len(machine.launches) > 500 and not machine.done
    # the control: a size that no step has
    monkeypatch.setattr(serving_cases, "STEPS", replace(serving_cases.STEPS, tokens=4096))
    step(4096, 1)
    assert machine.done["lowered"]


def test_the_store_is_listed_by_its_kernels(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    swiglu(48)
    listed(build.store())
    said = capsys.readouterr().out
    assert "5 entries (4 say which kernels calls run)" in said
    assert said.count("swiglu") == 1 and "calls  " not in said


T, N = Axis("T", dynamic=True), Axis("N")


@op()
def doubled(x: Tensor[f32, T, N]) -> Outputs:
    return L.out(y=x * (3.0 if os.environ.get("RLK_TRIPLED") else 2.0))


def test_nothing_is_kept_of_an_operator_that_reads_what_cannot_be_followed(machine: Machine) -> None:
    for _ in range(2):
        machine.restart()
        call(doubled, {"x": torch.zeros(8, 64)}, {}, {})
        assert machine.done["traced"] == 1


def test_a_gradient_that_others_wrote_is_theirs(machine: Machine) -> None:
    each, x = operators()["swiglu"], torch.zeros(48, 512, requires_grad=True)

    def differentiated() -> str:
        torch.autograd.grad(call(each, {"gate": x, "up": x}, {}, {})["y"], [x], torch.zeros(48, 512))
        return machine.launches[-1][0]

    own = differentiated()
    machine.restart()
    assert differentiated() == own and not machine.done
    before = each.gradient

    def mine(ctx: Any, d_y: Any) -> Outputs:
        return L.out(d_gate=d_y, d_up=d_y)

    assert before is not None
    mine.__annotations__ = {formal.name: formal.type for formal in before.formals}
    try:
        each.vjp("gate", "up")(mine)
        machine.restart()
        assert differentiated() != own and machine.done["lowered"] == 1
    finally:
        each.gradient = before


HALF = 0.5


def halved(token: Token) -> Term:
    return Term(token.ratio * token.advantage * HALF, token.advantage * HALF)


def test_a_loss_with_a_function_of_its_user_is_known_by_what_it_computes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lp, one = torch.zeros(40), torch.ones(40)
    layout = Layout.packed(torch.tensor([0, 10, 40], dtype=torch.int32), tokens=40)

    def lost() -> str:
        """Call the loss as a process that imports the function anew; return what is launched."""
        machine.restart()
        policy_spec.cache_clear()
        policy._planned.cache_clear()
        ops.policy_loss(lp, one, torch.ones(2), layout=layout, loss=Loss(surrogate=surrogate(halved)))
        return machine.launches[-1][0]

    first = lost()
    assert machine.done["lowered"] == 1
    assert lost() == first and not machine.done
    monkeypatch.setattr(sys.modules[__name__], "HALF", 0.25)  # the control: another function of that name
    assert lost() != first and machine.done["lowered"] == 1


# --- an earlier call ---


def test_sizes_of_a_class_share_their_code(machine: Machine) -> None:
    swiglu(300)
    machine.done.clear()
    for rows in (299, 297, 301, 318, 320, 289):
        assert swiglu(rows).shape == (rows, 512)
    # 16 divides 320, and not the others
    assert machine.done == {"lowered": 1, "compiled": 1}
    assert len({text for text, _ in machine.launches[:5]}) == 1
    for (_, args), rows in zip(machine.launches, (300, 299, 297, 301, 318, 320, 289), strict=True):
        assert rows in args and (torch.Size([rows, 512]), (512, 1), torch.bfloat16) in args
    machine.done.clear()
    swiglu(300, 520)  # the control
    assert machine.done["lowered"] == 1 and machine.done["compiled"] == 1


@given(st.integers(0, 1 << 40), st.lists(st.integers(1, 1 << 20), max_size=3))
def test_a_class_stays_between_powers_of_two_and_on_its_side_of_a_piece(size: int, pieces: list[int]) -> None:
    found = class_of(size, tuple(pieces))
    assert size <= found <= max(size * (1 + 1 / STEPS) + 1, size)
    assert found.bit_length() == size.bit_length()
    assert (found & (found - 1) == 0) == (size & (size - 1) == 0) or any(found == p for p in pieces)
    assert [size <= p for p in pieces] == [found <= p for p in pieces]
    assert class_of(found, tuple(pieces)) == found


def test_classes_are_few() -> None:
    assert len({class_of(n) for n in range(1 << 12, 1 << 13)}) <= STEPS + 1
    assert len({class_of(n) for n in range(1, 1 << 14)}) < 14 * (STEPS + 1)


R = Axis("R", dynamic=True, chunk=2, piece=46)


@op()
def by_pieces(x: Tensor[f32, R]) -> Outputs:
    return L.out(y=L.max(x, over=R))


def test_an_axis_of_one_piece_is_told_from_one_of_two(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a piece is no power of two, and in what is read back."""
    monkeypatch.setattr(trace_cache, "name_of", lambda found: ["operator", "by_pieces"])
    found = Invocation(by_pieces, by_pieces.default_variant())
    assert recalled_again(found) == interface(found) and dict(interface(found).pieces) == {"R": (46,)}

    def classes() -> list[int]:
        geometries = (geometry_of(found, {"x": torch.zeros(n)}) for n in (41, 45, 46, 47))
        return [dict(sizes_of(found, each).extents)["R"] for each in geometries]

    assert classes() == [44, 46, 46, 48]
    monkeypatch.setattr(sizes, "class_of", lambda size, pieces: class_of(size))  # the control
    assert classes() == [44, 48, 48, 48]


# --- outlines ---


@pytest.mark.parametrize("name", sorted(operators()))
def test_an_outline_reads_back_and_places_what_its_program_places(name: str) -> None:
    each = operators()[name]
    variant = reference_variant(each)
    for program in (placed(each, each.trace(variant)), reference_gradient(each, variant)):
        if program is None:
            continue
        extents = reference_extents(each, program)
        axes = {a for k in program.kernels for d in k.params for a in d.type.axes}
        static = {a.name: extents[a.name] for a in axes if not a.whole.dynamic}
        how = random.Random(program.name)
        for _ in range(4):
            sizes = {
                n: x if n in static else max(1, int(x * how.uniform(0.01, 2))) for n, x in extents.items()
            }
            bound = launched(program, static, H200.softmax, sizes)
            found = parse_program(print_program(trace_cache.outline(bound)))
            assert found == trace_cache.outline(bound)
            assert workspaces(found) == workspaces(bound)
            assert places(found, sizes) == places(bound, sizes)


def recalled_again(found: Invocation) -> Interface:
    """Return the interface of an invocation as a later process reads it."""
    trace_cache.known_interface(found, H200, lambda: interface(found))
    return trace_cache.known_interface(found, H200, lambda: pytest.fail("it was not kept"))


@pytest.mark.parametrize("name", sorted(operators()))
def test_an_interface_reads_back(name: str, machine: Machine) -> None:
    each = operators()[name]
    variant = reference_variant(each)
    wanted, given = differentiable(each, variant), cotangents(each, variant)
    found = [Invocation(each, variant)]
    if each.gradient is not None and wanted and given:
        found.append(Invocation(each.gradient, gradient_variant(variant, wanted, given)))
    for one in found:
        assert recalled_again(one) == interface(one)
