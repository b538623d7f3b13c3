"""The targets, their warp widths, and the exp2 that their softmax folds use."""

from __future__ import annotations

from dataclasses import dataclass

from rlk.errors import Code, UnsupportedError
from rlk.ir.nodes import MathModel


@dataclass(frozen=True, slots=True)
class Target:
    """A device class, spelled as compilers spell it.

    softmax: the model of exp2 in softmax folds (a validated hardware function, or the portable one).
    cores: SMs (or CUs) of the largest part, for grids that fill the device once.
    shared: KiB of on-chip memory that one program may use. descriptors: whether the hardware has TMA.
    """

    name: str
    vendor: str
    warp: int
    cores: int
    softmax: MathModel = MathModel.PORTABLE
    shared: int = 64
    descriptors: bool = False

    @property
    def folder(self) -> str:
        """The name in paths and wheels: sm_90a is sm90a there."""
        return self.name.replace("_", "")


_TARGETS = (
    Target("sm_90a", "nvidia", 32, 132, MathModel.SM90, shared=227, descriptors=True),
    Target("sm_80", "nvidia", 32, 108, shared=163),
    Target("sm_86", "nvidia", 32, 84, shared=99),
    Target("sm_89", "nvidia", 32, 142, shared=99),
    Target("sm_100a", "nvidia", 32, 148, shared=227, descriptors=True),
    Target("sm_120a", "nvidia", 32, 170, shared=99, descriptors=True),
    Target("gfx90a", "amd", 64, 110),
    Target("gfx942", "amd", 64, 304),
    Target("gfx950", "amd", 64, 256, shared=160),
)
TARGETS = {t.name: t for t in _TARGETS}
HOPPER = "sm_90a"


def target(name: str) -> Target:
    """Return a target by name; raise UnsupportedError with the known ones."""
    if name not in TARGETS:
        raise UnsupportedError(
            Code.UNSUPPORTED,
            what="this device",
            backend="triton",
            target=name,
            alternatives=", ".join(TARGETS),
        )
    return TARGETS[name]
