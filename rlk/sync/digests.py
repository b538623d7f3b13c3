"""`rlk.sync.digest`: the digest of each weight of a model under its Hugging Face name."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from rlk.errors import Code, LaunchError, UnsupportedError
from rlk.nn.experts import by_expert
from rlk.runtime.binding.checks import wrong_type, wrong_value
from rlk.runtime.binding.parts import plain as without_mark
from rlk.runtime.call.marked import mark_anew
from rlk.sync.blocks import Weight, digests_of
from rlk.sync.parts import OP, Layout, Part, by_canonical_name, layout_of_model, resolved
from rlk.sync.shards import check_shard, is_shard, part_of, whole

FORMAT = b"rlk.sync 1"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
NO_PARAMETER = re.compile(r"(.*\.)?rotary_emb\.inv_freq")
"""Buffers that older versions of transformers wrote; rlk and newer versions compute them."""
INDEX = "model.safetensors.index.json"
EXPERTS = ("experts.gate_up_proj", "experts.down_proj", "gate.weight")
"""Parameters of a layer of experts of Qwen3-MoE and Mixtral, as models hold them."""


@dataclass(frozen=True, slots=True)
class WeightDigest:
    """The digest of one weight. dtype: as torch names it. blocks: 16 bytes for each block of 64 KiB."""

    dtype: str
    shape: tuple[int, ...]
    blocks: bytes

    @property
    def hex(self) -> str:
        """Return the digest as 32 hex digits: of dtype, shape and all blocks."""
        head = f"{self.dtype} {','.join(map(str, self.shape))}".encode()
        return _hashed(head, self.blocks)


@dataclass(frozen=True, slots=True)
class Digest:
    """The digests of a model's weights by their Hugging Face names."""

    weights: Mapping[str, WeightDigest]

    @property
    def total(self) -> str:
        """Return one digest of the model, 32 hex digits: of all names and digests."""
        lines = (f"{name} {weight.hex}\n".encode() for name, weight in sorted(self.weights.items()))
        return _hashed(*lines)

    def __str__(self) -> str:
        return f"{self.total} of {len(self.weights)} weights"


def _hashed(*parts: bytes) -> str:
    state = hashlib.blake2b(FORMAT + b"\0", digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


class Holder(Protocol):
    """A patch of a model, such as `rlk.patch` returns."""

    model: torch.nn.Module

    def undo(self) -> None:
        """Put the model back."""


def unpatched(source: Any) -> Any:
    """Return the model of what `rlk.patch` returned, anything else as it is."""
    if isinstance(source, torch.nn.Module | Mapping) or not hasattr(source, "undo"):
        return source  # a trainer has a model too
    held = getattr(source, "model", None)
    return held if isinstance(held, torch.nn.Module) else source


def digest(
    source: torch.nn.Module | Holder | Mapping[str, torch.Tensor] | str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    parts: Mapping[str, Part] | None = None,
) -> Digest:
    """Return the digest of every weight, computed where it is, under its Hugging Face name.

    source: a model (`rlk.nn.CausalLM`, of transformers, of vLLM: `LLM.apply_model(rlk.sync.digest)`), a state
    dict, a folder of safetensors files, or one file. dtype: floats are rounded to it first, as the sync does
    that sends f32 weights to a bf16 engine. parts: the weights that lie in tensors of other names or layouts;
    every tensor that is no part's source is a weight of its own name. For vLLM's models they are found: its
    merged and padded weights have the digests of the checkpoint's, and so have experts of Qwen3-MoE and
    Mixtral in models and state dicts, of which files have a tensor each. A state dict of `rlk.nn`'s GPT-OSS
    has its experts transposed: take the model. `lm_head.weight` is left out where it has the bits of
    `model.embed_tokens.weight`.

    The bytes of a weight, row-major and little-endian, are cut into blocks of 65536, the last one filled up
    with zeros, and a block is 16 steps of 1024 words w[s, i] of 32 bits. With MurmurHash3's finalizer

        mix(h) = h2 ^ (h2 >> 16), h2 = (h1 ^ (h1 >> 13)) 0xC2B2AE35, h1 = (h ^ (h >> 16)) 0x85EBCA6B
        x[s, i] = w[s, i] ^ (mix(i + 0x9E3779B9) + mix(s))
        f[c, s, i] = (mix(i + c) | 1) (mix(s) | 1)
        low[c] = sum of (x f[c] mod 2**32), high[c] = sum of floor(x f[c] / 2**32)

    modulo 2**32 each, the digest of a block is low[c1], high[c1], low[c2], high[c2] with c1 = 0x3C6EF372 and
    c2 = 0xDAA66D2B, 16 bytes. A weight's digest is BLAKE2b-128 of dtype, shape and these. Every change
    of a single word changes a block's digest; several changes cancel by accident only. It protects against
    mistakes, not against an adversary.

    DTensors (FSDP2), and the shares of `rlk.parallel` and its layers, of `rlk.integrations.megatron` or of
    vLLM's ranks in a model, are gathered one by one: every rank calls it, and gets the digest of the whole
    weights. Models of Megatron-core's GPT (local spec, dense) have their weights' Hugging Face names.

    Digests run on the current stream of each device: synchronize transfers on other streams first. Names are
    without the prefixes of wrappers (DDP, FSDP, torch.compile, activation checkpoints, peft). Raises
    LaunchError for parts that do not fit, two tensors of one name, tensors without memory or that are not
    dense, and for other shards of ranks where they can be told: FSDP1's flat parameters, parameters that
    ZeRO-3 has partitioned, layers of vLLM's own with a tp_size, models of Megatron-core's own tensor
    parallelism, DTensors that are parts of a sum or of a share. Shards of FSDP1 with use_orig_params and of
    the state dicts of ZeRO-3 and Megatron cannot be told from whole tensors, and are digested as they are.
    """
    float_dtype(OP, dtype)
    source = unpatched(source)
    if isinstance(source, str | os.PathLike):
        if parts is not None:
            raise wrong_value(OP, "parts", "a map", "None for files, which hold Hugging Face's names")
        found = by_canonical_name(_digests_of_files(Path(source), dtype))
    else:
        tensors, gathered = _weights(source, parts)
        named = names_of_files((*tensors, *gathered)) if parts is None else dict
        found = _digests_of_tensors(named(tensors), dtype) | _digests_of_shards(gathered, dtype, named)
    head = found.get(HEAD)
    if head is not None and head == found.get(EMBEDDING):
        del found[HEAD]
    return Digest(found)


def float_dtype(op: str, dtype: torch.dtype | None) -> None:
    """Raise LaunchError for a dtype to which floats cannot be rounded."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise wrong_value(op, "dtype", dtype, "a float dtype, or None")


Shards: TypeAlias = "dict[str, tuple[torch.Tensor, int | None]]"
"""Shards of weights by name, and how many rows of the whole weight are no padding (None: all)."""


def _weights(source: Any, parts: Mapping[str, Part] | None) -> tuple[dict[str, torch.Tensor], Shards]:
    """Return tensors of a model or mapping by their Hugging Face names, and apart those to be gathered."""
    layout = Layout(dict(parts or {}), {}, {})
    if isinstance(source, torch.nn.Module):
        mark_anew(source)
        tensors = by_canonical_name(source.named_parameters(remove_duplicate=False))
        if parts is None:
            layout = layout_of_model(source, tensors)
    elif isinstance(source, Mapping):
        for name, x in source.items():
            if not isinstance(x, torch.Tensor):
                raise wrong_type(OP, f"source[{name!r}]", x, "tensor")
        named = ((name, x) for name, x in source.items() if not NO_PARAMETER.fullmatch(name))
        tensors = by_canonical_name(named)
    else:
        wanted = "model, a state dict or a path of safetensors (of vLLM: llm.apply_model(rlk.sync.digest))"
        raise wrong_type(OP, "source", source, wanted)
    for name, x in tensors.items():
        _check(name, x)
    shards = {name for name, x in tensors.items() if is_shard(x)}
    for name, part in (parts or {}).items():
        if part.source in shards:
            found = f"{part.source}, of which ranks have shards"
            raise wrong_value(OP, f"parts[{name!r}].source", found, "a whole tensor: gather it first")
    plain: dict[str, torch.Tensor] = {}
    gathered: Shards = {}
    for name, x in resolved(tensors, layout.parts, layout.padding).items():
        held = layout.parts[name].source if name in layout.parts else name
        if held in shards:
            gathered[name] = part_of(tensors[held], x), layout.rows.get(held)
        else:
            plain[name] = x.detach()
    return plain, gathered


Named: TypeAlias = Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]
"""Returns weights by the names that files have."""


def names_of_files(names: Collection[str]) -> Named:
    """Return what separates the weights of experts that a model holds as one, and files do not.

    A state dict does not say of which family it is, so names tell: Qwen3-MoE has norms of heads, Mixtral
    none, and neither has other parameters in a layer of experts.
    """
    of_layers = {name.rpartition(".mlp.")[::2] for name in names if ".mlp." in name}
    layers = {layer for layer, name in of_layers if name in EXPERTS}
    if not layers or any(layer in layers and name not in EXPERTS for layer, name in of_layers):
        return dict
    kind = "qwen3_moe" if any(f"{layer}.self_attn.q_norm.weight" in names for layer in layers) else "mixtral"
    return partial(by_expert, model_type=kind)


def _digests_of_shards(shards: Shards, dtype: torch.dtype | None, named: Named) -> dict[str, WeightDigest]:
    """Return the digests of weights of which ranks have shards; one whole weight exists at a time."""
    found: dict[str, WeightDigest] = {}
    first: dict[int, str] = {}
    for name, (x, rows) in shards.items():
        if first.setdefault(id(x), name) != name:  # a tied head is the embedding
            found[name] = found[first[id(x)]]
            continue
        for each, w in named({name: whole(x)[:rows] if rows is not None else whole(x)}).items():
            weight = _cast(w, dtype)
            found[each] = _named(weight, *digests_of([weight]))
    return found


def _check(name: str, x: torch.Tensor) -> None:
    """Raise LaunchError for a shard of ranks that can be told, and for a tensor without dense memory."""
    check_shard(OP, name, x)
    if without_mark(x) is not x:
        raise wrong_value(OP, name, "a rank's part of a weight", "whole tensors: give the model")
    if getattr(x, "_is_flat_param", False):
        raise wrong_value(OP, name, "a FlatParameter of FSDP1", "whole tensors: take a FULL_STATE_DICT first")
    if hasattr(x, "ds_id") and getattr(getattr(x, "ds_status", None), "name", None) != "AVAILABLE":
        wanted = "whole tensors: gather them (GatheredParameters) first"
        raise wrong_value(OP, name, "a partitioned parameter of ZeRO-3", wanted)
    if x.layout != torch.strided:
        raise wrong_value(OP, name, f"a tensor of {x.layout}", "a dense tensor: convert it (to_dense) first")
    if x.device.type == "meta":
        raise wrong_value(OP, name, "a tensor on the meta device", "a tensor with memory")


def _digests_of_tensors(
    tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None
) -> dict[str, WeightDigest]:
    keys = {
        name: (x.data_ptr(), x.device, x.dtype, tuple(x.shape), x.stride()) for name, x in tensors.items()
    }
    first = {key: name for name, key in reversed(keys.items())}  # of tensors that are one: a tied head
    weights = {name: _cast(tensors[name], dtype) for name in first.values()}
    made = dict(zip(weights, digests_of(list(weights.values())), strict=True))
    return {name: _named(weights[first[keys[name]]], made[first[keys[name]]]) for name in tensors}


def _cast(x: torch.Tensor, dtype: torch.dtype | None) -> Weight:
    return Weight(x, x.dtype if dtype is None or not x.dtype.is_floating_point else dtype)


def _named(weight: Weight, blocks: bytes) -> WeightDigest:
    return WeightDigest(str(weight.dtype).removeprefix("torch."), tuple(weight.tensor.shape), blocks)


# --- files ------------------------------------------------------------------------------------------------


def _digests_of_files(path: Path, dtype: torch.dtype | None) -> Iterator[tuple[str, WeightDigest]]:
    """Yield the digests of all tensors of a folder or file, of which one is read at a time."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise UnsupportedError(Code.PEER_ABSENT, peer="safetensors", versions=">=0.6") from None
    for file in _files(path):
        try:
            with safe_open(file, framework="pt") as opened:
                for key in opened.keys():
                    if not NO_PARAMETER.fullmatch(key):
                        weight = _cast(opened.get_tensor(key), dtype)
                        yield key, _named(weight, *digests_of([weight]))
        except (SafetensorError, OSError) as error:
            raise _unreadable(file, f"cannot be read: {error}", "copy or download it again") from error


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    index = path / INDEX
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = "is no index of safetensors files"
            raise _unreadable(index, what, "write the checkpoint anew") from error
        return [path / name for name in sorted(names)]
    found = sorted(path.glob("*.safetensors"))
    if not found:
        raise _unreadable(path, "holds no safetensors files", "name a folder of a checkpoint, or a file")
    return found


def _unreadable(path: Path, what: str, instead: str) -> LaunchError:
    return LaunchError(Code.CHECKPOINT_FILE, path=str(path), what=what, instead=instead)
