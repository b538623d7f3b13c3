"""Forms of operators whose loops other tests run by Triton and CuTe, on CDNA's matrix cores on a CPU."""

from __future__ import annotations

import ladder
import numpy as np
import pytest
import test_by_index
import test_dense_rows
import test_nested_streams

from rlk.interp.run import run
from rlk.ir.dotmodel import native
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.generated import run_generated

FORMS = {
    "a matrix of each row": (test_by_index, "grouped", test_by_index.drawn(20)),
    "dense rows": (test_dense_rows, "plain", 20),
    "a stream in a stream": (test_nested_streams, "below"),
}


@pytest.mark.parametrize("name", FORMS)
def test_it_has_the_bits_of_the_oracle(name: str) -> None:
    ladder.require()
    module, *call = FORMS[name]
    made, given = module.program(call[0]), module.case(*call)
    got = run_generated(made, given, backend="tilelang").tensors
    for out, want in run(made, given, dots=native("gfx942")).tensors.items():
        assert_same_bits(got[out], want, f"{name} {out}")
    # the control: the rows of another first dim
    changed = run(made, {n: np.roll(x, 1, 0) for n, x in given.items()}).tensors
    assert all(differing(got[out], other) for out, other in changed.items())
