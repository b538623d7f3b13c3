"""Small calls of every operator and gradient, for laws that hold for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlk.interp import arithmetic
from rlk.ir.nodes import Decl, Program, Role
from rlk.ir.types import DType
from rlk.lang import Op, Variant
from rlk.passes.pipeline import canonical
from rlk.specs.linear_logp import linear_logp
from rlk.specs.logp import logp
from rlk.specs.loss import ratio_kl
from rlk.specs.model import embedding, geglu, rope, rope_partial, swiglu
from rlk.specs.norm import rms_norm
from rlk.specs.policy import GRPO, policy_loss, policy_loss_of_sequences, policy_spec
from rlk.specs.sampling import penalize, sample

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A program with inputs; `rows` are the inputs and outputs whose leading dim is the parallel row."""

    name: str
    program: Program
    inputs: Inputs
    extents: dict[str, int] = field(default_factory=dict)
    rows: bool = True


def params(program: Program) -> dict[str, Decl]:
    return {d.name: d for kernel in program.kernels for d in kernel.params}


def stored(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Round random f32 to what a tensor of a dtype holds."""
    return arithmetic.encode(arithmetic.Exact().cast(x, dtype), dtype)


def random_inputs(program: Program, extents: Mapping[str, int], seed: int, given: Inputs) -> Inputs:
    """Draw normal floats for every float input that is not given."""
    rng = np.random.default_rng(seed)
    made = dict(given)
    for name, decl in params(program).items():
        if decl.role is not Role.IN or name in made:
            continue
        shape = tuple(extents[axis.name] for axis in decl.type.axes)
        assert decl.type.dtype.is_float, f"{name} must be given"
        made[name] = stored(rng.normal(size=shape).astype(np.float32), decl.type.dtype)
    return made


def variant(
    op: Op, present: tuple[str, ...] = (), statics: Inputs | None = None, f: DType | None = None
) -> Variant:
    base = op.default_variant()
    dtypes = dict(base.dtypes)
    for name in dtypes:
        if f is not None and dtypes[name].is_float:
            dtypes[name] = f
    return Variant.of(dtypes, set(present), {**dict(base.statics), **(statics or {})})


def forward(
    name: str,
    op: Op,
    extents: dict[str, int],
    given: Inputs,
    *,
    present: tuple[str, ...] = (),
    statics: Inputs | None = None,
    f: DType | None = None,
    rows: bool = True,
    seed: int = 0,
) -> Call:
    program = canonical(op.trace(variant(op, present, statics, f)))
    return Call(name, program, random_inputs(program, extents, seed, given), extents, rows)


LOGP_SIZES = {"T": 6, "V": 3001}
LOGP_SCALARS: Inputs = {"inv_temperature": 1 / 0.7, "ignore_index": -100}
LOGP_STEPS: Inputs = {"logit_scale": 1.5, "softcap": 20.0, "inv_softcap": 0.05}


def logp_ids() -> np.ndarray:
    return np.array([0, 3000, -100, 1500, 9999, 7])


def _logp(name: str, f: DType, present: tuple[str, ...], needs: tuple[str, ...]) -> Call:
    given: Inputs = {
        "ids": logp_ids(),
        **LOGP_SCALARS,
        "logit_scale": 1.5,
        "softcap": 20.0,
        "inv_softcap": 0.05,
    }
    return forward(name, logp, LOGP_SIZES, given, present=present, statics={"needs": needs}, f=f, seed=1)


def _policy() -> Inputs:
    active = np.array([True, False, True, True, True] * 3)
    order = np.argsort(~active, kind="stable").astype(np.int32)
    sequence = np.repeat(np.arange(3), 5).astype(np.int32)
    ends = np.array([4, 8, 12], np.int32)
    tokens = {"active": active, "order": order, "sequence": sequence, "begin": ends - 4, "end": ends}
    return {**tokens, "surrogate_least": 0.8, "surrogate_most": 1.2, "beta": 0.1, "correction_high": 1.1}


def _drawn() -> Inputs:
    scores = stored(3 * np.random.default_rng(2).normal(size=(5, 1500)).astype(np.float32), DType.BF16)
    index = np.arange(5)
    return {
        "scores": scores, "blocks": scores, "seed": index + 3, "request_id": index, "position": 9 - index,
        "top_k": np.array([50, 0, 9, 1400, 1], np.int32),
    }  # fmt: skip


CALLS: dict[str, Callable[[], Call]] = {
    "logp": lambda: _logp("logp", DType.F32, (), ("logp",)),
    "logp, all results": lambda: _logp(
        "logp", DType.BF16, ("inv_temperature",), ("logp", "entropy", "argmax", "lse2")
    ),
    "logp, all steps": lambda: _logp(
        "logp",
        DType.F16,
        ("inv_temperature", "bias", *LOGP_STEPS),
        ("logp", "entropy"),
    ),
    "rms_norm": lambda: forward("rms_norm", rms_norm, {"T": 5, "N": 96}, {"eps": 1e-6}),
    "rms_norm, gemma with residual": lambda: forward(
        "rms_norm",
        rms_norm,
        {"T": 5, "N": 96},
        {"eps": 1e-6},
        present=("residual",),
        statics={"profile": "gemma"},
    ),
    "swiglu": lambda: forward("swiglu", swiglu, {"T": 5, "N": 40}, {}),
    "geglu": lambda: forward("geglu", geglu, {"T": 5, "N": 40}, {}),
    "rope_partial": lambda: forward(
        "rope_partial",
        rope_partial,
        {"T": 5, "H": 2, "E": 16, "P": 9, "C": 5},
        {"position_ids": np.array([8, 0, 3, 3, 1])},
    ),
    "rope": lambda: forward(
        "rope", rope, {"T": 5, "H": 2, "E": 16, "P": 9, "C": 8}, {"position_ids": np.array([8, 0, 3, 3, 1])}
    ),
    "embedding": lambda: forward(
        "embedding", embedding, {"T": 5, "V": 11, "D": 8}, {"ids": np.array([3, 10, 0, 3, 11])}
    ),
    "sample": lambda: forward(
        "sample",
        sample,
        {"T": 5, "W": 1500, "U": 1500},
        _drawn(),
        present=("top_k",),
    ),
    "penalize": lambda: forward(
        "penalize",
        penalize,
        {"T": 5, "V": 300},
        {"counts": np.arange(1500, dtype=np.int32).reshape(5, 300) % 4},
    ),
    "ratio_kl": lambda: forward("ratio_kl", ratio_kl, {"T": 50}, {}),
    "policy_loss": lambda: forward(
        "policy_loss",
        policy_loss,
        {"T": 15, "S": 15, "B": 3},
        _policy(),
        rows=False,
    ),
    "policy_loss_of_sequences": lambda: forward(
        "policy_loss_of_sequences",
        policy_loss_of_sequences,
        {"T": 15, "S": 15, "B": 3},
        _policy(),
        rows=False,
    ),
}


# --- gradients ---


@dataclass(frozen=True)
class Gradient:
    """An operator to differentiate by some inputs; `extra` are the inputs that only its vjp has."""

    op: Op
    wrt: tuple[str, ...]
    extents: dict[str, int]
    given: Inputs
    present: tuple[str, ...] = ()
    statics: Inputs = field(default_factory=dict)
    extra: Inputs = field(default_factory=dict)

    def forward(self) -> Program:
        return canonical(self.op.trace(variant(self.op, self.present, self.statics, DType.F32)))

    def cotangents(self) -> list[str]:
        assert self.op.gradient is not None
        outputs = {d.name for d in params(self.forward()).values() if d.role is Role.OUT}
        return [f.name for f in self.op.gradient.formals if f.name.removeprefix("d_") in outputs]

    def backward(self) -> Program:
        assert self.op.gradient is not None
        base = variant(self.op, (*self.present, *self.cotangents()), self.statics, DType.F32)
        return canonical(self.op.gradient.trace(replace(base, wanted=frozenset(self.wrt))))


def _embedding_gradient() -> Gradient:
    ids = np.array([3, 10, 0, 3, 3, 10])
    segments = np.searchsorted(np.sort(ids), np.arange(12))
    extra = {"order": np.argsort(ids, kind="stable"), "segments": segments}
    return Gradient(embedding, ("weight",), {"T": 6, "V": 11, "D": 4, "S": 6}, {"ids": ids}, extra=extra)


_ROPE: Inputs = {"position_ids": np.array([8, 0, 3, 3, 1])}
WITH_ENTROPY = replace(GRPO, entropy="tokens", numbers=("beta", "entropy_coef", *GRPO.numbers[1:]))
_TOKENS = {"T": 15, "S": 15, "B": 3}

_HEAD: Inputs = {"ids": np.array([5, -100, 28, 0, 7]), **LOGP_SCALARS}
_COMPACTED: Inputs = {"order": np.array([0, 2, 3, 4, 1])}

GRADIENTS: dict[str, Callable[[], Gradient]] = {
    "linear_logp": lambda: Gradient(
        linear_logp, ("hidden", "weight"), {"T": 5, "D": 6, "V": 29}, _HEAD, extra=_COMPACTED
    ),
    "linear_logp, all steps": lambda: Gradient(
        linear_logp,
        ("hidden", "weight"),
        {"T": 5, "D": 6, "V": 29},
        {**_HEAD, **LOGP_STEPS},
        ("inv_temperature", "bias", *LOGP_STEPS),
        {"needs": ("entropy",)},
        extra=_COMPACTED,
    ),
    "logp": lambda: Gradient(
        logp, ("logits",), {"T": 3, "V": 700}, {"ids": np.array([5, -100, 699]), **LOGP_SCALARS}
    ),
    "logp, with entropy": lambda: Gradient(
        logp,
        ("logits",),
        {"T": 3, "V": 700},
        {"ids": np.array([5, -100, 699]), **LOGP_SCALARS},
        ("inv_temperature",),
        {"needs": ("logp", "entropy")},
    ),
    "logp, all steps": lambda: Gradient(
        logp,
        ("logits",),
        {"T": 3, "V": 700},
        {"ids": np.array([5, -100, 699]), **LOGP_SCALARS, **LOGP_STEPS},
        ("inv_temperature", "bias", *LOGP_STEPS),
        {"needs": ("logp", "entropy")},
    ),
    "swiglu": lambda: Gradient(swiglu, ("gate", "up"), {"T": 5, "N": 40}, {}),
    "geglu": lambda: Gradient(geglu, ("gate", "up"), {"T": 5, "N": 40}, {}),
    "geglu, by erf": lambda: Gradient(
        geglu, ("gate", "up"), {"T": 5, "N": 40}, {}, statics={"approximate": "none"}
    ),
    "rope_partial": lambda: Gradient(rope_partial, ("x",), {"T": 5, "H": 2, "E": 16, "P": 9, "C": 5}, _ROPE),
    "rope": lambda: Gradient(rope, ("x",), {"T": 5, "H": 2, "E": 16, "P": 9, "C": 8}, _ROPE),
    "rope, interleaved": lambda: Gradient(
        rope, ("x",), {"T": 5, "H": 2, "E": 16, "P": 9, "C": 8}, _ROPE, statics={"interleaved": True}
    ),
    "embedding": _embedding_gradient,
    "policy_loss": lambda: Gradient(policy_loss, ("logp",), _TOKENS, _policy()),
    "policy_loss_of_sequences": lambda: Gradient(policy_loss_of_sequences, ("logp",), _TOKENS, _policy()),
    "policy_loss, with entropy": lambda: Gradient(
        policy_spec(WITH_ENTROPY), ("logp", "entropy"), _TOKENS, {**_policy(), "entropy_coef": 0.01}
    ),
    **{
        f"ratio_kl, {kl}": lambda kl=kl: Gradient(ratio_kl, ("logp",), {"T": 50}, {}, statics={"kl": kl})
        for kl in ("k1", "k2", "k3", "abs")
    },
    **{
        f"rms_norm, {profile}": lambda profile=profile: Gradient(
            rms_norm,
            ("x", "weight", "residual"),
            {"T": 200, "N": 20},
            {"eps": 1e-3},
            ("residual",),
            {"profile": profile},
        )
        for profile in ("hf_llama", "gemma", "vllm")
    },
}
