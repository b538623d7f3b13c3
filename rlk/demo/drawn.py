"""Compare log-probs of tokens that continuous batching of transformers draws with those of training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

import rlk
from rlk.demo.measure import same_bits
from rlk.demo.report import ViewRow
from rlk.demo.text import Sample
from rlk.errors import UnsupportedError
from rlk.integrations.batch import PEER
from rlk.integrations.continuous_batching import VERSIONS
from rlk.integrations.swap import known_version
from rlk.ops.results import LogProbs

VIEW = "drawn by generate_batch, and trained on"
NOT_RUN = f"continuous batching was not run: rlk.patch knows that of transformers {VERSIONS}"
NEW = 6  # tokens drawn for each prompt
PAGE, CHUNK = 16, 64


def row(model: Any, samples: Sequence[Sample], seed: int) -> ViewRow | None:
    """Continue prompts by `generate_batch`, and compare its log-probs with those of the finished sequences.

    Once by a model of transformers, once by the same model under `rlk.patch`; each draws its own tokens. None
    for a version of transformers whose batching `rlk.patch` does not know.
    """
    try:
        known_version(PEER, VERSIONS)
    except UnsupportedError:
        return None
    prompts = [list(sample.prompt) for sample in samples]
    with _quiet(), torch.no_grad():
        theirs = _both(model, prompts, seed, lambda ids: _log_probs(model(ids, use_cache=False).logits, ids))
        with rlk.patch(model) as patched:
            ours = _both(model, prompts, seed, lambda ids: _of(patched.logps(ids)))
    counts: list[Any] = []
    for drawn, trained in (theirs, ours):
        counts += [same_bits(VIEW, PEER, drawn, trained).differing, float((drawn - trained).abs().max())]
    return ViewRow(VIEW, ours[0].numel(), *counts)


def _both(
    model: Any, prompts: list[list[int]], seed: int, logps: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the log-probs f32 [N] of drawn tokens, by the engine and, one by one, by the trainer."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    draws = GenerationConfig(max_new_tokens=NEW, do_sample=True, eos_token_id=-1, pad_token_id=0)
    pages = sum(-(-(len(prompt) + NEW) // PAGE) for prompt in prompts) + 1
    batching = ContinuousBatchingConfig(
        return_logprobs=True, auto_switch_to_flash=False, seed=seed, page_size=PAGE, num_blocks=pages,
        max_batch_tokens=CHUNK,
    )  # fmt: skip
    made = list(model.generate_batch(prompts, draws, batching, warmup=False).values())
    device = next(model.parameters()).device
    sequences = [torch.tensor([*each.prompt_ids, *each.generated_tokens], device=device) for each in made]
    drawn = torch.tensor([x for each in made for x in each.logprobs], device=device)
    return drawn, torch.cat([logps(ids[None])[-NEW:] for ids in sequences])


def _log_probs(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probs in f32 of the tokens of a sequence after its first, as trainers compute them."""
    return torch.log_softmax(logits[0, :-1].float(), -1).gather(-1, ids[0, 1:, None])[:, 0]


def _of(found: LogProbs) -> Tensor:
    assert found.logp is not None
    return found.logp[0, 1:]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from saying that it cannot read the memory without psutil."""
    logger = logging.getLogger("ContinuousBatchingLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
