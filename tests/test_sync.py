"""`rlk.sync`: one digest for one content, whatever holds it; any change is seen, named and placed."""

from __future__ import annotations

import hashlib
import pickle
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nn_cases import QWEN3, model
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FlatParameter

import rlk
from rlk.errors import Code, LaunchError
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.call.entry import call
from rlk.sync import Part, check, compare, digest, gathered, transfer
from rlk.sync import blocks as by_blocks
from rlk.sync.blocks import LANES, STEPS, Weight
from rlk.sync.kernel import block_digest
from rlk.testing.simulators.interpreter import interpret

LOWER = 0xFFFFFFFF


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# --- the definition, in Python's integers -----------------------------------------------------------------


def mix(h: int) -> int:
    h = (h ^ (h >> 16)) * 0x85EBCA6B & LOWER
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & LOWER
    return h ^ (h >> 16)


def defined_block(data: bytes) -> bytes:
    """Return the digest of 65536 bytes."""
    sums = [0, 0, 0, 0]
    for at, (w,) in enumerate(struct.iter_unpack("<I", data)):
        s, i = divmod(at, 1024)
        x = w ^ ((mix((i + 0x9E3779B9) & LOWER) + mix(s)) & LOWER)
        for half, c in enumerate((0x3C6EF372, 0xDAA66D2B)):
            f = (mix((i + c) & LOWER) | 1) * (mix(s) | 1) & LOWER
            sums[2 * half] += x * f & LOWER
            sums[2 * half + 1] += x * f >> 32
    return struct.pack("<4I", *(total & LOWER for total in sums))


def defined(name: str, dtype: str, shape: tuple[int, ...], data: bytes) -> str:
    """Return the digest of a weight."""
    data += bytes(-len(data) % 65536)
    found = b"".join(defined_block(data[at : at + 65536]) for at in range(0, len(data), 65536))
    head = f"{dtype} {','.join(map(str, shape))}".encode()
    state = hashlib.blake2b(b"rlk.sync 1\0", digest_size=16)
    for part in (head, found):
        state.update(struct.pack("<Q", len(part)) + part)
    return state.hexdigest()


KINDS = [((5, 7000), torch.bfloat16), ((), torch.float32), ((0, 3), torch.int8)]


@pytest.mark.parametrize(("shape", "dtype"), KINDS)
def test_a_digest_is_its_definition(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (torch.randn(shape) * 10).to(dtype)
    data = x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    found = digest({"w": x}).weights["w"]
    assert found.hex == defined("w", str(dtype)[6:], shape, data)


@pytest.mark.parametrize("generated", [False, True])
def test_the_kernel_gives_the_digests_of_the_host(generated: bool) -> None:
    """By the oracle, and by the interpreted source of the kernel."""
    words = torch.randint(-(2**31), 2**31, (3, STEPS, LANES), dtype=torch.int64).to(torch.int32)
    tensors = (drawn(300, 200), drawn(7), drawn(0, 4), drawn(32768, dtype=torch.float32))
    given = [Weight(x, torch.bfloat16) for x in tensors]
    before = dispatch.interpreter
    if generated:
        pytest.importorskip("triton")
        dispatch.interpret_with(interpret)
    try:
        made = call(block_digest, {"words": words}, {}, {})
        assert by_blocks._on_device(given, torch.device("cpu")) == by_blocks.digests_of(given)
    finally:
        dispatch.interpret_with(before)
    assert torch.equal(torch.stack((made["first"], made["second"]), 1), by_blocks.host_sums(words))


# --- what changes it, and what does not -------------------------------------------------------------------


def total(x: torch.Tensor, name: str = "w", **options: Any) -> str:
    return digest({name: x}, **options).total


def test_every_bit_order_shape_dtype_and_name_counts() -> None:
    x = drawn(40, 1000)
    before = total(x)
    drawn_bits = torch.Generator().manual_seed(2)
    for _ in range(40):
        at, bit = (int(torch.randint(n, (), generator=drawn_bits)) for n in (x.numel(), 16))
        changed = x.clone()
        changed.view(torch.int16).view(-1)[at] ^= -(2**15) if bit == 15 else 1 << bit
        assert total(changed) != before
    swapped, halves = x.clone(), x.clone()
    swapped[[3, 4]] = x[[4, 3]]
    halves[:20], halves[20:] = x[20:], x[:20]
    others = [swapped, halves, -x, x.view(1000, 40), x.view(torch.float16), x.float(), x[:39], x.T]
    assert len({before, total(x, "v"), *map(total, others)}) == len(others) + 2


def test_strides_and_the_sizes_of_pieces_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn(300, 700)
    before = total(x)
    wide, odd = torch.zeros(300, 800, dtype=x.dtype), torch.zeros(x.numel() + 1, dtype=x.dtype)
    wide[:, 50:750], odd[1:] = x, x.reshape(-1)
    assert {total(y) for y in (wide[:, 50:750], odd[1:].view(300, 700), x.T.contiguous().T)} == {before}
    assert total(wide[:, 49:749]) != before
    monkeypatch.setattr(by_blocks, "CAST", 1)
    monkeypatch.setattr(by_blocks, "ROWS", 1)
    assert total(x) == before and total(x.float(), dtype=torch.bfloat16) == before


def test_a_cast_rounds_as_torch_does_and_leaves_integers() -> None:
    master = drawn(100, 100, dtype=torch.float32)
    weights = {"w": master, "n": torch.arange(5)}
    assert digest(weights, dtype=torch.float16) == digest({"w": master.half(), "n": torch.arange(5)})
    assert digest(weights) != digest(weights, dtype=torch.float16)


# --- sources ----------------------------------------------------------------------------------------------


class Engine(torch.nn.Module):
    """Weights that are named, merged and padded as vLLM's."""

    packed_modules_mapping = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, state: dict[str, torch.Tensor], padded: int) -> None:
        super().__init__()
        held: dict[str, list[torch.Tensor]] = {}
        for name, x in state.items():
            *path, last, leaf = name.split(".")
            merged = (m for m, parts in self.packed_modules_mapping.items() if last in parts)
            held.setdefault(".".join((*path, next(merged, last), leaf)), []).append(x)
        for name, rows in held.items():
            path, _, leaf = name.rpartition(".")
            layer = self._layer(path)
            if len(rows) > 1:
                layer.output_sizes = [len(x) for x in rows]
            if path.endswith(("embed_tokens", "lm_head")):
                layer.org_vocab_size = len(rows[0])
                rows.append(torch.full((padded - len(rows[0]), rows[0].shape[1]), 3.0, dtype=rows[0].dtype))
            layer.register_parameter(leaf, torch.nn.Parameter(torch.cat(rows), False))

    def _layer(self, path: str) -> Any:
        found: Any = self
        for part in path.split("."):
            if not hasattr(found, part):
                found.add_module(part, torch.nn.Module())
            found = getattr(found, part)
        return found


@pytest.mark.parametrize("tied", [False, True])
def test_every_holder_of_the_same_weights_has_one_digest(tied: bool, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from nn_cases import QWEN3
    from transformers import LlamaConfig, LlamaForCausalLM

    options = {"model_type": "llama", "tie_word_embeddings": tied, "attention_bias": True}
    own = model(**options)
    theirs = LlamaForCausalLM(LlamaConfig(**(QWEN3 | options))).to(torch.bfloat16)
    theirs.load_state_dict(own.state_dict(), strict=True)
    own.save_pretrained(tmp_path / "one", config=theirs.config)
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="30KB")
    engine = Engine(theirs.state_dict(), 128)
    if tied:
        engine.lm_head = engine.model.embed_tokens
    sources = {
        "transformers": theirs, "state dict": own.state_dict(), "one file": tmp_path / "one",
        "shards": str(tmp_path / "shards"), "merged and padded": engine, "gathered": dict(gathered(own)),
    }  # fmt: skip
    want = digest(own)
    assert len(want.weights) == len(list(own.parameters())) and ("lm_head.weight" in want.weights) is not tied
    found = {name: digest(source) for name, source in sources.items()}
    assert {name: compare(want, each) for name, each in found.items()} == dict.fromkeys(sources, ())
    assert {each.total for each in found.values()} == {want.total}
    assert digest(own.float(), dtype=torch.bfloat16) == want and digest(own) != want
    assert digest(dict(gathered(own, dtype=torch.bfloat16))) == want != digest(dict(gathered(own)))
    assert pickle.loads(pickle.dumps(want)) == want


WRAPPED = {
    "DDP": "module.{layer}.weight",
    "DDP of torch.compile": "module._orig_mod.{layer}.weight",
    "torch.compile of DDP": "_orig_mod.module.{layer}.weight",
    "FSDP": "_fsdp_wrapped_module.model._fsdp_wrapped_module.norm.weight",
    "a checkpoint": "model._checkpoint_wrapped_module.norm.weight",
    "peft": "base_model.model.{layer}.base_layer.weight",
    "DDP of peft": "module.base_model.model.{layer}.weight",
}


def test_names_are_without_the_prefixes_of_wrappers() -> None:
    """A `module` within a name is no wrapper's."""
    x = drawn(3)
    want = digest({"model.norm.weight": x})
    for kind, name in WRAPPED.items():
        assert digest({name.format(layer="model.norm"): x}) == want, kind
    assert list(digest({"model.module.weight": x}).weights) == ["model.module.weight"]

    own = model()
    before = digest(own)
    own.model.norm = checkpoint_wrapper(own.model.norm)
    wrapper = torch.nn.Module()  # as DDP holds a model
    wrapper.module = own
    assert digest(wrapper) == before


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    both = {"x.weight": drawn(3), "x.base_layer.weight": drawn(3, seed=1)}
    save_file(both, tmp_path / "w.safetensors")
    for source in (both, tmp_path):
        with pytest.raises(LaunchError, match="both are the weight x.weight"):
            digest(source)


def partitioned(status: str) -> torch.nn.Parameter:
    """Return a parameter with the attributes that DeepSpeed's ZeRO-3 gives it."""
    p = torch.nn.Parameter(drawn(3))
    p.ds_id, p.ds_status = 0, SimpleNamespace(name=status)
    return p


def test_shards_that_can_be_told_are_refused() -> None:
    flat = torch.nn.Parameter(drawn(3))
    flat._is_flat_param = True
    assert isinstance(flat, FlatParameter)
    for p, found in ((flat, "FlatParameter of FSDP1"), (partitioned("NOT_AVAILABLE"), "of ZeRO-3")):
        holder = torch.nn.Module()
        holder.w = p
        for source in (holder, {"w": p}):
            with pytest.raises(LaunchError, match=found):
                digest(source)
    assert digest({"w": partitioned("AVAILABLE")}) == digest({"w": drawn(3)})


def test_a_map_covers_each_row_of_a_tensor_once() -> None:
    q, k, w = drawn(6, 8), drawn(2, 8, seed=1), drawn(3, 4)
    held = {"qk": torch.cat((q, k)), "wt": w.T.contiguous(), "n": drawn(4)}
    parts = {"q": Part("qk", 0, 6), "k": Part("qk", 6), "w": Part("wt", transposed=True)}
    assert digest(held, parts=parts) == digest({"q": q, "k": k, "w": w, "n": drawn(4)})
    wrong = {
        "rows 6 to 7 of qk in no weight": {"q": Part("qk", 0, 6)},
        "rows 2 to 5 of qk in more than one": {"q": Part("qk", 0, 6), "k": Part("qk", 2)},
        "rows within the 8 of qk": {"q": Part("qk", 0, 9)},
        "the name of a tensor": {"q": Part("kq")},
        "has 1 dims": {"m": Part("n", transposed=True)},
        "no part is n": {"n": Part("qk")},
    }
    for message, given in wrong.items():
        with pytest.raises(LaunchError, match=message):
            digest(held, parts=given)


def megatron(name: str, rows: int, **options: Any) -> torch.nn.Module:
    """Return a model that holds one parameter as Megatron-core's does."""
    made, (*path, leaf) = torch.nn.Module(), name.split(".")
    holder = made
    for each in path:
        setattr(holder, each, torch.nn.Module())
        holder = holder.get_submodule(each)
    setattr(holder, leaf, torch.nn.Parameter(torch.arange(rows * 3.0).view(rows, 3)))
    sizes = {"num_attention_heads": 4, "num_query_groups": 2, "kv_channels": 3, "gated_linear_unit": True}
    sizes |= {"pipeline_model_parallel_size": 1, "tensor_model_parallel_size": 1}
    made.config = SimpleNamespace(**sizes | options)
    return made


def test_rows_of_megatron_lie_in_turn_for_each_group_of_heads() -> None:
    model = megatron("decoder.layers.1.self_attention.linear_qkv.weight", 24)  # 2 groups of q, q, k, v
    p = next(model.parameters()).detach()
    heads = p.view(2, 4, 3, 3)
    q, k, v = (heads[:, at].reshape(-1, 3) for at in (slice(0, 2), slice(2, 3), slice(3, 4)))
    want = {f"model.layers.1.self_attn.{x}_proj.weight": w for x, w in (("q", q), ("k", k), ("v", v))}
    assert digest(model) == digest(want)
    assert digest(model) != digest(want | {"model.layers.1.self_attn.q_proj.weight": p[:12]})  # not in turn
    gated = megatron("decoder.layers.0.mlp.linear_fc1.weight", 8)
    w = next(gated.parameters()).detach()
    assert digest(gated) == digest(
        {f"model.layers.0.mlp.{x}_proj.weight": each for x, each in zip(("gate", "up"), w.chunk(2))}
    )


def test_rows_of_groups_are_covered_and_other_models_of_megatron_refused() -> None:
    held = {"w": drawn(8, 2)}
    wrong: dict[str, dict[str, Part]] = {
        "rows 3 to 3 of w in no weight": {"q": Part("w", 0, 3, every=4)},
        "a divisor of the 8 rows of w": {"q": Part("w", 0, 3, every=3)},
        "transposed=False": {"q": Part("w", transposed=True, every=4)},
        "rows within the 4 of w": {"q": Part("w", 0, 5, every=4)},
        "4 rows, as of other parts of w": {"q": Part("w", 0, 3, every=4), "k": Part("w", 1, 2, every=2)},
    }
    for message, parts in wrong.items():
        with pytest.raises(LaunchError, match=message):
            digest(held, parts=parts)
    name = "decoder.layers.0.mlp.linear_fc1.weight"
    shard = megatron(name, 8, tensor_model_parallel_size=2)
    next(shard.parameters()).tensor_model_parallel = True
    models = {
        "a shard of Megatron's tensor parallelism": shard,
        "one of 2 pipeline stages": megatron(name, 8, pipeline_model_parallel_size=2),
        "a dense GPT model with SwiGLU": megatron("decoder.layers.0.mlp.experts.weight1", 8),
    }
    for message, other in models.items():
        with pytest.raises(LaunchError, match=message):
            digest(other)


def test_bad_sources_are_refused(tmp_path: Path) -> None:
    sharded, quantized = (Engine(model().state_dict(), 96) for _ in range(2))
    sharded.lm_head.tp_size = 2
    quantized.get_submodule("model.layers.0.mlp.gate_up_proj").output_sizes = [3, 4]
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    wrong: dict[str, tuple[Any, dict[str, Any]]] = {
        "shards of ranks": (sharded, {}),
        "rows 3 \\+ 4 of gate_proj, up_proj": (quantized, {}),
        "meta device": ({"w": torch.zeros(2, device="meta")}, {}),
        "to_dense": ({"w": torch.eye(2).to_sparse()}, {}),
        "must be a tensor, got int": ({"w": 3}, {}),
        r"must be a model, .* llm.apply_model\(rlk.sync.digest\)\), got list": ([("w", torch.zeros(2))], {}),
        "got SimpleNamespace": (SimpleNamespace(model=model()), {}),  # a trainer, say: nothing to undo
        "a float dtype": ({}, {"dtype": torch.int8}),
        "holds no safetensors": (tmp_path / "nowhere", {}),
        "bad.safetensors: cannot be read": (tmp_path, {}),
        "None for files": (tmp_path, {"parts": {}}),
    }
    for message, (source, options) in wrong.items():
        with pytest.raises(LaunchError, match=message):
            digest(source, **options)
    for source, options, message in ((model(), {"dtype": torch.int8}, "a float dtype"), ({}, {}, "Module")):
        with pytest.raises(LaunchError, match=rf"sync.gathered: (.|\n)*{message}"):
            next(gathered(source, **options))


# --- comparison -------------------------------------------------------------------------------------------


def test_each_weight_that_did_not_arrive_is_named_and_placed() -> None:
    names = ("same", "stale", "half", "late", "cast", "reshaped", "gone")
    old = {name: drawn(128, 1024, seed=i) for i, name in enumerate(names)}
    new = {name: x + 1 for name, x in old.items()}
    got = dict(new)
    got["stale"] = old["stale"]
    got["half"] = torch.cat((new["half"][:70], old["half"][70:]))
    got["late"] = new["late"] + 1
    got["cast"], got["reshaped"] = new["cast"].half(), new["reshaped"].view(256, 512)
    del got["gone"]
    got["more"] = drawn(3)
    before, sent, received = (digest(x) for x in (old, new, got))
    found = {each.name: (each.kind, each.what) for each in compare(sent, received, before)}
    where = "2 of 4 blocks differ, the first at elements 65536 to 98303, from row 64 on"
    every = "4 of 4 blocks differ, the first at elements 0 to 32767, from row 0 on"
    assert found == {
        "stale": ("stale", f"is still what was there before: {every}"),
        "half": ("half-written", where),
        "late": ("differs", every),
        "cast": ("dtype", "is float16, sent as bfloat16"),
        "reshaped": ("shape", "is [256, 512], sent as [128, 1024]"),
        "gone": ("missing", "was not received"),
        "more": ("extra", "was not sent"),
    }
    without = {each.name: each.kind for each in compare(sent, received)}
    assert (without["stale"], without["half"]) == ("differs", "half-written")
    assert compare(sent, digest(new)) == () and check(sent, sent) is None
    with pytest.raises(
        LaunchError, match=r"7 of 7 weights are not as they were sent:\n.*cast: is float16"
    ) as raised:
        check(sent, received, before)
    assert "dtype=torch.float16, as the sync casts it; send them again" in str(raised.value)
    with pytest.raises(LaunchError) as raised:
        check(digest({"w": drawn(3).float()}), digest({"w": drawn(3)}))
    assert "dtype=torch.bfloat16" in str(raised.value) and "send them again" not in str(raised.value)
    with pytest.raises(LaunchError, match=r"received must be a rlk.sync.Digest .*, got list"):
        check(sent, [received], before)  # type: ignore[arg-type]


def test_a_tied_head_that_one_side_unties_is_found() -> None:
    x, y = drawn(8, 4), drawn(8, 4, seed=1)
    tied = digest({"model.embed_tokens.weight": x, "lm_head.weight": x.clone()})
    assert tied == digest({"model.embed_tokens.weight": x})
    apart = digest({"model.embed_tokens.weight": x, "lm_head.weight": y})
    assert [(each.name, each.kind) for each in compare(apart, tied, tied)] == [("lm_head.weight", "stale")]
    assert [each.kind for each in compare(tied, apart)] == ["differs"]
    assert [each.kind for each in compare(tied, apart, apart)] == ["stale"]


def test_an_untied_head_that_was_lost_is_missing() -> None:
    old, new = (
        {"model.embed_tokens.weight": drawn(8, 4, seed=i), "lm_head.weight": drawn(8, 4, seed=i + 1)}
        for i in (0, 2)
    )
    before, sent = digest(old), digest(new)
    received = digest({"model.embed_tokens.weight": new["model.embed_tokens.weight"]})
    for known in (None, before):
        (found,) = compare(sent, received, known)
        assert (found.name, found.kind) == ("lm_head.weight", "missing")


def test_a_head_that_stayed_is_stale_where_it_was_the_embedding() -> None:
    old, new, head = (drawn(8, 4, seed=i) for i in range(3))
    before = digest({"model.embed_tokens.weight": old, "lm_head.weight": old.clone()})
    sent = digest({"model.embed_tokens.weight": new, "lm_head.weight": head})
    received = digest({"model.embed_tokens.weight": new, "lm_head.weight": old})
    (found,) = compare(sent, received, before)
    assert (found.name, found.kind) == ("lm_head.weight", "stale")


# --- transfer -----------------------------------------------------------------------------------------------


def test_a_head_of_its_own_is_refused_by_a_target_that_ties_it() -> None:
    source, target = model(seed=1), model(seed=2, tie_word_embeddings=True)
    before = digest(target).total
    with pytest.raises(LaunchError, match=r"lm_head.weight.*a head of its own.*\n?.*the target ties them"):
        transfer(source, target)
    assert digest(target).total == before  # nothing was written
    source.lm_head.weight.copy_(source.model.embed_tokens.weight)
    assert transfer(source, target).total == digest(source).total


def test_models_with_other_leaves_are_refused_before_a_weight_is_copied() -> None:
    source, target = model(seed=1), model(seed=2, rlk_leaves=2)
    before = digest(target).total
    with pytest.raises(LaunchError, match=r"target: leaves=2 .*\n.*1, that of the source") as raised:
        transfer(source, target)
    assert raised.value.code is Code.ARG_VALUE and digest(target).total == before
    again = model(seed=3, rlk_leaves=2)
    assert transfer(target, again).total == before  # the control


def test_leaves_of_a_patched_model_are_compared_too() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(**{key: x for key, x in QWEN3.items() if key != "model_type"})
    theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    source = model(seed=1, rlk_leaves=2)
    total = transfer(source, theirs).total  # rlk does not compute it: any leaves
    with rlk.patch(theirs), pytest.raises(LaunchError, match="target: leaves=1 "):
        transfer(source, theirs)
    with rlk.patch(theirs, leaves=2) as made:
        assert transfer(source, theirs).total == total
        for p in theirs.parameters():
            p.data.zero_()
        assert transfer(source, made).total == total == digest(made).total  # what rlk.patch returned
        assert digest(dict(gathered(made))).total == total
    with pytest.raises(LaunchError, match=r"^sync.gathered: source must be"):
        gathered(3)  # type: ignore[arg-type]
    assert str(digest(theirs)) == f"{total} of {len(digest(theirs).weights)} weights"  # no blocks, in errors
