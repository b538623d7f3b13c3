"""Benchmark of digests of weights, beside copies: of one weight by its kernel, and of a model."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.harness import Bar, Case, Checked, main
from benchmarks.layers import models
from rlk.nn import CausalLM
from rlk.runtime.call.entry import call
from rlk.sync.blocks import LANES, STEPS, Weight, host_sums, launch_digests
from rlk.sync.kernel import block_digest

RATE = 0.85
"""Of a copy: bytes of weights that are digested in the time in which as many are copied."""
BAR = Bar(1 / RATE, "copy")
SHAPES = ((151936, 4096), (12288, 4096), (4096, 4096), (1024, 1024))
SAMPLED = [0, -1]


def cases() -> Iterator[Case]:
    """Yield weights of several sizes, then a model with many small ones."""
    for shape in SHAPES:
        weight = torch.randn(shape, device="cuda").bfloat16()
        yield case_of_weight(weight)
        del weight
    yield case_of_model(CausalLM(models()["Qwen3-0.6B"], device="cuda"))


def case_of_weight(weight: torch.Tensor) -> Case:
    """Digest one weight, whose bytes are whole blocks."""
    words = weight.view(-1).view(torch.int32).view(-1, STEPS, LANES)
    target = torch.empty_like(weight)

    def check() -> Checked:
        made = call(block_digest, {"words": words}, {}, {})
        got = torch.stack([made[name][SAMPLED] for name in ("first", "second")], 1).cpu()
        return Checked(differing=int((got != host_sums(words[SAMPLED].cpu())).sum()))

    return Case(
        op="weight_digest",
        passes="fwd",
        shape={"M": weight.shape[0], "N": weight.shape[1]},
        rlk=lambda: lambda: call(block_digest, {"words": words}, {}, {}),
        peers={"copy": lambda: lambda: target.copy_(weight)},
        moved=weight.nbytes,
        bar=BAR,
        reference="copy",
        check=check,
    )


def case_of_model(model: CausalLM) -> Case:
    """Digest all weights of a model, the small ones too: a launch for each that has a whole block."""
    given = [Weight(p.detach(), p.dtype) for p in model.parameters()]
    tensors = [each.tensor for each in given]
    targets = [torch.empty_like(each) for each in tensors]
    return Case(
        op="weight_digest",
        passes="model",
        shape={"L": model.config.num_hidden_layers, "tensors": len(given)},
        rlk=lambda: lambda: launch_digests(given, tensors[0].device)[0],
        peers={"copy": lambda: lambda: torch._foreach_copy_(targets, tensors)},
        moved=sum(each.nbytes for each in tensors),
        bar=BAR,
        reference="copy",
    )


if __name__ == "__main__":
    main("digest", cases)
