"""vLLM's engine on the oracle: log-probs of rollouts that are the trainer's, bit for bit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from nn_cases import QWEN3, texts

if os.environ.get("RLK_REQUIRE_VLLM") != "1":
    pytest.importorskip("vllm", reason="make test-vllm has vLLM")

from serving_cases import ON, Keys, samplers
from vllm_cases import differing, drawn, engine, prompted, run, saved, trained

from rlk.errors import UnsupportedError
from rlk.integrations.vllm import plugin
from rlk.nn import ModelConfig, serving
from rlk.runtime.call.dispatch import Dispatcher, dispatch

RUNNERS = (1, 2)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policy")


@pytest.fixture(scope="module")
def policy(path: Path) -> Any:
    return saved(path)


@pytest.fixture(scope="module", params=RUNNERS)
def llm(path: Path, policy: Any, request: pytest.FixtureRequest) -> Any:
    """An engine with 11 blocks of 16 keys, which three requests do not fit into."""
    return engine(path, request.param, blocks=11)


def test_rollouts_have_the_trainers_log_probs(llm: Any, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    preempted = []
    preempt = Scheduler._preempt_request
    monkeypatch.setattr(
        Scheduler, "_preempt_request", lambda *a, **k: (preempted.append(a), preempt(*a, **k))
    )
    prompts = texts((5, 70, 61, 58))
    prompts.append(prompts[1][:64] + [1, 2, 3])
    before = llm.collective_rpc("rlk_calls")[0]
    outputs = run(llm, prompts, new=12)
    assert differing(policy, outputs) == 0
    assert preempted and max(len(p) for p in prompts) > 24  # recomputed, and read in chunks
    assert any(o.num_cached_tokens for o in run(llm, prompts[1:2]))
    after = llm.collective_rpc("rlk_calls")[0]
    assert all(after[name] > before[name] for name in ("linear", "rms_norm", "rope", "attention", "sample"))


def test_cached_prefixes_keep_the_bits(llm: Any, policy: Any) -> None:
    (prompt,) = texts((70,), seed=5)
    run(llm, [prompt])
    outputs = run(llm, [prompt[:64] + [1, 2, 3]])
    assert outputs[0].num_cached_tokens == 64
    assert differing(policy, outputs) == 0


def test_heads_in_one_kernel_have_the_bits_of_their_parts(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlk.integrations.vllm import heads

    prompts = texts((9, 40))

    def fresh() -> list[torch.Tensor]:
        assert llm.reset_prefix_cache()
        return [drawn(output) for output in run(llm, prompts)]

    whole, before = fresh(), llm.collective_rpc("rlk_calls")[0]
    for module in llm.llm_engine.model_executor.driver_worker.get_model().modules():
        if (theirs := type(module).__mro__[1]).__name__ in heads.LAYERS:
            monkeypatch.setattr(module, "__class__", theirs)
    parts, after = fresh(), llm.collective_rpc("rlk_calls")[0]
    assert before["heads"] and after["heads"] == before["heads"] and after["rope"] > before["rope"]
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


def test_parameters_of_the_engine_are_called_without_torchs_dispatcher(
    llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlk.runtime.call import entry

    took: list[str] = []
    through = entry._through_dispatcher

    def counted(op: Any, *rest: Any) -> Any:
        took.append(op.name)
        return through(op, *rest)

    monkeypatch.setattr(entry, "_through_dispatcher", counted)
    weights = llm.llm_engine.model_executor.driver_worker.get_model().parameters()
    assert any(type(p) is not torch.nn.Parameter for p in weights)  # else there is nothing to see
    run(llm, texts((6,)))
    assert not took


def test_layers_repeat_the_calls_of_the_first(
    llm: Any, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device; the control gives each layer the pages of the first."""
    from rlk.integrations.vllm import attention

    prompts, made = texts((9, 40)), []
    monkeypatch.setattr(attention, "on_a_device", lambda x: True)
    first = attention.Bound.of

    def of(calls: list[Any], own: Any) -> Any:
        made.append(len(calls))
        return first(calls, own)

    monkeypatch.setattr(attention.Bound, "of", of)
    before = llm.collective_rpc("rlk_calls")[0]
    assert llm.reset_prefix_cache()
    assert differing(policy, run(llm, prompts)) == 0
    after = llm.collective_rpc("rlk_calls")[0]
    steps = (after["attention"] - before["attention"]) // policy.config.num_hidden_layers
    assert made == [2] * steps and policy.config.num_hidden_layers > 1

    kept: list[Any] = []
    pages = attention.Paged._pages

    def of_the_first(self: Any, cache: torch.Tensor) -> Any:
        kept.append(pages(self, cache))
        return kept[0]

    monkeypatch.setattr(attention.Paged, "_pages", of_the_first)
    assert llm.reset_prefix_cache()
    assert differing(policy, run(llm, prompts)) > 0
    monkeypatch.undo()
    assert llm.reset_prefix_cache()


def test_prompts_have_the_trainers_log_probs(llm: Any, policy: Any) -> None:
    outputs = run(llm, texts((40, 7)), prompt_logprobs=0)
    for output in outputs:
        want = trained(policy, output)
        assert torch.equal(prompted(output), want[: len(output.prompt_token_ids) - 1])
        assert torch.equal(drawn(output), want[len(output.prompt_token_ids) - 1 :])


def test_new_weights_are_used_in_place(llm: Any, policy: Any, tmp_path: Path) -> None:
    newer = saved(tmp_path, seed=1)
    prompts = texts((9, 40))
    assert differing(newer, run(llm, prompts)) > 0  # the control: not sent yet
    load(llm, newer)
    try:
        assert differing(newer, run(llm, prompts[1:])) > 0  # another: keys of the old weights are read
        assert llm.reset_prefix_cache()
        assert differing(newer, run(llm, prompts)) == 0
    finally:
        load(llm, policy)
        assert llm.reset_prefix_cache()


def load(llm: Any, policy: Any) -> None:
    """Send weights to an engine, which keeps the keys of the old ones."""
    weights = [(name, p.detach().clone()) for name, p in policy.named_parameters()]
    llm.llm_engine.model_executor.driver_worker.get_model().load_weights(weights)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rms_norm_eps": 1e-5}, r"layers.1.input_layernorm with variance_epsilon=1e-06.*\n.*1e-05"),
        ({"rope_theta": 1e4}, r"layers.1.self_attn.rotary_emb with base=1000000.*\n.*10000"),
    ],
)
def test_layers_of_other_options_are_refused(llm: Any, options: dict[str, Any], message: str) -> None:
    from rlk.integrations.vllm.coverage import check_model

    loaded = llm.llm_engine.model_executor.driver_worker.get_model()
    check_model(loaded, ModelConfig.of(QWEN3))
    with pytest.raises(UnsupportedError, match=message):
        check_model(loaded, ModelConfig.of(QWEN3 | options))


def test_a_patched_transformers_model_has_them_too(llm: Any, path: Path) -> None:
    from transformers import AutoModelForCausalLM

    import rlk

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    with rlk.patch(model) as patched:
        assert differing(patched, run(llm, texts((20,)))) == 0


@pytest.mark.parametrize("control", ["norm", "head"])
def test_other_roundings_are_seen(
    llm: Any, policy: Any, control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlk.integrations.vllm import layers

    logits = layers.head_logits
    if control == "norm":
        norm = layers.computations.rms_norm_of_sum
        monkeypatch.setattr(
            layers.computations, "rms_norm_of_sum", lambda x, w, eps, _, r: norm(x, w, eps, "vllm", r)
        )
    else:
        monkeypatch.setattr(layers, "head_logits", lambda *a: logits(*a).bfloat16().float())
    llm.reset_prefix_cache()
    assert differing(policy, run(llm, texts((20,), seed=3), new=6)) > 0
    llm.reset_prefix_cache()
    monkeypatch.undo()
    assert differing(policy, run(llm, texts((20,), seed=3), new=6)) == 0


def test_a_hook_that_is_not_called_stops_the_start(
    path: Path, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.model_executor.layers.activation import SiluAndMul

    from rlk.integrations.vllm.layers import RlkSiluAndMul

    monkeypatch.setattr(RlkSiluAndMul, "forward", lambda self, x: SiluAndMul.forward_native(x))
    with pytest.raises(UnsupportedError, match=r"did not call rlk for gated \(SiluAndMul"):
        engine(path)


def test_layers_launch_what_a_worker_prepares(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config, find, launched = llm.llm_engine.vllm_config, Dispatcher.find, []

    def noted(self: Dispatcher, invocation: Any, tensors: Any) -> Any:
        launched.append((invocation, dict(tensors)))
        return find(self, invocation, tensors)

    monkeypatch.setattr(Dispatcher, "find", noted)
    dispatch.forget()  # calls that earlier tests bound are looked up again
    given = {"temperature": 0.7, "logprobs": 2}
    run(llm, texts((1, 16, 61, 23), seed=8), new=3, top_p=0.9, **given)
    run(llm, texts((32, 7), seed=9), new=2, prompt_logprobs=0, repetition_penalty=1.2, **given)
    monkeypatch.undo()
    prepared, found = Keys(), Keys()
    model = config.quant_config.model
    with samplers((True, False, True, False), (True, False, False, False)):
        serving.observe(model, torch.bfloat16, plugin.steps_of(config).bucket, 1, ON, prepared.note)
    for invocation, tensors in launched:
        found.note(invocation, tensors)
    assert not found.found.keys() - prepared.found.keys()
    assert len({name for name, _ in found.found}) == 9, "every operator of a step ran"
