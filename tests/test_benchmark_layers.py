"""The layer in torch beside which rlk's is timed is the same function, and comparisons see other bits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import bench_model, layers, peers, whole_model
from benchmarks.dry import OnCpu
from benchmarks.harness import Bar, Session, run_case
from benchmarks.layers import TorchLayer
from benchmarks.timing import Ceilings, Launch, Timing
from rlk.nn import ModelConfig

CONFIGS = {
    "qwen3": layers.config_of("qwen3", 128, 4, 2, 256, head_dim=64, vocabulary=64, positions=256),
    "qwen3_moe": layers.config_of(
        "qwen3_moe", 128, 4, 2, 256, head_dim=64, vocabulary=64, positions=256, num_experts=8,
        num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True,
    ),
    "llama": layers.config_of("llama", 128, 4, 2, 320, head_dim=64, vocabulary=64, positions=256),
}  # fmt: skip
SHAPE = (2, 24)
CONTEXT = 80  # keys in two pages


def varlen(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, None]:
    """FlashAttention's function for packed queries, by torch's attention of one sequence after the other."""
    assert given.pop("causal")
    cu, made = given["cu_seqlens_q"].tolist(), []
    for i, (first, end) in enumerate(zip(cu, cu[1:], strict=False)):
        if "page_table" in given:
            keys, values = (t[given["page_table"][i].long()].flatten(0, 1) for t in (k, v))
            keys, values = (t[: given["seqused_k"][i]] for t in (keys, values))
        else:
            keys, values = k[first:end], v[first:end]
        rows = (t.transpose(0, 1)[None] for t in (q[first:end], keys, values))
        alone = "page_table" not in given  # one token of a decode sees every key
        o = F.scaled_dot_product_attention(*rows, is_causal=alone, enable_gqa=True)
        made.append(o[0].transpose(0, 1))
    return torch.cat(made), None


def dense(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool) -> tuple[Tensor, None]:
    """FlashAttention's function for [B, L, heads, E], by torch's."""
    rows = (t.transpose(1, 2) for t in (q, k, v))
    o = F.scaled_dot_product_attention(*rows, is_causal=causal, scale=softmax_scale, enable_gqa=True)
    return o.transpose(1, 2), None


@pytest.fixture
def torch_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace FlashAttention by torch's attention, and compiled parts by the functions themselves."""
    flash = SimpleNamespace(flash_attn_varlen_func=varlen, flash_attn_func=dense)
    imported = peers.module
    monkeypatch.setattr(peers, "module", lambda name: flash if "flash_attn" in name else imported(name))
    monkeypatch.setattr(layers, "fused", lambda call: call)


def near(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.double(), want.double(), rtol=0, atol=float(want.abs().max()) / 50)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.usefixtures("torch_layer")
def test_the_layer_in_torch_is_the_layer_of_whole_sequences(config: ModelConfig) -> None:
    torch.manual_seed(0)
    with OnCpu(), torch.no_grad():
        layer, at = layers.layer_of(config), layers.whole(*SHAPE)
        given = layers.states(SHAPE[0] * SHAPE[1], config.hidden_size)
        other = TorchLayer.of(config, layer)
        want, got = layer(*given, at), other(*given, layers.attend_whole(at, other))
        for a, b in zip(got, want, strict=True):
            near(a, b)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.usefixtures("torch_layer")
def test_the_layer_in_torch_is_the_layer_over_pages(config: ModelConfig) -> None:
    torch.manual_seed(0)
    with OnCpu(), torch.no_grad():
        layer, given = layers.layer_of(config), layers.states(3, config.hidden_size)
        at = layers.pages(config, 3, CONTEXT)
        other = TorchLayer.of(config, layer)
        want = layer(*given, at)
        written = at.cache.keys.clone()
        at.cache.keys.view(-1, *at.cache.keys.shape[3:])[at.slots] = 0.0
        got = other(*given, layers.attend_pages(at, other))
        near(got[0], want[0])
        near(at.cache.keys, written)


@pytest.mark.parametrize("fa4", [True, False])
@pytest.mark.usefixtures("torch_layer")
def test_the_step_of_transformers_has_the_loss_of_the_model(
    fa4: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers", reason="the peer")
    torch.manual_seed(0)
    config = replace(CONFIGS["qwen3"], windows=(None, None), ropes=2 * CONFIGS["qwen3"].ropes)
    with OnCpu():
        other = whole_model.transformers_model(config, whole_model.with_fa4() if fa4 else "sdpa")
        assert isinstance(other, transformers.Qwen3ForCausalLM)
        model = whole_model.model_of(config)
        model.load_state_dict(other.state_dict())
        monkeypatch.setattr(whole_model, "transformers_model", lambda *_: other)
        monkeypatch.setattr(whole_model, "model_of", lambda *_: model)
        monkeypatch.setattr(whole_model, "CHUNK", 16)
        b = whole_model.Batch.of(2, 24, config.vocab_size)
        how = {"liger": False, "fa4": fa4, "loss": whole_model.chunked_loss}
        want, got = (
            call()
            for call in (
                whole_model.rlk_step(config, b),
                whole_model.transformers_step(config, b, **how),
            )
        )
    near(got, want)


@pytest.mark.usefixtures("torch_layer")
def test_the_decoding_of_torch_has_the_logits_of_the_model() -> None:
    torch.manual_seed(0)
    config = replace(CONFIGS["qwen3"], windows=(None, None), ropes=2 * CONFIGS["qwen3"].ropes)
    with OnCpu():
        model = whole_model.model_of(config)
        d = whole_model.Decoding.of(model, 3, CONTEXT)
        near(whole_model.torch_decode(model, d)(), whole_model.rlk_decode(model, d)())


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.usefixtures("torch_layer")
def test_the_layer_in_torch_has_the_gradients_of_the_layer(config: ModelConfig) -> None:
    torch.manual_seed(0)
    with OnCpu():
        layer, at = layers.layer_of(config), layers.whole(*SHAPE)
        given = [t.requires_grad_() for t in layers.states(SHAPE[0] * SHAPE[1], config.hidden_size)]
        seeds = [torch.randn_like(t) for t in given]
        other = TorchLayer.of(config, layer, grad=True)
        want = torch.autograd.grad(layer(*given, at), (*given, layer.self_attn.v_proj.weight), seeds)
        made = other(*given, layers.attend_whole(at, other))
        got = torch.autograd.grad(made, (*given, other.qkv), seeds)
    for a, b in zip(got[:2], want[:2], strict=True):
        near(a, b)
    near(got[2][-len(want[2]) :], want[2])


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_views_of_a_layer_are_compared_bit_by_bit(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    with OnCpu():
        layer, at = layers.layer_of(config), layers.whole(*SHAPE)
        given = layers.states(SHAPE[0] * SHAPE[1], config.hidden_size)
        assert bench_model.check_forward(config, layer, given, at, SHAPE[1]).differing == 0
        pages, few = layers.pages(config, 3, CONTEXT), layers.states(3, config.hidden_size)
        assert bench_model.check_decode(layer, few, pages).differing == 0
        # an attention that sees how many sequences there are
        plain = type(pages).attend
        monkeypatch.setattr(
            type(pages), "attend", lambda self, *a, **o: plain(self, *a, **o) * len(self.context_lens)
        )
        assert bench_model.check_decode(layer, few, pages).differing


def test_a_layer_without_its_peer_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise peers.Absent(f"{name}: not installed")

    monkeypatch.setattr(peers, "module", missing)

    def timer(launch: Launch) -> Timing:
        launch()
        return Timing(1.0, 1.0, (1.0, 1.0))

    with OnCpu():
        case = bench_model.decode("tiny", CONFIGS["qwen3"], 2, CONTEXT)
        case = replace(case, timer=timer, describe=lambda: {"tier": "pinned"})
        row = run_case(case, Session(Ceilings(4e12, 7e14), 0.1, None))
    assert row["bar"] == str(Bar(1.03, bench_model.PEER)) and row["holds"] is None and row["bits"] == "pinned"
    assert "flash_attn" in row["peers"][bench_model.PEER]["absent"]
