"""vLLM as an engine of `rlk drift`: log-probs of prompts, and its operators where it runs in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import torch

from rlk.drift.engine import Facts, Scores, Sequences, Watch
from rlk.drift.options import PLAIN, Options, dtype_name, groups_of, special_ids
from rlk.observe import hooked
from rlk.sync import digest

MERGED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Products of vLLM that are several of Hugging Face's, one behind the other."""
OTHER = ("act_fn", "rotary_emb", "attn", "logits_processor")
"""Modules of vLLM that are not what transformers calls so, or have no counterpart."""


class Vllm:
    """vLLM through its offline interface: log-probs of prompts.

    Its modules can be hooked if it runs in this process, on one device, without graphs and torch.compile: an
    LLM of `enforce_eager=True` and VLLM_ENABLE_V1_MULTIPROCESSING=0, as `vllm:eager=1` makes it.
    """

    def __init__(self, llm: Any, options: Options = PLAIN, name: str = "vllm") -> None:
        self.llm, self.options, self.name = llm, options, name

    @property
    def variants(self) -> dict[str, Vllm]:
        """Return the engine without one of its options, by the name of the trigger."""
        made = {k: v for k, v in self.options.without().items() if k == "batch"}
        return {trigger: Vllm(self.llm, options, self.name) for trigger, options in made.items()}

    def settings(self) -> Facts:
        """Return the facts of its model's config; prompts' log-probs have no temperature."""
        config = self.llm.llm_engine.vllm_config.model_config
        return Facts(
            dtype=dtype_name(config.dtype), temperature=1.0, stage="none", padding="none",
            vocabulary=config.get_vocab_size(), special=special_ids(config.hf_config),
        )  # fmt: skip

    def facts(self) -> Facts:
        """Return the settings, with checksums of weights where the model is in this process."""
        model = self._model
        if model is None:
            return self.settings()
        found = {name: weight.hex for name, weight in digest(model).weights.items()}
        return replace(self.settings(), weights=found)

    def modules(self) -> Mapping[str, torch.nn.Module]:
        """Return the modules that compute what Hugging Face's of these names do; none of another process."""
        if self._model is None or not self._eager:
            return {}
        every = self._model.named_modules()
        return {name: module for name, module in every if name.rpartition(".")[2] not in OTHER}

    @property
    def merged(self) -> Mapping[str, Sequence[tuple[str, int]]]:
        """Return the parts of merged products, by name: the name of each, and its width."""
        found = {}
        for name, module in self.modules().items():
            layer, _, last = name.rpartition(".")
            if last in MERGED:
                found[name] = [
                    (f"{layer}.{part}", width)
                    for part, width in zip(MERGED[last], module.output_sizes, strict=True)
                ]
        return found

    @property
    def _model(self) -> Any:
        """Return the model, None if it is in another process."""
        executor = getattr(self.llm.llm_engine, "model_executor", None)
        worker = getattr(executor, "driver_worker", None)
        return None if worker is None else worker.get_model()

    @property
    def _eager(self) -> bool:
        config = self.llm.llm_engine.vllm_config
        return bool(config.model_config.enforce_eager) and config.parallel_config.world_size == 1

    def score(self, sequences: Sequences, watch: Watch) -> Scores:
        """Return the log-probs of prompts, of which one more token is generated."""
        from vllm import SamplingParams

        asked = SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0.0, detokenize=False)
        prompts = [{"prompt_token_ids": ids} for ids in sequences.lists()]
        read, logps = [], []
        with observed(self._model, sequences, watch) if self.modules() else nullcontext():
            for group in groups_of(sequences, self.options.batch):
                for out in self.llm.generate([prompts[i] for i in group], asked, use_tqdm=False):
                    ids = list(out.prompt_token_ids)
                    read.append(ids)
                    given = zip(ids, out.prompt_logprobs, strict=True)
                    logps += [torch.nan if at is None else at[i].logprob for i, at in given]
        tokens = Sequences.of(read)
        return Scores(tokens, torch.tensor(logps), tokens.places > 0)


@contextmanager
def observed(model: Any, sequences: Sequences, watch: Watch) -> Iterator[None]:
    """Tell a watch the rows of each forward of vLLM's model meanwhile, and let it observe the head."""
    rows = Rows(sequences)
    forward, plain = signature(type(model).forward), model.compute_logits

    def before(name: str, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        given = forward.bind(module, *args, **kwargs).arguments
        rows.read(given["input_ids"].tolist(), given["positions"].tolist())
        watch.rows(rows.numbers)

    def after(name: str, module: torch.nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        rows.hidden = made

    def head(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if (numbers := rows.of(hidden)) is None:
            return plain(hidden, *args, **kwargs)
        watch.rows(numbers)
        return watch.call("lm_head", lambda x: plain(x, *args, **kwargs), hidden)

    model.compute_logits = head
    try:
        with hooked([("", model)], after, before):
            yield
    finally:
        del model.compute_logits


class Rows:
    """The numbers of the tokens of a forward, whose rows vLLM schedules as it likes.

    numbers: int64 [N], -1 for rows that are no token, or one that was read before. ends: the last row of each
    part of a sequence. hidden: the forward's result [N, H].
    """

    def __init__(self, sequences: Sequences) -> None:
        self.lists, self.starts = sequences.lists(), sequences.cu_seqlens.tolist()
        self.numbers = torch.zeros(0, dtype=torch.int64)
        self.ends: list[int] = []
        self.hidden: torch.Tensor | None = None
        self._read: set[int] = set()

    def read(self, ids: list[int], positions: list[int]) -> None:
        """Find the tokens of a forward by their ids and positions."""
        numbers, self.ends, at = [], [], 0
        while at < len(ids):
            count, first = max(self._run(each, ids, positions, at) for each in range(len(self.lists)))
            numbers += range(first, first + count) if count else [-1]
            at += max(count, 1)
            if count:
                self.ends.append(at - 1)
        self._read.update(numbers)
        self.numbers = torch.tensor(numbers)

    def _run(self, sequence: int, ids: list[int], positions: list[int], at: int) -> tuple[int, int]:
        """Return how many rows from `at` on are unread tokens of a sequence, and the number of the first."""
        tokens, place, count = self.lists[sequence], positions[at], 0
        first = self.starts[sequence] + place
        while (
            at + count < len(ids)
            and place + count < len(tokens)
            and positions[at + count] == place + count
            and ids[at + count] == tokens[place + count]
            and first + count not in self._read
        ):
            count += 1
        return count, first

    def of(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return the numbers of rows of the last forward's result: a part of it, or copies of the ends."""
        whole = self.hidden
        if whole is None:
            return None
        if hidden.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr():
            first = (hidden.data_ptr() - whole.data_ptr()) // (whole.stride(0) * whole.element_size())
            return self.numbers[first : first + len(hidden)]
        return self.numbers[self.ends] if len(hidden) == len(self.ends) else None


def made(vllm: Any, path: str, dtype: torch.dtype, memory: float | None, eager: bool) -> Any:
    """Return vLLM's offline engine of a model, eager: in this process, without graphs and compilers."""
    given: dict[str, Any] = {"skip_tokenizer_init": True, "use_tqdm_on_load": False}
    if memory is not None:
        given["gpu_memory_utilization"] = memory
    build = partial(vllm.LLM, model=path, dtype=dtype_name(dtype), **given)
    if not eager:
        return build()
    vllm.envs.VLLM_ENABLE_V1_MULTIPROCESSING = False  # in place of the variable, which the module reads
    try:
        return build(enforce_eager=True, enable_prefix_caching=False)
    finally:
        del vllm.envs.VLLM_ENABLE_V1_MULTIPROCESSING
