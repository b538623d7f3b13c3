"""Pairs of specs, a wrong one and its right neighbour, and what they share."""

from __future__ import annotations

from collections.abc import Callable

from rlk.errors import Code
from rlk.ir.nodes import Program
from rlk.lang import Axis, DTypeVar, Op, Outputs, Tensor, bf16, f32, i32, op
from rlk.lang.op import Variant

T = Axis("T", dynamic=True)
N = Axis("N")
V = Axis("V", chunk=8, split=2)
U = Axis("U", chunk=4)
W = Axis("W", chunk=1)
F = DTypeVar("F", (bf16, f32))

Spec = Callable[[], object]
PAIRS: list[tuple[Code, Spec, Spec]] = []


def pair(code: Code) -> Callable[[type], type]:
    """Register a class with a spec that is `wrong` and its neighbour that is `right`."""

    def register(both: type) -> type:
        PAIRS.append((code, both.wrong, both.right))  # type: ignore[attr-defined]
        return both

    return register


def trace(spec: Op, **statics: object) -> Program:
    return spec.trace(Variant.of(dict(spec.default_variant().dtypes), frozenset(), statics))


def of_row(body: Callable[[Tensor], object]) -> Program:  # type: ignore[valid-type]
    """Trace a spec of one row tensor x: f32[T, N]."""

    @op()
    def spec(x: Tensor[f32, T, N]) -> Outputs:
        return body(x)  # type: ignore[return-value]

    return trace(spec)


def of_steps(body: Callable[..., object]) -> Program:
    """Trace a spec of x: f32[T, W] and k: i32[T]; W is taken one by one."""

    @op()
    def spec(x: Tensor[f32, T, W], k: Tensor[i32, T]) -> Outputs:
        return body(x, k)  # type: ignore[return-value]

    return trace(spec)


def of_stream(body: Callable[..., object]) -> Program:
    """Trace a spec of x: f32[T, V] and k: i32[T]."""

    @op()
    def spec(x: Tensor[f32, T, V], k: Tensor[i32, T]) -> Outputs:
        return body(x, k)  # type: ignore[return-value]

    return trace(spec)
