"""Operators that write outputs into the memory of inputs."""

from __future__ import annotations

import pytest
import torch
from runners import by_triton

import rlk
from rlk.errors import Code, LaunchError, SpecError
from rlk.interp.run import run
from rlk.lang import Axis, L, Op, Outputs, Scalar, Tensor, Tree, bf16, f32, i32, i64, op, u32
from rlk.passes.pipeline import canonical
from rlk.runtime.binding import invocation
from rlk.runtime.binding.invocation import interface
from rlk.runtime.binding.selection import invoke
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.registry import unregister
from rlk.target.facts import target
from rlk.testing.check import Law, check
from rlk.testing.examples import Example

T = Axis("T", dynamic=True)
N = Axis("N")
S = Axis("S", dynamic=True)


@op(into={"m_out": "m"})
def momentum(m: Tensor[f32, T, N], g: Tensor[bf16, T, N], beta: Scalar[f32]) -> Outputs:
    """Decay m and add g; return the norm's summands too."""
    new = m * beta + g.to(f32)
    return L.out(m_out=new, square=new * new)


@op(into={"x_out": "x"})
def shifted(x: Tensor[f32, T]) -> Outputs:
    """Each element becomes its neighbour: what a kernel reads, another program may have written."""
    return L.out(x_out=x.at(L.pos(T) - 1, fill=0.0))


@op(into={"residual_out": "residual"})
def added(residual: Tensor[f32, T, N], x: Tensor[f32, T, N]) -> Outputs:
    """A residual, and its rows over their root mean square."""
    h = residual + x
    mean = L.sum(h * h, over=N, tree=Tree.halving) / L.extent(N).to(f32)
    return L.out(residual_out=h, y=h * L.rsqrt(mean + 1e-6))


@op(into={"cache_out": "cache"})
def put(cache: Tensor[f32, S, N], rows: Tensor[f32, T, N], slots: Tensor[i32, T]) -> Outputs:
    """Write rows to their slots; other slots stay."""
    L.place("cache_out", (S, N), ({S: slots.whole()}, rows.whole()))
    return L.out()


@op(into={"x_out": "x"})
def uniform(x: Tensor[f32, T, N], seed: Scalar[i64]) -> Outputs:
    """Fill x with uniform numbers of (row, column, seed): no tensor is read."""
    zero = L.number(0, u32)
    counter = (L.pos(T).to(u32), L.pos(N).to(u32), zero, zero)
    word, *_ = L.philox(counter, (seed.to(u32), (seed >> 32).to(u32)))
    return L.out(x_out=(word >> 8).to(i32).to(f32) * 2.0**-24)


@op(into={"x_out": "x"})
def filled(x: Tensor[f32, T, N], value: Scalar[f32]) -> Outputs:
    """Fill x with a number."""
    return L.out(x_out=value)


OPS = (momentum, shifted, added, put, uniform, filled)


def placed(spec, **tensors: torch.Tensor) -> frozenset[str]:
    return interface(invoke(spec, tensors, {"beta": 1.0} if spec is momentum else {}, {}, None)).in_place


def test_an_elementwise_update_is_written_in_place() -> None:
    m, g = torch.randn(2, 3, 8), torch.randn(2, 3, 8).bfloat16()
    want = m * 0.5 + g.float()
    version, address = m._version, m.data_ptr()
    made = momentum(m, g, beta=0.5)
    assert made.m_out is m and torch.equal(m, want) and torch.equal(made.square, want * want)
    assert m._version > version and m.data_ptr() == address
    assert placed(momentum, m=m, g=g) == {"m_out"}


def test_what_kernels_read_after_a_write_is_copied() -> None:
    x = torch.arange(5000.0)
    want = torch.cat([torch.zeros(1), x[:-1]])
    kept, together = x.numpy().copy(), x.numpy().copy()
    assert shifted(x) is x and torch.equal(x, want) and placed(shifted, x=x) == set()
    program = canonical(shifted.trace(shifted.default_variant()))
    run(program, {"x": together, "x_out": together}, tile={"T": 64})  # the control: written in place
    assert (together != want.numpy()).any() and (run(program, {"x": kept})["x_out"] == want.numpy()).all()
    residual, more = torch.randn(4, 24), torch.randn(4, 24)
    want = residual + more
    made = added(residual, more)
    assert made.residual_out is residual and torch.equal(residual, want)
    assert placed(added, residual=residual, x=more) == set()


P, E, K = Axis("P", dynamic=True), Axis("E", piece=8), Axis("K")


def accumulating() -> Op:
    @op(into={"left": "a"})
    def accumulated(a: Tensor[f32, P, K], b: Tensor[bf16, E, K], z: Tensor[f32, P, K]) -> Outputs:
        """A product of kept products onto z: the first kernel runs for each piece of E."""
        kept = L.keep(L.dot(a.to(bf16), b, over=K).to(bf16), "kept")
        return L.out(left=L.dot(kept, b, over=E, onto=z))

    return accumulated


def test_what_loops_of_the_host_read_again_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: written in place, the second piece reads what the first one wrote."""
    a, b, z = torch.randn(5, 16), torch.randn(24, 16).bfloat16(), torch.randn(5, 16)
    assert placed(accumulating(), a=a, b=b, z=z) == set()
    want = accumulating()(a.clone(), b, z)
    try:
        by_triton()
        assert torch.equal(accumulating()(a.clone(), b, z), want)
        monkeypatch.setattr(invocation, "in_place", lambda program, into: frozenset(into))
        assert not torch.equal(accumulating()(a.clone(), b, z), want)
    finally:
        dispatch.interpret_with(None)


def test_elements_that_nothing_is_stored_to_stay() -> None:
    cache, rows = torch.randn(6, 4), torch.randn(2, 4)
    want = cache.clone()
    want[[4, 1]] = rows
    assert put(cache, rows, torch.tensor([4, 1], dtype=torch.int32)) is cache and torch.equal(cache, want)
    assert placed(put, cache=cache, rows=rows, slots=torch.tensor([4, 1], dtype=torch.int32)) == {"cache_out"}


def test_a_fill_reads_no_tensor() -> None:
    x = torch.full((3, 50), torch.nan)
    again = x.clone()
    assert uniform(x, seed=3) is x and 0.0 <= x.min() and x.max() < 1.0 and 0.4 < x.mean() < 0.6
    assert torch.equal(uniform(again, seed=3), x) and not torch.equal(uniform(again, seed=4), x)
    assert filled(x, value=2.0) is x and torch.equal(x, torch.full((3, 50), 2.0))
    columns = torch.zeros(50, 3).T  # no memory that kernels write
    with pytest.raises(LaunchError, match="stride"):
        filled(columns, value=1.0)
    wide = torch.zeros(3, 60)
    filled(wide[:, 5:55], value=1.0)
    assert wide.sum() == 150.0 and wide[:, :5].sum() == 0.0


def test_rows_of_several_strides_are_copied_back() -> None:
    whole = torch.zeros(2, 5, 8)
    m, g = whole[:, :3], torch.ones(2, 3, 8).bfloat16()
    assert not m.is_contiguous()
    momentum(m, g, beta=0.0)
    assert torch.equal(m, torch.ones(2, 3, 8)) and whole.sum() == 48.0


def test_memory_that_overlaps_is_refused() -> None:
    both = torch.randn(3, 16)
    with pytest.raises(LaunchError, match="residual is written, and its memory overlaps x") as caught:
        added(both, both)
    assert caught.value.code is Code.ARG_OVERLAP
    with pytest.raises(LaunchError, match="overlaps itself"):
        filled(torch.zeros(1, 8).expand(3, 8), value=1.0)
    with pytest.raises(LaunchError, match="overlaps x"):
        added(both[:, :8], both[:, 4:12])
    left = both[:, :8].clone()
    added(both[:, :8], both[:, 8:])  # columns of the same rows
    assert torch.equal(both[:, :8], left + both[:, 8:])


@pytest.mark.parametrize("interpreted", [False, True])
def test_negated_views_have_the_values_that_they_show(interpreted: bool) -> None:
    """Read, written, saved for a gradient, and as a cotangent; their memory has the other signs."""
    negated = torch._neg_view
    if interpreted:
        by_triton()
    try:
        m, g = torch.randn(3, 16), torch.randn(3, 16).bfloat16()
        want, memory = momentum((-m).clone(), -g, beta=0.5), m.clone()
        made = momentum(negated(memory), negated(g), beta=0.5)
        assert torch.equal(memory, -want.m_out) and torch.equal(made.square, want.square)
        assert not torch.equal(momentum(-m, g, beta=0.5).square, want.square)  # the control: other signs
        a, b, d = (torch.randn(n, k).bfloat16() for n, k in ((3, 16), (8, 16), (3, 8)))
        found = []
        for x, d_y in ((-a, -d), (negated(a), negated(d))):
            each = x.requires_grad_(), b.clone().requires_grad_()
            y = rlk.ops.matmul(*each)
            found.append((y, *torch.autograd.grad(y, each, d_y)))
        assert all(torch.equal(p, q) for p, q in zip(*found, strict=True))
        out = torch.zeros(8, 16)
        with pytest.raises(LaunchError, match="no lazily negated view, since it is written"):
            y = rlk.ops.matmul(a, b.clone().requires_grad_(), weight_grad_out=negated(out))
            y.backward(d)
    finally:
        dispatch.interpret_with(None)


@op(into={"k_out": "k", "v_out": "v"})
def scaled(k: Tensor[f32, T, N], v: Tensor[f32, T, N]) -> Outputs:
    """Write two halves of one cache."""
    return L.out(k_out=k * 2.0, v_out=v + 1.0)


@pytest.mark.parametrize("interpreted", [False, True])
def test_parts_of_one_tensor_are_apart(interpreted: bool) -> None:
    if interpreted:
        by_triton()
    try:
        kv, wide = torch.ones(4, 2, 3, 8), torch.ones(5, 4, 16)
        scaled(kv[:, 0], kv[:, 1])
        assert torch.equal(kv[:, 0], torch.full((4, 3, 8), 2.0)) and torch.equal(kv[:, 0], kv[:, 1])
        scaled(wide[:3, 2, 4:8], wide[1:4, 1, :4])  # the first rows of one, and the last of the other
        assert wide.sum() == 5 * 4 * 16 + 2 * 3 * 4
    finally:
        dispatch.interpret_with(None)


def test_overlaps_of_parts_and_of_windows_are_refused() -> None:
    kv, line = torch.ones(4, 2, 24), torch.zeros(16)
    shared = [
        ("v", kv[:, 0, :16], kv.view(4, 48)[:, 8:24]),
        ("v", kv[:, 0, :16], kv.view(-1).as_strided((4, 16), (40, 1), 16)),  # no length in common
        ("itself", line.unfold(0, 8, 1), torch.ones(9, 8)),
    ]
    for other, k, v in shared:
        with pytest.raises(LaunchError, match=f"k is written, and its memory overlaps {other}"):
            scaled(k, v)
    assert not line.any() and kv.eq(1).all()
    filled(line.unfold(0, 8, 8), value=1.0)  # the control: windows side by side
    assert line.eq(1).all()


def test_errors_of_written_inputs_keep_the_result() -> None:
    columns, both = torch.zeros(50, 3).T, torch.randn(3, 16)
    with pytest.raises(LaunchError, match=r"(?s)is written, and has .* then x\.copy_\(t\)") as caught:
        filled(columns, value=1.0)
    assert caught.value.code is Code.WRITTEN_STRIDE
    with pytest.raises(LaunchError, match=r"then residual\.copy_\(t\)"):
        added(both, both)
    with pytest.raises(LaunchError, match="call .contiguous.. on it"):  # the control: x is read alone
        added(torch.zeros(3, 8), both[:, ::2])


def test_autograd_is_refused_and_versions_count() -> None:
    m, g = torch.randn(2, 8, requires_grad=True), torch.randn(2, 8).bfloat16()
    with pytest.raises(LaunchError) as caught:
        momentum(m, g, beta=1.0)
    assert caught.value.code is Code.NOT_DIFFERENTIABLE
    assert "without into=" in str(caught.value) and "vjp" not in str(caught.value)
    y = (m * m).sum()
    with torch.no_grad():
        momentum(m, g, beta=1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_gradient_and_wrong_pairs_are_refused() -> None:
    with pytest.raises(SpecError) as caught:
        momentum.derive_vjp("g")
    assert caught.value.code is Code.INTO_GRADIENT
    with pytest.raises(SpecError, match="it is f32") as caught:

        @op(into={"y": "x"})
        def other(x: Tensor[f32, T]) -> Outputs:
            return L.out(y=x.to(bf16))

        other.trace(other.default_variant())
    assert caught.value.code is Code.INTO_WRONG
    with pytest.raises(SpecError) as caught:

        @op(into={"y": "z"})
        def nothing(x: Tensor[f32, T]) -> Outputs:
            return L.out(y=x)

    assert caught.value.code is Code.UNKNOWN_NAME


def test_torch_compile_sees_the_mutation() -> None:
    rlk.register(momentum, namespace="into_tests")
    try:
        m, g = torch.randn(3, 8), torch.randn(3, 8).bfloat16()
        want = momentum(m.clone(), g, beta=0.5)

        def step(m: torch.Tensor) -> torch.Tensor:
            before = m.sum()
            made = momentum(m, g, beta=0.5)
            return before + made.square.sum() + made.m_out.sum() + m.sum()

        eager = step(m.clone())
        compiled = m.clone()
        found = torch.compile(step, backend="aot_eager", fullgraph=True)(compiled)
        assert torch.equal(compiled, want.m_out) and torch.equal(found, eager)
        torch.library.opcheck(torch.ops.into_tests.momentum.default, (m, g, 0.5, "auto"))
        rlk.register(filled, namespace="into_tests")
        torch.library.opcheck(torch.ops.into_tests.filled.default, (m, 0.5, "auto"))
        rlk.register(added, namespace="into_tests")
        both = torch.randn(3, 16)
        views = ((both, both), (both[:, :8], both[:, 4:12]), (both[:, :8], both[:, 8:]))
        compiled_add = torch.compile(lambda x, y: added(x, y).y, backend="aot_eager", fullgraph=True)
        for pair in views[:2]:
            with pytest.raises(RuntimeError, match="residual is written, and its memory overlaps x"):
                compiled_add(*pair)
        kept = both.clone()
        assert torch.equal(compiled_add(*views[2]), added(kept[:, :8], kept[:, 8:]).y)
        assert torch.equal(both, kept)  # columns of the same rows
    finally:
        for each in (momentum, filled, added):
            unregister(each.qualified)


@pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.name)
def test_every_law_holds(spec) -> None:
    laws = [Law.TEXT, Law.TILES, Law.ROWS, Law.SOURCE, Law.SIMULATED, Law.LOWERS]
    distinct = Example(inputs=lambda rng: {"slots": rng.permutation(11)}) if spec is put else Example()
    verdicts = list(check(spec, distinct, [target("sm_90a")], laws))
    assert [v for v in verdicts if v.ok is False] == []
    assert {v.law for v in verdicts if v.ok} >= {Law.TEXT, Law.TILES, Law.SOURCE, Law.LOWERS}
