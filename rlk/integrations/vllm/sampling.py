"""Tokens, log-probs and supports of vLLM's requests by `rlk.ops.sample`, in both of its model runners.

Imports vLLM. The order is vLLM's: allowed and bad tokens, logit bias and minimum length, penalties
(repetition, frequency, presence), temperature, min-p, top-k, top-p.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any, NamedTuple

import torch
from vllm.model_executor.layers.utils import get_token_bin_counts_and_mask
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample import sampler as v1
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.penalties import _convert_to_tensors
from vllm.v1.worker.gpu.input_batch import get_num_sampled_and_rejected
from vllm.v1.worker.gpu.metrics.logits import get_num_nans
from vllm.v1.worker.gpu.sample import sampler as v2
from vllm.v1.worker.gpu.sample.logprob import _ranks_kernel, compute_topk_scores
from vllm.v1.worker.gpu.sample.output import SamplerOutput as SamplerOutputV2
from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker

from rlk import ops
from rlk.integrations.tensors import no_form
from rlk.integrations.vllm.hooks import PEER, hook
from rlk.integrations.vllm.requests import PackedTensors
from rlk.ops import sampling
from rlk.ops.results import Support

SAMPLE = hook("sample", "Sampler.forward (V1), Sampler.__call__ (V2)")
PROMPT = hook("prompt_logprobs", "Sampler.compute_logprobs (V1), PromptLogprobsWorker (V2)")
REQUEST_ID = 0
"""Of every request, beside its seed, in the counter of a draw: a request of a seed has one stream."""
RANKED = 8192
"""Scores that vLLM's kernel compares at a time."""


# --- drawing ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """Options of `rlk.ops.sample` for rows: tensors [B], or None where no row has the option.

    seed, position: int64. temperature 0 takes the largest score. greedy: whether a row may have it.
    """

    seed: torch.Tensor
    position: torch.Tensor
    temperature: torch.Tensor | None = None
    top_k: torch.Tensor | None = None
    top_p: torch.Tensor | None = None
    min_p: torch.Tensor | None = None
    greedy: bool = False

    @property
    def cuts(self) -> bool:
        """Return whether tokens may be excluded."""
        return any(x is not None for x in (self.top_k, self.top_p, self.min_p))


class Drawn(NamedTuple):
    """Tokens i64 [B], and what their log-probs are under: the temperature [B] (None: 1) and the support."""

    token: torch.Tensor
    temperature: torch.Tensor | None
    support: Support


def draw(scores: torch.Tensor, options: Options) -> Drawn:
    """Draw a token from each row of scores [B, V], which no other row changes.

    Log-probs of greedy rows are, as in vLLM, under temperature 1 and every token. A row without a finite
    score, or with +inf, from which `rlk.ops.sample` draws nothing, has token 0: as with vLLM's own sampler
    the request goes on, and its log-probs, which are NaN, say so. An index of -1 would end the engine.
    """
    random_key: dict[str, Any] = {"seed": options.seed, "position": options.position}
    random_key["request_id"] = _request_ids(len(options.seed), options.seed.device)
    given = (options.temperature, options.top_k, options.top_p, options.min_p)
    made = sampling.draw(
        scores, random_key, *(off if x is None else x for x, off in zip(given, OFF, strict=True))
    )
    token = made.token.clamp_(min=0)
    if not options.greedy:
        return Drawn(token, options.temperature, made.support)
    assert options.temperature is not None
    best = options.temperature == 0
    every = Support(*(torch.where(best, x, own) for x, own in zip((-inf, 0, -1), made.support, strict=True)))
    return Drawn(token, torch.where(best, 1.0, options.temperature), every)


@cache
def _request_ids(rows: int, device: torch.device) -> torch.Tensor:
    """Return REQUEST_ID for each row, which nothing writes."""
    return torch.full((rows,), REQUEST_ID, dtype=torch.int64, device=device)


OFF = (1.0, 0, 1.0, 0.0)
"""Temperature, top_k, top_p and min_p of rows without options."""


def penalized(
    scores: torch.Tensor,
    counts: torch.Tensor,
    prompt: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """Return scores with penalties [B] of tokens that were generated counts [B, V] times or are prompted."""
    return ops.penalize(
        scores, ops.Penalties(counts, prompt, repetition=repetition, frequency=frequency, presence=presence)
    )


# --- log-probs ----------------------------------------------------------------------------------------------


def every_logp(logits: torch.Tensor) -> torch.Tensor:
    """Return the log-probs of all tokens, f32 of the shape of logits [T, V]: each has the bits of `logp`."""
    return Scored(logits.float(), None, None).matrix(True)


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Scores [B, V] with the temperature [B] and the support under which log-probs are; None: 1, all."""

    scores: torch.Tensor
    temperature: torch.Tensor | None
    support: Support | None

    def logp(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the log-probs of one token a row, f32 [B]."""
        return self._logp_field(ids, "logp")

    def rank(self, ids: torch.Tensor) -> torch.Tensor:
        """Return how many tokens are as likely as one of each row, or likelier, itself included."""
        held = self._masked_to_support(self.scores)
        if not held.is_cuda:
            return (held >= held.gather(1, ids[:, None])).sum(-1)
        made = torch.empty_like(ids, dtype=torch.int32)
        _ranks_kernel[(len(ids),)](made, held, held.stride(0), ids, held.shape[1], BLOCK_SIZE=RANKED)
        return made.clamp_(max=held.shape[1])  # the kernel pads rows by -inf, and counts it with others

    def matrix(self, logprobs: bool) -> torch.Tensor:
        """Return the log-probs of all tokens, or what they are made of: scores by temperature, f32 [B, V]."""
        z = self._masked_to_support(self.scores)
        if self.temperature is not None:
            z = z * torch.reciprocal(self.temperature)[:, None]
        if not logprobs:
            return z
        ids = torch.zeros(len(z), dtype=torch.int64, device=z.device)
        return z - self._logp_field(ids, "lse")[:, None]

    def _logp_field(self, ids: torch.Tensor, field: str) -> torch.Tensor:
        temperature = 1.0 if self.temperature is None else self.temperature
        made = ops.logp(self.scores, ids, temperature=temperature, support=self.support, needs=(field,))
        found: torch.Tensor = getattr(made, field)
        return found

    def _masked_to_support(self, x: torch.Tensor) -> torch.Tensor:
        if self.support is None:
            return x
        return torch.where(self.support.holds(x, torch.arange(x.shape[1], device=x.device)), x, -inf)


def scored(mode: str, logits: torch.Tensor, scores: torch.Tensor, drawn: Drawn, cuts: bool) -> Scored:
    """Return what vLLM's logprobs_mode asks for. logits: of the model; scores: what was drawn from."""
    if mode.startswith("raw"):
        return Scored(logits.float(), None, None)
    return Scored(scores, drawn.temperature, drawn.support if cuts else None)


def of_drawn(mode: str, of: Scored, drawn: Drawn) -> LogprobsTensors:
    """Return vLLM's log-probs of the drawn tokens alone."""
    ids = drawn.token[:, None]
    logps = mode.endswith("logprobs")
    values = of.logp(drawn.token)[:, None] if logps else of.matrix(False).gather(1, ids)
    return LogprobsTensors(ids.to(torch.int32), values, of.rank(drawn.token))


# --- seeds of requests that give none -----------------------------------------------------------------------


class Seeds:
    """Seeds of requests without one, by request id, from a stream of their own: in the order of first use."""

    def __init__(self, seed: int) -> None:
        self.stream = random.Random(seed)
        self.drawn: dict[str, int] = {}

    def of(self, name: str) -> int:
        """Return the seed of a request, which it keeps when it is preempted."""
        if name not in self.drawn:
            self.drawn[name] = self.stream.getrandbits(63)
        return self.drawn[name]

    def forget(self, names: Iterable[str]) -> None:
        """Drop the seeds of finished requests."""
        for name in names:
            self.drawn.pop(name, None)


# --- runner V1 ----------------------------------------------------------------------------------------------

KNOWN = (MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor)


class SamplerV1(v1.Sampler):  # type: ignore[misc]
    """The sampler of a runner of vLLM's first kind. seed: the engine's, for requests without one."""

    def __init__(self, runner: Any, mode: str, seed: int) -> None:
        super().__init__(mode)
        # no module's attribute: a module would be searched for parameters
        self.__dict__["runner"] = runner
        self.seeds = Seeds(seed)
        self.rows: tuple[list[str], torch.Tensor] | None = None

    def forward(
        self,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        predict_bonus_token: bool = False,
        logprobs_mode_override: str | None = None,
    ) -> SamplerOutput:
        """Return drawn tokens of rows of logits [B, V], with the log-probs that requests ask for."""
        SAMPLE.count()
        sampling_metadata.generators.clear()  # their states would be rewound, which those of a CPU refuse
        at, mode = sampling_metadata, logprobs_mode_override or self.logprobs_mode
        scores = logits.float()
        if scores.data_ptr() == logits.data_ptr() and mode.startswith("raw") and _edited(at):
            scores = scores.clone()  # vLLM writes masks and biases into it
        scores = self.apply_logits_processors(scores, at, False)
        options = self._options(at, len(scores))
        drawn = draw(scores, options)
        made = None
        if at.max_num_logprobs is not None or at.logprob_token_ids:
            made = self._logprobs(scored(mode, logits, scores, drawn, options.cuts), at, mode, drawn)
        return SamplerOutput(drawn.token.to(torch.int32)[:, None], made)

    def _logprobs(self, of: Scored, at: SamplingMetadata, mode: str, drawn: Drawn) -> LogprobsTensors:
        if not at.max_num_logprobs and not at.logprob_token_ids:
            return PackedTensors.of(of_drawn(mode, of, drawn), drawn.support)
        matrix = of.matrix(mode.endswith("logprobs"))
        if at.logprob_token_ids:
            made = self.gather_specific_token_logprobs(matrix, at.logprob_token_ids, drawn.token)
        else:
            most = matrix.shape[1] if at.max_num_logprobs == -1 else at.max_num_logprobs
            made = self.gather_logprobs(matrix, most, drawn.token)
        return PackedTensors.of(made, drawn.support)

    def _options(self, at: SamplingMetadata, rows: int) -> Options:
        seed, position = self._streams(at, rows)
        if at.all_greedy:
            return Options(seed, position, torch.zeros(rows, device=seed.device), greedy=True)
        min_p = None
        for processor in at.logitsprocs.argmax_invariant:
            if processor.min_p_count:
                min_p = processor.min_p[:rows, 0]
        return Options(seed, position, at.temperature, at.top_k, at.top_p, min_p, not at.all_random)

    def _streams(self, at: SamplingMetadata, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the seeds of rows, and the positions of the tokens that are drawn for them."""
        runner, device = self.runner, self.runner.device
        if at is not runner.input_batch.sampling_metadata:  # vLLM's run with made-up rows
            zeros = torch.zeros(rows, dtype=torch.int64, device=device)
            return zeros, zeros
        names = runner.input_batch.req_ids[:rows]
        if self.rows is None or self.rows[0] != names:
            seeds = torch.tensor([self._seed(name) for name in names], dtype=torch.int64)
            self.rows = list(names), seeds.to(device, non_blocking=True)
        return self.rows[1], runner.seq_lens[:rows].to(torch.int64)

    def _seed(self, name: str) -> int:
        given = self.runner.requests[name].sampling_params.seed
        if given is not None:
            return int(given)
        if len(self.seeds.drawn) > 2 * self.runner.max_num_reqs:
            self.seeds.forget(self.seeds.drawn.keys() - self.runner.requests.keys())
        return self.seeds.of(name)

    @staticmethod
    def compute_logprobs(logits: torch.Tensor) -> torch.Tensor:
        """Return the log-probs of all tokens; vLLM asks for those of prompts here."""
        PROMPT.count()
        return every_logp(logits)

    @staticmethod
    def apply_penalties(
        logits: torch.Tensor, sampling_metadata: SamplingMetadata, output_token_ids: list[list[int]]
    ) -> torch.Tensor:
        """Return scores with the penalties of requests."""
        at = sampling_metadata
        if at.no_penalties:
            return logits
        rows, width = logits.shape
        assert at.prompt_token_ids is not None
        given = _convert_to_tensors(output_token_ids, width, logits.device)
        given.masked_fill_(given == -1, width)  # not drawn yet
        counts, _ = get_token_bin_counts_and_mask(given, width, rows)
        _, prompt = get_token_bin_counts_and_mask(at.prompt_token_ids, width, rows)
        return penalized(
            logits, counts, prompt, at.repetition_penalties, at.frequency_penalties, at.presence_penalties
        )


def _edited(at: SamplingMetadata) -> bool:
    """Return whether vLLM writes into logits."""
    edits = at.logitsprocs.non_argmax_invariant
    return (
        at.allowed_token_ids_mask is not None
        or bool(at.bad_words_token_ids)
        or any(getattr(x, "biases", None) or getattr(x, "min_toks", None) for x in edits)
    )


# --- runner V2 ----------------------------------------------------------------------------------------------


class SamplerV2(v2.Sampler):  # type: ignore[misc]
    """The sampler of a runner of vLLM's second kind, on the states of requests that the given one keeps.

    seed: the engine's, for requests without one.
    """

    def __init__(self, given: v2.Sampler, seed: int) -> None:
        self.__dict__.update(vars(given))
        self.seeds = Seeds(seed)

    def add_request(self, req_idx: int, prompt_len: int, sampling_params: SamplingParams) -> None:
        """Note the options of a request that starts, or goes on after a preemption."""
        if sampling_params.seed is None:
            # vLLM would draw a seed from numpy's global stream, each time anew
            sampling_params = copy(sampling_params)
            sampling_params.seed = self.seeds.of(self.req_states.index_to_req_id[req_idx])
        super().add_request(req_idx, prompt_len, sampling_params)

    def __call__(self, logits: torch.Tensor, input_batch: Any) -> SamplerOutputV2:
        """Return drawn tokens of rows of logits [B, V], with the log-probs that requests ask for."""
        SAMPLE.count()
        at, rows, mode = input_batch, input_batch.idx_mapping_np, self.logprobs_mode
        nans = get_num_nans(logits) if self.compute_nans else None
        wanted = self.returns_logprobs(rows)
        scores = self._scores(logits, at, wanted and mode.startswith("raw"))
        options = self._options(at)
        drawn = draw(scores, options)
        made = None
        if wanted:
            made = self._logprobs(scored(mode, logits, scores, drawn, options.cuts), at, drawn)
        sampled, rejected = get_num_sampled_and_rejected(
            at.seq_lens.new_ones(at.num_reqs), at.seq_lens, at.cu_num_logits, at.idx_mapping,
            self.req_states.prefill_len.gpu,
        )  # fmt: skip
        return SamplerOutputV2(drawn.token[:, None], made, nans, sampled, rejected)

    def _scores(self, logits: torch.Tensor, at: Any, keep: bool) -> torch.Tensor:
        """Return what is drawn from before temperature, f32; keep: the logits stay as they are."""
        scores = logits.float()
        which, rows = at.expanded_idx_mapping, at.idx_mapping_np
        biased = self.logit_bias_state.use_logit_bias[rows].any()
        worded = self.bad_words_state.num_bad_words.np[rows].any()
        if keep and (biased or worded) and scores.data_ptr() == logits.data_ptr():
            scores = scores.clone()  # vLLM writes into it
        if biased:
            position = at.positions[at.logits_indices]
            self.logit_bias_state.apply_logit_bias(scores, which, rows, position)
        penalties = self.penalties_state
        if penalties.use_penalty[rows].any():
            scores = penalized(
                scores, penalties.output_bin_counts[which], _bits(penalties.prompt_bin_mask[which], logits),
                penalties.repetition_penalty.gpu[which], penalties.frequency_penalty.gpu[which],
                penalties.presence_penalty.gpu[which],
            )  # fmt: skip
        if worded:
            ids = at.input_ids[at.logits_indices]
            self.bad_words_state.apply_bad_words(scores, which, rows, ids, at.expanded_local_pos)
        return scores

    def _options(self, at: Any) -> Options:
        states, which, rows = self.sampling_states, at.expanded_idx_mapping, at.idx_mapping_np
        top_k, top_p = states.get_top_k_top_p(which, rows)
        heated = (states.temperature.np[rows] != 1.0).any()
        return Options(
            seed=states.seeds.gpu.index_select(0, which),  # which takes half of the time of states[which]
            position=at.seq_lens[: at.num_reqs],  # of the token behind the last one; a row for each request
            temperature=states.temperature.gpu.index_select(0, which) if heated else None,
            top_k=top_k,
            top_p=top_p,
            min_p=states.min_p.gpu.index_select(0, which) if states.min_p.np[rows].any() else None,
            greedy=states.any_greedy(rows),
        )

    def _logprobs(self, of: Scored, at: Any, drawn: Drawn) -> LogprobsTensors:
        most = max(self.sampling_states.max_num_logprobs(at.idx_mapping_np), 0)
        asked = self.logprob_token_ids_state.max_num_token_ids(at.idx_mapping_np)
        if not most and not asked:
            return PackedTensors.of(of_drawn(self.logprobs_mode, of, drawn), drawn.support)
        made = compute_topk_scores(
            of.matrix(self.logprobs_mode.endswith("logprobs")), most, drawn.token,
            logprob_token_ids_state=self.logprob_token_ids_state,
            expanded_idx_mapping=at.expanded_idx_mapping, max_per_req_token_ids=asked, logits_mode=True,
        )  # fmt: skip
        return PackedTensors.of(made, drawn.support)


class PromptLogprobs(PromptLogprobsWorker):  # type: ignore[misc]
    """Log-probs of prompts, of a runner of vLLM's second kind."""

    def __init__(self, given: PromptLogprobsWorker) -> None:
        self.__dict__.update(vars(given))
        self.logprobs = given.logprobs_mode.endswith("logprobs")
        self.logprobs_mode = "raw_logits"  # what our function returns is gathered as it is

    def compute_prompt_logprobs(self, logits_fn: Callable[..., Any], *rest: Any) -> Any:
        """Return vLLM's log-probs of the prompts of a batch."""

        def scores(hidden: torch.Tensor) -> torch.Tensor:
            PROMPT.count()
            logits = logits_fn(hidden)
            return every_logp(logits) if self.logprobs else logits.float()

        return super().compute_prompt_logprobs(scores, *rest)


def _bits(words: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return the bits of words i32 [B, ceil(V / 32)], lowest first, as bool [B, V]."""
    at = torch.arange(logits.shape[1], device=words.device)
    return (words[:, at // 32] >> (at % 32) & 1).bool()


def _forgetting(finish: Callable[[Any], None], seeds: Seeds) -> Callable[[Any], None]:
    """Return a runner's method that drops finished and preempted requests, and the seeds of the finished."""

    def finish_requests(scheduler_output: Any) -> None:
        finish(scheduler_output)
        seeds.forget(scheduler_output.finished_req_ids)

    return finish_requests


# --- installation -------------------------------------------------------------------------------------------


def use(runner: Any) -> None:
    """Give a model runner that has loaded its model rlk's sampler. Raises UnsupportedError.

    Refused are logits processors that are not vLLM's own.
    """
    config = runner.vllm_config
    given = getattr(runner, "sampler", None)  # None where another rank has the head
    if isinstance(given, v2.Sampler):
        runner.sampler = SamplerV2(given, config.model_config.seed)
        runner.finish_requests = _forgetting(runner.finish_requests, runner.sampler.seeds)
        runner.prompt_logprobs_worker = PromptLogprobs(runner.prompt_logprobs_worker)
    elif isinstance(given, v1.Sampler):
        for processor in runner.input_batch.logitsprocs.all:
            if type(processor) not in KNOWN:
                what = f"the logits processor {type(processor).__name__}"
                raise no_form(PEER, what, "leave out logits_processors and plugins of vllm.logits_processors")
        runner.sampler = SamplerV1(runner, given.logprobs_mode, config.model_config.seed)
