"""Each mistake of a spec's author, and each thing that a backend lacks, is said at the author's line."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from odd_specs import MENDED, ODD, K, N, T, V

from rlk.backends.registry import registered
from rlk.errors import NOWHERE, Code, LaunchError, Loc, LoweringError, RlkError, ScheduleError, SpecError
from rlk.ir.nodes import Program
from rlk.lang import (
    Axis,
    DTypeVar,
    L,
    Needs,
    Op,
    Outputs,
    Scalar,
    Static,
    Tensor,
    Tree,
    bf16,
    f32,
    i32,
    op,
    u8,
    u32,
)
from rlk.lang.variants import cotangents, gradient_variant
from rlk.lower.common.emitted import Signature
from rlk.lower.triton import lower
from rlk.passes.pipeline import canonical, launched
from rlk.passes.places import in_kernel, place_of
from rlk.runtime.call.entry import call
from rlk.runtime.reference import emit
from rlk.schedule.heuristics import apart
from rlk.schedule.schedule import Schedule
from rlk.target.facts import target
from rlk.testing.cases import cases
from rlk.testing.examples import Example

H100 = target("sm_90a")
EXTENTS = {
    "T": 333, "B": 4, "M": 64, "N": 128, "K": 256, "E": 131072, "G": 7, "V": 5000, "W": 3000, "P": 5000,
    "R": 50, "S": 1000, "Q": 100,
}  # fmt: skip
BACKENDS = [(by.name, on) for by in registered() for on in by.checked_in]


def emitted(made: Op, backend: str, on: str) -> None:
    """Lower the reference variant of an operator by a backend."""
    traced = made.trace(made.default_variant())
    plain = canonical(traced)
    axes = {a.whole.name for k in plain.kernels for d in k.params for a in d.type.axes}
    extents = {name: EXTENTS[name] for name in axes}
    emit(canonical(traced, apart=apart(plain, extents)), extents, target(on), backend)


def refusal(name: str, backend: str, on: str) -> RlkError | None:
    try:
        emitted(ODD[name](), backend, on)
    except RlkError as error:
        return error
    return None


# --- what backends lack ---


@pytest.mark.parametrize(("backend", "on"), BACKENDS)
@pytest.mark.parametrize("name", ODD)
def test_a_refusal_names_the_line_the_lack_and_the_mend(name: str, backend: str, on: str) -> None:
    error = refusal(name, backend, on)
    if error is None:
        return
    lines, first = inspect.getsourcelines(ODD[name])
    for found in error.diagnostics:
        assert found.loc.file.endswith("odd_specs.py")
        assert found.loc.line in range(first, first + len(lines))
        assert found.fix
    assert "schedule" not in str(error)
    if not isinstance(error, SpecError):  # that one is raised before a backend is asked
        assert isinstance(error, LoweringError)
        assert error.backend in (backend, "every backend")
        assert error.lacks and error.instead
        assert f"lacks {error.lacks}" in str(error) and f"instead: {error.instead}" in str(error)


def test_the_odd_specs_are_refused_and_lowered_by_every_backend() -> None:
    """The control of the law above: it speaks of many specs, and not of all."""
    for backend, on in BACKENDS:
        refused = {name for name in ODD if refusal(name, backend, on) is not None}
        assert len(refused) >= 12 and len(ODD) - len(refused) >= 12


@pytest.mark.parametrize("name", MENDED)
def test_what_an_error_advises_can_be_lowered(name: str) -> None:
    emitted(MENDED[name](), "triton", "sm_90a")


SAID = {
    "product_of_a_product": (
        "one factor is computed in the same kernel",
        'y = L.keep(y, "y") in the line before',
    ),
    "dot_and_sum_of_one_axis": ("contracts K with L.dot and uses values along K", 's = L.keep(s, "s")'),
    "matrix_times_vector": ("with a vector: w has no other axis", "L.sum(a.to(f32) * w.to(f32), over=K"),
    "softmax_over_dynamic_rows": ("a reduction over the whole dynamic axis T", "without dynamic=True"),
    "pieces_of_two_products": ("two contractions by pieces of P", "first = L.keep(L.dot(...)"),
    "sum_of_batched_products": (
        "over B in the kernel of contractions",
        'y = L.keep(y, "y") in the line before',
    ),
    "sum_of_dots_by_row": ("beside a value along V.piece", 'x = L.keep(x, "x") of what is reduced over V'),
}


@pytest.mark.parametrize("name", SAID)
def test_triton_lacks_what_no_tile_can_give(name: str) -> None:
    """Formerly most of these were said of a schedule's tiles, which no author chooses."""
    error = refusal(name, "triton", "sm_90a")
    assert isinstance(error, LoweringError) and error.code is Code.CANNOT_LOWER
    lacks, instead = SAID[name]
    assert lacks in error.lacks and instead in error.instead


OTHERS_SAY = {
    ("grouped_gemm", "cute"): ("of w gathered for each row", "rows sorted by index"),
    ("two_computed_factors", "cute"): ("both factors are computed", 'y = L.keep(y, "y"); u = L.keep(u, "u")'),
    ("strided_factor", "cute"): (
        "elements of x that do not lie along one of its dims",
        'y = L.keep(..., "y")',
    ),
    ("strided_factor", "tilelang"): ("elements of x that do not lie along one", 'y = L.keep(..., "y")'),
}


@pytest.mark.parametrize(("name", "backend"), OTHERS_SAY)
def test_only_triton_gathers_factors_or_computes_both(name: str, backend: str) -> None:
    assert refusal(name, "triton", "sm_90a") is None
    error = refusal(name, backend, "sm_90a")
    assert isinstance(error, LoweringError) and error.backend == backend
    lacks, instead = OTHERS_SAY[name, backend]
    assert lacks in error.lacks and instead in error.instead and error.instead.endswith("or backend triton")


def test_a_tile_of_too_many_elements_is_no_matter_of_tiles() -> None:
    @op()
    def whole(x: Tensor[f32, N, K]) -> Outputs:
        return L.out(y=L.max(L.max(x, over=K), over=N))

    program = canonical(whole.trace(whole.default_variant()))
    with pytest.raises(LoweringError, match=r"1048576 elements, .*N \(1024\)") as caught:
        emit(program, {"N": 1024, "K": 1024}, H100)
    assert caught.value.loc.file == __file__


def test_a_tuners_schedule_is_still_its_own_error() -> None:
    @op()
    def product(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K]) -> Outputs:
        return L.out(y=L.dot(x, w, over=K))

    program: Program = canonical(product.trace(product.default_variant()))
    extents = {"N": 64, "K": 64}
    bound = launched(program, extents, H100.softmax, {**extents, "T": 64})
    with pytest.raises(ScheduleError, match="16 or more"):
        lower(bound, [Schedule()], H100, Signature(tuple(sorted(extents.items()))))


def test_an_error_is_placed_once_and_travels_between_processes() -> None:
    @op()
    def rows(x: Tensor[f32, T, N]) -> Outputs:
        return L.out(y=L.max(x, over=N))

    (kernel,) = canonical(rows.trace(rows.default_variant())).kernels
    for place, wanted in ((NOWHERE, place_of(kernel)), (Loc("a.py", 3), Loc("a.py", 3))):
        with pytest.raises(LoweringError) as caught, in_kernel(kernel):
            raise LoweringError("it", "that", place, backend="triton", target="sm_90a")
        assert caught.value.loc == wanted != NOWHERE
        again = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(again, LoweringError) and str(again) == str(caught.value)
    bare = replace(kernel, body=replace(kernel.body, lets=()))
    assert place_of(bare) == NOWHERE


# --- slips in a spec ---


def traced(body: Callable[..., object]) -> SpecError:
    """Return the error of a body over x f32[T, N], n i32[T, N] and w bf16[N, N]."""

    @op()
    def spec(x: Tensor[f32, T, N], n: Tensor[i32, T, N], k: Scalar[i32]) -> Outputs:
        made = body(x, n, k)
        return L.out(y=made) if made is not None else L.out(y=x.whole())

    with pytest.raises(SpecError) as caught:
        spec.trace(spec.default_variant())
    (found,) = caught.value.diagnostics
    assert found.loc.file == __file__
    return caught.value


SLIPS: dict[str, tuple[Callable[..., object], Code, str]] = {
    "a power": (lambda x, n, k: x**2, Code.TILE_OPERATOR, "x * x"),
    "a power of a tile": (lambda x, n, k: (x * 2.0) ** 2, Code.TILE_OPERATOR, "x * x"),
    "a power of two": (lambda x, n, k: 2**x, Code.TILE_OPERATOR, "L.exp2"),
    "a product of matrices": (lambda x, n, k: x @ x, Code.TILE_OPERATOR, "L.dot(a, b, over=axis)"),
    "an index": (lambda x, n, k: (x * 2.0)[0], Code.TILE_OPERATOR, "L.table"),
    "divmod": (lambda x, n, k: divmod(n, 2), Code.TILE_OPERATOR, "a // b and a % b"),
    "round": (lambda x, n, k: round(x * 2.0), Code.TILE_OPERATOR, "L.round(x)"),
    "an element": (lambda x, n, k: (x * 2.0).__setitem__(0, 1.0), Code.TILE_OPERATOR, "L.place"),
    "an element of a parameter": (lambda x, n, k: x.__setitem__(0, 1.0), Code.TILE_OPERATOR, "L.where"),
    "a function of math": (lambda x, n, k: __import__("math").exp(x * 1.0), Code.TILE_OPERATOR, "L.exp"),
    "a function of numpy": (lambda x, n, k: np.exp(x * 1.0), Code.TILE_OPERATOR, "L.exp(x)"),
    "a method": (lambda x, n, k: x.sum(), Code.TILE_OPERATOR, "L.sum(x, over=axis, tree="),
    "the shape": (lambda x, n, k: x.shape[0] * x, Code.TILE_OPERATOR, "L.extent(axis)"),
    "a transpose": (lambda x, n, k: x.T, Code.TILE_OPERATOR, "names of their axes"),
    "Python's max": (lambda x, n, k: max(x * 1.0, x * 2.0), Code.TILE_HAS_NO_TRUTH, "L.maximum"),
    "two integers": (lambda x, n, k: L.where(x > 0.0, 1, 0), Code.DTYPE_OF_NUMBERS, "L.number(1, i32)"),
    "two bools": (lambda x, n, k: L.where(x > 0.0, True, False), Code.DTYPE_OF_NUMBERS, "L.number("),
    "an integer output": (lambda x, n, k: 1, Code.DTYPE_OF_NUMBERS, "output y"),
    "an integer of a carry": (lambda x, n, k: L.carry(0, T).value, Code.DTYPE_OF_NUMBERS, "carry"),
    "a dtype by name": (lambda x, n, k: x.to("f16"), Code.DTYPE_UNKNOWN, "'f16'"),
    "a dtype of torch": (lambda x, n, k: x.to(torch.float16), Code.DTYPE_UNKNOWN, "torch.float16"),
    "a number's dtype": (lambda x, n, k: L.number(1, "i8"), Code.DTYPE_UNKNOWN, "'i8'"),
    "bits by name": (lambda x, n, k: x.bits("u32"), Code.DTYPE_UNKNOWN, "'u32'"),
    "an axis of L.place": (
        lambda x, n, k: L.place("z", (T, N), ({V: n.whole()}, x.whole())),
        Code.NO_SUCH_AXIS, "output z",
    ),
    "a function of torch": (lambda x, n, k: torch.exp(x * 1.0), Code.TILE_OPERATOR, "L.exp(x)"),
    "a function of torch in Python": (
        lambda x, n, k: torch.nn.functional.softplus(x * 1.0), Code.TILE_OPERATOR, "L.log1p",
    ),
    "a function of torch written in Python": (
        lambda x, n, k: torch.nn.functional.relu(x), Code.TILE_OPERATOR, "L.maximum(x, 0.0)",
    ),
    "a sum of torch": (lambda x, n, k: torch.sum(x), Code.TILE_OPERATOR, "L.sum(x, over=axis, tree="),
    "a function of numpy of a parameter": (lambda x, n, k: np.exp(x), Code.TILE_OPERATOR, "L.exp(x)"),
    "an absolute value of L": (lambda x, n, k: L.abs(x), Code.TILE_OPERATOR, "write abs(x)"),
    "relu of L": (lambda x, n, k: L.relu(x), Code.TILE_OPERATOR, "L.maximum(x, 0.0)"),
    "a mean of L": (lambda x, n, k: L.mean(x), Code.TILE_OPERATOR, "L.extent(axis)"),
    "a power of L": (lambda x, n, k: L.pow(x, 2), Code.TILE_OPERATOR, "x * x"),
    "nothing of L": (lambda x, n, k: L.frobnicate(x), Code.TILE_OPERATOR, "log1p, log2, max"),
    "a total as a divisor": (lambda x, n, k: x / L.total(), Code.FOLD_AS_VALUE, "write .value after"),
    "a total as a dividend": (lambda x, n, k: L.total() / 2.0, Code.FOLD_AS_VALUE, "write .value after"),
    "a total plus a tile": (lambda x, n, k: L.total() + x, Code.FOLD_AS_VALUE, ".absorb(x) inside"),
    "a softmax sum as an output": (lambda x, n, k: L.softmax_sum(), Code.FOLD_AS_VALUE, ".lse() or .sum"),
    "the sum of a total": (lambda x, n, k: L.total().sum, Code.TILE_OPERATOR, ".absorb, .value"),
    "a dim of torch": (lambda x, n, k: L.sum(n, dim=-1), Code.TILE_OPERATOR, "over=N, with N = Axis"),
    "an axis of numpy": (lambda x, n, k: L.max(x, axis=1, keepdims=True), Code.TILE_OPERATOR, "are named"),
    "dims that are kept": (lambda x, n, k: L.max(x, over=N, keepdim=True), Code.TILE_OPERATOR, "nothing:"),
    "a reduction over nothing": (lambda x, n, k: L.min(x), Code.TILE_OPERATOR, "L.min without an axis"),
    "a tuple as an output": (lambda x, n, k: (x, n), Code.VALUE_WANTED, "output y needs a tile or a number"),
    "a carry that is set": (
        lambda x, n, k: setattr(L.carry(0.0, T), "value", x), Code.TILE_OPERATOR, ".hand(x)",
    ),
    "a total that is set": (
        lambda x, n, k: setattr(L.total(), "value", x), Code.TILE_OPERATOR, ".absorb(x)",
    ),
    "a product of u8": (
        lambda x, n, k: L.dot(n.to(u8), n.to(u8), over=N), Code.DTYPE_WANTED, "f32, f16, bf16, i8, e4m3 or",
    ),
    "an axis plus a tile": (lambda x, n, k: N + x, Code.VALUE_WANTED, "L.extent(N) for its length"),
    "an axis by name": (
        lambda x, n, k: L.sum(x, over="N", tree=Tree.halving), Code.AXIS_WANTED, "'N' is no Axis",
    ),
    "a streamed axis by name": (lambda x, n, k: next(L.stream("V")), Code.AXIS_WANTED, "'V' is no Axis"),
    "an order by name": (
        lambda x, n, k: L.sum(x, over=N, tree="halving"), Code.ORDER_WANTED, "write Tree.halving",
    ),
    "None as a tile": (lambda x, n, k: x * None, Code.VALUE_WANTED, "write if x is not None"),
    "an axis as a tile": (lambda x, n, k: x * N, Code.VALUE_WANTED, "L.extent(N) for its length"),
    "the length of a tile": (lambda x, n, k: len(x * 2.0), Code.TILE_OPERATOR, "write L.extent(axis)"),
    "a text as a tile": (lambda x, n, k: x * "a", Code.VALUE_WANTED, "got a str"),
    "an output named as an input": (
        lambda x, n, k: L.out(n=x.whole()), Code.OUTPUT_IS_INPUT, "output n has the name",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_has_an_error_of_its_own(name: str) -> None:
    body, code, said = SLIPS[name]
    (found,) = traced(body).diagnostics
    told = "\n".join((found.message, *found.fix))  # without the line, which has what it should say
    assert found.code is code and said in told


RIGHT: dict[str, Callable[..., object]] = {
    "integers that stand beside a tile": lambda x, n, k: L.where(x > 0.0, n, 0),
    "numbers with a dtype": lambda x, n, k: L.where(x > 0.0, L.number(1, i32), 0),
    "floats": lambda x, n, k: L.where(x > 0.0, 1.0, 0.0),
    "a float and an integer": lambda x, n, k: L.where(x > 0.0, 1.0, 0),
    "an integer where only f32 is possible": lambda x, n, k: L.fma(x, 2, 1),
    "reflected operators": lambda x, n, k: (7 // (n & 3 | 4)) + (9 % (3 | n & 1)) + (1 << (n & 1)),
    "hasattr": lambda x, n, k: x * (1.0 if hasattr(x * 1.0, "nothing") else 2.0),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_no_slip_is_traced(name: str) -> None:
    @op()
    def spec(x: Tensor[f32, T, N], n: Tensor[i32, T, N], k: Scalar[i32]) -> Outputs:
        return L.out(y=RIGHT[name](x, n, k))

    assert spec.trace(spec.default_variant()).kernels


def test_a_float_literal_keeps_its_bits_beside_an_integer() -> None:
    """`L.where(c, 1.0, 0)` is f32, and the same program as with 0.0."""

    def program(zero: float) -> Program:
        @op(name="same")
        def spec(x: Tensor[f32, T, N]) -> Outputs:
            return L.out(y=L.where(x > 0.0, 1.0, zero))

        return spec.trace(spec.default_variant())

    assert [let.node for let in program(0).kernels[0].body.lets] == [
        let.node for let in program(0.0).kernels[0].body.lets
    ]


@pytest.mark.parametrize(
    "annotation",
    [
        lambda: Tensor["bf17", T],
        lambda: Tensor["bf16", T],
        lambda: Tensor[torch.int8, T],
        lambda: Scalar["f32"],
        lambda: DTypeVar("F", (bf16, "f8")),
    ],
)
def test_an_unknown_dtype_of_an_annotation_lists_those_there_are(annotation: Callable[[], object]) -> None:
    with pytest.raises(SpecError, match="f32, f16, bf16, i32, i64, u32, boolean") as caught:
        annotation()
    assert caught.value.code is Code.DTYPE_UNKNOWN
    assert caught.value.diagnostics[0].loc.file == __file__


@pytest.mark.parametrize(("word", "said"), [
    (Scalar, "annotate Scalar[f32]"), (Scalar | None, "annotate Scalar[f32]"),
    (Tensor, "annotate Tensor[f32, T, N]"), (Static, 'annotate Static["a"'), (Needs, 'annotate Needs["a"'),
    (float, "annotate Tensor[...], for a number Scalar[f32]"),
])  # fmt: skip
def test_an_annotation_without_its_brackets_is_completed(word: object, said: str) -> None:
    def spec(x: Tensor[f32, T], lr: word) -> Outputs:  # type: ignore[valid-type]
        return L.out(y=x * lr)

    spec.__annotations__["lr"] = word
    with pytest.raises(SpecError) as caught:
        op()(spec)
    assert caught.value.code is Code.PARAM_KIND and said in str(caught.value)


def test_a_dim_that_is_no_axis_is_refused() -> None:
    with pytest.raises(SpecError, match="the dim 'N' is no Axis"):
        Tensor[f32, T, "N"]


# --- the tables of the guide ---

GUIDE = (Path(__file__).parents[1] / "docs" / "writing-a-spec.md").read_text()


def table_of(head: str) -> list[list[set[str]]]:
    """Return the names in each cell of a table of the guide, row by row."""
    rows = GUIDE.partition(head)[2].partition("|---|")[2].partition("\n\n")[0].splitlines()[1:]
    return [[set(re.findall(r"`\.?(\w+)", cell)) for cell in row.split("|")[1:-1]] for row in rows]


def names_of(holder: type) -> set[str]:
    hidden = {"what", "kind", "named", "reads", "states"}
    return {name for name in dir(holder) if not name.startswith("_")} - hidden


def test_the_guide_lists_every_function_of_the_language() -> None:
    listed = [name for row in table_of("### Functions of L") for name in row[0]]
    assert sorted(listed) == sorted(vars(L).keys() & names_of(L))


def test_the_guide_lists_every_method_of_folds() -> None:
    rows = table_of("### Methods of folds")
    assert {name for row in rows for name in row[0]} | {"stream"} >= {"total", "carry", "top", "argmax"}
    for names, inside, after in rows:
        for name in names - {"softmax_states"}:
            assert inside | after == names_of(getattr(L, name)), name


# --- gradients ---

D = Axis("D")
EIGHT = Axis("K", extent=8)


def with_gradient(cotangent: str, body: Callable[..., object], optional: bool = False) -> Op:
    """Return y = x w^T with a vjp that takes one tensor under a name."""

    @op(saves=("x", "w"), name="product")
    def product(x: Tensor[bf16, T, D], w: Tensor[bf16, N, D]) -> Outputs:
        return L.out(y=L.dot(x, w, over=D))

    def fn(ctx: object, **given: object) -> object:
        return body(ctx, given[cotangent])

    type = Tensor[f32, T, N] | None if optional else Tensor[f32, T, N]
    fn.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter(cotangent, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=type),
        ]
    )
    product.vjp("w")(fn)  # type: ignore[arg-type]
    return product


def d_w(ctx: object, d: Tensor) -> Outputs:
    """Write the gradient with the dims of w."""
    d_w = L.dot(L.keep(d.to(bf16), "d"), ctx.x, over=T).to(bf16)
    L.place("d_w", (N, D), ({}, d_w))
    return L.out()


@pytest.mark.parametrize("name", ["dy", "grad_y", "y_grad", "gy", "y", "d_z", "y_bar"])
def test_a_misnamed_cotangent_is_refused_where_it_is_asked_for(name: str) -> None:
    made = with_gradient(name, d_w)
    with pytest.raises(SpecError, match=f"takes {name}, which is no cotangent") as caught:
        cotangents(made, made.default_variant())
    assert "d_y" in str(caught.value)
    with pytest.raises(SpecError):
        made.gradient.trace(gradient_variant(made.default_variant(), ("w",), ("y",)))  # type: ignore[union-attr]


def test_a_vjp_without_any_cotangent_is_refused() -> None:
    made = with_gradient("order", d_w)
    with pytest.raises(SpecError, match="no output of product would have a gradient"):
        cotangents(made, made.default_variant())


def test_types_that_differ_in_a_field_of_an_axis_are_printed_apart() -> None:
    @op(saves=("x",))
    def twice(x: Tensor[f32, T, K], z: Tensor[f32, T, K]) -> Outputs:
        return L.out(y=x * 2.0, w=z * 2.0)

    @twice.vjp("x")
    def twice_grad(ctx, d_y: Tensor[f32, T, EIGHT]) -> Outputs:
        return L.out(d_x=d_y * 2.0)

    @op(into={"y": "x"})
    def written(x: Tensor[f32, T, K], z: Tensor[f32, T, EIGHT]) -> Outputs:
        return L.out(y=z * 2.0)

    alike = r"f32\[T, K\(extent=8\)\]"
    with pytest.raises(SpecError, match=rf"not {alike}"):
        written.trace(written.default_variant())
    with pytest.raises(SpecError, match=rf"y is f32\[T, K\(extent=None\)\], .* is {alike}"):
        twice_grad.trace(gradient_variant(twice.default_variant(), ("x",), ("y",)))


def test_a_well_named_cotangent_is_taken() -> None:
    made = with_gradient("d_y", d_w)
    assert cotangents(made, made.default_variant()) == ("y",)
    assert made.gradient is not None
    made.gradient.trace(gradient_variant(made.default_variant(), ("w",), ("y",)))


def test_an_extra_input_of_a_vjp_is_not_taken_for_a_cotangent() -> None:
    from rlk.specs.linear_logp import linear_logp

    assert linear_logp.gradient is not None
    assert "order" in {f.name for f in linear_logp.gradient.formals}
    assert cotangents(linear_logp, linear_logp.default_variant())


F = DTypeVar("F", (f32, bf16))
F_FIRST = DTypeVar("F", (bf16, f32))


def sum_of(var: DTypeVar, declared: object) -> Op:
    """Return y = the f32 sums of rows of x, and its vjp with a cotangent of some annotation."""

    def forward(x: object) -> Outputs:
        return L.out(y=L.sum(x.to(f32), over=N, tree=Tree.halving))  # type: ignore[attr-defined]

    forward.__annotations__ = {"x": Tensor[var, T, N]}
    row_sum = op(saves=("x",), name="row_sum")(forward)

    def fn(ctx: object, d_y: object) -> Outputs:
        return L.out(d_x=(d_y + ctx.x.to(f32) * 0.0).to(ctx.x.dtype))  # type: ignore[attr-defined, operator]

    fn.__annotations__ = {"d_y": declared}
    row_sum.vjp("x")(fn)  # type: ignore[arg-type]
    return row_sum


@pytest.mark.parametrize(
    ("var", "declared"),
    [(F, Tensor[F, T]), (F_FIRST, Tensor[F_FIRST, T]), (F, Tensor[f32, T, N]), (F, Tensor[f32])],
)
def test_a_cotangent_of_another_type_than_its_output_is_refused(var: DTypeVar, declared: object) -> None:
    made = sum_of(var, declared)
    said = r"y is f32\[T\], but its cotangent d_y is (.|\n)*declare d_y: Tensor\[f32, T\]"
    x = torch.ones(3, 4, dtype=torch.bfloat16, requires_grad=True)
    for run in (lambda: cases(made, Example()), lambda: made(x).sum().backward()):
        with pytest.raises(SpecError, match=said) as caught:
            run()
        assert caught.value.code is Code.VJP_COTANGENT_TYPE
        place = caught.value.diagnostics[0].loc
        assert place.file == __file__ and "def fn(" in place.source()


def test_a_cotangent_of_its_outputs_type_is_taken() -> None:
    made = sum_of(F, Tensor[f32, T])
    x = torch.ones(3, 4, dtype=torch.bfloat16, requires_grad=True)
    made(x).sum().backward()
    assert cases(made, Example()) and x.grad is not None and bool((x.grad == 1).all())


def test_the_advice_names_the_dtype_variable_that_an_output_follows() -> None:
    @op(saves=("x",))
    def same(x: Tensor[F, T]) -> Outputs:
        return L.out(y=x.to(f32).to(x.dtype))

    @same.vjp("x")
    def same_grad(ctx: object, d_y: Tensor[bf16, T] | None = None) -> Outputs:
        return L.out(d_x=d_y.to(ctx.x.dtype))  # type: ignore[attr-defined]

    with pytest.raises(SpecError, match=r"declare d_y: Tensor\[F, T\] \| None = None"):
        cotangents(same, same.default_variant())


def test_a_required_cotangent_of_an_unused_output_is_to_be_optional() -> None:
    @op(saves=("x",))
    def pair(x: Tensor[f32, T]) -> Outputs:
        return L.out(y=x * 2.0, z=x * 3.0)

    @pair.vjp("x")
    def pair_grad(ctx: object, d_y: Tensor[f32, T], d_z: Tensor[f32, T]) -> Outputs:
        return L.out(d_x=d_y * 2.0 + d_z * 3.0)

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(LaunchError, match=r"d_z is required, .*does not depend on z") as caught:
        pair(x).y.sum().backward()
    assert caught.value.code is Code.COTANGENT_MISSING and "@pair.vjp" in str(caught.value)
    assert "declare d_z: Tensor[f32, T] | None = None" in str(caught.value)
    made = pair(x)
    (made.y + made.z).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [5.0] * 3


def test_a_gradient_is_named_once() -> None:
    with pytest.raises(SpecError, match="names 'x' twice"):
        scaled.vjp("x", "x")(lambda ctx: L.out())  # type: ignore[arg-type]


# --- names ---


KINDS, ONE, MORE = ("a", "b"), ("z",), ("n", "m")


def test_names_that_no_variant_has_are_refused() -> None:
    def made(saves: tuple[str, ...] = (), returns: tuple[str, ...] = ()) -> Op:
        @op(saves=saves, returns=returns)
        def named(
            x: Tensor[f32, T], w: Tensor[f32, T] | None, kind: Static[KINDS] = "a", needs: Needs[ONE] = ()
        ) -> Outputs:
            both = None if w is None or kind == "a" or "z" not in needs else x * w
            return L.out(y=x * 2.0, both=both)

        return named

    x = torch.ones(3)
    for given in ({"saves": ("x", "lse")}, {"returns": ("lse",)}, {"returns": ("y", "lse")}):
        with pytest.raises(SpecError, match=r"named: 'lse' is unknown|named 'lse' is unknown") as caught:
            made(**given)(x)
        assert "both" in str(caught.value) and caught.value.diagnostics[0].loc.file == __file__
    for given in ({"saves": ("x", "w", "both")}, {"returns": ("y", "both")}):  # the control
        found = made(**given)(x)
        assert torch.equal(found, x * 2.0)
    pair = made(returns=("both",))
    assert torch.equal(pair(x, w=x, kind="b", needs=("z",)), x)


@pytest.mark.parametrize("use", [lambda w: w[T], lambda w: w.at(T), lambda w: w.dtype])
def test_an_absent_optional_input_is_said_to_be_absent(use: Callable[..., Tensor]) -> None:
    @op()
    def weighted(x: Tensor[f32, T], w: Tensor[f32, T] | None) -> Outputs:
        more = use(w) if w is None else x  # w is used where it is absent
        return L.out(y=x * more)

    with pytest.raises(SpecError, match="w is None here(.|\n)*if w is not None") as caught:
        weighted.trace(weighted.default_variant())
    assert caught.value.code is Code.OPTIONAL_ABSENT and caught.value.diagnostics[0].loc.file == __file__


def test_another_mistake_with_none_stays_what_it_is() -> None:
    @op()
    def weighted(x: Tensor[f32, T], w: Tensor[f32, T] | None) -> Outputs:
        nothing = None
        return L.out(y=x * nothing.value)

    with pytest.raises(AttributeError, match="NoneType"):
        weighted.trace(weighted.default_variant())


def test_a_spec_that_reads_no_tensor_is_refused_at_its_line() -> None:
    @op()
    def constant(x: Tensor[f32, T], k: Scalar[f32]) -> Outputs:
        return L.out(y=k * 2.0)

    with pytest.raises(LaunchError, match="constant reads no tensor") as caught:
        constant(torch.ones(3), k=1.0)
    assert "use a tensor parameter" in str(caught.value) and __file__[-20:] in str(caught.value)

    @op()
    def numbers(k: Scalar[f32] = 2.0) -> Outputs:
        return L.out(y=L.where(L.pos(EIGHT) > 2, k, 0.0))

    with pytest.raises(LaunchError, match="numbers reads no tensor"):
        numbers()


def test_asking_for_a_need_that_is_not_listed_is_refused() -> None:
    @op()
    def needy(x: Tensor[f32, T], needs: Needs[MORE] = ()) -> Outputs:
        more = x * 3.0 if "nn" in needs else None
        return L.out(y=x * 2.0, more=more)

    with pytest.raises(SpecError, match=r"name in needs 'nn' is unknown(.|\n)*n, m") as caught:
        needy.trace(needy.default_variant())
    assert '"nn" in needs' in str(caught.value)


def gradient_error(body: Callable[..., object]) -> SpecError:
    made = with_gradient("d_y", body)
    assert made.gradient is not None
    with pytest.raises(SpecError) as caught:
        made.gradient.trace(gradient_variant(made.default_variant(), ("w",), ("y",)))
    return caught.value


def test_dims_in_another_order_are_mended_with_place() -> None:
    """L.out orders the dims of d_w as the inputs name them first: T, D, N."""
    error = gradient_error(lambda ctx, d: L.out(d_w=L.dot(L.keep(d.to(bf16), "d"), ctx.x, over=T).to(bf16)))
    assert error.code is Code.VJP_DIMS
    assert "d_w has the dims D, N, w has N, D" in str(error)
    assert 'L.place("d_w", (N, D), ({}, tile))' in str(error)


def test_a_gradient_of_another_dtype_is_to_be_cast() -> None:
    def body(ctx: object, d: Tensor) -> Outputs:
        L.place("d_w", (N, D), ({}, L.dot(L.keep(d.to(bf16), "d"), ctx.x, over=T)))
        return L.out()

    error = gradient_error(body)
    assert error.code is Code.VJP_DTYPE and ".to(bf16)" in str(error)


def test_a_gradient_over_other_axes_is_told_what_is_wanted() -> None:
    error = gradient_error(lambda ctx, d: L.out(d_w=L.sum(d, over=N, tree=Tree.halving)))
    assert error.code is Code.VJP_OUTPUTS


def test_wanting_the_gradient_of_no_input_is_refused() -> None:
    error = gradient_error(lambda ctx, d: d_w(ctx, d) if ctx.wants("weight") else L.out())
    assert error.code is Code.UNKNOWN_NAME and "choose one of: w" in str(error)


# --- calls ---


@op()
def scaled(x: Tensor[f32, T, N], k: Scalar[i32], m: Scalar[u32], w: Scalar[f32]) -> Outputs:
    return L.out(y=(x.whole() * k.to(f32)) * w, n=L.pos(N).bits(u32) + m)


X = torch.ones(2, 3)
GOOD = {"k": 2, "m": 3, "w": 1.5}


@pytest.mark.parametrize(
    ("tensors", "scalars", "code", "said"),
    [
        ({"x": X}, {"k": 2, "m": 3}, Code.ARG_MISSING, "w is required"),
        ({}, GOOD, Code.ARG_MISSING, "x is required"),
        ({"x": X, "z": X}, GOOD, Code.UNKNOWN_NAME, "tensor 'z' is unknown"),
        ({"y": X}, GOOD, Code.UNKNOWN_NAME, "choose one of: x"),
        ({"x": X}, GOOD | {"q": 1}, Code.UNKNOWN_NAME, "choose one of: k, m, w"),
        ({"x": X}, GOOD | {"k": 2**31}, Code.ARG_VALUE, "-2147483648 to 2147483647"),
        ({"x": X}, GOOD | {"k": -(2**31) - 1}, Code.ARG_VALUE, "k=-2147483649"),
        ({"x": X}, GOOD | {"k": 1.5}, Code.ARG_VALUE, "a whole number"),
        ({"x": X}, GOOD | {"k": float("nan")}, Code.ARG_VALUE, "a whole number"),
        ({"x": X}, GOOD | {"m": -1}, Code.ARG_VALUE, "0 to 4294967295"),
    ],
)
def test_a_call_names_the_argument_that_is_wrong(tensors, scalars, code: Code, said: str) -> None:
    with pytest.raises(LaunchError) as caught:
        call(scaled, tensors, scalars, {})
    assert caught.value.code is code and said in str(caught.value)


def test_numbers_at_the_ends_of_a_range_are_taken() -> None:
    for k in (2**31 - 1, -(2**31)):
        made = call(scaled, {"x": X}, GOOD | {"k": k, "m": 2**32 - 1}, {})
        assert torch.equal(made["y"], X * np.float32(k) * 1.5)
