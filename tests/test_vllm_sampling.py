"""vLLM's sampler on the oracle: tokens that no neighbour changes, log-probs that a trainer replays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from nn_cases import QWEN3, model, texts

from rlk.nn import CausalLM

pytest.importorskip("vllm")
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
    return torch.tensor(found).view(torch.int32)


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
    assert made is not None
    return made[len(output.prompt_token_ids) :].view(torch.int32)


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
    others = run(engine, PROMPTS[3:] * 3, {**OPTIONS[3], "seed": 4}, OPTIONS[3], OPTIONS[3])
    assert len({tuple(t) for t in tokens([*others, drawn[3]])}) == 4


def test_tokens_are_those_of_rlks_own_engine(policy: CausalLM, drawn: list[Any]) -> None:
    given = dict(OPTIONS[3])
    made = policy.generate([PROMPTS[3]], max_new_tokens=NEW, seed=3, request_ids=[0], **given)
    assert list(made[0].ids) == tokens(drawn)[3]
    assert torch.equal(made[0].logps.view(torch.int32), logps(drawn[3]))


@pytest.mark.parametrize("which", range(len(OPTIONS)))
def test_a_trainer_replays_processed_log_probs(policy: CausalLM, drawn: list[Any], which: int) -> None:
    from rlk.integrations.vllm.requests import packed_support, support_of

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
