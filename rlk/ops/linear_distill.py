"""The divergence of distillation between two linear heads, computed for a few rows of logits at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from rlk.errors import Code, LaunchError
from rlk.ops.active_rows import compacted
from rlk.ops.distill import form_of, inverse_rows, weights_of
from rlk.ops.linear import some_factors
from rlk.ops.products import add_weight_gradient, partial_input_gradient, weight_gradient
from rlk.ops.sharded import check_plain
from rlk.runtime.binding.checks import (
    are_tensors,
    has_dims,
    has_dtype,
    number,
    reciprocal,
    same_device,
    wrong_value,
)
from rlk.runtime.binding.invocation import Scalars, Tensors
from rlk.runtime.binding.selection import invoke, model
from rlk.runtime.call.autograd import gradients as gradients_of
from rlk.runtime.call.entry import call, observing
from rlk.specs import distill as distill_spec
from rlk.specs import linear_logp as linear_spec
from rlk.specs import logp as logp_spec
from rlk.specs import matmul as matmul_spec

OP = "linear_jsd_loss"
WRT = ("hidden", "weight")
ROWS = linear_spec.T.piece or 1
"""Rows of one f32 accumulator of d weight, as in `linear_logp`."""
PIECES = logp_spec.V.split or 1
"""f32 accumulators of d hidden over the vocabulary, as in `linear_logp`."""
LOGITS_BYTES = 2**30
"""The most bytes of both heads' f32 logits at once, unless one row has more: no bit depends on it."""
TILE = 128
"""Rows of logits are a multiple of it where they are more: the rows of a tile of `matmul`."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Arguments of one call: [T, D] and [V, D] of each model; options as `jsd_loss` takes them."""

    hidden: torch.Tensor
    weight: torch.Tensor
    teacher_hidden: torch.Tensor
    teacher_weight: torch.Tensor
    inv_temperature_row: torch.Tensor | None
    mask: torch.Tensor | None
    inv_temperature: float | None
    beta: float
    form: str
    math: str | None

    @property
    def scalars(self) -> Scalars:
        more = {} if self.inv_temperature is None else {"inv_temperature": self.inv_temperature}
        return {**weights_of(self.beta), **more}

    def options(self, rows: slice | torch.Tensor) -> Tensors:
        """Return the options that rows have of their own."""
        given = {"inv_temperature_row": self.inv_temperature_row, "mask": self.mask}
        return {name: x[rows] for name, x in given.items() if x is not None}

    def logits(self) -> Tensors:
        """Return the f32 products of both heads."""
        pairs = {
            "student_logits": (self.hidden, self.weight),
            "teacher_logits": (self.teacher_hidden, self.teacher_weight),
        }
        return {name: _product(x, w) for name, (x, w) in pairs.items()}

    def detached(self) -> Heads:
        return replace(self, hidden=self.hidden.detach(), weight=self.weight.detach())


@dataclass(frozen=True, slots=True)
class Divergence:
    """Results of a forward pass, f32 [T]; mean is empty in the forward form, whose gradient needs none."""

    loss: torch.Tensor
    student_lse: torch.Tensor
    teacher_lse: torch.Tensor
    mean: torch.Tensor

    def saved(self, rows: slice | torch.Tensor) -> Tensors:
        given = {"student_lse": self.student_lse, "teacher_lse": self.teacher_lse, "mean": self.mean}
        return {name: x[rows] for name, x in given.items() if len(x) == len(self.student_lse)}


def linear_jsd_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    teacher_hidden: torch.Tensor,
    teacher_weight: torch.Tensor,
    *,
    beta: float = 0.5,
    temperature: float | torch.Tensor = 1.0,
    mask: torch.Tensor | None = None,
    math: str | None = None,
) -> torch.Tensor:
    """Return the generalised Jensen-Shannon divergence of two linear heads in each row, f32 [...].

    The bits are those of `jsd_loss(matmul(hidden, weight, out_dtype=torch.float32),
    matmul(teacher_hidden, teacher_weight, out_dtype=torch.float32), ...)`, which has the formula, the options
    beta, temperature, mask and math, and the rows that give NaN.

    hidden: [..., D], weight: [V, D], of the student, one dtype, bf16 or f16. teacher_hidden: [..., D2],
    teacher_weight: [V, D2], of the teacher, likewise; rows and V are the student's, D2 and the dtype need not
    be. Hidden states of rows with a false mask may hold anything.

    Differentiable in hidden and weight; detach the teacher's. Backward computes the logits again. The
    gradient of the logits is rounded to the dtype of hidden; each gradient is an f32 sum in the order of
    `linear_logp`'s, rounded once: d hidden over the vocabulary in 8 pieces of P = ceil(V / 8), merged
    pairwise; d weight over active rows in pieces of 8192, ascending. Extra memory: f32 logits of as many rows
    as fit in 1 GiB for both heads, at least one row; in backward, half as much again for their gradient, and
    2 P + 20 D bytes for each of at most 8192 rows, 2 D2 for the teacher's, 2 P D bytes, and 4 V D bytes if
    rows are more than 8192. Raises LaunchError.
    """
    tensors = {
        "hidden": hidden, "weight": weight, "teacher_hidden": teacher_hidden, "teacher_weight": teacher_weight
    }  # fmt: skip
    _check_heads(tensors)
    rows = hidden.shape[:-1]
    if weight.shape[0] == 0 and 0 not in rows:
        raise wrong_value(OP, "weight.shape[0]", 0, "at least 1")
    form, share = form_of(OP, beta)
    model(math, OP)
    inverse = inverse_row = None
    if isinstance(temperature, torch.Tensor):
        same_device(OP, "temperature", temperature, "hidden", hidden.device)
        _check_constant("temperature", temperature)
        inverse_row = inverse_rows(OP, temperature, rows, "hidden").reshape(rows.numel())
    elif number(OP, "temperature", temperature) != 1.0:
        inverse = reciprocal(OP, "temperature", temperature)
    if mask is not None:
        _check_mask(mask, hidden)
        mask = mask.reshape(rows.numel())
    hidden, weight = some_factors(hidden, weight)
    teacher_hidden, teacher_weight = some_factors(teacher_hidden, teacher_weight)
    flat, taught = (x.reshape(rows.numel(), x.shape[-1]) for x in (hidden, teacher_hidden))
    given = (flat, weight, taught, teacher_weight, inverse_row, mask, inverse, share, form, math)
    if observing():
        return divergence(Heads(*given).detached()).loss.reshape(rows)
    # one op of torch.library, also where nothing compiles: it holds the loop over rows and has a gradient
    return torch.ops.rlk.linear_jsd_loss(*given)[0].reshape(rows)


def divergence(heads: Heads) -> Divergence:
    """Return the divergence of every row, and the tensors that its gradient reads."""
    rows = len(heads.hidden)
    names = ("loss", "student_lse", "teacher_lse", *(() if heads.form == "forward" else ("mean",)))
    made = {name: heads.hidden.new_empty(rows, dtype=torch.float32) for name in names}
    for at in _runs(rows, heads.weight.shape[0]):
        part = replace(heads, hidden=heads.hidden[at], teacher_hidden=heads.teacher_hidden[at])
        tensors = part.logits() | heads.options(at)
        try:
            found = call(distill_spec.jsd_loss, tensors, heads.scalars, {"form": heads.form}, heads.math)
        except LaunchError as error:
            raise _told(error, at.start) from None
        for name, whole in made.items():
            whole[at] = found[name]
    made.setdefault("mean", heads.hidden.new_empty(0, dtype=torch.float32))
    return Divergence(**made)


def _told(error: LaunchError, start: int) -> LaunchError:
    """Return an error of a run of rows in the words of the whole: its name, and the row by its own number."""
    fields = dict(error.diagnostics[0].fields)
    row = fields.get("row")
    if error.code is Code.BAD_ROW and isinstance(row, int):
        return LaunchError(Code.BAD_ROW, op=OP, row=start + row, what=fields["what"])
    return error.reworded(op={"jsd_loss": OP})


def gradients(heads: Heads, made: Divergence, d_loss: torch.Tensor, wants: tuple[str, ...]) -> Tensors:
    """Return the gradients of the wanted among hidden and weight, by name."""
    x, w = heads.hidden, heads.weight
    rows, vocabulary = len(x), len(w)
    found: Tensors = {}
    if "hidden" in wants:
        found["hidden"] = x.new_empty(x.shape)
    if "weight" in wants:
        found["weight"] = w.new_zeros(w.shape)
        if rows > ROWS:
            # rounded once: the f32 sums of pieces of rows are kept; -0.0 + x == x for every x
            found["weight"] = w.new_full(w.shape, -0.0, dtype=torch.float32)
    order = None if heads.mask is None else compacted(heads.mask)
    for start in range(0, rows, ROWS):
        at: slice | torch.Tensor = slice(start, min(start + ROWS, rows))
        at = at if order is None else order[at]
        part = _rows_of(heads, at)
        sums: list[tuple[int, torch.Tensor]] = []
        for v in _pieces(vocabulary):
            dz = _d_logits(part, v, made.saved(at), d_loss[at])
            if "hidden" in wants:
                _merge(sums, partial_input_gradient(dz, w[v], 1))
            if "weight" in wants and rows > ROWS:
                add_weight_gradient(dz, part.hidden, found["weight"][v])
            elif "weight" in wants:
                found["weight"][v] = weight_gradient(dz, part.hidden)
        if "hidden" in wants:
            found["hidden"][at] = _merged(sums).to(x.dtype)
    return {name: grad.to(heads.hidden.dtype) for name, grad in found.items()}


def _rows_of(heads: Heads, at: slice | torch.Tensor) -> Heads:
    """Return a call of some rows; inactive ones are zeros: 0 times NaN would reach every row of d weight."""
    options = {"inv_temperature_row": None, "mask": None, **heads.options(at)}
    hidden = heads.hidden[at]
    if options["mask"] is not None:
        hidden = torch.where(options["mask"][:, None], hidden, 0.0)
    return replace(heads, hidden=hidden, teacher_hidden=heads.teacher_hidden[at], **options)


def _d_logits(heads: Heads, v: slice, saved: Tensors, d_loss: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the student's logits of a piece of the vocabulary, in the dtype of hidden."""
    weight, taught = heads.weight[v], heads.teacher_weight[v]
    made = heads.hidden.new_empty(len(heads.hidden), len(weight))
    for at in _runs(*made.shape):
        hidden, teacher_hidden = heads.hidden[at], heads.teacher_hidden[at]
        part = replace(
            heads, hidden=hidden, weight=weight, teacher_hidden=teacher_hidden, teacher_weight=taught
        )
        tensors = part.logits() | heads.options(at)
        invocation = invoke(distill_spec.jsd_loss, tensors, heads.scalars, {"form": heads.form}, heads.math)
        read = tensors | {name: x[at] for name, x in saved.items()}
        cotangents = {"loss": d_loss[at]}
        made[at] = gradients_of(invocation, read, cotangents, heads.scalars, ["student_logits"])[
            "student_logits"
        ]
    return made


def _product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the f32 sums of x w^T, each in one accumulator."""
    return call(matmul_spec.matmul, {"x": x, "w": w}, {}, {"keep_f32": True})["y"]


def _runs(rows: int, vocabulary: int) -> Iterator[slice]:
    """Return runs of rows whose logits are held at once."""
    most = max(1, LOGITS_BYTES // (2 * 4 * max(1, vocabulary)))
    step = most - most % TILE if most > TILE else most
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _pieces(vocabulary: int) -> Iterator[slice]:
    """Return the pieces of a vocabulary that has elements: the last may be smaller, or not there."""
    size = -(-vocabulary // PIECES)
    return (slice(start, min(start + size, vocabulary)) for start in range(0, vocabulary, max(1, size)))


def _merge(sums: list[tuple[int, torch.Tensor]], leaf: torch.Tensor) -> None:
    """Add a leaf to the sums of a pairwise tree, ascending: as few are held as the tree is deep."""
    count, total = 1, leaf
    while sums and sums[-1][0] == count:
        left = sums.pop()[1]
        count, total = 2 * count, left.add_(total)
    sums.append((count, total))


def _merged(sums: list[tuple[int, torch.Tensor]]) -> torch.Tensor:
    """Return the sum of a pairwise tree; leaves that are not there add nothing."""
    total = sums.pop()[1]
    while sums:
        total = sums.pop()[1].add_(total)
    return total


# arguments


def _check_heads(tensors: Tensors) -> None:
    """Raise LaunchError for heads that do not go together, by the name of the tensor."""
    are_tensors(OP, **tensors)
    check_plain(OP, tensors)
    hidden, vocabulary = tensors["hidden"], tensors["weight"].shape[:1]
    for prefix in ("", "teacher_"):
        x, w = tensors[f"{prefix}hidden"], tensors[f"{prefix}weight"]
        has_dtype(OP, f"{prefix}hidden", x, torch.bfloat16, torch.float16)
        has_dtype(OP, f"{prefix}weight", w, x.dtype)
        if x.dim() == 0:
            has_dims(OP, f"{prefix}hidden", x.shape, 1, "at least 1")
        has_dims(OP, f"{prefix}weight", w.shape, 2, "[V, D]")
        _same_size(f"{prefix}weight", "D", w.shape[-1:], f"{prefix}hidden", x.shape[-1:])
        _same_size(f"{prefix}weight", "V", w.shape[:1], "weight", vocabulary)
        _same_size(f"{prefix}hidden", "rows", x.shape[:-1], "hidden", hidden.shape[:-1])
    for name, x in tensors.items():
        same_device(OP, name, x, "hidden", hidden.device)
        if x.shape[-1] > 1 and x.stride(-1) != 1:
            raise LaunchError(Code.ARG_STRIDE, op=OP, name=name, got=x.stride(-1))
        if name not in WRT:
            _check_constant(name, x)


def _same_size(name: str, axis: str, got: torch.Size, other: str, wanted: torch.Size) -> None:
    if got != wanted:
        found, expected = (tuple(s) if axis == "rows" else s[0] for s in (got, wanted))
        raise LaunchError(Code.ARG_SIZE, op=OP, name=name, axis=axis, got=found, other=other, wanted=expected)


def _check_constant(name: str, x: torch.Tensor) -> None:
    if x.requires_grad and torch.is_grad_enabled():
        raise LaunchError(Code.NOT_DIFFERENTIABLE, op=OP, name=name, choices=", ".join(WRT))


def _check_mask(mask: torch.Tensor, hidden: torch.Tensor) -> None:
    are_tensors(OP, mask=mask)
    has_dtype(OP, "mask", mask, torch.bool)
    same_device(OP, "mask", mask, "hidden", hidden.device)
    _same_size("mask", "rows", mask.shape, "hidden", hidden.shape[:-1])
