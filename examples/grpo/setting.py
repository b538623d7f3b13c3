"""The setting of a run: arm, sizes of model and batches, puzzles, rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from examples.grpo import task

Arm = Literal["rlk", "stock"]
ARMS: tuple[Arm, ...] = ("rlk", "stock")
EngineName = Literal["own", "vllm"]
ENGINES: tuple[EngineName, ...] = ("own", "vllm")
POSITIONS = 128  # more than the longest prompt and answer


class ExampleError(Exception):
    """An error that the user can mend: one message, of what was found and what to do."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3 model. Its vocabulary is that of the puzzles."""

    layers: int
    hidden: int
    inner: int
    heads: int
    key_heads: int
    head_dim: int

    def config(self) -> dict[str, Any]:
        """Return it as options of transformers' Qwen3Config."""
        return {
            "vocab_size": len(task.VOCABULARY), "hidden_size": self.hidden, "intermediate_size": self.inner,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads, "head_dim": self.head_dim,
            "max_position_embeddings": POSITIONS, "tie_word_embeddings": False, "pad_token_id": task.PAD,
            "bos_token_id": task.START, "eos_token_id": task.END,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """The supervised phase: `batch` puzzles a step with their answers, of which a share has a mistake."""

    steps: int
    batch: int
    rate: float
    mistakes: float
    levels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of model and batches, and the puzzles.

    A step draws `prompts` puzzles and answers each `group` times.

    minibatches: parts of these samples, with one optimizer step each; the first is on-policy. micro: samples
    of a forward pass. rate: of the first step; it falls to 0 in equal steps.
    """

    shape: Shape
    demonstrations: Demonstrations
    kinds: tuple[str, ...]
    levels: tuple[int, ...]
    steps: int
    prompts: int
    group: int
    minibatches: int
    micro: int
    rate: float

    @property
    def samples(self) -> int:
        """Return the number of samples of a step."""
        return self.prompts * self.group


TOY = Size(
    Shape(layers=1, hidden=64, inner=128, heads=4, key_heads=2, head_dim=16),
    Demonstrations(steps=500, batch=64, rate=3e-3, mistakes=0.6, levels=(1, 2)),
    kinds=("reverse", "sort"),
    levels=(1, 2),
    steps=50,
    prompts=8,
    group=8,
    minibatches=2,
    micro=16,
    rate=1e-3,
)
REAL = Size(
    Shape(layers=12, hidden=512, inner=1536, heads=8, key_heads=4, head_dim=64),
    Demonstrations(steps=600, batch=512, rate=6e-4, mistakes=0.3, levels=(1, 2, 3)),
    kinds=task.KINDS,
    levels=(2, 3, 4),
    steps=80,
    prompts=64,
    group=16,
    minibatches=2,
    micro=512,
    rate=1e-4,
)
SIZES = {"toy": TOY, "real": REAL}


@dataclass(frozen=True, slots=True)
class Setting:
    """A run: everything that its bits depend on beside the machine and the versions of packages.

    engine: of the rlk arm, that of `rlk.nn` or vLLM.
    """

    arm: Arm
    size: Size = TOY
    device: str = "cpu"
    seed: int = 0
    engine: EngineName = "own"

    @property
    def name(self) -> str:
        """Return the name of the run's folder."""
        return f"{self.arm}-seed{self.seed}"


def differences(found: dict[str, Any], wanted: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the entries in which two nested dicts differ, as "name: found, not wanted"."""
    made = []
    for name in {**found, **wanted}:
        a, b = found.get(name), wanted.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            made += differences(a, b, f"{prefix}{name}.")
        elif a != b:
            made.append(f"{prefix}{name} is {a}, not {b}")
    return made
