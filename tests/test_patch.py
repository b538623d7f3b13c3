"""`rlk.patch`: sequences keep their bits however they are laid out, and undoing it restores the model."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rlk
from rlk.errors import LaunchError, UnsupportedError
from rlk.integrations.transformers import VERSIONS
from rlk.nn.compute import plain
from rlk.nn.products import adjacent
from rlk.testing.bits import assert_same_bits, differing

transformers = pytest.importorskip("transformers")
if transformers.__version__ not in VERSIONS:
    pytest.skip("a version of transformers that rlk.patch refuses", allow_module_level=True)

ROOT = Path(__file__).parent.parent
ENDS = ("transformers-5.17.txt", "transformers-5.23.txt")
VOCABULARY = 61
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
    "initializer_range": 0.2, "pad_token_id": 0,
}  # fmt: skip
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 3": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "Qwen2": ("Qwen2", {}),
    "Qwen3": ("Qwen3", {}),
    "Mistral": ("Mistral", {"sliding_window": 5}),
    "Gemma 2": ("Gemma2", {**SLIDING, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 24}),
    "Gemma 3": ("Gemma3", {**SLIDING, "query_pre_attn_scalar": 24}),
}
LENGTHS = (9, 1, 14)
LONGEST = max(LENGTHS)
TOKENS = sum(LENGTHS)
IDS = (torch.arange(TOKENS) * 7 + 3) % VOCABULARY
PACKED = torch.cat([torch.arange(n) for n in LENGTHS])[None]
RIGHT = (torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]).long()
LEFT = RIGHT.flip(1)


def made(name: str, suffix: str = "ForCausalLM", **options: Any) -> Any:
    torch.manual_seed(0)
    family, more = MODELS[name]
    text = "Text" if family == "Gemma3" else ""
    config = getattr(transformers, f"{family}{text if suffix == 'ForCausalLM' else ''}Config")
    kind = getattr(transformers, f"{family}{suffix}")
    return kind(config(**SIZES, **more, **options)).to(torch.bfloat16).eval()


def padded(mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the sequences as rows, with ids at padding that a model must not read."""
    ids = torch.full(mask.shape, VOCABULARY - 1).masked_scatter(mask.bool(), IDS)
    return {"input_ids": ids, "attention_mask": mask}


VIEWS: dict[str, dict[str, torch.Tensor]] = {
    "packed": {"input_ids": IDS[None], "position_ids": PACKED},
    "padded right": padded(RIGHT),
    "padded left": padded(LEFT),
    "padded left, positions counted": padded(LEFT) | {"position_ids": (LEFT.cumsum(1) - 1).clamp(min=0)},
    "offsets": {"input_ids": IDS[None], "cu_seq_lens_q": torch.tensor([0, 9, 10, 24])},
}


def real(x: torch.Tensor, view: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the rows of tokens, in the order of sequences."""
    mask = view.get("attention_mask", torch.ones(x.shape[:2]))
    assert not x[mask == 0].any()
    return x[mask.bool()]


@torch.no_grad()
def alone(model: Any) -> torch.Tensor:
    """Return the logits of each sequence by itself."""
    return torch.cat([model(x[None], use_cache=False).logits[0] for x in IDS.split(LENGTHS)])


# --- one sequence, one result ---


@pytest.mark.parametrize("name", MODELS)
def test_packed_and_padded_sequences_have_the_bits_of_lone_ones(name: str) -> None:
    model = made(name)
    with torch.no_grad():
        theirs = {n: model(**view, use_cache=False).logits for n, view in VIEWS.items() if n != "offsets"}
        with rlk.patch(model) as patched:
            want = alone(model)
            logps = torch.cat([patched.logps(x[None]).logp[0] for x in IDS.split(LENGTHS)])
            for view in VIEWS.values():
                assert_same_bits(real(model(**view, use_cache=False).logits, view), want)
                assert_same_bits(real(patched.logps(**view).logp, view), logps)
                kept = model(**view, use_cache=False, logits_to_keep=3).logits
                assert_same_bits(kept, model(**view, use_cache=False).logits[:, -3:])
    assert want.dtype is torch.float32
    torch.testing.assert_close(want, theirs["packed"][0].float(), rtol=0.05, atol=0.2)
    # the controls: torch's own bits differ from ours, and one sequence of all is another
    assert differing(theirs["packed"][0].float(), want)
    with rlk.patch(model), torch.no_grad():
        assert differing(model(IDS[None], use_cache=False).logits[0], want)


@pytest.mark.parametrize("name", MODELS)
def test_generate_over_a_cache_gives_the_bits_of_whole_sequences(name: str) -> None:
    model = made(name)
    options = {
        "max_new_tokens": 6,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    with rlk.patch(model):
        for view in (padded(LEFT), padded(LEFT[:1, -9:].new_ones(1, 24))):
            out = model.generate(**view, **options, eos_token_id=None)
            found = torch.stack(out.logits, 1)
            mask = torch.nn.functional.pad(view["attention_mask"], (0, 6), value=1)
            for row, keep, steps in zip(out.sequences, mask.bool(), found, strict=True):
                whole = model(row[keep][None], use_cache=False).logits[0]
                assert_same_bits(steps, whole[-7:-1].detach())
            assert isinstance(out.past_key_values, transformers.DynamicCache)


def test_the_control_generate_of_transformers_gives_other_bits() -> None:
    unequal = 0
    for name in ("Qwen3", "Llama 3"):
        model, view = made(name), padded(LEFT)
        out = model.generate(
            **view, max_new_tokens=6, do_sample=False, return_dict_in_generate=True, output_logits=True,
            eos_token_id=None,
        )  # fmt: skip
        mask = torch.nn.functional.pad(LEFT, (0, 6), value=1).bool()
        for row, keep, steps in zip(out.sequences, mask, torch.stack(out.logits, 1), strict=True):
            unequal += differing(steps, model(row[keep][None]).logits[0, -7:-1].float().detach())
    assert unequal > 100


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_chunks_over_a_cache_give_the_bits_of_whole_sequences(kind: str) -> None:
    model = made("Qwen3")
    ids = IDS[None, :14]
    with rlk.patch(model):
        whole = model(ids, use_cache=False).logits
        cache = (
            transformers.DynamicCache(config=model.config)
            if kind == "dynamic"
            else transformers.StaticCache(config=model.config, max_cache_len=20)
        )
        steps = [
            model(x, past_key_values=cache).logits
            for x in (ids[:, :7], ids[:, 7:9], ids[:, 9:10], ids[:, 10:])
        ]
        assert_same_bits(torch.cat(steps, 1), whole)
        assert int(cache.get_seq_length()) == 14
        options = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": kind}
        fixed = model.generate(**padded(LEFT), **options, eos_token_id=None)
        options["cache_implementation"] = "dynamic"
        assert torch.equal(fixed, model.generate(**padded(LEFT), **options, eos_token_id=None))


@pytest.mark.parametrize("name", MODELS)
def test_a_patched_model_has_the_bits_of_rlk_nn(name: str) -> None:
    model = made(name)
    ours = rlk.nn.CausalLM(rlk.nn.ModelConfig.of(model.config))
    ours.load_state_dict(model.state_dict(), strict=False)
    layout = rlk.Layout.packed(torch.tensor([0, 9, 10, 24]), tokens=TOKENS)
    with rlk.patch(model) as patched, torch.no_grad():
        hidden = model.model(IDS[None], position_ids=PACKED, use_cache=False).last_hidden_state[0]
        assert_same_bits(hidden, ours(IDS, layout))
        logps = patched.logps(IDS[None], position_ids=PACKED, needs=("logp", "lse", "entropy"))
        for got, want in zip(
            logps[:3], ours.logps(IDS, layout, needs=("logp", "lse", "entropy"))[:3], strict=True
        ):
            assert_same_bits(got[0], want)
        assert patched.numerics_id("cpu") == ours.numerics_id("cpu")


@torch.no_grad()
def test_log_probs_without_logits_are_those_of_the_logits() -> None:
    model = made("Qwen3")
    with rlk.patch(model) as patched:
        z = model(IDS[None], use_cache=False).logits[0]
        want = rlk.ops.logp(z[:-1], IDS[1:]).logp
        assert_same_bits(patched.logps(IDS[None]).logp[0, 1:], want)
        warm = rlk.ops.logp(z[:-1], IDS[1:], temperature=0.7).logp
        assert_same_bits(patched.logps(IDS[None], temperature=0.7).logp[0, 1:], warm)
    with rlk.patch(model, logits="model"):
        rounded = model(IDS[None], use_cache=False).logits[0]
    assert_same_bits(rounded, z.to(torch.bfloat16))
    assert differing(rlk.ops.logp(rounded[:-1], IDS[1:]).logp, want)


# --- undone, and unharmed ---


def state(model: Any) -> dict[str, tuple[int, set[str], type]]:
    """Return what a patch could leave on modules: parameters' objects, names of attributes, classes."""
    return {n: (id(m), set(vars(m)), type(m)) for n, m in model.named_modules()}


@pytest.mark.parametrize("name", ["Qwen3", "Gemma 3"])
def test_undo_restores_everything(name: str) -> None:
    model = made(name)
    before, parameters = state(model), {n: id(p) for n, p in model.named_parameters()}
    config, values = copy.deepcopy(vars(model.config)), copy.deepcopy(model.state_dict())
    ids = IDS[None]
    want = model(ids).logits
    undo = rlk.patch(model, leaves=2)
    assert model.config.rlk_leaves == 2
    assert {n: id(p) for n, p in model.named_parameters()} == parameters
    assert differing(model(ids).logits.detach(), want.float().detach())
    undo.undo()
    undo.undo()
    assert state(model) == before and vars(model.config) == config
    assert {n: id(p) for n, p in model.named_parameters()} == parameters
    assert list(model.state_dict()) == list(values)
    for n, x in model.state_dict().items():
        assert_same_bits(x, values[n])
    assert_same_bits(model(ids).logits.detach(), want.detach())


def test_a_patch_is_undone_after_an_exception_and_once_replaced_is_told() -> None:
    model = made("Qwen3")
    before = state(model)
    with pytest.raises(ZeroDivisionError), rlk.patch(model):
        raise ZeroDivisionError
    assert state(model) == before
    undo = rlk.patch(model)
    with pytest.raises(LaunchError, match="patched already"):
        rlk.patch(model)
    model.model.norm.forward = print
    with pytest.raises(LaunchError, match=r"Qwen3RMSNorm\.forward"):
        undo.undo()
    assert set(vars(model.model.norm)) - before["model.norm"][1] == {"forward"}
    assert {n: s for n, s in state(model).items() if n != "model.norm"} == {
        n: s for n, s in before.items() if n != "model.norm"
    }


def test_weights_of_one_input_lie_adjacent_and_checkpoints_are_whole(tmp_path: Path) -> None:
    model, fresh = made("Qwen2"), made("Qwen2")
    with rlk.patch(model):
        layer = model.model.layers[1]
        for group in (
            [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj],
            [layer.mlp.gate_proj, layer.mlp.up_proj],
        ):
            assert adjacent([m.weight for m in group])
        assert adjacent([m.bias for m in (layer.self_attn.q_proj, layer.self_attn.k_proj)])
        model.save_pretrained(tmp_path)
        twin = copy.deepcopy(model)
        with torch.no_grad():
            assert_same_bits(twin(IDS[None]).logits, model(IDS[None]).logits)
            twin.model.norm.weight.zero_()
            assert model(IDS[None]).logits.any() and not twin(IDS[None]).logits.any()
    loaded = transformers.Qwen2ForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for (n, got), (m, want) in zip(loaded.named_parameters(), fresh.named_parameters(), strict=True):
        assert n == m
        assert_same_bits(got.detach(), want.detach())


# --- training ---


def labels_of(view: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return labels of a view: none at padding and at the first token of a sequence."""
    ids, positions = view["input_ids"], view.get("position_ids")
    if "attention_mask" not in view:
        assert positions is not None
        return ids.masked_fill(positions == 0, -100)
    mask = view["attention_mask"].bool()
    first = mask & (mask.cumsum(1) == 1)
    return ids.masked_fill(~mask | first, -100)


def gradients(model: Any, view: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    out = model(**view, labels=labels_of(view), use_cache=False)
    out.loss.backward()
    return out.loss.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("name", "leaves"), [("Llama 3", 1), ("Qwen2", 1), ("Qwen3", 1), ("Qwen3", 2), ("Gemma 3", 1)]
)
def test_gradients_are_those_of_the_packed_tokens(name: str, leaves: int) -> None:
    model = made(name).train()
    stock_loss, stock = gradients(model, VIEWS["packed"])
    with rlk.patch(model, leaves=leaves):
        loss, want = gradients(model, VIEWS["packed"])
        assert set(want) == {n for n, _ in model.named_parameters()}
        assert all(g.isfinite().all() and g.any() for g in want.values())
        for view in ("padded right", "padded left"):
            got_loss, got = gradients(model, VIEWS[view])
            assert_same_bits(got_loss, loss)
            for n in want:
                assert_same_bits(got[n], want[n])
        for reentrant in (False, True):
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            calls: list[int] = []
            inner = model.model.layers[0].self_attn.o_proj
            counted = inner.register_forward_hook(lambda *_, c=calls: c.append(1))
            _, got = gradients(model, VIEWS["padded left"])
            counted.remove()
            model.gradient_checkpointing_disable()
            assert len(calls) == 2, "the layer ran again in backward"
            for n in want:
                assert_same_bits(got[n], want[n])
    torch.testing.assert_close(loss, stock_loss.float(), rtol=0.02, atol=0.02)
    for n in want:
        close = torch.nn.functional.cosine_similarity(
            want[n].double().flatten(), stock[n].double().flatten(), 0
        )
        assert close > 0.98, (n, float(close))
    assert any(differing(want[n], stock[n]) for n in want)  # the control


def test_the_loss_is_transformers_own() -> None:
    model, view = made("Qwen3"), VIEWS["padded right"]
    labels = labels_of(view)
    exact = made("Qwen3").double()
    for options in ({}, {"num_items_in_batch": torch.tensor(7)}, {"ignore_index": 5}):
        given = labels.masked_fill(labels == -100, options.get("ignore_index", -100))
        with torch.no_grad():
            want = exact(**view, labels=given, **options).loss
            stock = model(**view, labels=given, **options).loss
            with rlk.patch(model):
                out = model(**view, labels=given, **options)
                with_logits = model.loss_function(out.logits, given, vocab_size=VOCABULARY, **options)
        assert (out.loss - want).abs() <= 1.5 * (stock - want).abs() + 0.01
        torch.testing.assert_close(out.loss, with_logits, rtol=1e-6, atol=1e-6)
    model.train()
    with rlk.patch(model):
        assert model(**view, labels=labels).logits is None
        assert model(**view, labels=labels, skip_logits=False).logits is not None
        model.loss_function = lambda logits, labels, **_: logits.sum() * 0 + 3
        assert float(model(**view, labels=labels).loss.detach()) == 3
    with rlk.patch(model, loss_logits=True):
        assert model(**view, labels=labels).logits is not None


@pytest.mark.parametrize("view", ["packed", "padded left"])
def test_logits_may_be_divided_in_place(view: str) -> None:
    model = made("Qwen3").train()

    def gradient(divide: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        model.zero_grad()
        divide(model(**VIEWS[view], use_cache=False).logits).square().mean().backward()
        return model.lm_head.weight.grad

    with rlk.patch(model):
        assert_same_bits(gradient(lambda z: z.div_(0.7)), gradient(lambda z: z / 0.7))


def test_a_step_of_an_optimizer_is_seen() -> None:
    model, view = made("Qwen3").train(), VIEWS["packed"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with rlk.patch(model):
        losses = []
        for _ in range(3):
            losses.append(float(gradients(model, view)[0]))
            optimizer.step()
        assert losses[2] < losses[1] < losses[0]
        fresh = made("Qwen3")
        fresh.load_state_dict(model.state_dict())
        with rlk.patch(fresh), torch.no_grad():
            assert_same_bits(alone(fresh), alone(model))


# --- adapters, hooks, wrappers ---


class Lora(torch.nn.Module):
    """The computation and the names of peft.tuners.lora.Linear."""

    def __init__(self, base_layer: torch.nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base_layer = base_layer
        made = {"bias": False, "dtype": base_layer.weight.dtype}
        sizes = (base_layer.in_features, rank, base_layer.out_features)
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(*sizes[:2], **made)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(*sizes[1:], **made)})
        base_layer.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.base_layer(x)
        return result + self.lora_B["default"](self.lora_A["default"](x)) * 2.0


TARGETS = ("q_proj", "v_proj", "o_proj", "down_proj")


def adapted(model: Any) -> Any:
    model.requires_grad_(False)
    for layer in model.model.layers:
        for holder in (layer.self_attn, layer.mlp):
            for name in TARGETS:
                if hasattr(holder, name):
                    setattr(holder, name, Lora(getattr(holder, name)))
    return model


def law_of_adapters(model: Any, inner: Any) -> None:
    """Views and their gradients must have equal bits with adapters, which must have an effect."""
    with rlk.patch(model) as patched:
        want = alone(model)
        for view in VIEWS.values():
            assert_same_bits(real(model(**view, use_cache=False).logits.detach(), view), want)
        model.train()
        _, first = gradients(model, VIEWS["packed"])
        _, second = gradients(model, VIEWS["padded left"])
        assert first and all("lora_" in n for n in first)
        assert all(g.isfinite().all() and g.any() for g in first.values())
        for n in first:
            assert_same_bits(second[n], first[n])
        assert patched.logps(**VIEWS["packed"]).logp.requires_grad
        model.eval()
    for n, p in inner.named_parameters():
        if "lora_B" in n:
            torch.nn.init.zeros_(p)
    with rlk.patch(model):
        plain_logits = alone(model)
    assert differing(want, plain_logits)
    unadapted = made("Qwen3")
    with rlk.patch(unadapted):
        assert_same_bits(plain_logits, alone(unadapted))


def test_adapters_of_the_shape_of_peft() -> None:
    model = adapted(made("Qwen3"))
    law_of_adapters(model, model)


@pytest.mark.parametrize("head", [False, True])
def test_adapters_of_peft(head: bool) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=4, target_modules=[*TARGETS, *(["lm_head"] if head else [])], init_lora_weights=False,
        task_type="CAUSAL_LM",
    )  # fmt: skip
    model = peft.get_peft_model(made("Qwen3"), config, autocast_adapter_dtype=False).eval()
    law_of_adapters(model, model)


def test_wide_adapters_need_autocast() -> None:
    model = adapted(made("Qwen3"))
    for n, module in model.named_modules():
        if ".lora_" in n and isinstance(module, torch.nn.Linear):
            module.float()
    first = r"model\.layers\.0\.self_attn\.q_proj\.lora_A\.default"
    with pytest.warns(UserWarning, match=rf"{first} and \d+ more: adapters of torch.float32 .*autocast"):
        undo = rlk.patch(model)
    with undo:
        with pytest.raises(UnsupportedError, match=rf"{first} with weights of torch.float32(.|\n)*adapter"):
            alone(model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            want = alone(model)
            view = VIEWS["padded left"]
            assert_same_bits(real(model(**view, use_cache=False).logits.detach(), view), want)


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A mesh of one process."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    # the oracle looks at memory by NumPy, after which torch refuses to free it; kernels do not
    monkeypatch.setattr(_fsdp_param, "free_storage", lambda tensor: None)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield torch.distributed.init_device_mesh("cpu", (1,))
    finally:
        torch.distributed.destroy_process_group()


def sharded(model: Any, mesh: Any, **options: Any) -> None:
    for part in (*model.model.layers, model.lm_head, model):
        torch.distributed.fsdp.fully_shard(part, mesh=mesh, **options)


@pytest.mark.parametrize("order", ["patch, shard", "shard, patch", "f32 shards, gathered in bf16"])
def test_shards_of_fsdp2_give_the_same_bits(order: str, one_rank: Any) -> None:
    one, model = made("Qwen3").train(), made("Qwen3").train()
    options = {}
    if order.startswith("f32"):
        model.float()
        options["mp_policy"] = torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    if not order.startswith("patch"):
        sharded(model, one_rank, **options)
    with rlk.patch(one), rlk.patch(model) as patched:
        if order.startswith("patch"):
            sharded(model, one_rank)
        loss, want = gradients(one, VIEWS["packed"])
        got_loss, got = gradients(model, VIEWS["padded left"])
        assert_same_bits(got_loss, loss)
        assert set(got) == set(want)
        for n, g in got.items():
            assert_same_bits(g.full_tensor().to(torch.bfloat16), want[n])
        logps = patched.logps(**VIEWS["packed"]).logp
        assert_same_bits(logps.detach(), logps_of(one))


def logps_of(patched: Any) -> torch.Tensor:
    logps: torch.Tensor = patched(**VIEWS["packed"], needs=("logp",)).logp
    return logps.detach()


def test_a_linear_layer_with_more_to_do_is_called() -> None:
    model = made("Qwen3")
    layer = model.model.layers[0].self_attn
    assert not plain(layer.v_proj), "torch's own product is another"
    with rlk.patch(model):
        want, seen = alone(model), []
        assert plain(layer.v_proj)
        hook = layer.v_proj.register_forward_hook(lambda *_: seen.append(1))
        assert not plain(layer.v_proj)
        assert_same_bits(alone(model), want)
        assert len(seen) == len(LENGTHS)
        hook.remove()
        ours = layer.v_proj.forward
        layer.v_proj.forward = functools.wraps(ours)(lambda x: ours(x) * 2)
        assert not plain(layer.v_proj)
        assert differing(alone(model), want)
        layer.v_proj.forward = ours


def test_a_reward_model_is_patched_too() -> None:
    model = made("Qwen3", "ForSequenceClassification", num_labels=1)
    view = VIEWS["padded right"]
    view = view | {"input_ids": view["input_ids"].masked_fill(view["attention_mask"] == 0, 0)}
    with rlk.patch(model), torch.no_grad():
        scores = model(**view, use_cache=False).logits
        for x, got in zip(IDS.split(LENGTHS), scores, strict=True):
            assert_same_bits(got, model(x[None], use_cache=False).logits[0])


def test_hidden_states_are_returned_and_attentions_are_refused() -> None:
    model, view = made("Gemma 2"), VIEWS["padded left"]
    stock = model(**view, use_cache=False, output_hidden_states=True).hidden_states
    with rlk.patch(model):
        out = model(**view, use_cache=False, output_hidden_states=True)
        assert len(out.hidden_states) == len(stock) == 3
        mask = view["attention_mask"].bool()
        for got, want in zip(out.hidden_states, stock, strict=True):
            torch.testing.assert_close(got[mask].float(), want[mask].float(), rtol=0.1, atol=0.1)
        logits, *_ = model(**view, use_cache=False, return_dict=False)
        assert_same_bits(logits, out.logits)
        with pytest.raises(UnsupportedError, match="output_attentions"):
            model(**view, output_attentions=True)


def test_trainer_trains(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    rows = [{"input_ids": x, "labels": x} for x in IDS.split(LENGTHS) if len(x) > 1]

    def collate(given: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        mask = torch.zeros(len(given), LONGEST, dtype=torch.long)
        ids, labels = mask.clone(), mask - 100
        for i, row in enumerate(given):
            n = len(row["input_ids"])
            mask[i, :n], ids[i, :n], labels[i, :n] = 1, row["input_ids"], row["labels"]
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def trained(checkpointing: bool, amp: bool) -> Any:
        model = made("Qwen3")
        options = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, use_cpu=True, report_to=[],
            learning_rate=1e-2, save_strategy="no", gradient_checkpointing=checkpointing, bf16=amp,
        )  # fmt: skip
        with rlk.patch(model):
            trainer = transformers.Trainer(
                model=model, args=options, train_dataset=rows, eval_dataset=rows, data_collator=collate
            )
            trainer.train()
            assert trainer.evaluate()["eval_loss"] > 0
            trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        return model

    one, start = trained(False, False), made("Qwen3")
    for other in (trained(True, False), trained(False, True)):
        for (n, got), want in zip(other.named_parameters(), one.parameters(), strict=True):
            assert_same_bits(got.detach(), want.detach())
            assert differing(got.detach(), start.get_parameter(n).detach())


# --- what is refused ---


def problems(model: Any, **options: Any) -> str:
    before = state(model)
    with pytest.raises(UnsupportedError) as raised:
        rlk.patch(model, **options)
    assert state(model) == before
    *parts, last = (d.code.name for d in raised.value.diagnostics)
    assert set(parts) == {"PATCH_PART"} and last == "PATCH_NOTHING"
    return str(raised.value)


class Linear4bit(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def test_all_that_cannot_be_exchanged_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    model = made("Qwen3", attention_dropout=0.1).train()
    layer = model.model.layers[1]
    layer.mlp.up_proj.__class__ = Linear4bit
    layer.self_attn.q_norm.float()
    said = problems(model)
    for part in (
        "attention_dropout=0.1",
        "layers.1.mlp.up_proj: a Linear4bit",
        "q_norm: parameters of torch.f",
        "strict=False it leaves that as it is, and exchanges linear layers (14), norms (8), embeddings (1);",
    ):
        assert part in said
    assert max(map(len, said.splitlines()[:-1])) < 110 and said.count("strict=False") == 1
    with rlk.patch(model, strict=False) as patched:
        printed = capsys.readouterr().out
        *parts, last = printed.splitlines()
        assert parts == [f"rlk.patch: not exchanged: {each}" for each in patched.problems] and len(parts) == 3
        assert parts[2].endswith("up_proj: a Linear4bit, quantized or unknown (load the model unquantized)")
        assert last.startswith("rlk.patch: exchanged: linear layers (14), norms (8), embeddings (1); not ")
        with pytest.raises(LaunchError, match="Qwen3ForCausalLM holds no causal language model that is exch"):
            patched.logps(IDS[None])
        assert plain(layer.mlp.gate_proj) and "forward" not in vars(model.model)
    layer.self_attn.q_norm.bfloat16()
    model.eval()
    with rlk.patch(model, strict=False) as patched:  # a linear layer that is not exchanged is called
        assert len(patched.problems) == 1 and "forward" in vars(model.model)
        with torch.no_grad():
            alone(model)
        with pytest.raises(UnsupportedError, match=r"attention_dropout=0\.1 in training"):
            model.train()(IDS[None])


def test_ids_outside_of_the_vocabulary_are_refused() -> None:
    model = made("Qwen3")
    with rlk.patch(model):
        for token in (len(model.model.embed_tokens.weight), -1):
            with pytest.raises(LaunchError, match=f"ids={token} is not allowed"):
                model(torch.tensor([[1, token]]))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (torch.tensor([[1, VOCABULARY, 2]]), f"labels={VOCABULARY}"),
        (torch.tensor([[1, -5, 2]]), "labels=-5"),
        (torch.tensor([[1, 2]]), r"labels=\[1, 2\]"),
        (torch.tensor([[1.0, 2.0, 3.0]]), "labels=torch.float32"),
    ],
)
def test_labels_that_are_no_ids_are_refused(labels: torch.Tensor, said: str) -> None:
    model = made("Qwen3")
    ids = torch.tensor([[1, 3, 2]])
    with rlk.patch(model):
        with pytest.raises(LaunchError, match=said):
            model(input_ids=ids, labels=labels)
        assert model(input_ids=ids, labels=torch.where(ids == 3, -100, ids)).loss.isfinite()


def test_other_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    config = transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=1, n_head=2)
    gpt2 = transformers.GPT2LMHeadModel(config).to(torch.bfloat16).eval()
    assert "GPT2LMHeadModel has no decoder that rlk knows" in problems(gpt2)
    with rlk.patch(gpt2, strict=False) as patched, torch.no_grad():
        with pytest.raises(LaunchError, match="0 decoders"):
            patched.numerics_id("cpu")
        assert "forward" in vars(gpt2.lm_head) and patched.problems
        assert gpt2(IDS[None]).logits.isfinite().all()
    wide = made("Qwen3").float()
    (said,) = problems(wide).split("[PATCH_PART]")[:-1]  # not one for each module
    assert "model.embed_tokens and 24 more: parameters of torch.float32" in said
    capsys.readouterr()
    with rlk.patch(wide, strict=False):
        why, last = capsys.readouterr().out.splitlines()
        assert "24 more: parameters of torch.float32, and rlk's products take 16-bit factors (load" in why
        assert last == "rlk.patch: exchanged: nothing"
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    (said,) = problems(made("Qwen2", rope_parameters=dynamic)).split("[PATCH_PART]")[:-1]
    assert "config.rope_parameters[\"rope_type\"]='dynamic'" in said

    class Own(transformers.Qwen3ForCausalLM):
        def forward(self, *given: Any, **options: Any) -> Any:
            return super().forward(*given, **options)

    model = made("Qwen3")
    model.__class__ = Own
    assert "Own with a forward of its own" in problems(model)
    model = made("Qwen3")
    model.model.layers[0].mlp.forward = print
    assert "other code put on the object" in problems(model)
    with pytest.raises(LaunchError, match="logits"):
        rlk.patch(made("Qwen3"), logits="half")  # type: ignore[arg-type]


def test_what_needs_no_patch_and_what_is_no_model_is_said() -> None:
    own = rlk.nn.CausalLM(rlk.nn.ModelConfig.of(made("Qwen3").config), device="meta")
    for each, name in ((own, "CausalLM"), (torch.nn.ModuleList([own.model]), "ModuleList")):
        with pytest.raises(LaunchError, match=f"rlk.nn.{name}(.|\n)*needs no patch"):
            rlk.patch(each)
    with pytest.raises(LaunchError, match="rlk.patch: leaves=3(.|\n)*1, 2, 4 or 8"):
        rlk.patch(made("Qwen3"), leaves=3)
    with pytest.raises(LaunchError, match="model must be a loaded model of transformers, got str"):
        rlk.patch("Qwen/Qwen3-0.6B")  # type: ignore[arg-type]


def test_log_probs_after_undo_say_that_the_patch_is_gone() -> None:
    model = made("Qwen3")
    with rlk.patch(model) as patched:
        assert patched.logps(IDS[None]).logp is not None
    for call in (lambda: patched.logps(IDS[None]), lambda: patched.numerics_id("cpu")):
        with pytest.raises(LaunchError, match="the patch of this model was undone"):
            call()
    with rlk.patch(made("Qwen3", "Model")) as patched:
        with pytest.raises(LaunchError, match="Qwen3Model holds no causal language model"):
            patched.logps(IDS[None])


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "a mask of pairs": ("4-D", {"attention_mask": torch.zeros(1, 1, 24, 24)}),
    "a mask of other keys": ("of 24 keys", {"attention_mask": torch.ones(1, 20)}),
    "holes": ("holes", {"attention_mask": torch.tensor([[1] * 9 + [0] + [1] * 14])}),
    "packing beside a mask": ("begin anew", {"position_ids": PACKED, "attention_mask": torch.ones(1, 24)}),
    "packing beside a cache": ("use_cache=False", {"position_ids": PACKED, "use_cache": True}),
    "skips": ("skip", {"attention_mask": torch.tensor([[0] + [1] * 23]),
                       "position_ids": torch.arange(24)[None] * 2}),
    "no inputs": ("exactly one", {"input_ids": None}),
    "two inputs": ("exactly one", {"inputs_embeds": torch.zeros(1, 24, 64, dtype=torch.bfloat16)}),
    "embeddings of f32": ("float32", {"input_ids": None, "inputs_embeds": torch.zeros(1, 24, 64)}),
    "another keyword": ("token_type_ids", {"token_type_ids": torch.zeros(1, 24)}),
    "a sequence too long": ("64", {"input_ids": torch.ones(1, 65, dtype=torch.long)}),
    "a packed one too long": ("64", {"input_ids": torch.ones(1, 66, dtype=torch.long),
                                     "position_ids": torch.cat([torch.arange(1), torch.arange(65)])[None]}),
    "both directions": ("is_causal", {"is_causal": False}),
}  # fmt: skip


LIST: Any = [[1, 2]]
BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "a list of ids": ("input_ids must be a torch.Tensor, got list", {"input_ids": LIST}),
    "one dim": (r"input_ids has 1 dims \(24,\), expected 2 dims \[B, L\]", {"input_ids": IDS}),
    "short ids": ("input_ids has dtype torch.int16", {"input_ids": IDS[None].short()}),
    "a list as a mask": ("attention_mask that is list", {"attention_mask": LIST}),
    "a mask to be added": ("floats that are not 0 and 1", {"attention_mask": torch.full((1, 24), -1e9)}),
    "a complex mask": ("attention_mask has dtype torch.complex64",
                       {"attention_mask": torch.ones(1, 24, dtype=torch.complex64)}),
    "a list of positions": ("position_ids must be a torch.Tensor", {"position_ids": LIST}),
    "float positions": ("position_ids has dtype torch.float32", {"position_ids": PACKED.float()}),
    "fewer positions": (r"position_ids \(1, 20\) of tokens \(1, 24\)", {"position_ids": PACKED[:, :20]}),
    "a list of offsets": ("cu_seq_lens_q must be a torch.Tensor", {"cu_seq_lens_q": [0, 24]}),
    "float offsets": ("cu_seq_lens_q has dtype torch.float32", {"cu_seq_lens_q": torch.tensor([0.0, 24.0])}),
    "offsets of fewer": (r"cu_seq_lens_q=\[0, 20\].*\n.*to 24", {"cu_seq_lens_q": torch.tensor([0, 20])}),
    "an unknown keyword": (r"a forward with token_type_ids \[1, 24\]", {"token_type_ids": IDS[None]}),
    "labels": ("leave labels out", {"labels": IDS[None]}),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_inputs_that_log_probs_cannot_take_are_named(case: str) -> None:
    said, options = BAD[case]
    with rlk.patch(made("Qwen3")) as patched, pytest.raises((LaunchError, UnsupportedError), match=said):
        patched.logps(**{"input_ids": IDS[None], **options})


def test_integers_of_32_bits_and_masks_of_any_kind_give_the_same_bits() -> None:
    with rlk.patch(made("Qwen3")) as patched, torch.no_grad():
        view = VIEWS["padded left"]
        want = patched.logps(**view).logp
        for dtype in (torch.bool, torch.uint8, torch.float32):
            assert_same_bits(patched.logps(view["input_ids"].int(), attention_mask=LEFT.to(dtype)).logp, want)
        packed = patched.logps(IDS[None].int(), position_ids=PACKED.int()).logp
        assert_same_bits(packed, patched.logps(IDS[None], position_ids=PACKED).logp)
        assert not patched.logps(IDS[None], attention_mask=torch.zeros(1, TOKENS)).logp.any()


@pytest.mark.parametrize("case", REFUSED)
def test_another_function_is_refused(case: str) -> None:
    said, options = REFUSED[case]
    with rlk.patch(made("Qwen3")) as patched, pytest.raises(UnsupportedError, match=said):
        patched.model(**{"input_ids": IDS[None], "use_cache": False, **options})


@torch.no_grad()
def test_caches_that_drop_keys_are_refused_or_made_to_keep_them() -> None:
    model = made("Mistral")
    cache = transformers.DynamicCache(config=model.config)
    model(IDS[None, :4], past_key_values=cache)
    with rlk.patch(model):
        with pytest.raises(UnsupportedError, match="DynamicSlidingWindowLayer"):
            model(IDS[None, 4:5], past_key_values=cache)
        cache = transformers.DynamicCache(config=model.config)
        for i in range(9):
            step = model(IDS[None, i : i + 1], past_key_values=cache).logits
        assert_same_bits(step[0], model(IDS[None, :9], use_cache=False).logits[0, -1:])
        with pytest.raises(UnsupportedError, match="tuple"):
            model(IDS[None], past_key_values=())


def test_the_page_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "patching.md").read_text(), re.DOTALL)
    scope: dict[str, Any] = {}
    exec(compile(block, "patching.md", "exec"), scope)
    assert scope["loss"].isfinite() and scope["logps"].shape == (1, 14)
    assert "forward" not in vars(scope["model"])


def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("Qwen3")
    for found in ("5.16.9", "5.24.0", "5.23.1.dev0"):
        monkeypatch.setattr("rlk.integrations.swap.version", lambda peer, found=found: found)
        with pytest.raises(UnsupportedError, match=rf"{found} is not one that rlk knows \({VERSIONS}\)"):
            rlk.patch(model)
    assert "5.17.0" in VERSIONS and "5.20.1" in VERSIONS and "5.23.0" in VERSIONS
    # the ends are those that are tested: by every run of the tests, and by `make test-versions`
    pins = {name: (ROOT / "constraints" / name).read_text() for name in ("base.txt", *ENDS)}
    assert all(f"transformers=={VERSIONS.newest}\n" in pins[name] for name in ("base.txt", ENDS[1]))
    assert f"transformers=={VERSIONS.oldest}\n" in pins[ENDS[0]]
    assert (
        f'("transformers-{VERSIONS.oldest}", "transformers-{VERSIONS.newest}")'
        in (ROOT / "tools" / "compat.py").read_text()
    )
