"""Products with gradients under torch's tools: compiled, checked, checkpointed by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from matmul_cases import NAMES, Product, drawn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.testing.bits import assert_same_bits

BF16, F32 = torch.bfloat16, torch.float32
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "leaves": {"leaves": 8},
    "pieces of the gradient": {"grad_leaves": 4, "round_product": True},
    "f32": {"out_dtype": F32},
    "two leaves": {"leaves": 2},
}


def found(it: Product, call: Callable[..., torch.Tensor], buffer: bool = False) -> list[torch.Tensor]:
    """Return a result, the gradients that inputs have, and the buffer."""
    given = {name: getattr(it, name).detach().clone().requires_grad_() for name in NAMES}
    onto = {"weight_grad_out": torch.linspace(-1, 1, it.w.numel()).view(it.w.shape)} if buffer else {}
    y = call(given["x"], given["w"], bias=given["bias"], residual=given["residual"], **onto)
    y.backward(it.d_y.to(y.dtype))
    grads = [given[name].grad for name in NAMES]
    assert (grads[1] is None) == buffer
    return [y.detach(), *(g for g in grads if g is not None), *onto.values()]


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_compiled_call_has_the_bits_of_an_eager_one(name: str, buffer: bool) -> None:
    torch._dynamo.reset()
    it, call = drawn(20, 16, 24), partial(ops.matmul, **CALLS[name])
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    eager = found(it, call, buffer)
    for got, want in zip(found(it, compiled, buffer), eager, strict=True):
        assert_same_bits(got, want)


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_torch_accepts_the_registration(name: str, buffer: bool) -> None:
    """opcheck of what a public call hands to torch's dispatcher."""
    it, options = drawn(20, 16, 24), CALLS[name]
    leaves = options.get("leaves", 1)
    spec = "matmul" if leaves == 1 else f"matmul_leaf{leaves}"
    inputs = [getattr(it, n).detach().clone().requires_grad_() for n in NAMES]
    statics = ("out_dtype" in options, "round_product" in options, options.get("grad_leaves", 1))
    if buffer:
        torch.library.opcheck(torch.ops.rlk.matmul_onto.default, (*inputs, *statics, "auto", leaves, OUT))
    else:
        torch.library.opcheck(getattr(torch.ops.rlk, spec).default, (*inputs, *statics, "auto"))


OUT = torch.zeros(16, 24)


def test_torch_accepts_the_registration_of_the_sum_onto_a_buffer() -> None:
    it = drawn(20, 16, 24)
    torch.library.opcheck(torch.ops.rlk.matmul_weight_grad_into.default, (it.d_y, it.x, OUT.clone()))


@pytest.mark.parametrize("kept", [False, True])
def test_a_checkpoint_keeps_products_that_its_policy_names(kept: bool, launched: list[str]) -> None:
    it = drawn(20, 16, 24)

    def policy(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        ours = op is torch.ops.rlk.matmul.default
        return CheckpointPolicy.MUST_SAVE if ours and kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    call = partial(checkpoint, ops.matmul, use_reentrant=False, context_fn=contexts)
    want = found(it, ops.matmul)
    launched.clear()
    for got, wanted in zip(found(it, call), want, strict=True):
        assert_same_bits(got, wanted)
    assert launched.count("matmul") == 2 - kept
    # d x, d w and d bias; that of the residual is the cotangent
    assert launched.count("matmul_grad") == 3


def test_a_checkpoint_adds_a_contribution_once() -> None:
    it = drawn(20, 16, 24)
    call = partial(checkpoint, ops.matmul, use_reentrant=False)
    for got, want in zip(found(it, call, True), found(it, ops.matmul, True), strict=True):
        assert_same_bits(got, want)


def test_a_compiled_frozen_weight_has_no_gradient() -> None:
    torch._dynamo.reset()
    it = drawn(20, 16, 24)
    x = it.x.clone().requires_grad_()
    compiled = torch.compile(ops.matmul, fullgraph=True, backend="aot_eager")
    compiled(x, it.w).backward(it.d_y)
    assert_same_bits(x.grad, it.gradients(("x",))["x"], "d x")


def test_other_classes_of_tensors_are_refused_beside_a_buffer() -> None:
    class Other(torch.Tensor):
        pass

    it = drawn(4, 8, 8)
    with pytest.raises(LaunchError) as refused:
        ops.matmul(it.x.as_subclass(Other), it.w, weight_grad_out=torch.zeros(8, 8))
    assert refused.value.code is Code.ARG_TYPE
