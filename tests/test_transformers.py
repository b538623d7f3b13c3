"""`attn_implementation="rlk"`: models compute what eager attention does; sequences keep their bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlk.errors import LaunchError, UnsupportedError
from rlk.integrations import transformers as adapter
from rlk.testing.bits import assert_same_bits, differing

transformers = pytest.importorskip("transformers")
masks = pytest.importorskip("transformers.masking_utils")
if transformers.__version__ not in adapter.VERSIONS:
    pytest.skip("a version of transformers that the adapter refuses", allow_module_level=True)

SIZES = {"vocab_size": 50, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}  # fmt: skip
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", {}),
    "Qwen3, one layer with a window": ("Qwen3ForCausalLM", {"use_sliding_window": True, **SLIDING}),
    "Gemma2, softcap": ("Gemma2ForCausalLM", {"attn_logit_softcapping": 2.0, **SLIDING}),
    "gpt-oss, sinks": ("GptOssForCausalLM", {"num_local_experts": 2, "num_experts_per_tok": 1, **SLIDING}),
}
LENGTHS = (9, 1, 14)


@pytest.fixture(autouse=True)
def named() -> Iterator[None]:
    with adapter.patched():
        yield


def model(name: str, attention: str = "rlk", dtype: torch.dtype = torch.bfloat16, **options: Any) -> Any:
    """Return a tiny model; its weights, and so those of every dtype, are of 16 bits."""
    torch.manual_seed(0)
    cls, more = MODELS[name]
    kind = getattr(transformers, cls)
    made = kind(kind.config_class(**SIZES, **more, **options)).to(torch.bfloat16).to(dtype).eval()
    made.set_attn_implementation(attention)
    made.set_experts_implementation("eager")
    return made


def logits(made: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the logits of the tokens that are no padding, each row by itself: without a mask."""
    real = inputs.get("attention_mask")
    if real is None:
        return made(**inputs, use_cache=False).logits.detach().flatten(0, 1)
    rows = zip(inputs["input_ids"], real.bool(), strict=True)
    return torch.cat([made(x[keep][None], use_cache=False).logits.detach()[0] for x, keep in rows])


def tokens(length: int = sum(LENGTHS)) -> torch.Tensor:
    return torch.arange(length)[None] * 7 % 50


PACKED = torch.cat([torch.arange(n) for n in LENGTHS])[None]
RIGHT = torch.tensor([[1] * 9 + [0] * 5, [1] * 14])
INPUTS: dict[str, dict[str, torch.Tensor]] = {
    "a batch": {"input_ids": tokens(28).view(2, 14)},
    "padding on the right": {"input_ids": tokens(28).view(2, 14), "attention_mask": RIGHT},
    "padding on the left": {"input_ids": tokens(28).view(2, 14), "attention_mask": RIGHT.flip(1)},
    "packed": {"input_ids": tokens(), "position_ids": PACKED},
}


@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_eager_attention_does_in_float64(name: str, given: str) -> None:
    inputs = INPUTS[given]
    real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    got = model(name)(**inputs, use_cache=False).logits.detach()[real]
    eager, want = (logits(model(name, "eager", t), inputs) for t in (torch.bfloat16, torch.float64))
    error, theirs = ((x.double() - want).abs().max() for x in (got, eager))
    assert error <= 1.5 * theirs + 2**-8, (float(error), float(theirs))


def test_what_a_mask_hides_is_hidden() -> None:
    """The control: without its packing a model computes something else."""
    inputs, one = INPUTS["packed"], model("Llama")
    packed = one(**inputs, use_cache=False).logits
    straight = one(input_ids=inputs["input_ids"], use_cache=False).logits
    assert not torch.allclose(packed, straight, atol=0.05)


@pytest.mark.parametrize("name", MODELS)
def test_decoding_with_a_cache_computes_what_a_whole_forward_does(name: str) -> None:
    one, ids = model(name), tokens(12)
    whole = one(ids, use_cache=False).logits
    cache = transformers.DynamicCache()
    steps = [
        one(x, past_key_values=cache).logits for x in (ids[:, :7], ids[:, 7:9], ids[:, 9:10], ids[:, 10:])
    ]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=0.05)


def test_a_cache_that_dropped_keys_is_refused() -> None:
    one = model("Qwen3, one layer with a window")
    cache = transformers.DynamicCache(config=one.config)
    with pytest.raises(UnsupportedError, match="counted from the start"):
        for i in range(9):
            one(tokens(9)[:, i : i + 1], past_key_values=cache)


# --- bits of the layer ---


def drawn(length: int, batch: int = 1, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    return tuple(torch.randn(batch, h, length, 16).to(dtype) for h in (4, 2, 2))


def mask_of(length: int, batch: int = 1, **given: torch.Tensor | None) -> adapter.Sequences:
    """Return what a model would hand on to its layers."""
    config = transformers.LlamaConfig(**SIZES)
    config._attn_implementation = "rlk"
    given = {"attention_mask": None, "position_ids": None, **given}
    return masks.create_causal_mask(config, torch.zeros(batch, length, 64), past_key_values=None, **given)


LAYER = torch.nn.Module()


def attended(x: tuple[torch.Tensor, ...], mask: object = None, **options: Any) -> torch.Tensor:
    return adapter.attend(LAYER, *x, mask, **options)[0]  # type: ignore[arg-type]


def parts(x: tuple[torch.Tensor, ...]) -> list[tuple[torch.Tensor, ...]]:
    """Return the tokens of each sequence of a packed row."""
    return list(zip(*(t.split(LENGTHS, 2) for t in x), strict=True))


def test_packed_padded_and_lone_sequences_have_the_same_bits() -> None:
    x = drawn(sum(LENGTHS))
    alone = [attended(part) for part in parts(x)]
    cu = torch.tensor([0, 9, 10, 24])
    for packed in (
        attended(x, mask_of(24, position_ids=PACKED)),
        attended(x, mask_of(24), cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=14, max_length_k=14),
    ):
        for got, want in zip(packed.split(LENGTHS, 1), alone, strict=True):
            assert_same_bits(got, want)
    for left in (False, True):
        rows = [
            tuple(torch.nn.functional.pad(t, (0, 0, *((14 - n, 0) if left else (0, 14 - n)))) for t in part)
            for n, part in zip(LENGTHS, parts(x), strict=True)
        ]
        real = torch.arange(14) < torch.tensor(LENGTHS)[:, None]
        real = real.flip(1) if left else real
        padded = attended(tuple(map(torch.cat, zip(*rows, strict=True))), mask_of(14, 3, attention_mask=real))
        for got, keep, want in zip(padded, real, alone, strict=True):
            assert_same_bits(got[keep][None], want)
            assert not got[~keep].any()
    assert differing(attended(x), torch.cat(alone, 1))  # the control: one sequence of all


def test_gradients_flow_and_are_those_of_lone_sequences() -> None:
    def gradients(x: tuple[torch.Tensor, ...], mask: object) -> tuple[torch.Tensor, ...]:
        leaves = tuple(t.clone().requires_grad_() for t in x)
        return torch.autograd.grad(attended(leaves, mask).float().square().sum(), leaves)

    x = drawn(sum(LENGTHS))
    packed = gradients(x, mask_of(24, position_ids=PACKED))
    for got, want in zip(parts(packed), [gradients(part, None) for part in parts(x)], strict=True):
        for mine, theirs in zip(got, want, strict=True):
            assert_same_bits(mine, theirs)
    assert all(t.any() for t in packed)
    one = model("gpt-oss, sinks").train()
    one(INPUTS["packed"]["input_ids"], position_ids=PACKED).logits.float().square().mean().backward()
    attention = one.model.layers[0].self_attn
    assert attention.q_proj.weight.grad.any() and attention.sinks.grad.any()


# --- what is refused ---


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ("dropout=0.1", {"dropout": 0.1}),
        ("output_attentions", {"output_attentions": True}),
        ("position_bias", {"position_bias": torch.zeros(1)}),
        ("a mask", {"mask": torch.zeros(1, 1, 3, 3)}),
        ("window=4", {"mask": mask_of, "sliding_window": 4}),
    ],
)
def test_another_function_is_refused(said: str, options: dict[str, Any]) -> None:
    mask = options.get("mask")
    rest = {n: x for n, x in options.items() if n != "mask"}
    with pytest.raises(UnsupportedError, match=said):
        attended(drawn(3), mask(3) if callable(mask) else mask, **rest)


def test_a_bidirectional_mask_hides_padding_alone() -> None:
    config = transformers.BertConfig(**SIZES)
    config._attn_implementation = "rlk"
    x, real = drawn(6), torch.tensor([[1, 1, 1, 1, 0, 0]])
    mask = masks.create_bidirectional_mask(config, torch.zeros(1, 6, 64), attention_mask=real)
    want = attended(tuple(t[:, :, :4] for t in x), is_causal=False)
    assert_same_bits(attended(x, mask)[:, :4], want)
    assert differing(want, attended(tuple(t[:, :, :4] for t in x)))


def test_f32_says_what_to_load() -> None:
    with pytest.raises(UnsupportedError, match="dtype=torch.bfloat16"):
        attended(drawn(3, dtype=torch.float32))


def test_unknown_masks_are_refused() -> None:
    config = transformers.LlamaConfig(**SIZES, attention_chunk_size=4)
    config._attn_implementation = "rlk"
    with pytest.raises(UnsupportedError, match="chunked"):
        masks.create_chunked_causal_mask(
            config, torch.zeros(1, 9, 64), attention_mask=None, past_key_values=None
        )


def test_the_name_goes_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    known = transformers.AttentionInterface._global_mapping
    assert known["rlk"] is adapter.attend
    with adapter.patched():
        pass
    adapter.unpatch()
    assert "rlk" not in known and "rlk" not in masks.AttentionMaskInterface._global_mapping
    with pytest.raises(LaunchError, match="patch"):
        adapter.unpatch()
    monkeypatch.setitem(known, "rlk", print)
    with pytest.raises(UnsupportedError, match="taken"):
        adapter.patch()
    monkeypatch.delitem(known, "rlk")
    monkeypatch.setattr("rlk.integrations.swap.version", lambda peer: "6.0.0")
    with pytest.raises(UnsupportedError, match=r"6\.0\.0"):
        adapter.patch()
    monkeypatch.undo()
    adapter.patch()
