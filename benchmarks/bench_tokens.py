"""Benchmark of memory-bound operators on tokens and pairs, beside a copy of the same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import rlk
from benchmarks import peers
from benchmarks.harness import Case, Checked, main
from benchmarks.identity import describe
from benchmarks.turns import aside
from rlk.testing.bits import differing

TOKENS, FEW = 2**22, 2**13
SEQUENCES = 64
HEADS, WIDTH = 8, 128
VOCABULARY = FEW // HEADS * WIDTH


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of an operator, and the tensors that it reads, where these are not all that it is given."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    reads: tuple[Tensor, ...] = ()


def calls(device: str, tokens: int) -> dict[str, Call]:
    """Return a call of each operator on so many tokens, the same numbers on every device.

    A name may go on with an option, whose value tells it from the other call of the operator.
    """
    torch.manual_seed(0)
    layout, short = packed(device, tokens), packed(device, tokens // HEADS)
    a, b, c, d = torch.randn(4, tokens).to(device)
    x, y = torch.randn(2, tokens // HEADS, WIDTH).bfloat16().to(device)
    q, k = (t.view(-1, HEADS, WIDTH) for t in (x, y))
    angle = torch.randn(WIDTH, WIDTH // 2)  # turned on the host: devices differ in the last bits of a cosine
    cos, sin = angle.cos().to(device), angle.sin().to(device)
    positions = torch.arange(len(q), device=device) % WIDTH
    ids = torch.randint(len(x), (len(x),)).to(device)
    logits, counts = x.view(HEADS, -1), (y.view(HEADS, -1) > 1).to(torch.int32)
    student, teacher = x.view(-1, VOCABULARY), y.view(-1, VOCABULARY)
    penalties = rlk.ops.Penalties(counts, repetition=1.1, presence=0.2)
    offsets = torch.arange(0, tokens + 1, tokens // SEQUENCES, device=device)
    groups = torch.arange(0, SEQUENCES + 1, 16, device=device)
    of_layout = {"layout": layout}
    return {
        "ratio_kl": Call((a, b, c), {}),
        "value_loss": Call((a, b), {**of_layout, "old_values": c}, (a, b, c, layout.order, layout.active)),
        "nll_loss": Call((a,), of_layout, (a, layout.order, layout.active)),
        "sequence_logp": Call((a,), of_layout, (a, layout.order, layout.active)),
        "entropy_bonus": Call((a,), {**of_layout, "coef": 0.01}, (a, layout.order, layout.active)),
        "gae": Call((a, b), {**of_layout, "gamma": 1.0, "lam": 0.95}, (a, b, layout.active)),
        "optimal_token_baseline": Call((a, -b.abs(), c.abs(), groups), of_layout, (a, b, c, layout.active)),
        "scatter_rewards": Call((a[:SEQUENCES], offsets), of_layout, (layout.active,)),
        "pack": Call((x.view(SEQUENCES, -1, WIDTH), short), {}),
        "unpack": Call((x, rlk.Layout.padded(short.lengths, len(x) // SEQUENCES)), {}),
        "preference_loss": Call((a, b, c, d), {}),
        "kto_loss": Call((a, b, d > 0), {}),
        "penalize": Call((logits, penalties), {}, (logits, counts)),
        "jsd_loss": Call((student, teacher), {"math": "sm90"}),
        "swiglu": Call((x, y), {}),
        "geglu": Call((x, y), {}),
        "clamped_swiglu": Call((x,), {}),
        "rope": Call((q, k, cos, sin), {"position_ids": positions}, (q, k)),
        "rope, rotary_dim": Call(
            (q, k, cos[:, : WIDTH // 4], sin[:, : WIDTH // 4]),
            {"position_ids": positions, "rotary_dim": WIDTH // 2},
            (q, k),
        ),
        "embedding": Call((ids, x), {}),
    }


def packed(device: str, tokens: int) -> rlk.Layout:
    """Return sequences of one length."""
    edges = torch.arange(0, tokens + 1, tokens // SEQUENCES, device=device)
    return rlk.Layout.packed(edges, tokens=tokens)


def operator(name: str) -> Any:
    """Return the operator of a call."""
    return getattr(rlk.ops, name.partition(",")[0])


def results(name: str, call: Call) -> list[Tensor]:
    """Run a call and return its tensors."""
    made = operator(name)(*call.args, **call.options)
    parts: Iterable[Any] = (made,) if isinstance(made, Tensor) else made
    return [part for part in parts if isinstance(part, Tensor)]


def check(name: str) -> Checked:
    """Compare a call on few tokens with the oracle's."""
    got = results(name, calls("cuda", FEW)[name])
    with aside():
        want = results(name, calls("cpu", FEW)[name])
    return Checked(None, sum(differing(g.cpu(), w) for g, w in zip(got, want, strict=True)))


def case(name: str, call: Call) -> Case:
    """Forward, beside a copy of what is read and written."""
    op, (_, _, option) = operator(name), name.partition(", ")
    reads = call.reads or tuple(x for x in call.args if isinstance(x, Tensor))
    moved = sum(x.nbytes for x in (*reads, *results(name, call)))
    there, to = (torch.empty(moved // 2, dtype=torch.int8, device="cuda").random_() for _ in range(2))
    return Case(
        op=op.__name__,
        passes="fwd",
        shape={"T": TOKENS, **({option: call.options[option]} if option else {})},
        rlk=lambda: peers.without_grad(lambda: op(*call.args, **call.options)),
        peers={"torch_copy": lambda: peers.without_grad(lambda: to.copy_(there))},
        moved=float(moved),
        reference="torch_copy",
        check=lambda: check(name),
        describe=lambda: describe(op.explain(*call.args, **call.options)),
        dtype=str(reads[0].dtype).removeprefix("torch."),
    )


def cases() -> Iterator[Case]:
    """Yield a row for each operator."""
    for name, call in calls("cuda", TOKENS).items():
        yield case(name, call)


if __name__ == "__main__":
    main("tokens", cases)
