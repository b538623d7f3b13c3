"""Kernels that are prepared of an engine's steps: all that layers launch at drawn sizes. None is compiled."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from serving_cases import Keys, samplers

from rlk import ops
from rlk.integrations.vllm import computations
from rlk.nn import serving
from rlk.nn.config import ModelConfig
from rlk.nn.logits import head_logits
from rlk.nn.serving import Steps
from rlk.ops import sampling
from rlk.runtime.binding.shape_buckets import class_of, representatives
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.prefetch import stand_in, unwritten

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
    o = ops.paged_attention(q, keys, values, table, lengths, edges[: sequences + 1], scale=0.1).o
    computations.linear(o.flatten(-2), of(HIDDEN, HEADS * DIM), None, True, 1)
    both = computations.linear(x, of(2 * WIDE, HIDDEN), None, False, 1)
    computations.linear(computations.gated(both, "silu"), of(HIDDEN, WIDE), None, True, 1)
    every = head_logits(x, of(VOCAB, HIDDEN), None)
    ops.logp(every, torch.zeros(tokens, dtype=torch.int64), needs=("lse",))  # of a prompt
    scores, each = head_logits(x[:sequences], of(VOCAB, HIDDEN), None), torch.ones(sequences)
    ids = torch.zeros(sequences, dtype=torch.int64)
    sampling.draw(scores, {"seed": ids, "request_id": ids, "position": ids}, each, 0, 1.0, 0.0)
    ops.logp(scores, ids, needs=("logp",))


def test_every_size_runs_what_is_prepared() -> None:
    prepared, drawn = Keys(), Keys()
    with samplers((True, False, False, False)):
        serving.observe(MODEL, BF16, STEPS, 1, prepared.note)
    with torch.no_grad(), dispatch.recorded(lambda i, t: unwritten(i, t, drawn.note)):
        for tokens, sequences in numbers(40):
            step(tokens, sequences, 4096 + tokens % 2)
    missing = {name for name, _ in drawn.found.keys() - prepared.found.keys()}
    assert not missing
    assert len(drawn.found) >= 20
    # a list without the multiples of 16, and one without the classes above 16, would lack some
    for left in (lambda n: n % 16 == 0, lambda n: n > 16):
        fewer = {each for each, rows in prepared.found.items() if not all(map(left, rows))}
        assert {"matmul", "paged_attention"} & {name for name, _ in drawn.found.keys() - fewer}


def test_representatives_have_each_class_and_divisor() -> None:
    found = representatives(1000)
    facts = {(class_of(n), n & -n if n % 16 else 16) for n in found}
    assert len(facts) == len(found) < 300
    assert all((class_of(n), n & -n if n % 16 else 16) in facts for n in range(1, 1001))
