"""Megatron-core's GPT model by rlk has the losses, logits, gradients and weights of `rlk.nn`'s."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import pytest
import torch

if os.environ.get("RLK_REQUIRE_VLLM") != "1" and find_spec("megatron") is None:
    pytest.skip("make test-vllm has Megatron-core", allow_module_level=True)

import rank_cases
from megatron_cases import PACKED, factors, has_next, policy_of, streams, texts
from rank_cases import Found

from rlk.nn import RMSNorm
from rlk.ops import Layout
from rlk.parallel.plan import dim_of
from rlk.sync import digest
from rlk.testing.bits import assert_same_bits, differing

WORLD, SECONDS = 2, 240
ALONE = ("qwen3", "qwen2")
"""The models of one rank: the first rank's, the second one's."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    folder = tmp_path_factory.mktemp("ranks")
    return rank_cases.run("gloo", WORLD, folder, "megatron_rank_cases", SECONDS)


@cache
def wanted(name: str) -> Found:
    """Return what `rlk.nn` computes of a model: -log p of the token behind each, logits, gradients."""
    model, ids, kept = policy_of(name), texts(name), has_next(name)
    layout = None
    if name == "llama":
        ids = ids[0]
        layout = Layout.packed(torch.tensor([0, *torch.tensor(PACKED).cumsum(0)]), tokens=len(ids))
    logp = model.logps(ids, layout).logp.view(kept.shape).roll(-1, 1)
    losses = torch.where(kept, -logp, 0)
    (losses * factors(name) * kept).sum().backward()
    with torch.no_grad():
        logits = model.logits(model(ids, layout)).view(*kept.shape, -1)
    grads = {each: p.grad for each, p in model.named_parameters()}
    return {"losses": losses.detach(), "logits": logits, "grads": grads, "total": digest(model).total}


def part(name: str, x: torch.Tensor, rank: int, tp: int) -> torch.Tensor:
    """Return a rank's part of a gradient."""
    dim = dim_of(name)
    return x if dim is None else x.chunk(tp, dim)[rank]


def assert_as_wanted(found: Found, name: str, rank: int, tp: int) -> None:
    want = wanted(name)
    assert_same_bits(found["losses"], want["losses"], "losses")
    assert_same_bits(found["gathered"], want["logits"], "logits")
    assert_same_bits(found["logits"], want["logits"].chunk(tp, -1)[rank], "logits of a rank")
    assert found["grads"].keys() == want["grads"].keys()
    for each, x in found["grads"].items():
        assert_same_bits(x, part(each, want["grads"][each], rank, tp), each)
    assert found["total"] == want["total"]


@pytest.mark.parametrize("rank", range(WORLD))
def test_one_rank_has_the_bits_of_rlk_nn(rank: int, ranks: list[Found]) -> None:
    assert_as_wanted(ranks[rank]["alone"], ALONE[rank], 0, 1)
    assert ranks[rank]["config"]


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_two_ranks_have_the_bits_of_rlk_nn(name: str, ranks: list[Found]) -> None:
    for rank, found in enumerate(ranks):
        assert_as_wanted(found[name], name, rank, WORLD)


def test_norms_add_tokens_sequence_by_sequence(ranks: list[Found]) -> None:
    def grad(x: torch.Tensor, d_y: torch.Tensor) -> torch.Tensor:
        norm = RMSNorm(x.shape[-1], eps=1e-5)
        norm(x).backward(d_y)
        assert norm.weight.grad is not None
        return norm.weight.grad

    x, d_y = streams()
    want = grad(*(t.transpose(0, 1).flatten(0, 1) for t in (x, d_y)))
    for found in ranks:
        for name in ("forward", "of_total"):
            assert_same_bits(found["norm"][name]["y"], RMSNorm(24, eps=1e-5)(x).detach(), name)
            assert_same_bits(found["norm"][name]["grad"], want, name)
    assert differing(grad(x.flatten(0, 1), d_y.flatten(0, 1)), want) > 5  # the control: place by place


@pytest.mark.parametrize("rank", range(WORLD))
def test_other_layers_have_other_bits(rank: int, ranks: list[Found]) -> None:
    """The control: Megatron's own local spec, and the provider's layers between Megatron's functions."""
    found, want = ranks[rank]["control"], wanted(ALONE[rank])
    assert differing(found["losses"], want["losses"]) > 5
    counts = {name: differing(x, want["grads"][name]) for name, x in found["grads"].items()}
    assert sum(n > 0 for n in counts.values()) > len(counts) // 2, counts


def test_weights_move_both_ways_and_a_change_is_found_in_its_weight(ranks: list[Found]) -> None:
    for found in ranks:
        assert found["back"] == wanted("llama")["total"]
        (line,) = found["changed"]
        assert "model.layers.0.self_attn.v_proj.weight: " in line


def test_attention_to_a_cache_is_refused(ranks: list[Found]) -> None:
    """Megatron's own layer on rlk's attention: it computes a prompt, and not the token behind it."""
    found = ranks[1]["cached"]
    assert_same_bits(found["prompt"], found["whole"], "logits of the prompt")
    code, text = found["next"]
    assert code == "ARG_VALUE" and "attn_mask_type=<AttnMaskType.no_mask" in text, text


WORDS = {
    "options": (
        "config.hidden_dropout=0.1", "0.0", "config.activation_func='gelu'", "silu", "config.params_dtype=",
        "torch.bfloat16 or torch.float16", "config.normalization=", "config.num_moe_experts=8",
        "config.sequence_parallel=True", "config.context_parallel_size=2", "config.recompute_granularity=",
        "config.rlk_leaves=3",
    ),
    "arguments": ("position_embedding_type='learned_absolute'", "expected rope", "rope_scaling=True"),
    "spec": ("transformer_layer_spec='TransformerLayer'", "rlk_layer_spec(config)"),
    "their model": ("the model of rlk_layer_spec(config)", "expected rlk.integrations.megatron.GPTModel"),
    "mask": ("attention_mask='a tensor of shape [1, 1, 70, 70]'", "None, which is causal"),
    "padded": ("packed_seq_params.cu_seqlens_q_padded='other offsets'", "no padding"),
    "inference": ("inference_context='object'",),
    "ids": ("ids from 0 to 95",),
    "long": ("max_position_embeddings = 512",),
    "type padding": ("attn_mask_type=<AttnMaskType.padding", "AttnMaskType.causal, or None"),
    "type no_mask": ("attn_mask_type=<AttnMaskType.no_mask", "AttnMaskType.causal, or None"),
    "type padding_causal": ("attn_mask_type=<AttnMaskType.padding_causal",),
    "type arbitrary": ("attn_mask_type=<AttnMaskType.arbitrary",),
    "type causal_bottom_right": ("attn_mask_type=<AttnMaskType.causal_bottom_right",),
    "keys": ("key.shape=[3, 2, 2, 16]", "expected [4, 2, ...], the query's tokens"),
    "values": ("value.shape=[4, 3, 2, 16]", "expected [4, 2, ...]"),
    "packed keys": ("key.shape=[3, 2, 16]", "expected [4, ...]"),
    "packed values": ("value.shape=[2, 2, 16]", "expected [4, ...]"),
}  # fmt: skip


def test_what_megatron_has_and_rlk_has_not_is_refused_by_name(ranks: list[Found]) -> None:
    for found in ranks:
        assert found["refused"].keys() == WORDS.keys()
        for name, (code, text) in found["refused"].items():
            raised = "RAISED_ANEW" if name == "their model" else "ARG_VALUE"  # Megatron adds to the text
            assert code == raised and all(word in text for word in WORDS[name]), text
        code, text = found["refused by two"]["shares"]
        assert code == "ARG_VALUE" and "config.rlk_leaves=1" in text and "vocab_size=100" in text, text
        assert found["refused by two"]["logits"][0] == "NOT_DIFFERENTIABLE"
