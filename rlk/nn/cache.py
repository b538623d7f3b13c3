"""Pages of keys and values of a model's layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rlk.nn.config import ModelConfig
from rlk.runtime.binding.checks import integer


@dataclass(frozen=True, slots=True, eq=False)
class PagedCache:
    """Keys and values of all layers, [layers, pages, page_size, key heads, head_dim] each."""

    keys: torch.Tensor
    values: torch.Tensor

    @staticmethod
    def empty(
        layers: int,
        pages: int,
        page_size: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> PagedCache:
        """Allocate pages for all layers.

        Their content is undefined until it is written, and changes no result before. Raises LaunchError.
        """
        integer("PagedCache.empty", "pages", pages, 1, 2**31 - 1)
        integer("PagedCache.empty", "page_size", page_size, 1, 2**31 - 1)
        shape = (layers, pages, page_size, heads, head_dim)
        return PagedCache(*(torch.empty(shape, dtype=dtype, device=device) for _ in range(2)))

    @staticmethod
    def page_bytes(config: ModelConfig, page_size: int, dtype: torch.dtype) -> int:
        """Return the bytes of a page: keys and values of page_size tokens in all layers."""
        elements = config.num_hidden_layers * page_size * config.num_key_value_heads * config.head_dim
        return 2 * elements * dtype.itemsize

    @property
    def pages(self) -> int:
        """Return the number of pages of a layer."""
        return self.keys.shape[1]

    @property
    def page_size(self) -> int:
        """Return the number of slots of a page."""
        return self.keys.shape[2]

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pages of keys and values of a layer, [pages, page_size, key heads, head_dim] each."""
        return self.keys[index], self.values[index]
