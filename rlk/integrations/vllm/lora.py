"""LoRA adapters of vLLM's linear layers: two products by rlk for each adapter that is loaded."""

from __future__ import annotations

from math import frexp
from typing import Any

import torch
from vllm.lora import model_manager
from vllm.lora.punica_wrapper.punica_base import PunicaWrapperBase

from rlk import ops
from rlk.integrations.tensors import no_form
from rlk.integrations.vllm.computations import computation
from rlk.integrations.vllm.hooks import PEER
from rlk.integrations.vllm.layers import current

EMBEDDINGS = ("embed_tokens", "lm_head")
_theirs = model_manager.get_punica_wrapper


@computation(
    "lora", "PunicaWrapperBase.add_lora_linear",
    "(Tensor(a!) y, Tensor x, Tensor[] a, Tensor[] b, int[] sizes, Tensor owner) -> ()",
    lambda *_: None,
)  # fmt: skip
def add_adapters(
    y: torch.Tensor,
    x: torch.Tensor,
    a: list[torch.Tensor],
    b: list[torch.Tensor],
    sizes: list[int],
    owner: torch.Tensor,
) -> None:
    """Add (x a^T) b^T to the columns of y [T, N], in place: to each row that of its adapter.

    a: [adapters, 1, rank, K] and b: [adapters, 1, N_i, rank] of each weight, of N_i rows; sizes: N_i.
    owner: int64 [T], the adapter of each row, -1 for none. Both products and the sum are rounded, as peft
    does. Ranks that are padded with zeros keep their bits.
    """
    others = [(owner != adapter)[:, None] for adapter in range(len(a[0]))]
    for column, first, second in zip(y.split(sizes, -1), a, b, strict=True):
        for adapter, rows in enumerate(others):
            added = ops.matmul(ops.matmul(x, first[adapter, 0]), second[adapter, 0])
            # -0.0, not 0.0: x + -0.0 == x for every x, including x = -0.0
            column.add_(added.masked_fill_(rows, -0.0))


class Adapters(PunicaWrapperBase):
    """The adapter of each token, and what it adds to a linear layer."""

    def __init__(self, max_num_batched_tokens: int, max_batches: int, device: Any, **kwargs: Any) -> None:
        PunicaWrapperBase.__init__(self, max_num_batched_tokens, max_batches, device)
        self._token_lora_indices.fill_(-1)

    def update_metadata(
        self, mapping: Any, lora_index_to_id: list[int | None], max_loras: int, vocab_size: int, **kwargs: Any
    ) -> None:
        """Note the adapters of a step's tokens."""
        self._update_base_metadata(mapping, lora_index_to_id, max_loras, vocab_size)

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **kwargs: Any,
    ) -> None:
        """Add adapters to the result of a linear layer, in place, with the bits of `add_adapters`.

        y: [T, N], x: [T, K], of the model's dtype. lora_a_stacked: [adapters, 1, rank, K] and lora_b_stacked:
        [adapters, 1, N_i, rank] for each merged weight. output_slices: N_i, whose sum is N. Raises
        UnsupportedError for a scale but 1: vLLM multiplies B by lora_alpha / r when it loads an adapter.
        """
        if scale != 1.0:
            raise no_form(PEER, f"add_lora_linear(scale={scale})", "leave it at 1.0")
        owner = self._token_lora_indices[: x.shape[0]]
        add_adapters(y, x, list(lora_a_stacked), list(lora_b_stacked), list(output_slices), owner)

    def add_lora_embedding(self, *args: Any, **kwargs: Any) -> None:
        """Add nothing: adapters of embeddings are refused when they are loaded."""

    add_lora_logits = add_shrink = add_expand = add_lora_embedding


def adapters(*args: Any, **kwargs: Any) -> PunicaWrapperBase:
    """Return what adds adapters to a model that is being made: vLLM's own for another quantization."""
    return _theirs(*args, **kwargs) if current() is None else Adapters(*args, **kwargs)


def use(runner: Any) -> None:
    """Let a model runner refuse adapters that rlk does not compute, when they are loaded."""
    manager = runner.lora_manager
    load = manager._load_adapter

    def checked(request: Any) -> Any:
        made = load(request)
        check_adapter(made.loras)
        return made

    manager._load_adapter = checked


def check_adapter(layers: dict[str, Any]) -> None:
    """Raise UnsupportedError for weights of an adapter, by layer, that rlk does not compute as peft does."""
    for name, layer in layers.items():
        if name.rpartition(".")[2] in EMBEDDINGS:
            raise no_form(
                PEER, f"an adapter of {name}", f"leave {', '.join(EMBEDDINGS)} out of target_modules"
            )
        # vLLM multiplies b by it, peft the product: one rounding unless it is exact
        if frexp(layer.scaling)[0] != 0.5:
            what = f"an adapter whose lora_alpha / r is {layer.scaling}"
            raise no_form(PEER, what, "choose a power of two")


def register() -> None:
    """Let vLLM make these in place of its own."""
    model_manager.get_punica_wrapper = adapters
