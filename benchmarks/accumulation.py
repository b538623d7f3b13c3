"""Steps of micro-batches: gradients in the order of their numbers, beside the sums of DDP and FSDP2."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks import bench_model, layers
from benchmarks.harness import Case, Checked
from benchmarks.timing import Launch, Timing, timed
from rlk.nn import CausalLM, ModelConfig
from rlk.ops import Layout
from rlk.optim.shards import gradient
from rlk.parallel import accumulate_in_order
from rlk.sync.shards import whole
from rlk.testing.bits import differing

STEPS, WARM = 5, 2
POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
Wrap = Callable[[torch.nn.Module], Any]


class Loss(torch.nn.Module):
    """The loss of a micro-batch of random tokens, as a module that wrappers call."""

    def __init__(self, config: ModelConfig, batch: int, length: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = CausalLM(config, device="cuda").requires_grad_(True)
        self.batch, self.length = batch, length

    def forward(self, number: int) -> Tensor:
        """Return the mean of -log p."""
        tokens, like = self.batch * self.length, self.model.lm_head.weight
        drawn = torch.Generator().manual_seed(number)
        ids = torch.randint(self.model.config.vocab_size, (tokens,), generator=drawn).to(like.device)
        edges = torch.arange(0, tokens + 1, self.length, device=like.device)
        return -self.model.logps(ids, Layout.packed(edges, tokens=tokens)).logp.sum() / tokens


class Step:
    """The backward passes of a step, and the bytes of the device in use before its model was made."""

    def __init__(self, loss: Callable[[], Loss], wrap: Wrap, run: Callable[[Any], Launch]) -> None:
        self.before = torch.cuda.memory_allocated()
        self.model = wrap(loss())
        self.launch = run(self.model)

    def __call__(self) -> None:
        self.launch()


def time_of(slowest: Callable[[float], float], step: Launch) -> Timing:
    """Time steps that all ranks make, of the slowest one, and all memory of a rank's model and step."""
    assert isinstance(step, Step)
    for _ in range(WARM):
        step()
    torch.cuda.reset_peak_memory_stats()
    times = sorted(map(slowest, timed(step, STEPS, flush=False)))
    peak = slowest((torch.cuda.max_memory_allocated() - step.before) / 2**20)
    return Timing(statistics.median(times), times[0], (times[0], times[-1]), peak)


def sharded(model: Any) -> Any:
    """Return a model whose layers FSDP2 shards, as docs/data-parallel.md shows."""
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model.float()
    for layer in model.model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=POLICY)
    return fully_shard(model, mesh=mesh, mp_policy=POLICY)


WRAPS: dict[str, Wrap] = {"none": lambda model: model, "ddp": DistributedDataParallel, "fsdp2": sharded}


def micro_batches(
    config: ModelConfig, count: int, batch: int, length: int, kind: str, slowest: Callable[[float], float]
) -> Case:
    """A step of micro-batches, a multiple of the ranks, beside the sums that the wrapper makes by itself.

    Peers: of several ranks a sum over them for each micro-batch, and one for all, after each rank's own. A
    row's extra_mib is all that the model and the step take. Compared: gradients with one process's.
    """
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    loss = partial(Loss, config, batch, length)

    def in_order(model: Any) -> Launch:
        order = accumulate_in_order(model)

        def launch() -> None:
            for number, _ in order.numbers(count):
                model(number).backward()

        return launch

    def own(model: Any, *, once: bool) -> Launch:
        own_numbers = range(rank, count, ranks)

        def synchronized(now: bool) -> None:
            if kind == "ddp":
                model.require_backward_grad_sync = now  # what no_sync() sets
            elif kind == "fsdp2":
                model.set_requires_gradient_sync(now)

        def launch() -> None:
            model.zero_grad()
            for number in own_numbers:
                synchronized(not once or number == own_numbers[-1])
                model(number).backward()

        return launch

    def gradients(step: Step) -> dict[str, Tensor]:
        step()
        return {n.removeprefix("module."): whole(gradient(p)) for n, p in step.model.named_parameters()}

    def check() -> Checked:
        want = gradients(Step(loss, WRAPS["none"], in_order))
        got = gradients(Step(loss, WRAPS[kind], in_order))
        return Checked(differing=sum(differing(got[name], x) for name, x in want.items()))

    peers = {"torch": False} if ranks == 1 else {f"{kind}_each": False, f"{kind}_once": True}
    return Case(
        op="accumulate_in_order",
        passes="fwd+bwd",
        shape={"M": count, "B": batch, "S": length, "R": ranks, "wrapper": kind},
        rlk=lambda: Step(loss, WRAPS[kind], in_order),
        peers={n: partial(Step, loss, WRAPS[kind], partial(own, once=once)) for n, once in peers.items()},
        moved=4.0 * layers.weights_of(config) * config.num_hidden_layers,
        flops=3.0 * bench_model.flops(config, batch, length) * config.num_hidden_layers * count / ranks,
        reference=next(iter(peers)),
        check=check,
        describe=lambda: bench_model.described(config),
        timer=partial(time_of, slowest),
        notes={"layers": config.num_hidden_layers, "extra": "of the model and its step"},
    )
