"""The smallest setting of the GRPO example."""

from __future__ import annotations

from examples.grpo.setting import Demonstrations, Shape, Size

TINY = Size(
    Shape(layers=1, hidden=32, inner=32, heads=2, key_heads=1, head_dim=16),
    Demonstrations(steps=60, batch=32, rate=5e-3, mistakes=0.6, levels=(1,)),
    kinds=("sort",), levels=(1,), steps=2, prompts=2, group=4, minibatches=2, micro=4, rate=2e-3,
)  # fmt: skip
