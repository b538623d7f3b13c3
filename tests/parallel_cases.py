"""Training steps of ranks of a test: `python -m parallel_cases BACKEND WORLD RANK FOLDER` writes a file."""

from __future__ import annotations

import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nn_cases
import torch
import torch.distributed as dist
from rank_cases import LIMIT, Found, member, refused, wide
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from rlk import ops, sync
from rlk.nn import CausalLM
from rlk.optim import AdamW, clip_grad_norm, grad_norm, norm
from rlk.optim.shards import gradient
from rlk.parallel import accumulate_in_order, agree, global_count, parallelize
from rlk.runtime.call.collective import SHARE, share_of
from rlk.sync import shards

MICRO_BATCHES, LEAVES = 5, 2
LENGTHS = ((7, 4), (3,), (9, 2), (5, 5), (6,))
STEPS, MOST = 2, 0.05
POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def micro_batch(number: int, device: torch.device | str = "cpu") -> tuple[torch.Tensor, ops.Layout]:
    """Return the ids and the layout of a micro-batch."""
    texts = nn_cases.texts(LENGTHS[number], seed=10 + number)
    edges = torch.tensor([0] + [len(t) for t in texts]).cumsum(0)
    layout = ops.Layout.packed(edges.to(device), tokens=int(edges[-1]))
    return torch.tensor([t for text in texts for t in text], device=device), layout


class Loss(torch.nn.Module):
    """The loss of a micro-batch, as a module that wrappers call."""

    def __init__(self, model: CausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, number: int, tokens: torch.Tensor) -> torch.Tensor:
        """Return the sum of -log p of a micro-batch, divided by the tokens of all of them."""
        ids, layout = micro_batch(number, tokens.device)
        return -self.model.logps(ids, layout).logp.sum() / tokens.float()


def active(number: int) -> int:
    return sum(n - 1 for n in LENGTHS[number])


def loss_of(device: torch.device | str = "cpu", **options: Any) -> Loss:
    given = {"num_hidden_layers": 1, "rlk_leaves": LEAVES} | options
    return Loss(nn_cases.model(device, **given).requires_grad_(True))


def whole(x: torch.Tensor) -> torch.Tensor:
    """Return a parameter or a gradient, gathered."""
    return shards.whole(x).clone()


def named(tensors: Any, shares: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
    """Return gathered tensors. shares: marks of those whose parameters ranks share."""
    found = dict(tensors)
    for name, share in (shares or {}).items():
        setattr(found[name], SHARE, share)
    return {name.removeprefix("module."): whole(x) for name, x in found.items()}


def steps(model: torch.nn.Module, tokens: torch.Tensor, seed: int | None = None) -> Found:
    """Train for some steps; return the gradients of the first, norms, and the weights at the end."""
    order = accumulate_in_order(model)
    optimizer = AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, seed=seed)
    found: Found = {"norms": []}
    for _ in range(STEPS):
        counted = []
        for number, counts in order.numbers(MICRO_BATCHES):
            model(number, tokens).backward()
            counted += [number] * counts
        if "gradients" not in found:
            grads = {n: g for n, p in model.named_parameters() if (g := gradient(p)) is not None}
            found |= {"gradients": named(grads.items(), shares_of(model)), "counted": counted}
        found["norms"].append(clip_grad_norm(model.named_parameters(), MOST, leaves=LEAVES))
        optimizer.step()
    found["weights"] = named(model.named_parameters())
    masters = ((n, optimizer.state[p].get("master", p)) for n, p in model.named_parameters())
    found["masters"] = named(masters, shares_of(model))
    return found


def shares_of(model: torch.nn.Module) -> dict[str, Any]:
    return {n: share for n, p in model.named_parameters() if (share := share_of(p)) is not None}


def sharded(mesh: Any, tp: Any = None, sp: bool = False, **options: Any) -> Loss:
    """Return the model in f32, each layer and the rest sharded by FSDP2, computing in bf16. tp: of ranks."""
    made = loss_of(mesh.device_type, **options)
    if tp is not None:
        parallelize(made.model, tp, sp=sp)
    made.float()
    for layer in made.model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=POLICY)
    return fully_shard(made, mesh=mesh, mp_policy=POLICY)


def replicated(tp: Any) -> DistributedDataParallel:
    """Return a model of shares in DistributedDataParallel over all ranks, which takes them for copies."""
    made = loss_of(tp.device_type)
    parallelize(made.model, tp)
    return DistributedDataParallel(made)


def by_torch(
    world: int, rank: int, mesh: Any, tokens: torch.Tensor, **options: Any
) -> dict[str, torch.Tensor]:
    """Return a control: gradients of FSDP2's own reduce-scatter, as sums."""
    model = sharded(mesh, **options)
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    for first in range(0, MICRO_BATCHES, world):
        counts = first + rank < MICRO_BATCHES
        (model(first + rank if counts else 0, tokens) * float(counts)).backward()
    return named((n, p.grad) for n, p in model.named_parameters())


def by_ddp(world: int, rank: int, model: Any, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a control: gradients of DDP's own all-reduce, of sums of each rank's micro-batches."""
    *most, last = range(rank, MICRO_BATCHES, world)
    for number in most:
        with model.no_sync():
            model(number, tokens).backward()
    model(last, tokens).backward()
    return named((n, p.grad.float() * world) for n, p in model.named_parameters())


PARTS = {"rows": ((10, 6), 0), "columns": ((6, 8), 1), "vector": ((7,), 0), "middle": ((3, 4, 5), 1)}


def part_of(name: str, cotangent: bool = False) -> torch.Tensor:
    shape, _ = PARTS[name]
    return wide(*shape, seed=len(name) + 100 * cotangent)


def parts(mesh: Any) -> Found:
    """Return steps and norms of parameters that are split along one dim, some of them unevenly."""
    made: Found = {}
    for name, (_, dim) in PARTS.items():
        p, g = (distribute_tensor(x, mesh, [Shard(dim)]) for x in (part_of(name), part_of(name, True)))
        made[name] = {"norm": one_norm(p, g), "weight": one_step(p, g)}
    return made


def one_norm(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    weight = torch.nn.Parameter(p.clone())
    weight.grad = g.clone()
    return grad_norm([("p", weight)], leaves=4)


def one_step(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Return a bf16 parameter after a step with stochastic rounding, the second parameter of two."""
    first, weight = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(p.bfloat16())
    weight.grad = g.bfloat16()
    AdamW([first, weight], seed=2**40 + 3).step()
    return whole(weight)


def disagreements(rank: int, world: int, group: dist.ProcessGroup) -> Found:
    """Return what ranks say that agree, that differ, and of which one is late."""
    model = nn_cases.model(num_hidden_layers=1, rlk_leaves=2 if rank == 1 else 1)
    same = nn_cases.model(num_hidden_layers=1)
    found: Found = {"same": refused(lambda: agree(same, group=group, timeout=60, micro_batches=5))}
    found["other"] = refused(
        lambda: agree(model, group=group, timeout=60, micro_batches=5 + (rank == world - 1))
    )
    other = torch.nn.Linear(4, 4 + (rank == 1))
    found["shape"] = refused(lambda: agree(other, group=group, timeout=60))
    store, members = _get_default_store(), dist.get_process_group_ranks(group)
    if rank != world - 1:  # the last says nothing until the others gave up
        start = time.monotonic()
        found["missing"] = refused(lambda: agree(same, group=group, timeout=1))
        found["seconds"] = time.monotonic() - start
        store.set(f"{members} gave up {rank}", "")
    else:
        store.wait([f"{members} gave up {r}" for r in range(world - 1)], LIMIT)
    return found


def misuse(model: torch.nn.Module, tokens: torch.Tensor, rank: int) -> Found:
    """Return what is refused in a round of DDP: gradients that were not exchanged, and other numbers."""
    order = accumulate_in_order(model)
    counts = refused(lambda: next(order.numbers(4 + rank)))

    def without_exchange() -> None:
        for number, _ in order.numbers(2):
            with model.no_sync():  # type: ignore[operator]
                model(number, tokens).backward()

    inner = model.module
    seconds = [refused(lambda each=each: accumulate_in_order(each)) for each in (model, inner)]  # type: ignore[misc]
    return {"counts": counts, "no_sync": refused(without_exchange), "second calls": seconds}


class Factor(torch.nn.Module):
    """A parameter that is multiplied with the input."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(wide(5, 3, seed=seed))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Product(torch.nn.Module):
    """The sum of a product of three parameters, one of which a call may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = map(Factor, range(3))

    def forward(self, number: int, without: str = "") -> torch.Tensor:
        x = wide(5, 3, seed=50 + number)
        for name in ("first", "second", "third"):
            x = x if name == without else getattr(self, name)(x)
        return x.sum()


def product(mesh: Any = None, **given: Any) -> Any:
    """Return the product, its second factor and the rest sharded by FSDP2 if there is a mesh."""
    made = Product()
    if mesh is not None:
        fully_shard(made.second, mesh=mesh)
        fully_shard(made, mesh=mesh, **given)
    return made


def summed(model: torch.nn.Module, *, steps: int = 1) -> dict[str, torch.Tensor]:
    """Return the gradients of a last step, with a forward pass without gradients before each."""
    with torch.no_grad():
        model(0)  # FSDP2 leaves the parameters of its root module gathered
    order = accumulate_in_order(model)
    for _ in range(steps):
        with torch.no_grad():
            model(0)
        for number, _ in order.numbers(MICRO_BATCHES):
            model(number).backward()
    grads = ((n, gradient(p)) for n, p in model.named_parameters())
    return named((n, g) for n, g in grads if g is not None)


def products(mesh: Any) -> Found:
    """Return gradients of small models that FSDP2 shards in several ways."""
    found: Found = {"alone": summed(product()), "evaluated": summed(product(mesh), steps=2)}

    def without(*names: str) -> None:
        model = product(mesh)
        order = accumulate_in_order(model)
        for number, _ in order.numbers(4):
            model(number, names[order.round % len(names)]).backward()

    pair = Product()
    fully_shard([pair.second, pair.third], mesh=mesh)
    found["list"] = summed(fully_shard(pair, mesh=mesh), steps=2)
    frozen = Product()
    frozen.second.requires_grad_(False)  # a group of FSDP2 of its own, and of another dtype
    fully_shard(frozen.second.bfloat16(), mesh=mesh)
    found["frozen"] = summed(fully_shard(frozen, mesh=mesh), steps=2)
    frozen = Product()
    frozen.second.requires_grad_(False).bfloat16()
    found["frozen alone"] = summed(frozen)
    found["other"] = refused(lambda: without("first", "third"))  # of one group, and of one size
    found["unused"] = refused(lambda: without("third"))
    ignoring = Product()
    fully_shard(ignoring, mesh=mesh, ignored_params={ignoring.first.weight})
    found["ignored"] = refused(lambda: accumulate_in_order(ignoring))
    around = torch.nn.Sequential(product(mesh))
    found["around fsdp"] = refused(lambda: accumulate_in_order(around))
    around = torch.nn.Sequential(DistributedDataParallel(product(), process_group=mesh.get_group()))
    found["around ddp"] = refused(lambda: accumulate_in_order(around))
    late = product(mesh)
    for _ in (order := accumulate_in_order(late)).numbers(1):
        late(0).backward()
    assert order.round < 0
    found["outside"] = refused(lambda: late(0).backward())
    return found


def of_mesh(mesh: Any) -> Found:
    """Return what the ranks of a mesh of one dim find together."""
    group, world, rank = mesh.get_group(), mesh.size(), mesh.get_local_rank()
    found: Found = {"agree": disagreements(rank, world, group)}
    tokens = global_count(sum(active(n) for n in range(rank, MICRO_BATCHES, world)), group)
    found["tokens"] = tokens
    ddp = partial(DistributedDataParallel, process_group=group)
    found["ddp"] = steps(ddp(loss_of(), gradient_as_bucket_view=rank % 2 == 0), tokens)
    found["fsdp"] = steps(sharded(mesh), tokens)
    found["torch"] = by_torch(world, rank, mesh, tokens)
    found["ddp by torch"] = by_ddp(world, rank, ddp(loss_of()), tokens)
    found["parts"] = parts(mesh)
    if world == 2:
        found["stochastic"] = steps(ddp(loss_of()), tokens, seed=5)["weights"]
        found["misuse"] = misuse(ddp(loss_of()), tokens, rank)
        found["products"] = products(mesh)
    return found


def documented(rank: int, world: int) -> Found:
    """Run the loop of docs/data-parallel.md as it is shown there; return its last count and norm."""
    text = (Path(__file__).parents[1] / "docs/data-parallel.md").read_text()
    shown = text.split("```python\n")[1].split("```")[0]
    model = nn_cases.model(num_hidden_layers=1).requires_grad_(True)
    names: Found = {
        "device": "cpu",
        "model": model,
        "steps": 2,
        "micro_batches": MICRO_BATCHES,
        "batch": lambda step, number: micro_batch(number),
        "active_tokens": lambda step: sum(map(active, range(rank, MICRO_BATCHES, world))),
    }
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        exec(compile(shown, "data-parallel.md", "exec"), names)
        for shape in ((2, 3), (3,)):  # of padded rows, and packed
            model(torch.arange(6).view(-1, *shape[1:]))
    warned = [str(each.message) for each in said if "view tensor" in str(each.message)]
    return {"tokens": names["tokens"], "norm": grad_norm(model.named_parameters()), "warned": warned}


def everything(rank: int) -> Found:
    """Return what all four ranks find, and what they find as two pairs that do the same."""
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pair", "data"))
    # first: later, a rank that said nothing has made fewer calls of agree
    found: Found = {"documented": documented(rank, 4)}
    found |= {"2": of_mesh(square["data"]), "4": of_mesh(init_device_mesh("cpu", (4,)))}
    return found | of_square(square, rank)


def of_square(square: Any, rank: int, **options: Any) -> Found:
    """Return steps of FSDP2 over two dims of a mesh: with copies, and with tensor parallelism."""
    device = square.device_type
    tokens = torch.tensor(sum(map(active, range(MICRO_BATCHES))), device=device)
    alone = init_device_mesh(device, (4, 1), mesh_dim_names=("copy", "shard"))
    return {
        "copies alone": refused(lambda: accumulate_in_order(product(alone))),
        "counts": counts(square, rank),
        "shares for copies": [
            refused(lambda: accumulate_in_order(sharded(square["pair"], square["pair"]))),
            refused(lambda: accumulate_in_order(replicated(square["pair"]))),
        ],
        "copies": {
            "fsdp": steps(sharded(square, **options), tokens),
            "torch": by_torch(4, rank, square, tokens, **options),
        },
        "shares": of_shares(square, tokens, **options),
    }


def counts(square: Any, rank: int) -> Found:
    """Return what ranks of two dims of a mesh say of a count that the last one has otherwise, and of one."""
    order = accumulate_in_order(product(square))
    bad = {"bad": "4" if rank == 3 else 4, "bad on all": 0}
    given: Found = {"other": 5 if rank == 3 else 4, **bad, "same": 4}
    return {name: refused(lambda count=count: next(order.numbers(count))) for name, count in given.items()}  # type: ignore[misc]


def of_shares(square: Any, tokens: torch.Tensor, **options: Any) -> Found:
    """Return steps of a wrapper that FSDP2 shards around shares; before them, its digest and a norm.

    The ranks of one half share tokens too.
    """
    model = sharded(square["data"], square["pair"], sp=square.get_local_rank("data") == 1, **options)
    found = measured(model)
    with patch.object(norm, "mark_anew", lambda: None):
        found["norm without marks"] = norm_of_weights(sharded(square["data"], square["pair"], **options))
    return found | {"fsdp": steps(model, tokens)}


def measured(model: Loss) -> Found:
    """Return the digest of a model, and a norm."""
    return {"digest": sync.digest(model).total, "norm": norm_of_weights(model)}


def norm_of_weights(model: Loss) -> torch.Tensor:
    """Return the norm of gradients that are the weights."""
    for p in (named := dict(model.named_parameters())).values():
        p.grad = p.detach().clone()
    found = grad_norm(named.items(), leaves=LEAVES)
    model.zero_grad()
    return found


def main(backend: str, world: int, rank: int, folder: Path) -> None:
    """Run everything as one rank, and write what it found."""
    with member(backend, world, rank, folder):
        torch.save(everything(rank), folder / f"{rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
