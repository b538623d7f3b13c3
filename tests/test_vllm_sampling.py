"""vLLM's sampler on the oracle: tokens that no neighbour changes, log-probs that a trainer replays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nn_cases import texts

if os.environ.get("RLK_REQUIRE_VLLM") != "1":
    pytest.importorskip("vllm", reason="make test-vllm has vLLM")

from safetensors.torch import load_file, save_file
from vllm_cases import drawn as logps
from vllm_cases import engine as made_engine
from vllm_cases import saved

from rlk import ops
from rlk.errors import UnsupportedError
from rlk.integrations.vllm.requests import SUPPORTS_ATTRIBUTE, packed_support, support_of
from rlk.nn import CausalLM
from rlk.ops import Penalties, penalize
from rlk.ops.results import Support

VOCABULARY, NEW = 96, 3
PENALTIES = {"repetition": 1.3, "frequency": 0.4, "presence": 0.2}
BIAS, ALLOWED = {3: 2.5, 7: -1.0, 90: 4.0}, [*range(0, 80, 2), 3, 7]
OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.6},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.8, "min_p": 0.1},
    {"temperature": 0.8, "top_k": 9, **{f"{name}_penalty": x for name, x in PENALTIES.items()}},
    {"logit_bias": BIAS, "allowed_token_ids": ALLOWED},
    {"temperature": 0.0},
)
REPLAYED = range(4)
PENALIZED, BIASED, GREEDY = range(4, 7)
PROMPTS = texts((5, 40, 19, 11, 8, 3, 12))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policy")


@pytest.fixture(scope="module")
def policy(path: Path) -> CausalLM:
    return saved(path, num_hidden_layers=1)


def start(path: Path, runner: int, **options: Any) -> Any:
    return made_engine(path, runner, logprobs_mode="processed_logprobs", **options)


@pytest.fixture(scope="module")
def engine(path: Path, policy: CausalLM) -> Any:
    return start(path, 1)


def runner(engine: Any) -> Any:
    return engine.llm_engine.model_executor.driver_worker.model_runner


@pytest.fixture
def mode(engine: Any) -> Iterator[Any]:
    """Set the engine's logprobs_mode for one test."""
    sampler = runner(engine).sampler
    yield lambda name: setattr(sampler, "logprobs_mode", name)
    sampler.logprobs_mode = "processed_logprobs"


def run(engine: Any, prompts: list[list[int]], *options: dict[str, Any]) -> list[Any]:
    from vllm import SamplingParams

    common: dict[str, Any] = {"max_tokens": NEW, "ignore_eos": True, "detokenize": False, "logprobs": 0}
    made = engine.generate(
        [{"prompt_token_ids": p} for p in prompts], [SamplingParams(**common | o) for o in options],
        use_tqdm=False,
    )  # fmt: skip
    return list(made)


@pytest.fixture(scope="module")
def outputs(engine: Any) -> list[Any]:
    """Requests of every kind, of which three run at a time."""
    return run(engine, PROMPTS, *({**o, "seed": i} for i, o in enumerate(OPTIONS)))


def tokens(output: Any) -> torch.Tensor:
    return torch.tensor(output.outputs[0].token_ids)


def bits(x: torch.Tensor | None) -> torch.Tensor:
    assert x is not None
    return x.view(torch.int32)


def scores(policy: CausalLM, output: Any) -> torch.Tensor:
    """Return the trainer's scores of the rows that an output's tokens were drawn from."""
    ids = torch.tensor([*output.prompt_token_ids, *output.outputs[0].token_ids])
    with torch.no_grad():
        return policy.logits(policy(ids))[len(output.prompt_token_ids) - 1 : -1]


def replayed(policy: CausalLM, output: Any, temperature: float, support: Any) -> torch.Tensor:
    """Return the trainer's log-probs of an output's tokens, by its fused head, as integers."""
    ids = torch.tensor([*output.prompt_token_ids, *output.outputs[0].token_ids])
    with torch.no_grad():
        made = policy.logps(ids, temperature=temperature, support=support).logp
    return bits(made)[len(output.prompt_token_ids) :]


def test_tokens_depend_on_the_seed_and_not_on_the_batch(engine: Any, outputs: list[Any]) -> None:
    engine.reset_prefix_cache()
    both, *others = run(engine, PROMPTS[3:4] * 3, {**OPTIONS[3], "seed": 3, "n": 2}, OPTIONS[3], OPTIONS[3])
    assert both.outputs[0].token_ids == outputs[3].outputs[0].token_ids
    assert torch.equal(logps(both), logps(outputs[3]))
    # the control: another seed, and none at all
    assert len({tuple(x.token_ids) for o in (both, *others) for x in o.outputs}) == 4


def test_tokens_are_those_of_rlks_own_engine(policy: CausalLM, outputs: list[Any]) -> None:
    made = policy.generate([PROMPTS[3]], max_new_tokens=NEW, seed=3, request_ids=[0], **OPTIONS[3])[0]
    assert list(made.ids) == tokens(outputs[3]).tolist()
    assert torch.equal(bits(made.logps), logps(outputs[3]))


def test_both_runners_draw_the_same(path: Path, engine: Any, outputs: list[Any]) -> None:
    other = start(path, 2)
    again = run(other, PROMPTS, *({**o, "seed": i} for i, o in enumerate(OPTIONS)))
    for one, two in zip(outputs, again, strict=True):
        assert torch.equal(tokens(one), tokens(two)) and torch.equal(logps(one), logps(two))
        for a, b in zip(*(support_of(o.outputs[0]) for o in (one, two)), strict=True):
            assert torch.equal(bits(a), bits(b))


@pytest.mark.parametrize("kind", [1, 2])
def test_requests_without_a_seed_have_a_stream_of_their_own(
    path: Path, policy: CausalLM, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither numpy's global stream nor a preemption changes their tokens, nor do they change numpy's."""
    from vllm.v1.core.sched.scheduler import Scheduler

    preempted, preempt = [], Scheduler._preempt_request
    monkeypatch.setattr(
        Scheduler, "_preempt_request", lambda *a, **k: (preempted.append(a), preempt(*a, **k))
    )
    prompts, options = texts((45, 46, 47)), [{"max_tokens": 8}] * 3
    made = []
    for blocks in (64, 10):
        each = start(path, kind, blocks=blocks)
        np.random.seed(blocks)
        made.append([tokens(o).tolist() for _ in range(2) for o in run(each, prompts, *options)])
        assert np.random.get_state()[2] == np.random.RandomState(blocks).get_state()[2]
        assert bool(preempted) == (blocks == 10)
        assert len(runner(each).sampler.seeds.drawn) <= 3 * len(prompts)
    assert made[0] == made[1]
    assert len({tuple(x) for x in made[0]}) == 6  # the control: each request has a seed of its own


@pytest.mark.parametrize("which", REPLAYED)
def test_a_trainer_replays_processed_log_probs(policy: CausalLM, outputs: list[Any], which: int) -> None:
    output, temperature = outputs[which], OPTIONS[which]["temperature"]
    assert torch.equal(replayed(policy, output, temperature, packed_support([output])), logps(output))
    support, z = support_of(output.outputs[0]), scores(policy, output)
    kept = support.holds(z, torch.arange(VOCABULARY))
    assert kept[torch.arange(NEW), tokens(output)].all() and bool(kept.all()) == (which == 0)
    assert torch.equal(support.ties, ((z == support.threshold[:, None]) & kept).sum(1).to(torch.int32))
    # the control: without the support these are other numbers
    whole = replayed(policy, output, temperature, None)
    assert bool((whole == logps(output)).all()) == (which == 0)


def test_penalties_are_replayed_by_their_counts(policy: CausalLM, outputs: list[Any]) -> None:
    output = outputs[PENALIZED]
    ids, support = tokens(output), support_of(output.outputs[0])
    counts = torch.stack([torch.bincount(ids[:i], minlength=VOCABULARY) for i in range(NEW)])
    prompt = torch.zeros(NEW, VOCABULARY, dtype=torch.bool)
    prompt[:, output.prompt_token_ids] = True
    plain = scores(policy, output)
    z = penalize(plain, Penalties(counts, prompt, **PENALTIES))
    assert torch.equal(bits(ops.logp(z, ids, temperature=0.8, support=support).logp), logps(output))
    # the control: the scores without penalties
    assert (bits(ops.logp(plain, ids, temperature=0.8, support=support).logp) != logps(output)).any()


def test_biased_and_allowed_tokens_are_replayed_by_their_scores(policy: CausalLM, outputs: list[Any]) -> None:
    output, z = outputs[BIASED], scores(policy, outputs[BIASED])
    for token, x in BIAS.items():
        z[:, token] += x
    z[:, sorted(set(range(VOCABULARY)) - set(ALLOWED))] = -inf
    assert torch.equal(bits(ops.logp(z, tokens(output)).logp), logps(output))
    assert (support_of(output.outputs[0]).threshold == -inf).all()


def test_greedy_rows_beside_others_take_the_likeliest(policy: CausalLM, outputs: list[Any]) -> None:
    output = outputs[GREEDY]
    assert torch.equal(tokens(output), scores(policy, output).argmax(1))
    assert torch.equal(replayed(policy, output, 1.0, None), logps(output))


@pytest.mark.parametrize("name", ["processed_logprobs", "raw_logprobs", "processed_logits"])
def test_the_likeliest_tokens_have_the_log_probs_of_logp(
    policy: CausalLM, engine: Any, mode: Any, name: str
) -> None:
    mode(name)
    options = {"temperature": 0.7, "top_k": 6, "seed": 2, "logprobs": 4, "max_tokens": 1}
    output = run(engine, PROMPTS[:1], options)[0]
    (at,), z, raw = output.outputs[0].logprobs, scores(policy, output), name.startswith("raw")
    ids = torch.tensor(list(at))
    assert set(torch.topk(z[0], 4).indices.tolist()) <= set(at) and len(at) <= 5
    if name.endswith("logits"):
        want = z[0][ids] * torch.tensor(0.7).reciprocal()
    else:
        support = Support(*(x.expand(len(ids)) for x in support_of(output.outputs[0])))
        kept = getattr(output.outputs[0], SUPPORTS_ATTRIBUTE)  # no more of a token, whatever it asked for
        assert [(x.nbytes, x.base) for x in kept.parts] == [(12, None)]
        given: dict[str, Any] = {} if raw else {"temperature": 0.7, "support": support}
        want = ops.logp(z.expand(len(ids), -1), ids, **given).logp  # type: ignore[assignment]
    assert torch.equal(bits(want), bits(torch.tensor([x.logprob for x in at.values()])))
    drawn = output.outputs[0].token_ids[0]
    assert at[drawn].rank == int((z[0] >= z[0, drawn]).sum())


ILL = 5
"""A token whose embedding is NaN."""


@pytest.mark.parametrize("which", [1, 2])
def test_a_request_whose_scores_are_nan_goes_on_and_says_so(tmp_path: Path, which: int) -> None:
    """As with vLLM's own sampler; a neighbour does not notice."""
    saved(tmp_path, num_hidden_layers=1, tie_word_embeddings=False)
    (file,) = tmp_path.glob("*.safetensors")
    weights = load_file(file)
    weights["model.embed_tokens.weight"][ILL] = nan
    save_file(weights, file, metadata={"format": "pt"})
    llm = start(tmp_path, which)
    given = ({"temperature": 0.7}, {"temperature": 0.0}, {"top_p": 0.6, "logprobs": 2}, {"top_k": 5})
    well, ill = [7, 8, 9], [7, ILL, 9]
    for mode in ("processed_logprobs", "raw_logprobs"):
        runner(llm).sampler.logprobs_mode = mode
        options = [{**o, "seed": i} for i, o in enumerate(given)]
        alone = run(llm, [well] * len(given), *options)
        beside = run(llm, [well, ill] * len(given), *(o for o in options for _ in range(2)))
        for one, same, other in zip(alone, beside[::2], beside[1::2], strict=True):
            assert torch.equal(tokens(one), tokens(same)) and torch.equal(logps(one), logps(same))
            assert tokens(other).tolist() == [0] * NEW and logps(other).view(torch.float32).isnan().all()
            assert not logps(one).view(torch.float32).isnan().any()
            assert len(support_of(other.outputs[0]).ties) == NEW


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("asked", [0, 2, -1])
def test_rows_that_wait_are_read_as_vllm_reads_them(
    flat: bool, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request's rows of 30 steps, whose widths others change, through the types of vLLM's processes."""
    from vllm.logprobs import create_sample_logprobs
    from vllm.v1.engine.logprobs import LogprobsProcessor
    from vllm.v1.outputs import LogprobsLists, LogprobsTensors
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    from rlk.integrations.vllm import requests as packed

    encoder, decoder = MsgpackEncoder(), MsgpackDecoder(LogprobsLists)
    monkeypatch.setattr(packed, "MOST_WAITING", 4)
    monkeypatch.setattr(packed, "WIDEST_WAITING", 12)
    theirs, ours, other = (
        LogprobsProcessor(None, create_sample_logprobs(flat), None, 0.0, asked, None) for _ in range(3)
    )
    original = packed.SWAP.original(packed.UPDATE)
    drawn, supports, most = torch.Generator().manual_seed(0), [], 0
    for step in range(30):
        rows, width = 3, (1, 1, 1, 1, 1, 3, 3, 9)[step % 8] if asked != -1 else 3
        ids = torch.randint(1000, (rows, width), generator=drawn)
        made = LogprobsTensors(ids, torch.randn(rows, width, generator=drawn), 1 + ids[:, 0])
        ties, last = torch.randint(9, (2, rows), generator=drawn).int()
        support = Support(torch.randn(rows, generator=drawn), ties, last)
        supports.append([x[1:2] for x in support])
        original(theirs, made.tolists().slice_request(1, 1))
        lists = packed.PackedTensors.of(made, support).to_cpu_nonblocking().tolists()
        sent = decoder.decode(encoder.encode(lists.slice_request(1, 1)))
        packed.update(ours, sent)
        packed.update(other, lists.slice_request(2, 1))
        most = max(most, len(vars(ours)[packed.TAKEN_ATTRIBUTE].waiting))
    assert 1 < most < 4  # rows do wait
    kept = vars(ours)[packed.TAKEN_ATTRIBUTE]
    kept.read(ours)
    vars(other)[packed.TAKEN_ATTRIBUTE].read(other)
    assert ours.logprobs == theirs.logprobs and ours.cumulative_logprob == theirs.cumulative_logprob
    assert other.logprobs != theirs.logprobs  # the control: another row
    for got, want in zip(kept.supports.support(30), map(torch.cat, zip(*supports, strict=True)), strict=True):
        assert got.dtype == want.dtype and torch.equal(got, want)
    for got, want in zip(kept.supports.last(7).support(7), kept.supports.support(30), strict=True):
        assert torch.equal(got, want[-7:])


def test_what_no_trainer_could_replay_is_refused(engine: Any) -> None:
    from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams

    from rlk.integrations.vllm import sampling

    grammar = StructuredOutputsParams(regex="a")
    for name, option in {"structured_outputs": grammar, "thinking_token_budget": 3}.items():
        with pytest.raises(UnsupportedError, match=rf"SamplingParams\({name}="):
            run(engine, PROMPTS[:1], {name: option})
    with pytest.raises(UnsupportedError, match="beam search"):
        engine.beam_search(PROMPTS[:1], BeamSearchParams(beam_width=2, max_tokens=2))
    with pytest.raises(UnsupportedError, match="without supports"):
        support_of(run(engine, PROMPTS[:1], {"logprobs": None, "max_tokens": 1})[0].outputs[0])
    processors = runner(engine).input_batch.logitsprocs.argmax_invariant
    processors.append(object())
    try:
        with pytest.raises(UnsupportedError, match="the logits processor object"):
            sampling.use(runner(engine))
    finally:
        processors.pop()
