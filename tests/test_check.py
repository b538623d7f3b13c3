"""`rlk.testing.check` passes every shipped operator and fails each kind of wrong one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from derived_specs import unit_rows

from rlk.backends.registry import of_name
from rlk.errors import LaunchError, LoweringError
from rlk.interp.run import Outcome, run
from rlk.lang import Axis, L, Op, Outputs, Scalar, Tensor, Tree, bf16, f32, i32, op
from rlk.lang.record import Record
from rlk.lower.common.emitted import Emitted
from rlk.runtime.registry import find, operators
from rlk.schedule import heuristics, written_factors
from rlk.target.facts import target
from rlk.testing import check as laws
from rlk.testing.cases import (
    aligned,
    cases,
    draw,
    draw_all,
    forward_program,
    indexed,
    registered_extents,
    sizes,
)
from rlk.testing.check import (
    Law,
    Verdict,
    calls,
    check,
    check_rows,
    check_simulated,
    check_source,
    check_tiles,
    others,
    parallel,
    schedules,
)
from rlk.testing.examples import Example, of_module
from rlk.testing.generated import run_generated

H100 = target("sm_90a")
# other backends' source of shipped operators runs in tests of their own
UNCOMPILED = tuple(law for law in Law if law not in (Law.COMPILES, Law.SIMULATED))
T = Axis("T", dynamic=True)
N = Axis("N")
M = Axis("M")


@op(saves=("x",))
def squares(x: Tensor[f32, T, N], which: Tensor[i32, T]) -> Outputs:
    """The sum of squares of each row, and one of its elements."""
    return L.out(y=L.sum(x * x, over=N, tree=Tree.halving), z=x.at(T, which, fill=0.0))


@squares.vjp("x")
def squares_grad(ctx, d_y: Tensor[f32, T]) -> Outputs:
    """d x = 2 x d_y."""
    return L.out(d_x=(2.0 * ctx.x) * d_y)


def twisted(factor: float) -> Op:
    """Return the same operator with a gradient that is off by a factor."""

    @op(saves=("x",), name="twisted")
    def same(x: Tensor[f32, T, N]) -> Outputs:
        return L.out(y=L.sum(x * x, over=N, tree=Tree.halving))

    @same.vjp("x")
    def same_grad(ctx, d_y: Tensor[f32, T]) -> Outputs:
        return L.out(d_x=(2.0 * factor * ctx.x) * d_y)

    return same


def first_call(name: str = "forward") -> Any:
    (case,) = cases(squares, Example())
    return next(c for c in calls(case) if c.label == name)


# --- what is right passes ---


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(operators()))
def test_every_shipped_operator_obeys_the_laws(name: str) -> None:
    shipped, module = find(name)
    found = list(check(shipped, of_module(module, shipped), [H100], UNCOMPILED))
    failed = [f"{v.law.name} {v.case}: {v.note}" for v in found if v.ok is False]
    assert not failed, "\n".join(failed)
    tried = {v.law for v in found if v.ok}
    slopes = {Law.SLOPE} if shipped.gradient is not None else set()
    assert {Law.TEXT, Law.TILES, *slopes} <= tried


@pytest.mark.parametrize("on", ["sm_90a", "gfx942"])
def test_what_is_emitted_compiles(on: str) -> None:
    pytest.importorskip("triton")
    from rlk.runtime.kernels.pool import pool

    found = check(squares, Example(), [target(on)], (Law.COMPILES,), compiler=pool().compile)
    assert [v.ok for v in found] == [True, True]


def test_without_a_compiler_that_law_is_not_tried() -> None:
    found = list(check(squares, Example(), [H100], (Law.COMPILES,)))
    assert [v.ok for v in found] == [None, None]


# --- what is wrong fails ---


@pytest.mark.parametrize("factor", [-1.0, 0.0, 2.0, 1.0001])
def test_a_wrong_gradient_is_found(factor: float) -> None:
    (verdict,) = check(twisted(factor), Example(), [H100], (Law.SLOPE,))
    assert verdict.ok is False
    assert re.search(r"d_x from d_y: \S+ by the vjp, \S+ by differences", verdict.note)
    (fine,) = check(twisted(1.0), Example(), [H100], (Law.SLOPE,))
    assert fine.ok


@pytest.mark.parametrize("seed", [1, 19, 777])
def test_slopes_of_kept_tokens_are_measured_whatever_is_drawn(seed: int) -> None:
    """Put a picked token below the threshold (1, 777), or a logit just above it (19)."""
    shipped, module = find("logp")
    found = list(check(shipped, of_module(module, shipped), [H100], (Law.SLOPE,), seed))
    assert not [v.note for v in found if not v.ok]


@pytest.mark.parametrize(("left_out", "factor", "ok"), [
    (-math.inf, 1.0, True), (-math.inf, 1.001, False), (math.nan, 1.0, False)
])  # fmt: skip
def test_an_infinity_has_no_slope_but_the_others_are_compared(
    left_out: float, factor: float, ok: bool
) -> None:
    @op(saves=("x",), name="kept")
    def kept(x: Tensor[f32, T, N]) -> Outputs:
        return L.out(y=L.where(x > 0.0, x * x, left_out))

    @kept.vjp("x")
    def kept_grad(ctx, d_y: Tensor[f32, T, N]) -> Outputs:
        return L.out(d_x=L.where(ctx.x > 0.0, (2.0 * factor * ctx.x) * d_y, 0.0))

    far = Example(lambda rng: {"x": rng.choice([-1.0, 1.0], (11, 24)) * rng.uniform(1, 2, (11, 24))})
    (verdict,) = check(kept, far, [H100], (Law.SLOPE,))
    assert verdict.ok is ok, verdict.note


def test_a_straight_through_gradient_is_no_derivative() -> None:
    shipped, module = find("ratio_kl")
    declared = of_module(module, shipped)
    assert all(v.ok for v in check(shipped, declared, [H100], (Law.SLOPE,)))
    undeclared = check(shipped, replace(declared, straight={}), [H100], (Law.SLOPE,))
    assert {v.case for v in undeclared if v.ok is False} == {"kl=k1+", "kl=k3+"}


def test_an_oracle_that_sums_by_tiles_is_found() -> None:
    def by_tiles(program: Any, inputs: Any, *, tile: Any = None, **options: Any) -> Outcome:
        whole = run(program, inputs, **options)
        width = (tile or {}).get("T", 64)
        groups = np.add.reduceat(inputs["x"] ** 2, range(0, inputs["x"].shape[1], width), axis=1)
        return Outcome({**whole.tensors, "y": groups.sum(axis=1, dtype=np.float32)}, whole.errors, whole.rows)

    call = first_call()
    assert check_tiles(call, H100).ok
    found = check_tiles(call, H100, by_tiles)
    assert found.ok is False and found.worst > 0 and "y:" in found.note and "tiles" in found.note


@op()
def half_of(x: Tensor[f32, T, N]) -> Outputs:
    """Half of each number."""
    return L.out(y=x * 0.5)


def small_along_both(y: Any, rows: int, columns: int) -> Any:
    """Return y, of which tiles that are small along both axes have another last bit."""
    small = rows * 5 < y.shape[0] and columns * 5 < y.shape[1]
    return np.nextafter(y, np.float32(np.inf)) if small else y


def taken_for_another(y: Any, rows: int, columns: int) -> Any:
    """Return y, whose tiles are counted along a row by the number of tiles along a column."""
    made = np.zeros_like(y)
    down, across = -(-y.shape[0] // rows), -(-y.shape[1] // columns)
    for k in range(down * across):
        i, j = divmod(k, down)
        at = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
        made[at] = y[at]
    return made


@pytest.mark.parametrize("fault", [small_along_both, taken_for_another])
def test_oracles_that_err_by_tiles_of_two_axes_are_found(fault: Callable[..., Any]) -> None:
    def wrong(program: Any, inputs: Any, *, tile: Any = None, **options: Any) -> Outcome:
        made = run(program, inputs, **options)
        rows, columns = ((tile or {}).get(axis, n) for axis, n in zip("TN", made["y"].shape, strict=True))
        return replace(made, tensors={"y": fault(made["y"], rows, columns)})

    (case,) = cases(half_of, Example())
    (call,) = calls(case)
    assert set(parallel(call.program.kernels[0], call)) == {"T", "N"} and check_tiles(call, H100).ok
    assert check_tiles(call, H100, wrong).ok is False


def test_an_oracle_that_looks_at_the_batch_is_found() -> None:
    def by_batch(program: Any, inputs: Any, **options: Any) -> Outcome:
        whole = run(program, inputs, **options)
        mean = np.nanmean(np.where(np.isfinite(inputs["x"]), inputs["x"], 0), dtype=np.float32)
        return Outcome({**whole.tensors, "y": whole["y"] + mean}, whole.errors, whole.rows)

    call = first_call()
    assert check_rows(call, H100).ok
    assert check_rows(call, H100, by_batch).ok is False


def test_a_sum_whose_order_a_layout_chooses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from rlk.lower import triton

    lower = triton.lower

    def careless(*args: Any, **options: Any) -> Emitted:
        emitted = lower(*args, **options)
        steps = re.compile(r"(    # The sum over N.*\n)(?:    x = .*\n)+")
        source, count = steps.subn(r"\1    x = tl.sum(x, axis=-1)\n", emitted.source)
        assert count == 1
        return replace(emitted, source=source)

    call = first_call()
    assert check_source(call, H100).ok
    monkeypatch.setattr(triton, "lower", careless)
    found = check_source(call, H100)
    assert found.ok is False and "y:" in found.note and "warps" in found.note


def test_source_of_another_backend_with_other_bits_is_found() -> None:
    cute = of_name("cute")
    fine = check_simulated(first_call(), H100, cute)
    assert fine.ok and fine.count == 1

    def off(*args: Any, **options: Any) -> Outcome:
        found = run(*args, **options)
        return replace(found, tensors={n: x + np.float32(1) for n, x in found.tensors.items()})

    assert check_simulated(first_call(), H100, cute, off).ok is False


R = Axis("R", dynamic=True, chunk=1, piece=4)


@op()
def scaled_sums(x: Tensor[f32, R, N]) -> Outputs:
    """The sum over rows, in pieces of 4, of each row's sum: as the gradient of a learned scale is."""
    found = L.total()
    for r in L.stream(R):
        found.absorb(L.sum(x[r], over=N, tree=Tree.halving))
    return L.out(total=found.value)


def test_a_simulator_runs_the_schedule_of_calls() -> None:
    """Triton's tile has several pieces of short rows, of which CuTe has no form: the last is shorter."""
    (case,) = cases(scaled_sums, Example(lambda rng: {"x": rng.normal(size=(18, 16))}))
    (call,) = calls(case)
    assert check_simulated(call, H100, of_name("cute")).ok
    tritons, *_ = schedules(call, H100)
    with pytest.raises(LoweringError, match="bounds differ between the elements of a tile"):
        run_generated(call.placed, call.inputs, on=H100, schedules=tritons, backend="cute")


def test_what_is_not_simulated_is_said_with_the_reason() -> None:
    for by in others(H100):
        found = check_simulated(first_call(), H100, by)
        assert found.ok or (found.ok is None and f"{by.name} on sm_90a was not run: " in found.note)
    without = replace(of_name("cute"), unsimulated=lambda on: "it is raining")
    assert check_simulated(first_call(), H100, without).note.endswith("was not run: it is raining")


def test_extents_of_simulated_calls_are_divided_by_vectors_unless_an_author_fixes_them() -> None:
    shipped, module = find("matmul")
    case = aligned(cases(shipped, of_module(module, shipped))[0])
    assert all(n % 16 == 0 for n in np.shape(case.values["w"]))
    fixed = aligned(cases(squares, Example(lambda rng: {"x": rng.normal(size=(5, 18))}))[0])
    assert np.shape(fixed.values["x"]) == (5, 18)


@op(saves=("x", "w", "ids"))
def read_by_the_gradient(x: Tensor[f32, T, N], w: Tensor[f32, N], ids: Tensor[i32, T]) -> Outputs:
    """Twice x."""
    return L.out(y=x * 2.0)


@read_by_the_gradient.vjp("x")
def read_by_the_gradient_grad(ctx, d_y: Tensor[f32, T, N]) -> Outputs:
    """d x = 2 d_y, with zeros of what the forward does not read."""
    return L.out(d_x=d_y * (ctx.w * ctx.ids.to(f32) * 0.0 + 2.0))


def test_inputs_that_the_gradient_alone_reads_are_drawn_or_asked_for() -> None:
    given = Example(lambda rng: {"ids": rng.integers(0, 3, 11)})
    found = list(check(read_by_the_gradient, given, [H100], (Law.SLOPE, Law.TILES, Law.SIMULATED)))
    assert {v.law for v in found if v.ok} == {Law.SLOPE, Law.TILES, Law.SIMULATED}
    assert not any(v.ok is False for v in found)
    with pytest.raises(
        LaunchError, match=r"ids is required by the check of the gradient: let .*_inputs\(rng\)"
    ):
        list(check(read_by_the_gradient, Example(), [H100], (Law.TILES,)))


def test_registered_extents_reach_layouts_that_small_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: vectors of a thread that are 512 apart are written 256 apart; 64 columns have none such."""
    from rlk.lower import cute

    lower = cute.lower

    def closer(*args: Any, **options: Any) -> Emitted:
        emitted = lower(*args, **options)
        return replace(emitted, source=emitted.source.replace("c // 4 * 512", "c // 4 * 256"))

    def failed(extents: dict[str, int] | None = None) -> list[str]:
        found = list(check(half_of, Example(), [H100], (Law.SIMULATED,), extents=extents))
        assert any(v.ok for v in found)
        return [v.case for v in found if v.ok is False]

    monkeypatch.setattr(half_of, "record", Record(extents={"N": 2**20}))
    assert failed() == []
    monkeypatch.setattr(cute, "lower", closer)
    assert failed({"N": 64}) == []  # the control: extents as they are drawn
    assert failed({"N": 2048}) == ["plain at N=2048, forward on sm_90a"]
    assert failed() == ["plain at N=2048, forward on sm_90a"]  # halved until a simulator runs it


def test_extents_that_inputs_fix_cannot_be_given() -> None:
    fixed = Example(lambda rng: {"x": rng.normal(size=(5, 18))})
    with pytest.raises(LaunchError, match="open axis of half_of 'N' is unknown"):
        list(check(half_of, fixed, [H100], (Law.SIMULATED,), extents={"N": 64}))
    assert registered_extents(cases(half_of, fixed)[0]) == {}


def test_a_variant_that_no_backend_lowers_fails() -> None:
    @op()
    def chained(x: Tensor[bf16, T, N], w: Tensor[bf16, M, N]) -> Outputs:
        return L.out(y=L.dot(L.dot(x, w, over=N).to(bf16), w, over=M))

    found = list(check(chained, Example(), [H100], (Law.LOWERS,)))
    assert {v.backend: v.ok for v in found} == {"triton": False, "cute": None, "tilelang": None}
    assert all("test_check.py:" in v.note and "instead: " in v.note for v in found)
    fine = list(check(squares, Example(), [H100], (Law.LOWERS,)))
    assert len(fine) == 6 and all(v.ok for v in fine)


def test_a_class_of_rows_that_no_backend_lowers_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def lowered() -> Verdict:
        return next(v for v in check(unit_rows, Example(), [H100], (Law.LOWERS,)) if v.backend == "triton")

    assert lowered().ok
    monkeypatch.setattr(written_factors, "WIDEST_ROW", 1 << 30)  # no product is written first
    monkeypatch.setattr(heuristics, "LARGEST_TILE", 1 << 30)  # 64 rows of the table's tile at 32 rows
    assert lowered().ok is False and lowered().note.startswith("at R = 32: ")


def test_a_spec_whose_calls_read_no_tensor_fails() -> None:
    @op()
    def constant(x: Tensor[f32, T], k: Scalar[f32]) -> Outputs:
        return L.out(y=k * 2.0)

    @op()
    def either(x: Tensor[f32, T] | None = None) -> Outputs:
        return L.out(y=L.number(1.0, f32) if x is None else x * 2.0)

    first = [next(iter(check(made, Example(), [H100], (Law.LOWERS,)))) for made in (constant, either)]
    assert [v.ok for v in first] == [False, True] and "constant reads no tensor" in first[0].note


def named(cotangent: str) -> Op:
    """Return a sum whose vjp takes an optional tensor under a name."""

    @op(saves=("x",), name="named")
    def sums(x: Tensor[f32, T, N]) -> Outputs:
        return L.out(y=L.sum(x * x, over=N, tree=Tree.halving))

    @sums.vjp("x")
    def grad(ctx, d_y: Tensor[f32, T], other: Tensor[f32, T] | None) -> Outputs:
        return L.out(d_x=(2.0 * ctx.x) * d_y)

    grad.written = (grad.written[0], replace(grad.written[1], name=cotangent))
    grad.fn = lambda ctx, d_y, **given: L.out(d_x=(2.0 * ctx.x) * d_y)
    return sums


def test_an_optional_cotangent_of_no_output_is_found() -> None:
    found = [v for v in check(named("d_z"), Example(), [H100], (Law.TEXT,)) if v.ok is False]
    assert len(found) == 1 and "the vjp takes d_z; cotangents of outputs: d_y" in found[0].note
    assert all(v.ok for v in check(named("extra"), Example(), [H100], (Law.TEXT,)))


def test_text_that_means_another_program_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    other = forward_program(squares, squares.default_variant())
    monkeypatch.setattr(laws, "parse_program", lambda text: other)
    (verdict,) = check(squares, Example(), [H100], (Law.TEXT,))
    assert verdict.ok is False and 0 < verdict.worst < verdict.count


def test_a_law_that_raises_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str) -> None:
        raise ValueError("no such word")

    monkeypatch.setattr(laws, "parse_program", broken)
    (verdict,) = check(squares, Example(), [H100], (Law.TEXT,))
    assert verdict.ok is False and verdict.note == "ValueError: no such word"


# --- inputs ---


def test_indices_are_drawn_inside_the_dim_that_they_index() -> None:
    program = forward_program(squares, squares.default_variant())
    assert {name: axis.name for name, axis in indexed(program).items()} == {"which": "N"}
    drawn = draw(program, {}, seed=3)
    assert drawn["which"].min() >= 0 and drawn["which"].max() < sizes(program, {})["N"]


@op()
def limited(
    x: Tensor[f32, T, N], share: Scalar[f32, 0.0:1.0], few: Scalar[f32, 0.0:0.125], many: Scalar[i32, 4:],
    any: Scalar[f32],
) -> Outputs:  # fmt: skip
    return L.out(y=x * share * few * many.to(f32) * any)


def test_scalars_are_drawn_inside_their_range() -> None:
    for seed in range(8):
        drawn = draw_all(limited, limited.default_variant(), {}, seed)
        assert 0.5 <= drawn["share"] <= 1.0 and 0.0 <= drawn["few"] <= 0.125 and drawn["many"] >= 4
    program = forward_program(limited, limited.default_variant())
    free = [draw(program, {}, seed) for seed in range(8)]  # the control: without the ranges
    assert any(x["share"] > 1.0 for x in free) and all(x["few"] > 0.125 for x in free)


def test_sizes_leave_a_tail_everywhere() -> None:
    for name in operators():
        shipped, module = find(name)
        for case in cases(shipped, of_module(module, shipped)):
            program = forward_program(shipped, case.variant)
            axes = {a for k in program.kernels for d in k.params for a in d.type.axes if a.chunk or a.piece}
            for axis in axes:
                cut = axis.piece or axis.chunk or 1
                assert cut == 1 or sizes(program, case.values)[axis.name] % cut


def test_every_variant_of_every_shipped_operator_is_tried() -> None:
    shipped, module = find("ratio_kl")
    labels = [case.label for case in cases(shipped, of_module(module, shipped))]
    assert labels[:2] == ["plain", "every option"] and len(labels) == 2 + 5
    everything = cases(shipped, of_module(module, shipped))[1]
    assert everything.variant.present == {"mask"}


UNDRAWABLE = '''"""A spec with an integer that indexes nothing."""

from __future__ import annotations

import numpy as np

from rlk.lang import Axis, L, Outputs, Tensor, f32, i32, op

T = Axis("T", dynamic=True)


@op()
def shifted(x: Tensor[f32, T], by: Tensor[i32, T]) -> Outputs:
    """x + by."""
    return L.out(y=x + by.to(f32))
'''
HOOK = """

def shifted_inputs(rng):
    return {"by": rng.integers(0, 9, 11)}
"""


def test_an_input_that_cannot_be_drawn_is_named(tmp_path: Path) -> None:
    path = tmp_path / "undrawable.py"
    path.write_text(UNDRAWABLE)
    found, module = find(f"{path}:shifted")
    with pytest.raises(LaunchError, match=r"by is required.*write shifted_inputs\(rng\) beside the spec"):
        list(check(found, of_module(module, found), [H100]))


WEIGHTED = """
from rlk.lang import Axis, L, Outputs, Tensor, f32, i32, op

T = Axis("T", dynamic=True)
B = Axis("B", dynamic=True)


@op(saves=("owner", "sign"))
def with_sign(x: Tensor[f32, B], owner: Tensor[i32, T], sign: Tensor[f32, T]) -> Outputs:
    \"\"\"x[owner] * sign.\"\"\"
    return L.out(y=x.at(owner) * sign)


@with_sign.vjp("sign")
def with_sign_grad(ctx, d_y: Tensor[f32, T]) -> Outputs:
    \"\"\"Not the gradient: bits alone are compared here.\"\"\"
    return L.out(d_sign=d_y * ctx.sign + ctx.owner.to(f32))


def with_sign_inputs(rng):
    return {"x": [1, 2, -3], "owner": [0, 0, 2, 1, 2], "sign": [1, -1, 1, 1, -1]}
"""


def test_lists_of_whole_numbers_are_stored_in_the_dtypes_of_their_tensors(tmp_path: Path) -> None:
    """Of a forward call, and of the gradient's saved tensors: rows are picked, and devices read bytes."""
    path = tmp_path / "weighted.py"
    path.write_text(WEIGHTED)
    found, module = find(str(path))
    (case,) = cases(found, of_module(module, found))
    for call in calls(case):
        kept = {name: value.dtype for name, value in call.inputs.items()}
        assert kept["owner"] == np.int32 and kept["sign"] == np.float32
    assert [check_rows(call, H100).ok for call in calls(case)] == [True, True]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (lambda rng: {"which": [0, 1], "wich": [0, 1]}, "parameter 'wich' is unknown(.|\n)*x, which"),
        (lambda rng: {"which": [0, 1.5]}, r"which=1\.5 is not allowed(.|\n)*a tensor of i32"),
        (lambda rng: None, "returns a dict of arrays and numbers by name, got NoneType"),
        (lambda: {"which": [0]}, "function of a generator of numpy, rng, got too many positional arguments"),
    ],
)
def test_inputs_of_an_author_that_cannot_be_are_refused(inputs: Callable[..., Any], said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        cases(squares, Example(inputs))
    assert cases(squares, Example(lambda rng: {"which": [0.0, 1.0]}))


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (lambda x, which: x.square().sum(-1), "returns 1 tensors, expected y, z"),
        (lambda x, which: {"y": x, "w": x}, "returns y, w without z, expected y, z"),
        (lambda x, which: (x.numpy(), x), "returns a ndarray for y"),
    ],
)
def test_a_float64_form_returns_every_result(reference: Callable[..., Any], said: str) -> None:
    made = Op(squares.name, squares.fn, squares.formals, (), "", squares.loc)
    made.record = Record(reference=reference)
    (case,) = cases(made, Example())
    with pytest.raises(LaunchError, match=said):
        laws.check_float64(case)


def test_a_spec_file_gives_its_own_inputs(tmp_path: Path) -> None:
    path = tmp_path / "drawable.py"
    path.write_text(UNDRAWABLE + HOOK)
    found, module = find(str(path))
    (case,) = cases(found, of_module(module, found))
    assert len(case.values["x"]) == 11
    assert all(v.ok is not False for v in check(found, of_module(module, found), [H100], UNCOMPILED))
