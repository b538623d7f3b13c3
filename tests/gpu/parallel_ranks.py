"""Models on ranks with a device each: `python -m gpu.parallel_ranks BACKEND WORLD RANK FOLDER PART`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tensor_parallel_cases as cases
import torch
import torch.distributed as dist
from parallel_cases import MICRO_BATCHES, active, by_torch, loss_of, of_square, sharded, steps
from rank_cases import Found, member
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from rlk.nn import CausalLM
from rlk.nn.ranks import Ranks
from rlk.optim import AdamW, grad_norm
from rlk.parallel import agree, global_count, parallelize
from rlk.verify.ranks import rounded_first

LIMIT = timedelta(seconds=100)  # of one exchange: ranks compile their first calls at different times
SECONDS = 240  # of all ranks together, where no kernel is in the store yet
SIZES: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 64, "vocab_size": 4096, "max_position_embeddings": 1024,
}  # fmt: skip
LAYER = SIZES | {"rlk_leaves": 8, "num_hidden_layers": 1}
"""Of the model of data parallelism."""
WAYS = (("qwen3, tied", False), ("qwen3, tied", True), ("qwen2", True))
Device = torch.device | str


def tiny(name: str, device: Device) -> CausalLM:
    """Return a model of sizes that devices compute, whose bits show the order of its sums."""
    return cases.tiny(name, device, **SIZES)


def on_host(found: Any) -> Any:
    """Return results whose tensors are on the host."""
    if isinstance(found, torch.Tensor):
        return found.detach().cpu()
    if isinstance(found, dict):
        return {name: on_host(x) for name, x in found.items()}
    return type(found)(map(on_host, found)) if isinstance(found, list | tuple) else found


def trained(model: CausalLM) -> Found:
    """Return what a forward and a backward give, the norm, and the weights after a step of AdamW."""
    found = cases.training(model)
    found["stepped norm"] = grad_norm(model.named_parameters(), leaves=8)
    AdamW(model.parameters(), lr=1e-2, weight_decay=0.1).step()
    return found | {f"stepped {name}": p for name, p in model.named_parameters()}


def tensor_parallel(group: dist.ProcessGroup, device: Device) -> Found:
    """Return what two ranks find that share weights."""
    found: Found = {}
    for name, sp in WAYS:
        model = parallelize(tiny(name, device), group, sp=sp)
        if sp:
            model.gradient_checkpointing_enable()
        found[cases.way(name, 2, sp)] = trained(model)

    def of(sequence: bool = False) -> Ranks:
        return Ranks(group, group.size(), group.rank(), sequence)

    calls: dict[str, Callable[[], Found]] = {
        "rollout": lambda: cases.rollout(parallelize(tiny("qwen3, tied", device), group)),
        "products": lambda: cases.products(of(), device),
        "embedded": lambda: cases.embedded(of(), device),
        "norms": lambda: cases.norms(of(sequence=True), device),
    }
    if find_spec("transformers") is not None:
        made = partial(cases.patched_of, "qwen3, tied", device, **SIZES)
        calls["patched"] = lambda: cases.trained_patched(parallelize(made(), group, sp=True))
    found |= {name: call() for name, call in calls.items()}
    with rounded_first():
        found["rounded first"] = cases.training(parallelize(tiny("qwen3, tied", device), group))
    return found


def data_parallel(rank: int, world: int, device: torch.device) -> Found:
    """Return what two ranks find that share micro-batches, by DDP and by FSDP2."""
    mesh = init_device_mesh(device.type, (world,))
    mine = loss_of(device, **LAYER)
    agree(mine.model, micro_batches=MICRO_BATCHES)
    tokens = global_count(sum(active(n) for n in range(rank, MICRO_BATCHES, world))).to(device)
    ddp = DistributedDataParallel(mine, gradient_as_bucket_view=rank % 2 == 0)
    found = {"tokens": tokens, "ddp": steps(ddp, tokens)}
    found["stochastic"] = steps(DistributedDataParallel(loss_of(device, **LAYER)), tokens, seed=5)["weights"]
    found["fsdp"] = steps(sharded(mesh, **LAYER), tokens)
    found["torch"] = by_torch(world, rank, mesh, tokens, **LAYER)
    return found


def over_squares(rank: int, world: int, device: torch.device) -> Found:
    """Return what four ranks find by HSDP, and by FSDP2 of the shares of two."""
    square = init_device_mesh(device.type, (2, 2), mesh_dim_names=("pair", "data"))
    return of_square(square, rank, **LAYER)


def weights_alone(device: torch.device) -> Found:
    """Return what one device with whole weights finds."""
    found: Found = {name: trained(tiny(name, device)) for name in dict(WAYS)}
    model = tiny("qwen3, tied", device)
    with torch.no_grad():
        ids = cases.batch_of(model)[0][1]
        found["training of the rollout"] = model.logits(model(ids))
    found["rollout"] = cases.rollout(model)
    found["norms"] = {"rows": cases.normed_rows(None, device), "heads": cases.normed_heads(None, device)}
    return found


def batches_alone(device: torch.device) -> Found:
    """Return what one device with all micro-batches finds."""
    count = torch.tensor(sum(map(active, range(MICRO_BATCHES))), device=device)
    return {
        "steps": steps(loss_of(device, **LAYER), count),
        "stochastic": steps(loss_of(device, **LAYER), count, seed=5)["weights"],
    }


PARTS: dict[str, tuple[int, Callable[[int, int, torch.device], Found]]] = {
    "tensor": (2, lambda rank, world, device: tensor_parallel(dist.group.WORLD, device)),
    "data": (2, data_parallel),
    "square": (4, over_squares),
    "weights alone": (1, lambda rank, world, device: weights_alone(device)),
    "batches alone": (1, lambda rank, world, device: batches_alone(device)),
}
"""Ranks and work of processes that run side by side: most of their time goes to compilers."""


def main(backend: str, world: int, rank: int, folder: Path, part: str) -> None:
    """Run a part as one rank, and write what it found."""
    begin = time.monotonic()
    with member(backend, world, rank, folder, LIMIT) as device:
        torch.save(on_host(PARTS[part][1](rank, world, device)), folder / f"{rank}.pt")
    print(f"{part}, rank {rank}: {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
