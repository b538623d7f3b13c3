"""Chunks side by side or one after the other: the same bits, in the oracle and in generated source."""

from __future__ import annotations

import numpy as np
import pytest

from rlk.interp.run import run
from rlk.ir.nodes import MathModel, Program
from rlk.lang import Variant, f32, i64
from rlk.passes.pipeline import canonical
from rlk.schedule.heuristics import apart
from rlk.specs.logp import logp
from rlk.testing.bits import differing

NEEDS = ("entropy", "argmax", "lse2")
VOCABULARY = frozenset({"V"})


def programs() -> tuple[Program, Program]:
    traced = logp.trace(Variant.of({"F": f32, "Ids": i64}, frozenset(), {"needs": NEEDS}))
    return canonical(traced), canonical(traced, apart=VOCABULARY)


def inputs(size: int) -> dict[str, object]:
    rng = np.random.default_rng(size)
    logits = (rng.standard_normal((5, size)) * 3).astype(np.float32)
    logits[1] = -np.inf
    logits[2, : size // 2] = -np.inf
    ids = rng.integers(0, size, 5)
    ids[3] = -100
    return {"logits": logits, "ids": ids, "ignore_index": -100}


@pytest.mark.parametrize("size", [1, 3, 255, 2048, 2049, 9000])
def test_the_oracle_gives_the_same_bits_side_by_side(size: int) -> None:
    serial, parallel = programs()
    assert [k.name for k in parallel.kernels] == ["logp_1", "logp_2"]
    one, two = (run(p, inputs(size), softmax=MathModel.SM90) for p in (serial, parallel))
    for name in ("logp", "lse", "entropy", "argmax", "lse2"):
        assert not differing(one[name], two[name]), name


@pytest.mark.parametrize("size", [3, 2049, 5000])
def test_generated_source_gives_the_same_bits_side_by_side(size: int) -> None:
    pytest.importorskip("triton")
    from rlk.testing.generated import run_generated

    serial, parallel = programs()
    want, got = run(serial, inputs(size), softmax=MathModel.SM90), run_generated(parallel, inputs(size))
    for name in ("logp", "lse", "entropy", "argmax", "lse2"):
        assert not differing(got.tensors[name], want[name]), name


def test_another_order_of_steps_is_seen() -> None:
    """The control: two chunks change places, so their states merge in another order."""
    _, parallel = programs()
    logits = (np.random.default_rng(0).standard_normal((64, 9000)) * 3).astype(np.float32)
    given = {"logits": logits.copy(), "ids": np.zeros(64, np.int64), "ignore_index": -100}
    swapped = dict(given)
    logits[:, :256], logits[:, 512:768] = logits[:, 512:768].copy(), logits[:, :256].copy()
    swapped["logits"] = logits
    one, two = (run(parallel, x, softmax=MathModel.SM90) for x in (given, swapped))
    assert differing(one["entropy"], two["entropy"])


def test_few_rows_run_side_by_side_and_many_do_not() -> None:
    serial, _ = programs()
    assert apart(serial, {"T": 8, "V": 128256}) == VOCABULARY
    assert apart(serial, {"T": 8192, "V": 128256}) == frozenset()
