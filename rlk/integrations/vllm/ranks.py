"""vLLM layers whose weights ranks of its tensor parallelism share, with the bits of one rank."""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.parallel_state import get_tp_group
from vllm.model_executor.layers.linear import RowParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from rlk.integrations.vllm.computations import computation
from rlk.nn.config import ModelConfig
from rlk.nn.embedded import embedding_of_ranks
from rlk.nn.products import row_linear_of_ranks
from rlk.nn.ranks import Ranks
from rlk.runtime.call.collective import SHARE, Share


def ranks() -> Ranks:
    """Return the ranks of vLLM's tensor parallelism."""
    found = get_tp_group()
    return Ranks(found.device_group, found.world_size, found.rank_in_group)


@computation(
    "linear.of_ranks",
    "RowParallelLinear.forward",
    "(Tensor x, Tensor weight, Tensor? bias, int leaves) -> Tensor",
    lambda x, weight, *_: x.new_empty((*x.shape[:-1], weight.shape[0])),
)
def row_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, leaves: int) -> torch.Tensor:
    """Return x weight^T + bias, whose contraction ranks share, on all of them.

    x [T, K / ranks] and weight [N, K / ranks] are a rank's own; bias [N] is whole. A rank sums its leaves,
    ranks continue the pairwise tree in f32, bias is added, and the sum is rounded once.
    """
    return row_linear_of_ranks(x, weight, bias, leaves, ranks())


@computation(
    "embedding.of_ranks", "VocabParallelEmbedding.forward", "(Tensor ids, Tensor weight) -> Tensor",
    lambda ids, weight: weight.new_empty((*ids.shape, weight.shape[1])),
)  # fmt: skip
def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return rows of a weight of which each rank has an equal range, on all of them."""
    return embedding_of_ranks(ids, weight, ranks())


class RlkRowParallelLinear(RowParallelLinear):
    """A row-parallel layer of several ranks: vLLM's adds the rounded products of ranks."""

    def forward(self, input_: torch.Tensor) -> Any:
        bias = None if self.skip_bias_add else self.bias
        y = row_linear(input_, self.weight, bias, self.quant_method.leaves)
        return (y, self.bias if self.skip_bias_add else None) if self.return_bias else y


class RlkVocabParallelEmbedding(VocabParallelEmbedding):
    """An embedding of several ranks."""

    def forward(self, input_: torch.Tensor) -> torch.Tensor:
        return embedding(input_, self.weight)


def over_ranks(module: Any) -> bool:
    """Return whether ranks share a layer's weights, whatever computes it."""
    return (getattr(module, "tp_size", None) or 1) > 1


def adopt(module: Any) -> None:
    """Let rlk sum a layer of a loaded model over the ranks that share it, and mark its shares of weights."""
    if not over_ranks(module):
        return
    rows = isinstance(module, RowParallelLinear)
    for name, p in module.named_parameters(recurse=False):
        if not rows or name == "weight":
            setattr(p, SHARE, Share(ranks().group, 1 if rows else 0))
    if type(module) is RowParallelLinear and module.input_is_parallel and module.reduce_results:
        module.__class__ = RlkRowParallelLinear
    elif type(module) is VocabParallelEmbedding:
        module.__class__ = RlkVocabParallelEmbedding


def is_ours(module: Any) -> bool:
    """Return whether rlk sums a layer over ranks, or nothing of it is summed."""
    theirs = RowParallelLinear if isinstance(module, RowParallelLinear) else VocabParallelEmbedding
    return type(module) is not theirs or not over_ranks(module)


def refusals(config: Any, model: ModelConfig) -> list[tuple[str, str]]:
    """Return what of a VllmConfig with tensor parallelism, and of its model, ranks cannot share."""
    size = config.parallel_config.tensor_parallel_size
    if size == 1:
        return []
    found = []
    over = f"tensor parallelism over {size} ranks"
    if model.leaves % size:
        instead = f'use a multiple of {size} for trainer and engine: "rlk_leaves" in config.json'
        found.append((f"{over} of a model with leaves={model.leaves}", instead))
    for name in ("num_attention_heads", "num_key_value_heads"):
        if (heads := getattr(model, name)) % size:
            found.append((f"{over} of {name}={heads}", f"use a divisor of {heads}"))
    if config.lora_config is not None:
        found.append((f"adapters with {over}", "merge them into the weights, or use 1"))
    return found
