"""Comparison of a model's views, bit for bit: training, scoring, padding, prefill, decoding; and controls.

`python -m benchmarks.model_views --shape qwen3-8b --layers 4 --tokens 200000 --seconds 500 --out FILE` gives
a model random weights, takes a digest of each token's f32 logits over the whole vocabulary in a packed pass
with gradients, and counts the tokens whose digest is another one in each view. Rows of controls must differ.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import PACKAGES
from benchmarks.rows import text_of
from rlk.nn import CausalLM, ModelConfig
from rlk.tune.record import versions
from rlk.verify.controls import split_k, with_leaves, with_product
from rlk.verify.models import TINY, randomize
from rlk.verify.views import (
    ROWS,
    Run,
    Sizes,
    View,
    checkpointed,
    decoded,
    gradients,
    hit,
    one_by_one,
    other_batches,
    padded,
    prefilled,
    random_sequences,
    train,
    without_logits,
)


def _shape(kind: str, hidden: int, inner: int, heads: int, keys: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": kind, "hidden_size": hidden, "intermediate_size": inner, "hidden_act": "silu",
        "num_attention_heads": heads, "num_key_value_heads": keys, "head_dim": 128, "rms_norm_eps": 1e-6,
        "vocab_size": 151936, "rope_theta": 1e6, "num_hidden_layers": 36, "tie_word_embeddings": False,
        **more,
    }  # fmt: skip


SHAPES = {
    "qwen3-8b": _shape("qwen3", 4096, 12288, 32, 8),
    "qwen3-0.6b": _shape("qwen3", 1024, 3072, 16, 8, num_hidden_layers=28, tie_word_embeddings=True),
    "llama-3-8b": _shape(
        "llama",
        4096,
        14336,
        32,
        8,
        num_hidden_layers=32,
        vocab_size=128256,
        rope_theta=5e5,
        rms_norm_eps=1e-5,
    ),
    "tiny": {"model_type": "qwen3", **TINY},
}


# --- the run ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A row: its name, its view, a share of the time, the most tokens (None: one pass over all)."""

    case: str
    view: View
    share: float = 1.0
    most: int | None = None
    control: bool = False
    counts: str = "tokens"


def cases(run: Run, few: int) -> Iterator[Asked]:
    """Yield what is compared. few: tokens of decodes and controls, each."""
    yield Asked("packed, other batches", other_batches)
    yield Asked("one by one", one_by_one)
    yield Asked("padded", padded)
    yield Asked("gradient checkpointing", checkpointed)
    yield Asked("gradients, checkpointing", gradients, 0.5, counts="rows of gradients")
    yield Asked("log-probs without logits", without_logits)
    yield Asked("prefill, chunked", prefilled, 1.5)
    yield Asked("prefill, prefix hit", hit)
    graphs = (False, True) if run.device.type == "cuda" else (False,)
    for graph in graphs:
        for batch in run.sizes.batches:
            view = partial(decoded, batch=batch, graph=graph)
            yield Asked(f"decode{', graph' * graph}, batch {batch}", view, 1.5, few)
    batch = sorted(run.sizes.batches)[len(run.sizes.batches) // 2]
    view = partial(decoded, batch=batch, graph=graphs[-1], empty=-(-batch // 4))
    yield Asked(f"decode{', graph' * graphs[-1]}, {-(-batch // 4)} of {batch} slots empty", view, 1.0, few)
    yield Asked(f"decode, batch {batch}, preempted", partial(decoded, batch=batch, preempt=True), 1.0, few)
    linear = torch.nn.functional.linear
    for name, changed in (
        ("one product by torch", partial(with_product, product=linear)),
        ("one product by torch, split-K", partial(with_product, product=split_k)),
        ("leaves 8", partial(with_leaves, leaves=8)),
    ):
        yield Asked(f"control: {name}", changed, 0.5, few, control=True)


def measured(run: Run, asked: Asked, deadline: float) -> dict[str, Any]:
    """Return the row of a case: what was compared until the deadline, at least once."""
    began, tokens, unequal = time.monotonic(), 0, 0
    for wrong in asked.view(run):
        tokens, unequal = tokens + len(wrong), unequal + int(wrong.sum())
        if time.monotonic() > deadline or (asked.most is not None and tokens >= asked.most):
            break
    c = run.model.config
    return {
        "op": "causal_lm",
        "pass": "fwd+bwd" if asked.view is gradients else "fwd",
        "shape": {"model": c.model_type, "hidden": c.hidden_size, "layers": c.num_hidden_layers},
        "case": asked.case,
        asked.counts.replace(" ", "_"): tokens,
        "unequal": unequal,
        "control": asked.control,
        "holds": (unequal > 0) if asked.control else (unequal == 0),
        "seconds": round(time.monotonic() - began, 1),
    }


def random_model(shape: str, layers: int | None, longest: int, device: str) -> CausalLM:
    """Return a model with random weights, whose logits spread by about 4."""
    given = SHAPES[shape] | {"max_position_embeddings": longest}
    if layers is not None:
        given["num_hidden_layers"] = layers
    model = CausalLM(ModelConfig.of(given), device=device)
    randomize(model)
    return model


def compare(
    shape: str, layers: int | None, sizes: Sizes, seconds: float, few: int, told: Callable[[Any], None]
) -> dict[str, Any]:
    """Compare all views within a time; tell the record after each row."""
    end = time.monotonic() + seconds
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = random_model(shape, layers, sizes.longest, device)
    run = Run(model, sizes, random_sequences(sizes, model.config.vocab_size, device), random.Random(2))
    todo = list(cases(run, few))
    left = sum(x.share for x in todo)
    train(run, time.monotonic() + (end - time.monotonic()) * 2.0 / (2.0 + left))
    with torch.no_grad():
        sigma = float(model.logits(model(run.sequences[0])[-ROWS:]).std())
    record: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "versions": versions(PACKAGES),
        "command": " ".join(["python -m benchmarks.model_views", *sys.argv[1:]]),
        "numerics_id": model.numerics_id(device),
        "trained_tokens": sum(map(len, run.want)),
        "logits_sigma": round(sigma, 2),
        "rows": [],
    }
    for asked in todo:
        now = time.monotonic()
        row = measured(run, asked, now + (end - now) * asked.share / left)
        row["shape"]["model"] = shape
        left -= asked.share
        record["rows"].append(row)
        told(record)
    return record


def main(args: Sequence[str] | None = None) -> int:
    """Run from the command line; exit with 1 if a view differs, or a control does not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-8b")
    parser.add_argument("--layers", type=int, help="default: those of the model")
    parser.add_argument("--tokens", type=int, default=200_000, help="of training; views repeat them")
    parser.add_argument("--few", type=int, default=20_000, help="tokens of each decode and control")
    parser.add_argument("--seconds", type=float, default=500.0, help="all of it takes about as long")
    parser.add_argument("--longest", type=int, default=2048, help="tokens of the longest sequence")
    parser.add_argument("--call", type=int, default=8192, help="tokens of a call in training")
    parser.add_argument("--steps", type=int, default=64, help="tokens of a decode")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64], help="sequences of a decode")
    parser.add_argument("--page", type=int, default=64, help="slots of a page")
    parser.add_argument("--out", type=Path, required=True, help="file of the record")
    given = parser.parse_args(args)
    if given.longest < given.steps:
        parser.error(f"--longest {given.longest} is below --steps {given.steps}")
    sizes = Sizes(given.tokens, given.call, given.longest, given.steps, tuple(given.batches), given.page)

    def told(record: dict[str, Any]) -> None:
        row = record["rows"][-1]
        counts = {k: v for k, v in row.items() if k not in ("op", "shape", "case")}
        print(f"{row['case']}: {counts}", flush=True)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text_of(record), encoding="utf-8")

    record = compare(given.shape, given.layers, sizes, given.seconds, given.few, told)
    compared_tokens = sum(row.get("tokens", 0) for row in record["rows"] if not row["control"])
    wrong = [row["case"] for row in record["rows"] if not row["holds"]]
    print(f"{compared_tokens} tokens compared, logits spread by {record['logits_sigma']}; wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
