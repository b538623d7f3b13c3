"""Tests that need TileLang and its compilers for CDNA, and small calls of every operator for them."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest

from rlk.backends import hip
from rlk.interp.run import Outcome, run
from rlk.ir.dotmodel import native
from rlk.lang import Op
from rlk.resources import installing
from rlk.runtime.registry import operators
from rlk.target.facts import target
from rlk.testing import check, generated
from rlk.testing.bits import differing
from rlk.testing.cases import cases
from rlk.testing.examples import Example

MI300X = target("gfx942")
TARGETS = ("gfx90a", "gfx942", "gfx950")
WAVES = range(3)  # in order, wave by wave, in a random order
BOTH = (
    "matmul",
    "grouped_matmul",
    "logp",
    "ratio_kl",
    "policy_loss",
    "swiglu",
    "geglu",
    "rope",
    "rope_partial",
    "embedding",
    "rms_norm",
    "qk_norm",
    "varlen_attention",
)
FORWARD = (
    "matmul_leaf8",
    "linear_logp_join",
    "group_advantage",
    "gae",
    "token_paths",
    "token_baseline",
    "scatter_rewards",
    "paged_attention",
    "prefix_attention",
    "write_cache",
    "cache_qkv",
)
CALLS = [f"{name} {label}" for name in BOTH for label in ("forward", "gradient")]
CALLS += [f"{name} forward" for name in FORWARD]
KINDS = (
    "matmul forward", "matmul gradient", "matmul_leaf8 forward", "grouped_matmul forward", "logp forward",
    "rms_norm gradient", "varlen_attention forward", "varlen_attention gradient", "prefix_attention forward",
    "group_advantage forward",
)  # fmt: skip
"""Calls whose code depends on a device's matrix units, registers or shared memory, one of each kind."""
LIKE_OTHERS = (
    "geglu", "rope_partial", "ratio_kl", "qk_norm", "token_paths", "scatter_rewards", "write_cache",
)  # fmt: skip
"""Operators whose kernels are like swiglu's, rope's, policy_loss's, rms_norm's, gae's and cache_qkv's."""


def require() -> None:
    """Skip a test that needs what is not installed; fail it where TileLang is required."""
    package = hip.missing()
    if package is None:
        return
    reason = f"needs the package {package}: {installing('tilelang,cdna')}"
    if os.environ.get("RLK_REQUIRE_TILELANG") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@cache
def calls_of(op: Op) -> dict[str, check.Call]:
    """Return the forward call of an operator's plain case and its gradient's, by label."""
    plain = cases(op, op.record.example or Example())[0]
    return {call.label: call for call in check.calls(plain)}


def call(name: str) -> check.Call:
    """Return a call by its name in CALLS."""
    op, label = name.split()
    return calls_of(operators()[op])[label]


@cache
def wanted(name: str) -> Outcome:
    """Return what the oracle says of a call."""
    made = call(name)
    dots = native(MI300X.name)
    return run(made.program, made.inputs, softmax=MI300X.softmax, dots=dots, extents=made.extents)


def executed(name: str, **options: object) -> generated.Ran:
    """Return what a call's TileLang kernels store when they run on the CPU."""
    made = call(name)
    return generated.run_generated(
        made.placed, made.inputs, on=MI300X, extents=made.extents, backend="tilelang", **options
    )


def differences(name: str, got: generated.Ran) -> int:
    """Count the elements of a call's outputs that differ from the oracle's."""
    want = wanted(name)
    kinds = {d.name: str(d.type.dtype) if d.type.dtype.is_float else None for d in call(name).stores}
    return sum(differing(got.tensors[n], np.asarray(want[n]), kind) for n, kind in kinds.items())
