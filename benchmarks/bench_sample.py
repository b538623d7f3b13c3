"""Benchmark of sampling: top-k and top-p over the vocabulary, with both log-probs and the support."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import rlk
from benchmarks import peers
from benchmarks.harness import Bar, Case, Checked, main
from benchmarks.identity import describe, oracle
from benchmarks.peers import Launch
from rlk.ops.sampling import Sample
from rlk.testing.bits import differing

VOCABULARY = 151936
BARS = {64: Bar(0.15), 256: Bar(0.40)}
SAMPLED = [0, 5, -1]
OPTIONS: dict[str, dict[str, Any]] = {
    "top_k 50, top_p 0.9": {"top_k": 50, "top_p": 0.9},
    "top_p 0.9": {"top_p": 0.9},
    "temperature 0.7": {"temperature": 0.7},
    "plain": {},
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """logits[B, V], and who asks in each row."""

    logits: Tensor
    who: dict[str, Tensor]


def inputs(rows: int, vocabulary: int = VOCABULARY) -> Inputs:
    """Draw logits from N(0, 3^2)."""
    logits = (3.0 * torch.randn(rows, vocabulary, device="cuda")).bfloat16()
    index = torch.arange(rows, device="cuda")
    return Inputs(logits, {"seed": index + 7, "request_id": index, "position": index * 3})


def ours(x: Inputs, options: dict[str, Any]) -> Sample:
    """Return rlk's draw."""
    return rlk.ops.sample(x.logits, **x.who, **options)


def variants(x: Inputs, options: dict[str, Any]) -> dict[str, Callable[[], Launch]]:
    """Return, by peer, what builds its draw."""
    return {
        "torch_eager": lambda: lambda: peers.sorted_sample(x.logits, **options),
        "torch_compile": lambda: (
            peers.compiled(peers.sorted_sample, x.logits, *options.values())
            if list(options) == ["top_k", "top_p"]
            else peers.absent("timed for top-k with top-p alone")()
        ),
        "flashinfer": lambda: peers.flashinfer_sample(x.logits, **options),
    }


def case(x: Inputs, name: str) -> Case:
    """One batch with one set of options."""
    options, (rows, vocabulary) = OPTIONS[name], x.logits.shape
    return Case(
        op="sample",
        passes="fwd",
        shape={"B": rows, "V": vocabulary, "options": name},
        rlk=lambda: lambda: ours(x, options),
        peers=variants(x, options),
        moved=x.logits.nbytes,
        bar=BARS.get(rows) if (vocabulary, name) == (VOCABULARY, "top_k 50, top_p 0.9") else None,
        reference="torch_eager",
        check=lambda: check(x, options),
        describe=lambda: describe(rlk.ops.sample.explain(x.logits, **x.who, **options)),
    )


def check(x: Inputs, options: dict[str, Any]) -> Checked:
    """Compare sampled rows with float64 and with the oracle."""
    rows = torch.tensor(SAMPLED, device="cuda") % len(x.logits)
    made = ours(x, options)
    few = x.logits[rows]
    wide = rlk.ops.sample.reference(few, **options).gather(1, made.token[rows, None])[:, 0]
    who = {name: t[rows].cpu() for name, t in x.who.items()}
    want = oracle(rlk.ops.sample, x.logits.device, few, **who, **options)
    pairs = zip((*made[:3], *made.support), (*want[:3], *want.support), strict=True)
    differ = sum(differing(a[rows].cpu(), b) for a, b in pairs)
    return Checked(float((made.logp[rows].double() - wide).abs().max()), differ)


def cases() -> Iterator[Case]:
    """Yield the options for each batch."""
    for rows in BARS:
        x = inputs(rows)
        for name in OPTIONS:
            yield case(x, name)


if __name__ == "__main__":
    main("sample", cases)
