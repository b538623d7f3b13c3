"""Requests in vLLM's front end: the support of each draw beside its log-prob, and what is refused.

Imports vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import LogprobsLists

from rlk.integrations.swap import Swap
from rlk.integrations.tensors import no_form
from rlk.integrations.vllm.hooks import PEER, VERSIONS, hook
from rlk.integrations.vllm.layers import rlk_config
from rlk.nn import generate
from rlk.ops.results import Support

SUPPORTS = hook("supports", "LogprobsProcessor._update_sample_logprobs")
SUPPORTS_ATTRIBUTE = "rlk_supports"
"""The attribute of vLLM's objects that has a request's supports: threshold, ties and last of each draw."""
COLUMNS, MARK = 2, -2
"""How many columns a support has behind log-probs, and the largest id that says so, in the last of them."""


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


Columns = tuple[torch.Tensor, torch.Tensor]


def columns_of(support: Support) -> tuple[Columns, Columns]:
    """Return supports as two columns of ids i32 and two of numbers f32, [B, 1] each.

    They stand behind a worker's log-probs on their way here. The second column of numbers is not read.
    """
    threshold = support.threshold[:, None]
    return (support.last[:, None], (MARK - support.ties)[:, None]), (threshold, threshold)


class Rows:
    """The supports of a request's draws as rows of bytes: an engine's step reads none of their numbers."""

    __slots__ = ("ids", "numbers")

    def __init__(self, ids: list[bytes], numbers: list[bytes]) -> None:
        self.ids, self.numbers = ids, numbers

    def __len__(self) -> int:
        return len(self.ids)

    def last(self, count: int) -> Rows:
        """Return the last draws."""
        return Rows(self.ids[-count:], self.numbers[-count:])

    def support(self, count: int) -> Support:
        """Return the supports of the first draws, on the host."""
        ends, thresholds = b"".join(self.ids[:count]), b"".join(self.numbers[:count])
        ids = torch.from_numpy(np.frombuffer(ends, np.int32).reshape(-1, COLUMNS).copy())
        threshold = torch.from_numpy(np.frombuffer(thresholds, np.float32).copy())
        return Support(threshold, MARK - ids[:, 1], ids[:, 0].clone())


def update(self: Any, logprobs_lists: LogprobsLists) -> None:
    """Take the log-probs of drawn tokens, and their supports where rlk drew them.

    A step of an engine does this for each request by itself, with the usual one row.
    """
    ids, numbers, ranks, counts = logprobs_lists
    width = ids.shape[-1] - COLUMNS
    if width > 0 and len(ids) and ids.item(-1) <= MARK:
        SUPPORTS.count()
        state = vars(self)
        kept = state.get(SUPPORTS_ATTRIBUTE)
        if kept is None:
            kept = state[SUPPORTS_ATTRIBUTE] = Rows([], [])
        rows = zip(ids, numbers, strict=True) if len(ids) > 1 else ((ids, numbers),)
        for row, values in rows:
            kept.ids.append(row[..., -COLUMNS:].tobytes())
            kept.numbers.append(values[..., -1:].tobytes())
        logprobs_lists = LogprobsLists(ids[:, :width], numbers[:, :width], ranks, counts)
    SWAP.original(UPDATE)(self, logprobs_lists)


def completion(self: Any, token_ids: list[int], finish_reason: Any, stop_reason: Any) -> CompletionOutput:
    """Return an output of a request, with the supports of its tokens."""
    made = SWAP.original(COMPLETION)(self, token_ids, finish_reason, stop_reason)
    kept = getattr(self.logprobs_processor, SUPPORTS_ATTRIBUTE, None)
    if kept is not None:
        # an output with all tokens so far shares the rows, as it shares the ids
        whole = len(made.token_ids) == len(kept)
        setattr(made, SUPPORTS_ATTRIBUTE, kept if whole else kept.last(len(made.token_ids)))
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
