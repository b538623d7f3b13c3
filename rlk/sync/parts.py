"""Weights of Hugging Face's names as rows of the tensors that hold them: merged, padded or transposed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from rlk.errors import Code, LaunchError
from rlk.runtime.binding.checks import wrong_value
from rlk.runtime.call.collective import share_of

OP = "sync.digest"
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer")
"""Attributes in which a module of torch or of an adapter holds the module that it wraps."""
OUTER = re.compile(r"^(module\.|base_model\.model\.)+")
"""The same of wrappers of whole models: of DDP, and of peft."""
Held = TypeVar("Held")


@dataclass(frozen=True, slots=True)
class Part:
    """A weight in a tensor: its rows from begin up to end (None: to the last), transposed after that or not.

    source: the name of the tensor. transposed: its last two dims are exchanged.
    """

    source: str
    begin: int = 0
    end: int | None = None
    transposed: bool = False

    def of(self, name: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the weight as a view. Raises LaunchError."""
        x = tensors.get(self.source)
        if x is None:
            raise wrong_value(OP, f"parts[{name!r}].source", self.source, "the name of a tensor")
        rows = x.shape[0] if x.dim() else 0
        end = rows if self.end is None else self.end
        whole = self.begin == 0 and self.end is None
        if not whole and not 0 <= self.begin <= end <= rows:
            wanted = f"rows within the {rows} of {self.source}"
            raise wrong_value(OP, f"parts[{name!r}]", (self.begin, end), wanted)
        if self.transposed and x.dim() < 2:
            wanted = f"False: {self.source} has {x.dim()} dims"
            raise wrong_value(OP, f"parts[{name!r}].transposed", True, wanted)
        part = x if whole else x[self.begin : end]
        return part.mT if self.transposed else part


def resolved(
    tensors: Mapping[str, torch.Tensor], parts: Mapping[str, Part], padding: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    """Return weights by their names: those of `parts`, and every tensor that is no part's source.

    padding: of some tensors, the row from which on there is no weight. Raises LaunchError unless the parts of
    each tensor are all of its rows, each once.
    """
    taken: dict[str, list[tuple[int, int]]] = {}
    found = {}
    for name, part in parts.items():
        found[name] = part.of(name, tensors)
        source = tensors[part.source]
        rows = source.shape[0] if source.dim() else 1
        taken.setdefault(part.source, []).append((part.begin, rows if part.end is None else part.end))
    for source, ranges in taken.items():
        rows = tensors[source].shape[0] if tensors[source].dim() else 1
        end = padding.get(source, rows)
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

    The names of models that are not vLLM's are canonical. vLLM's classes say in `packed_modules_mapping`
    which layers are merged, and the layers in `output_sizes` how many rows each has on all ranks; embeddings
    have rows beyond `org_vocab_size`. Raises LaunchError for shards of ranks that are not marked as shares.
    """
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
