"""Results of every rank of a mesh: `python -m dtensor_cases BACKEND WORLD RANK FOLDER` writes one file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rank_cases import Found, member, refused
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh

from rlk import Layout, ops

ROWS, V = 5, 40
Place = Callable[..., torch.Tensor]
"""Puts a tensor where a case wants it; rows=True: as the rows are."""


def scored(x: torch.Tensor, ids: torch.Tensor) -> Any:
    return ops.logp(x, ids, needs=("logp", "entropy"), temperature=0.7).logp


def logits(x: torch.Tensor, at: Place, call: Callable[..., Any] = scored) -> Any:
    return call(x, at(torch.arange(ROWS, device=x.device), rows=True))


def norm(x: torch.Tensor, at: Place) -> Any:
    return ops.rms_norm(x, at(torch.linspace(1, 2, V, device=x.device)))


def head(x: torch.Tensor, at: Place) -> Any:
    weight = torch.linspace(-1, 1, 7 * V, device=x.device).view(7, V).sin().bfloat16()
    return ops.linear_logp(x.bfloat16(), at(weight), at(torch.arange(ROWS, device=x.device), rows=True)).logp


def product(x: torch.Tensor, at: Place) -> Any:
    weight = torch.linspace(-1, 1, 8 * V, device=x.device).view(8, V).sin().bfloat16()
    return ops.matmul(x.bfloat16(), at(weight), leaves=8, grad_leaves=2)


def drawn(x: torch.Tensor, at: Place) -> Any:
    who = at(torch.arange(ROWS, device=x.device), rows=True)
    token = ops.sample(x, seed=who + 9, request_id=who, position=who).token
    return ops.logp(x, token).logp


def positions(x: torch.Tensor, at: Place) -> Any:
    table, where = torch.linspace(-1, 1, 36, device=x.device).view(9, 4), torch.arange(ROWS, device=x.device)
    q, _ = ops.rope(
        x.view(ROWS, 5, 8), x.view(ROWS, 5, 8), table, at(table), position_ids=at(where, rows=True)
    )
    return q


def loss(x: torch.Tensor, at: Place) -> Any:
    offsets = torch.tensor([0, 3, ROWS], device=x.device)
    old = torch.zeros(ROWS, device=x.device)
    advantages = torch.tensor([1.0, -0.3], device=x.device)
    layout = Layout.packed(offsets, tokens=ROWS)
    return ops.policy_loss(x[:, 0].contiguous(), at(old, rows=True), at(advantages), layout=layout).loss


ALONE = {f.__name__: f for f in (logits, norm, head, product, drawn, positions)}
EVERY = {**ALONE, "loss": loss}


def stepped(call: Callable[..., Any], x: torch.Tensor, at: Place) -> list[torch.Tensor]:
    """Return results and the gradient of x, and check that they lie as x does."""
    leaf = at(x, rows=True).detach().requires_grad_()
    made = call(leaf, at)
    slope = torch.linspace(-1, 1, made.numel(), device=x.device).view(made.shape)
    made.backward(at(slope, rows=made.dim() > 0))
    found = [made.detach(), leaf.grad]
    for each in found:
        if isinstance(leaf, DTensor):
            assert isinstance(each, DTensor) and each.placements == leaf.placements
    return [each.full_tensor() if isinstance(each, DTensor) else each for each in found]


def everything(world: int, rank: int, device: torch.device) -> Found:
    mesh = init_device_mesh(device.type, (world,))
    x = torch.randn(ROWS, V, generator=torch.Generator().manual_seed(1)).to(device)

    def placed(how: Any, t: torch.Tensor, rows: bool = False) -> torch.Tensor:
        return distribute_tensor(t, mesh, [how if rows else Replicate()])

    def plain(t: torch.Tensor, rows: bool = False) -> torch.Tensor:
        return t

    found: Found = {"plain": {name: stepped(call, x, plain) for name, call in EVERY.items()}}
    copies, shards = partial(placed, Replicate()), partial(placed, Shard(0))
    found["copies"] = {name: stepped(call, x, copies) for name, call in EVERY.items()}
    found["shards"] = {name: stepped(call, x, shards) for name, call in ALONE.items()}
    compiled = partial(logits, call=torch.compile(scored, fullgraph=True, backend="aot_eager"))
    found["compiled"] = {"logits": stepped(compiled, x, shards)}
    found["another last row"] = {"logits": stepped(logits, torch.stack([*x[:-1], 2 * x[-1]]), shards)}
    gain = torch.ones(V, device=device)
    calls: dict[str, Callable[[], object]] = {
        "a sum over rows": lambda: loss(shards(x, rows=True), shards),
        "the gradient of all rows": lambda: ops.rms_norm(
            shards(x, rows=True), shards(gain).requires_grad_()
        ),
        "the gradient of a weight": lambda: ops.matmul(
            shards(x.bfloat16(), rows=True), copies(x.bfloat16()).requires_grad_()
        ),
        "a term": lambda: ops.rms_norm(DTensor.from_local(x, mesh, [Partial()]), gain),
        "a cut row": lambda: ops.rms_norm(placed(Shard(1), x, rows=True), gain),
        "a cut weight": lambda: ops.linear_logp(
            copies(x.bfloat16()), shards(x.bfloat16(), rows=True), copies(torch.arange(ROWS, device=device))
        ),
        "plain rows": lambda: ops.swiglu(shards(x, rows=True), x),
        "other rows": lambda: ops.swiglu(shards(x, rows=True), copies(x)),
    }  # fmt: skip
    found["errors"] = {name: refused(call) for name, call in calls.items()}
    return found


def prepare(world: int) -> None:
    """Import and trace, before there are ranks, what they compute of plain tensors, too."""
    x = torch.ones(ROWS, V)
    for call in (*EVERY.values(), partial(logits, call=torch.compile(scored, backend="aot_eager"))):
        stepped(call, x, lambda t, rows=False: t)
    torch._dynamo.reset()


def main(backend: str, world: int, rank: int, folder: Path) -> None:
    """Run everything as one rank, and write what it found."""
    with member(backend, world, rank, folder) as device:
        torch.save(everything(world, rank, device), folder / f"{rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
