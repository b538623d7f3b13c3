"""Runs one case under many schedules, and the oracle, in its own process: `python -m gpu.child CASE FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from gpu.calls import by_oracle, make, on_device, reads, sampled, variations
from gpu.cases import CASES

from rlk.errors import ScheduleError
from rlk.runtime.binding.invocation import model_of


def main(name: str, file: Path) -> None:
    """Write what the oracle wants, and the outputs under each schedule."""
    case, device = CASES[name], torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(0)
    # uninitialised memory becomes NaN: what a kernel does not write is seen
    torch.use_deterministic_algorithms(True, warn_only=True)
    made = make(case, device)
    outputs = []
    for schedules in variations(made):
        text = "; ".join(map(str, schedules))
        print(f"launching {text}", flush=True)  # the last line tells which launch hung
        try:
            outputs.append((text, on_device(made, schedules)))
        except ScheduleError as refused:
            print(refused, flush=True)  # it needs more than the device has
    inputs = sampled(made, made.tensors, reads(made.invocation))
    want = by_oracle(case, inputs, model_of(made.invocation, device))
    torch.save({"want": want, "outputs": outputs}, file)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
