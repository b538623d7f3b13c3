"""The id of a model changes with whatever changes its bits, and with nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from model_families import FAMILIES, SIZES

from rlk import ops
from rlk.nn import CausalLM, ModelConfig
from rlk.nn.config import Rope
from rlk.nn.identity import operator_ids, small
from rlk.nn.modules import take_memory

PLAIN = ModelConfig.of(FAMILIES["llama"]())


def id_of(config: ModelConfig, dtype: torch.dtype = torch.bfloat16) -> str:
    return CausalLM(config, device="meta", dtype=dtype).numerics_id("cpu")


def ropes(change: Callable[[Rope], Rope]) -> dict[str, Any]:
    return {"ropes": tuple(change(rope) for rope in PLAIN.ropes)}


CHANGES: dict[str, dict[str, Any]] = {
    "leaves": {"leaves": 2},
    "more leaves": {"leaves": 8},
    "the profile of norms": {"norm_profile": "gemma"},
    "eps": {"rms_norm_eps": 1e-5},
    "the base of angles": ropes(lambda rope: replace(rope, theta=5e5)),
    "the scaling of angles": ropes(lambda rope: replace(rope, scaling=(("rope_type", "default"),))),
    "the part that rotates": ropes(lambda rope: replace(rope, dim=8)),
    "the angles of a layer": {"ropes": (PLAIN.ropes[0], replace(PLAIN.ropes[1], theta=1e6))},
    "a window": {"windows": (8, 8)},
    "the window of a layer": {"windows": (8, None)},
    "a softcap of logits": {"final_softcap": 30.0},
    "another softcap of logits": {"final_softcap": 20.0},
    "a softcap of scores": {"attention_softcap": 50.0},
    "the scale of scores": {"attention_scale": 0.125},
    "the activation": {"activation": "gelu_tanh"},
    "norms of heads": {"qk_norm": True},
    "norms behind": {"sandwich_norms": True},
    "a bias": {"qkv_bias": True},
    "a scale of embeddings": {"embedding_scale": 8.0},
    "a tied head": {"tie_word_embeddings": True},
}


def test_each_change_of_numerics_changes_the_id() -> None:
    ids = {what: id_of(replace(PLAIN, **change)) for what, change in CHANGES.items()}
    ids["nothing"] = id_of(PLAIN)
    ids["the dtype"] = id_of(PLAIN, torch.float16)
    assert len(set(ids.values())) == len(ids), ids


@pytest.mark.parametrize("change", ({"model_type": "mistral"}, {"max_position_embeddings": 4096}))
def test_names_and_numbers_of_positions_are_no_numerics(change: dict[str, Any]) -> None:
    assert id_of(replace(PLAIN, **change)) == id_of(PLAIN)


def test_equal_models_of_two_families_have_one_id() -> None:
    llama = ModelConfig.of(transformers.LlamaConfig(**SIZES, num_hidden_layers=3, rms_norm_eps=1e-6))
    mistral = ModelConfig.of(
        transformers.MistralConfig(**SIZES, num_hidden_layers=3, rms_norm_eps=1e-6, sliding_window=None)
    )
    assert id_of(llama) == id_of(mistral) and llama != mistral


def test_an_id_is_the_same_with_memory_and_leaves_random_numbers_alone() -> None:
    before = torch.random.get_rng_state()
    assert id_of(PLAIN) == CausalLM(PLAIN, device="meta").numerics_id(torch.device("cpu"))
    assert torch.equal(before, torch.random.get_rng_state())
    assert id_of(PLAIN) == CausalLM(PLAIN).numerics_id("cpu")


def run_views(config: ModelConfig) -> set[tuple[str, str]]:
    like = CausalLM(small(config), device="meta")
    take_memory(like, "cpu")
    return operator_ids(torch.device("cpu"), like._every_view)


def test_the_ids_are_those_of_the_variants_that_are_called() -> None:
    """By the ids that public operators give for the same arguments."""
    config = replace(PLAIN, norm_profile="gemma", leaves=4, final_softcap=30.0)
    found = run_views(config)
    x, w = torch.zeros(2, 64, dtype=torch.bfloat16), torch.zeros(64, 64, dtype=torch.bfloat16)
    ids, kept = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int32)
    mask, support = torch.ones(2, dtype=torch.bool), ops.Support(kept.float(), kept, kept)
    called = [
        ops.rms_norm.explain(x, w[0], eps=1e-6, profile="gemma"),
        ops.rms_norm.explain(x, w[0], residual=x, eps=1e-6, profile="gemma"),
        ops.matmul.explain(x, w, leaves=4),
        ops.matmul.explain(x, w, out_dtype=torch.float32),
        ops.linear_logp.explain(x, w, ids, mask=mask, softcap=30.0),
        ops.linear_logp.explain(x, w, ids, mask=mask, softcap=30.0, needs=("logp", "entropy")),
        ops.linear_logp.explain(x, w, ids, mask=mask, softcap=30.0, support=support),
    ]
    assert {decision.numerics_id for decision in called} <= {number for _, number in found}
    others = [
        ops.rms_norm.explain(x, w[0], eps=1e-6, profile="hf_llama"),
        ops.matmul.explain(x, w, leaves=8),
        ops.linear_logp.explain(x, w, ids, mask=mask),
    ]
    assert not {decision.numerics_id for decision in others} & {number for _, number in found}


def test_every_view_is_asked() -> None:
    names = {name for name, _ in run_views(ModelConfig.of(FAMILIES["gemma2"]()))}
    assert {"embedding", "rms_norm", "matmul", "rope", "varlen_attention", "paged_attention", "geglu",
            "linear_logp", "softcapped"} <= names  # fmt: skip
