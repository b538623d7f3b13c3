"""Runs one spec on the device and in the oracle, alone: `python -m gpu.forms_child CASE FILE`."""

from __future__ import annotations

import sys
from functools import partial
from inspect import signature

import test_by_index
import test_dense_rows
import test_nested_streams
import test_scans
import torch
from gpu.test_products_together import tensor


def by_index(name: str, rows: int) -> dict[str, object]:
    """Return inputs of a spec of rows that name matrices; ordered where there are many."""
    return test_by_index.case(name, test_by_index.drawn(rows, ordered=rows > 5))


EIGHTS = {"D": 40, "N": 24, "S": 150}  # rows at multiples of 16 bytes, not of 16 elements
CASES = {
    **{
        f"{n} {rows} rows": (test_by_index.SPECS[n], partial(by_index, n, rows))
        for n in test_by_index.SPECS
        for rows in (5, 700)
    },
    **{
        f"{n}, {how}": (x, partial(module.case, n))
        for module, how in ((test_nested_streams, "nested"), (test_scans, "one by one"))
        for n, x in module.SPECS.items()
    },
    **{
        f"{n}, dense {rows} x {sizes['D']}": (x, partial(test_dense_rows.case, n, rows, **sizes))
        for n, x in test_dense_rows.SPECS.items()
        for rows, sizes in (*((n, {"D": 48}) for n in (5, 300)), (300, EIGHTS), (300, test_dense_rows.ODD))
    },
}
"""The spec of a case, and what draws its inputs."""


def main(case: str, where: str) -> None:
    """Save what a spec returns on the device, and what the oracle wants, by the device's law of exp2."""
    spec, drawn = CASES[case]
    given = {n: tensor(x) for n, x in drawn().items()}
    folds = "math" in signature(spec).parameters
    law = {"math": spec.explain("cuda").math.value} if folds else {}
    found = spec(**{n: x.cuda() for n, x in given.items()}), spec(**given, **law)
    got, want = (
        {str(i): t.cpu() for i, t in enumerate([each] if isinstance(each, torch.Tensor) else each)}
        for each in found
    )
    torch.save({"outputs": [("the chosen one", got)], "want": want}, where)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
