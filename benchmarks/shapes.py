"""Shapes to measure: rows of known cliffs, those of published models, and random ones around them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.harness import BEST_PEER, Bar
from benchmarks.rows import label

MODELS = Path(__file__).with_name("published.json")
"""Sizes of models, each from the config.json of the Hugging Face repository `source`.

`latent`: heads of queries and values differ in width (MLA). `expert_intermediate`: width of one expert, of
`experts`, `active` of which take a token. `norm_heads`: heads of q and k are normalised.
"""
ROWS = (1, 7, 64, 100, 300, 512, 1000, 1024, 4096, 5000, 8192, 16384, 65537)
MOST_BYTES = 6 * 2**30  # of the largest tensor of a row
CONTEXTS = (1024, 8192, 32768)
FOUND = Bar(1.15, BEST_PEER)
"""The ratio to the best peer above which a drawn row is a cliff."""

Shape = dict[str, int | str]


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes of a published model."""

    name: str
    source: str
    hidden: int
    heads: int
    key_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    gate: str | None
    norm_heads: bool = False
    latent: bool = False
    experts: int = 0
    active: int = 0
    expert_intermediate: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A call of an operator: its name, pass and shape, where the shape is from, and its bar."""

    op: str
    passes: str
    shape: Shape
    origin: str
    bar: Bar = FOUND
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Return the name that tells a row from any other, as results have it."""
        return label({"op": self.op, "pass": self.passes, "shape": self.shape, **self.options})


def recorded(row: Mapping[str, Any]) -> Row:
    """Return the row that a row of results was measured from."""
    options = {"autograd": row["autograd"]} if "autograd" in row else {}
    return Row(row["op"], row["pass"], row["shape"], row["origin"], Bar.of(row["bar"]), options)


@cache
def models() -> tuple[Model, ...]:
    """Return the published models."""
    return tuple(Model(**each) for each in json.loads(MODELS.read_text(encoding="utf-8")))


# --- rows of known cliffs ---


def fixed() -> Iterator[Row]:
    """Yield the rows of known cliffs, each with a bar of its own."""

    def row(op: str, passes: str, shape: Shape, factor: float, peer: str | None, **options: Any) -> Row:
        return Row(op, passes, shape, "known cliff", Bar(factor, peer), options)

    ragged, square = {"B": 16, "lengths": "1-8191"}, {"B": 4, "S": 4096}
    attention: tuple[tuple[Shape, tuple[int, int, int], float, float], ...] = (
        (ragged, (16, 2, 256), 1.15, 1.25),
        (square, (24, 8, 64), 1.12, 1.20),
        (square, (32, 8, 96), 1.12, 1.20),
        (square, (32, 8, 128), 1.08, 1.12),
        (ragged, (32, 8, 128), 1.08, 1.12),
    )
    for lengths, heads, forward, backward in attention:
        shape = {**lengths, **_heads(*heads)}
        yield row("varlen_attention", "fwd", shape, forward, "fa4_cute")
        yield row("varlen_attention", "bwd", shape, backward, "fa4_cute")
    yield row(
        "paged_attention", "fwd", {"B": 8, "S": 8192, "asks": 128, **_heads(32, 8, 128)}, 1.1, "fa4_cute"
    )
    for n, v in ((4096, 151937), (1024, 32001), (8192, 50257)):
        yield row("logp", "fwd", {"N": n, "V": v}, 0.95, "liger")
    for n in (64, 1):
        yield row("logp", "fwd", {"N": n, "V": 151936}, 1.1, "quack")
    yield row("logp", "fwd", {"N": 8192, "V": 128256}, 1.0, "quack")
    for m, n, k in ((37, 5120, 17408), (100, 6144, 2560), (512, 25600, 5120)):
        yield row("matmul", "fwd", {"M": m, "N": n, "K": k}, 1.05, "cublas_gemm")
    yield row("rms_norm", "bwd", {"M": 4096, "N": 16384}, 1.0, "torch_compile")
    yield row("rms_norm", "bwd", {"M": 524288, "N": 128}, 1.0, "torch_compile")
    yield row("rms_norm", "fwd", {"M": 65537, "N": 2560}, 1.0, "quack")
    yield row("swiglu", "fwd", {"M": 8192, "N": 12288}, 1.0, "torch_compile")
    for b, ms in ((64, 0.15), (256, 0.40)):
        yield row("sample", "fwd", {"B": b, "V": 151936, "options": "top_k 50, top_p 0.9"}, ms, None)
    yield row("policy_loss", "fwd", {"B": 2048, "L": 8192}, 1.18, "torch_copy")
    for autograd, ms in ((False, 0.009), (True, 0.015)):
        yield row("rms_norm", "host", {"M": 4, "N": 256}, ms, None, autograd=autograd)


def _heads(heads: int, key_heads: int, width: int) -> Shape:
    return {"Hq": heads, "Hk": key_heads, "d": width}


# --- drawn rows ---


def drawn(seed: int) -> Iterator[Row]:
    """Yield rows of all models and random ones around them, without end and in an order that a seed draws."""
    draw, seen = random.Random(seed), {row.label for row in fixed()}
    while True:
        made = [row for model in models() for row in (*_of_model(model, draw), *_around(model, draw))]
        draw.shuffle(made)
        for row in made:
            if row.label not in seen:
                seen.add(row.label)
                yield row


def _of_model(model: Model, draw: random.Random) -> Iterator[Row]:
    """Yield a row of each operator at the sizes of a model, for drawn numbers of rows."""
    rows = draw.choice(ROWS)
    yield from _of_vocabulary(model.vocabulary, model.hidden, draw, model.name)
    yield from _of_width(model.hidden, draw, model.name)
    for n, k in _products(model):
        yield Row("matmul", "fwd", {"M": draw.choice(ROWS[:-1]), "N": n, "K": k}, model.name)
    if model.experts:  # the mean share of an expert
        each = max(1, rows * model.active // model.experts)
        for n, k in (
            (2 * model.expert_intermediate, model.hidden),
            (model.hidden, model.expert_intermediate),
        ):
            yield Row("matmul", "fwd", {"M": each, "N": n, "K": k}, model.name)
        yield Row("matmul", "fwd", {"M": rows, "N": model.experts, "K": model.hidden}, model.name)
    if model.gate is not None:
        shape: Shape = {"M": draw.choice(ROWS), "N": model.expert_intermediate or model.intermediate}
        yield Row(model.gate, "fwd", shape, model.name)
    if model.norm_heads:
        shape = {"M": draw.choice(ROWS) * model.heads, "N": model.head_dim}
        yield Row("rms_norm", draw.choice(("fwd", "bwd")), shape, model.name)
    if not model.latent:
        yield from _attention(model, draw)


def _products(model: Model) -> tuple[tuple[int, int], ...]:
    """Return N and K of the products of a layer: q, k and v together, o, up (with gate), down."""
    heads = (model.heads + 2 * model.key_heads) * model.head_dim
    across = () if model.latent else ((heads, model.hidden), (model.hidden, model.heads * model.head_dim))
    up = (2 if model.gate else 1) * model.intermediate
    return (*across, (up, model.hidden), (model.hidden, model.intermediate))


def _of_vocabulary(vocabulary: int, hidden: int, draw: random.Random, origin: str) -> Iterator[Row]:
    for op, passes, names in (
        ("logp", "fwd", "NV"),
        ("logp", "fwd+bwd", "NV"),
        ("linear_logp", "fwd", "NDV"),
    ):
        rows = draw.choice([n for n in ROWS if 2 * n * vocabulary <= MOST_BYTES])
        sizes = {"N": rows, "D": hidden, "V": vocabulary}
        yield Row(op, passes, {name: sizes[name] for name in names}, origin)
    options = draw.choice(("top_k 50, top_p 0.9", "temperature 0.7"))
    yield Row(
        "sample", "fwd", {"B": draw.choice((1, 8, 64, 256)), "V": vocabulary, "options": options}, origin
    )


def _of_width(width: int, draw: random.Random, origin: str) -> Iterator[Row]:
    for passes in ("fwd", "bwd"):
        rows = draw.choice([n for n in ROWS if 2 * n * width <= MOST_BYTES])
        yield Row("rms_norm", passes, {"M": rows, "N": width}, origin)


def _attention(model: Model, draw: random.Random) -> Iterator[Row]:
    """Yield packed sequences, and decoding or a prefill over pages."""
    heads = _heads(model.heads, model.key_heads, model.head_dim)
    tokens = draw.choice((4096, 16384))
    each = draw.choice((512, 1024, 4096))
    equal: Shape = {"B": tokens // each if tokens > each else 1, "S": each}
    ragged: Shape = {"B": draw.choice((3, 16)), "lengths": f"1-{draw.choice((500, 4097, 8191))}"}
    yield Row("varlen_attention", draw.choice(("fwd", "bwd")), {**equal, **heads}, model.name)
    yield Row("varlen_attention", draw.choice(("fwd", "bwd")), {**ragged, **heads}, model.name)
    paged: Shape = {"B": draw.choice((1, 8, 64)), "S": draw.choice(CONTEXTS)}
    while 4 * int(paged["B"]) * int(paged["S"]) * model.key_heads * model.head_dim > 2 * MOST_BYTES:
        paged["S"] = int(paged["S"]) // 2
    asks: Shape = {"asks": 128} if draw.random() < 0.3 else {}
    yield Row("paged_attention", "fwd", {**paged, **asks, **heads}, model.name)


def _around(model: Model, draw: random.Random) -> Iterator[Row]:
    """Yield rows whose sizes are near those of a model: odd vocabularies, widths of any residue, any rows."""
    origin = f"near {model.name}"
    vocabulary = model.vocabulary + draw.randint(1, 255)
    rows = min(draw.randint(1, 9000), MOST_BYTES // (2 * vocabulary))
    yield Row("logp", draw.choice(("fwd", "fwd+bwd")), {"N": rows, "V": vocabulary}, origin)
    width = model.hidden + draw.choice((-8, 8, 64, 1, 3))
    yield Row("rms_norm", draw.choice(("fwd", "bwd")), {"M": draw.randint(1, 9000), "N": width}, origin)
    n, k = draw.choice(_products(model))
    shape: Shape = {
        "M": draw.randint(1, 9000),
        "N": n + 8 * draw.randint(-4, 4),
        "K": k + 8 * draw.randint(-4, 4),
    }
    yield Row("matmul", "fwd", shape, origin)
    if model.gate is not None:
        shape = {"M": draw.randint(1, 9000), "N": model.intermediate + draw.choice((8, 24, 1))}
        yield Row(model.gate, "fwd", shape, origin)
