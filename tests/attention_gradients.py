"""Gradients of small calls of attention: cotangents made of the queries, so that they move with them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from attention_cases import DTYPES, OFFSETS, OPTIONS, Batch, Inputs, extents, of, offsets

from rlk.interp.floats import bf16_from_bits
from rlk.interp.run import Outcome, run, run_wide
from rlk.ir.nodes import MathModel, Program
from rlk.ir.text import parse_program, print_program
from rlk.lang import Variant, i32
from rlk.passes.pipeline import canonical
from rlk.specs.attention import varlen_attention

WANTED = frozenset({"q", "k", "v"})
SEGMENT = "chunk=64 leaf=segment"


@cache
def program(
    dtype: str, present: frozenset[str], wanted: frozenset[str], causal: bool, offset: object, axis: str
) -> Program:
    """Return the canonical gradient; axis: how streams are cut, as text has it."""
    variant = Variant.of({"F": DTYPES[dtype], "Offsets": offset}, present, {"causal": causal}, wanted)
    assert varlen_attention.gradient is not None
    text = print_program(varlen_attention.gradient.trace(variant))
    assert SEGMENT in text or wanted == {"sinks"}  # whose gradient streams neither queries nor keys
    return canonical(parse_program(text.replace(SEGMENT, axis)))


def gradient_of(
    inputs: Inputs, wanted: frozenset[str] = WANTED, causal: bool = True, axis: str = SEGMENT
) -> Program:
    """Return the program that takes these inputs."""
    dtype = "f16" if inputs["q"].dtype == np.float16 else "bf16"
    there = {"scale", *OPTIONS.intersection(inputs), *{"d_o", "d_lse"}.intersection(inputs)}
    offset = OFFSETS.get(inputs["begin_q"].dtype, i32)
    return program(dtype, frozenset(there), wanted, causal, offset, axis)


def longest(inputs: Inputs) -> dict[str, int]:
    """Return the bounds of the axes that no tensor has, as tight as they can be."""
    queries, keys = (int((inputs[f"end_{n}"] - inputs[f"begin_{n}"]).max(initial=1)) for n in "qk")
    rows = {"R": queries * inputs["q"].shape[2], "X": len(inputs["q"])}
    return {**extents(inputs), "Q": queries, "J": keys, "Z": keys, **rows}


def pull(inputs: Inputs, lse: bool = False) -> Inputs:
    """Return the cotangents of a call."""
    q, width = inputs["q"], inputs["v"].shape[-1]
    d_o = np.ascontiguousarray(q[..., np.arange(width)[::-1] % q.shape[-1]])
    made = {"d_o": d_o}
    if lse:
        values = bf16_from_bits(q[..., 0]) if q.dtype == np.uint16 else q[..., 0].astype(np.float32)
        made["d_lse"] = np.ascontiguousarray(np.moveaxis(values, 0, -1))
    return made


def pulled(inputs: Inputs, causal: bool = True, lse: bool = False) -> Inputs:
    """Return what a gradient takes: the call, its results by the oracle, and cotangents."""
    made = run(of(inputs, causal=causal), inputs, softmax=MathModel.SM90, extents=longest(inputs))
    return {**inputs, "o": made["o"], "lse": made["lse"], **pull(inputs, lse)}


def oracle(inputs: Inputs, wanted: frozenset[str] = WANTED, causal: bool = True, **more: Any) -> Outcome:
    """Return the gradients of a call, bit for bit."""
    given = pulled(inputs, causal, more.pop("lse", False))
    made = gradient_of(given, wanted, causal, **more)
    return run(made, given, softmax=MathModel.SM90, extents=longest(given))


def wide(inputs: Inputs, wanted: frozenset[str] = WANTED, causal: bool = True, lse: bool = True) -> Any:
    """Return gradients in f64, their inputs, and what the forward made."""
    f64 = {n: widened(x) for n, x in inputs.items()}
    made = run_wide(of(inputs, causal=causal), f64, extents=longest(inputs))
    given = {**f64, "o": made["o"], "lse": made["lse"]}
    given |= {n: widened(x) for n, x in pull(inputs, lse).items()}
    return run_wide(gradient_of({**inputs, **given, "q": inputs["q"]}, wanted, causal), given,
                    extents=longest(inputs)), given  # fmt: skip


def widened(x: Any) -> Any:
    if not isinstance(x, np.ndarray) or x.dtype.kind == "i":
        return x
    return bf16_from_bits(x).astype(np.float64) if x.dtype == np.uint16 else x.astype(np.float64)


def by_sequence(tensors: Any, given: Batch) -> list[dict[str, Any]]:
    """Return the gradients of each sequence: of its queries, its keys and its values."""
    cuts = {"q": offsets(given.q), "k": offsets(given.k), "v": offsets(given.k)}
    return [{n: tensors[f"d_{n}"][cu[i] : cu[i + 1]] for n, cu in cuts.items()} for i in range(len(given.q))]
