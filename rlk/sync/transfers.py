"""`rlk.sync.transfer`: the weights of one model put into another, however ranks shard either.

And `rlk.sync.gathered`: whole weights one by one, for a receiver that takes them by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from rlk.nn.config import LEAVES, ModelConfig
from rlk.runtime.binding.checks import wrong_type, wrong_value
from rlk.runtime.call.marked import mark_anew
from rlk.sync.compare import check
from rlk.sync.digests import EMBEDDING, HEAD, Digest, Holder, digest, float_dtype, names_of_files, unpatched
from rlk.sync.parts import Part, by_canonical_name, is_megatron, megatron_parts, transposed_of
from rlk.sync.shards import check_shard, check_target, part_of, put, reshard, shape_of, whole

OP, GATHERED = "sync.transfer", "sync.gathered"


@torch.no_grad()
def transfer(source: torch.nn.Module | Holder, target: torch.nn.Module | Holder) -> Digest:
    """Copy the weights of one model into another, and check that they arrived; return the target's digest.

    source, target: whole models, the bf16 shares of `rlk.parallel.parallelize`, the f32 shards of FSDP2, or
    shards of shares; those of transformers also as `rlk.patch` returned them. Names and shapes are Hugging
    Face's, without prefixes of wrappers, or those of
    Megatron-core's GPT model (`rlk.integrations.megatron`), whose parameters hold several weights; a weight
    that one of the models holds transposed (`rlk.nn`'s experts of GPT-OSS) is transposed, and rounded to the
    target's dtype. Every rank calls it; one whole weight at a time is gathered on each, and each keeps its
    part. The digests of both, of whole weights, are compared then (`rlk.sync.digest`), so that weights are
    gathered twice. Raises LaunchError, before anything is copied, for models that rlk computes with other
    leaves, weights that one of them lacks, other shapes, and a head that is not the embedding where the
    target ties them; and, with the rest copied, where weights did not arrive (`rlk.sync.check`).
    """
    source, target = unpatched(source), unpatched(target)
    given, taken = _parameters(OP, "source", source), _parameters(OP, "target", target)
    _check_leaves(source, target)
    for name, x in taken.items():
        check_target(OP, f"target: {name}", x.memory)
    tied = {HEAD, EMBEDDING}
    if lacking := sorted((given.keys() ^ taken.keys()) - tied):
        others = f"{len(lacking)} other names, {lacking[0]} first"
        raise wrong_value(OP, "target", others, "those of the source")
    dtypes = sorted({str(x.memory.dtype) for x in taken.values()})
    if len(dtypes) != 1:
        raise wrong_value(OP, "target", f"weights of {', '.join(dtypes)}", "one dtype")
    moved = [(name, x, given[name if name in given else EMBEDDING].weight) for name, x in taken.items()]
    for name, x, weight in moved:
        if (found := shape_of(x.weight)) != shape_of(weight):
            raise wrong_value(OP, f"target: {name}", found, f"{shape_of(weight)}, that of the source")
    dtype = moved[0][1].memory.dtype
    if HEAD in given and HEAD not in taken and not _same(given[HEAD].weight, given[EMBEDDING].weight, dtype):
        wanted = f"the bits of {EMBEDDING}: the target ties them"
        raise wrong_value(OP, f"source: {HEAD}", "a head of its own", wanted)
    for _, x, weight in moved:
        put(x.memory, whole(weight))
    received = digest(target)
    check(digest(source, dtype=dtype), received)
    return received


def gathered(
    source: torch.nn.Module | Holder, *, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Return an iterator of whole weights by their Hugging Face names: what an engine's `load_weights` takes.

    source: as of `transfer`. Every rank draws all of them, each gathered when it is drawn; weights that no
    ranks share are the model's memory. dtype: floats are rounded to it, by default to none. A head that is
    the embedding is left out, and experts of which files have a tensor each come one by one. Compare digests
    of both sides afterwards (`rlk.sync.check`). Raises LaunchError, before the first is drawn.
    """
    float_dtype(GATHERED, dtype)
    return _drawn(_parameters(GATHERED, "source", unpatched(source)), dtype)


def _drawn(held: Mapping[str, Held], dtype: torch.dtype | None) -> Iterator[tuple[str, torch.Tensor]]:
    named = names_of_files(held)
    for name, each in held.items():
        for key, x in named({name: whole(each.weight)}).items():
            yield key, x.to(dtype) if dtype is not None and x.is_floating_point() else x


def _check_leaves(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """Raise LaunchError for models with other leaves: their weights would be equal, and their bits not."""
    ours, theirs = _leaves(source), _leaves(target)
    if ours is not None and theirs is not None and ours != theirs:
        wanted = f"{ours}, that of the source: load both models with the same leaves="
        raise wrong_value(OP, "target: leaves", theirs, wanted)


def _leaves(model: torch.nn.Module) -> int | None:
    """Return the leaves with which rlk computes a model; None if no config says them and rlk does not."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, ModelConfig):
            return config.leaves
        if (found := getattr(config, LEAVES, None)) is not None:
            return int(found)
        if hasattr(module, "nn_config") or _is_patched(module):
            return 1
    return None


def _is_patched(module: torch.nn.Module) -> bool:
    """Return whether `rlk.patch` exchanged a module's computation."""
    forward = getattr(vars(module).get("forward"), "__func__", None)
    return str(getattr(forward, "__module__", "")).startswith("rlk.")


class Held(NamedTuple):
    """A weight in the shape that files have, and the view of the model's memory that holds it."""

    weight: torch.Tensor
    memory: torch.Tensor


def _same(head: torch.Tensor, embedding: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether two weights have the same bits in a dtype, on every rank."""
    made = [whole(x).to(dtype).contiguous().view(torch.uint8) for x in (head, embedding)]
    return torch.equal(*made)


def _parameters(op: str, name: str, model: torch.nn.Module) -> Mapping[str, Held]:
    """Return a model's weights by the names that files have."""
    if not isinstance(model, torch.nn.Module):
        raise wrong_type(op, name, model, "torch.nn.Module")
    reshard(model)
    mark_anew(model)
    found = by_canonical_name(model.named_parameters())
    for each, x in found.items():
        check_shard(op, f"{name}: {each}", x)
    if is_megatron(model):
        parts = megatron_parts(model, found)
    else:
        parts = {each: Part(each) for each in found}
        parts |= {each: Part(each, transposed=True) for each in transposed_of(model)}
    return {each: _held(each, part, found) for each, part in parts.items()}


def _held(name: str, part: Part, tensors: Mapping[str, torch.Tensor]) -> Held:
    x = tensors[part.source]
    return Held(*(part_of(x, rows) for rows in (part.of(name, tensors), part.view(name, tensors))))
