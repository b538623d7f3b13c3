"""On a device the portable functions, exact arithmetic and the softmax exp2 have the oracle's bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlk.ir.nodes import MathFn
from rlk.lang import Axis, L, Op, Outputs, Tensor, f32, op
from rlk.runtime.call.entry import call
from rlk.testing.bits import assert_same_bits

T = Axis("T", dynamic=True)
COUNT = 1 << 23


def arguments() -> torch.Tensor:
    """Return every kind of f32: random bit patterns, the range that matters, and the special values."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 1 << 32, COUNT, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = rng.uniform(-130, 130, COUNT).astype(np.float32)
    small = (rng.standard_normal(COUNT) * np.exp(rng.uniform(-20, 0, COUNT))).astype(np.float32)
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2**-126, 2**-149, 3.4e38], np.float32)
    return torch.from_numpy(np.concatenate([patterns, near, small, special]))


def _spec(name: str) -> Op:
    """Return an operator that is one function: y = fn(x)."""

    @op(name=f"only_{name}")
    def spec(x: Tensor[f32, T]) -> Outputs:
        return L.out(y=getattr(L, name)(x))

    return spec


FUNCTIONS = (*(fn.value for fn in MathFn), "sqrt", "softmax_exp2")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_bits_of_the_oracle(name: str) -> None:
    x, spec = arguments(), _spec(name)
    math = "sm90" if name == "softmax_exp2" else None
    if math and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the captured exp2 is sm_90's")
    got = call(spec, {"x": x.cuda()}, {}, {}, math)["y"].cpu()
    assert_same_bits(got, call(spec, {"x": x}, {}, {}, math)["y"], name)


@op()
def arithmetic(x: Tensor[f32, T], y: Tensor[f32, T], z: Tensor[f32, T]) -> Outputs:
    """Every exact operation of two or three operands."""
    return L.out(
        rounded_once=L.fma(x, y, z),
        product_plus_z=x * y + z,
        quotient_value=x / y,
        maximum_value=L.maximum(x, y),
        minimum_value=L.minimum(x, y),
        difference_value=x - y,
    )


def test_exact_operations_have_the_bits_of_the_oracle() -> None:
    x = arguments()
    y, z = x[torch.randperm(len(x))], x[torch.randperm(len(x))]
    got = call(arithmetic, {"x": x.cuda(), "y": y.cuda(), "z": z.cuda()}, {}, {})
    want = call(arithmetic, {"x": x, "y": y, "z": z}, {}, {})
    for name, tensor in want.items():
        assert_same_bits(got[name].cpu(), tensor, name)


def test_a_product_next_to_a_sum_is_not_fused() -> None:
    """The control: where one rounding and two differ, product_plus_z takes two."""
    x = torch.randn(COUNT)
    y, z = torch.randn(COUNT), torch.randn(COUNT)
    got = call(arithmetic, {"x": x.cuda(), "y": y.cuda(), "z": z.cuda()}, {}, {})
    assert (got["rounded_once"] != got["product_plus_z"]).float().mean() > 0.05
