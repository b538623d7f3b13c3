"""Runs one case by the CuTe lowering, and the oracle, alone: `python -m gpu.cute_child CASE FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from gpu.calls import by_oracle, geometry_of, make, on_device, reads, sampled
from gpu.cute_cases import CASES, CHANGES

from rlk.runtime.dispatch import lowered
from rlk.runtime.invocation import model_of, target_of


def main(name: str, file: Path) -> None:
    """Write what the oracle wants, the backend that runs, and the outputs under each schedule."""
    case, device = CASES[name], torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(0)
    # uninitialised memory becomes NaN: what a kernel does not write is seen
    torch.use_deterministic_algorithms(True, warn_only=True)
    made = make(case, device)
    on, model = target_of(device), model_of(made.invocation, device)
    assert on is not None
    _, _, chosen, emitted = lowered(
        made.invocation, model, geometry_of(made.invocation, made.tensors), made.tensors, on
    )
    outputs = []
    done = []
    for text, change in CHANGES.items():
        schedules = tuple(change(s) if s.programs else s for s in chosen)
        if schedules not in done:
            print(f"launching {text}", flush=True)  # the last line tells which launch hung
            outputs.append((text, on_device(made, schedules)))
            done.append(schedules)
    inputs = sampled(made, made.tensors, reads(made.invocation))
    want = by_oracle(case, inputs, model)
    torch.save({"want": want, "outputs": outputs, "backend": emitted.backend}, file)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
