"""vLLM with tensor parallelism as two ranks, whose engines their launcher starts, on the oracle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import vllm.distributed.parallel_state  # noqa: F401 - before ranks are forked
from nn_cases import texts
from rank_cases import Found, member
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from vllm.model_executor.layers.linear import RowParallelLinear
from vllm_cases import drawn, engine, prompted, run

from rlk.nn import CausalLM
from rlk.parallel import parallelize
from rlk.sync import digest, gathered, transfer

LENGTHS = (5, 40)
NEW = 4


def main(backend: str, world: int, rank: int, folder: Path) -> None:
    """Run everything as one rank, and write what it found."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ["VLLM_CPU_CI_ENV"] = "1"  # not lowered by Inductor
    with member(backend, world, rank, folder), torch.no_grad():
        ways = {"V1": 1, "V2": 2}
        found = {name: everything(folder / name, runner, world) for name, runner in ways.items()}
        torch.save(found, folder / f"{rank}.pt")


def everything(path: Path, runner: int, world: int) -> Found:
    """Return log-probs of prompts and of drawn tokens, as integers, and what the engine says of itself."""
    given = {"tensor_parallel_size": world, "distributed_executor_backend": "external_launcher"}
    llm = engine(path, runner, enforce_eager=runner == 1, **given)  # traced by the second kind
    found = drawings(llm)
    model = llm.llm_engine.model_executor.driver_worker.get_model()
    made = digest(model)
    found |= {"id": llm.collective_rpc("rlk_numerics_id")[0], "total": made.total, "names": [*made.weights]}
    if runner == 2:
        return found  # its graph has our sums, whatever the layers are
    with plain_sums(model):
        assert llm.reset_prefix_cache()
        found["plain sums"] = drawings(llm)
    sent = shares_of_an_update(path)
    model.load_weights(gathered(sent))
    assert llm.reset_prefix_cache()
    found["updated"] = drawings(llm) | {"total": digest(model).total}
    return found


def shares_of_an_update(path: Path) -> CausalLM:
    """Return ranks' shares of a trainer's weights, which FSDP2 shards in f32."""
    trainer = fully_shard(changed(CausalLM.from_pretrained(path)).float(), mesh=init_device_mesh("cpu", (2,)))
    sent = parallelize(CausalLM.from_pretrained(path), dist.group.WORLD)
    transfer(trainer, sent)
    return sent


def changed(policy: CausalLM) -> CausalLM:
    """Return a model with other weights."""
    with torch.no_grad():
        for p in policy.parameters():
            p.copy_(p.flip(0))
    return policy


def drawings(llm: Any) -> Found:
    made: list[Found] = [
        {"ids": list(o.outputs[0].token_ids), "logps": drawn(o), "prompt": prompted(o)}
        for o in run(llm, texts(LENGTHS), new=NEW, prompt_logprobs=0)
    ]
    # without seeds of their own: all ranks draw from the engine's
    unseeded = run(llm, texts(LENGTHS[:1]), new=NEW, seed=None, temperature=0.8)
    return {"requests": made, "unseeded": list(unseeded[0].outputs[0].token_ids)}


@contextmanager
def plain_sums(model: torch.nn.Module) -> Iterator[None]:
    """Let vLLM's own layers add the ranks' rounded products: the control."""
    rows = [m for m in model.modules() if isinstance(m, RowParallelLinear)]
    ours = type(rows[0])
    assert ours is not RowParallelLinear
    for each in rows:
        each.__class__ = RowParallelLinear
    yield
    for each in rows:
        each.__class__ = ours
