"""Runs one case by the CuTe lowering, and the oracle, alone: `python -m gpu.cute_child CASE FILE`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from gpu.calls import Case, Made, Schedules, by_oracle, geometry_of, make, on_device, reads, sampled
from gpu.cute_cases import CASES, CHANGES

from rlk.errors import UnsupportedError
from rlk.ir.nodes import MathModel
from rlk.lower.common.emitted import Emitted
from rlk.runtime.binding.invocation import model_of, target_of
from rlk.runtime.call.dispatch import entry_key, lowered
from rlk.runtime.kernels.build import obtain_later
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target


def compile_at_once(
    made: Made, on: Target, model: MathModel, every: Mapping[Schedules, str]
) -> dict[Schedules, str]:
    """Compile a case under its schedules, each in a process of its own; return those that have a form."""
    geometry = geometry_of(made.invocation, made.tensors)
    waiting, found = [], {}
    for schedules, text in every.items():
        try:
            program, _, _, emitted = lowered(made.invocation, model, geometry, made.tensors, on, schedules)
        except UnsupportedError as refused:
            print(refused, flush=True)
            continue
        found[schedules] = text
        key = entry_key(program, schedules, emitted, on)
        waiting.append(obtain_later(key, partial(_itself, emitted), label=emitted.file))
    for future in waiting:
        future.result()
    return found


def _itself(emitted: Emitted) -> Emitted:
    return emitted


def main(
    cases: Mapping[str, Case], changes: Mapping[str, Callable[[Schedule], Schedule]], name: str, file: Path
) -> None:
    """Write what the oracle wants, the backend that runs, and the outputs under each schedule."""
    case, device = cases[name], torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(0)
    # uninitialised memory becomes NaN: what a kernel does not write is seen
    torch.use_deterministic_algorithms(True, warn_only=True)
    made = make(case, device)
    on, model = target_of(device), model_of(made.invocation, device)
    assert on is not None
    _, _, chosen, emitted = lowered(
        made.invocation, model, geometry_of(made.invocation, made.tensors), made.tensors, on
    )
    changed = {t: tuple(map(change, chosen)) for t, change in changes.items()}
    tried = {schedules: text for text, schedules in reversed(changed.items())}
    outputs = []
    for schedules, text in reversed(compile_at_once(made, on, model, tried).items()):
        print(f"launching {text}", flush=True)  # the last line tells which launch hung
        outputs.append((text, on_device(made, schedules)))
    inputs = sampled(made, made.tensors, reads(made.invocation))
    want = by_oracle(case, inputs, model)
    torch.save({"want": want, "outputs": outputs, "backend": emitted.backend}, file)


if __name__ == "__main__":
    main(CASES, CHANGES, sys.argv[1], Path(sys.argv[2]))
