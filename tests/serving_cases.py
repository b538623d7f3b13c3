"""Steps of a small model as an engine launches them, and the kernels of recorded launches on Hopper."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from rlk import ops
from rlk.integrations.vllm import computations
from rlk.ir.nodes import Role
from rlk.nn import serving
from rlk.nn.config import ModelConfig
from rlk.nn.logits import head_logits
from rlk.nn.serving import Steps
from rlk.ops import sampling
from rlk.ops.attention import paged_attention_into
from rlk.runtime.binding.invocation import (
    Invocation,
    Tensors,
    geometry_of,
    inputs_of,
    of_one_stride,
    scattered,
)
from rlk.runtime.call.dispatch import asked_for, lowered_code, requested
from rlk.runtime.prefetch import stand_in
from rlk.target.facts import target

ON = target("sm_90a")
STEPS = Steps(context=1024, tokens=24, sequences=3)
HEADS, KEYS, DIM, HIDDEN, WIDE, VOCAB = 4, 2, 64, 128, 256, 512
MODEL = ModelConfig.of(
    {
        "model_type": "qwen3", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": WIDE,
        "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KEYS, "head_dim": DIM,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 1024, "rope_theta": 1e6, "hidden_act": "silu",
    }
)  # fmt: skip
BF16 = torch.bfloat16
Key = tuple[str, str, tuple[str, ...]]


@dataclass
class Keys:
    """The kernels of recorded launches by the operator, with the extents of the rows that run them."""

    found: dict[tuple[str, Key], set[int]] = field(default_factory=dict)

    def note(self, invocation: Invocation, tensors: Tensors) -> None:
        tensors = of_one_stride(tensors, scattered(invocation, tensors))
        geometry = geometry_of(invocation, tensors)
        used = {d.name: tensors[d.name] for d in inputs_of(invocation) if d.role is Role.IN}
        used |= {name: tensors[name] for name in invocation.into}
        call = (invocation, ON.softmax, geometry, used, ON)
        code = lowered_code(requested(*call, None, asked_for(ON)))
        key = (code.backend, code.ir, code.schedules)
        self.found.setdefault((invocation.spec.name, key), set()).add(geometry.extents["T"])


@contextmanager
def samplers(*kept: tuple[bool, ...]) -> Iterator[None]:
    """Record the sampler with these choices of options alone: each takes a second to lower."""
    sample = serving._Calls.draw

    def draw(self: serving._Calls, rows: int, options: tuple[bool, ...]) -> None:
        if options in kept:
            sample(self, rows, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving._Calls, "draw", draw)
        yield


def numbers(count: int) -> Iterator[tuple[int, int]]:
    rng = random.Random(3)
    yield from ((STEPS.tokens, 1), (16, STEPS.sequences), (8, 2), (1, 1))
    for _ in range(count - 4):
        tokens = rng.randint(1, STEPS.tokens)
        yield tokens, rng.randint(1, min(tokens, STEPS.sequences))


def of(*shape: int) -> torch.Tensor:
    return stand_in(*shape, dtype=BF16)


def step(tokens: int, sequences: int, pages: int = 4097) -> None:
    """Call what the layers of vLLM call in a step, on buffers of its largest sizes as it has them."""
    positions, slots = (torch.zeros(STEPS.tokens, dtype=torch.int64)[:tokens] for _ in range(2))
    x = computations.embedding(positions, of(VOCAB, HIDDEN))
    x = computations.rms_norm(x, of(HIDDEN), 1e-6, "hf_llama")
    x, residual = computations.rms_norm_of_sum(x, of(HIDDEN), 1e-6, "hf_llama", x)
    qkv = computations.linear(x, of((HEADS + 2 * KEYS) * DIM, HIDDEN), None, False, 1)
    by_token = of(pages, STEPS.page, KEYS, 2 * DIM)  # vLLM's layout NHD; what is prepared has HND
    keys, values = by_token.chunk(2, -1)
    cos, sin = of(1024, DIM).chunk(2, -1)
    q = ops.cache_qkv(
        qkv, keys, values, slots, q_weight=of(DIM), k_weight=of(DIM), cos=cos, sin=sin,
        position_ids=positions, eps=1e-6,
    )  # fmt: skip
    table = torch.zeros(STEPS.sequences, STEPS.tables[-1], dtype=torch.int32)[:sequences]
    edges = torch.zeros(STEPS.sequences + 1, dtype=torch.int32)
    edges[1 : sequences + 1] = tokens
    lengths = torch.ones(STEPS.sequences, dtype=torch.int32)[:sequences]
    o = torch.empty_like(q)
    paged_attention_into(o, q, keys, values, table, lengths, edges[: sequences + 1], scale=0.1)
    computations.linear(o.flatten(-2), of(HIDDEN, HEADS * DIM), None, True, 1)
    both = computations.linear(x, of(2 * WIDE, HIDDEN), None, False, 1)
    computations.linear(computations.gated(both, "silu"), of(HIDDEN, WIDE), None, True, 1)
    every = head_logits(x, of(VOCAB, HIDDEN), None)
    ops.logp(every, torch.zeros(tokens, dtype=torch.int64), needs=("lse",))  # of a prompt
    scores, each = head_logits(x[:sequences], of(VOCAB, HIDDEN), None), torch.ones(sequences)
    ids = torch.zeros(sequences, dtype=torch.int64)
    sampling.draw(scores, {"seed": ids, "request_id": ids, "position": ids}, each, 0, 1.0, 0.0)
    ops.logp(scores, ids, needs=("logp",))
