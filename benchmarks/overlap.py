"""CUDA graphs whose kernels start while the one before ends, beside the same ones in order (decision 79).

`python -m benchmarks.overlap --layers 12 --batch 1 --context 640` prints microseconds of a decode step of a
Qwen3-8B with so many layers, and of `logp` of so many rows, measured in turns; it fails where their bits
differ.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import torch

import rlk
from benchmarks import layers, whole_model
from benchmarks.timing import Launch, captured, measure_in_turns
from rlk.env import Env
from rlk.runtime.call.dispatch import dispatch


def of(call: Callable[[], torch.Tensor], *, overlap: bool) -> Launch:
    """Return the replay of a graph of a call, captured with or without early starts."""
    env = replace(Env.current(), overlap=overlap)
    with patch.object(Env, "current", staticmethod(lambda: env)):
        dispatch.forget()  # what is loaded says how it is launched
        return captured(call)


def compare(name: str, call: Callable[[], torch.Tensor], seconds: float) -> str:
    """Return a line of both times; raise where one has other bits."""
    both = [of(call, overlap=overlap) for overlap in (True, False)]
    early, late = (launch().clone() for launch in both)
    if not torch.equal(early.view(torch.uint8), late.view(torch.uint8)):
        raise RuntimeError(f"{name}: other bits where kernels start early")
    found = [1e3 * timing.ms for timing in measure_in_turns(both, seconds=seconds)]
    return f"{name}: {found[0]:.1f} us, in order {found[1]:.1f} us, ratio {found[0] / found[1]:.3f}"


def main() -> None:
    """Print both times of each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__)
    for option, default in (("--layers", 12), ("--batch", 1), ("--context", 2048)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    config = layers.config_of("qwen3", 4096, 32, 8, 12288, layers=given.layers)
    model = whole_model.model_of(config)
    step = whole_model.rlk_decode(model, whole_model.Decoding.of(model, given.batch, given.context))
    print(compare(f"decode of {given.layers} layers", step, given.seconds))
    logits = torch.randn(given.batch, config.vocab_size, dtype=torch.bfloat16, device="cuda")
    ids = torch.zeros(given.batch, dtype=torch.int64, device="cuda")

    def logp() -> torch.Tensor:
        made = rlk.ops.logp(logits, ids).logp
        assert made is not None
        return made

    print(compare("logp", logp, given.seconds))


if __name__ == "__main__":
    main()
