"""Runs a spec of loops on the device and in the oracle, alone: `python -m gpu.forms_child CASE FILE`."""

from __future__ import annotations

import sys

import test_by_index
import test_nested_streams
import test_scans
import torch
from gpu.test_products_together import tensor

CASES = {
    **{f"{n} {rows} rows": (test_by_index, n, rows) for n in test_by_index.SPECS for rows in (5, 700)},
    **{f"{name}, nested": (test_nested_streams, name, 0) for name in test_nested_streams.SPECS},
    **{f"{name}, one by one": (test_scans, name, 0) for name in test_scans.SPECS},
}
"""The module of a spec, its name, and its rows where the module asks for them."""


def main(case: str, where: str) -> None:
    """Save what a spec returns on the device, and what the oracle wants."""
    module, name, rows = CASES[case]
    drawn = (module.drawn(rows, ordered=rows > 5),) if rows else ()
    given = {n: tensor(x) for n, x in module.case(name, *drawn).items()}
    found = [module.SPECS[name](**{n: x.to(on) for n, x in given.items()}) for on in ("cuda", "cpu")]
    got, want = (
        {str(i): t.cpu() for i, t in enumerate([each] if isinstance(each, torch.Tensor) else each)}
        for each in found
    )
    torch.save({"outputs": [("the chosen one", got)], "want": want}, where)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
