"""Tables of rotary embeddings, made once for a model and shared by its layers."""

from __future__ import annotations

import torch

from rlk import ops
from rlk.nn.config import Rope


class RotaryTables:
    """cos and sin of one kind of layer, [positions, R / 2], for each device and dtype asked for.

    They are made in f32 by `rlk.ops.rope_table` and rounded once to the dtype, as transformers does.
    """

    def __init__(self, rope: Rope, positions: int) -> None:
        self.rope, self.positions = rope, positions
        self._made: dict[tuple[torch.device, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def of(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin on the device and in the dtype of a tensor."""
        key = (x.device, x.dtype)
        found = self._made.get(key)
        if found is None:
            made = ops.rope_table(
                self.positions, self.rope.dim, base=self.rope.theta, scaling=dict(self.rope.scaling)
            )
            found = self._made[key] = tuple(t.to(x.device, x.dtype) for t in made)  # type: ignore[assignment]
        return found  # type: ignore[return-value]


def tables_of(ropes: tuple[Rope, ...], positions: int) -> tuple[RotaryTables, ...]:
    """Return the tables of each layer; layers of equal angles share theirs."""
    made = {rope: RotaryTables(rope, positions) for rope in ropes}
    return tuple(made[rope] for rope in ropes)
