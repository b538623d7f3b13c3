"""transformers' continuous batching of a patched model: log-probs of a trainer, draws of requests alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rlk
from rlk.errors import LaunchError, UnsupportedError
from rlk.integrations import continuous_batching as ours
from rlk.nn import CausalLM, ModelConfig
from rlk.testing.bits import assert_same_bits, differing

transformers = pytest.importorskip("transformers")
if transformers.__version__ not in ours.VERSIONS:
    pytest.skip("a version of transformers whose batching is refused", allow_module_level=True)

from model_families import FAMILIES  # noqa: E402
from transformers.generation.continuous_batching.cache import PagedAttentionCache  # noqa: E402

SHARED = [(i * 7 + 3) % 90 for i in range(20)]  # more than a page: its keys are computed once
PROMPTS = [[5, 9, 11], SHARED + [7, 8], SHARED + [4], list(range(2, 32))]
NEW = 4


def made(family: str = "qwen3") -> Any:
    torch.manual_seed(0)
    config = FAMILIES[family]()
    config.initializer_range = 0.2
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def generated(
    model: Any, prompts: list[list[int]] = PROMPTS, keep: bool = False, inside: bool = False, **options: Any
) -> list[Any]:
    """Return what requests draw in steps of at most 12 tokens: prompts are read in chunks, beside others."""
    sizes = {"page_size": 16, "num_blocks": 32, "max_batch_tokens": 12, "seed": 3} | options.pop("sizes", {})
    config = transformers.GenerationConfig(
        max_new_tokens=NEW, eos_token_id=-1, pad_token_id=0, **{"do_sample": True} | options
    )
    batching = transformers.ContinuousBatchingConfig(
        return_logprobs=True, auto_switch_to_flash=False, **sizes
    )
    if inside:
        config.continuous_batching_config = batching
    given = None if inside else batching
    return list(model.generate_batch(prompts, config, given, warmup=False, persistent_manager=keep).values())


def drawn(results: list[Any]) -> tuple[list[list[int]], torch.Tensor]:
    """Return the tokens of all requests, and their log-probs."""
    ids = [each.generated_tokens for each in results]
    return ids, torch.tensor([x for each in results for x in each.logprobs])


def scored(patched: Any, results: list[Any], temperature: float = 1.0) -> torch.Tensor:
    """Return the log-probs of the same tokens, as a trainer has them: of whole sequences, packed."""
    sequences = [[*each.prompt_ids, *each.generated_tokens] for each in results]
    positions = torch.cat([torch.arange(len(x)) for x in sequences])[None]
    ids = torch.tensor([token for x in sequences for token in x])[None]
    with torch.no_grad():
        logp = patched.logps(ids, position_ids=positions, temperature=temperature).logp[0]
    return torch.cat([x[-NEW:] for x in logp.split([len(x) for x in sequences])])


def test_log_probs_of_drawn_tokens_are_the_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Gemma 2, which has layers with a window, and softcaps."""
    model, hits = made("gemma2"), []
    search = PagedAttentionCache.search_prefix_match
    monkeypatch.setattr(
        PagedAttentionCache, "search_prefix_match", lambda *given: hits.append(search(*given)) or hits[-1]
    )
    before = model.config._attn_implementation
    with rlk.patch(model) as patched:
        results = generated(model)
        assert_same_bits(drawn(results)[1], scored(patched, results))
        assert 16 in hits  # tokens of a page that another request wrote
        cool = generated(model, temperature=0.7)
        assert_same_bits(drawn(cool)[1], scored(patched, cool, 0.7))
        likeliest = generated(model, do_sample=False)  # of which log-probs are those at temperature 1
        assert_same_bits(drawn(likeliest)[1], scored(patched, likeliest))
        # the control: another temperature is another distribution
        assert differing(drawn(cool)[1], scored(patched, cool))
    assert model.config._attn_implementation == before and "generate_batch" not in vars(model)
    # the control: transformers' own layers and sampler, whose log-probs are not those of its forward
    stock = generated(model)
    sequence = torch.tensor([[*stock[3].prompt_ids, *stock[3].generated_tokens]])
    with torch.no_grad():
        logits = model(sequence).logits[0].float()
    want = torch.log_softmax(logits, -1)[:-1].gather(1, sequence[0, 1:, None])[-NEW:, 0]
    assert differing(drawn(stock[3:])[1], want)


def test_draws_depend_on_seed_and_request_alone_and_are_those_of_the_own_engine() -> None:
    model = made()
    own = CausalLM(ModelConfig.of(model.config), dtype=torch.bfloat16)
    own.load_state_dict(model.state_dict())
    with rlk.patch(model):
        ids, logps = drawn(generated(model, top_k=20, top_p=0.9))
        small = {"max_batch_tokens": 5, "max_requests_per_batch": 2, "allow_block_sharing": False}
        again, logps_again = drawn(generated(model, top_k=20, top_p=0.9, sizes=small))
        other, _ = drawn(generated(model, top_k=20, top_p=0.9, sizes={"seed": 4}))
        inside, _ = drawn(generated(model, top_k=20, top_p=0.9, inside=True))
    assert again == inside == ids and other != ids
    assert_same_bits(logps_again, logps)
    want = own.generate(PROMPTS, max_new_tokens=NEW, seed=3, top_k=20, top_p=0.9)
    assert [list(each.ids) for each in want] == ids
    assert_same_bits(torch.cat([each.logps for each in want]), logps)


def test_a_manager_takes_seeds_and_options_of_requests() -> None:
    model = made()
    config = transformers.GenerationConfig(
        max_new_tokens=NEW, eos_token_id=-1, pad_token_id=0, do_sample=True, temperature=0.9
    )
    batching = transformers.ContinuousBatchingConfig(page_size=16, num_blocks=32, seed=3)
    asked: dict[str, dict[str, Any]] = {
        "a": {"seed": 8, "request_number": 1}, "b": {"seed": 8, "request_number": 1},
        "c": {"seed": 8, "request_number": 2}, "d": {"temperature": 0.0},
    }  # fmt: skip
    found = {}
    with rlk.patch(model):
        with model.continuous_batching_context_manager(
            config, continuous_batching_config=batching
        ) as manager:
            for name, options in asked.items():
                manager.add_request(PROMPTS[0], request_id=name, **options)
            with pytest.raises(
                LaunchError, match="one of: seed, request_number, temperature; others are off"
            ):
                manager.add_request(PROMPTS[0], top_k=4)
            while len(found) < len(asked) and manager.is_running():
                if result := manager.get_result(timeout=1):
                    assert result.error is None
                    found[result.request_id] = result.generated_tokens
        greedy, _ = drawn(generated(model, PROMPTS[:1], do_sample=False))
    assert found["a"] == found["b"] != found["c"] and found["d"] == greedy[0]


def test_a_kept_manager_reads_no_keys_of_older_weights() -> None:
    model = made()
    with rlk.patch(model) as patched:
        first, again = (generated(model, PROMPTS[1:3], keep=True, sizes={"seed": n}) for n in (3, 3))
        with torch.no_grad():
            model.model.layers[0].self_attn.k_proj.weight.mul_(1.5)
        later = generated(model, PROMPTS[1:3], keep=True)
        assert_same_bits(drawn(later)[1], scored(patched, later))
        with pytest.raises(UnsupportedError, match="a kept manager with"):
            generated(model, PROMPTS[1:3], keep=True, top_k=3)
        model.destroy_cached_continuous_batching_manager()
    assert drawn(first)[0] != drawn(again)[0]  # requests are numbered on


def test_a_kept_manager_serves_one_side_of_a_patch() -> None:
    model = made()
    before = drawn(generated(model, PROMPTS[:1], do_sample=False, keep=True))
    with rlk.patch(model), pytest.raises(UnsupportedError, match="manager that was kept before the patch"):
        generated(model, PROMPTS[:1])
    with rlk.patch(model):
        generated(model, PROMPTS[:1], keep=True)
    again = drawn(generated(model, PROMPTS[:1], do_sample=False))
    assert again[0] == before[0]
    assert_same_bits(again[1], before[1])


def test_requests_and_options_without_a_form_are_refused() -> None:
    model = made()
    wrong: dict[str, tuple[list[list[int]], dict[str, Any]]] = {
        "at least one token": ([[]], {}),
        "ids from 0 to 95": ([[4, 96]], {}),
        "within 64 positions": ([[4] * 62], {}),
        "RepetitionPenaltyLogitsProcessor": (PROMPTS, {"repetition_penalty": 1.2}),
        "num_return_sequences=2": (PROMPTS, {"num_return_sequences": 2}),
        "torch.compile": (PROMPTS, {"sizes": {"default_compile_level": 1}}),
    }
    with rlk.patch(model):
        for message, (prompts, options) in wrong.items():
            with pytest.raises((LaunchError, UnsupportedError), match=message):
                generated(model, prompts, **options)


def test_a_step_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made()

    def broken(*_: object) -> None:
        raise ValueError("no pages")

    monkeypatch.setattr(ours, "paged_tokens", broken)
    with (
        rlk.patch(model),
        pytest.raises(LaunchError, match="1 of 1 requests failed, the first with: no pages"),
    ):
        generated(model, PROMPTS[:1])
