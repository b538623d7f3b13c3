"""TRL's and verl's functions, exchanged for ours: the same values and gradients, put back as they were."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from loss_cases import Tensors, batch
from peer_losses import _surroundings, advantages
from test_docs import blocks

from rlk import ops
from rlk.errors import LaunchError, UnsupportedError
from rlk.integrations import trl as trl_adapter
from rlk.integrations import verl as verl_adapter
from rlk.integrations import verl_losses

CLOSE = 2e-6  # relative to the largest number of a tensor; of a loss, to the mean size of what it sums
WIDTH, LENGTHS = 40, (40, 17, 1, 29)
ROWS, VOCABULARY = 24, 300


def drawn(seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensors, torch.Tensor]:
    """Return a padded batch and the mask of its tokens; the third row has one."""
    given = batch(seed, LENGTHS, WIDTH)
    mask = given.pop("mask") & (torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None])
    mask[2, 0] = True
    return {n: x.to(dtype) for n, x in given.items()}, mask


def scores(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def far(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return how far numbers are from exact ones, relative to the largest of these."""
    assert got.shape == want.shape and want.dtype == torch.float64
    return float((got.double() - want).abs().max() / want.abs().max().clamp(min=1e-9))


def agree(theirs: Callable[..., Any], ours: Callable[..., Any], *leaves: torch.Tensor) -> None:
    """Compare a function of leaves with theirs in float64: value, and gradients of a weighted sum."""
    exact = [x.double().requires_grad_() for x in leaves]
    single = [x.clone().requires_grad_() for x in leaves]
    want, got = theirs(*exact), ours(*single)
    assert far(got.detach(), want.detach()) <= CLOSE
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(9))
    (want * weight.double()).sum().backward()
    (got * weight).sum().backward()
    for a, b in zip(single, exact, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None and b.grad is not None:
            assert far(a.grad, b.grad) <= CLOSE


def losses_agree(theirs: Callable[..., torch.Tensor], ours: Callable[..., torch.Tensor]) -> None:
    """Compare losses of (batch, mask), where batch["logp"] is the leaf."""
    for seed in range(3):
        (exact, mask), (single, _) = drawn(seed, torch.float64), drawn(seed)
        a, b = exact["logp"].requires_grad_(), single["logp"].requires_grad_()
        want, got = theirs(exact, mask), ours(single, mask)
        want.backward()
        got.backward()
        assert a.grad is not None and b.grad is not None and a.grad.any()
        assert far(b.grad, a.grad) <= CLOSE
        # a loss is a sum of terms of both signs: relative to what it would be without them
        size = max(float(want.detach().abs()), float(a.grad.abs().max()) * int(mask.sum()) / 4)
        assert abs(float(got) - float(want)) <= CLOSE * size


# --- verl ---


@pytest.fixture
def core() -> Any:
    pytest.importorskip("verl")
    from verl.trainer.ppo import core_algos

    return core_algos


@pytest.fixture
def verl(core: Any) -> Iterator[Any]:
    """The module of verl's losses while ours are in it; originals by `original`."""
    with verl_adapter.patched():
        yield core


def alone(adapter: Any, name: str) -> Callable[..., Any]:
    """Return a peer's own function, which runs with the swap off: it calls others that are swapped."""
    theirs = next(old for s in adapter.SWAPS.parts for n, old in s.originals.items() if n.endswith(name))

    def run(*args: Any, **options: Any) -> Any:
        adapter.unpatch()
        try:
            return theirs(*args, **options)
        finally:
            adapter.patch()

    return run if not isinstance(theirs, type) else theirs


def original(name: str) -> Any:
    return alone(verl_adapter, f":{name}")


def test_log_probs_and_entropies_are_verls(verl: Any) -> None:
    from verl.utils import torch_functional as functional

    ids = torch.randint(VOCABULARY, (4, ROWS), generator=torch.Generator().manual_seed(1))
    logits = scores(4, ROWS, VOCABULARY)
    plain = original("logprobs_from_logits")
    agree(lambda z: plain(z, ids), lambda z: functional.logprobs_from_logits(z, ids), logits)
    agree(original("entropy_from_logits"), functional.entropy_from_logits, logits)
    # theirs is in f32 whatever it is given
    agree(original("entropy_from_logits"), functional.entropy_from_logits_with_chunking, logits[0])
    assert functional.logprobs_from_logits is verl_adapter.logprobs_from_logits
    with pytest.raises(LaunchError, match="float64"):
        functional.logprobs_from_logits(logits.double(), ids)


KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "k2+", "k3+", "low_var_kl+")


@pytest.mark.parametrize("name", KL)
def test_kl_penalties_are_verls(verl: Any, name: str) -> None:
    given, _ = drawn(0)
    far_off = torch.where(torch.arange(WIDTH) % 7 == 0, 4.0 * given["logp"], given["ref_logp"])
    logp, ref = given["logp"], torch.where(torch.arange(WIDTH) % 5 == 0, -30.0, far_off)
    if "k3" in name or "var" in name:
        assert (ref - logp).min() < -20 and original("kl_penalty")(logp, ref, name).max() == 10
    agree(
        lambda x: original("kl_penalty")(x, ref.double(), name), lambda x: verl.kl_penalty(x, ref, name), logp
    )
    with pytest.raises(UnsupportedError, match="full"):
        verl.kl_penalty(logp, ref, "full")


INFO: dict[str, Any] = {
    "local": {},
    "global": {"dp_size": 2, "batch_num_tokens": 200, "global_batch_size": 11, "loss_scale_factor": 64},
}


@pytest.mark.parametrize("info", INFO)
@pytest.mark.parametrize("mode", verl_losses.MODES)
def test_aggregations_are_verls(verl: Any, mode: str, info: str) -> None:
    rows = torch.tensor([[True], [True], [True], [False]])  # the last has no token
    losses_agree(
        lambda g, m: original("agg_loss")(g["logp"], m & rows, mode, **INFO[info]),
        lambda g, m: verl.agg_loss(g["logp"], m & rows, mode, **INFO[info]),
    )
    with pytest.raises(UnsupportedError, match="token-median"):
        verl.agg_loss(torch.zeros(2, 3), torch.ones(2, 3), "token-median")


LOSSES = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "geo_mean", "dro", "cispo", "reinforce")


def config_of(info: str = "local", **options: Any) -> Any:
    from verl.workers.config import ActorConfig

    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **options)
    object.__setattr__(config.policy_loss, "dro_beta", 0.07)
    config.global_batch_info.update(INFO[info])
    return config


def called(function: Any, given: Tensors, mask: torch.Tensor, mode: str, config: Any, weighted: bool) -> Any:
    weights = (given["old_logp"] - given["rollout_logp"]).exp().clamp(max=1.1) if weighted else None
    each = advantages(given)
    return function(given["old_logp"], given["logp"], each, mask, mode, config, weights)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("info", INFO)
@pytest.mark.parametrize("name", LOSSES)
def test_policy_losses_are_verls(verl: Any, name: str, info: str, weighted: bool) -> None:
    config = config_of(info, clip_ratio_low=0.1, clip_ratio_high=0.3, clip_ratio_c=1.4, tau_neg=1.2)
    full = f"compute_policy_loss_{name}"
    ours = getattr(verl, full) if name == "reinforce" else verl.get_policy_loss_fn(name)
    assert ours is verl_losses.REPLACEMENTS[full] is getattr(verl, full)
    for mode in ("token-mean", "seq-mean-token-mean"):
        losses_agree(
            lambda g, m, mode=mode: called(original(full), g, m, mode, config, weighted)[0],
            lambda g, m, mode=mode: called(ours, g, m, mode, config, weighted)[0],
        )


@pytest.mark.parametrize("name", LOSSES)
def test_metrics_are_verls(verl: Any, name: str) -> None:
    config = config_of(clip_ratio_low=0.1, clip_ratio_high=0.1, clip_ratio_c=1.2)
    full = f"compute_policy_loss_{name}"
    for seed in range(3):
        given, mask = drawn(seed)
        _, want = called(original(full), given, mask, "token-mean", config, False)
        _, got = called(getattr(verl, full), given, mask, "token-mean", config, False)
        assert {n: float(x) for n, x in got.items()} == pytest.approx(want, rel=1e-5, abs=1e-7)
    if name in ("vanilla", "dppo_tv", "dppo_kl", "geo_mean"):
        assert want["actor/pg_clipfrac"] > 0


def test_advantages_are_verls(verl: Any) -> None:
    rewards = torch.zeros(12, WIDTH)
    rewards[:, -1] = torch.randn(12, generator=torch.Generator().manual_seed(3))
    mask = torch.ones(12, WIDTH)
    index = np.array(["b", "a", "b", "c", "a", "c", "b", "a", "c", "c", "a", "b"], dtype=object)
    for name, options in (("grpo", {}), ("grpo", {"norm_adv_by_std_in_grpo": False}), ("rloo", {})):
        theirs = original(f"compute_{name}_outcome_advantage")
        want, _ = theirs(rewards.double(), mask.double(), index, **options)
        got, again = verl.get_adv_estimator_fn(name)(rewards, mask, index, **options)
        assert far(got, want) <= CLOSE and again is got
    given, tokens = drawn(0)
    args = (given["old_logp"], given["logp"], tokens)
    white, returns = verl.get_adv_estimator_fn("gae")(*args, gamma=0.99, lam=0.95)
    exact = [x.double() for x in args]
    their_white, their_returns = original("compute_gae_advantage_return")(*exact, gamma=0.99, lam=0.95)
    assert far(returns[tokens], their_returns[tokens]) <= CLOSE
    assert far(white[tokens], their_white[tokens]) <= 2 * CLOSE  # whitened by verl in f32


def bound(package: str) -> dict[str, Any]:
    """Return every object that the loaded modules of a package have bound."""
    modules = [(n, m) for n, m in sys.modules.items() if n.split(".")[0] == package]
    return {f"{n}:{k}": v for n, m in modules for k, v in vars(m).items()}


def test_verl_is_put_back_as_it_was(core: Any) -> None:
    from verl.workers.rollout.naive import naive_rollout

    def held() -> dict[str, Any]:
        registries = {"policy": core.POLICY_LOSS_REGISTRY, "advantage": core.ADV_ESTIMATOR_REGISTRY}
        return bound("verl") | {f"{n}/{k}": v for n, r in registries.items() for k, v in r.items()}

    before = held()
    with pytest.raises(ZeroDivisionError), verl_adapter.patched(), verl_adapter.patched():
        changed = {n for n, v in held().items() if n in before and v is not before[n]}
        assert naive_rollout.logprobs_from_logits is verl_adapter.logprobs_from_logits
        assert {"policy/vanilla", "advantage/grpo", "verl.trainer.ppo.core_algos:agg_loss"} <= changed
        raise ZeroDivisionError
    after = held()
    assert [n for n in before if after[n] is not before[n]] == []


# --- TRL ---


@pytest.fixture
def trl() -> Iterator[Any]:
    pytest.importorskip("trl")
    from trl.trainer import utils

    with trl_adapter.patched():
        yield utils


def trls(name: str) -> Any:
    return alone(trl_adapter, name)


def test_log_probs_and_entropies_are_trls(trl: Any) -> None:
    ids = torch.randint(VOCABULARY, (4, ROWS), generator=torch.Generator().manual_seed(1))
    logits, mask = scores(4, ROWS, VOCABULARY), torch.rand(4, ROWS) < 0.7
    plain = trls(":selective_log_softmax")
    for index, options in (
        (ids, {"temperature": 0.7, "row_mask": mask.long()}),
        (torch.stack([ids, ids.flip(0)], -1), {}),
    ):
        agree(
            lambda z, i=index, o=options: plain(z, i, **o),
            lambda z, i=index, o=options: trl.selective_log_softmax(z, i, **o),
            logits,
        )
    agree(trls("entropy_from_logits"), trl.entropy_from_logits, logits)
    both = trls("softmax_and_entropy")
    for which in range(2):
        agree(
            lambda z, n=which: both(z, ids, row_mask=mask)[n],
            lambda z, n=which: trl.selective_log_softmax_and_entropy(z, ids, row_mask=mask)[n],
            logits,
        )


@pytest.mark.parametrize("options", [{}, {"final_logit_softcapping": 20.0, "logit_scale": 0.5}])
@pytest.mark.parametrize("biased", [False, True])
def test_a_fused_head_is_trls(trl: Any, options: Any, biased: bool) -> None:
    hidden, weight = scores(ROWS, 16) / 3, scores(VOCABULARY, 16, seed=1) / 12
    bias = scores(VOCABULARY, seed=2) / 3
    ids = torch.randint(VOCABULARY, (ROWS,), generator=torch.Generator().manual_seed(1))
    names = ("entropy", "log_sum_sq_probs", "mean_logits", "is_top1")

    def exact(h: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> Any:
        """TRL's function computes in f32: what it means, in float64."""
        z = torch.nn.functional.linear(h, w, b) * options.get("logit_scale", 1.0)
        cap = options.get("final_logit_softcapping")
        p = ((z if cap is None else cap * torch.tanh(z / cap)) / 0.9).log_softmax(-1)
        return p.gather(-1, ids[:, None])[:, 0], -(p.exp() * p).sum(-1)

    def ours(outputs: Any, h: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> Any:
        return trl._ChunkedLogProbFunction.apply(h, w, b, ids, 0.9, 128, **options, outputs=outputs)

    leaves = (hidden, weight, bias) if biased else (hidden, weight)
    for which in range(2):
        agree(
            lambda h, w, b=None, n=which: exact(h, w, b)[n],
            lambda h, w, b=None, n=which: ours(("log_probs", "entropy"), h, w, b)[n],
            *leaves,
        )
    theirs = trls("ChunkedLogProbFunction").apply(
        hidden, weight, bias if biased else None, ids, 0.9, 128,
        options.get("final_logit_softcapping"), options.get("logit_scale", 1.0), names,
    )  # fmt: skip
    got = ours(names, hidden, weight, bias if biased else None)
    for a, b in zip(got[:4], theirs[:4], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)
    assert torch.equal(got[4], theirs[4])
    assert ours(("log_probs",), hidden, weight, None)[1:] == (None,) * 4


def test_16_bit_heads_have_no_logits_in_memory(trl: Any) -> None:
    """The bits are linear_logp's: those of the exact product, which TRL rounds to 16 bits."""
    hidden, weight = scores(ROWS, 64).bfloat16(), (scores(VOCABULARY, 64, seed=1) / 8).bfloat16()
    ids = torch.randint(VOCABULARY, (ROWS,))
    got = trl._ChunkedLogProbFunction.apply(
        hidden.requires_grad_(), weight, None, ids, 1.0, 128, outputs=("entropy",)
    )
    want = ops.linear_logp(hidden, weight, ids, needs=("logp", "entropy"))
    assert torch.equal(got[0].view(torch.int32), want.logp.view(torch.int32))  # type: ignore[union-attr]
    assert torch.equal(got[1].view(torch.int32), want.entropy.view(torch.int32))  # type: ignore[union-attr]


TRL: dict[str, dict[str, Any]] = {
    **{name: {"loss_type": name} for name in ("grpo", "bnpo", "dapo", "dr_grpo", "sapo", "vespo")},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.1},
    "delta": {"loss_type": "grpo", "delta": 1.3},
    "delta within the bounds": {"loss_type": "grpo", "delta": 1.1},
    "kl": {"loss_type": "grpo", "beta": 0.3},
    "unbiased kl": {"loss_type": "dapo", "beta": 0.3, "use_bias_correction_kl": True},
    "entropy": {"loss_type": "dapo", "entropy_coef": 0.2},
    "some tokens": {"loss_type": "grpo", "top_entropy_quantile": 0.5, "entropy_coef": 0.2, "beta": 0.1},
    "off-policy mask": {"loss_type": "grpo", "off_policy_mask_threshold": -0.01},
    "vLLM's off-policy mask": {"loss_type": "grpo", "off_policy_mask_threshold": 0.0, "sampled": True},
    "correction": {"loss_type": "grpo", "correction": True},
    "vespo's correction": {"loss_type": "vespo", "correction": True},
    "accumulated": {"loss_type": "dapo", "current_gradient_accumulation_steps": 4, "entropy_coef": 0.1},
    "evaluated": {"loss_type": "grpo", "current_gradient_accumulation_steps": 4, "eval": True},
}


def trainer_of(given: Tensors, mask: torch.Tensor, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return what a GRPOTrainer's loss reads of it, and what of its inputs the options add."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    options, added = dict(options), {}
    arguments = {n: options.pop(n, None) for n in ("delta", "use_bias_correction_kl")}
    if options.pop("sampled", False):
        added["sampling_per_token_logps"] = given["rollout_logp"]
    corrected = options.pop("correction", False)
    if corrected:
        d = (given["old_logp"] - given["rollout_logp"]) * mask  # so 1 where nothing counts, as the trainer's
        added["importance_sampling_ratio"] = d.exp().clamp(max=1.1)
    around = _surroundings(given) | {"model": SimpleNamespace(training=not options.pop("eval", False))}
    around["_metrics"] = {"train": Logged(), "eval": Logged()}
    fields = {
        "beta": 0.0, "importance_sampling_level": "token", "epsilon_low": 0.1, "epsilon_high": 0.2,
        "entropy_coef": 0.0, "off_policy_mask_threshold": None, "use_vllm": corrected,
        "max_completion_length": 64, "get_off_policy_mask": GRPOTrainer.get_off_policy_mask,
        "get_gamma_weights": GRPOTrainer.get_gamma_weights,
    }  # fmt: skip
    trainer = SimpleNamespace(**{**around, **fields, **options})
    trainer._entropy_bonus_enabled = trainer.entropy_coef != 0.0
    trainer.get_high_entropy_mask = lambda *a: GRPOTrainer.get_high_entropy_mask(trainer, *a)
    trainer.accelerator.device = "cpu"
    trainer.accelerator.pad_across_processes = lambda x, **_: x
    for name, value in arguments.items():
        setattr(trainer.args, name, value)
    return trainer, added


class Logged(dict[str, list[float]]):
    """The metrics of a trainer."""

    def __missing__(self, key: str) -> list[float]:
        return self.setdefault(key, [])


@pytest.mark.parametrize("name", TRL)
def test_losses_and_metrics_are_trls(trl: Any, name: str) -> None:
    from trl.trainer.grpo_trainer import GRPOTrainer

    logged: list[dict[str, list[float]]] = []

    def loss(method: Any, given: Tensors, mask: torch.Tensor) -> torch.Tensor:
        trainer, added = trainer_of(given, mask, TRL[name])
        counted = mask.to(given["logp"].dtype)
        inputs = {
            "prompt_ids": mask[:, :0].long(), "prompt_mask": mask[:, :0].long(),
            "completion_ids": mask.long(), "completion_mask": counted,
            "advantages": given["advantages"], "num_items_in_batch": mask.sum(),
            "old_per_token_logps": given["old_logp"], "ref_per_token_logps": given["ref_logp"], **added,
        }  # fmt: skip
        made = method(trainer, None, inputs)
        logged.append(trainer._metrics["train"] | trainer._metrics["eval"])
        return made

    theirs = trls("_compute_loss")
    assert GRPOTrainer._compute_loss is trl_adapter.grpo_loss is not theirs
    losses_agree(lambda g, m: loss(theirs, g, m), lambda g, m: loss(trl_adapter.grpo_loss, g, m))
    for want, got in zip(logged[::2], logged[1::2], strict=True):
        assert sorted(want) == sorted(got) and want
        for key in want:
            assert got[key] == pytest.approx(want[key], rel=1e-5, abs=1e-6), key


def test_what_has_no_record_is_refused(trl: Any) -> None:
    given, mask = drawn(0)
    inputs = {"completion_mask": mask}
    trainer, _ = trainer_of(given, mask, {"loss_type": "grpo", "entropy_coef": 0.1})
    trainer.use_adaptive_entropy = True
    with pytest.raises(UnsupportedError, match="adaptive"):
        trl_adapter.grpo_loss(trainer, None, inputs)
    trainer, _ = trainer_of(given, mask, {"loss_type": "new"})
    with pytest.raises(UnsupportedError, match="loss_type='new'"):
        trl_adapter.loss_of(trainer)


def trained(folder: str) -> tuple[list[dict[str, float]], torch.Tensor]:
    """Return what TRL's trainer logs of two steps of a tiny model, the second off-policy, and its weights."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    vocabulary = {c: i for i, c in enumerate(("<pad>", "<eos>", "a", "b", "c", "d"))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 6}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "eos_token_id": 1, "pad_token_id": 0}
    Qwen2ForCausalLM(Qwen2Config(**shape, **heads)).save_pretrained(folder)
    trainer = GRPOTrainer(
        Qwen2ForCausalLM.from_pretrained(folder),
        reward_funcs=lambda completions, **_: [float(c.count("a")) for c in completions],
        args=GRPOConfig(
            folder, max_steps=2, num_iterations=2, per_device_train_batch_size=8, num_generations=4,
            max_completion_length=6, beta=0.04, learning_rate=1e-3, logging_steps=1, seed=0, bf16=False,
            use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["ab", "cd", "ba", "dc"] * 4}),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
        ),
    )  # fmt: skip
    trainer.train()
    return trainer.state.log_history[:2], torch.cat(
        [p.detach().flatten() for p in trainer.model.parameters()]
    )


@pytest.mark.slow
def test_a_trainer_trains_as_with_trls_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    want, weights = trained(str(tmp_path / "theirs"))
    seen: Counter[str] = Counter()
    for name in ("logp", "policy_loss"):
        real = getattr(ops, name)
        counted = lambda *a, real=real, name=name, **o: seen.update([name]) or real(*a, **o)  # noqa: E731
        monkeypatch.setattr(ops, name, counted)
    with trl_adapter.patched():
        got, same = trained(str(tmp_path / "ours"))
    assert seen["policy_loss"] == 2 and seen["logp"] >= 4  # of the policy twice, before it, of the reference
    for theirs, ours in zip(want, got, strict=True):
        for name in ("loss", "kl", "entropy", "grad_norm", "clip_ratio/region_mean"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name
    assert want[1]["kl"] > 0
    torch.testing.assert_close(same, weights, rtol=0, atol=1e-5)


def test_the_page_about_adapters_runs() -> None:
    pytest.importorskip("trl")
    pytest.importorskip("verl")
    for block in blocks("docs/integrations.md"):
        exec(compile(block, "integrations.py", "exec"), {})
    assert not any(swap.on for a in (trl_adapter, verl_adapter) for swap in a.SWAPS.parts)


def test_trl_is_put_back_as_it_was() -> None:
    pytest.importorskip("trl")
    from trl.experimental.sdpo import loss_utils
    from trl.trainer.grpo_trainer import GRPOTrainer

    method, before = vars(GRPOTrainer)["_compute_loss"], bound("trl")
    with pytest.raises(ZeroDivisionError), trl_adapter.patched(), trl_adapter.patched():
        assert loss_utils.selective_log_softmax is trl_adapter.selective_log_softmax
        raise ZeroDivisionError
    after = bound("trl")
    assert [n for n in before if after[n] is not before[n]] == []
    assert vars(GRPOTrainer)["_compute_loss"] is method


def test_a_wrong_constant_is_seen(verl: Any) -> None:
    """The control: what is compared tells a clip range of 0.2 from one of 0.2001."""
    configs = [config_of(clip_ratio=c, clip_ratio_low=c, clip_ratio_high=c) for c in (0.2, 0.2001)]
    full = "compute_policy_loss_vanilla"
    with pytest.raises(AssertionError):
        losses_agree(
            lambda g, m: called(original(full), g, m, "token-mean", configs[0], False)[0],
            lambda g, m: called(getattr(verl, full), g, m, "token-mean", configs[1], False)[0],
        )
