"""A patched transformers model on a device: equal bits of logits, log-probs and gradients in every layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rlk
from rlk.integrations.transformers import VERSIONS
from rlk.testing.bits import assert_same_bits, differing

transformers = pytest.importorskip("transformers")
if transformers.__version__ not in VERSIONS:
    pytest.skip("a version of transformers that rlk.patch refuses", allow_module_level=True)
pytestmark = pytest.mark.gpu

LENGTHS = (300, 17, 1, 700)
SIZES = {"vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 3,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
         "max_position_embeddings": 2048, "initializer_range": 0.05, "pad_token_id": None}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3": ("Qwen3", {}),
    "Mistral, a window": ("Mistral", {"sliding_window": 128}),
}
IDS = torch.arange(sum(LENGTHS)) * 2654435761 % 8192


def model(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    family, more = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**SIZES, **more, **options)
    return getattr(transformers, f"{family}ForCausalLM")(config).to("cuda", torch.bfloat16).eval()


def views() -> dict[str, dict[str, torch.Tensor]]:
    right = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    made = {
        "packed": {
            "input_ids": IDS[None],
            "position_ids": torch.cat([torch.arange(n) for n in LENGTHS])[None],
        }
    }
    for name, mask in (("padded right", right), ("padded left", right.flip(1))):
        ids = torch.zeros(mask.shape, dtype=torch.long).masked_scatter(mask.bool(), IDS)
        made[name] = {"input_ids": ids, "attention_mask": mask}
    return {n: {k: x.cuda() for k, x in view.items()} for n, view in made.items()}


def real(x: torch.Tensor, view: dict[str, torch.Tensor]) -> torch.Tensor:
    mask = view.get("attention_mask")
    return x.flatten(0, 1) if mask is None else x[mask.bool()]


@pytest.mark.parametrize("name", MODELS)
def test_layouts_and_decoding_have_the_bits_of_lone_sequences(name: str) -> None:
    one = model(name)
    with rlk.patch(one) as patched, torch.no_grad():
        parts = [x[None].cuda() for x in IDS.split(LENGTHS)]
        want = torch.cat([one(x, use_cache=False).logits[0] for x in parts])
        logps = torch.cat([patched.logps(x).logp[0] for x in parts])
        for view in views().values():
            assert_same_bits(real(one(**view, use_cache=False).logits, view).cpu(), want.cpu())
            assert_same_bits(real(patched.logps(**view).logp, view).cpu(), logps.cpu())
        left = views()["padded left"]
        out = one.generate(
            **left, max_new_tokens=20, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
        mask = torch.nn.functional.pad(left["attention_mask"], (0, 20), value=1).bool()
        for row, keep, steps in zip(out.sequences, mask, torch.stack(out.logits, 1), strict=True):
            whole = one(row[keep][None], use_cache=False).logits[0]
            assert_same_bits(steps.cpu(), whole[-21:-1].cpu())
    stock = one(**left, use_cache=False).logits  # the control
    assert differing(
        real(stock, left)[:300].float().cpu(), one(parts[0], use_cache=False).logits[0].float().cpu()
    )


@pytest.mark.parametrize("leaves", [1, 4])
def test_gradients_have_the_bits_of_the_packed_tokens(leaves: int) -> None:
    one = model("Qwen3").train()

    def gradients(view: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        one.zero_grad()
        labels = view["input_ids"].masked_fill(
            view.get("attention_mask", view["input_ids"] * 0 + 1) == 0, -100
        )
        first = torch.tensor([0, *LENGTHS[:-1]]).cumsum(0).cuda()
        flat = real(labels[..., None], view)[:, 0].index_fill(0, first, -100)
        mask = view.get("attention_mask", torch.ones_like(labels)).bool()
        one(**view, labels=labels.masked_scatter(mask, flat), use_cache=False).loss.backward()
        return {n: p.grad.cpu() for n, p in one.named_parameters()}

    with rlk.patch(one, leaves=leaves):
        want, *others = (gradients(view) for view in views().values())
        one.gradient_checkpointing_enable()
        for got in (*others, gradients(views()["padded left"])):
            for n in want:
                assert_same_bits(got[n], want[n])
    assert all(g.isfinite().all() and g.any() for g in want.values())
