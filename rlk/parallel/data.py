"""Data parallelism whose gradients are one chain over micro-batches, whatever the number of ranks."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from rlk.errors import Code, LaunchError
from rlk.nn.ranks import Ranks
from rlk.optim.shards import MAIN
from rlk.runtime.binding.checks import integer, wrong_type, wrong_value
from rlk.runtime.call.alike import check_alike, default_seconds, exchanged
from rlk.runtime.call.collective import (
    chain_over_ranks,
    process_group,
    runs_alone,
    scatter_chain,
    scatter_chain_of_replicas,
)
from rlk.runtime.call.marked import mark_anew
from rlk.sync.shards import reshard

NAME = "accumulate_in_order"
SHOWN = 4
"""Names that an error lists."""
COUNT = "count of numbers()"
"""The fact that ranks compare."""
_called: WeakSet[torch.nn.Module] = WeakSet()
"""Models whose hooks are there."""


def accumulate_in_order(model: torch.nn.Module) -> OrderedGradients:
    """Make the gradients of a model f32 sums over micro-batches in the order of their numbers.

    model: a plain module, on one process; one in DistributedDataParallel; or the root module of FSDP2
    (`fully_shard`). Sums are in `p.main_grad`, f32, for the first two (`p.grad` is None for a plain module,
    and holds -0.0 for DistributedDataParallel), and in `p.grad`, f32 shards, for FSDP2, whose trained
    parameters must be f32 and whose policy must reduce in f32:
    `MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)`. `rlk.optim` reads both.

    Order, of each element: a sum starts at -0.0 and takes the contributions of micro-batches 0, 1, 2, ...
    one by one, each addition rounded once to f32. A contribution is the gradient of one backward, in the
    dtype in which the model computes. Rank r of R runs the micro-batches whose number is r modulo R; after
    each round the contributions of R ranks are added in rank order. So any number of ranks, DDP, FSDP2 and
    HSDP (FSDP2 on a mesh of two dims, whose ranks are numbered row by row) give the bits of one process. With
    tensor parallelism, ranks that share weights run the same micro-batches. Nothing is divided by the number
    of ranks: divide each loss by `global_count` of the active tokens of all micro-batches, over the ranks of
    data parallelism alone.

    Bytes that a rank sends for each micro-batch: DDP (R - 1) / R of the gradients in their dtype and of the
    f32 sums; FSDP2 (R - 1) / R of f32 gradients, as its own reduce-scatter in f32 does; HSDP up to twice as
    much, and its own all-reduce of shards. Calls run on FSDP2's stream, or on one beside the backward pass
    (DDP). Call it once for a model, before the first backward.

    Every micro-batch must use every parameter. Raises LaunchError: for DDP with `find_unused_parameters`, for
    FSDP2 on other meshes, with other dtypes, and with trained parameters that it does not shard
    (`ignored_params`), for a module around one that DDP or FSDP2 wraps, where ranks that share weights
    (tensor parallelism) are in one group of DDP or FSDP2, which takes shares for copies, and for a second
    call.
    """
    if not isinstance(model, torch.nn.Module):
        raise wrong_type(NAME, "model", model, "torch.nn.Module")
    inner = (
        DistributedDataParallel if isinstance(model, FSDPModule) else (DistributedDataParallel, FSDPModule)
    )
    for name, module in model.named_modules():
        if module is not model and isinstance(module, inner):
            wanted = f"the module that is wrapped: {name} is a {type(module).__name__}"
            raise wrong_value(NAME, "model", type(model).__name__, wanted)
    if not _parts(model).isdisjoint(part for each in _called for part in _parts(each)):
        wanted = "a model once: go on with what the first call returned"
        raise wrong_value(NAME, "model", "one that it was called with before", wanted)
    made: OrderedGradients
    if isinstance(model, DistributedDataParallel):
        made = _Replicas(model)
    elif isinstance(model, FSDPModule):
        made = _Shards(model)
    else:
        made = _OneProcess(model)
    _called.add(model)
    return made


def _parts(model: torch.nn.Module) -> set[torch.nn.Module]:
    """Return a model, and the one that DDP wraps, whose parameters it has."""
    return {model, model.module} if isinstance(model, DistributedDataParallel) else {model}


def global_count(count: int | torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return the sum of a count over ranks, int64 []: an exact sum, in any order. group: None: the default.

    count: such as the active tokens of this rank's micro-batches, an int or an integer tensor, which is
    summed. Every rank of the group calls it. Without init_process_group it is the count of one process. Ranks
    that share weights (tensor parallelism) run the same micro-batches: give the group of data parallelism,
    `mesh["dp"].get_group()`, or tokens count once for each of them.
    The result is where count is, a number on the host; where the group moves no tensors of the host (NCCL),
    it is on the current accelerator. Raises LaunchError.
    """
    x = torch.as_tensor(count)
    if x.dtype.is_floating_point or x.dtype.is_complex:
        raise LaunchError(Code.ARG_DTYPE, op="global_count", name="count", got=x.dtype, wanted="integers")
    total = x.sum(dtype=torch.int64)
    if group is None and runs_alone("global_count"):
        return total
    members = process_group("global_count", group)
    if "cpu" not in dist.get_backend_config(members) and total.device.type == "cpu":
        total = total.to(torch.accelerator.current_accelerator())
    dist.all_reduce(total, group=members)
    return total


class OrderedGradients(ABC):
    """The gradients of a model while its micro-batches run: see `accumulate_in_order`."""

    def __init__(
        self, model: torch.nn.Module, rank: int, ranks: int, groups: Sequence[dist.ProcessGroup] = ()
    ) -> None:
        _check_apart(model, groups)
        self.model, self.rank, self.ranks, self.groups = model, rank, ranks, groups
        self.counts: set[str] = set()
        """Of micro-batches, those that ranks have compared, as text."""
        self.present = ranks
        """The ranks that have a micro-batch in this round: the first of them."""
        self.round, self.number = -1, -1
        """The round, and this rank's micro-batch in it; -1 outside of `numbers`."""
        self.names: dict[int, str] = {}
        self.waiting: dict[int, str] = {}
        """Parameters by their ids, and those of them that have no gradient yet in this round."""

    def numbers(self, count: int) -> Iterator[tuple[int, bool]]:
        """Forget all gradients, and yield the numbers of this rank's micro-batches of `count`, one a round.

        Run forward and backward of the micro-batch before the next number is drawn, and draw all of them.
        With each number comes whether its contribution counts: in a last round of fewer micro-batches than
        ranks, the others run another one (`number` is below count), to take part in the exchange, and what it
        gives is left out. Raises LaunchError where a backward did not exchange all gradients.

        count is the same on all ranks. A new one is compared between them through the store, before anything
        is sent or refused: RANKS_DIFFER on all of them; RANKS_MISSING after the timeout of the store, on
        those alone to which it is new, where it is one that others have compared before.
        """
        self.compare(str(count) if type(count) is int else f"{type(count).__name__} {count}")
        count = integer(NAME, "count", count, 1)
        self.forget()
        for each in range(-(-count // self.ranks)):
            self.round = each
            first = self.round * self.ranks
            self.present = min(self.ranks, count - first)
            number = first + self.rank
            counts = number < count
            self.number = number if counts else max(number - self.ranks, 0) % count
            self.begin()
            yield self.number, counts
            if found := self.unfinished():
                raise self.wrong(found)
        self.round = -1

    def compare(self, count: str) -> None:
        """Raise LaunchError on all ranks where they differ in a count that is new."""
        if count in self.counts:
            return
        known = {str(dist.get_rank()): count} if self.groups else {}
        for group in self.groups:  # dims of a mesh: after the last one all ranks know what all said
            own = {COUNT: json.dumps(known)}
            of = f" with count={count}"
            for told in exchanged(NAME, group, default_seconds(), own, kind=NAME, of=of).values():
                known |= json.loads(told[COUNT])
        check_alike(NAME, {int(rank): {COUNT: known[rank]} for rank in sorted(known, key=int)})
        self.counts.add(count)

    def wrong(self, found: str) -> LaunchError:
        """Return the error for what a backward pass did."""
        at = "outside of numbers()" if self.round < 0 else f"micro-batch {self.number}"
        return LaunchError(Code.GRADIENT_ROUND, op=NAME, at=at, found=found)

    def expect(self) -> None:
        """Expect a gradient of every parameter that is trained."""
        self.names = {id(p): name for name, p in self.model.named_parameters() if p.requires_grad}
        self.waiting = dict(self.names)

    def took(self, p: torch.Tensor) -> None:
        """Note that a parameter's contribution was added."""
        if self.waiting.pop(id(p), None) is None:
            second = f"a second gradient of {self.names.get(id(p), 'a parameter')}"
            raise self.wrong("a gradient" if self.round < 0 else second)

    @abstractmethod
    def forget(self) -> None:
        """Start all sums at -0.0."""

    @abstractmethod
    def begin(self) -> None:
        """Start a round."""

    @abstractmethod
    def unfinished(self) -> str:
        """Return what a round lacks, if anything."""


def _check_apart(model: torch.nn.Module, groups: Sequence[dist.ProcessGroup]) -> None:
    """Check that no two ranks that share weights are in a group of data parallelism."""
    shared = {id(m.ranks): m.ranks for m in model.modules() if isinstance(getattr(m, "ranks", None), Ranks)}
    for ranks in shared.values():
        members = {*dist.get_process_group_ranks(ranks.group)}
        for group in groups:
            both = sorted(members & {*dist.get_process_group_ranks(group)})
            if len(both) > 1:
                wanted = (
                    f"one copy of the weights for each rank: ranks {', '.join(map(str, both))} share them. "
                    "Make the model anew, and give DistributedDataParallel "
                    'process_group=mesh["dp"].get_group(), fully_shard mesh=mesh["dp"]'
                )
                raise wrong_value(NAME, "model", type(model).__name__, wanted)


def _trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _without(names: Collection[str]) -> str:
    """Return that parameters got no gradient; nothing where none are given."""
    if not names:
        return ""
    count = "1 parameter" if len(names) == 1 else f"{len(names)} parameters"
    return f"{count} got no gradient: {_listed(names)}"


def _listed(names: Collection[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(list(names)[:SHOWN]) + more


class _MainGradients(OrderedGradients):
    """Sums beside the parameters, in `main_grad`."""

    def forget(self) -> None:
        for p in _trained(self.model):
            p.grad = None
            if getattr(p, MAIN, None) is None:
                setattr(p, MAIN, torch.empty_like(p, dtype=torch.float32, requires_grad=False))
            getattr(p, MAIN).fill_(-0.0)

    def begin(self) -> None:
        self.expect()

    def unfinished(self) -> str:
        return _without(self.waiting.values())


class _OneProcess(_MainGradients):
    """Sums of one process: autograd's contribution is added when it is complete."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model, 0, 1)
        for p in _trained(model):
            p.register_post_accumulate_grad_hook(self._add)

    def _add(self, p: torch.Tensor) -> None:
        self.took(p)
        getattr(p, MAIN).add_(p.grad)
        p.grad = None


class _Replicas(_MainGradients):
    """Sums of DistributedDataParallel: each bucket's shares are exchanged, added and gathered."""

    def __init__(self, model: DistributedDataParallel) -> None:
        if model.find_unused_parameters:
            wanted = "False: every micro-batch uses every parameter"
            raise wrong_value(NAME, "model.find_unused_parameters", True, wanted)
        self.group: dist.ProcessGroup = model.process_group
        super().__init__(model, self.group.rank(), self.group.size(), [self.group])
        self.streams: dict[torch.device, torch.Stream] = {}
        # no def: torch refuses annotations that are strings
        model.register_comm_hook(self, lambda state, bucket: state.exchange(bucket))

    def exchange(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Add a bucket's contributions of all ranks to the sums; what DDP gets back are -0.0."""
        flat, params = bucket.buffer(), bucket.parameters()
        device = flat.device
        if device.type == "cpu":
            self._add(flat, params, bucket.gradients())
            made: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            made.set_result(flat)
            return made
        beside = self.streams.setdefault(device, torch.Stream(device))
        beside.wait_stream(torch.accelerator.current_stream(device))
        made = torch.futures.Future(devices=[device])
        with beside:
            self._add(flat, params, bucket.gradients())
            made.set_result(flat)  # the future holds an event of this stream
        return made

    def _add(self, flat: torch.Tensor, params: Sequence[torch.Tensor], grads: Sequence[torch.Tensor]) -> None:
        for p in params:
            self.took(p)
        # a gradient may lie in memory in another order than its shape's: sums are laid out as it is
        sums = torch.cat([_laid_as(getattr(p, MAIN), g) for p, g in zip(params, grads, strict=True)])
        chain_over_ranks(flat, sums, self.group, self.present)
        for p, g, total in zip(params, grads, sums.split([g.numel() for g in grads]), strict=True):
            getattr(p, MAIN).copy_(total.as_strided(g.shape, g.stride(), total.storage_offset()))
        # -0.0 + x is x for every x: the next backward accumulates onto it
        flat.fill_(-0.0)


def _laid_as(total: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Return a sum, flat, in the order in which a dense gradient lies in memory."""
    if grad.is_contiguous():
        return total.reshape(-1)
    laid = torch.empty_strided(grad.shape, grad.stride(), dtype=total.dtype, device=total.device)
    return laid.copy_(total).as_strided((grad.numel(),), (1,))


class _Shards(OrderedGradients):
    """Sums of FSDP2: a reduce-scatter that goes on from the shards' sums."""

    def __init__(self, model: Any) -> None:
        held = _held(model)
        mesh = held[0].device_mesh
        *between, shard = groups = [mesh.get_group(dim) for dim in range(mesh.ndim)]
        first = between[0].rank() * shard.size() if between else 0
        super().__init__(model, first + shard.rank(), mesh.size(), groups[::-1])
        self.replicas: dist.ProcessGroup | None = between[0] if between else None
        self.scatters: list[_ScatterChain] = []
        by_state: dict[int, list[Any]] = {}
        for module in model.modules():
            if isinstance(module, FSDPModule):  # modules of one fully_shard([...]) share a state
                by_state.setdefault(id(module._get_fsdp_state()), []).append(module)
        for modules in by_state.values():
            scatter = _ScatterChain(self, modules)
            modules[0].set_custom_reduce_scatter(scatter)
            modules[0].set_gradient_divide_factor(1.0)
            modules[0].set_force_sum_reduction_for_comms(True)
            self.scatters.append(scatter)
        self.hooks: list[Any] = []
        self.watch(held)

    def watch(self, held: Sequence[DTensor]) -> None:
        """Note gradients of a mesh of one, where FSDP2 calls no reduce-scatter but hooks of its shards."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = [p.register_post_accumulate_grad_hook(self.took) for p in held if self.ranks == 1]

    def forget(self) -> None:
        held = _held(self.model)
        self.watch(held)
        for p in held:
            p.grad = None
        mark_anew(self.model)
        for scatter in self.scatters:
            scatter.restart()

    def begin(self) -> None:
        self.expect()

    def unfinished(self) -> str:
        if self.ranks == 1:
            return _without(self.waiting.values())
        trained = [s for s in self.scatters if s.parameters]
        if late := sum(s.round != self.round for s in trained):
            return f"{late} of {len(trained)} groups of FSDP2 were not reduced"
        # all were None before FSDP2 wrote the sums of this round
        grads = {id(p): p.grad for s in trained for p in s.parameters}
        named = self.model.named_parameters()
        return _without([name for name, p in named if id(p) in grads and grads[id(p)] is None])


def _held(model: torch.nn.Module) -> list[DTensor]:
    """Return the shards that FSDP2 trains, after checking them."""
    reshard(model)
    held: list[Any] = _trained(model)
    for p in held:
        if not isinstance(p, DTensor) or p.device_mesh != held[0].device_mesh:  # ignored_params
            wanted = "one whose trained parameters FSDP2 shards: no other is summed over ranks"
            raise wrong_value(NAME, "model", type(model).__name__, wanted)
        kinds = [type(each) for each in p.placements]
        if kinds not in ([Shard], [Replicate, Shard]):
            wanted = "shards along one dim of a mesh, or copies along one and shards along a second"
            raise wrong_value(NAME, "model.placements", p.placements, wanted)
        if p.device_mesh.ndim == 2 and p.device_mesh.size(1) == 1:
            wanted = "two shards or more: copies alone are DistributedDataParallel's"
            raise wrong_value(NAME, "model.device_mesh", tuple(p.device_mesh.shape), wanted)
        if p.dtype is not torch.float32:
            wanted = "torch.float32 shards, and MixedPrecisionPolicy(param_dtype=...) for the computation"
            raise LaunchError(Code.ARG_DTYPE, op=NAME, name="model", got=p.dtype, wanted=wanted)
    if not held:
        raise wrong_value(NAME, "model", type(model).__name__, "one with parameters that are trained")
    return held


class _ScatterChain:
    """The reduce-scatter of one group of FSDP2's parameters."""

    def __init__(self, order: _Shards, modules: Sequence[torch.nn.Module]) -> None:
        self.order, self.modules = order, modules
        self.restart()

    def restart(self) -> None:
        """Forget the sums. Parameters are looked up anew: a move of the model may have replaced them."""
        own = [p for module in self.modules for p in _own_parameters(module)]
        self.parameters = [p for p in own if p.requires_grad]
        self.total: torch.Tensor | None = None
        self.round = -1

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory for an input or an output, as FSDP2 asks for it."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Write the sums of this rank's shards, those of earlier rounds included."""
        if input_tensor.dtype is not torch.float32:
            wanted = "torch.float32: MixedPrecisionPolicy(reduce_dtype=torch.float32)"
            raise LaunchError(
                Code.ARG_DTYPE, op=NAME, name="reduce_dtype", got=input_tensor.dtype, wanted=wanted
            )
        if op != dist.ReduceOp.SUM:
            raise wrong_value(NAME, "gradient_divide_factor", op, "1.0, and sums forced")
        if self.order.round < 0:
            raise self.order.wrong("a gradient")
        if self.round == self.order.round:
            raise self.order.wrong("a second gradient of a group of FSDP2")
        if self.total is not None and len(self.total) != len(output_tensor):
            raise self.order.wrong("other parameters got a gradient than in the rounds before")
        given = input_tensor, self.total
        if (replicas := self.order.replicas) is None:
            scatter_chain(*given, group, self.order.present, out=output_tensor)
        else:
            # FSDP2 all-reduces the pieces of replicas: of each number all but one are -0.0
            scatter_chain_of_replicas(*given, (replicas, group), self.order.present, out=output_tensor)
        for p in self.parameters:
            p.grad = None  # a view of the sums before; FSDP2 would add the new sums to it
        self.total, self.round = output_tensor, self.order.round


def _own_parameters(module: torch.nn.Module) -> list[Any]:
    """Return the parameters of a group of FSDP2: shards below a module, but not below another group."""
    found = [p for p in module.parameters(recurse=False) if isinstance(p, DTensor)]
    for child in module.children():
        if not isinstance(child, FSDPModule):
            found += _own_parameters(child)
    return found
