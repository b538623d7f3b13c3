"""Gradients that are derived from specs: slopes, orders of additions, refusals, and their place in rlk."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from math import inf
from pathlib import Path

import derived_specs
import numpy as np
import pytest
import torch
from derived_specs import WRT, D, F, H, M, N, P, R, T, W

import rlk
from rlk.errors import SpecError
from rlk.interp.run import run, run_wide
from rlk.ir.nodes import Load, MathFn, Program, Role, Store, Stream, Value, bounds_of, with_operands
from rlk.ir.numerics import numerics_id
from rlk.ir.text import print_program
from rlk.lang import (
    Axis,
    L,
    Outputs,
    Ragged,
    Static,
    Tensor,
    Tree,
    autodiff,
    bf16,
    e4m3,
    e5m2,
    f32,
    i32,
    op,
    u32,
)
from rlk.lang import slopes as rules
from rlk.lang.op import Op, Variant, axes_of
from rlk.lang.recompute import tape_of
from rlk.lang.variants import cotangents, differentiable, gradient_variant
from rlk.pages.spec_text import gradient_text
from rlk.passes.pipeline import canonical
from rlk.runtime.registry import unregister
from rlk.specs.model import geglu, swiglu
from rlk.specs.moe import expert_weights
from rlk.specs.norm import rms_norm
from rlk.target.facts import target
from rlk.testing.cases import Case, cases, forward_program, gradient_program, sizes
from rlk.testing.check import calls, check_slopes, check_source, check_text, check_tiles
from rlk.testing.examples import Example

Z = Axis("Z", chunk=4)
S = Axis("S", chunk=1)
Q = Ragged("Q", over=R)
Y = Axis("Y", chunk=4, dynamic=True)
H100 = target("sm_90a")


def tried(spec: Op) -> tuple[Case, ...]:
    def inputs(rng: np.random.Generator) -> dict[str, object]:
        return {"targets": rng.integers(0, 5, 5)} if spec is derived_specs.biased_loss else {}

    return cases(spec, Example(inputs))


def twin(spec: Op, saves: tuple[str, ...] = ()) -> Op:
    """Return an operator of rlk with a derived gradient in place of its own."""
    assert spec.gradient is not None
    made = copy.copy(spec)
    made.gradient, made._traced, made.saves = None, {}, (*spec.saves, *saves)
    made.derive_vjp(*spec.gradient.wrt)
    return made


@pytest.mark.parametrize("spec", WRT, ids=lambda spec: spec.name)
def test_a_derived_gradient_is_the_derivative(spec: Op) -> None:
    for case in tried(spec):
        found = check_slopes(case)
        assert found.ok and found.count and check_text(case).ok, (case.label, found.note)


@pytest.mark.parametrize("fn", [MathFn.TANH, MathFn.K3])
def test_a_wrong_rule_is_seen(fn: MathFn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules.MATH, fn, lambda g, at: g * at.y)
    wrong = copy.copy(derived_specs.functions)
    wrong.gradient, wrong._traced = None, {}
    wrong.derive_vjp("x", "w")
    assert check_slopes(tried(wrong)[0]).ok is False


@pytest.mark.parametrize("name", ["norm", "softmax", "gated", "linear", "narrow", "paired", "head"])
def test_generated_source_and_tiles_have_the_bits_of_the_oracle(name: str) -> None:
    case = tried(getattr(derived_specs, name))[0]
    (call,) = [c for c in calls(case, 0) if c.label == "gradient"]
    assert check_tiles(call, H100).ok
    found = check_source(call, H100)
    assert found.ok and found.count, found.note


def fp8_errors(spec: Op) -> list[float]:
    """Return the errors of a product's gradients by a large and a small factor, beside float64's largest."""
    x, w = (torch.randn(n, 32, generator=torch.Generator().manual_seed(n)).bfloat16() for n in (6, 3))
    want = w.to(torch.float8_e5m2).double().sum(0)
    errors = []
    for scale in (1e5, 1e-8):
        given = x.clone().requires_grad_()
        (spec(given, w) * scale).sum().backward()
        assert given.grad is not None
        error = (given.grad.double() / scale - want).abs().max() / want.abs().max()
        errors.append(float(error.nan_to_num(inf)))
    return errors


def test_cotangents_of_fp8_products_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(fp8_errors(derived_specs.narrow)) < 0.01
    monkeypatch.setattr(autodiff._Reverse, "float8_of", lambda *_: None)

    @op(saves=("x", "w"))
    def by_f16(x: Tensor[bf16, R, D], w: Tensor[bf16, M, D]) -> Outputs:
        return L.out(y=L.dot(x.to(e4m3), w.to(e5m2), over=D))

    by_f16.derive_vjp("x")
    assert min(fp8_errors(by_f16)) > 0.5


def test_a_sum_over_rows_has_the_order_that_is_printed() -> None:
    x = torch.randn(11, 2, 16, generator=torch.Generator().manual_seed(0))
    g = torch.randn(11, 2, 16, generator=torch.Generator().manual_seed(1))
    bias = torch.zeros(16, requires_grad=True)
    derived_specs.norm(x, torch.zeros(16), bias=bias).backward(g)
    rows = g[:, 0] + g[:, 1]  # heads: a halving tree
    pieces = [reduce(torch.add, piece) for piece in rows.split(4)]  # then rows, in pieces of 4
    assert torch.equal(bias.grad, reduce(torch.add, pieces))
    assert not torch.equal(bias.grad, reduce(torch.add, rows))  # in one piece: other bits


@pytest.mark.parametrize("spec", [swiglu, geglu, rms_norm, expert_weights], ids=lambda spec: spec.name)
def test_rlks_own_gradients_are_derived_as_accurately(spec: Op) -> None:
    derived = twin(spec, ("residual",) if spec is rms_norm else ())
    for case in cases(derived, spec.record.example or Example()):
        found = check_slopes(case)
        assert found.ok and found.count, (case.label, found.note)
    mine, theirs = (error_of_f32(each) for each in (derived, spec))
    assert mine <= max(2.0 * theirs, 2.0**-22), (mine, theirs)


def error_of_f32(spec: Op) -> float:
    """Return the largest error of f32 gradients, relative to the largest element of each."""
    case = cases(spec, spec.record.example or Example())[0]
    variant = replace(case.variant, dtypes=tuple((name, f32) for name, _ in case.variant.dtypes))
    forward, given = forward_program(spec, variant), cotangents(spec, variant)
    program = gradient_program(spec, gradient_variant(variant, differentiable(spec, variant), given))
    rng = np.random.default_rng(2)
    values = {n: x.astype(np.float32) if x.dtype.kind == "f" else x for n, x in as_arrays(case.values)}
    made = run(forward, values, extents=sizes(forward, values, op=spec))
    pulls = {f"d_{n}": rng.normal(size=np.shape(made[n])).astype(np.float32) for n in given}
    known = {**values, **made.tensors, **pulls}
    narrow = run(program, known, extents=sizes(program, known))
    wide_values = {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in as_arrays(values)}
    made = run_wide(forward, wide_values, extents=sizes(forward, values, op=spec))
    wide = run_wide(program, {**known, **wide_values, **made.tensors}, extents=sizes(program, known))
    return max(relative(narrow[n], x) for n, x in wide.tensors.items())


def relative(got: np.ndarray, exact: np.ndarray) -> float:
    there = np.isfinite(exact)
    assert there.any() and np.array_equal(there, np.isfinite(got))
    return float(np.max(np.abs(exact[there] - got[there])) / np.max(np.abs(exact[there])))


def as_arrays(values: Mapping[str, object]) -> list[tuple[str, np.ndarray]]:
    return [(n, np.asarray(x)) for n, x in values.items()]


@pytest.mark.parametrize("spec", WRT, ids=lambda spec: spec.name)
def test_a_gradient_is_printed_as_a_spec_that_computes_it(spec: Op) -> None:
    again = copy.copy(spec)
    names = vars(rlk.lang) | {a.name: a for a in axes_of(spec.formals)} | {spec.name: again}
    text = gradient_text(spec, gradient(spec))
    exec(compile(f"from __future__ import annotations\nimport math\n{text}", "written.py", "exec"), names)
    assert again.gradient is not None and again.gradient.fn is not None
    assert stored(gradient(again)) == stored(gradient(spec)), text


def test_extremes_of_a_dynamic_axis_are_printed_with_their_bits() -> None:
    again = copy.copy(extremes)
    text = gradient_text(extremes, gradient(extremes))
    assert "= L.max(" in text and "= L.argmax()" in text, text
    names = vars(rlk.lang) | {"R": R, "Y": Y, "extremes": again}
    exec(compile(f"from __future__ import annotations\nimport math\n{text}", "written.py", "exec"), names)
    rng = np.random.default_rng(4)
    x = rng.normal(size=(3, 7)).astype(np.float32).round(1)  # some equal
    given = {"x": x} | {f"d_{n}": rng.normal(size=3).astype(np.float32) for n in ("total", "least")}

    def bits(op: Op) -> np.ndarray:
        made = run(canonical(gradient(op)), given, extents={"R": 3, "Y": 7}, softmax=H100.softmax)
        return made["d_x"].view(np.int32)

    want = bits(extremes)
    assert np.array_equal(bits(again), want) and np.count_nonzero(want) > 14
    wrong = text.replace("L.exp(", "L.exp2(")
    exec(compile(f"from __future__ import annotations\n{wrong}", "wrong.py", "exec"), names)
    assert not np.array_equal(bits(again), want)  # the control


def stored(program: Program) -> dict[str, int]:
    """Return a digest of how each output is computed, whatever the order of independent values."""
    (kernel,) = program.kernels
    found: dict[Value, int] = {}
    memory: dict[str, int] = {}
    for let in tape_of(kernel.body):
        node = let.node
        if isinstance(node, Stream):
            absorbed = [(fold.monoid, [found[v] for v in fold.inputs]) for fold in node.folds]
            bounds = [v if v is None else found[v] for v in bounds_of(node)]
            found[let.value] = hash(repr((node.axis, bounds, absorbed)))
            continue
        text = repr(with_operands(node, found.__getitem__))
        if isinstance(node, Load | Store):
            text = text.replace(repr(node.param), str(memory.get(node.param, node.param)))
        found[let.value] = hash(text)
        if isinstance(node, Store):
            memory[node.param] = hash(text)
    return {d.name: memory[d.name] for d in kernel.params if d.role is Role.OUT}


def test_another_order_of_a_product_is_seen() -> None:
    @op(saves=("x", "w"))
    def other(x: Tensor[F, R, N], w: Tensor[F, R, N]) -> Outputs:
        return L.out(y=(x.to(f32) * w.to(f32)).to(x.dtype))

    def written(right: bool) -> dict[str, int]:
        @other.vjp("x")
        def gradient_of_x(ctx, d_y: Tensor[F, R, N]) -> Outputs:
            a, b, c = d_y.to(f32), ctx.w.to(f32), ctx.x.to(f32)
            return L.out(d_x=(a * (b / c) if right else a * b / c).to(ctx.x.dtype))

        return stored(gradient(other))

    assert written(True) == written(True) != written(False)
    written(True)
    assert "* (" in gradient_text(other, gradient(other))


# --- refusals ---


@op(saves=("x",))
def extremes(x: Tensor[f32, R, Y]) -> Outputs:
    """The sum of exp(x - max x), and the least, along an axis of any length."""
    e = L.exp(x * 2.0 - L.max(x * 2.0, over=Y))
    return L.out(total=L.sum(e, over=Y, tree=Tree.halving), least=L.min(x, over=Y))


extremes.derive_vjp("x")


@op(saves=("x",))
def rounded(x: Tensor[f32, R, N]) -> Outputs:
    """The upper bits of a float."""
    return L.out(y=((x.bits(u32) >> 16) << 16).bits(f32))


@op(saves=("x",))
def recurrence(x: Tensor[f32, R, S]) -> Outputs:
    """A decayed sum."""
    state = L.carry(0.0, R)
    for s in L.stream(S):
        L.emit(y=state.value + x[s])
        state.hand(0.5 * state.value + x[s])
    return L.out()


@op(saves=("x", "begin", "end"))
def segments(x: Tensor[f32, P], begin: Tensor[i32, R], end: Tensor[i32, R]) -> Outputs:
    """Sums of segments."""
    total = L.total()
    for s in L.stream(Q, begin=begin, end=end):
        total.absorb(x.at(s.pos))
    return L.out(y=total.value)


@op(saves=("table", "ids"))
def lookup(table: Tensor[f32, M, N], ids: Tensor[i32, R]) -> Outputs:
    """Rows of a table."""
    return L.out(y=table.at(ids, N))


@op(saves=("x", "bias"))
def unordered(x: Tensor[f32, R, N], bias: Tensor[f32, N]) -> Outputs:
    """A bias whose gradient is a sum over rows without chunks."""
    return L.out(y=x + bias)


@op(saves=("x",))
def unsaved(x: Tensor[f32, R, N], w: Tensor[f32, R, N]) -> Outputs:
    """A product of which one factor is not saved."""
    return L.out(y=x * w)


@op(saves=("z",))
def state(z: Tensor[f32, R, Z]) -> Outputs:
    """A state of a fold that no formula of lse, mean or entropy has."""
    soft = L.softmax_sum()
    for v in L.stream(Z):
        soft.absorb(z[v])
    return L.out(y=soft.sum)


@op(saves=("z",))
def weighed(z: Tensor[f32, R, Z]) -> Outputs:
    """Another sum of a maximum and a logarithm than a log-sum-exp."""
    soft = L.softmax_sum()
    for v in L.stream(Z):
        soft.absorb(z[v])
    return L.out(y=L.fma(soft.max, 0.5, L.log(soft.sum)))


@op(saves=("z",))
def powers(z: Tensor[f32, R, Z]) -> Outputs:
    """The log-sum-exp of another fold than this one."""
    soft = L.power_sum()
    for v in L.stream(Z):
        soft.absorb(z[v])
    return L.out(y=soft.max + L.log(soft.sum))


REFUSED = [
    (rounded, "x", "VJP_DERIVED", ".bits(f32)"), (recurrence, "x", "VJP_DERIVED", "L.stream(S)"),
    (segments, "x", "VJP_DERIVED", "total.absorb"), (lookup, "table", "VJP_DERIVED", "table.at(ids, N)"),
    (unordered, "bias", "VJP_SUM", "x + bias"), (unsaved, "x", "VJP_SAVED", "x * w"),
    (state, "z", "VJP_DERIVED", "soft.absorb"), (weighed, "z", "VJP_DERIVED", "soft.absorb"),
    (powers, "z", "VJP_DERIVED", "soft.absorb"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "wrt", "code", "line"), REFUSED, ids=lambda x: getattr(x, "name", None))
def test_what_has_no_rule_is_refused_at_the_authors_line(spec: Op, wrt: str, code: str, line: str) -> None:
    spec.derive_vjp(wrt)
    with pytest.raises(SpecError) as caught:
        gradient(spec)
    text = str(caught.value)
    assert f"[{code}]" in text and line in text and "test_derived_gradients.py" in text, text
    assert code != "VJP_DERIVED" or f"@{spec.name}.vjp(...)" in text


def test_every_axis_of_a_sum_without_an_order_is_named_at_once() -> None:
    @op(saves=("x", "bias"))
    def planes(x: Tensor[f32, Axis("A", dynamic=True), Axis("B", dynamic=True), N], bias: Tensor[f32, N]):
        return L.out(y=x + bias)

    planes.derive_vjp("bias")
    with pytest.raises(SpecError, match="is a sum over A and B"):
        gradient(planes)


def gradient(spec: Op) -> Program:
    """Trace the gradient of an operator's default variant, for all inputs and outputs."""
    plain = spec.default_variant()
    assert spec.gradient is not None
    wanted, given = differentiable(spec, plain), cotangents(spec, plain)
    return spec.gradient.trace(gradient_variant(plain, wanted, given))


# --- the public form ---


@op(saves=("x", "w"))
def product(x: Tensor[F, R, N], w: Tensor[F, R, N]) -> Outputs:
    """x w."""
    return L.out(y=(x.to(f32) * w.to(f32)).to(x.dtype))


def test_a_derived_gradient_has_the_numerics_of_the_same_formula_by_hand() -> None:
    product.derive_vjp("x", "w")
    derived = canonical(gradient(product))

    @product.vjp("x", "w")
    def product_grad(ctx, d_y: Tensor[F, R, N]) -> Outputs:
        g = d_y.to(f32)
        d_x, d_w = g * ctx.w.to(f32), g * ctx.x.to(f32)
        L.place("d_x", (R, N), ({}, d_x.to(ctx.x.dtype)))
        L.place("d_w", (R, N), ({}, d_w.to(ctx.w.dtype)))
        return L.out()

    assert product.gradient is product_grad
    written = canonical(gradient(product))
    assert numerics_id((derived,), "sm_90a") == numerics_id((written,), "sm_90a")
    again = product.derive_vjp("x", "w")
    assert product.gradient is product_grad and again.fn is None  # what an author writes wins


def test_only_saved_values_are_read_and_others_are_computed_again() -> None:
    read = {d.name for d in gradient(derived_specs.norm).kernels[0].params if d.role is Role.IN}
    assert {"rstd", "x", "weight", "d_y"} == read
    text = print_program(canonical(gradient(derived_specs.norm)))
    assert "fn=rsqrt" not in text
    without = copy.copy(derived_specs.norm)
    without.gradient, without._traced, without.saves = None, {}, ("x", "weight")
    without.derive_vjp("x", "weight", "bias")
    assert "fn=rsqrt" in print_program(canonical(gradient(without)))


def test_outputs_that_callers_do_not_get_have_no_cotangent() -> None:
    assert derived_specs.norm.gradient is not None and derived_specs.biased_loss.gradient is not None
    assert [f.name for f in derived_specs.norm.gradient.formals] == ["d_y"]
    (loss,) = derived_specs.biased_loss.gradient.formals
    assert loss.name == "d_loss" and loss.optional


def test_an_output_of_a_variant_that_was_not_tried_is_no_constant() -> None:
    @op(saves=("x",))
    def several(x: Tensor[f32, R, N], more: Static[...] = False) -> Outputs:
        return L.out(y=x * x, z=x * x * x if more else None)

    derived = several.derive_vjp()
    assert derived.wrt == ("x",)
    plain, more = (
        Variant.of(statics={"more": each}, present={"d_y"}, wanted={"x"}) for each in (False, True)
    )
    assert derived.trace(plain).kernels
    with pytest.raises(SpecError, match="the output z, which no variant has"):
        derived.trace(more)


@pytest.mark.parametrize(("other", "refused"), [("wider", True), ("narrower", False), ("dims", True)])
def test_an_output_of_two_types_is_refused_where_its_cotangent_cannot_be_held(
    other: str, refused: bool
) -> None:
    @op(saves=("x",))
    def several(x: Tensor[f32, R, N], plain: Static[True, False] = True) -> Outputs:
        y = x * x
        if other != "dims":
            return L.out(y=y.to(bf16) if plain == (other == "wider") else y)
        return L.out(y=y if plain else L.sum(y, over=N, tree=Tree.halving))

    derived = several.derive_vjp()
    first, second = (
        Variant.of(statics={"plain": each}, present={"d_y"}, wanted={"x"}) for each in (True, False)
    )
    assert derived.trace(first).kernels
    if not refused:  # the cotangents of all variants are f32
        assert derived.trace(second).kernels
        return
    with pytest.raises(SpecError, match="the output y, which is .* here and .* in another variant"):
        derived.trace(second)


def test_an_input_that_is_not_read_has_a_gradient_of_0() -> None:
    @op(saves=("x",))
    def squares(x: Tensor[f32, R, N], unread: Tensor[f32, N]) -> Outputs:
        return L.out(y=x * x)

    squares.derive_vjp()
    assert check_slopes(cases(squares, Example())[0]).ok
    unread = torch.ones(5, requires_grad=True)
    squares(torch.ones(3, 5, requires_grad=True), unread).sum().backward()
    assert torch.equal(unread.grad, torch.zeros(5))


def test_an_output_that_does_not_depend_on_an_input_pulls_at_nothing() -> None:
    @op(saves=("x", "w"))
    def two(x: Tensor[f32, T, N], w: Tensor[f32, R, N]) -> Outputs:
        return L.out(y=x * x, z=w * w)

    two.derive_vjp()
    x = torch.ones(2, 3, requires_grad=True)
    two(x, torch.ones(4, 3)).z.sum().backward()
    assert x.grad is None
    two(x, torch.ones(4, 3)).y.sum().backward()
    assert torch.equal(x.grad, 2 * x.detach())


def test_torchs_library_too_has_no_gradient_of_what_nothing_depends_on() -> None:
    @op(saves=("x",))
    def squared(x: Tensor[f32, T, N], unread: Tensor[f32, N]) -> Outputs:
        """x * x."""
        return L.out(y=x * x)

    squared.derive_vjp()
    rlk.register(squared, namespace="derived_squared")
    try:
        unread = torch.ones(3, requires_grad=True)
        (y,) = torch.ops.derived_squared.squared(torch.ones(2, 3), unread)  # what compilers call
        assert torch.autograd.grad(y.sum(), unread, allow_unused=True) == (None,)
        x = torch.ones(2, 3, requires_grad=True)
        (y,) = torch.ops.derived_squared.squared(x, unread)
        found, nothing = torch.autograd.grad(y.sum(), (x, unread))
        assert torch.equal(found, 2 * x) and not nothing.any()
    finally:
        unregister("derived_squared.squared")


def test_rows_without_elements_add_nothing_to_what_else_there_is() -> None:
    @op(saves=("x", "w"))
    def both(x: Tensor[f32, T, N], w: Tensor[f32, N]) -> Outputs:
        total = L.total()
        for t in L.stream(T):
            total.absorb(L.sum(x[t] * w, over=N, tree=Tree.halving))
        return L.out(y=total.value + L.sum(w * w, over=N, tree=Tree.halving))

    both.derive_vjp()
    w = torch.arange(5.0, requires_grad=True)
    y = both(torch.zeros(0, 5), w)
    y.backward()
    assert y == 30.0 and torch.equal(w.grad, 2 * w.detach())


@op(saves=("z", "w"))
def same_in_all(z: Tensor[f32, R, Z], w: Tensor[f32, R]) -> Outputs:
    """A payload that is computed outside of its stream."""
    soft, row = L.softmax_sum(), w * w
    for v in L.stream(Z):
        soft.absorb(z[v], x=row)
    return L.out(y=soft.mean("x") * soft.mean("x") * soft.lse())


@op(saves=("x", "w"))
def over_batches(x: Tensor[bf16, H, M, D], w: Tensor[bf16, H, N, D]) -> Outputs:
    """Products whose cotangents are the same in all of a batch, and in all rows of one factor."""
    y = L.dot(x, w, over=D, each=(H,))
    columns = L.sum(L.sum(y, over=M, tree=Tree.halving), over=H, tree=Tree.halving)
    return L.out(y=L.sum(y, over=H, tree=Tree.halving), columns=columns)


@op(saves=("x", "w"))
def over_streamed_rows(x: Tensor[f32, S, N], w: Tensor[f32, N]) -> Outputs:
    """Sums over rows, by column and of whole rows: no axis is left to run programs along."""
    total, soft = L.total(), L.softmax_sum()
    for s in L.stream(S):
        total.absorb(x[s] * w)
        soft.absorb(L.sum(x[s] * w, over=N, tree=Tree.halving))
    return L.out(y=total.value * soft.lse())


@pytest.mark.parametrize("spec", [same_in_all, over_batches, over_streamed_rows], ids=lambda spec: spec.name)
def test_what_is_the_same_along_an_axis_is_differentiated(spec: Op) -> None:
    spec.derive_vjp()
    (case,) = cases(spec, Example())
    found = check_slopes(case)
    assert found.ok and found.count, found.note
    (call,) = [c for c in calls(case, 0) if c.label == "gradient"]
    found = check_source(call, H100)
    assert found.ok and found.count, found.note


def test_calls_are_differentiated() -> None:
    z = torch.randn(
        3, 20, dtype=torch.float32, generator=torch.Generator().manual_seed(3), requires_grad=True
    )
    pull = torch.randn(3, 20, generator=torch.Generator().manual_seed(4))
    derived_specs.softmax(z).backward(pull)
    exact = z.detach().double().requires_grad_()
    torch.softmax(exact, -1).backward(pull.double())
    torch.testing.assert_close(z.grad.double(), exact.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("saved", [True, False])
def test_an_author_is_told_to_save_what_needs_products(saved: bool) -> None:
    @op(saves=("x", "w", "lse") if saved else ("x", "w"), returns=("lse",))
    def total(x: Tensor[bf16, P, D], w: Tensor[bf16, W, D]) -> Outputs:
        soft = L.softmax_sum()
        for v in L.stream(W):
            soft.absorb(L.dot(x, w[v], over=D))
        lse = soft.lse()
        return L.out(lse=lse)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        derived = total.derive_vjp("x")
        derived.trace(Variant.of(present={"d_lse"}, wanted={"x"}))
    assert bool(said) is not saved
    for each in said:
        assert each.filename == __file__ and 'saves=(..., "lse")' in str(each.message)
        assert "lse = soft.lse()" in Path(__file__).read_text().splitlines()[each.lineno - 1]
