"""Runs one case by the TileLang lowering, and the oracle, alone: `python -m gpu.tilelang_child CASE FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from gpu.calls import Made, Schedules, by_oracle, geometry_of, make, on_device, reads, sampled
from gpu.cute_child import compile_at_once
from gpu.tilelang_cases import CASES, CHANGES

from rlk.errors import ScheduleError, UnsupportedError
from rlk.ir.nodes import Dot, MathModel, Program
from rlk.lower.common.emitted import Emitted
from rlk.passes.walk import walk
from rlk.runtime.dispatch import lowered
from rlk.runtime.invocation import model_of, target_of
from rlk.target.facts import Target


def written(
    made: Made, model: MathModel, on: Target, schedules: Schedules | None
) -> tuple[Program, Schedules, Emitted] | None:
    """Return the program of a case, schedules and source; None where the lowering has no form under them."""
    geometry = geometry_of(made.invocation, made.tensors)
    try:
        program, _, chosen, emitted = lowered(made.invocation, model, geometry, made.tensors, on, schedules)
    except (ScheduleError, UnsupportedError):
        if schedules is None:
            raise
        return None
    return program, chosen, emitted


def main(name: str, file: Path) -> None:
    """Write what the oracle wants, the backend that runs, and the outputs under each schedule."""
    case, device = CASES[name], torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(0)
    # uninitialised memory becomes NaN: what a kernel does not write is seen
    torch.use_deterministic_algorithms(True, warn_only=True)
    made = make(case, device)
    on, model = target_of(device), model_of(made.invocation, device)
    assert on is not None
    first = written(made, model, on, None)
    assert first is not None
    program, chosen, emitted = first
    dots = [any(isinstance(let.node, Dot) for let in walk(k.body)) for k in program.kernels]
    tried: dict[Schedules, str] = {}
    for text, changes in CHANGES.items():
        schedules = tuple(changes[dot](s) for s, dot in zip(chosen, dots, strict=True))
        if schedules not in tried and written(made, model, on, schedules) is not None:
            tried[schedules] = text
    compile_at_once(made, on, model, tuple(tried))
    outputs = []
    for schedules, text in tried.items():
        print(f"launching {text}", flush=True)  # the last line tells which launch hung
        outputs.append((text, on_device(made, schedules)))
    inputs = sampled(made, made.tensors, reads(made.invocation))
    want = by_oracle(case, inputs, model)
    torch.save({"want": want, "outputs": outputs, "backend": emitted.backend}, file)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
