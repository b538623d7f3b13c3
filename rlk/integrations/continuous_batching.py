"""transformers' continuous batching of a patched model: attention over its pages, and `rlk.ops.sample`."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from types import MethodType
from typing import Any

import torch

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.integrations.batch import PEER, Batch
from rlk.integrations.swap import Versions, known_version
from rlk.integrations.tensors import no_form
from rlk.nn.config import ModelConfig
from rlk.nn.logits import head_logits
from rlk.nn.tokens import PagedTokens
from rlk.runtime.binding.checks import integer, wrong_value

VERSIONS = Versions("5.23.0", "5.23.0")
"""Others lay pages out otherwise: 5.17 has tensors of their own for keys and for values."""
ATTENTION = "rlk_flash"
"""The implementation that a config names meanwhile: of a name with "flash" transformers makes no masks."""
FULL = "full_attention"
OP = "generate_batch"
OPTIONS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Options of `rlk.ops.sample` that a generation config has, and the numbers that turn them off."""
WARPERS = {
    "TemperatureLogitsWarper": "temperature",
    "TopKLogitsWarper": "top_k",
    "TopPLogitsWarper": "top_p",
    "MinPLogitsWarper": "min_p",
}
DESTROY = "call destroy_cached_continuous_batching_manager() first"
WORDS = ("seed", "request_number")
"""64-bit numbers of a request, in two rows each."""


# --- the sampler ------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Sampler:
    """The numbers that each draw depends on, in the place of transformers' list of logits processors.

    They are columns of a static tensor, so that a captured graph reads those of each replay. seed: of
    requests without one. options: those of `OPTIONS` that are on, with the value of requests without one.
    """

    seed: int
    options: dict[str, float | int]
    do_processing = False
    """Whether scores are processed before they are sampled: here the sampler does both."""

    @property
    def tensors_required(self) -> int:
        """Return the number of rows of int32."""
        return 2 * len(WORDS) + len(self.options)

    def check_kwargs(self, given: dict[str, Any]) -> None:
        """Raise LaunchError for keywords of `add_request` that no draw of these options takes."""
        for name, value in given.items():
            if name in WORDS:
                integer("add_request", name, value)
            elif name not in self.options:
                wanted = ", ".join((*WORDS, *self.options))
                raise wrong_value("add_request", name, value, f"one of: {wanted}; others are off")

    def fill_defaults(self, rows: torch.Tensor) -> None:
        """Write the numbers of a row of logits that is no request's, [rows, 1]."""
        rows.copy_(self._columns([(0, 0, {})]))

    def prepare_tensor_args(
        self, requests_in_batch: Sequence[Any], arg_storage: torch.Tensor
    ) -> torch.Tensor:
        """Write the columns of the requests that draw a token; the others are those of no request."""
        drawing = [each.state for each in requests_in_batch if each.has_new_token]
        given = [(self._seed(state), _number(state), state.logit_processor_kwargs) for state in drawing]
        self.fill_defaults(arg_storage)
        arg_storage[:, : len(given)] = self._columns(given).to(arg_storage.device)
        return arg_storage

    def _seed(self, state: Any) -> int:
        return int(state.logit_processor_kwargs.get("seed", self.seed))

    def _columns(self, given: Sequence[tuple[int, int, dict[str, Any]]]) -> torch.Tensor:
        words = torch.tensor([(seed, number) for seed, number, _ in given], dtype=torch.int64)
        rows = [words.view(torch.int32).view(-1, 2 * len(WORDS)).T]
        for name, value in self.options.items():
            dtype = torch.int32 if name == "top_k" else torch.float32
            numbers = torch.tensor([own.get(name, value) for _, _, own in given], dtype=dtype)
            rows.append(numbers.view(torch.int32)[None])
        return torch.cat(rows)

    def draw(self, logits: torch.Tensor, rows: torch.Tensor, position: torch.Tensor) -> ops.sampling.Sample:
        """Draw a token from each row of logits. rows: int32 [tensors_required, B]; position: int64 [B].

        The log-prob of a likeliest token is that at temperature 1, as of transformers' own.
        """
        words = rows[: 2 * len(WORDS)].T.contiguous().view(torch.int64)
        options: dict[str, Any] = {}
        for row, name in zip(rows[2 * len(WORDS) :], self.options, strict=True):
            options[name] = row if name == "top_k" else row.view(torch.float32)
        made = ops.sample(logits, seed=words[:, 0], request_id=words[:, 1], position=position, **options)
        if "temperature" not in options:
            return made
        return made._replace(logp=torch.where(options["temperature"] == 0.0, made.raw_logp, made.logp))


def _number(state: Any) -> int:
    """Return the number of a request: n of transformers' own names req_n, else a digest of its name."""
    given = state.logit_processor_kwargs.get("request_number")
    if given is not None:
        return int(given)
    name = str(state.request_id)
    if counted := re.fullmatch(r"req_(\d+)", name):
        return int(counted[1])
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def sampler_of(model: Any, generation: Any, seed: int | None) -> Sampler:
    """Return the sampler of a generation config. Raises UnsupportedError for processors that rlk has not."""
    found: dict[str, Any] = {}
    for processor in model._get_logits_processor(generation):
        kind = type(processor).__name__
        if kind not in WARPERS:
            wanted = f"use {', '.join(OPTIONS)} alone"
            raise no_form(PEER, f"continuous batching with {kind}", wanted)
        found[WARPERS[kind]] = getattr(processor, WARPERS[kind])
    if not generation.do_sample:
        found["temperature"] = 0.0
    if (count := getattr(generation, "num_return_sequences", None) or 1) > 1:
        wanted = "give a prompt as often as it is to be continued: its pages are shared"
        raise no_form(PEER, f"num_return_sequences={count}", wanted)
    drawn = int(torch.randint(2**62, ())) if seed is None else integer(OP, "seed", seed)
    return Sampler(drawn, {n: found[n] for n, off in OPTIONS.items() if found.get(n, off) != off})


# --- a step of the model ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """The pages of transformers' cache, as `PagedTokens` reads and writes them."""

    cache: Any

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pages of keys and values of a layer, [pages, page_size, key heads, head_dim] each."""
        pages: tuple[torch.Tensor, torch.Tensor] = self.cache.layer_to_allocator[
            index
        ].get_cache_for_block_table(index)
        return pages


def paged_tokens(given: dict[str, Any]) -> PagedTokens:
    """Return the T tokens of a step of B sequences, from the arguments that transformers gives a model.

    write_index: int64 [T], the slot that each token's key is written to. read_index: int64 [sum K], the slots
    of all K keys of each sequence, in order of sequences; the first one of each page names the page; empty if
    every sequence is new. cu_seq_lens_q and cu_seq_lens_k: int32 [B + 1]. Nothing waits for the device.
    """
    cache = given["cache"]
    allocator = cache.cache_allocators[FULL]
    size = allocator.tokens_per_page
    slots = given["write_index"][allocator.index]
    keys, cu_k = given["read_index"][allocator.index], given["cu_seq_lens_k"][FULL]
    if keys.numel() == 0:
        keys = slots
    columns = -(-given["max_length_k"][FULL] // size)
    first = cu_k[:-1, None] + torch.arange(columns, device=slots.device) * size
    table = keys[first.clamp(max=len(keys) - 1)] // size
    return PagedTokens(
        positions=given["position_ids"][0],
        cu_seqlens=given["cu_seq_lens_q"],
        context_lens=cu_k.diff(),
        block_table=table.to(torch.int32),
        slots=slots,
        cache=Pages(cache),  # type: ignore[arg-type]
    )


def _step(
    config: ModelConfig,
    sampler: Sampler,
    runner: Any,
    model: Any,
    batch_data: dict[str, Any],
    carry_over_ids: torch.Tensor,
    prev_output_ids: torch.Tensor,
    output_ids: torch.Tensor,
) -> None:
    """Run one step: forward, head, sample; in place of `ModelRunner._forward_process_and_sample`."""
    ids, rows = batch_data["input_ids"], batch_data["logits_indices"].long()
    runner.inputs_and_outputs.carry_over_tokens(ids, carry_over_ids, prev_output_ids)
    batch = Batch((1, ids.shape[1]), None, paged_tokens(batch_data))
    made = model.model(input_ids=ids, batch=batch, use_cache=False, return_dict=True)
    logits = head_logits(made.last_hidden_state[0, rows], model.lm_head.weight, config.final_softcap)
    position = batch_data["position_ids"][0, rows].long() + 1
    drawn = sampler.draw(logits, batch_data["logits_processor_args"], position)
    output_ids[0, : len(rows)].copy_(drawn.token)
    if runner.return_logprobs:
        output_ids[1, : len(rows)].copy_(drawn.logp.view(torch.int32))


# --- what a patched model has in place of transformers' methods -------------------------------------------


def kept_manager(model: Any) -> Any:
    """Return the manager that transformers keeps for the next call of a model, or None."""
    return vars(model).get("_cached_continuous_batching_manager")


def initializer(config: ModelConfig, model: Any) -> MethodType:
    """Return `init_continuous_batching` of a patched model: its manager's steps are those of rlk."""

    def init_continuous_batching(
        self: Any,
        generation_config: Any = None,
        continuous_batching_config: Any = None,
        workload_hints: Any = None,
    ) -> Any:
        known_version(PEER, VERSIONS)
        generation = self.generation_config if generation_config is None else generation_config
        from transformers import ContinuousBatchingConfig

        given = continuous_batching_config or getattr(generation, "continuous_batching_config", None)
        given = copy.copy(given or ContinuousBatchingConfig())
        _check(self, given)
        kept = kept_manager(self)
        if kept is not None and not isinstance(kept.logit_processor, Sampler):
            raise no_form(PEER, "a manager that was kept before the patch", DESTROY)
        sampler = sampler_of(self, generation, given.seed)
        if given.use_cuda_graph is None:
            given.use_cuda_graph = False
        before = self.config._attn_implementation
        self.config._attn_implementation = ATTENTION
        try:
            manager = type(self).init_continuous_batching(self, generation, given, workload_hints)
            _take(manager, sampler, config)
        except BaseException:
            self.config._attn_implementation = before
            raise
        if before != ATTENTION:
            manager._original_attn_impl = before  # which stop() puts back
        return manager

    return MethodType(init_continuous_batching, model)


def _take(manager: Any, sampler: Sampler, config: ModelConfig) -> None:
    """Give a manager our sampler and steps; one that was kept has them, with rows for its options."""
    held = manager.logit_processor
    if not isinstance(held, Sampler):
        manager.logit_processor = sampler
        manager._create_batch_processor = partial(_batch_processor, manager, config)
        manager.add_request = partial(_add_request, manager, config)
    elif held.options == sampler.options:
        held.seed = sampler.seed
    else:
        raise no_form(PEER, f"a kept manager with {held.options}, and now {sampler.options}", DESTROY)


def batch_generator(config: ModelConfig, model: Any) -> MethodType:
    """Return `generate_batch` of a patched model: transformers' own, whose failures are errors."""

    def generate_batch(
        self: Any,
        inputs: list[list[int]],
        generation_config: Any = None,
        continuous_batching_config: Any = None,
        **options: Any,
    ) -> dict[str, Any]:
        generation = self.generation_config if generation_config is None else generation_config
        new = options.get("max_new_tokens") or generation.max_new_tokens
        for i, prompt in enumerate(inputs):
            check_request(config, f"inputs[{i}]", prompt, new)
        made: dict[str, Any] = type(self).generate_batch(
            self, inputs, generation_config, continuous_batching_config, **options
        )
        failed = [each.error for each in made.values() if each.error is not None]
        failed += ["it has no result"] * (len(inputs) - len(made))
        if failed:
            raise LaunchError(
                Code.PEER_REQUEST, peer=PEER, count=len(failed), total=len(inputs), error=failed[0]
            )
        return made

    return MethodType(generate_batch, model)


def check_request(config: ModelConfig, name: str, prompt: Sequence[int], new: int | None) -> None:
    """Raise LaunchError for a prompt that the model cannot read, or not continue so far."""
    if not len(prompt):
        raise wrong_value(OP, name, [], "at least one token")
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < config.vocab_size:
            raise wrong_value(OP, name, token, f"ids from 0 to {config.vocab_size - 1}")
    longest = config.max_position_embeddings
    if new is None or len(prompt) + new - 1 > longest:
        wanted = f"a number that with the {len(prompt)} tokens of {name} is within {longest} positions"
        raise wrong_value(OP, "max_new_tokens", new, wanted)


def _add_request(
    manager: Any, config: ModelConfig, input_ids: list[int], *rest: Any, **options: Any
) -> str | None:
    """Check a request in the caller's thread, then add it as transformers does."""
    named = dict(zip(("request_id", "max_new_tokens"), rest, strict=False)) | options
    new = named.get("max_new_tokens")
    new = manager.generation_config.max_new_tokens if new is None else new
    check_request(config, "input_ids", input_ids, new)
    manager.logit_processor.check_kwargs({n: x for n, x in options.items() if n not in REQUEST})
    found: str | None = type(manager).add_request(manager, input_ids, *rest, **options)
    return found


REQUEST = ("request_id", "max_new_tokens", "streaming", "record_timestamps", "eos_token_id")
"""Arguments of `add_request` that are no numbers of the sampler."""


def _check(model: Any, given: Any) -> None:
    """Raise UnsupportedError for a model or config that steps of rlk do not serve."""
    head = getattr(model.lm_head.forward, "__func__", None)
    if getattr(head, "gives_log_probs", None) is not head or model.lm_head.bias is not None:
        raise no_form(PEER, "continuous batching with another head", "take adapters off lm_head")
    if given.varlen_compile_config or given.decode_compile_config or given.default_compile_level:
        raise no_form(PEER, "continuous batching under torch.compile", "leave the compile configs out")
    if getattr(model, "_device_mesh", None) is not None:
        raise no_form(PEER, "continuous batching on several ranks", "load the model on one device")


def _batch_processor(manager: Any, config: ModelConfig) -> Any:
    """Make the part of a manager that runs steps, whose steps are ours and whose cache keeps all keys."""
    with keeping_all_keys(manager.model.config.get_text_config()):
        processor = type(manager)._create_batch_processor(manager)
    processor.cache.reset()  # of a kept manager: pages may hold keys of weights that were changed since
    runner = processor.model_runner
    runner._forward_process_and_sample = partial(_step, config, manager.logit_processor, runner)
    return processor


@contextmanager
def keeping_all_keys(config: Any) -> Iterator[None]:
    """Let layers with a window keep all keys in a cache made meanwhile: keys are counted from the first."""
    names = ("layer_types", "sliding_window")
    before = {name: getattr(config, name) for name in names if hasattr(config, name)}
    try:
        if before.get("layer_types") is not None:
            config.layer_types = [FULL] * config.num_hidden_layers
        if "sliding_window" in before:
            config.sliding_window = None
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)
