"""The computations of a decoder layer as ops of torch.library, opaque to vLLM's compiled graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rlk import ops
from rlk.integrations.vllm.hooks import hook
from rlk.nn.products import column_linear, row_linear
from rlk.ops.gated import gated as gated_activation
from rlk.runtime.binding.arguments import PLAIN

NAMESPACE = "rlk_vllm"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")

Function = Callable[..., Any]


def plain(weight: Any) -> Any:
    """Return a parameter of vLLM as a tensor of torch's own class, in the same memory; None as it is.

    vLLM's parameters handle every access to an attribute in Python, and operators of rlk would go through
    torch's dispatcher for them: 100 us of the host in place of 17.
    """
    if weight is None or type(weight) in PLAIN:
        return weight
    with torch._C.DisableTorchFunctionSubclass():
        return weight.data


def computation(name: str, caller: str, schema: str, fake: Function) -> Callable[[Function], Function]:
    """Define a function as an op, whose runs its hook counts; outside of a compiled graph it is called as is.

    name: of the op; of the hook, what stands before a dot. caller: of the hook. schema: of the op's arguments
    and results. fake: its results without their values.
    """
    base, _, overload = name.partition(".")
    found = hook(base, caller)

    def define(run: Function) -> Function:
        def counted(*arguments: Any) -> Any:
            found.count()
            return run(*arguments)

        _library.define(f"{name}{schema}")
        _library.impl(name, counted, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
        op = getattr(getattr(torch.ops.rlk_vllm, base), overload or "default")

        def call(*arguments: Any) -> Any:
            return op(*arguments) if torch.compiler.is_compiling() else counted(*arguments)

        return call

    return define


def _product(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _like(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


@computation(
    "linear",
    "LinearMethodBase.apply",
    "(Tensor x, Tensor weight, Tensor? bias, bool rows, int leaves) -> Tensor",
    _product,
)
def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rows: bool, leaves: int
) -> torch.Tensor:
    """Return x weight^T + bias. rows: the weight is row-parallel, and summed in leaves."""
    product = row_linear if rows else column_linear
    return product(x, plain(weight), plain(bias), leaves)


@computation(
    "embedding", "UnquantizedEmbeddingMethod.embedding", "(Tensor ids, Tensor weight) -> Tensor",
    lambda ids, weight: weight.new_empty((*ids.shape, weight.shape[1])),
)  # fmt: skip
def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return rows of a weight [V, hidden]."""
    return ops.embedding(ids, plain(weight))


@computation(
    "rms_norm",
    "RMSNorm and GemmaRMSNorm",
    "(Tensor x, Tensor weight, float eps, str profile) -> Tensor",
    _like,
)
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, profile: str) -> torch.Tensor:
    """Return the norm of x [..., N]; of heads [T, H, E], which may lie inside a product, without a copy."""
    if x.dim() == 3:
        return ops.qk_norm(x, weight, eps=eps, profile=profile)
    return ops.rms_norm(x, weight, eps=eps, profile=profile)


@computation(
    "rms_norm.residual",
    "RMSNorm and GemmaRMSNorm",
    "(Tensor x, Tensor weight, float eps, str profile, Tensor residual) -> (Tensor, Tensor)",
    lambda x, *_: (x.new_empty(x.shape), x.new_empty(x.shape)),
)
def rms_norm_of_sum(
    x: torch.Tensor, weight: torch.Tensor, eps: float, profile: str, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm of the rounded sum of x and a residual, and that sum."""
    made = ops.rms_norm(x, weight, residual=residual, eps=eps, profile=profile)
    return made.y, made.residual


@computation(
    "rope", "RotaryEmbedding",
    "(Tensor positions, Tensor q, Tensor k, Tensor table, int head, bool interleaved) -> (Tensor, Tensor)",
    lambda positions, q, k, *_: (q.new_empty(q.shape), k.new_empty(k.shape)),
)  # fmt: skip
def rope(
    positions: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    table: torch.Tensor,
    head: int,
    interleaved: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return q [T, Hq E] and k [T, Hk E] rotated. table: [positions, R], cos before sin. head: E."""
    cos, sin = table.chunk(2, -1)
    dim = table.shape[1]
    q, k = ops.rope(
        q.unflatten(-1, (-1, head)), k.unflatten(-1, (-1, head)), cos, sin,
        position_ids=positions, interleaved=interleaved, rotary_dim=None if dim == head else dim,
    )  # fmt: skip
    return q.flatten(-2), k.flatten(-2)


@computation(
    "gated", "SiluAndMul and GeluAndMul", "(Tensor x, str activation) -> Tensor",
    lambda x, activation: x.new_empty((*x.shape[:-1], x.shape[-1] // 2)),
)  # fmt: skip
def gated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """Return activation(gate) * up of both side by side."""
    return gated_activation(x, activation)  # type: ignore[arg-type]
