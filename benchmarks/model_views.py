"""Comparison of a model's views at the sizes of known models: rows of `rlk verify`, as results.

`python -m benchmarks.model_views --shape qwen3-8b --layers 4 --tokens 200000 --seconds 500 --out FILE` gives
a model random weights, takes a digest of each token's f32 logits over the whole vocabulary in a packed pass
with gradients, and counts the tokens whose digest is another one in each view. Rows of controls must differ,
and a row that compares nothing does not hold.

Of a model of experts every call records routes, which are compared with those of training: no token of a
view may change experts, and some of the control whose routers are torch's products must.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import PACKAGES
from benchmarks.rows import text_of
from rlk.observe import TINY
from rlk.tune.record import versions
from rlk.verify import views
from rlk.verify.bench import Bench
from rlk.verify.contract import COMPILED, CONTROL, GRADIENTS, ROUTERS, Promise
from rlk.verify.models import random_subject
from rlk.verify.run import Row, promises, verify
from rlk.verify.views import Sizes

GROUPS = ("training", "prefill", "decode", "rollout")  # and controls: no second model beside a large one


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
    # 4 of its 48 layers, which are alike: all have experts
    "qwen3-30b-a3b": _shape(
        "qwen3_moe",
        2048,
        6144,
        32,
        4,
        num_hidden_layers=4,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        norm_topk_prob=True,
    ),
    "tiny": {"model_type": "qwen3", **TINY},
    "tiny-moe": {
        "model_type": "qwen3_moe",
        **TINY,
        "num_experts": 32,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
}
LAYERS = {"qwen3-30b-a3b": 48}
"""Of shapes with fewer layers than their model has by default, those of the model."""


def bench_of(shape: str, layers: int | None, sizes: Sizes, few: int) -> Bench:
    """Return a model of a shape with random weights. few: tokens of a decode and of a control."""
    given = SHAPES[shape] | {"max_position_embeddings": sizes.longest}
    if layers is not None:
        given["num_hidden_layers"] = layers
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    return Bench.of_sizes(random_subject(shape, "config", given, torch.bfloat16, device), sizes, few)


def warm(bench: Bench) -> None:
    """Compile the kernels of training, which would take the time that its share of tokens has."""
    run = bench.run
    group = next(run.groups(range(len(run.sequences)), run.sizes.call))
    run.digests(views.packed(run, group))


def _late(row: Promise) -> tuple[bool, bool, bool]:
    """Order rows: flips of a control first, then the others, and those that compile much.

    A run may be cut while it compiles, and torch's compiler may end the process.
    """
    return row.view == COMPILED, row.operator == GRADIENTS, not row.view.startswith(ROUTERS)


def row_of(row: Row, about: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a report as a row of results."""
    experts, more = row["experts"], {}
    if experts is not None:
        more = {
            "routed_tokens": experts["compared"],
            "flipped_tokens": experts["changed"],
            "flips_by_layer": experts["by_layer"],
        }
    flips = more.get("flipped_tokens", 0) > 0 or not row["view"].startswith(f"{ROUTERS}, split-K")
    return {
        "op": "causal_lm",
        "pass": "fwd+bwd" if row["operator"] == "gradients" else "fwd",
        "shape": {"model": about["model"], "hidden": about["hidden_size"], "layers": about["layers"]}
        | ({"of_layers": LAYERS[about["model"]]} if about["model"] in LAYERS else {}),
        "case": row["key"],
        row["unit"].replace(" ", "_"): row["compared"],
        "unequal": row["unequal"],
        **more,
        "control": row["group"] == CONTROL,
        "holds": row["status"] in ("holds", "detected", "no difference") and flips,
        "reason": row["reason"],
        "seconds": row["seconds"],
    }


def main(args: Sequence[str] | None = None) -> int:
    """Run from the command line; exit with 1 if a row does not hold."""
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
    parser.add_argument(
        "--skip", help="do not run rows whose names contain one of these, such as torch.compile,prefill"
    )
    parser.add_argument("--out", type=Path, required=True, help="file of the record: views.json in results")
    given = parser.parse_args(args)
    if given.longest < given.steps:
        parser.error(f"--longest {given.longest} is below --steps {given.steps}")
    start = time.monotonic()
    sizes = Sizes(given.tokens, given.call, given.longest, given.steps, tuple(given.batches), given.page)
    bench = bench_of(given.shape, given.layers, sizes, given.few)
    record: dict[str, Any] = {
        "versions": versions(PACKAGES),
        "command": " ".join(["python -m benchmarks.model_views", *(sys.argv[1:] if args is None else args)]),
        "rows": [],
    }
    about: dict[str, Any] = {}

    def begun(found: dict[str, Any]) -> None:
        about.update(found)
        record["device"], record["numerics_id"] = (found["identity"][x] for x in ("device", "numerics_id"))
        record["trained_tokens"], record["logits_sigma"] = found["tokens"], found["logits_sigma"]

    def told(row: Row) -> None:
        made = row_of(row, about)
        record["rows"].append(made)
        counts = {k: v for k, v in made.items() if k not in ("op", "shape", "case")}
        print(f"{made['case']}: {counts}", flush=True)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text_of(record), encoding="utf-8")

    rows = [p for p in promises(bench, GROUPS, stock=False) if bench.absent(p.needs) is None]
    skipped = [] if given.skip is None else given.skip.split(",")
    rows = [p for p in rows if not any(name in p.key for name in skipped)]
    rows.sort(key=_late)
    warm(bench)
    verify(bench, rows, seconds=given.seconds - (time.monotonic() - start), begun=begun, told=told)
    wrong = [row["case"] for row in record["rows"] if not row["holds"]]
    own = [row for row in record["rows"] if not row["control"]]
    compared = sum(row.get("tokens", 0) + row.get("drawn_tokens", 0) for row in own)
    said = (
        f"{record['trained_tokens']} tokens, {compared} of views, logits spread by {record['logits_sigma']}"
    )
    if bench.run.model.config.experts is not None:
        flips = [sum(row.get(name, 0) for row in own) for name in ("flipped_tokens", "routed_tokens")]
        said += f"; {flips[0]} of {flips[1]} changed experts"
    print(f"{said}; wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
