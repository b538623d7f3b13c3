"""DeepSeek-V3 in transformers: router and experts by rlk, and what is left out is said."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import rlk
from rlk.errors import UnsupportedError
from rlk.testing.bits import assert_same_bits, differing

IDS = torch.randint(96, (2, 30), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> Any:
    """Two layers of experts behind a dense one, with random weights of the usual spread."""
    config = transformers.DeepseekV3Config(
        vocab_size=96, hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=16, n_group=4, topk_group=2,
        num_experts_per_tok=3, first_k_dense_replace=1, kv_lora_rank=32, q_lora_rank=48, qk_rope_head_dim=16,
        qk_nope_head_dim=16, v_head_dim=16, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    made = transformers.DeepseekV3ForCausalLM(config).bfloat16().eval()
    with torch.no_grad():
        for name, p in made.named_parameters():
            if "norm" not in name:
                p.normal_(std=p.shape[-1] ** -0.5)
        for layer in made.model.layers[1:]:
            layer.mlp.gate.e_score_correction_bias.normal_(std=0.3)
    return made


def blocks(model: Any) -> list[Any]:
    return [layer.mlp for layer in model.model.layers[1:]]


def test_latent_attention_is_refused_with_what_is_exchanged(
    model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnsupportedError) as raised:
        rlk.patch(model)
    assert "deepseek_v3" in str(raised.value) and "strict=False" in str(raised.value)
    assert str(raised.value).count("[PATCH_PART]") == 1
    assert "forward" not in vars(blocks(model)[0])
    with rlk.patch(model, strict=False):
        printed = capsys.readouterr().out
    assert "not exchanged: model: rlk.nn: config.model_type='deepseek_v3' is not allowed (" in printed
    assert "exchanged: linear layers (25), norms (13), embeddings (1), layers of experts" in printed
    assert "not attention, gated MLPs, layers and models, so that bits depend on the batch" in printed


@pytest.mark.parametrize(("name", "value"), [("hidden_act", "gelu"), ("n_group", 16), ("topk_group", 0)])
def test_experts_that_rlk_does_not_compute_stay_as_they_are(model: Any, name: str, value: Any) -> None:
    """In a model of another activation, or of groups that rlk's router does not choose from."""
    setattr(model.config, name, value)
    with rlk.patch(model, strict=False) as patched:
        assert "forward" not in vars(blocks(model)[0]) and "forward" not in vars(blocks(model)[0].gate)
        assert "forward" in vars(blocks(model)[0].shared_experts.up_proj)
    (said,) = (each for each in patched.problems if "mlp" in each)
    assert f"model.layers.1.mlp and 1 more: rlk.nn: config.{name}={value!r}" in said


@torch.no_grad()
def test_experts_are_those_of_the_router_and_results_near_float64(model: Any) -> None:
    """Of each layer of experts by itself; without the correction of scores experts are others."""
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    exact = [block.gate(x) for block in blocks(model)]
    plain = [block(x[None])[0] for block in blocks(model)]
    with rlk.patch(model, strict=False) as patched:
        assert len(patched.problems) == 1
        for block, (scores, weights, ids), theirs in zip(blocks(model), exact, plain, strict=True):
            got, factors, chosen = block.gate(x[None])  # as transformers' own
            ids, order = ids.sort(-1)
            assert got.dtype == torch.float32 and torch.equal(chosen.long(), ids)
            torch.testing.assert_close(got, scores, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(factors, weights.gather(-1, order), rtol=1e-5, atol=1e-6)
            y = block(x[None])[0]
            assert_same_bits(block(x[None, 7:8])[0, 0], y[7], "a token alone")
            wide = mixture(block, x, ids, weights.gather(-1, order))
            error, other = ((made.double() - wide).square().mean() for made in (y, theirs))
            assert error <= 1.05 * other
            bias = block.gate.e_score_correction_bias.clone()
            block.gate.e_score_correction_bias.zero_()
            assert not torch.equal(block.gate(x)[2], chosen)
            block.gate.e_score_correction_bias.copy_(bias)
    for block, theirs in zip(blocks(model), plain, strict=True):
        assert_same_bits(block(x[None])[0], theirs, "the patch is undone")


def mixture(block: Any, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the block's function in float64, given its experts."""
    wide, experts, shared = x.double(), block.experts, block.shared_experts

    def mlp(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        gate, up = (x @ gate_up.double().mT).chunk(2, -1)
        return (torch.nn.functional.silu(gate) * up) @ down.double().mT

    total = mlp(wide, torch.cat([shared.gate_proj.weight, shared.up_proj.weight]), shared.down_proj.weight)
    for i in range(ids.shape[1]):
        each = [mlp(wide[t], experts.gate_up_proj[e], experts.down_proj[e]) for t, e in enumerate(ids[:, i])]
        total = total + weights[:, i, None].double() * torch.stack(each)
    return total


def test_a_model_runs_and_trains(model: Any) -> None:
    plain = model(IDS).logits
    with rlk.patch(model, strict=False):
        made = model(IDS).logits
        made.float().square().mean().backward()
    assert differing(made.detach(), plain.detach())
    assert (made - plain).abs().mean() < 0.1 * plain.abs().mean()
    for block in blocks(model):
        for p in (block.gate.weight, block.experts.gate_up_proj, block.shared_experts.up_proj.weight):
            assert p.grad is not None and p.grad.any()
