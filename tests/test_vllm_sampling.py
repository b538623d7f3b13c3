"""vLLM's sampler on the oracle: tokens that no neighbour changes, log-probs that a trainer replays."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

import pytest
import torch
from nn_cases import QWEN3, model, texts

from rlk import ops
from rlk.errors import UnsupportedError
from rlk.nn import CausalLM
from rlk.ops import Penalties, penalize
from rlk.ops.results import Support

pytest.importorskip("vllm")
from rlk.integrations.vllm.requests import packed_support, support_of

VOCABULARY = 96
SIZES = {"num_hidden_layers": 1}
PROMPTS = texts((5, 40, 19, 11))
OPTIONS = (
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.6},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.8, "min_p": 0.1},
)
NEW = 5


@pytest.fixture(scope="module")
def policy() -> CausalLM:
    return model(**SIZES)


@pytest.fixture(scope="module")
def engine(policy: CausalLM, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import Qwen3Config
    from vllm import LLM

    path = tmp_path_factory.mktemp("policy")
    policy.save_pretrained(path, config=Qwen3Config(**QWEN3 | SIZES, architectures=["Qwen3ForCausalLM"]))
    return LLM(
        str(path), skip_tokenizer_init=True, dtype="bfloat16", quantization="rlk", max_model_len=128,
        enforce_eager=True, max_num_seqs=3, max_num_batched_tokens=24, block_size=16, seed=0,
        logprobs_mode="processed_logprobs",
    )  # fmt: skip


@pytest.fixture
def mode(engine: Any) -> Iterator[Any]:
    """Set the engine's logprobs_mode for one test."""
    sampler = runner(engine).sampler
    yield lambda name: setattr(sampler, "logprobs_mode", name)
    sampler.logprobs_mode = "processed_logprobs"


def runner(engine: Any) -> Any:
    return engine.llm_engine.model_executor.driver_worker.model_runner


def run(engine: Any, prompts: list[list[int]], *options: dict[str, Any]) -> list[Any]:
    from vllm import SamplingParams

    common: dict[str, Any] = {"max_tokens": NEW, "ignore_eos": True, "detokenize": False, "logprobs": 0}
    made = engine.generate(
        [{"prompt_token_ids": p} for p in prompts], [SamplingParams(**common | o) for o in options],
        use_tqdm=False,
    )  # fmt: skip
    return list(made)


def tokens(outputs: list[Any]) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in outputs]


def logps(output: Any) -> torch.Tensor:
    """Return the log-probs of an output's tokens, as 32-bit integers: bits are compared."""
    one = output.outputs[0]
    found = [at[token].logprob for at, token in zip(one.logprobs, one.token_ids, strict=True)]
    return bits(torch.tensor(found))


def bits(x: torch.Tensor | None) -> torch.Tensor:
    assert x is not None
    return x.view(torch.int32)


def scores(policy: CausalLM, output: Any) -> torch.Tensor:
    """Return the trainer's scores of the rows that an output's tokens were drawn from."""
    ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    with torch.no_grad():
        hidden = policy(torch.tensor(ids))
        return policy.logits(hidden)[len(output.prompt_token_ids) - 1 : -1]


def replayed(policy: CausalLM, output: Any, temperature: float, support: Any) -> torch.Tensor:
    """Return the trainer's log-probs of an output's tokens, by its fused head."""
    ids = torch.tensor([*output.prompt_token_ids, *output.outputs[0].token_ids])
    with torch.no_grad():
        made = policy.logps(ids, temperature=temperature, support=support).logp
    return bits(made)[len(output.prompt_token_ids) :]


@pytest.fixture(scope="module")
def drawn(engine: Any) -> list[Any]:
    """Requests of every kind in one batch that never holds all of them."""
    return run(engine, PROMPTS, *({**o, "seed": i} for i, o in enumerate(OPTIONS)))


def test_tokens_depend_on_the_seed_and_not_on_the_batch(engine: Any, drawn: list[Any]) -> None:
    engine.reset_prefix_cache()
    alone = run(engine, PROMPTS[3:], {**OPTIONS[3], "seed": 3})
    assert tokens(alone) == tokens(drawn[3:])
    assert torch.equal(logps(alone[0]), logps(drawn[3]))
    # the controls: another seed, and none at all
    both, *others = run(engine, PROMPTS[3:] * 3, {**OPTIONS[3], "seed": 3, "n": 2}, OPTIONS[3], OPTIONS[3])
    found = [list(one.token_ids) for one in both.outputs] + tokens(others)
    assert found[0] == tokens(alone)[0] and len({tuple(t) for t in found}) == 4


def test_tokens_are_those_of_rlks_own_engine(policy: CausalLM, drawn: list[Any]) -> None:
    given = dict(OPTIONS[3])
    made = policy.generate([PROMPTS[3]], max_new_tokens=NEW, seed=3, request_ids=[0], **given)
    assert list(made[0].ids) == tokens(drawn)[3]
    assert torch.equal(made[0].logps.view(torch.int32), logps(drawn[3]))


@pytest.mark.parametrize("which", range(len(OPTIONS)))
def test_a_trainer_replays_processed_log_probs(policy: CausalLM, drawn: list[Any], which: int) -> None:
    output, temperature = drawn[which], OPTIONS[which]["temperature"]
    assert torch.equal(replayed(policy, output, temperature, packed_support([output])), logps(output))
    support = support_of(output.outputs[0])
    ids = torch.tensor(tokens([output])[0])
    z = scores(policy, output)
    kept = support.holds(z, torch.arange(VOCABULARY))
    assert kept[torch.arange(NEW), ids].all() and bool(kept.all()) == (which == 0)
    assert torch.equal(support.ties, ((z == support.threshold[:, None]) & kept).sum(1).to(torch.int32))
    # the control: without the support these are other numbers
    whole = replayed(policy, output, temperature, None)
    assert bool((whole == logps(output)).all()) == (which == 0)


def test_penalties_are_replayed_by_their_counts(policy: CausalLM, engine: Any) -> None:
    of = {"repetition": 1.3, "frequency": 0.4, "presence": 0.2}
    options = {f"{name}_penalty": x for name, x in of.items()} | {"temperature": 0.8, "top_k": 9, "seed": 1}
    # the second request has none, and the first one's change nothing in it
    output, other = run(engine, PROMPTS[2:], options, {"seed": 3})
    ids = torch.tensor(tokens([output])[0])
    counts = torch.stack([torch.bincount(ids[:i], minlength=VOCABULARY) for i in range(NEW)])
    prompt = torch.zeros(NEW, VOCABULARY, dtype=torch.bool)
    prompt[:, output.prompt_token_ids] = True
    z = penalize(scores(policy, output), Penalties(counts, prompt, **of))
    support = support_of(output.outputs[0])
    assert torch.equal(bits(ops.logp(z, ids, temperature=0.8, support=support).logp), logps(output))
    assert torch.equal(replayed(policy, other, 1.0, None), logps(other))
    # the control: the scores without penalties are others
    plain = ops.logp(scores(policy, output), ids, temperature=0.8, support=support).logp
    assert (bits(plain) != logps(output)).all()


def test_biased_and_allowed_tokens_are_replayed_by_their_scores(policy: CausalLM, engine: Any) -> None:
    bias, allowed = {3: 2.5, 7: -1.0, 90: 4.0}, list(range(0, 80, 2)) + [3, 7]
    output = run(engine, PROMPTS[:1], {"logit_bias": bias, "allowed_token_ids": allowed, "seed": 1})[0]
    z = scores(policy, output)
    for token, x in bias.items():
        z[:, token] += x
    z[:, sorted(set(range(VOCABULARY)) - set(allowed))] = -inf
    ids = torch.tensor(tokens([output])[0])
    assert torch.equal(bits(ops.logp(z, ids).logp), logps(output))
    assert (support_of(output.outputs[0]).threshold == -inf).all()


@pytest.mark.parametrize("name", ["processed_logprobs", "processed_logits", "raw_logprobs", "raw_logits"])
def test_the_likeliest_tokens_have_the_log_probs_of_logp(
    policy: CausalLM, engine: Any, mode: Any, name: str
) -> None:
    mode(name)
    raw = name.startswith("raw")
    output = run(
        engine, PROMPTS[:1], {"temperature": 0.7, "top_k": 6, "seed": 2, "logprobs": 4, "max_tokens": 2}
    )[0]
    one, z = output.outputs[0], scores(policy, output)
    for row, at in enumerate(one.logprobs):
        ids = torch.tensor(list(at))
        assert len(ids) in (4, 5) and set(torch.topk(z[row], 4).indices.tolist()) <= set(at)
        if name.endswith("logits"):
            want = z[row][ids] if raw else z[row][ids] * torch.tensor(0.7).reciprocal()
        else:
            support = Support(*(x[row : row + 1].expand(len(ids)) for x in support_of(one)))
            given = {} if raw else {"temperature": 0.7, "support": support}
            found = ops.logp(z[row].expand(len(ids), -1), ids, **given).logp
            assert found is not None
            want = found
        assert torch.equal(bits(want), bits(torch.tensor([x.logprob for x in at.values()])))
        assert at[one.token_ids[row]].rank == int((z[row] >= z[row][one.token_ids[row]]).sum())


def test_greedy_rows_beside_others_take_the_likeliest(policy: CausalLM, engine: Any) -> None:
    best, _ = run(engine, PROMPTS[:2], {"temperature": 0.0}, {"seed": 1})
    assert tokens([best])[0] == scores(policy, best).argmax(1).tolist()
    assert torch.equal(replayed(policy, best, 1.0, None), logps(best))
    assert torch.equal(logps(run(engine, PROMPTS[:1], {"temperature": 0.0})[0]), logps(best))


def test_what_no_trainer_could_replay_is_refused(engine: Any) -> None:
    from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams

    from rlk.integrations.vllm import sampling

    grammar = {"structured_outputs": StructuredOutputsParams(regex="a")}
    with pytest.raises((UnsupportedError, ValueError), match="structured_outputs"):
        run(engine, PROMPTS[:1], grammar)
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
