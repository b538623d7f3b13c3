"""Weights of Hugging Face's names as rows of the tensors that hold them: merged, padded or transposed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from rlk.errors import Code, LaunchError
from rlk.runtime.binding.checks import wrong_value
from rlk.runtime.call.collective import SHARE, share_of

OP = "sync.digest"
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer")
"""Attributes in which a module of torch or of an adapter holds the module that it wraps."""
OUTER = re.compile(r"^(module\.|base_model\.model\.)+")
"""The same of wrappers of whole models: of DDP, and of peft."""
Held = TypeVar("Held")


@dataclass(frozen=True, slots=True)
class Part:
    """A weight in a tensor: its rows from begin up to end (None: to the last), transposed after that or not.

    source: the name of the tensor. transposed: its last two dims are exchanged. every: the rows are those of
    each group of so many rows of the tensor, in turn; None: the tensor is one group.
    """

    source: str
    begin: int = 0
    end: int | None = None
    transposed: bool = False
    every: int | None = None

    def of(self, name: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the weight: a view, of groups a copy. Raises LaunchError."""
        found = self.view(name, tensors)
        return found if self.every is None else found.flatten(0, 1)

    def view(self, name: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the weight as a view, of groups [groups, rows of a group, ...]. Raises LaunchError."""
        x = tensors.get(self.source)
        if x is None:
            raise wrong_value(OP, f"parts[{name!r}].source", self.source, "the name of a tensor")
        rows = x.shape[0] if x.dim() else 0
        if self.every is not None:
            if self.transposed or self.every < 1 or rows % self.every:
                wanted = f"a divisor of the {rows} rows of {self.source}, and transposed=False"
                raise wrong_value(OP, f"parts[{name!r}].every", self.every, wanted)
            x, rows = x.unflatten(0, (-1, self.every)).transpose(0, 1), self.every
        end = rows if self.end is None else self.end
        whole = self.begin == 0 and self.end is None
        if not whole and not 0 <= self.begin <= end <= rows:
            wanted = f"rows within the {rows} of {self.source}"
            raise wrong_value(OP, f"parts[{name!r}]", (self.begin, end), wanted)
        if self.transposed and x.dim() < 2:
            wanted = f"False: {self.source} has {x.dim()} dims"
            raise wrong_value(OP, f"parts[{name!r}].transposed", True, wanted)
        part = x if whole else x[self.begin : end]
        if self.every is not None:
            return part.transpose(0, 1)
        return part.mT if self.transposed else part


def resolved(
    tensors: Mapping[str, torch.Tensor], parts: Mapping[str, Part], padding: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    """Return weights by their names: those of `parts`, and every tensor that is no part's source.

    padding: of some tensors, the row from which on there is no weight. Raises LaunchError unless the parts of
    each tensor are all of its rows, each once, or all rows of its groups.
    """
    taken: dict[str, list[tuple[int, int]]] = {}
    groups: dict[str, int] = {}
    found = {}
    for name, part in parts.items():
        found[name] = part.of(name, tensors)
        source = tensors[part.source]
        rows = part.every or (source.shape[0] if source.dim() else 1)
        if groups.setdefault(part.source, rows) != rows:
            wanted = f"{groups[part.source]} rows, as of other parts of {part.source}"
            raise wrong_value(OP, f"parts[{name!r}].every", part.every, wanted)
        taken.setdefault(part.source, []).append((part.begin, rows if part.end is None else part.end))
    for source, ranges in taken.items():
        end = padding.get(source, groups[source])
        at = 0
        for first, last in sorted(ranges):
            if first != at:
                how = "no" if first > at else "more than one"
                raise _covered(source, min(at, first), max(at, first), how)
            at = last
        if at != end:
            raise _covered(source, min(at, end), max(at, end), "no" if at < end else "padding and in a")
    for name, tensor in tensors.items():
        if name not in taken:
            if name in found:
                raise wrong_value(OP, "parts", name, f"another name: a tensor that is no part is {name}")
            found[name] = tensor
    return found


def _covered(source: str, first: int, last: int, how: str) -> LaunchError:
    value = f"rows {first} to {last - 1} of {source} in {how} weight"
    return LaunchError(Code.ARG_VALUE, op=OP, name="parts", value=value, wanted="each row in one weight")


# --- models of engines ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of a model's weights in its tensors, by the names of weights and of tensors.

    padding: the row of a tensor from which on there is no weight. rows: of whole weights that ranks share,
    whose last ones are padding.
    """

    parts: dict[str, Part]
    padding: dict[str, int]
    rows: dict[str, int]


def layout_of_model(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> Layout:
    """Return the layout of a model: of a model of `rlk.nn`, its weights that files have transposed.

    Names of models that are neither vLLM's nor Megatron-core's are canonical. vLLM's classes say in
    `packed_modules_mapping` which layers are merged, and the layers in `output_sizes` how many rows each has
    on all ranks; embeddings have rows beyond `org_vocab_size`. Raises LaunchError for shards of ranks that
    are not marked as shares.
    """
    if is_megatron(model):
        return Layout(megatron_parts(model, tensors), {}, {})
    packed = getattr(model, "packed_modules_mapping", None) or {}
    found = Layout({name: Part(name, transposed=True) for name in transposed_of(model)}, {}, {})
    if not hasattr(type(model), "packed_modules_mapping"):
        return found
    for path, module in model.named_modules(remove_duplicate=False):  # a tied head is the embedding
        size = getattr(module, "tp_size", None) or 1
        for name, p in module.named_parameters(recurse=False):
            source = canonical(f"{path}.{name}")
            holder, _, last = canonical(path).rpartition(".")
            merged = last in packed and hasattr(module, "output_sizes")
            rows = getattr(module, "org_vocab_size", None)
            share = share_of(p)
            if size > 1 and share is None and (merged or rows is not None or p.dim() > 1):
                wanted = '1, or shards of ranks of LLM(quantization="rlk")'
                raise wrong_value(OP, f"{path}.tp_size", size, wanted)
            if merged:
                sizes = [n // size for n in module.output_sizes]
                found.parts.update(_merged(holder, packed[last], name, source, sizes, tensors[source]))
            elif rows is not None:
                found.parts[source] = Part(source, 0, rows if share is None else None)
                (found.padding if share is None else found.rows)[source] = rows
    return found


def transposed_of(model: torch.nn.Module) -> list[str]:
    """Return the names of weights whose last two dims files have in the other order.

    Modules of `rlk.nn` say in `transposed_in_files` which of their parameters these are.
    """
    return [
        canonical(f"{path}.{name}")
        for path, module in model.named_modules()
        for name in getattr(module, "transposed_in_files", ())
    ]


def _merged(
    holder: str, names: list[str], leaf: str, source: str, sizes: list[int], tensor: torch.Tensor
) -> Iterator[tuple[str, Part]]:
    """Yield the parts of a merged weight by their names."""
    if len(names) != len(sizes) or tensor.dim() == 0 or tensor.shape[0] != sum(sizes):
        wanted = f"rows {' + '.join(map(str, sizes))} of {', '.join(names)}: a weight that is not quantized"
        raise wrong_value(OP, f"the shape of {source}", tuple(tensor.shape), wanted)
    at = 0
    for name, size in zip(names, sizes, strict=True):
        yield f"{holder}.{name}.{leaf}", Part(source, at, at + size)
        at += size


# --- models of Megatron-core ------------------------------------------------------------------------------

WHOLE = {
    "embedding.word_embeddings": "model.embed_tokens",
    "decoder.final_layernorm": "model.norm",
    "output_layer": "lm_head",
}
LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
OF_LAYER = {
    "input_layernorm": "input_layernorm",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "self_attention.linear_proj": "self_attn.o_proj",
    "self_attention.q_layernorm": "self_attn.q_norm",
    "self_attention.k_layernorm": "self_attn.k_norm",
    "mlp.linear_fc2": "mlp.down_proj",
}
"""Modules of a layer whose parameters hold one weight each."""
QKV, GATED = "self_attention.linear_qkv", "mlp.linear_fc1"


def is_megatron(model: torch.nn.Module) -> bool:
    """Return whether a model, or what it wraps, is one of Megatron-core's."""
    return hasattr(getattr(model, "config", None), "num_query_groups")


def megatron_parts(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, Part]:
    """Return the places of all weights of Megatron-core's GPT model (local spec) in its parameters.

    tensors: by canonical names; of each a rank has all or its share. linear_qkv holds, for each group of
    query heads that share keys, the rows of its queries, of its key and of its value; linear_fc1 the rows of
    gate, then those of up, on every rank. Raises LaunchError for other models than dense ones with SwiGLU on
    one pipeline stage, and for shards that are not marked as shares.
    """
    config: Any = model.config
    if config.pipeline_model_parallel_size != 1:
        found = f"one of {config.pipeline_model_parallel_size} pipeline stages"
        raise wrong_value(OP, "source", found, "a whole model: stages number their layers anew")
    made: dict[str, Part] = {}
    for name, x in tensors.items():
        if config.tensor_model_parallel_size > 1 and share_of(x) is None and getattr(x, SHARE, False):
            wanted = "whole tensors, or a model of rlk.integrations.megatron, which marks its shares"
            raise wrong_value(OP, name, "a shard of Megatron's tensor parallelism", wanted)
        made.update(_megatron_parts(config, name, x))
    return made


def _megatron_parts(config: Any, name: str, x: torch.Tensor) -> Iterator[tuple[str, Part]]:
    """Yield the weights in one parameter."""
    path, _, leaf = name.rpartition(".")
    layer = LAYER.fullmatch(path)
    if layer is None and path in WHOLE:
        yield f"{WHOLE[path]}.{leaf}", Part(name)
        return
    number, module = ("", "") if layer is None else layer.groups()
    holder = f"model.layers.{number}"
    if module in OF_LAYER:
        yield f"{holder}.{OF_LAYER[module]}.{leaf}", Part(name)
    elif module == QKV:
        width = config.kv_channels
        queries = config.num_attention_heads // config.num_query_groups * width
        at = 0
        for each, size in (("q", queries), ("k", width), ("v", width)):
            yield (
                f"{holder}.self_attn.{each}_proj.{leaf}",
                Part(name, at, at + size, every=queries + 2 * width),
            )
            at += size
    elif module == GATED and config.gated_linear_unit:
        half = len(x) // 2
        yield f"{holder}.mlp.gate_proj.{leaf}", Part(name, 0, half)
        yield f"{holder}.mlp.up_proj.{leaf}", Part(name, half, len(x))
    else:
        raise wrong_value(OP, "source", name, "weights of a dense GPT model with SwiGLU (local spec)")


# --- names ------------------------------------------------------------------------------------------------


def canonical(name: str) -> str:
    """Return a parameter's name without modules that wrap others.

    These are torch.compile's, DDP's, FSDP's, those of activation checkpoints, peft's and vLLM's adapters.
    """
    return OUTER.sub("", ".".join(part for part in name.split(".") if part not in WRAPPERS))


def by_canonical_name(named: Iterable[tuple[str, Held]]) -> dict[str, Held]:
    """Return what is named by canonical names. Raises LaunchError where two have one."""
    found: dict[str, Held] = {}
    names: dict[str, str] = {}
    for name, held in named:
        key = canonical(name)
        if key in names:
            value, wanted = f"{names[key]} and {name}", f"one of them: both are the weight {key}"
            raise wrong_value(OP, "source", value, wanted)
        found[key], names[key] = held, name
    return found
