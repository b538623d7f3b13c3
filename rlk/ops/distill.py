"""The public losses of distillation: a student's next-token distributions against a teacher's."""

from __future__ import annotations

import torch

from rlk.errors import Code, LaunchError
from rlk.runtime.binding.checks import are_tensors, number, reciprocal, wrong_value
from rlk.runtime.binding.invocation import Scalars, Tensors
from rlk.runtime.call.entry import call, worded
from rlk.specs import distill as distill_spec

NEXT_TO_AN_END = 2.0**-24
"""The least distance of a mixture's beta from 0 and 1: the spacing of f32 below 1."""
worded(
    distill_spec.jsd_loss,
    "jsd_loss",
    inv_temperature_row="temperature",
    inv_temperature="temperature",
)


def jsd_loss(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    *,
    beta: float = 0.5,
    temperature: float | torch.Tensor = 1.0,
    mask: torch.Tensor | None = None,
    math: str | None = None,
) -> torch.Tensor:
    """Return the generalised Jensen-Shannon divergence of each row, f32 [...] (GKD, Agarwal et al. 2024).

    JSD(beta) = beta KL(p | m) + (1 - beta) KL(q | m), m = beta p + (1 - beta) q, with the student's
    q = softmax(student_logits / temperature) and the teacher's p likewise. By convention beta = 0 is the
    forward KL(p | q), beta = 1 the reverse KL(q | p); both as in TRL's `GKDTrainer.generalized_jsd_loss`. No
    factor of temperature^2 is applied.

    student_logits, teacher_logits: [..., V] of one shape, each bf16, f16 or f32, rows strided at will, last
    dim contiguous. beta: 0, 1, or at least 2^-24 from both. temperature: a positive number, or f32 of the
    rows' shape, where a dim may be 1. mask: bool of the rows' shape; rows with a false mask are not read and
    give 0. math: "portable" or "sm90" overrides who defines exp2.

    0 log 0 = 0: a token that both models exclude (logits of -inf) adds nothing. A KL is inf where the first
    distribution has a token that the second excludes; then the reverse KL has no finite gradient, the forward
    one has q - p. A mixture is finite whatever is excluded. A row with NaN, with +inf or without a finite
    logit, or with a temperature that is not positive and finite, gives NaN and sets the device's error word.

    Each vocabulary is folded as in `logp`, in 8 pieces of ceil(V / 8), in chunks of 256; then the terms of
    tokens are summed over the same pieces, chunks ascending (halving trees), pieces pairwise. Terms of a KL
    are p (log p - log q) - p + q, so that it is not negative and keeps its digits where it is small. Those of
    a mixture cancel: its absolute error is about 2^-24 times the sum of m abs(log p - log q), so that it may
    fall below 0 where it is that small. Beside that, both have the error of the log-probs (see `logp`).
    Differentiable in student_logits alone: detach the teacher's. Raises LaunchError.
    """
    op = "jsd_loss"
    are_tensors(op, student_logits=student_logits, teacher_logits=teacher_logits)
    rows = student_logits.shape[:-1]
    if 0 in student_logits.shape[-1:] and 0 not in rows:
        raise wrong_value(op, "student_logits.shape[-1]", 0, "at least 1")
    tensors: Tensors = {"student_logits": student_logits, "teacher_logits": teacher_logits}
    form, weight = form_of(op, beta)
    scalars: Scalars = weights_of(weight)
    if isinstance(temperature, torch.Tensor):
        tensors["inv_temperature_row"] = inverse_rows(op, temperature, rows, "student_logits")
    elif number(op, "temperature", temperature) != 1.0:
        scalars["inv_temperature"] = reciprocal(op, "temperature", temperature)
    if mask is not None:
        tensors["mask"] = mask
    return call(distill_spec.jsd_loss, tensors, scalars, {"form": form}, math)["loss"]


def form_of(op: str, beta: float) -> tuple[str, float]:
    """Return the divergence of a beta ("mixture", "forward" or "reverse"), and the beta."""
    weight = number(op, "beta", beta, least=0.0, most=1.0)
    if weight in (0.0, 1.0):
        return "forward" if weight == 0.0 else "reverse", weight
    # the divergence jumps at 0 and 1, and where 1 - beta is 1 in f32 a mixture would lose the teacher
    if not NEXT_TO_AN_END <= weight <= 1.0 - NEXT_TO_AN_END:
        raise wrong_value(op, "beta", beta, f"0, 1, or a number at least {NEXT_TO_AN_END:.3g} from both")
    return "mixture", weight


def weights_of(beta: float) -> Scalars:
    """Return the weights of both KLs: 1 - beta is formed in float64, and rounded to f32 once."""
    return {"beta": beta, "rest": 1.0 - beta}


def inverse_rows(op: str, temperature: torch.Tensor, rows: torch.Size, other: str) -> torch.Tensor:
    """Return 1 / temperature, f32, of the rows' shape, from one for all or one along dims of size 1.

    Fewer dims are refused: one for each sequence [B] would be read as one for each position where B = L.
    """
    if not temperature.dtype.is_floating_point:
        wanted = "a float dtype"
        raise LaunchError(Code.ARG_DTYPE, op=op, name="temperature", got=temperature.dtype, wanted=wanted)
    got, shape = tuple(temperature.shape), tuple(rows)
    fits = len(got) == len(shape) and all(a in (1, b) for a, b in zip(got, shape, strict=True))
    if got and not fits:
        why = f"as the rows of {other} have, where a dim may be 1"
        raise LaunchError(Code.ARG_SHAPE, op=op, name="temperature", got=got, wanted=shape, why=why)
    inverse = torch.reciprocal(temperature.to(torch.float32))
    return inverse if got == shape else inverse.expand(rows)
