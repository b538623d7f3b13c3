"""Rows that no one stride advances through, in operators whose forward contracts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from rlk.errors import Code, LaunchError
from rlk.lang import Axis, DTypeVar, L, Outputs, Tensor, bf16, f32, op
from rlk.runtime.binding import invocation
from rlk.runtime.binding.selection import invoke
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.registry import register, unregister
from rlk.testing.bits import assert_same_bits
from rlk.testing.simulators.interpreter import interpret

T = Axis("T", chunk=16, piece=64, dynamic=True)
M, N = Axis("M"), Axis("N")
F = DTypeVar("F", (bf16, f32))


@op()
def product_of_rows(x: Tensor[F, T, M], z: Tensor[F, T, N], scale: Tensor[f32, T] | None) -> Outputs:
    """x^T z, and the rows of x times 2: one output has rows, the other is a sum over them."""
    return L.out(y=L.dot(x, z, over=T), twice=x.to(f32) * 2.0)


@op()
def doubled(x: Tensor[F, T, N]) -> Outputs:
    """The rows times 2: nothing contracts them."""
    return L.out(y=x.to(f32) * 2.0)


@pytest.fixture(params=["oracle", "triton"])
def runner(request: pytest.FixtureRequest) -> Iterator[str]:
    before = dispatch.interpreter
    dispatch.interpret_with(interpret if request.param == "triton" else None)
    yield request.param
    dispatch.interpret_with(before)


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all but the last": lambda x: x[:, :-1],
    "every other": lambda x: x[::2, 1:],
    "transposed": lambda x: x.transpose(0, 1),
    "expanded": lambda x: x[:1].expand(3, -1, -1),
    "three dims": lambda x: torch.stack([x, x + 1], 1)[:, :, 1:],
    "three dims of three strides": lambda x: torch.stack([x, x + 1, x - 1], 2)[:, 1:, :2],
    "unaligned": lambda x: torch.cat([x, x], -1)[:, :-1, 3 : 3 + x.shape[-1]],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("other", ["contiguous", "the same"])
def test_contracted_rows_of_two_strides_have_the_bits_of_contiguous_rows(
    runner: str, view: str, other: str
) -> None:
    x, z = VIEWS[view](drawn(4, 10, 24, seed=0)), VIEWS[view](drawn(4, 10, 32, seed=1))
    wanted = product_of_rows(x.contiguous(), z.contiguous())
    made = product_of_rows(x, z.contiguous() if other == "contiguous" else z)
    assert made.twice.shape == x.shape
    for mine, theirs in zip(made, wanted, strict=True):
        assert_same_bits(mine, theirs)
    exact = x.double().flatten(0, -2).T @ z.double().flatten(0, -2)
    torch.testing.assert_close(made.y.double(), exact, rtol=1e-5, atol=1e-4)


def test_a_kernel_that_is_given_two_strides_has_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: nothing but the copies makes the sums right."""
    before = dispatch.interpreter
    monkeypatch.setattr(invocation, "_contracts_rows", lambda spec, program: False)
    invocation.interfaces.clear()
    dispatch.interpret_with(interpret)
    try:
        x, z = drawn(4, 10, 24, seed=0)[:, :-1], drawn(4, 10, 32, seed=1)[:, :-1]
        wanted = product_of_rows(x.contiguous(), z.contiguous())
        with pytest.raises(AssertionError):
            assert_same_bits(product_of_rows(x, z).y, wanted.y)
    finally:
        invocation.interfaces.clear()
        dispatch.interpret_with(before)


@pytest.mark.parametrize("rows, copies", [((4, 10), 0), ((4, 11), 2)])
def test_only_contracted_rows_of_several_strides_are_copied(
    rows: tuple[int, int], copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[torch.Tensor] = []
    real = torch.Tensor.contiguous
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda t: made.append(t) or real(t))
    x, z = drawn(*rows, 24, seed=0)[:, :10], drawn(*rows, 32, seed=1)[:, :10]
    for spec, tensors in ((product_of_rows, {"x": x, "z": z}), (doubled, {"x": x})):
        run = dispatch.find(invoke(spec, tensors, {}, {}, None), tensors)
        made.clear()
        run(tensors, {})
        copied = [t for t in made if any(t is given for given in tensors.values())]
        assert len(copied) == (copies if spec is product_of_rows else 0)


def test_rows_that_nothing_contracts_have_at_most_two_strides() -> None:
    with pytest.raises(LaunchError) as refused:
        doubled(VIEWS["three dims of three strides"](drawn(4, 10, 24, seed=0)))
    assert refused.value.code is Code.ARG_STRIDE


def test_compilers_and_questions_take_such_rows() -> None:
    view = VIEWS["three dims of three strides"]
    x, z = view(drawn(4, 10, 24, seed=0)), view(drawn(4, 10, 32, seed=1))
    register(product_of_rows, namespace="strides")
    try:
        wanted = product_of_rows(x.contiguous(), z.contiguous())
        made = torch.compile(lambda x, z: product_of_rows(x, z), fullgraph=True, backend="aot_eager")(x, z)
        for mine, theirs in zip(made, wanted, strict=True):
            assert_same_bits(mine, theirs)
        assert product_of_rows.explain(x, z).numerics_id == product_of_rows.numerics_id("cpu")
    finally:
        unregister("strides.product_of_rows")
