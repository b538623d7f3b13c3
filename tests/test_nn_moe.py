"""Models of experts: one set of bits in training, prefill and decoding, and experts that are replayed."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from model_families import SIZES, VOCABULARY, written_of
from safetensors.torch import load_file, save_file
from torch.utils.checkpoint import checkpoint

import rlk
from rlk import ops
from rlk.drift import Nn, Patched, Sequences, compare_operators
from rlk.errors import LaunchError, UnsupportedError
from rlk.nn import CausalLM, ModelConfig, RouteLog
from rlk.nn.replay import unchanged
from rlk.ops import Routes
from rlk.sync import check, digest, gathered, transfer
from rlk.sync.parts import transposed_of
from rlk.testing.bits import assert_same_bits, differing
from rlk.verify import rows
from rlk.verify.bench import Bench
from rlk.verify.contract import CONTROL, contract
from rlk.verify.models import random_subject
from rlk.verify.run import verify

EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "sliding_window": None}
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "truncate": False, "original_max_position_embeddings": 16,
}  # fmt: skip
FAMILIES = {
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **SIZES | EXPERTS, num_hidden_layers=3, head_dim=32, moe_intermediate_size=32, num_experts=8,
        norm_topk_prob=True, mlp_only_layers=[1],
    ),
    "mixtral": lambda: transformers.MixtralConfig(
        **SIZES | EXPERTS, num_hidden_layers=2, num_local_experts=4
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SIZES | EXPERTS | {"sliding_window": 4}, num_hidden_layers=2, num_local_experts=4, head_dim=32,
        swiglu_limit=1.0, rope_parameters=YARN,
    ),
}  # fmt: skip
LENGTHS = (11, 1, 7)
IDS = torch.randint(VOCABULARY, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))
SEQUENCES = IDS.split(LENGTHS)
HALVES = (slice(0, 32), slice(32, 64))
PACKED = ops.Layout.packed(torch.tensor((0, *LENGTHS)).cumsum(0), tokens=sum(LENGTHS))


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each family as transformers writes it, with random weights."""
    return written_of(FAMILIES[request.param](), tmp_path_factory.mktemp(request.param))


@pytest.fixture
def model(folder: Path) -> CausalLM:
    return CausalLM.from_pretrained(folder)


def rolled_out(model: CausalLM, chunk: int) -> tuple[list[torch.Tensor], list[Routes]]:
    """Return logits and routes of each sequence: all but three tokens by prefill in chunks, then decoded.

    Sequences that still have tokens make one batch.
    """
    cache, pages = model.cache(len(LENGTHS), 16), torch.arange(len(LENGTHS), dtype=torch.int32)[:, None]
    logits: list[list[torch.Tensor]] = [[] for _ in LENGTHS]
    noted: list[list[Routes]] = [[] for _ in LENGTHS]
    done = [0] * len(LENGTHS)
    while any(at < n for at, n in zip(done, LENGTHS, strict=True)):
        who = [i for i, n in enumerate(LENGTHS) if done[i] < n]
        counts = [min(chunk, LENGTHS[i] - 3 - done[i]) if done[i] < LENGTHS[i] - 3 else 1 for i in who]
        ids = torch.cat([SEQUENCES[i][done[i] : done[i] + n] for i, n in zip(who, counts, strict=True)])
        context = torch.tensor([done[i] + n for i, n in zip(who, counts, strict=True)], dtype=torch.int32)
        edges = torch.tensor((0, *counts)).cumsum(0).to(torch.int32)
        log = RouteLog()
        if set(counts) == {1}:
            hidden = model.decode(ids, cache, pages[who], context, routes=log)
        else:
            hidden = model.prefill(ids, cache, pages[who], context, edges, routes=log)
        for i, a, b in zip(who, edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            logits[i].append(model.logits(hidden[a:b]))
            noted[i].append(log.routes().take(slice(a, b)))
            done[i] += b - a
    return [torch.cat(x) for x in logits], [Routes.cat(x) for x in noted]


def router(model: Any, layer: int = -1) -> Any:
    return getattr(model.model.layers[layer].mlp, model.config.experts.router)


def test_training_prefill_and_decoding_have_the_same_bits_and_experts(model: CausalLM) -> None:
    log = RouteLog()
    with torch.no_grad():
        packed = model.logits(model(IDS, PACKED, routes=log)).split(LENGTHS)
        alone = [model.logits(model(ids)) for ids in SEQUENCES]
        together = log.routes()
    counts = torch.bincount(together.ids[:, 0].flatten().int(), minlength=together.experts)
    assert counts.max() > counts.min()  # experts have different numbers of tokens
    logits, routes = rolled_out(model, 4)
    for a, b, c in zip(logits, packed, alone, strict=True):
        assert_same_bits(a, b, "prefill in chunks, then decoding")
        assert_same_bits(c, b, "alone")
    assert Routes.cat(routes).digest() == together.digest()


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_leaves_are_pieces_of_the_range_of_experts(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways are cut into them (`test_moe.py` has the orders), and a patched model has the same bits."""
    folder = written_of(FAMILIES[family](), tmp_path)
    one, two = CausalLM.from_pretrained(folder), CausalLM.from_pretrained(folder, leaves=2)
    seen, own = list[tuple[str, int]](), {name: getattr(ops, name) for name in ("permute", "combine")}

    def spied(name: str, *args: Any, **given: Any) -> Any:
        seen.append((name, given["leaves"]))
        return own[name](*args, **given)

    for name in own:  # 16 bits of sums this short seldom show their order
        monkeypatch.setattr(ops, name, partial(spied, name))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    with torch.no_grad():
        logits = two.logits(two(IDS))
        layers = two.config.experts.number(two.config.num_hidden_layers)
        assert seen == layers * [("permute", 2), ("combine", 2)]
        with rlk.patch(theirs, leaves=2):
            assert_same_bits(theirs(IDS[None], use_cache=False).logits[0], logits)
        assert seen == 2 * layers * [("permute", 2), ("combine", 2)]
    assert one.numerics_id("cpu") != two.numerics_id("cpu")


def gradients(model: CausalLM, routes: RouteLog | None) -> list[torch.Tensor]:
    made = model.logps(IDS, PACKED, routes=routes).logp
    found = torch.autograd.grad(made.sum(), tuple(model.parameters()))
    return [made.detach(), *found]


def test_training_replays_what_rollout_recorded(model: CausalLM) -> None:
    """The same weights: every bit. Other weights: the recorded experts, and which tokens flipped."""
    recorded = Routes.cat(rolled_out(model, 4)[1])
    log = RouteLog(recorded)
    want = gradients(model, None)
    assert [differing(a, b) for a, b in zip(gradients(model, log), want, strict=True)] == [0] * len(want)
    assert log.flips().tokens == 0 and log.routes().digest() == recorded.digest()
    with torch.no_grad():
        for p in router(model).parameters():
            p.mul_(-1)  # the smallest scores are the largest
    free, replayed = RouteLog(), RouteLog(recorded)
    chosen, forced = gradients(model, free), gradients(model, replayed)
    assert replayed.routes().digest() == recorded.digest() != free.routes().digest()
    assert str(replayed.flips()) == str(recorded.flips(free.routes()))
    assert replayed.flips().first_layer == recorded.layers - 1 and differing(forced[0], chosen[0])
    model.gradient_checkpointing_enable()  # layers run again in backward, with the recorded experts
    again = gradients(model, RouteLog(recorded))
    log = RouteLog(recorded)  # a whole call that runs again in backward finds its own log
    checkpoint(lambda: -model.logps(IDS, PACKED, routes=log).logp.sum(), use_reentrant=False).backward()
    model.zero_grad()
    assert [differing(a, b) for a, b in zip(again, forced, strict=True)] == [0] * len(forced)
    with pytest.raises(LaunchError, match="replay has tokens = 18, but the call has tokens = 19"):
        model(IDS, PACKED, routes=RouteLog(recorded.take(slice(1, None))))


def test_a_log_of_another_model_is_refused(model: CausalLM) -> None:
    """Records of more layers, choices or experts, and any log for a dense model; that of the model is not."""
    log = RouteLog()
    model(IDS, routes=log)
    found = log.routes()
    with pytest.raises(LaunchError, match="a new RouteLog for each call"):
        model(IDS, routes=log)
    model(IDS, routes=RouteLog(found))
    twice = Routes(torch.cat([found.ids, found.ids], 1), found.experts)
    fewer = Routes(found.ids[..., :1], found.experts)
    more = Routes(found.ids, found.experts + 1)
    for replay, said in ((twice, "layers = 4"), (fewer, "k = 1"), (more, f"experts = {more.experts}")):
        for run in (model, model.logps):
            with pytest.raises(LaunchError, match=f"replay has {said}, but the model has"):
                run(IDS, routes=RouteLog(replay))
    dense = replace(model.config, experts=None)
    with pytest.raises(LaunchError, match="None for a model without experts"):
        CausalLM(dense)(IDS, routes=RouteLog(found))
    with pytest.raises(LaunchError, match=re.escape("rlk.nn.RouteLog")):
        model(IDS, routes=found)  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match=re.escape("rlk.ops.Routes")):
        RouteLog(log)  # type: ignore[arg-type]


def test_layers_of_experts_are_not_replayed_as_bound_calls(model: CausalLM) -> None:
    """A replay (`rlk.nn.replay`) would note no routes; the control is a layer without experts."""
    for i, layer in enumerate(model.model.layers):
        assert (unchanged(layer) is not None) == model.config.is_dense(i)


def test_another_order_of_additions_flips_routes_and_ours_does_not() -> None:
    """Of one router on 2000 tokens: in batches of any size, and with the product by halves of K."""
    drawn = torch.Generator().manual_seed(1)
    x, w = (torch.randn(n, 64, generator=drawn).bfloat16() for n in (2000, 32))
    whole = ops.route(ops.matmul(x, w), 4).ids
    parts = [ops.route(ops.matmul(part, w), 4).ids for part in x.split((1, 7, 992, 1000))]
    assert torch.equal(torch.cat(parts), whole)
    first, second = (ops.matmul(x[:, at].contiguous(), w[:, at].contiguous()) for at in HALVES)
    flipped = (ops.route(first + second, 4).ids != whole).any(-1)
    assert 0 < flipped.sum() < 100


def test_errors_are_not_above_those_of_transformers_in_bf16(folder: Path, model: CausalLM) -> None:
    """Against the same weights in float64, whose experts are replayed: roundings alone are compared."""

    def loaded(dtype: torch.dtype) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
        ).eval()

    with torch.no_grad():
        exact = loaded(torch.bfloat16).double()
        wanted = exact(IDS[None], output_router_logits=True)
        k = exact.config.num_experts_per_tok
        ids = [scores.topk(k, -1).indices for scores in wanted.router_logits]
        log = RouteLog(Routes.of(ids, experts=exact.config.num_local_experts))
        ours = model.logits(model(IDS, routes=log)).double() - wanted.logits[0]
        theirs = loaded(torch.bfloat16)(IDS[None]).logits[0].double() - wanted.logits[0]
        other = RouteLog(Routes.of([(x + 1) % log.replay.experts for x in ids], experts=log.replay.experts))
        control = model.logits(model(IDS, routes=other)).double() - wanted.logits[0]
    kept = ~torch.stack([r.flipped for r in log.made.values()]).any(0)  # theirs cannot be replayed
    assert kept.sum() > len(IDS) // 2
    assert ours.square().mean() <= 1.1 * theirs.square().mean() or ours.abs().max() < 0.1
    assert control.square().mean() > 20 * ours.square().mean()


def as_ours(name: str, x: torch.Tensor, model: CausalLM) -> torch.Tensor:
    """Return a parameter of transformers, or its gradient, as rlk.nn has it: some of GPT-OSS transposed."""
    return x.mT.contiguous() if name in transposed_of(model) else x


def test_parts_of_gpt_oss_are_seen_in_its_numbers(tmp_path: Path) -> None:
    """Near transformers in float64, gradients too; another limit, gain, window or sink is not."""
    folder = written_of(FAMILIES["gpt_oss"](), tmp_path)
    model = CausalLM.from_pretrained(folder)
    exact = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="eager", experts_implementation="eager"
    ).double()
    wanted = exact(IDS[None], output_router_logits=True)
    experts = Routes.of([scores.topk(2, -1).indices for scores in wanted.router_logits], experts=4)
    of = IDS[None, 1:, None]
    (-wanted.logits[:, :-1].log_softmax(-1).gather(-1, of).sum()).backward()

    def logits(model: CausalLM) -> torch.Tensor:
        return model.logits(model(IDS, routes=RouteLog(experts))).double()

    (-model.logps(IDS, routes=RouteLog(experts)).logp.sum()).backward()
    for name, p in exact.named_parameters():
        got, want = model.get_parameter(name).grad, as_ours(name, p.grad, model)
        assert got is not None and want.abs().max() > 0, name
        assert (got.double() - want).norm() < 0.15 * want.norm(), name
    with torch.no_grad():
        error = (logits(model) - wanted.logits[0]).abs().max()
        c, at = model.config, model.config.experts
        assert at is not None and at.clamped == (1.0, 1.702)
        for change in (
            {"experts": replace(at, clamped=(1.5, 1.702))},
            {"experts": replace(at, clamped=(1.0, 2.5))},
            {"windows": tuple(w and w + 1 for w in c.windows)},
            {"ropes": tuple(replace(r, scaling=(("rope_type", "default"),)) for r in c.ropes)},
        ):
            other = CausalLM(replace(c, **change))
            other.load_state_dict(model.state_dict())
            assert (logits(other) - wanted.logits[0]).abs().max() > 3 * error, change
        for name, p in model.named_parameters():
            if name.endswith(("bias", "sinks")):
                kept = p.clone()
                p.zero_()
                assert (logits(model) - wanted.logits[0]).abs().max() > 3 * error, name
                p.copy_(kept)


def test_a_quantized_gpt_oss_is_refused_with_what_to_do(tmp_path: Path) -> None:
    given = FAMILIES["gpt_oss"]().to_dict() | {"quantization_config": {"quant_method": "mxfp4"}}
    with pytest.raises(LaunchError, match=r"quantization_config.*\n?.*Mxfp4Config\(dequantize=True\)"):
        ModelConfig.of(given)


def test_a_checkpoint_goes_to_transformers_and_back(folder: Path, model: CausalLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    again = CausalLM.from_pretrained(tmp_path)
    for (name, a), b in zip(model.named_parameters(), again.parameters(), strict=True):
        assert_same_bits(a, b, name)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for (name, a), b in zip(sorted(model.named_parameters()), sorted(theirs.named_parameters()), strict=True):
        assert name == b[0]
        assert_same_bits(a, as_ours(name, b[1], model), name)
    assert json.loads((tmp_path / "config.json").read_text())["rlk_leaves"] == 1


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_experts_that_files_have_one_by_one_have_their_digests(family: str, tmp_path: Path) -> None:
    """In transformers, in rlk.nn and in shards; an expert of which one element differs is named."""
    sent = digest(written_of(FAMILIES[family](), tmp_path), dtype=torch.bfloat16)
    model = CausalLM.from_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=torch.bfloat16)
    check(sent, transfer(model, theirs))
    for held in (model, model.state_dict(), theirs.state_dict(), dict(gathered(model))):
        check(sent, digest(held))
    with torch.no_grad():
        theirs.model.layers[-1].mlp.experts.down_proj[3, 5, 7] += 1
    with pytest.raises(LaunchError, match=r"1 of [0-9]+ weights are") as raised:
        check(sent, digest(theirs))
    assert re.search(r"layers\.[12]\.\w+\.experts\.3\.(w2|down_proj)\.weight: 1 of 1", str(raised.value))


def test_weights_that_rlk_nn_holds_transposed_have_the_digests_of_files(tmp_path: Path) -> None:
    """GPT-OSS in files, transformers and rlk.nn; one element, or a square weight transposed, is named."""
    config = FAMILIES["gpt_oss"]()
    config.intermediate_size = config.hidden_size  # so that down_proj is square
    folder = written_of(config, tmp_path)
    model = CausalLM.from_pretrained(folder)
    sent = digest(folder, dtype=torch.bfloat16)
    check(sent, digest(model))
    check(sent, digest(dict(gathered(model))))
    theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    check(sent, transfer(model, theirs))
    down = model.model.layers[1].mlp.experts.down_proj
    kept, (name,) = down.detach().clone(), (n for n, p in model.named_parameters() if p is down)
    for change in (lambda w: w.mT, lambda w: torch.where(torch.arange(64) == 3, w + 1, w)):
        with torch.no_grad():
            down.copy_(change(kept))
        with pytest.raises(LaunchError, match=f"1 of {len(sent.weights)} weights are") as raised:
            check(sent, digest(model))
        assert name in str(raised.value)
    check(sent, transfer(theirs, model))
    assert_same_bits(down, kept)


def test_a_missing_expert_is_named(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    gone = next(name for name in tensors if re.search(r"\.experts\.(1\.|down_proj)", name))
    del tensors[gone]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(LaunchError, match=re.escape(gone.split(".experts.")[1])):
        CausalLM.from_pretrained(tmp_path)


def test_experts_are_drawn_as_transformers_draws_them(model: CausalLM) -> None:
    """Weights, sinks and biases of routers with the deviation of the config, biases of experts 0."""
    made = CausalLM(replace(model.config, initializer_range=0.05))
    for name, p in made.named_parameters():
        x = p.detach().float()
        if name.endswith(("proj.bias", "proj_bias")):
            assert not x.any(), name
        elif x.numel() < 100:  # sinks and biases of routers, too few for a deviation
            assert "norm" in name or (x.any() and x.abs().max() < 6 * 0.05), name
        elif "norm" not in name:
            assert 0.9 * 0.05 < x.std() < 1.1 * 0.05 and abs(x.mean()) < 0.01, name


def test_ids_of_numerics_depend_on_the_experts(model: CausalLM) -> None:
    experts = model.config.experts
    assert experts is not None
    found = {model.numerics_id("cpu")}
    for other in (replace(experts, k=1), replace(experts, renormalize=not experts.renormalize)):
        found.add(CausalLM(replace(model.config, experts=other)).numerics_id("cpu"))
    assert len(found) == 3


@pytest.mark.parametrize(
    ("family", "changed", "said"),
    [
        ("qwen3_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok=9"),
        ("qwen3_moe", {"moe_intermediate_size": None}, "moe_intermediate_size=None"),
        ("qwen3_moe", {"rlk_leaves": 4, "num_experts": 6}, "config.num_experts=6"),
        ("mixtral", {"rlk_leaves": 4, "num_local_experts": 6}, "config.num_local_experts=6"),
        ("mixtral", {"rlk_leaves": 4, "num_local_experts": 6}, "a multiple of config.rlk_leaves = 4"),
        ("gpt_oss", {"swiglu_limit": None}, "swiglu_limit=None"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step=0"),
    ],
)
def test_configs_that_cannot_be_served_are_refused(family: str, changed: dict[str, Any], said: str) -> None:
    given = FAMILIES[family]().to_dict() | changed
    with pytest.raises(LaunchError) as raised:
        ModelConfig.of(given)
    assert said in str(raised.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_controls_of_a_tiny_config_are_detected(family: str) -> None:
    """A changed order of sums shows in 40 tokens, by its bits, though products have 64 terms."""
    raw = FAMILIES[family]().to_dict()
    bench = Bench.of(random_subject(family, "config", raw, torch.bfloat16, torch.device("cpu")), 40)
    found = verify(bench, [p for p in contract(bench) if p.group == CONTROL])
    assert [row["status"] for row in found.rows] == ["detected"] * 4
    assert all(row["experts"]["compared"] == 40 for row in found.rows)


def test_a_change_of_experts_reaches_later_tokens_through_attention() -> None:
    flipped = torch.zeros(5, 2, dtype=torch.bool)
    flipped[1, 1] = flipped[3, 0] = True
    assert rows.unreached(flipped, last_is_read=False).tolist() == [True, False, True, False, False]
    assert rows.unreached(flipped, last_is_read=True).tolist() == [True, False, False, False, False]
    assert rows.unreached(flipped[:, :0], last_is_read=True).all()


def test_errors_are_taken_where_experts_are_those_of_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens left out are counted; the control, all tokens, has the errors of other experts."""
    raw = FAMILIES["mixtral"]().to_dict()
    subject = random_subject("mixtral", "config", raw, torch.bfloat16, torch.device("cpu"))
    gate = router(subject.model, 1).weight
    with torch.no_grad():  # all experts but one have nearly equal scores
        gate[2:] = (gate[1:2].view(torch.int16) + torch.tensor([[1], [2]], dtype=torch.int16)).view(
            gate.dtype
        )
    found = rows.accuracy(Bench.of(subject, 40), math.inf, what="root_mean_square")
    assert found.compared + found.figures[rows.LEFT_OUT] == 40 and found.compared >= 10
    assert 0 < found.figures[rows.OTHER_EXPERTS] <= found.figures[rows.LEFT_OUT]
    monkeypatch.setattr(rows, "unreached", lambda flipped, **_: torch.ones(len(flipped), dtype=torch.bool))
    every = rows.accuracy(Bench.of(subject, 40), math.inf, what="root_mean_square")
    assert every.compared == 40
    for name in ("rlk", "transformers"):
        assert found.figures[name] < 0.1
    assert max(every.figures[name] for name in ("rlk", "transformers")) > 0.2


def test_a_patched_model_has_the_bits_of_rlk_nn(folder: Path, model: CausalLM) -> None:
    """Logits and gradients of all parameters; transformers' own logits differ."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    plain = theirs(IDS[None], use_cache=False).logits[0]
    found, name = {}, f"model.layers.0.mlp.{model.config.experts.router}"
    with rlk.patch(theirs) as patched:
        logits = theirs(IDS[None], use_cache=False).logits[0]
        assert_same_bits(logits, model.logits(model(IDS)))
        patched.logps(IDS[None]).logp.sum().backward()
        found = {name: p.grad for name, p in theirs.named_parameters()}
        few = Sequences.of([IDS[:4].tolist()])
        same = compare_operators(Nn(model), Patched(theirs), few)
        assert not same.local and not same.changed and same.drift[name] == 0.0
        gate = list(theirs.get_submodule(name).parameters())
        with torch.no_grad():
            torch._foreach_neg_(gate)  # the control
            (first, *_) = compare_operators(Nn(model), Patched(theirs), few).changed
            torch._foreach_neg_(gate)
        assert first.router == name and first.tokens == first.own == (0, 1, 2, 3)
    model.logps(IDS).logp.sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None
        assert_same_bits(as_ours(name, found[name], model), p.grad, name)
    assert differing(plain.float(), logits)
    assert all(p.is_contiguous() for p in theirs.parameters())  # as fully_shard needs them
    assert_same_bits(theirs(IDS[None], use_cache=False).logits[0], plain)  # the patch is undone
    theirs.config.output_router_logits = True
    with pytest.raises(UnsupportedError, match="output_router_logits"):
        rlk.patch(theirs)
    theirs.config.output_router_logits = False
    with rlk.patch(theirs), pytest.raises(UnsupportedError, match=r"False; .* rlk.ops.router_losses"):
        theirs(IDS[None], output_router_logits=True)
    with rlk.patch(theirs), pytest.raises(UnsupportedError, match=r"False; .* rlk.ops.router_losses"):
        theirs.config.output_router_logits = True
        theirs(IDS[None])
