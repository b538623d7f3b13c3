"""Tiny models on ranks that share weights: `python -m tensor_parallel_cases BACKEND WORLD RANK FOLDER`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nn_cases
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from nn_cases import integers
from rank_cases import Found, member, refused
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ParallelStyle
from torch.func import functional_call

import rlk
import rlk.integrations.patching
from rlk import ops, sync
from rlk.env import TRANSPORTS, Env
from rlk.errors import LaunchError
from rlk.nn import CausalLM, RMSNorm, normed, ranks
from rlk.nn.ranks import Ranks
from rlk.ops.results import Csr
from rlk.optim import AdamW, clip_grad_norm, norm, shards
from rlk.parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    SequenceParallelRMSNorm,
    VocabParallelEmbedding,
    agree,
    from_pretrained,
    parallelize,
    save_pretrained,
    sharded_state_dict,
)
from rlk.runtime.call.collective import ordered_gather, share_of
from rlk.verify.ranks import rounded_first

TRANSFORMERS = find_spec("transformers") is not None
if TRANSFORMERS:
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401 - before ranks are forked

Device = torch.device | str
SHARED = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8, "rlk_leaves": 8}
MODELS = {
    "qwen3, tied": {"tie_word_embeddings": True},  # norms of heads
    "qwen2": {"model_type": "qwen2", "num_hidden_layers": 1},  # biases of q, k and v
    "gemma2": {  # norms after attention and MLP, softcaps, a window, a scale of embeddings
        "model_type": "gemma2", "num_hidden_layers": 1, "tie_word_embeddings": True,
        "hidden_act": "gelu_pytorch_tanh", "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 4.0, "sliding_window": 16, "layer_types": ["sliding_attention"],
    },
}  # fmt: skip
WAYS = [
    ("qwen3, tied", 2, False), ("qwen3, tied", 4, True), ("qwen2", 2, True), ("qwen2", 2, False),
    ("qwen2", 4, False), ("gemma2", 4, True),
]  # fmt: skip
"""Every model by tokens or not, on two ranks or four: each pair of these once; steps are of qwen2 without."""
LENGTHS, WIDTH = (67, 100), 100  # of 4 ranks with 64 tokens each the last has none
PROMPT, CHUNK, PAGE = 21, 13, 8
LIMIT = timedelta(seconds=240)  # of one exchange: ranks trace their first calls at different times
SOON = timedelta(seconds=8)
"""How long ranks wait for one that dies: it is gone at once, those that saw it are there and send nothing."""


def way(name: str, tp: int, sp: bool) -> str:
    return f"{name} on {tp}{', by tokens' if sp else ''}"


def tiny(name: str, device: Device = "cpu", **options: object) -> CausalLM:
    """Return a model whose bits show the order of its sums; every process draws the same weights."""
    made = nn_cases.model(**SHARED | MODELS[name] | options)
    for layer in made.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        cancel((attention.q_proj, attention.k_proj, attention.v_proj), attention.o_proj)
        cancel((mlp.gate_proj, mlp.up_proj), mlp.down_proj)
    return made.to(device).requires_grad_(True)


def cancel(inner: Sequence[torch.nn.Linear], outer: torch.nn.Linear) -> None:
    """Make both halves of the outer product's input equal, and its sums small beside their terms.

    The inner weights repeat their rows, the outer one its columns with the other sign, up to a few of 128
    parts. Sums of 16 bits seldom show in which order they were made; of these many do.
    """
    for linear in inner:
        for p in (linear.weight, linear.bias):
            if p is not None:
                half = len(p) // 2
                p.data[half:] = p.data[:half]
    half, drawn = outer.in_features // 2, torch.Generator().manual_seed(2)
    first = outer.weight.data[:, :half] * 128
    parts = torch.randint(-2, 3, first.shape, generator=drawn) / 128
    outer.weight.data = torch.cat([first, (-first.float() * (1 + parts)).bfloat16()], 1)


def batch(vocabulary: int = 96, device: Device = "cpu") -> tuple[torch.Tensor, ops.Layout]:
    drawn = torch.Generator().manual_seed(3)
    ids = torch.randint(vocabulary, (len(LENGTHS), WIDTH), generator=drawn).to(device)
    return ids, ops.Layout.padded(torch.tensor(LENGTHS, device=device), WIDTH, side="right")


def batch_of(model: CausalLM) -> tuple[torch.Tensor, ops.Layout]:
    """Return ids of a model's vocabulary, where the model is."""
    return batch(model.config.vocab_size, model.lm_head.weight.device)


def training(model: CausalLM) -> Found:
    """Return log-probs, entropies, logits of the whole vocabulary, and all gradients."""
    ids, layout = batch_of(model)
    made = model.logps(ids, layout, needs=("logp", "entropy"))
    weights = torch.linspace(-1, 1, made.logp.numel()).to(ids.device).view_as(made.logp)
    (made.logp * weights + 0.1 * made.entropy).sum().backward()
    with torch.no_grad():
        logits = model.logits(model(ids, layout))
    found = {name: getattr(made, name).detach() for name in ("logp", "entropy")} | {"logits": logits}
    return found | {name: p.grad for name, p in model.named_parameters()}


def trained(model: CausalLM) -> CausalLM:
    """Return the model with its gradients."""
    training(model)
    return model


@torch.no_grad()
def rollout(model: CausalLM) -> Found:
    """Return logits of a prompt that is read in chunks, then of single tokens; and what is generated."""
    ids = batch_of(model)[0][1, :WIDTH]
    numbers = partial(integers, device=ids.device)
    end = PROMPT + 3
    pages = -(-end // PAGE)
    cache, table = model.cache(pages, PAGE), numbers(*reversed(range(pages))).view(1, -1)
    rows = []
    for first, last in ((0, CHUNK), (CHUNK, PROMPT)):
        part = numbers(0, last - first)
        rows.append(model.prefill(ids[first:last], cache, table, numbers(last), part))
    rows += [model.decode(ids[t : t + 1], cache, table, numbers(t + 1)) for t in range(PROMPT, end)]
    made = model.generate([[1, 2, 3], [4] * 9], max_new_tokens=3, seed=5, temperature=0.8)
    return {
        "logits": model.logits(torch.cat(rows)),
        "ids": torch.tensor([each.ids for each in made]),
        "logps": torch.stack([each.logps for each in made]),
    }


def patched_of(name: str, device: Device = "cpu", **options: object) -> rlk.integrations.patching.Patched:
    """Return the model of a name as transformers has it, patched."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    given = nn_cases.QWEN3 | SHARED | MODELS[name] | options
    config = Qwen3Config(**{key: x for key, x in given.items() if key != "model_type"})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(tiny(name, **options).state_dict())
    return rlk.patch(model.to(device).train())


def trained_patched(made: rlk.integrations.patching.Patched) -> Found:
    """Return what `training` does, and logits of tokens that follow a cache."""
    weight = made.model.lm_head.weight
    ids, _ = batch(made.model.config.vocab_size, weight.device)
    exists = (torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]).to(ids.device)
    given = {"input_ids": ids, "attention_mask": exists.long()}
    out = made.logps(**given, needs=("logp", "entropy"))
    weights = torch.linspace(-1, 1, out.logp.numel()).to(ids.device).view_as(out.logp)
    (out.logp * weights + 0.1 * out.entropy).sum().backward()
    with torch.no_grad():
        logits = made.model(**given).logits * exists[..., None]
        first = made.model(ids[1:, :PROMPT], use_cache=True)
        later = made.model(ids[1:, PROMPT : PROMPT + 3], past_key_values=first.past_key_values)
    found = {"logp": out.logp.detach(), "entropy": out.entropy.detach(), "logits": logits}
    found |= {"cached": torch.cat([first.logits, later.logits], 1)[0]}
    return found | {name: p.grad for name, p in made.model.named_parameters()}


# --- layers ---


def factors(device: Device = "cpu") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(1)
    x, w, d_y = (torch.randn(70, n, generator=drawn).bfloat16().to(device) for n in (512, 512, 70))
    return x, w, d_y


def products(of: Ranks, device: Device = "cpu") -> Found:
    """Return products of layers that ranks share, and the gradient of their input; plain sums beside them."""
    x, w, d_y = factors(device)
    options = {"ranks": of, "leaves": 4, "dtype": torch.bfloat16, "device": device}
    row = RowParallelLinear(512, 70, False, **options)
    column = ColumnParallelLinear(70, 512, False, **options)
    own = slice(of.rank * 512 // of.size, (of.rank + 1) * 512 // of.size)
    with torch.no_grad():
        row.weight.copy_(w[:, own])
        column.weight.copy_(w.t()[own])
    found: Found = {"row": row(x[:, own]).detach()}
    narrow = d_y.clone().requires_grad_()
    column(narrow).backward(x[:, own])
    found["column"] = narrow.grad
    biased = RowParallelLinear(512, 70, **options)
    with torch.no_grad():
        biased.weight.copy_(row.weight)
        biased.bias.copy_(d_y[0])
    y = biased(x[:, own])
    y.backward(d_y)
    found["biased"] = {"y": y.detach(), "bias": biased.bias.grad, "weight": biased.weight.grad}
    part = ops.matmul(x[:, own], w[:, own], leaves=4, part=of.part(4))
    found["tree"] = of.total(part, torch.float32)
    plain = ops.matmul(x[:, own], w[:, own], out_dtype=torch.float32)
    dist.all_reduce(plain, group=of.group)
    return found | {"plain": plain}


def embedded(of: Ranks, device: Device = "cpu") -> Found:
    """Return embeddings of ids in and outside of the vocabulary; zeros of both signs, and a NaN, are kept."""
    table = strange_table()
    layer = VocabParallelEmbedding(*table.shape, ranks=of, dtype=torch.bfloat16, device=device)
    each = len(table) // of.size
    with torch.no_grad():
        layer.weight.copy_(table[of.rank * each : (of.rank + 1) * each])
        return {"rows": layer(strange_ids().to(device))}


def layers_alone(of: Ranks) -> Found:
    """Return the rank's columns of 167 tokens, of an embedding and a product that no model holds."""
    table, w, ids = sequence_of_layers()
    embedding = VocabParallelEmbedding(*table.shape, ranks=of, dtype=torch.bfloat16)
    column = ColumnParallelLinear(8, 16, False, ranks=of, leaves=4, dtype=torch.bfloat16)
    for layer, whole in ((embedding, table), (column, w)):
        each = len(whole) // of.size
        layer.weight.data.copy_(whole[of.rank * each : (of.rank + 1) * each])
    x = embedding(ids)
    found: Found = {"columns": column(x).detach(), "bytes kept": [x.untyped_storage().nbytes(), x.nbytes]}
    row = RowParallelLinear(16, 8, False, ranks=of, leaves=4, dtype=torch.bfloat16)
    found["three dims"] = refused(lambda: row(x.new_zeros(2, 3, 4)))
    of.tokens = 600  # of another batch, of which every rank has rows
    return found | {"other tokens": refused(lambda: column(x))}


def sequence_of_layers() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(6)
    table, w = (torch.randn(16, 8, generator=drawn).bfloat16() for _ in range(2))
    return table, w, torch.randint(16, (167,), generator=drawn)


def strange_table() -> torch.Tensor:
    table = torch.arange(24.0).view(8, 3).bfloat16()
    table[1, 0], table[6, 2] = -0.0, float("nan")
    return table


def strange_ids() -> torch.Tensor:
    return torch.tensor([6, 1, 0, 8, -1, 7, 2, 1])


def streams(device: Device = "cpu") -> dict[str, torch.Tensor]:
    """Return tokens and cotangents of a norm, and heads; weights of f32, whose gradients show every order."""
    drawn = torch.Generator().manual_seed(4)
    shapes = {"x": (167, 24), "residual": (167, 24), "d_y": (167, 24), "d_residual": (167, 24)}
    shapes |= {"heads": (167, 8, 8), "d_heads": (167, 8, 8)}
    made = {name: torch.randn(shape, generator=drawn).bfloat16() for name, shape in shapes.items()}
    made |= {name: torch.randn(n, generator=drawn) for name, n in (("weight", 24), ("head_weight", 8))}
    return {name: x.to(device) for name, x in made.items()}


def norms(of: Ranks, device: Device = "cpu") -> Found:
    """Return a norm of a rank's tokens and one of its heads, with gradients; and pieces of 32 tokens."""
    found = {"rows": normed_rows(of, device), "heads": normed_heads(of, device)}
    with patch.object(ranks, "BLOCK", 32), patch.object(normed, "BLOCK", 32):
        return found | {"pieces of 32": normed_rows(of, device)}


def normed_rows(of: Ranks | None, device: Device = "cpu") -> Found:
    given = streams(device)
    own = slice(None) if of is None else of.rows(167)
    x, residual = (given[name][own].clone().requires_grad_() for name in ("x", "residual"))
    if of is None:
        norm = RMSNorm(24, device=device)
    else:
        norm, of.tokens = SequenceParallelRMSNorm(24, ranks=of, device=device), 167
    norm.weight.data = given["weight"]
    y, total = norm(x, residual)
    torch.autograd.backward((y, total), (given["d_y"][own], given["d_residual"][own]))
    summed = total.detach().requires_grad_()
    norm.weight, kept = torch.nn.Parameter(given["weight"]), norm.weight
    again, _ = norm.of_total(summed)
    again.backward(given["d_y"][own])
    return {
        "y": y.detach(), "total": total.detach(), "d_x": x.grad, "d_residual": residual.grad,
        "again": again.detach(), "d_total": summed.grad,
        "whole d_weight": kept.grad, "whole d_weight of a total": norm.weight.grad,
    }  # fmt: skip


def normed_heads(of: Ranks | None, device: Device = "cpu") -> Found:
    given = streams(device)
    each = 8 if of is None else of.share(8)
    own = slice(None) if of is None else slice(of.rank * each, (of.rank + 1) * each)
    x, weight = given["heads"][:, own].clone().requires_grad_(), given["head_weight"].requires_grad_()
    y = ops.qk_norm(x, weight) if of is None else normed.head_norm(x, weight, ranks=of)
    y.backward(given["d_heads"][:, own])
    return {"y": y.detach(), "d_x": x.grad, "whole d_weight": weight.grad}


# --- controls ---


def other_tree(self: Ranks, partial: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Sum over ranks in another order: halves first."""
    a, b, c, d = ordered_gather(partial.detach(), self.group)
    return ((a + c) + (b + d))[self.rows(len(partial))].to(dtype)


def another_tree(line: DeviceMesh) -> Found:
    """Return what ranks give that are added in another order."""
    with patch.object(Ranks, "total", other_tree):
        return training(parallelize(tiny("qwen3, tied"), line))


def disagreements(line: DeviceMesh, folder: Path) -> Found:
    """Return the errors of ranks of which one has other leaves, and other ids: fewer, or another one.

    folder: of a checkpoint that `saved` wrote.
    """
    last = line.get_local_rank() == 3
    model = parallelize(tiny("qwen2"), line)
    ids = integers(*range(70))
    found: Found = {"leaves": refused(lambda: parallelize(tiny("qwen2", rlk_leaves=4 if last else 8), line))}
    if TRANSFORMERS:  # which reads config.json
        found["loaded"] = refused(lambda: from_pretrained(folder, line, leaves=4 if last else 8))
    found["sp"] = refused(lambda: parallelize(tiny("qwen2"), line, sp=last))
    found["odd sp"] = refused(lambda: parallelize(tiny("qwen2"), line, sp=1 if last else False))
    frozen = torch.nn.Linear(2, 2).requires_grad_(not last)
    found["frozen"] = refused(lambda: agree(frozen, group=line.get_group()))
    asked = replace(Env.current(), transport=TRANSPORTS[last])
    with patch.object(Env, "current", lambda: asked):
        found["transport"] = refused(lambda: agree(group=line.get_group()))
    plan = {"lm_head": "colwise"} if last else {"lm_head": "colwise", **OF_ATTENTION}
    found["plan"] = refused(lambda: parallelize(tiny("qwen2"), line, plan=plan))
    plan = {"nothing": "colwise"} if last else None
    found["refused plan"] = refused(lambda: parallelize(tiny("qwen2"), line, plan=plan))
    found["fewer"] = refused(lambda: model.logps(ids[: 69 if last else 70]))
    found["another"] = refused(lambda: model.logps(torch.where(ids == 7, 8, ids) if last else ids))
    found["alike"] = refused(lambda: model.logps(ids.int() if last else ids, temperature=1 if last else 1.0))
    return found | arguments(model, ids, last) | (patched_arguments(line, ids, last) if TRANSFORMERS else {})


def arguments(model: CausalLM, ids: torch.Tensor, last: bool) -> Found:
    """Return the errors of ranks of which the last calls the model with other arguments, or another function.

    And what ranks compute that do not compare them.
    """
    halves = ops.Layout.packed(torch.tensor([0, 30 + 5 * last, 70]), tokens=70)
    kept = Csr(torch.arange(71), torch.where(ids == 7, 8, ids) if last else ids)
    needs = ("logp", "entropy") if last else ("logp",)
    cache, part = model.cache(1, 8), integers(0, 5)
    calls: dict[str, Callable[[], object]] = {
        "temperature": lambda: model.logps(ids, temperature=0.5 if last else 1.0),
        "needs": lambda: model.logps(ids, needs=needs),
        "layout": lambda: model.logps(ids, halves),
        "support": lambda: model.logps(ids, support=kept),
        "call": lambda: (model if last else model.logps)(ids),
        "contexts": lambda: model.prefill(ids[:5], cache, integers(0).view(1, 1), integers(5 + last), part),
    }
    found: Found = {name: refused(call) for name, call in calls.items()}
    with patch.object(Ranks, "_exchanged", lambda *_: {}), torch.no_grad():
        return found | {"not compared": model.logps(ids, temperature=0.5 if last else 1.0).logp}


def patched_arguments(line: DeviceMesh, ids: torch.Tensor, last: bool) -> Found:
    """Return the same of a patched model."""
    made = parallelize(patched_of("qwen3, tied"), line)
    mask = torch.ones(2, 35, dtype=torch.int64)
    mask[1, 30 + last :] = 0
    rows = ids.view(2, 35)
    labels = torch.where(rows == 7, 8, rows) if last else rows
    calls: dict[str, Callable[[], object]] = {
        "temperature, patched": lambda: made.logps(rows, temperature=0.5 if last else 1.0),
        "layout, patched": lambda: made.logps(rows, attention_mask=mask),
        "labels, patched": lambda: made.model(rows, labels=labels),
    }
    return {name: refused(call) for name, call in calls.items()}


def refusals(line: DeviceMesh) -> Found:
    """Return the errors of ranks of which one refuses its ids, and then of ranks that all do."""
    last = line.get_local_rank() == 3
    model, ids, long = parallelize(tiny("qwen2"), line), integers(*range(70)), integers(*range(50)).repeat(20)
    outside, halves = torch.where(ids == 7, 96, ids), [0, 1000] if last else [0, 500, 1000]
    lengths = ops.Layout.packed(torch.tensor(halves), tokens=1000)
    found: Found = {"outside": refused(lambda: model.logps(outside if last else ids))}
    found["long"] = refused(lambda: model.logps(long, lengths))
    if TRANSFORMERS:
        patched = parallelize(patched_of("qwen3, tied"), line).model
        found["long, patched"] = refused(lambda: patched((long if last else ids)[None]))
    return found | {"outside on all": refused(lambda: model.logps(outside))}


def unwritten(model: CausalLM, folder: Path) -> str:
    """Return what a rank raises where the first one cannot make a folder."""
    file = folder.parent / f"file{dist.get_rank()}"
    file.touch()
    try:
        save_pretrained(model, file / "model", config=nn_cases.QWEN3 | SHARED | MODELS["qwen3, tied"])
    except (OSError, LaunchError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def saved(model: CausalLM, folder: Path) -> Found:
    """Return the files that ranks write, as the first one finds them afterwards."""
    save_pretrained(model, folder, config=nn_cases.QWEN3 | SHARED | MODELS["qwen3, tied"])
    if dist.get_rank():
        return {}
    return {f.name: torch.frombuffer(bytearray(f.read_bytes()), dtype=torch.uint8) for f in folder.iterdir()}


def stepped(model: CausalLM, leaves: int = 8) -> Found:
    """Return the norm of gradients that are there, and weights after a step that rounds stochastically."""
    norm = clip_grad_norm(model.named_parameters(), 0.05, leaves=leaves)
    AdamW(model.parameters(), lr=1e-2, seed=2**40 + 3).step()
    return {"norm": norm} | {name: p.detach().clone() for name, p in model.named_parameters()}


def stepped_as_whole(model: CausalLM) -> Found:
    """Return what ranks give that take their shares for whole weights."""
    with patch.object(norm, "share_of", lambda *_: None), patch.object(shards, "share_of", lambda *_: None):
        return stepped(model)


def sharded_shares(square: DeviceMesh) -> Found:
    """Return how many elements of parameters that ranks share and FSDP2 shards are not where `place` says."""
    models: dict[str, torch.nn.Module] = {"qwen2": parallelize(tiny("qwen2"), square, tp="tp")}
    if TRANSFORMERS:
        models["patched"] = parallelize(patched_of("qwen3, tied"), square, tp="tp").model
    found: Found = {}
    for kind, model in models.items():
        fully_shard(model, mesh=square["dp"])
        found[kind] = {name: misplaced(p, square) for name, p in model.named_parameters()}
    return found


def misplaced(p: torch.Tensor, square: DeviceMesh) -> list[int]:
    """Return how many elements of a rank are elsewhere in the whole parameter, and how many it has."""
    at, share = shards.place("test", "p", p), share_of(p)
    size = p.numel() * (1 if share is None else 2)
    numbers = torch.arange(size).view(
        [n * (2 if share and share.dim == i else 1) for i, n in enumerate(p.shape)]
    )
    if share is not None:
        numbers = numbers.chunk(2, share.dim)[square.get_local_rank("tp")]
    own = numbers.chunk(2)[square.get_local_rank("dp")].flatten()
    t = torch.arange(len(own))
    said = at.first + t // at.width * at.stride + t % at.width
    return [int((said != own).sum()), len(own)]


def kept(line: DeviceMesh, square: DeviceMesh, folder: Path) -> Found:
    """Return digests of models that DCP loaded: from shards of shares of two, and from shares of four."""
    both = fully_shard(parallelize(tiny("qwen2"), square, tp="tp").float(), mesh=square["dp"])
    dcp.save(sharded_state_dict(both), checkpoint_id=folder.parent / "kept")
    four = parallelize(tiny("qwen2"), line)
    four.model.layers = torch.nn.ModuleList(map(checkpoint_wrapper, four.model.layers))
    dcp.async_save(sharded_state_dict(four), checkpoint_id=folder).result()
    tied = patched_of("qwen3, tied") if TRANSFORMERS else tiny("qwen3, tied")
    dcp.save(sharded_state_dict(parallelize(tied, square, tp="tp")), checkpoint_id=folder.parent / "tied")
    models = {
        "shares of four": (four, folder.parent / "kept"),
        "shards of shares of two": (both, folder),
        "whole": (tiny("qwen2"), folder),
        "shards of four": (fully_shard(tiny("qwen2").float(), mesh=line), folder.parent / "kept"),
        "tied": (parallelize(tiny("qwen3, tied"), line), folder.parent / "tied"),
    }
    for model, path in models.values():
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        dcp.load(sharded_state_dict(model), checkpoint_id=path)
    return {name: sync.digest(model, dtype=torch.bfloat16).total for name, (model, _) in models.items()}


def metadata_of(state: dict[str, Any]) -> dcp.Metadata:
    """Return what DCP writes of a state of one rank."""
    planner = dcp.DefaultSavePlanner()
    planner.set_up_planner(state, None, True)
    return planner.create_global_plan([planner.create_local_plan()])[1]


def own_layers(of: Ranks) -> torch.nn.Sequential:
    """Return layers of rlk.parallel in a model that is none of rlk's."""
    return torch.nn.Sequential(
        VocabParallelEmbedding(16, 8, ranks=of),
        ColumnParallelLinear(8, 16, ranks=of, leaves=4),
        RowParallelLinear(16, 8, ranks=of, leaves=4),
    )


def kept_layers(of: Ranks, folder: Path) -> Found:
    """Return what DCP kept of such a model, whose weights count their elements."""
    model = own_layers(of)
    for layer in model:
        for name, p in layer.named_parameters():
            dim = layer.shares.get(name)
            shape = [size * (of.size if dim == i else 1) for i, size in enumerate(p.shape)]
            whole = torch.arange(float(prod(shape))).view(shape)
            p.data = whole if dim is None else whole.chunk(of.size, dim)[of.rank].clone()
    dcp.save(sharded_state_dict(model), checkpoint_id=folder)
    read = {name: torch.zeros(16, 8) for name in ("0.weight", "1.weight")}
    read |= {"1.bias": torch.zeros(16), "2.weight": torch.zeros(8, 16), "2.bias": torch.zeros(8)}
    dcp.load(read, checkpoint_id=folder)
    total = sync.digest(read).total
    for p in (copied := deepcopy(model)).parameters():
        p.grad = p.detach().clone()
    norm = clip_grad_norm(copied.named_parameters(), 1e9, leaves=4)
    assert sync.digest(model).total == sync.digest(dict(sync.gathered(copied))).total == total
    return {"read": read, "norm": norm}


@torch.no_grad()
def of_state(line: DeviceMesh, square: DeviceMesh) -> Found:
    """Return what a model computes of its own state dict, of another one, and with it as parameters."""
    model, ids = parallelize(tiny("qwen2"), line), batch()[0][0]
    name = "model.layers.0.mlp.down_proj.weight"
    state = model.state_dict()
    found: Found = {"hidden": model(ids), "called": functional_call(model, state, (ids,))}
    found["changed"] = functional_call(model, state | {name: state[name] + 1}, (ids,))
    found["gathered"] = ordered_gather(state[name], line.get_group())
    model.load_state_dict(state, assign=True)
    both = fully_shard(parallelize(tiny("qwen2"), square, tp="tp"), mesh=square["dp"])
    shard = both.state_dict()[name]
    found["shard"], found["whole shard"] = refused(lambda: metadata_of({name: shard})), shard.full_tensor()
    found["shared"] = share_of(dict(model.named_parameters())[name]) is not None
    return found | {"assigned": model(ids)}


def unloaded(line: DeviceMesh, folder: Path) -> tuple[str, str]:
    """Return what ranks raise of which the last one asks for a dtype that no model has."""
    dtype = torch.float64 if line.get_local_rank() == 3 else None
    return refused(lambda: from_pretrained(folder, line, dtype=dtype))


def lacking(line: DeviceMesh) -> tuple[str, str]:
    """Return what ranks raise of which the last one has no numerics."""
    last = line.get_local_rank() == 3
    with patch.object(CausalLM, "numerics_id", lambda *_: 1 // (not last)):
        try:
            return refused(lambda: parallelize(tiny("qwen2"), line))
        except ZeroDivisionError as error:
            return "ZeroDivisionError", str(error)


def absent(folder: Path) -> Found:
    """Return what a rank raises whose only partner does not come, and after how many seconds.

    The two are a group of their own: later, one that said nothing has made fewer comparisons.
    """
    pair, store, key = dist.new_group([0, 3]), _get_default_store(), "the other gave up"
    if dist.get_rank() == 3:
        store.wait([key], LIMIT)
    if dist.get_rank() != 0:
        return {}
    calls: dict[str, Callable[[], object]] = {"parallelize": lambda: parallelize(tiny("qwen2"), pair)}
    if TRANSFORMERS:
        calls["from_pretrained"] = lambda: from_pretrained(folder, pair)
    found, waits = {}, store.timeout
    store.set_timeout(timedelta(seconds=1))
    for name, call in calls.items():
        start = time.monotonic()
        found[name] = refused(call), time.monotonic() - start
    store.set_timeout(waits)
    store.set(key, "")
    return found


def died() -> tuple[str, float]:
    """Return what ends the backward pass of ranks of which the last one dies in it, and after what time."""
    model = parallelize(tiny("qwen2"), dist.new_group(timeout=SOON))
    loss = model.logps(integers(*range(70))).logp.sum()
    if dist.get_rank() == 3:
        model.model.layers[0].mlp.down_proj.weight.register_hook(lambda _: os._exit(0))
    start = time.monotonic()
    try:
        loss.backward()
    except Exception as error:
        return type(error).__name__, time.monotonic() - start
    return "", time.monotonic() - start


def transferred(line: DeviceMesh, square: DeviceMesh, folder: Path) -> Found:
    """Return weights that went from shards of four ranks to shares of two, and back; and refusals."""
    source = tiny("qwen2").float()
    for layer in source.model.layers:
        fully_shard(layer, mesh=line)
    fully_shard(source, mesh=line)
    target = parallelize(tiny("qwen2"), square, tp="tp")
    both = fully_shard(parallelize(tiny("qwen2"), square, tp="tp").float(), mesh=square["dp"])
    with torch.no_grad():
        for p in (*target.parameters(), *both.parameters()):
            p.zero_()
        total = sync.transfer(source, target).total
        arrived = {name: p.detach().clone() for name, p in target.named_parameters()}
        for p in source.parameters():
            p.zero_()
        totals = [sync.transfer(*pair).total for pair in ((target, both), (both, source))]
        if line.get_local_rank() == 3:
            target.model.layers[0].mlp.down_proj.weight[5, 7] += 1
    sent = sync.digest(source, dtype=torch.bfloat16)
    found: Found = {"total": total, "arrived": arrived, "f32 totals": totals, "sent": sent.total}
    config = nn_cases.QWEN3 | SHARED | MODELS["qwen2"]
    save_pretrained(both, folder, config=config)
    save_pretrained(source, folder.parent / "of FSDP2", config=config)  # f32 shards of four
    found["written"] = [sync.digest(each).total for each in (folder, folder.parent / "of FSDP2")]
    found["alone"] = refused(lambda: source.save_pretrained(folder, config=config))
    found["wrong"] = refused(lambda: sync.check(sent, sync.digest(target)))
    return found | {"other shape": refused(lambda: sync.transfer(source, torch.nn.Linear(2, 2)))}


# --- plans ---

OF_ATTENTION = {
    "layers.*.self_attn.[qkv]_proj": "colwise",  # names below "model.", as in a config's base_model_tp_plan
    "layers.*.self_attn.o_proj": "rowwise",
}
OF_LAYERS = OF_ATTENTION | {
    "layers.*.self_attn.[qk]_norm": "replicated_with_grad_allreduce",
    "layers.*.mlp.gate_proj": "colwise",
    "layers.*.mlp.up_proj": "colwise",
    "layers.*.mlp.down_proj": "rowwise",
}
OF_VOCABULARY = {"embed_tokens": "embedding_rowwise", "lm_head": "colwise_gather_output"}


def documented_plan() -> dict[str, ParallelStyle]:
    """Return the plan of docs/parallel.md, which leaves attention out."""
    return documented()["plan"]


def documented(**given: object) -> dict[str, Any]:
    """Run the lines of docs/parallel.md that make a plan, and if a model is given those that take it."""
    text = (Path(__file__).parents[1] / "docs/parallel.md").read_text(encoding="utf-8")
    shown = text.split("```python\n")[2].split("```")[0]
    names: dict[str, Any] = dict(given)
    exec(compile(shown if given else shown.split("model =")[0], "parallel.md", "exec"), names)
    return names


def planned(square: DeviceMesh) -> Found:
    """Return what pairs of ranks find with plans that leave layers out: each pair with its own."""
    first, model = square.get_local_rank("dp") == 0, tiny("qwen2")
    if first:
        model = documented(model=model, mesh=square)["model"]
    else:
        parallelize(model, square, tp="tp", sp=True, plan=OF_ATTENTION)
    found: Found = {"trained": training(model), "heads of a cache": model.cache(1, 8).keys.shape[-2]}
    with rounded_first(), torch.no_grad():
        found["rounded first"] = model.logps(*batch()).logp
    if TRANSFORMERS:
        plan, made = OF_LAYERS if first else OF_VOCABULARY, patched_of("qwen3, tied")
        found["patched"] = trained_patched(parallelize(made, square, tp="tp", sp=not first, plan=plan))
    return found


# --- eight ranks ---


def of_eight(**options: object) -> CausalLM:
    """Return a model that eight ranks can share: a head of keys and a leaf each."""
    return tiny("qwen2", num_key_value_heads=8, **options)


def step_of(model: CausalLM) -> Found:
    """Return what `training` finds, and the weights after a step of AdamW with clipped gradients."""
    made = {name: x.clone() for name, x in training(model).items()}
    return made | {f"{name} after": x for name, x in stepped(model).items()}


# --- one rank ---


def prepare(world: int) -> None:
    """Trace, before there are eight ranks, what they have in common with one that has the whole model."""
    if world == 8:
        training(of_eight())


def main(backend: str, world: int, rank: int, folder: Path) -> None:
    """Run everything as one rank of four, or a step as one of eight, and write what it found."""
    with member(backend, world, rank, folder, LIMIT) as device:
        if world == 8:
            line = init_device_mesh(device.type, (8,))
            found = {"step": step_of(parallelize(of_eight(), line))}
            found["by tokens"] = training(parallelize(of_eight(), line, sp=True))
            return torch.save(found, folder / f"{rank}.pt")
        square = init_device_mesh(device.type, (2, 2), mesh_dim_names=("dp", "tp"))
        line = init_device_mesh(device.type, (4,))
        found = everything(square, line, folder / "saved")
        torch.save(found, folder / f"{rank}.pt")
        if backend == "gloo":  # at last, since a rank of them dies
            torch.save(found | {"died": died()}, folder / f"{rank}.pt")
            os._exit(0)


def everything(square: DeviceMesh, line: DeviceMesh, folder: Path) -> Found:
    def shared(name: str, tp: int, sp: bool) -> CausalLM:
        if tp == 2:
            return parallelize(tiny(name), square, tp="tp", sp=sp)
        return parallelize(tiny(name), line, sp=sp)

    found: Found = {}
    for name, tp, sp in WAYS:
        model = shared(name, tp, sp)
        if sp:
            model.gradient_checkpointing_enable()
        found[way(name, tp, sp)] = {key: x.clone() for key, x in training(model).items()}
        if name == "qwen2" and not sp:  # it clips the gradients
            found[f"stepped on {tp}"] = stepped(model)
    if TRANSFORMERS:
        found["patched"] = trained_patched(parallelize(patched_of("qwen3, tied"), line, sp=True))
    calls: dict[str, Callable[[], Found]] = {
        "rollout": lambda: rollout(shared("qwen3, tied", 4, False)),
        "rollout by tokens": lambda: rollout(shared("qwen3, tied", 4, True)),
        "unwritten": lambda: {"said": unwritten(shared("qwen3, tied", 4, True), folder)},
        "saved": lambda: saved(shared("qwen3, tied", 4, True), folder),
        "products": lambda: products(Ranks(line.get_group(), 4, line.get_rank())),
        "embedded": lambda: embedded(Ranks(line.get_group(), 4, line.get_rank())),
        "norms": lambda: norms(Ranks(line.get_group(), 4, line.get_rank(), sequence=True)),
        "layers alone": lambda: layers_alone(Ranks(line.get_group(), 4, line.get_rank(), sequence=True)),
        "sharded shares": lambda: sharded_shares(square),
        "transferred": lambda: transferred(line, square, folder.parent / "sharded"),
        "kept": lambda: kept(line, square, folder.parent / "kept, too"),
        "kept layers": lambda: kept_layers(Ranks(line.get_group(), 4, line.get_rank()), folder / "own"),
        "of state": lambda: of_state(line, square),
        "stepped as whole": lambda: stepped_as_whole(trained(shared("qwen2", 2, False))),
        "disagreements": lambda: disagreements(line, folder),
        "refusals": lambda: refusals(line),
        "lacking": lambda: lacking(line),
        "absent": lambda: absent(folder),
        "planned": lambda: planned(square),
        "another tree": lambda: another_tree(line),
    }
    if TRANSFORMERS:  # which reads config.json
        calls["unloaded"] = lambda: unloaded(line, folder)
        calls["loaded"] = lambda: dict(from_pretrained(folder, square, tp="tp", sp=True).named_parameters())
    return found | {name: call() for name, call in calls.items()}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
