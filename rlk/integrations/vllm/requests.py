"""Requests in vLLM's front end: the support of each draw beside its log-prob, and what is refused.

Imports vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from vllm.logprobs import FlatLogprobs, Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import LogprobsLists, LogprobsTensors

from rlk.integrations.swap import Swap
from rlk.integrations.tensors import no_form
from rlk.integrations.vllm.hooks import PEER, VERSIONS, hook
from rlk.integrations.vllm.layers import rlk_config
from rlk.nn import generate
from rlk.ops.results import Support

SUPPORTS = hook("supports", "LogprobsProcessor._update_sample_logprobs")
SUPPORTS_ATTRIBUTE = "rlk_supports"
"""The attribute of vLLM's objects that has a request's supports: threshold, ties and last of each draw."""
TAKEN_ATTRIBUTE = "rlk_taken"
"""The attribute of vLLM's processors of log-probs that has a request's draws."""
COLUMNS = 3
"""How many columns a support has: threshold, ties and last."""
MOST_WAITING, WIDEST_WAITING = 128, 32
"""How many rows of a request wait before they are read together, and how many columns they may have.

A row that waits keeps those of its step's other requests in memory.
"""


# --- supports -----------------------------------------------------------------------------------------------


def support_of(output: CompletionOutput) -> Support:
    """Return the supports of the drawn tokens of one output of a request, on the host: a row for each.

    With them and the temperature, `rlk.ops.linear_logp(..., support=)` returns processed log-probs again.
    Raises UnsupportedError where log-probs were not asked for, or rlk did not draw the tokens.
    """
    kept = getattr(output, SUPPORTS_ATTRIBUTE, None)
    if kept is None:
        instead = 'give SamplingParams(logprobs=0) to LLM(quantization="rlk")'
        raise no_form(PEER, "an output without supports", instead)
    return kept.support(len(output.token_ids))


def packed_support(outputs: Sequence[RequestOutput]) -> Support:
    """Return the supports of whole sequences, packed one behind the other, as `CausalLM.logps` takes them.

    The sequences are the prompt and the tokens of each output of each request, in their order; all of a
    prompt's rows but the last keep every token. Raises what `support_of` raises.
    """
    drawn = [
        _Sequence(tuple(request.prompt_token_ids), support_of(output))
        for request in outputs
        for output in request.outputs
    ]
    return generate.packed_support(drawn)


@dataclass(frozen=True, slots=True, eq=False)
class _Sequence:
    prompt: tuple[int, ...]
    support: Support


NONE = np.empty(0, np.int32)
"""The numbers and ranks of packed log-probs, which their ids have."""


class PackedTensors(LogprobsTensors):
    """Log-probs and supports of rows: one matrix i32 [B, 2 W + 4], in the place of ids.

    Its columns are W ids, the bits of W log-probs, the rank of the drawn token, and a support. So a step has
    one copy to the host, and a request one row.
    """

    __slots__ = ()

    @classmethod
    def of(cls, made: LogprobsTensors, support: Support) -> PackedTensors:
        """Return vLLM's log-probs with the supports that they are under."""
        ids, numbers, ranks, counts = made
        own = (ranks.to(torch.int32), support.threshold.view(torch.int32), support.ties, support.last)
        matrix = torch.cat((ids.to(torch.int32), numbers.view(torch.int32), *(x[:, None] for x in own)), 1)
        return cls(matrix, matrix, matrix, counts)

    def to_cpu_nonblocking(self) -> PackedTensors:
        """Return them on the host, where they are when the stream has come so far."""
        matrix = self.logprob_token_ids.to("cpu", non_blocking=True)
        return type(self)(matrix, matrix, matrix, self.cu_num_generated_tokens)

    def tolists(self, cu_num_generated_tokens: list[int] | None = None) -> PackedLists:
        """Return them for the front end, which keeps no memory of copies from a device."""
        counts = self.cu_num_generated_tokens if cu_num_generated_tokens is None else cu_num_generated_tokens
        return PackedLists(self.logprob_token_ids.cpu().numpy().copy(), NONE, NONE, counts)


class PackedLists(LogprobsLists):
    """Log-probs and supports of a step on the host, as `PackedTensors` has them."""

    __slots__ = ()

    def slice_request(self, req_idx: int, num_positions: int) -> LogprobsLists:
        """Return a request's rows, in vLLM's type, which goes from process to process."""
        if self.cu_num_generated_tokens is not None:
            req_idx = self.cu_num_generated_tokens[req_idx]
        return LogprobsLists(self.logprob_token_ids[req_idx : req_idx + num_positions], NONE, NONE)


class Rows:
    """The supports of a request's draws: matrices i32 [n, COLUMNS], one behind the other."""

    __slots__ = ("count", "parts")

    def __init__(self, parts: list[np.ndarray]) -> None:
        self.parts, self.count = parts, sum(map(len, parts))

    def __len__(self) -> int:
        return self.count

    def add(self, part: np.ndarray) -> None:
        """Take supports behind the others."""
        self.parts.append(part)
        self.count += len(part)

    def last(self, count: int) -> Rows:
        """Return the last draws."""
        found, left = [], count
        for part in reversed(self.parts):
            if left <= 0:
                break
            found.append(part[-left:])
            left -= len(part)
        return Rows(found[::-1])

    def support(self, count: int) -> Support:
        """Return the supports of the first draws, on the host."""
        whole = np.concatenate((np.empty((0, COLUMNS), np.int32), *self.parts))
        threshold, ties, last = torch.from_numpy(whole[:count].T.copy())
        return Support(threshold.view(torch.float32), ties, last)


class Taken:
    """The draws of a request: rows that wait to be read, and the supports of those before."""

    __slots__ = ("supports", "waiting")

    def __init__(self) -> None:
        self.waiting: list[np.ndarray] = []
        self.supports = Rows([])

    def read(self, processor: Any) -> None:
        """Give vLLM's processor of the request's log-probs the rows that wait."""
        waiting, self.waiting = self.waiting, []
        if len(waiting) == 1:
            self._read(processor, waiting[0])
            return
        for _, rows in groupby(waiting, lambda x: x.shape[1]):  # of the step's requests, the most log-probs
            self._read(processor, np.concatenate(list(rows)))

    def _read(self, processor: Any, matrix: np.ndarray) -> None:
        width, asked = (matrix.shape[1] - 1 - COLUMNS) // 2, processor.num_logprobs
        kept = width if asked == -1 else min(width, 1 + asked)
        ranks, numbers = matrix[:, 2 * width], matrix.view(np.float32)[:, width : 2 * width]
        flat = type(processor.logprobs) is FlatLogprobs
        if processor.tokenizer is not None or not (flat or kept == 1):
            SWAP.original(UPDATE)(processor, LogprobsLists(matrix[:, :width], numbers, ranks))
        elif flat:
            _append(processor, matrix[:, :kept], numbers[:, :kept], ranks)
        else:
            rows = zip(matrix[:, 0].tolist(), numbers[:, 0].tolist(), ranks.tolist(), strict=True)
            for token, number, rank in rows:
                processor.logprobs.append({token: Logprob(number, rank)})
                processor.cumulative_logprob += number
        self.supports.add(matrix[:, -COLUMNS:].copy())


def _append(processor: Any, ids: np.ndarray, numbers: np.ndarray, ranks: np.ndarray) -> None:
    """Append rows as vLLM's `_update_sample_logprobs` does, to flat lists without text."""
    flat, (count, width) = processor.logprobs, ids.shape
    begin = len(flat.logprobs)
    end = begin + count * width
    flat.start_indices.extend(range(begin, end, width))
    flat.end_indices.extend(range(begin + width, end + 1, width))
    flat.token_ids.extend(ids.ravel().tolist())
    flat.logprobs.extend(numbers.ravel().tolist())
    if width > 1:
        ranks = np.concatenate((ranks[:, None], np.broadcast_to(np.arange(1, width), (count, width - 1))), 1)
    flat.ranks.extend(ranks.ravel().tolist())
    flat.decoded_tokens.extend([None] * (end - begin))
    for x in numbers[:, 0].tolist():  # not their sum: vLLM adds one by one
        processor.cumulative_logprob += x


def update(self: Any, logprobs_lists: LogprobsLists) -> None:
    """Take the log-probs of drawn tokens, and their supports where rlk drew them.

    A step of an engine does this for each request by itself, with the usual one row: it is read with others.
    """
    rows = logprobs_lists[0]
    if logprobs_lists[1].size or not len(rows):
        SWAP.original(UPDATE)(self, logprobs_lists)
        return
    SUPPORTS.count()
    state = vars(self)
    taken = state.get(TAKEN_ATTRIBUTE)
    if taken is None:
        taken = state[TAKEN_ATTRIBUTE] = Taken()
    taken.waiting.append(rows)
    if len(taken.waiting) >= MOST_WAITING or rows.shape[1] > WIDEST_WAITING:
        taken.read(self)


def completion(self: Any, token_ids: list[int], finish_reason: Any, stop_reason: Any) -> CompletionOutput:
    """Return an output of a request, with the supports of its tokens."""
    taken = getattr(self.logprobs_processor, TAKEN_ATTRIBUTE, None)
    if taken is not None:
        taken.read(self.logprobs_processor)
    made = SWAP.original(COMPLETION)(self, token_ids, finish_reason, stop_reason)
    if taken is not None:
        # an output with all tokens so far shares the rows, as it shares the ids
        kept, count = taken.supports, len(made.token_ids)
        setattr(made, SUPPORTS_ATTRIBUTE, kept if count == len(kept) else kept.last(count))
    return made


# --- refusals -----------------------------------------------------------------------------------------------


def validate(self: Any, params: Any, supported_tasks: tuple[Any, ...]) -> None:
    """Raise UnsupportedError for options of a request that rlk does not draw, and what vLLM raises."""
    if isinstance(params, SamplingParams) and rlk_config(self.vllm_config) is not None:
        for name, instead in REFUSED.items():
            if getattr(params, name) is not None:
                raise no_form(PEER, f"SamplingParams({name}=...)", instead)
    SWAP.original(VALIDATE)(self, params, supported_tasks)


REFUSED = {
    "structured_outputs": "leave it out: a grammar's masks are not recorded, so no trainer could replay them",
    "thinking_token_budget": "leave it out: tokens that it forces are not drawn",
}
"""Options of vLLM's SamplingParams, and what to do instead."""


def beams(
    self: Any,
    prompts: Any,
    params: Any,
    lora_request: Any = None,
    use_tqdm: bool = False,
    concurrency_limit: int | None = None,
) -> Any:
    """Search by beams with a model that rlk does not compute; else raise UnsupportedError."""
    _refuse_beams(self.llm_engine.vllm_config)
    return SWAP.original(BEAMS)(self, prompts, params, lora_request, use_tqdm, concurrency_limit)


def beams_online(
    self: Any, prompt: Any, request_id: str, params: Any, lora_request: Any = None, trace_headers: Any = None
) -> Any:
    """Search by beams in a server of a model that rlk does not compute; else raise UnsupportedError."""
    _refuse_beams(self.engine_client.vllm_config)
    return SWAP.original(BEAMS_ONLINE)(self, prompt, request_id, params, lora_request, trace_headers)


def _refuse_beams(config: Any) -> None:
    if rlk_config(config) is not None:
        raise no_form(PEER, "beam search", "draw with SamplingParams: beams are not drawn from the policy")


UPDATE = "vllm.v1.engine.logprobs:LogprobsProcessor._update_sample_logprobs"
COMPLETION = "vllm.v1.engine.output_processor:RequestState._new_completion_output"
VALIDATE = "vllm.v1.engine.input_processor:InputProcessor._validate_params"
BEAMS = "vllm.entrypoints.generate.beam_search.offline:BeamSearchOfflineMixin.beam_search"
BEAMS_ONLINE = "vllm.entrypoints.generate.beam_search.online:BeamSearchOnlineMixin.beam_search"
SWAP = Swap(
    PEER,
    VERSIONS,
    {
        UPDATE: update,
        COMPLETION: completion,
        VALIDATE: validate,
        BEAMS: beams,
        BEAMS_ONLINE: beams_online,
    },
)
