"""Gradients of heads side by side: written where they belong, the bits of those that a copy joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from runners import by_triton

from rlk import ops
from rlk.errors import LaunchError
from rlk.nn.parts import _Gradient, _views, heads_side_by_side
from rlk.runtime.call.dispatch import dispatch
from rlk.testing.bits import differing

COUNTS, WIDTH, TOKENS = (4, 2, 2), 16, 5
Split = Callable[[torch.Tensor, tuple[int, ...], int], list[torch.Tensor]]


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def tables() -> dict[str, torch.Tensor]:
    cos, sin = (t.bfloat16() for t in ops.rope_table(32, WIDTH))
    return {"cos": cos, "sin": sin, "position_ids": torch.arange(3, 3 + TOKENS)}


def normed(split: Split, x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    q, k, v = split(x, COUNTS, WIDTH)
    return [ops.qk_norm(q, weight, **tables()), ops.qk_norm(k, weight, **tables()), v * 2]


def rotated(split: Split, x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    q, k, v = split(x, COUNTS, WIDTH)
    return [*ops.rope(q, k, **tables()), v]


def of_q_alone(split: Split, x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    return [ops.qk_norm(split(x, COUNTS, WIDTH)[0], weight, **tables())]


def read_twice(split: Split, x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    q, k, v = split(x, COUNTS, WIDTH)
    return [ops.qk_norm(q, weight, **tables()), ops.qk_norm(q, weight), k, v]


@pytest.fixture(params=["oracle", "triton"])
def runner(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "triton":
        by_triton()
    yield request.param
    dispatch.interpret_with(None)


@pytest.mark.parametrize("read", [normed, rotated, of_q_alone, read_twice])
def test_gradients_are_those_of_joined_parts(read: Callable[..., list[torch.Tensor]], runner: str) -> None:
    found = []
    for split in (heads_side_by_side, _views):
        x = drawn(TOKENS, sum(COUNTS) * WIDTH, seed=0).requires_grad_()
        weight = drawn(WIDTH, seed=1).requires_grad_()
        made = read(split, x, weight)
        seeds = [drawn(*y.shape, seed=2 + i) for i, y in enumerate(made)]
        inputs = [x] if read is rotated else [x, weight]
        grads = torch.autograd.grad(made, inputs, seeds, retain_graph=True)
        again = torch.autograd.grad(made, inputs, seeds)
        assert all(differing(a, b) == 0 for a, b in zip(grads, again, strict=True))
        assert grads[0].data_ptr() != again[0].data_ptr()
        found.append((*made, *grads))
    assert all(differing(a, b) == 0 for a, b in zip(*found, strict=True))
    assert float(found[0][-1].abs().max()) > 0


@pytest.mark.parametrize(
    ("read", "there"),
    [(normed, [True, True, False]), (rotated, [True, True, False]), (read_twice, [False, False, False])],
)
def test_parts_lie_where_they_belong(
    read: Callable[..., list[torch.Tensor]], there: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[bool]] = []
    whole = _Gradient.whole

    def looking(gradient: _Gradient, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        places = gradient.parts()
        found.append([a.data_ptr() == b.data_ptr() for a, b in zip(parts, places, strict=True)])
        return whole(gradient, parts)

    monkeypatch.setattr(_Gradient, "whole", looking)
    x = drawn(TOKENS, sum(COUNTS) * WIDTH, seed=0).requires_grad_()
    made = read(heads_side_by_side, x, drawn(WIDTH, seed=1))
    torch.autograd.grad(made, [x], [torch.ones_like(y) for y in made])
    assert found == [there]


def test_a_backward_that_ends_at_heads_keeps_their_gradient() -> None:
    x = drawn(TOKENS, sum(COUNTS) * WIDTH, seed=0).requires_grad_()
    q, _, v = heads_side_by_side(x, COUNTS, WIDTH)
    weight = drawn(WIDTH, seed=1)
    made = ops.qk_norm(q, weight, **tables())
    seeds = [drawn(*made.shape, seed=seed) for seed in (2, 3)]
    handed = torch.autograd.grad(made, q, seeds[0], retain_graph=True)[0]
    kept = handed.clone()
    for others in ([], [v]):
        all_seeds = [seeds[1], *map(torch.ones_like, others)]
        (got,) = torch.autograd.grad([made, *others], x, all_seeds, retain_graph=True)
        assert differing(handed, kept) == 0
        wanted = torch.autograd.grad(made, q, seeds[1], retain_graph=True)[0]
        assert differing(got[:, : COUNTS[0] * WIDTH], wanted.flatten(1)) == 0
        assert differing(wanted, kept) > 0


def test_transforms_of_torch_func_take_the_parts_and_operators_refuse_them() -> None:
    x, weight = drawn(TOKENS, sum(COUNTS) * WIDTH, seed=0), drawn(WIDTH, seed=1)

    def weighed(split: Split, x: torch.Tensor) -> torch.Tensor:
        q, _, v = split(x, COUNTS, WIDTH)
        return (q[:, :2] * v * v).sum()

    (want,) = torch.autograd.grad(weighed(_views, x.requires_grad_()), x)
    assert differing(torch.func.grad(lambda x: weighed(heads_side_by_side, x))(x), want) == 0
    q, *_ = torch.vmap(lambda x: tuple(heads_side_by_side(x, COUNTS, WIDTH)))(torch.stack([x, x * 2]))
    assert differing(q[1], heads_side_by_side(x * 2, COUNTS, WIDTH)[0]) == 0
    with pytest.raises(LaunchError, match="qk_norm has no rule for torch.func, and x is"):
        torch.func.grad(lambda x: ops.qk_norm(heads_side_by_side(x, COUNTS, WIDTH)[0], weight).sum())(x)
