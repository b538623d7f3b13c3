"""Derived gradients have on a device the bits that the oracle gives on a CPU."""

from __future__ import annotations

import derived_specs
import pytest
import torch

from rlk.lang.op import Op
from rlk.runtime.call.entry import call
from rlk.testing.bits import assert_same_bits

SHAPES = {
    "norm": {"x": (70, 3, 256), "weight": (256,), "bias": (256,)},
    "softmax": {"z": (70, 1000)},
    "statistics": {"z": (70, 1000), "x": (70, 1000)},
    "biased_loss": {"z": (70, 1000), "bias": (1000,)},
    "gated": {"x": (70, 64), "gate": (128, 64), "up": (128, 64)},
    "narrow": {"x": (70, 64), "w": (48, 64)},
    "paired": {"x": (37, 20, 48), "w": (37, 33, 48)},
}
HALF = {"norm", "softmax", "gated", "narrow", "paired"}


def gradients(spec: Op, device: str) -> dict[str, torch.Tensor]:
    """Return the outputs of a call and the gradients of all that it is differentiated for, on the CPU."""
    draw = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if spec.name in HALF else torch.float32
    drawn = {n: torch.randn(shape, generator=draw).to(dtype) for n, shape in SHAPES[spec.name].items()}
    given = {n: x.to(device).requires_grad_() for n, x in drawn.items()}
    others = {"targets": (torch.arange(70) * 14).to(device)} if spec.name == "biased_loss" else {}
    scalars = {"eps": 1e-6} if spec.name == "norm" else {}
    made = call(spec, {**given, **others}, scalars, {}, "portable")
    assert spec.gradient is not None
    taken = [f.name.removeprefix("d_") for f in spec.gradient.formals]
    pulls = [torch.randn(made[n].shape, generator=draw).to(made[n].dtype).to(device) for n in taken]
    torch.autograd.backward([made[n] for n in taken], pulls)
    found = {n: made[n].detach().cpu() for n in taken}
    for name, x in given.items():
        assert x.grad is not None
        found[f"d_{name}"] = x.grad.cpu()
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_a_derived_gradient_has_the_bits_of_the_oracle(name: str) -> None:
    spec = getattr(derived_specs, name)
    want, got = gradients(spec, "cpu"), gradients(spec, "cuda")
    assert any(x.abs().max() > 0 for n, x in want.items() if n.startswith("d_"))
    for output, x in want.items():
        assert_same_bits(got[output], x, f"{name}: {output}")


@pytest.mark.parametrize("columns", [200, 304, 4096])
@pytest.mark.parametrize("rows", [5, 16, 17, 300, 1100])
def test_rows_of_products_that_are_reduced_whole_have_the_bits_of_the_oracle(rows: int, columns: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    x, w = (torch.randn(n, 64, generator=draw).bfloat16() for n in (rows, columns))
    want, got = derived_specs.unit_rows(x, w), derived_specs.unit_rows(x.cuda(), w.cuda())
    assert_same_bits(got.cpu(), want, "y")


def test_carried_bytes_have_the_bits_of_the_oracle() -> None:
    draw = torch.Generator().manual_seed(0)
    first, x = (torch.randn(*shape, generator=draw) for shape in ((70, 64), (41, 70, 64)))
    want = derived_specs.narrowed_again(first, x)
    assert_same_bits(derived_specs.narrowed_again(first.cuda(), x.cuda()).cpu(), want, "y")
