"""Pages of keys and values of a model's layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
        """Allocate pages. Their content is undefined until it is written, and never read before."""
        shape = (layers, pages, page_size, heads, head_dim)
        return PagedCache(*(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)))

    @property
    def pages(self) -> int:
        """Return the number of pages of a layer."""
        return self.keys.shape[1]

    @property
    def page_size(self) -> int:
        """Return the number of slots of a page."""
        return self.keys.shape[2]

    def write(
        self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k and v [T, heads, head_dim] into slots [T] of a layer; return the layer's pages of both."""
        keys, values = self.keys[layer], self.values[layer]
        keys.view(-1, *keys.shape[2:]).index_copy_(0, slots, k)
        values.view(-1, *values.shape[2:]).index_copy_(0, slots, v)
        return keys, values
