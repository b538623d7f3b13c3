"""The gradient of a head's bias: sums of the rounded gradient of scores, a piece of both at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from rlk.ir.nodes import MathModel
from rlk.ops.active_rows import active, compacted
from rlk.runtime.binding.invocation import Invocation, Scalars, Tensors
from rlk.runtime.binding.selection import invoke
from rlk.runtime.call.autograd import extra_gradient
from rlk.runtime.call.dispatch import dispatch
from rlk.specs import linear_logp as spec
from rlk.specs import logp as logp_spec
from rlk.specs import matmul as matmul_spec

ROWS = spec.T.piece or 1
PIECES = logp_spec.V.split or 1
NO_ID = -(2**63)
"""An id that no piece of a vocabulary has: inactive rows are said by the mask alone."""
OF_ROWS = (
    "ids", "lse", "entropy", "inv_temperature_row", "mask", "threshold", "last",
    "d_logp", "d_lse", "d_entropy",
)  # fmt: skip
BITS = 32  # tokens of a word of a support


def bias_gradient(given: Tensors, scalars: Scalars, math: MathModel | None) -> torch.Tensor:
    """Return the gradient of bias [V]; given: what `linear_logp` saves, and the cotangents of its outputs.

    Active rows in pieces of 8192, ascending; in each the sums of 64 rows, by halving, ascending. One
    rounding.
    The scores are computed again, for a piece of rows and of the vocabulary at a time.
    """
    weight, bias = given["weight"], given["bias"]
    hidden = given["hidden"].reshape(-1, weight.shape[1])
    counts = active(given, scalars)
    order = compacted(counts).reshape(-1)
    rows = {n: given[n].reshape(-1) for n in OF_ROWS if n in given} | {"mask": counts.reshape(-1)}
    rows |= {"words": given["words"].reshape(len(order), -1)} if "words" in given else {}
    own = {**scalars, "ignore_index": NO_ID}
    # -0.0 + x == x for every x
    total = torch.full(bias.shape, -0.0, dtype=torch.float32, device=bias.device)
    for start in range(0, len(order), ROWS):
        at = order[start : start + ROWS]
        part = {n: x[at] for n, x in rows.items()} | {"hidden": hidden[at]}
        for v in _pieces(len(weight)):
            tensors = part | {"weight": weight[v], "bias": bias[v]}
            # ids count from the first of a piece
            tensors |= {n: part[n] - v.start for n in ("ids", "last") if n in part}
            if "words" in part:
                tensors["words"] = part["words"][:, v.start // BITS : -(-v.stop // BITS)]
            invocation = replace(invoke(spec.linear_logp_scores, tensors, own, {}, None), math=math)
            dz = dispatch(invocation, tensors, own)["dz"]
            _add(dz, total[v])
    return total.to(bias.dtype)


def _add(dz: torch.Tensor, onto: torch.Tensor) -> None:
    tensors = {"d_y": dz, "bias_grad": onto}
    invocation = invoke(matmul_spec.column_sums, tensors, {}, {}, None)
    dispatch(replace(invocation, into=frozenset({"d_bias"})), tensors | {"d_bias": onto}, {})


def _pieces(vocabulary: int) -> Iterator[slice]:
    """Return pieces of a vocabulary that begin with a word of a support."""
    size = -(-vocabulary // (PIECES * BITS)) * BITS
    return (slice(start, min(start + size, vocabulary)) for start in range(0, vocabulary, max(1, size)))


@extra_gradient(spec.linear_logp, "bias")
def _of_call(invocation: Invocation, tensors: Tensors, scalars: Scalars) -> torch.Tensor:
    return bias_gradient(tensors, scalars, invocation.math)
