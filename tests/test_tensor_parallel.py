"""Models whose weights ranks share have the bits of one rank: log-probs, logits, gradients, rollout."""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from contextlib import nullcontext
from copy import copy, deepcopy
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import rank_cases
import safetensors.torch
import tensor_parallel_cases
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from nn_cases import QWEN3
from rank_cases import Found
from tensor_parallel_cases import MODELS, SHARED, WAYS, metadata_of, of_eight, way
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.utils._pytree import tree_leaves

from rlk import ops
from rlk.errors import Code, LaunchError, UnsupportedError
from rlk.nn import CausalLM, Linear
from rlk.nn import ranks as nn_ranks
from rlk.nn.ranks import Ranks
from rlk.optim import AdamW, clip_grad_norm, grad_norm
from rlk.parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    SequenceParallelRMSNorm,
    VocabParallelEmbedding,
    checkpoint,
    from_pretrained,
    parallelize,
)
from rlk.parallel.plan import Cut, check_shares, cuts_of
from rlk.parallel.styles import resolved
from rlk.runtime.binding.parts import PartOfWeight, part
from rlk.runtime.call.collective import SHARE, Share, share_of
from rlk.sync import digest
from rlk.testing.bits import assert_same_bits, differing

WORLD = 4


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    folder, seconds = tmp_path_factory.mktemp("parallel"), 2 * tensor_parallel_cases.LIMIT.seconds
    return rank_cases.run("gloo", WORLD, folder, "tensor_parallel_cases", seconds)


@cache
def alone(name: str) -> Found:
    """Return what one rank with the whole model finds."""
    return tensor_parallel_cases.training(tensor_parallel_cases.tiny(name))


def cuts(name: str, tp: int, rank: int) -> dict[str, Cut]:
    return cuts_of(tensor_parallel_cases.tiny(name), Ranks(fake_group(rank, tp), tp, rank))


def fake_group(rank: int, size: int) -> dist.ProcessGroup:
    """Return a group that can send nothing."""
    return dist.ProcessGroup(rank, size)


def others(got: Found, want: Found, parts: dict[str, Cut]) -> dict[str, int]:
    """Return how many elements of each result differ in their bits, of a rank's part of the whole."""
    assert got.keys() == want.keys()
    return {name: differing(got[name], x[parts.get(name, ())]) for name, x in want.items()}


# --- 0 differing bits ---


@pytest.mark.parametrize(("name", "tp", "sp"), WAYS)
def test_log_probs_logits_and_all_gradients_are_those_of_one_rank(
    name: str, tp: int, sp: bool, ranks: list[Found]
) -> None:
    for rank, found in enumerate(ranks):
        made = others(found[way(name, tp, sp)], alone(name), cuts(name, tp, rank % tp))
        assert not any(made.values()), made


def test_a_step_of_eight_ranks_is_that_of_one(tmp_path: Path) -> None:
    found = rank_cases.run("gloo", 8, tmp_path, "tensor_parallel_cases")
    want, other = (tensor_parallel_cases.step_of(of_eight(rlk_leaves=leaves)) for leaves in (8, 4))
    for rank, got in enumerate(found):
        parts = cuts_of(of_eight(), Ranks(fake_group(rank, 8), 8, rank))
        parts |= {f"{name} after": cut for name, cut in parts.items()}
        for how in ("step", "by tokens"):  # of the tokens of a batch the last ranks have none
            made = others(got[how], {name: want[name] for name in got[how]}, parts)
            assert {"logp", "lm_head.weight"} < {*made} and not any(made.values()), made
            assert others(got[how], {name: other[name] for name in got[how]}, parts)["logp"] > 0


def test_elements_of_shares_that_fsdp_shards_again_have_their_places(ranks: list[Found]) -> None:
    for found in ranks:
        kinds = {"qwen2": "qwen2", "patched": "qwen3, tied"}
        for kind, said in found["sharded shares"].items():
            assert {*said, "lm_head.weight"} > cuts(kinds[kind], 2, 0).keys()  # tied weights have one name
            assert {name: wrong for name, (wrong, _) in said.items() if wrong} == {}
            assert min(count for _, count in said.values()) > 0


@cache
def alone_stepped() -> Found:
    return tensor_parallel_cases.stepped(tensor_parallel_cases.trained(tensor_parallel_cases.tiny("qwen2")))


@pytest.mark.parametrize("tp", [2, 4])
def test_norms_clipping_and_stochastic_steps_of_shares_are_those_of_whole_weights(
    tp: int, ranks: list[Found]
) -> None:
    want = alone_stepped()
    assert want["norm"] > 0.05  # the gradients were clipped
    for rank, found in enumerate(ranks):
        made = others(found[f"stepped on {tp}"], want, cuts("qwen2", tp, rank % tp))
        assert not any(made.values()), made


def test_shares_that_are_taken_for_whole_weights_are_seen(ranks: list[Found]) -> None:
    """The control."""
    for rank, found in enumerate(ranks):
        made = others(found["stepped as whole"], alone_stepped(), cuts("qwen2", 2, rank % 2))
        assert made["norm"] and sum(made.values()) > 500, made


def test_a_rollout_on_four_ranks_has_the_bits_of_one(ranks: list[Found]) -> None:
    model = tensor_parallel_cases.tiny("qwen3, tied")
    want = tensor_parallel_cases.rollout(model)
    ids = tensor_parallel_cases.batch()[0][1]
    rows = want["logits"].shape[0]
    with torch.no_grad():  # and those of the training forward
        assert_same_bits(want["logits"], model.logits(model(ids))[:rows])
    for found in ranks:
        for how in ("rollout", "rollout by tokens"):
            assert found[how].keys() == want.keys()
            for name, x in want.items():
                assert_same_bits(found[how][name], x, f"{how}: {name}")


def test_a_patched_model_has_the_bits_of_one_rank(ranks: list[Found]) -> None:
    pytest.importorskip("transformers")
    name = "qwen3, tied"
    want = alone(name) | {"cached": alone(name)["logits"][1, : tensor_parallel_cases.PROMPT + 3]}
    for rank, found in enumerate(ranks):
        made = others(found["patched"], want, cuts(name, WORLD, rank))
        assert not any(made.values()), made


def test_layers_sum_their_leaves_as_one_rank_does(ranks: list[Found]) -> None:
    x, w, _ = tensor_parallel_cases.factors()
    want = ops.matmul(x, w, leaves=4)
    for found in ranks:
        assert_same_bits(found["products"]["tree"], ops.matmul(x, w, leaves=4, out_dtype=torch.float32))
        # d x of the column-parallel layer contracts the same numbers in the same leaves
        assert_same_bits(found["products"]["row"], want)
        assert_same_bits(found["products"]["column"], want)


def test_ranks_add_a_bias_once_after_the_sum(ranks: list[Found]) -> None:
    x, w, d_y = tensor_parallel_cases.factors()
    whole = Linear(512, 70, parallel="rows", leaves=4)
    whole.weight.data, whole.bias.data = w, d_y[0]
    y = whole(x)
    y.backward(d_y)
    for rank, found in enumerate(ranks):
        made = found["products"]["biased"]
        assert_same_bits(made["y"], y.detach())
        assert_same_bits(made["bias"], whole.bias.grad)
        assert_same_bits(made["weight"], whole.weight.grad[:, rank * 128 : (rank + 1) * 128])
    # the control: a sum that is rounded before
    assert differing((ops.matmul(x, w, leaves=4) + d_y[0]), y.detach()) > 500


def test_embeddings_keep_every_bit_and_ids_of_no_rank_give_nan(ranks: list[Found]) -> None:
    want = ops.embedding(tensor_parallel_cases.strange_ids(), tensor_parallel_cases.strange_table())
    for found in ranks:
        assert_same_bits(found["embedded"]["rows"], want)


def test_layers_without_a_model_know_how_many_tokens_all_ranks_have(ranks: list[Found]) -> None:
    table, w, ids = tensor_parallel_cases.sequence_of_layers()
    want = ops.matmul(ops.embedding(ids, table), w)
    for rank, found in enumerate(ranks):
        assert_same_bits(found["layers alone"]["columns"], want[:, rank * 4 : rank * 4 + 4])
        kept, own = found["layers alone"]["bytes kept"]
        assert kept == own  # not the rows of all ranks
        assert "RowParallelLinear: x.shape=(2, 3, 4)" in found["layers alone"]["three dims"][1]
        code, text = found["layers alone"]["other tokens"]
        assert code == "ARG_VALUE" and "ranks.tokens = 600" in text


def test_norms_of_a_rank_have_the_weights_gradient_of_all(ranks: list[Found]) -> None:
    rows, heads = tensor_parallel_cases.normed_rows(None), tensor_parallel_cases.normed_heads(None)
    for rank, found in enumerate(ranks):
        own = Ranks(fake_group(rank, WORLD), WORLD, rank, sequence=True).rows(167)
        for name, x in rows.items():
            assert_same_bits(found["norms"]["rows"][name], x if "whole" in name else x[own], name)
        for name, x in heads.items():
            part = x if "whole" in name else x[:, rank * 2 : rank * 2 + 2]
            assert_same_bits(found["norms"]["heads"][name], part, name)


def test_weights_of_four_shards_become_shares_of_two_ranks_by_a_checked_copy(ranks: list[Found]) -> None:
    model = tensor_parallel_cases.tiny("qwen2")
    whole, total = dict(model.named_parameters()), digest(model).total
    for rank, found in enumerate(ranks):
        made = found["transferred"]
        assert made["total"] == total
        parts = cuts("qwen2", 2, rank % 2)
        for name, p in made["arrived"].items():
            assert_same_bits(p, whole[name][parts.get(name, ())], name)
        code, text = made["wrong"]  # the control: of the pair that holds one changed element
        assert code == ("WEIGHTS_DIFFER" if rank > 1 else ""), text
        assert rank < 2 or "model.layers.0.mlp.down_proj.weight: 1 of 1 blocks differ" in text
        code, text = made["other shape"]
        assert code == "ARG_VALUE" and "other names" in text, text
        # into f32 shards of the shares, and from these into the first shards
        assert made["f32 totals"] == [digest(model, dtype=torch.float32).total] * 2
        assert made["written"] == made["f32 totals"]  # one rank of four wrote the whole weights
        assert made["sent"] == total
        code, text = made["alone"]
        assert code == "ARG_VALUE" and "rlk.parallel.save_pretrained for it" in text


def test_a_share_is_saved_without_its_ranks(tmp_path: Path) -> None:
    p = torch.nn.Parameter(torch.randn(3, 4))
    setattr(p, SHARE, Share(fake_group(0, 2), 1))
    torch.save({"p": p}, tmp_path / "p.pt")
    loaded = torch.load(tmp_path / "p.pt")["p"]
    assert_same_bits(loaded, p)
    assert isinstance(loaded, torch.nn.Parameter) and share_of(loaded) is None and share_of(p) is not None


def test_weights_that_dcp_keeps_are_whole_ones(ranks: list[Found]) -> None:
    totals = {name: digest(tensor_parallel_cases.tiny(name)).total for name in ("qwen2", "qwen3, tied")}
    for found in ranks:
        assert len(found["kept"]) == 5 and found["kept"].pop("tied") == totals["qwen3, tied"]
        assert set(found["kept"].values()) == {totals["qwen2"]}
        made = found["kept layers"]  # of a model that is none of rlk's
        for name, x in made["read"].items():
            assert_same_bits(x, torch.arange(float(x.numel())).view(x.shape), name)
            x.grad = x.clone()
        assert_same_bits(made["norm"], clip_grad_norm(made["read"].items(), 1e9, leaves=4))


def test_a_state_dict_is_of_use_to_the_model_and_its_ranks(ranks: list[Found]) -> None:
    weight = tensor_parallel_cases.tiny("qwen2").model.layers[0].mlp.down_proj.weight
    for rank, found in enumerate(ranks):
        made = found["of state"]
        code, text = made.pop("shard")
        assert code == "ARG_TYPE" and "down_proj.weight must be a whole weight or a DTensor, since" in text
        assert_same_bits(made.pop("whole shard"), weight.chunk(2, 1)[rank % 2])
        assert_same_bits(made["called"], made["hidden"])
        assert_same_bits(made["assigned"], made["hidden"])
        assert differing(made["changed"], made["hidden"]) > 100  # the control: of another weight
        assert_same_bits(torch.cat([*made["gathered"]], 1), weight)
        assert {type(x) for x in made.values()} == {torch.Tensor, bool} and made["shared"]


def test_state_dicts_of_shares_are_refused_by_dcp(tmp_path: Path, initialized: None) -> None:
    """It keeps one tensor of each name: those of the other ranks would be lost without a word."""
    name = "model.embed_tokens.weight"
    model = parallelize(tensor_parallel_cases.tiny("qwen2"), fake_group(1, 2))
    optimizer = AdamW([p for each, p in model.named_parameters() if "norm" in each or "o_proj" in each])
    for group in optimizer.param_groups:
        for p in group["params"]:
            optimizer._state(p)
    earlier = metadata_of(dict(model.named_parameters()))  # the control: nobody says what these are
    held = model.state_dict()[name]
    stager = dcp.staging.DefaultStager(dcp.staging.StagingOptions(False, False, False, False))
    for state, first in (
        (model.state_dict(), name),
        (deepcopy(model).state_dict(), name),
        (stager.stage(model.state_dict()), name),  # as async_save does
        ({name: held.cpu().clone()}, name),
        ({name: copy(held)}, name),
        ({name: held.data.half().float()}, name),
        ({name: held.to(torch.float64).type(torch.bfloat16)}, name),
        (optimizer.state_dict(), "state.0.exp_avg"),
        (tensor_parallel_cases.own_layers(Ranks(fake_group(1, 2), 2, 1)).state_dict(), "0.weight"),
    ):
        with pytest.raises(LaunchError, match=f"{first} must be .*rlk.parallel.sharded_state_dict") as raised:
            metadata_of(state)
        assert raised.value.code is Code.ARG_TYPE and "an optimizer by torch.save" in str(raised.value)
    assert metadata_of(tensor_parallel_cases.own_layers(Ranks(fake_group(0, 1), 1, 0)).state_dict())
    planner = dcp.DefaultLoadPlanner()
    planner.set_up_planner(model.state_dict(), earlier, True)
    with pytest.raises(LaunchError, match="state_dict must be a whole weight or a DTensor"):
        planner.create_local_plan()
    for state in (model.state_dict(), optimizer.state_dict()):
        torch.save(state, tmp_path / "state.pt")
        loaded = torch.load(tmp_path / "state.pt")
        tensors = [x for x in tree_leaves(loaded) if isinstance(x, torch.Tensor)]
        assert tensors and all(type(x) is torch.Tensor for x in tensors)
    optimizer.load_state_dict(optimizer.state_dict())
    assert {type(x) for each in optimizer.state.values() for x in each.values()} == {int, torch.Tensor}


def test_parts_of_weights_are_tensors_like_others(initialized: None) -> None:
    name, model = "model.embed_tokens.weight", tensor_parallel_cases.tiny("qwen3, tied")
    state = parallelize(model, fake_group(1, 2)).state_dict()
    held = state[name]
    assert type(held) is type(held.detach()) is PartOfWeight  # the control
    y = torch.ones(held.shape)
    for made in (held + 1, held[0], torch.cat([held, held]), held.new_empty(2, 3), held.sum(), held.T):
        assert type(made) is torch.Tensor
    assert {type(x) for x in (y.to(held), y.view_as(held))} == {torch.Tensor}  # like a part
    y = held.detach().requires_grad_()
    (y * 2).sum().backward()
    assert type(y.grad) is torch.Tensor and y.grad.eq(2).all()
    both = deepcopy({each: state[each] for each in (name, "lm_head.weight")}).values()
    assert len({x.data_ptr() for x in (*both, held)}) == 2 and {type(x) for x in both} == {PartOfWeight}
    assert copy(held).data_ptr() == held.data_ptr()
    sent = pickle.loads(ForkingPickler.dumps(held.detach()))  # as through a queue of processes
    sent[0, 0] = 7
    assert type(sent) is PartOfWeight and held[0, 0] == 7 and held.is_shared()
    with pytest.raises(LaunchError, match="a rank's part of a weight.*\n.*whole tensors: give the model"):
        digest(state)
    digest({name: held.float() + 0})  # the control: what others computed of it
    model.load_state_dict(model.state_dict(), assign=True)
    assert {type(p) for p in model.parameters()} == {torch.nn.Parameter}
    with FakeTensorMode():
        assert type(part(torch.empty(2))) is FakeTensor


@pytest.mark.parametrize("sp", [False, True])
def test_layers_of_one_rank_run_the_products_of_whole_layers(
    sp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an f32 part in memory, which `Ranks.total` would round, and with as many nodes of autograd."""
    monkeypatch.setattr(Ranks, "total", None)
    one = Ranks(fake_group(0, 1), 1, 0, sp)
    x, w, d_y = tensor_parallel_cases.factors()
    x[:, 256:], w[:, 256:] = x[:, :256], -1.01 * w[:, :256]  # small sums show their order in 16 bits
    for kind, parallel, (given, weight, seed) in (
        (RowParallelLinear, "rows", (x, w, d_y)),
        (ColumnParallelLinear, "columns", (d_y, w.t().contiguous(), x)),
    ):
        sizes = weight.shape[1], weight.shape[0]
        layers = [kind(*sizes, ranks=one, leaves=4, dtype=torch.bfloat16)]
        layers += [Linear(*sizes, parallel=parallel, leaves=n, dtype=torch.bfloat16) for n in (4, 1)]
        found, steps = [], []
        for layer in layers:
            layer.weight.data, layer.bias.data = weight, seed[0]
            row = given.clone().requires_grad_()
            y = layer(row)
            y.backward(seed)
            found.append((y.detach(), row.grad, layer.weight.grad, layer.bias.grad))
            steps.append(nodes(y))
        assert steps[0] == steps[1]
        for got, want in zip(*found[:2], strict=True):
            assert_same_bits(got, want)
        # the control: one leaf
        assert sum(differing(got, other) for got, other in zip(found[0], found[2], strict=True)) > 10
    two = Ranks(fake_group(0, 2), 2, 0)  # the control: a node more, for the sum over ranks
    y = ColumnParallelLinear(16, 64, ranks=two, leaves=4, dtype=torch.bfloat16)(x[:2, :16])
    assert nodes(y)["_InputGradientBackward"] == 1 and "_InputGradientBackward" not in steps[0]
    table, ids = tensor_parallel_cases.strange_table(), tensor_parallel_cases.strange_ids()
    layer = VocabParallelEmbedding(*table.shape, ranks=one, dtype=torch.bfloat16)
    layer.weight.data = table
    assert_same_bits(layer(ids).detach(), ops.embedding(ids, table))


def nodes(y: torch.Tensor) -> Counter[str]:
    """Return the nodes of autograd behind a tensor, by their names."""
    found, left = dict[Any, str](), [y.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found[node] = node.name()
            left += [behind for behind, _ in node.next_functions]
    return Counter(found.values())


# --- plans that leave layers out ---


def planned_cuts(name: str, plan: Any, sp: bool, rank: int) -> dict[str, Cut]:
    whole = tensor_parallel_cases.tiny(name)
    return cuts_of(whole, Ranks(fake_group(rank, 2), 2, rank), resolved(whole, plan, sp))


def test_plans_that_leave_layers_out_have_the_bits_of_one_rank(ranks: list[Found]) -> None:
    """Pairs of ranks: the plan of the docs without attention, and one of attention alone."""
    plans = (tensor_parallel_cases.documented_plan(), tensor_parallel_cases.OF_ATTENTION)
    for rank, found in enumerate(ranks):
        plan, made = plans[rank // 2], found["planned"]
        parts = planned_cuts("qwen2", plan, True, rank % 2)
        assert {len(parts), made["heads of a cache"]} == ({5, 4} if rank < 2 else {7, 2})
        counted = others(made["trained"], alone("qwen2"), parts)
        assert not any(counted.values()), counted
        # the control: parts that are rounded first
        assert differing(made["rounded first"], alone("qwen2")["logp"]) > 20


def test_a_plan_of_transformers_shares_a_patched_model(ranks: list[Found]) -> None:
    """Without the tied embedding, and of it alone with the tokens shared."""
    pytest.importorskip("transformers")
    name, plans = "qwen3, tied", (tensor_parallel_cases.OF_LAYERS, tensor_parallel_cases.OF_VOCABULARY)
    assert transformers_plan().items() <= expanded(plans[0]).items()
    want = alone(name) | {"cached": alone(name)["logits"][1, : tensor_parallel_cases.PROMPT + 3]}
    for rank, found in enumerate(ranks):
        parts = planned_cuts(name, plans[rank // 2], rank > 1, rank % 2)
        assert len(parts) == (14 if rank < 2 else 2)
        counted = others(found["planned"]["patched"], want, parts)
        assert not any(counted.values()), counted


def transformers_plan() -> dict[str, str]:
    from transformers import Qwen3Config

    assert Qwen3Config.base_model_tp_plan is not None
    return Qwen3Config.base_model_tp_plan


def expanded(plan: dict[str, str]) -> dict[str, str]:
    """Return a plan without lists of letters in its patterns."""
    found = {}
    for pattern, style in plan.items():
        letters = re.search(r"\[(\w+)\]", pattern)
        for each in letters[1] if letters else "":
            found[pattern.replace(letters[0], each)] = style
        found |= {} if letters else {pattern: style}
    return found


EMBEDDING, HEAD, NORM = "model.embed_tokens", "lm_head", "model.norm"
Q, O, HOLDER = "layers.*.self_attn.q_proj", "layers.0.self_attn.o_proj", "layers.*.mlp"
GATE, UP, DOWN = (f"layers.*.mlp.{each}_proj" for each in ("gate", "up", "down"))
MLP = {GATE: "colwise", UP: "colwise", DOWN: "row"}
HEADS = "layers.*.self_attn.q_norm"
KEPT = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1))
PUT = PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate())
BAD_PLANS: dict[str, tuple[Any, str]] = {
    "a pattern of no module": ({"model.layer.*.mlp": "colwise"}, "plan='model.layer.*.mlp' .*none of it"),
    "a pattern of fewer parts": ({"model.layers.*": "colwise"}, "of model.layers.0: left out"),
    "a number": ({3: "colwise"}, "plan=3 "),
    "rows of q": ({Q: RowwiseParallel()}, "=RowwiseParallel.*of model.layers.0.self_attn.q_proj: Colwise"),
    "columns of down": ({DOWN: ColwiseParallel()}, "of model.layers.0.mlp.down_proj: Rowwise.* 'rowwise'"),
    "an unknown word": ({DOWN: "rowwise_split_input"}, "'rowwise_split_input'"),
    "whole results": ({UP: ColwiseParallel(output_layouts=Replicate())}, "and output_layouts=Shard.-1"),
    "tokens without sp": (
        {DOWN: RowwiseParallel(output_layouts=Shard(1)), NORM: SequenceParallel()},
        r"^parallelize: plan='layers[^\n]*down_proj and 1 more, by shares of the tokens' .* sp=True beside",
    ),
    "tokens of heads": ({HEADS: SequenceParallel()}, "or SequenceParallel.sequence_dim=2."),
    "some norms, sp": ({NORM: SequenceParallel()}, "model.norm without model.layers.0.input_layernorm"),
    "another dim, sp": ({NORM: SequenceParallel(sequence_dim=2)}, "sequence_dim=2"),
    "an input, sp": ({HOLDER: KEPT}, "whose desired layout is Replicate"),
    "an output, sp": ({HOLDER: PUT}, "=PrepareModuleOutput"),
    "columns of an embedding": ({EMBEDDING: ColwiseParallel()}, "RowwiseParallel.input_layouts=Replicate"),
    "ids that ranks share": ({EMBEDDING: RowwiseParallel()}, "RowwiseParallel.input_layouts=Replicate"),
    "q alone": ({Q: "colwise"}, "q_proj without .*o_proj.*all 4 of model.layers.0.self_attn, or none"),
    "no down": ({UP: "colwise", GATE: "colwise"}, "all 3 of model.layers.0.mlp, or none"),
    "attention of one layer": (
        {"layers.0.self_attn.[qkv]_proj": "colwise", O: "row"},
        "layers.0.self_attn without model.layers.1.self_attn.*as many heads",
    ),
    "half of a tied weight": ({**MLP, HEAD: "colwise"}, "lm_head without model.embed_tokens.*tied"),
    "two styles of a module": ({**MLP, f"{HOLDER}.*": "colwise"}, "down_proj.*: RowwiseParallel"),
    "two forms of a norm, sp": (
        {"model.norm": "replicated_with_grad_allreduce", "norm": SequenceParallel()}, "that of 'model.norm'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_PLANS)
def test_plans_that_have_no_form_are_refused_on_every_rank(what: str, initialized: None) -> None:
    (plan, words), model, said = BAD_PLANS[what], tied_model(), set()
    for rank, size in ((0, 2), (1, 2), (0, 1)):  # one rank alone checks its plan too
        with pytest.raises(LaunchError) as raised:
            parallelize(model, fake_group(rank, size), sp=what.endswith(", sp"), plan=plan)
        assert raised.value.code is Code.ARG_VALUE
        said.add(str(raised.value))
    (text,) = said
    assert re.search(words, text, re.DOTALL), text
    assert model.model.ranks is None


def test_a_plan_may_say_what_is_so_without_it() -> None:
    """Results that are DTensors, which rlk passes nowhere, and norms of a rank's own heads: as torchtitan."""
    said = {GATE: ColwiseParallel(use_local_output=False), UP: ColwiseParallel(), DOWN: RowwiseParallel()}
    styles = resolved(tied_model(), said | {HEADS: SequenceParallel(sequence_dim=2)}, False)
    assert styles == resolved(tied_model(), MLP, False)


@cache
def tied_model() -> CausalLM:
    return tensor_parallel_cases.tiny("qwen3, tied")


def test_a_plan_says_what_must_be_shared_evenly(initialized: None) -> None:
    model = tensor_parallel_cases.tiny("qwen2", vocab_size=100)
    with pytest.raises(LaunchError, match="plan must be a dict of styles by patterns of names, got list"):
        parallelize(model, fake_group(0, 2), plan=[])  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="vocab_size=100"):
        parallelize(model, fake_group(0, 8), plan={**MLP, HEAD: "vocab"})
    made = parallelize(model, fake_group(1, 8), plan=MLP)  # more ranks than key heads
    assert made.model.layers[0].mlp.down_proj.weight.shape == (32, 8)
    assert made.model.embed_tokens.weight.shape == (100, 32)


def test_a_rank_reads_what_a_plan_gives_it(
    folder: Path, initialized: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, group = tensor_parallel_cases.OF_ATTENTION, fake_group(3, WORLD)
    model, whole = from_pretrained(folder, group, plan=plan), tensor_parallel_cases.tiny("qwen2")
    parts = cuts_of(whole, Ranks(group, WORLD, 3), resolved(whole, plan, False))
    wanted = dict(whole.named_parameters())
    for name, p in model.named_parameters():
        assert_same_bits(p, wanted[name][parts.get(name, ())], name)
    assert_marked(model, parts)


# --- controls ---


def test_a_plain_all_reduce_has_other_bits(ranks: list[Found]) -> None:
    x, w, _ = tensor_parallel_cases.factors()
    for found in ranks:
        assert differing(found["products"]["plain"], ops.matmul(x, w, out_dtype=torch.float32)) > 1000


def test_another_tree_over_ranks_has_other_bits(ranks: list[Found]) -> None:
    name = "qwen3, tied"
    for rank, found in enumerate(ranks):
        made = others(found["another tree"], alone(name), cuts(name, WORLD, rank))
        assert all(made[name] > 5 for name in ("logp", "entropy", "logits")), made
        gradients = [name for name in made if "." in name]
        assert sum(made[name] > 0 for name in gradients) > len(gradients) // 2, made


def test_cuts_inside_a_piece_of_tokens_have_other_bits(ranks: list[Found]) -> None:
    want = tensor_parallel_cases.normed_rows(None)
    for found in ranks:
        for name in ("whole d_weight", "whole d_weight of a total"):
            assert differing(found["norms"]["pieces of 32"][name], want[name]) > 5


def test_leaves_are_part_of_the_bits() -> None:
    name = "qwen3, tied"
    other = tensor_parallel_cases.training(tensor_parallel_cases.tiny(name, rlk_leaves=4))
    assert all(count > 5 for count in others(other, alone(name), {}).values())


# --- ranks that disagree ---


def test_ranks_that_disagree_raise_one_error_before_they_share(ranks: list[Found]) -> None:
    words = {
        "leaves": ("parallelize: ranks differ in 2", "numerics id: ", "leaves: 8 on rank 0, 4 on rank 3"),
        "loaded": ("from_pretrained: ranks differ in 2", "leaves: 8 on rank 0, 4 on rank 3"),
        "sp": ("sp: False on rank 0, True on rank 3", "give all ranks the same sp "),
        "odd sp": ("sp: False on rank 0, 1 on rank 3", "taken on rank 0, parallelize: sp must be a bool"),
        "frozen": ("in 2 facts", "bias: float32 [2] on rank 0, float32 [2] frozen on rank 3"),
        "transport": ("in 1 fact\n", "RLK_TRANSPORT: symmetric on rank 0, backend on rank 3"),
        "plan": (
            "in 4 facts", "plan of model.layers.*.self_attn.o_proj: row on rank 0, nothing on rank 3",
            "give all ranks the same plan ",
        ),
        "refused plan": ("plan: taken on rank 0, parallelize: plan='nothing' is not allowed on rank 3",),
        "fewer": ("ranks differ in 3 facts", "tokens: 70 on rank 0, 69 on rank 3"),
        "another": ("ranks differ in 1 fact\n", "digest of ids: "),
        "temperature": (
            "logps: ranks differ in 1 fact\n", "temperature: 1.0 on rank 0, 0.5 on rank 3",
            "make the same calls",
        ),
        "needs": ("ranks differ in 1 fact\n", "needs: [logp] on rank 0, [logp, entropy] on rank 3"),
        "layout": ("ranks differ in 1 fact\n", "cu_seqlens: [0, 30, 70] on rank 0, [0, 35, 70] on rank 3"),
        "support": ("ranks differ in 1 fact\n", "support: [torch.int64 [71] "),
        "call": ("rlk.parallel: ranks differ", "call: logps on rank 0, forward on rank 3",),
        "contexts": ("ranks differ in 1 fact\n", "context_lens: [5] on rank 0, [6] on rank 3"),
        "temperature, patched": ("ranks differ in 1 fact\n", "temperature: 1.0 on rank 0, 0.5 on rank 3"),
        "layout, patched": ("cu_seqlens: [0, 35, 65] on rank 0, [0, 35, 66] on rank 3",),
        "labels, patched": ("ranks differ in 1 fact\n", "labels: torch.int32 [2, 35] "),
    }  # fmt: skip
    for found in ranks:
        for what, said in words.items():
            if what not in found["disagreements"]:  # without transformers
                continue
            code, text = found["disagreements"][what]
            assert code == "RANKS_DIFFER" and all(each in text for each in said), text
            of_model = what in ("leaves", "loaded", "frozen")
            assert ("one model, with" in text) == of_model and "version" not in text
        said = {what: each for what, each in found["disagreements"].items() if what != "not compared"}
        assert said == {what: ranks[0]["disagreements"][what] for what in said}
        assert said["alike"] == ("", "nothing was raised")


def test_where_one_rank_cannot_load_the_others_say_why(ranks: list[Found]) -> None:
    pytest.importorskip("transformers")
    own, others = "rlk.parallel.from_pretrained: dtype=torch.float64", "cannot load their shares: 3 ("
    for rank, found in enumerate(ranks):
        code, text = found["unloaded"]
        assert (code, own in text) == ("ARG_VALUE" if rank == 3 else "CHECKPOINT_FILE", True), text
        assert (others in text) == (rank < 3)


def test_where_one_rank_has_no_numerics_the_others_say_why(ranks: list[Found]) -> None:
    said = "in 1 fact\n    refused: nothing on rank 0, ZeroDivisionError: "
    for code, text in (found["lacking"] for found in ranks[:3]):
        assert code == "RANKS_DIFFER" and said in text and "see the error of rank 3 " in text
    assert ranks[3]["lacking"][0] == "ZeroDivisionError"


def test_a_rank_that_does_not_come_is_named_before_anything_is_sent(ranks: list[Found]) -> None:
    made = ranks[0]["absent"]
    assert {*made} == {"parallelize", *(["from_pretrained"] if tensor_parallel_cases.TRANSFORMERS else [])}
    for name, ((code, text), seconds) in made.items():
        assert code == "RANKS_MISSING" and f"{name}: rank 3 of 2 ranks said nothing within 1 s" in text, text
        assert 1 <= seconds < 20
    assert all(not ranks[rank]["absent"] for rank in (1, 2, 3))


def test_a_rank_that_dies_in_backward_ends_the_others_in_time(ranks: list[Found]) -> None:
    for rank, found in enumerate(ranks):
        if rank == 3:
            assert "died" not in found
            continue
        kind, seconds = found["died"]
        assert kind == "RuntimeError" and seconds < 2 * tensor_parallel_cases.SOON.total_seconds()


def test_a_temperature_of_one_rank_alone_gives_other_log_probs(ranks: list[Found]) -> None:
    """The control: where ranks compare no arguments."""
    ids = torch.arange(70)
    with torch.no_grad():
        want = tensor_parallel_cases.tiny("qwen2").logps(ids).logp
    assert [differing(found["disagreements"]["not compared"], want) > 50 for found in ranks] == [True] * WORLD


def test_where_one_rank_refuses_its_ids_all_raise(ranks: list[Found]) -> None:
    outside = ("ARG_VALUE", "CausalLM: ids=96 is not allowed")
    words = {
        "outside": outside,
        "long": ("ARG_VALUE", "the length of a sequence=1000"),
        "long, patched": ("PEER_CALL", "a sequence of 1000 tokens"),
    }
    for rank, found in enumerate(ranks):
        for what, (code, text) in found["refusals"].items():
            want = "RANKS_DIFFER", f"tokens: {1000 if what == 'long' else 70} on rank 0, refused on rank 3"
            if rank == 3 or what == "outside on all":
                want = words.get(what, outside)
            assert code == want[0] and want[1] in text, (what, text)
            assert (want[0] == "RANKS_DIFFER") == ("\n    see the error of rank 3 " in text)


def test_ids_on_the_host_of_a_group_of_devices_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn_ranks, "carried_by", lambda group: ["cuda"])
    with pytest.raises(LaunchError, match="ids is on cpu, but group is on cuda"):
        Ranks(fake_group(0, 2), 2, 0).check_same_ids("embedding", torch.arange(3))


# --- checkpoints ---


class Opened:
    """A file of safetensors that counts the bytes it gives."""

    def __init__(self, opened: Any, counted: list[int]) -> None:
        self.opened, self.counted = opened, counted

    def __enter__(self) -> Opened:
        self.file = self.opened.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.opened.__exit__(*error)

    def keys(self) -> Any:
        return self.file.keys()

    def get_tensor(self, key: str) -> torch.Tensor:
        return self._given(self.file.get_tensor(key))

    def get_slice(self, key: str) -> Any:
        opened, part = self, self.file.get_slice(key)

        class Slice:
            get_shape, get_dtype = part.get_shape, part.get_dtype

            def __getitem__(self, at: Any) -> torch.Tensor:
                return opened._given(part[at])

        return Slice()

    def _given(self, x: torch.Tensor) -> torch.Tensor:
        self.counted.append(x.nbytes)
        return x


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("checkpoint")
    tensor_parallel_cases.tiny("qwen2").save_pretrained(made, config=QWEN3 | SHARED | MODELS["qwen2"])
    return made


@pytest.fixture
def initialized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    for module in (import_module("rlk.parallel.agree"), checkpoint):  # needs a store, and no group
        monkeypatch.setattr(module, "told_at_start", lambda op, group, own: {0: dict(own)})


@pytest.mark.parametrize("rank", range(WORLD))
def test_a_rank_reads_its_shares_of_a_checkpoint_alone(
    rank: int, folder: Path, initialized: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    safe_open = safetensors.safe_open
    monkeypatch.setattr(
        safetensors, "safe_open", lambda *args, **options: Opened(safe_open(*args, **options), counted)
    )
    model = from_pretrained(folder, fake_group(rank, WORLD), sp=True)
    assert sum(counted) == sum(p.nbytes for p in model.parameters())
    whole, parts = tensor_parallel_cases.tiny("qwen2"), cuts("qwen2", WORLD, rank)
    wanted = dict(whole.named_parameters())
    assert [name for name, _ in model.named_parameters()] == list(wanted)
    for name, p in model.named_parameters():
        assert_same_bits(p, wanted[name][parts.get(name, ())], name)
    assert 0.25 < sum(counted) / sum(p.nbytes for p in whole.parameters()) < 0.3
    assert isinstance(model.model.norm, SequenceParallelRMSNorm)
    with pytest.raises(LaunchError, match="shared by 4 ranks"):
        model.save_pretrained(folder)
    for each in (model, deepcopy(model)):
        assert_marked(each, parts)
    for each in (model, deepcopy(model), torch.nn.Sequential(deepcopy(model))):
        with pytest.raises(LaunchError, match=r"^clip_grad_norm: leaves=1 is not allowed") as raised:
            for name, p in each.named_parameters():  # the first that raises: columns, of one leaf
                p.grad = torch.zeros_like(p) if "o_proj" in name else None
            clip_grad_norm(each.named_parameters(), 1.0)
        said = str(raised.value)  # the argument that is missing, and the weight that shows it
        assert "(config.leaves), as leaves=" in said and "a weight that 4 ranks share along dim 1" in said


def assert_marked(model: torch.nn.Module, parts: dict[str, Cut]) -> None:
    """Check that the parameters of which a rank has a part say so."""
    for name, p in model.named_parameters():
        share = getattr(p, "tensor_model_parallel", None)
        assert (share and len(parts[name]) == share.dim + 1) if name in parts else share is None, name


def test_where_one_rank_cannot_load_all_raise(
    folder: Path, initialized: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = told_to_others(monkeypatch)
    for bad, words in (  # whatever stops a rank: its arguments too
        ({"path": folder / "nothing"}, "nothing"),
        ({"dtype": torch.float64}, "^rlk.parallel.from_pretrained: dtype=torch.float64"),
        ({"sp": 1}, "^rlk.parallel.from_pretrained: sp must be a bool"),
        ({"plan": []}, "^rlk.parallel.from_pretrained: plan must be"),
        ({"device": "cuda"}, "^rlk.parallel.from_pretrained: device='cuda' .*\n.*torch finds no GPU"),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(LaunchError, match=words) as raised:
            from_pretrained(**{"path": folder, "mesh": fake_group(2, WORLD), **bad})
        assert sent.pop() == {"2": str(raised.value).partition("\n")[0]}
    with pytest.raises(LaunchError, match="^rlk.parallel.from_pretrained: mesh must be"):
        from_pretrained(folder, None)  # type: ignore[arg-type]


def told_to_others(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Be rank 2, and return what it says that stopped it, call by call."""
    sent: list[dict[str, str]] = []

    def told(op: str, group: dist.ProcessGroup, own: dict[str, str]) -> dict[int, dict[str, str]]:
        sent.append(json.loads(own[checkpoint.STOPPED]))
        return {2: dict(own)}

    monkeypatch.setattr(checkpoint, "told_at_start", told)
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    return sent


def test_where_the_first_rank_cannot_write_all_raise(
    ranks: list[Found], folder: Path, initialized: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *rest = (found["unwritten"]["said"] for found in ranks)
    assert first.startswith("NotADirectoryError")
    assert all("LaunchError" in said and "cannot write: 0 (NotADirectoryError: " in said for said in rest)
    # nor is it the errors of rlk alone that loading tells the others
    sent = told_to_others(monkeypatch)
    monkeypatch.setattr(checkpoint, "take_memory", out_of_memory)
    with pytest.raises(MemoryError):
        from_pretrained(folder, fake_group(2, WORLD))
    assert sent == [{"2": "MemoryError: no room"}]


def out_of_memory(*_: object) -> None:
    raise MemoryError("no room")


def test_two_ranks_load_their_shares_of_what_ranks_wrote(ranks: list[Found]) -> None:
    pytest.importorskip("transformers")
    name = "qwen3, tied"
    whole = dict(tensor_parallel_cases.tiny(name).named_parameters())
    for rank, found in enumerate(ranks):
        made = others(found["loaded"], whole, cuts(name, 2, rank % 2))
        assert not any(made.values()), made
        assert max(others(found["loaded"], whole, cuts(name, 2, 1 - rank % 2)).values()) > 100  # the control


def test_what_ranks_write_is_the_whole_model(ranks: list[Found]) -> None:
    whole = dict(tensor_parallel_cases.tiny("qwen3, tied").named_parameters())
    files = {name for found in ranks for name in found["saved"]}
    assert files == {"config.json", "model.safetensors"}
    written = safetensors.torch.load(bytes(ranks[0]["saved"]["model.safetensors"].numpy()))
    assert written.keys() == whole.keys()
    for name, p in whole.items():
        assert_same_bits(written[name], p, name)
    assert json.loads(bytes(ranks[0]["saved"]["config.json"].numpy()))["rlk_leaves"] == 8


# --- refusals: a group that can send nothing shows that none comes after something was sent ---

BAD: dict[str, tuple[int, dict[str, Any], tuple[str, ...]]] = {
    "a model with one leaf": (2, {"rlk_leaves": 1}, (": leaves=1", "multiple of 2", "leaves=8")),
    "fewer leaves than ranks": (4, {"rlk_leaves": 2}, (": leaves=2", "multiple of 4")),
    "three ranks": (3, {}, (": leaves=8", "1, 2, 4 or 8 and is 3")),
    "more ranks than key heads": (8, {}, ("num_key_value_heads=4", "multiple of 8")),
    "heads that ranks do not divide": (
        4,
        {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 16},
        ("num_attention_heads=6", "num_key_value_heads=6"),
    ),
    "a vocabulary of no whole pieces": (2, {"vocab_size": 100}, ("vocab_size=100", "multiple of 8")),
}


@pytest.mark.parametrize("what", BAD)
def test_what_ranks_cannot_share_is_refused_on_every_rank(what: str, initialized: None) -> None:
    size, options, words = BAD[what]
    model = tensor_parallel_cases.tiny("qwen2", **options)
    before = dict(model.named_parameters())
    said = set()
    for rank in range(size):
        with pytest.raises(LaunchError) as raised:
            parallelize(model, fake_group(rank, size))
        assert raised.value.code is Code.ARG_VALUE and all(word in str(raised.value) for word in words)
        said.add(str(raised.value))
    assert len(said) == 1  # the same on every rank
    assert model.model.ranks is None
    assert all(p is before[name] for name, p in model.named_parameters())


def test_a_patched_model_that_ranks_cannot_share_is_refused(initialized: None) -> None:
    pytest.importorskip("transformers")
    with tensor_parallel_cases.patched_of("qwen3, tied") as made:
        with pytest.raises(LaunchError, match="num_key_value_heads=4"):
            parallelize(made, fake_group(5, 8))
        assert parallelize(made, fake_group(0, 1)) is made  # one rank: as it was
        parallelize(made, fake_group(1, 4))
        with pytest.raises(LaunchError, match="shared by 4 ranks"):
            parallelize(made, fake_group(1, 4))
        for each in (made.model, deepcopy(made.model)):  # such as a reference model
            assert_marked(each, cuts("qwen3, tied", 4, 1))
        with pytest.raises(UnsupportedError, match="continuous batching where ranks share"):
            made.model.generate_batch([[1, 2]])
        rows = torch.zeros(1, 32, dtype=torch.bfloat16, requires_grad=True)
        with pytest.raises(UnsupportedError, match=r"eval mode: call model.train\(\).* without lm_head"):
            made.model.eval().lm_head(rows)
        for each in (made, made.model):
            with pytest.raises(LaunchError, match=r"save_pretrained: model must .* rlk.sync.transfer\("):
                checkpoint.save_pretrained(each, "nowhere")
        assert made.model.lm_head.weight is made.model.model.embed_tokens.weight
        assert made.model.lm_head.weight.shape == (24, 32)
    assert not any("ranks" in vars(module) for module in made.model.modules())


def test_extents_that_leaves_do_not_divide_are_refused() -> None:
    with pytest.raises(LaunchError, match="intermediate_size=68 .*\n.*multiple of config.rlk_leaves = 8"):
        tensor_parallel_cases.tiny("qwen2", intermediate_size=68)


def test_sinks_of_heads_are_refused_before_heads_are_shared() -> None:
    config = replace(tensor_parallel_cases.tiny("qwen2").config, sinks=True)  # of no model without experts
    for size in (1, 2):
        problem = pytest.raises(LaunchError, match="config.sinks=True") if size == 2 else nullcontext()
        with problem:
            check_shares(config, Ranks(fake_group(0, size), size, 0))


class Adapted(torch.nn.Module):
    """A layer in an adapter."""

    def __init__(self, base_layer: torch.nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer

    @property
    def weight(self) -> torch.Tensor:  # as adapters of peft have it
        return self.base_layer.weight


def test_layers_that_would_lose_hooks_or_adapters_are_refused(initialized: None) -> None:
    last = "model.layers.0.mlp.down_proj"
    for name, sp, words in (
        (last, False, "a layer with hooks"),
        ("model.norm", True, "a layer with hooks"),
        (last, False, r"Adapted' is not allowed\n.*merge adapters into its weight first"),
        ("lm_head", False, "merge adapters"),
    ):
        model = tensor_parallel_cases.tiny("qwen2")
        before = dict(model.named_parameters())
        module, owner = model.get_submodule(name), model.get_submodule(name.rpartition(".")[0])
        if "hooks" in words:
            hook = module.register_forward_hook(lambda *_: None)
        else:
            setattr(owner, name.rpartition(".")[2], Adapted(module))
        with pytest.raises(LaunchError, match=words) as raised:
            parallelize(model, fake_group(0, 2), sp=sp)
        assert f" {name}=" in str(raised.value)
        assert {id(p) for p in model.parameters()} == {id(p) for p in before.values()}
        if "hooks" in words:
            parallelize(model, fake_group(0, 1), sp=sp)  # one rank replaces nothing
            hook.remove()
            assert parallelize(model, fake_group(0, 2), sp=sp).model.ranks.size == 2
    model = tensor_parallel_cases.tiny("qwen2")
    model.model.norm.register_forward_hook(lambda *_: None)
    parallelize(model, fake_group(0, 2))  # norms of whole rows stay


def test_calls_of_parallelize_name_what_is_wrong(initialized: None) -> None:
    model = tensor_parallel_cases.tiny("qwen2")
    for bad, group, options, words in (
        (
            torch.nn.Linear(2, 2),
            fake_group(0, 2),
            {},
            "model must be a rlk.nn.CausalLM, or what rlk.patch returns, got Linear",
        ),
        (model, "tp", {}, "group must be a torch.distributed.ProcessGroup, got str"),
        (model, fake_group(0, 2), {"sp": 1}, "sp must be a bool, got int"),
        (model, None, {}, "mesh must be a torch.distributed DeviceMesh or ProcessGroup, got NoneType"),
        (model, fake_group(0, 2), {"tp": "tp"}, "None with a process group, which has no dims"),
    ):
        with pytest.raises(LaunchError, match=words):
            parallelize(bad, group, **options)  # type: ignore[arg-type]
    parallelize(model, fake_group(1, 2))
    for clip in (grad_norm, partial(clip_grad_norm, max_norm=1.0)):
        with pytest.raises(LaunchError, match=r"norm: named_parameters must .* model.named_p") as raised:
            clip(model.parameters(), leaves=8)  # type: ignore[operator]
        assert raised.value.code is Code.ARG_TYPE
    with pytest.raises(LaunchError, match="shared by 2 ranks"):
        parallelize(model, fake_group(1, 2))
    copied = deepcopy(model).model  # a reference model: its own tokens, the same group
    assert copied.ranks is not model.model.ranks and copied.ranks.group is model.model.ranks.group
    assert copied.ranks is copied.layers[0].mlp.down_proj.ranks is copied.layers[0].self_attn.options.ranks
    hidden = torch.zeros(1, 32, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(LaunchError, match="logits has no gradient for hidden"):
        model.logits(hidden)


def test_one_rank_leaves_a_model_as_it_is(initialized: None) -> None:
    model = tensor_parallel_cases.tiny("qwen2", rlk_leaves=1)
    kept = list(model.modules())
    assert parallelize(model, fake_group(0, 1), sp=True) is model
    assert list(model.modules()) == kept and model.model.ranks is None


def test_the_page_about_ranks_runs_on_one(folder: Path) -> None:
    page = Path(__file__).parent.parent / "docs/parallel.md"
    block, *_ = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    scope: dict[str, Any] = {"path": folder, "device": "cpu", "shape": (1, 1), "ids": torch.arange(9)}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        exec(compile(block, "parallel.py", "exec"), scope)
    finally:
        dist.destroy_process_group()
    assert scope["model"].lm_head.weight.grad.any()
