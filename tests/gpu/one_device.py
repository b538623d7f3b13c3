"""Ranks that share one device, at the sizes of a real model, beside what each of them computes alone.

NCCL refuses two ranks on one device; gloo moves their tensors through the host. What one process compiled
first, by Triton unless RLK_BACKEND says something else, all ranks load. `python -m gpu.one_device` runs all
of it: at tiny sizes where there is no device.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import patch

import rank_cases
import torch
import torch.distributed as dist
from rank_cases import Found, member
from tensor_parallel_cases import other_tree
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from rlk import ops
from rlk.nn import CausalLM, ModelConfig
from rlk.nn.ranks import Ranks
from rlk.optim import AdamW, clip_grad_norm
from rlk.optim.shards import gradient
from rlk.parallel import accumulate_in_order, parallelize
from rlk.parallel.models import shared
from rlk.parallel.plan import Cut, cuts_of, default_styles
from rlk.runtime.binding.invocation import target_of
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.prefetch import Observer, started, unwritten
from rlk.target.facts import Target
from rlk.verify.ranks import rounded_first

BACKENDS = {"real": "cpu:gloo,cuda:gloo", "tiny": "gloo"}
"""By the size of the model. The first one's ranks are no forks: CUDA allows no use after one."""
COMMON = {
    "model_type": "qwen3", "hidden_act": "silu", "num_hidden_layers": 2, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "tie_word_embeddings": True, "rlk_leaves": 8,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "real": {  # layers of Qwen3-8B
        "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 4096,
    },
    "tiny": {
        "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 16, "vocab_size": 96, "max_position_embeddings": 512,
    },
}  # fmt: skip
FEWER = {"real": 16384, "tiny": 96}
"""The vocabulary where gradients are exchanged: gloo sends a gigabyte a second."""
TEXTS = {"real": (1000, 936, 64), "tiny": (70, 90, 7)}
"""Tokens of each sequence; the last rank has fewer, or none. Those of `real` launch alike on all ranks."""
MICRO_BATCHES: dict[str, tuple[tuple[int, ...], ...]] = {
    "real": ((600, 424), (1008,), (512, 200, 296)),
    "tiny": ((7, 4), (3,), (9, 2)),
}
"""Of a step of two ranks, of which one has none in the last round."""
WORLDS = (2, 4)
MOST = 0.05
"""To which the norm of the gradients is clipped."""
ROWS = 64
"""Tokens whose logits are compared."""
LIMIT = timedelta(seconds=100)  # of one exchange
SECONDS = 240  # of all ranks together


def model(size: str, device: torch.device | str, **options: Any) -> CausalLM:
    """Return the model; every process draws the same weights."""
    if str(device) == "meta":  # one without values, which launches the same: little of it is written
        options |= {"num_hidden_layers": 1, "tie_word_embeddings": False}
    config = ModelConfig.of(COMMON | MODELS[size] | options)
    if str(device) == "meta":
        return CausalLM(config, device=device).to_empty(device="cpu").requires_grad_(True)
    torch.manual_seed(0)
    made = CausalLM(config, device=device).requires_grad_(True)
    with torch.no_grad():
        for p in made.parameters():
            p.normal_(1, 0.1) if p.dim() == 1 else p.normal_(0, p.shape[1] ** -0.5)
    return made


def texts(lengths: tuple[int, ...], size: str, device: torch.device) -> tuple[torch.Tensor, ops.Layout]:
    """Return packed sequences of these lengths."""
    drawn, count = torch.Generator().manual_seed(sum(lengths)), sum(lengths)
    ids = torch.randint(FEWER[size], (count,), generator=drawn).to(device)
    edges = torch.tensor([0, *lengths]).cumsum(0).to(device)
    return ids, ops.Layout.packed(edges, tokens=count)


# --- what is compared ---


def training(lm: CausalLM, size: str) -> Found:
    """Return log-probs, entropies, logits of the last tokens, and all gradients."""
    ids, layout = texts(TEXTS[size], size, lm.lm_head.weight.device)
    made = lm.logps(ids, layout, needs=("logp", "entropy"))
    weights = torch.linspace(-1, 1, len(ids), device=ids.device)
    (made.logp * weights + 0.1 * made.entropy).sum().backward()
    with torch.no_grad():
        logits = lm.logits(lm(ids, layout)[-ROWS:])
    found = {"logp": made.logp.detach(), "entropy": made.entropy.detach(), "logits": logits}
    return found | {name: p.grad for name, p in lm.named_parameters()}


class Loss(torch.nn.Module):
    """The loss of a micro-batch, as a module that DistributedDataParallel wraps."""

    def __init__(self, size: str, device: torch.device | str) -> None:
        super().__init__()
        self.size = size
        self.model = model(size, device, vocab_size=FEWER[size])

    def forward(self, number: int) -> torch.Tensor:
        """Return the sum of -log p of a micro-batch, by the tokens of all of them."""
        every = MICRO_BATCHES[self.size]
        ids, layout = texts(every[number], self.size, self.model.lm_head.weight.device)
        return -self.model.logps(ids, layout).logp.sum() / sum(map(sum, every))


def step(loss: torch.nn.Module, size: str) -> Found:
    """Return the summed gradients of a step, their norm, and weights and masters after it."""
    order = accumulate_in_order(loss)
    optimizer = AdamW(loss.parameters(), lr=1e-2, weight_decay=0.1)
    for number, _ in order.numbers(len(MICRO_BATCHES[size])):
        loss(number).backward()
    named = [(name.removeprefix("module."), p) for name, p in loss.named_parameters()]
    found = {f"gradient of {name}": gradient(p).clone() for name, p in named}
    found["norm"] = clip_grad_norm(loss.named_parameters(), MOST, leaves=8)
    optimizer.step()
    for name, p in named:
        found |= {name: p.detach(), f"master of {name}": optimizer.state[p]["master"]}
    return found


def added_by_torch(loss: Loss, rank: int) -> torch.Tensor:
    """Return a gradient as torch adds it: a rank's micro-batches, then ranks, in 16 bits. The control."""
    for number in range(rank, len(MICRO_BATCHES[loss.size]), 2):
        loss(number).backward()
    grad: Any = weight_of(loss).grad
    dist.all_reduce(grad)
    return grad


def weight_of(loss: Loss) -> torch.nn.Parameter:
    return loss.model.model.layers[0].mlp.down_proj.weight


def unlike(got: Found, want: Found, parts: Mapping[str, Cut] | None = None) -> dict[str, list[int]]:
    """Return of each result how many values differ in their bits, of how many, and how many are not 0.

    parts: of `want`, those that `got` has.
    """
    assert got.keys() == want.keys()
    return {name: _unlike(x, want[name][(parts or {}).get(name, ())]) for name, x in got.items()}


def _unlike(a: torch.Tensor, b: torch.Tensor) -> list[int]:
    assert a.shape == b.shape and a.dtype == b.dtype
    kind = torch.int32 if a.element_size() == 4 else torch.int16
    wrong = a.contiguous().view(kind) != b.contiguous().view(kind)
    return [int(wrong.sum()), a.numel(), int(a.count_nonzero())]


# --- ranks ---


def of_shares(size: str, device: torch.device) -> Found:
    """Return how what all ranks compute together differs from what this one computes alone."""
    group = dist.group.WORLD
    assert group is not None
    whole = model(size, device)
    parts = cuts_of(whole, Ranks(group, group.size(), group.rank()))
    want = training(whole, size)

    def together(sp: bool = False) -> dict[str, list[int]]:
        return unlike(training(parallelize(model(size, device), group, sp=sp), size), want, parts)

    found: Found = {"alone": {name: want[name].cpu() for name in ("logp", "entropy")}}
    found |= {f"sp={sp}": together(sp) for sp in (False, True)}
    with rounded_first():
        found["rounded first"] = together()
    if group.size() == 4:
        with patch.object(Ranks, "total", other_tree), torch.no_grad():
            ids, layout = texts(TEXTS[size], size, device)
            made = parallelize(model(size, device), group).logps(ids, layout)
        found["another tree"] = _unlike(made.logp, want["logp"])
    return found


def of_replicas(size: str, rank: int, device: torch.device) -> Found:
    """Return how a step of micro-batches on both ranks differs from one of this rank alone."""
    want = step(Loss(size, device), size)
    mine = Loss(size, device)
    plain = added_by_torch(mine, rank)
    summed = want[f"gradient of {name_of(mine)}"].bfloat16()
    mine.zero_grad()
    found = {"step": unlike(step(DistributedDataParallel(mine), size), want), "norm": want["norm"].cpu()}
    return found | {"added by torch": _unlike(plain, summed)}


def name_of(loss: Loss) -> str:
    return next(name for name, p in loss.named_parameters() if p is weight_of(loss))


def main(backend: str, world: int, rank: int, folder: Path, size: str, compiled: str) -> None:
    """Run as one rank, and write what it found. compiled: a file that is there when all is compiled."""
    Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    while not Path(compiled).exists():
        time.sleep(0.05)
    begin = time.monotonic()
    device = torch.device("cuda", 0) if size == "real" else torch.device("cpu")
    with member(backend, world, rank, folder, LIMIT, device):
        found = {"shares": of_shares(size, device)}
        said = [f"shares {time.monotonic() - begin:.1f} s"]
        if world == 2:
            found["replicas"] = of_replicas(size, rank, device)
            said.append(f"replicas {time.monotonic() - begin:.1f} s")
        torch.save(found, folder / f"{rank}.pt")
    print(f"rank {rank} of {world}: {', '.join(said)}", flush=True)


def end_with(parent: int) -> None:
    """End this process when its parent has ended: nobody would read what it finds."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


# --- one process compiles first ---


def observe(size: str, observer: Observer) -> None:
    """Tell what one process, and the first of several ranks, launch; nothing is computed."""
    with dispatch.recorded(lambda invocation, tensors: unwritten(invocation, tensors, observer)):
        training(model(size, "meta"), size)
        step(Loss(size, "meta"), size)
        for world in WORLDS:
            for sp in (False, True):
                with first_of(world) as group:
                    whole = model(size, "meta")
                    training(shared(whole, Ranks(group, world, 0, sp), default_styles(whole)), size)


@contextmanager
def first_of(world: int) -> Iterator[Any]:
    """Stand for the first of some ranks; what they exchange goes nowhere."""
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def compile_first(size: str, on: Target | None) -> None:
    """Compile, side by side, what all ranks run on a target."""
    begin = time.monotonic()
    if on is not None:
        futures = started(lambda observer: observe(size, observer), on)
        print(f"{len(futures)} kernels were named within {time.monotonic() - begin:.1f} s", flush=True)
        for future in futures:
            future.result()
        print(f"and compiled within {time.monotonic() - begin:.1f} s", flush=True)


def everything(size: str) -> dict[int, list[Found]]:
    """Return what each rank of two and of four found, which run side by side on one device."""
    jobs = str(min(os.cpu_count() or 1, 16))
    here = {"RLK_BACKEND": "triton", **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RLK_JOBS": jobs}
    with tempfile.TemporaryDirectory() as name, patch.dict(os.environ, here):
        folder, compiled = Path(name), Path(name) / "compiled"

        def run(world: int) -> list[Found]:
            place = folder / str(world)
            place.mkdir()
            given = BACKENDS[size], world, place, "gpu.one_device", SECONDS, size, str(compiled)
            return rank_cases.run(*given)

        with ThreadPoolExecutor(len(WORLDS)) as pool:
            ranks = pool.map(run, WORLDS)  # they import meanwhile
            command = [sys.executable, "-m", "gpu.one_device", "compile", size]
            try:
                subprocess.run(command, check=True, timeout=SECONDS)
            finally:
                compiled.touch()
            return dict(zip(WORLDS, ranks, strict=True))


def check(found: dict[int, list[Found]]) -> None:
    """Raise AssertionError where ranks have other bits than one process, or a control has the same."""
    first = found[2][0]["shares"]["alone"]
    for world, ranks in found.items():
        for each in ranks:
            shares = each["shares"]
            for name, x in shares["alone"].items():
                assert torch.equal(x.view(torch.int32), first[name].view(torch.int32)), (world, name)
            for way in ("sp=False", "sp=True"):
                made = shares[way]
                assert {name: counts for name, counts in made.items() if counts[0]} == {}, (world, way)
                assert all(2 * there > count for _, count, there in made.values()), (world, way, made)
            made = shares["rounded first"]
            assert all(made[name][0] > 5 for name in ("logp", "entropy", "logits")), made
            assert sum(wrong > 0 for wrong, *_ in made.values()) > len(made) // 2, made
            assert shares.get("another tree", [1])[0] > 0, shares["another tree"]
    for each in found[2]:
        made = each["replicas"]
        assert {name: counts for name, counts in made["step"].items() if counts[0]} == {}
        assert float(made["norm"]) > MOST  # the gradients were clipped
        assert made["added by torch"][0] > 5, made["added by torch"]


if __name__ == "__main__":
    if sys.argv[1:2] == ["compile"]:
        compile_first(sys.argv[2], target_of(torch.device("cuda", 0)) if sys.argv[2] == "real" else None)
    elif sys.argv[1:]:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:])
    else:
        check(everything("real" if torch.cuda.is_available() else "tiny"))
        print("0 values differ")
