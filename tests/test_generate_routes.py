"""Routes that `generate` notes are those of training, in any batch, chunk and pages, after a preemption."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nn_cases import DEVICE, model, texts

import rlk
from rlk.errors import LaunchError
from rlk.nn import CausalLM, Generation, RouteLog
from rlk.nn.experts import routed
from rlk.ops import Routes
from rlk.testing.bits import assert_same_bits

NEW, PROMPTS = 5, texts((9, 1, 14))
EXPERTS: dict[str, Any] = {
    "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 20,
}  # fmt: skip


def lm_of_experts() -> CausalLM:
    """Return a model whose router rows differ by pairs in the last bit: scores are near each other."""
    made = model(DEVICE, **EXPERTS)
    for layer in made.model.layers:
        w = layer.mlp.gate.weight
        w[1::2] = (w[::2].view(torch.int16) + 1).view(w.dtype)
    return made


def made(lm: CausalLM, **options: Any) -> list[Generation]:
    given = {"max_new_tokens": [NEW, NEW, 3], "seed": 3, "routes": True, **options}
    return lm.generate(PROMPTS, **given)


def test_training_replays_the_routes_of_a_rollout() -> None:
    """Every batch, chunk and page notes them; the control, other sums in one router, flips some."""
    lm = lm_of_experts()
    want = made(lm)
    for limits in ({"max_batch": 1, "chunk": 3}, {"page_size": 4, "pages": 5, "chunk": 7}):
        got = made(lm, **limits)
        assert [x.routes.digest() for x in got] == [x.routes.digest() for x in want], limits
        assert [x.ids for x in got] == [x.ids for x in want]
    assert sum(x.preempted for x in got) > 0
    assert [x.routes.tokens for x in want] == [len(x.sequence) for x in want]
    routes = Routes.cat([x.routes for x in want]).to(DEVICE)
    assert routes.nbytes == routes.tokens * 2 * 3

    ids = torch.tensor([token for x in want for token in x.sequence], device=DEVICE)
    lengths = [len(x.sequence) for x in want]
    layout = rlk.Layout.packed(torch.tensor([0, *lengths], device=DEVICE).cumsum(0), tokens=len(ids))
    free, log = RouteLog(), RouteLog(routes)
    with torch.no_grad():
        chosen = lm.logps(ids, layout, routes=free).logp
        replayed = lm.logps(ids, layout, routes=log).logp
    assert free.routes().digest() == routes.digest() and log.flips().tokens == 0
    assert_same_bits(replayed, chosen)
    for x, row in zip(want, replayed.split(lengths), strict=True):
        assert_same_bits(row[len(x.prompt) :].cpu(), x.raw_logps)
    with torch.no_grad():  # a router whose product is rounded in between
        gate = lm.model.layers[1].mlp.gate
        gate.forward = lambda x, *more: split_router(gate, x, *more)
        other = RouteLog(routes)
        lm.logps(ids, layout, routes=other)
    assert other.flips().by_layer[0] == 0 < other.flips().tokens


def split_router(gate: Any, x: torch.Tensor, *more: Any) -> Any:
    """Route by a product of eight parts, which are added in 16 bits by torch."""
    parts = zip(x.split(4, -1), gate.weight.split(4, -1), strict=True)
    z = sum((torch.nn.functional.linear(a, w) for a, w in parts), torch.zeros_like(x[:, :8]))
    return routed(z, *more)


def test_routes_of_a_model_without_experts_and_of_too_long_sequences_are_refused() -> None:
    with pytest.raises(LaunchError, match="False for a model without experts"):
        model().generate(PROMPTS, max_new_tokens=1, seed=0, routes=True)
    lm = lm_of_experts()
    longest = {"max_new_tokens": lm.config.max_position_embeddings, "seed": 0}
    (plain,) = lm.generate([[7]], **longest)  # nothing reads the last token
    assert plain.routes is None and len(plain.sequence) == lm.config.max_position_embeddings + 1
    with pytest.raises(LaunchError, match=r"max_new_tokens\[0\]"):
        lm.generate([[7]], routes=True, **longest)
