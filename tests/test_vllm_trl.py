"""TRL's GRPOTrainer with vLLM in its process: the rollout's log-probs are the policy's."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rlk
from rlk.errors import LaunchError, UnsupportedError
from rlk.integrations import trl as adapter

if os.environ.get("RLK_REQUIRE_VLLM") != "1":
    pytest.importorskip("vllm", reason="make test-vllm has vLLM")

METRICS = {
    "sampling/sampling_logp_difference/mean": 0.0,
    "sampling/sampling_logp_difference/max": 0.0,
    "sampling/importance_sampling_ratio/min": 1.0,
    "sampling/importance_sampling_ratio/mean": 1.0,
    "sampling/importance_sampling_ratio/max": 1.0,
}
MOST = "sampling/sampling_logp_difference/max"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of random weights and its tokenizer, which the engine reads too."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    made = tmp_path_factory.mktemp("policy")
    vocabulary = {c: i for i, c in enumerate(("<pad>", "<eos>", *"abcdefghijklmn"))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    special = {"pad_token": "<pad>", "eos_token": "<eos>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(made)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=64, eos_token_id=1, pad_token_id=0,
        tie_word_embeddings=True, dtype="bfloat16", initializer_range=0.3,
    )  # fmt: skip
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(made)
    return made


def trainer(folder: Path, patched: bool = True, leaves: int = 1, **options: Any) -> Any:
    from datasets import Dataset
    from transformers import AutoTokenizer, Qwen3ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    policy = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    if patched:
        rlk.patch(policy, leaves=leaves)
    # completions of two prompts, drawn once for two steps: the second is off-policy
    settings = {
        "max_steps": 4, "per_device_train_batch_size": 2, "num_generations": 2, "steps_per_generation": 2,
        "temperature": 0.8, "max_completion_length": 4, "learning_rate": 1e-2, "logging_steps": 1, "seed": 0,
        "use_vllm": True, "vllm_max_model_length": 32, "use_cpu": True, "bf16": False, "report_to": [],
        "save_strategy": "no", "disable_tqdm": True, "output_dir": str(folder / "out"),
    }  # fmt: skip
    data = Dataset.from_dict({"prompt": ["ab", "cdefg", "b", "dch"] * 4})
    return GRPOTrainer(
        policy,
        reward_funcs=lambda completions, **_: [float(c.count("a") + len(c)) for c in completions],
        args=GRPOConfig(**settings | options),
        # prompts differ in length, so rows are padded on both sides
        train_dataset=data,
        eval_dataset=data.select(range(2)),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )


def weights(of: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in of.model.parameters()]).view(torch.int16)


def logged(of: Any) -> list[dict[str, float]]:
    """Return the rollout's metrics of every step that has them."""
    return [{n: x[n] for n in METRICS} for x in of.state.log_history if MOST in x]


def runner(of: Any) -> Any:
    return of.vllm_generation.llm.llm_engine.model_executor.driver_worker.model_runner


def counted(of: Any) -> list[bool]:
    """Return a list that gets, for each pass over log-probs, whether it is one that trains."""
    theirs, found = of._get_per_token_logps_and_entropies, list[bool]()

    def passes(*args: Any, **options: Any) -> Any:
        found.append(torch.is_grad_enabled())
        return theirs(*args, **options)

    of._get_per_token_logps_and_entropies = passes
    return found


@pytest.fixture(scope="module")
def trained(folder: Path) -> SimpleNamespace:
    """A trainer with TRL's own pass for old log-probs after two generations, and what it left."""
    import vllm.envs
    from trl.generation import vllm_generation

    with adapter.VLLM.patched(), pytest.MonkeyPatch.context() as patch:
        # by default the cache has gigabytes, which the oracle copies at each step
        small = partial(vllm_generation.LLM, kv_cache_memory_bytes=1 << 20)
        patch.setattr(vllm_generation, "LLM", small)
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")  # the second one's kernels are interpreted here
        vllm.envs.disable_envs_cache()
        of = trainer(folder)
        passes = counted(of)
        before = weights(of)
        of.train()
    return SimpleNamespace(of=of, passes=passes, before=before, after=weights(of), logged=logged(of))


@pytest.fixture
def engine(trained: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let new trainers take the engine that is there, with the state of its sampler as at first."""
    from trl.generation import vllm_generation

    from rlk.integrations.vllm.sampling import Seeds

    sampler = runner(trained.of).sampler
    monkeypatch.setattr(sampler, "seeds", Seeds(0))
    monkeypatch.setattr(vllm_generation, "LLM", lambda **_: trained.of.vllm_generation.llm)
    return sampler


def rollout(of: Any) -> Any:
    """Return a batch drawn and scored with the weights that the engine has, said to be the policy's."""
    of._last_loaded_step, of._buffered_inputs = of.state.global_step, None
    of.model.train()
    return of._prepare_inputs(next(iter(of.get_train_dataloader())))


def test_trl_finds_no_difference_of_the_rollout(trained: SimpleNamespace) -> None:
    assert trained.logged == [METRICS] * 2
    assert trained.passes == [False, True, True] * 2
    assert not torch.equal(trained.before, trained.after)


def test_the_pass_for_old_log_probs_changes_no_bit(
    trained: SimpleNamespace, engine: Any, folder: Path
) -> None:
    with adapter.EXACT.patched():
        of = trainer(folder)
        passes = counted(of)
        of.train()
    assert passes == [True] * 4 and logged(of) == [METRICS] * 2
    assert torch.equal(weights(of), trained.after)
    # the control: weights that were not sent
    with adapter.EXACT.patched(), pytest.raises(LaunchError, match="differ from the policy's"):
        of._compute_loss(of.model, rollout(of))


def test_an_evaluation_between_steps_is_no_difference_of_the_rollout(engine: Any, folder: Path) -> None:
    """It sends weights that are newer than those of the batch that is still to be trained on."""
    with adapter.EXACT.patched():
        of = trainer(folder, eval_strategy="steps", eval_steps=1, max_steps=2, per_device_eval_batch_size=2)
        of.train()
        assert logged(of) == [METRICS]
        assert [x[f"eval_{MOST}"] for x in of.state.log_history if f"eval_{MOST}" in x] == [0.0] * 2


def test_trl_without_vllm_has_no_rollout_to_check(folder: Path) -> None:
    with adapter.EXACT.patched():
        of = trainer(folder, use_vllm=False, max_steps=1)
        before = weights(of)
        of.train()
    assert logged(of) == [] and not torch.equal(weights(of), before)


def test_trl_sees_stale_weights_and_vllms_own_sampler(trained: SimpleNamespace, engine: Any) -> None:
    from vllm.v1.sample.sampler import Sampler

    of, at = trained.of, runner(trained.of)
    differences = of._metrics["train"][MOST]
    with adapter.VLLM.patched():
        rollout(of)
        assert differences[-1] > 0
        of.vllm_generation.sync_weights()
        rollout(of)
        assert differences[-1] == 0
        at.sampler = Sampler("processed_logprobs")
        try:
            rollout(of)
        finally:
            at.sampler = engine
        assert 0 < differences[-1] < 1e-5


@pytest.mark.parametrize(
    "options, message",
    [
        ({"top_p": 0.9}, "top_p=0.9"),
        ({"generation_kwargs": {"presence_penalty": 1.0}}, "presence_penalty"),
        ({"patched": False}, "not patched"),
        ({"leaves": 2}, "a policy of numerics .* with an engine of"),
    ],
)
def test_a_rollout_that_no_pass_could_equal_is_refused(
    engine: Any, folder: Path, options: dict[str, Any], message: str
) -> None:
    with adapter.EXACT.patched(), pytest.raises(UnsupportedError, match=message):
        trainer(folder, **options)
