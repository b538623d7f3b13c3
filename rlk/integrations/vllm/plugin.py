"""The plugin's entry: what it registers in vLLM, in each process."""

from __future__ import annotations

import functools
import logging
from typing import Any

from rlk.env import Env
from rlk.errors import UnsupportedError
from rlk.integrations.swap import known_version
from rlk.integrations.vllm.hooks import PEER, VERSIONS, calls, check_called
from rlk.nn.serving import Steps, prepare


def install() -> None:
    """Register quantization "rlk" and attention backend CUSTOM; check engines and models that ask for them.

    With another vLLM nothing is registered, and UnsupportedError is raised if RLK_VLLM=1 asks for it.
    """
    try:
        known_version(PEER, VERSIONS)
    except UnsupportedError as error:
        if Env.current().vllm:
            raise
        logging.getLogger("rlk").warning('quantization="rlk" is not registered: %s', error)
        return
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.quantization import register_quantization_config
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    from rlk.integrations.vllm import layers, lora, requests

    register_backend(AttentionBackendEnum.CUSTOM, "rlk.integrations.vllm.attention.RlkBackend")
    register_quantization_config(layers.QUANTIZATION)(layers.RlkConfig)
    layers.register()
    lora.register()
    requests.SWAP.patch()
    EngineArgs.create_engine_config = _checked(EngineArgs.create_engine_config)
    for method in (load_model, compile_or_warm_up_model, rlk_calls, rlk_numerics_id):
        setattr(WorkerWrapperBase, method.__name__, method)


def _checked(create: Any) -> Any:
    """Return a function that makes an engine's config and refuses what rlk does not cover."""

    @functools.wraps(create)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        from rlk.integrations.vllm import heads
        from rlk.integrations.vllm.attention import NAME
        from rlk.integrations.vllm.coverage import check_arguments, check_device, check_options
        from rlk.integrations.vllm.layers import QUANTIZATION

        if Env.current().vllm and self.quantization is None:
            self.quantization = QUANTIZATION
        if self.quantization != QUANTIZATION and not Env.current().vllm:
            return create(self, *args, **kwargs)
        check_device()
        check_arguments(self)
        if self.attention_backend is None and self.attention_config.backend is None:
            self.attention_backend = NAME
        made = create(self, *args, **kwargs)
        check_options(made)
        splits = made.compilation_config.splitting_ops
        if splits and heads.THEIRS in splits and heads.SPLIT not in splits:
            splits.append(heads.SPLIT)
        return made

    return create_engine_config


# --- methods of a worker, beside those that vLLM calls of it -------------------------------------------


def load_model(self: Any, **kwargs: Any) -> Any:
    """Load the worker's model.

    Raises UnsupportedError for parts that rlk does not compute, LaunchError for weights that no file has.
    """
    from vllm.model_executor.layers import rotary_embedding

    from rlk.integrations.vllm import heads, layers, lora, sampling
    from rlk.integrations.vllm.coverage import HOOKS, check_model, check_options, check_read, names_read

    found = layers.rlk_config(self.vllm_config)
    if found is None:
        return self.worker.load_model(**kwargs)
    check_options(self.vllm_config)
    self.rlk_before = calls()
    rotary_embedding._ROPE_DICT.clear()  # vLLM shares these layers among models, whoever computes them
    with names_read() as names:
        made = self.worker.load_model(**kwargs)
    rotary_embedding._ROPE_DICT.clear()
    model = self.worker.get_model()
    layers.adopt(model)
    check_model(model, found.model, self.vllm_config.parallel_config.tensor_parallel_size)
    check_read(names, found.model, self.vllm_config.model_config.model)
    self.rlk_hooks = (*HOOKS, sampling.SAMPLE.name)
    if heads.adopt(model, self.vllm_config.compilation_config.splitting_ops or []):
        self.rlk_hooks += (heads.HOOK,)
    sampling.use(self.worker.model_runner)
    if self.vllm_config.lora_config is not None:
        lora.use(self.worker.model_runner)
        self.rlk_hooks += ("lora",)
    return made


def compile_or_warm_up_model(self: Any) -> Any:
    """Warm the worker up, with kernels for all steps; raise UnsupportedError for hooks not called then."""
    from rlk.integrations.vllm.layers import rlk_config

    found = rlk_config(self.vllm_config)
    if found is not None:
        _prepare(self.vllm_config, found, self.worker.device)
    made = self.worker.compile_or_warm_up_model()
    if found is not None:
        check_called(self.rlk_hooks, self.rlk_before)
    return made


def _prepare(config: Any, found: Any, device: Any) -> None:
    """Compile what a worker's steps launch, whatever their sizes, before the first request."""
    from vllm.logger import init_logger

    from rlk.runtime.binding.invocation import target_of

    on = target_of(device)
    if on is None:
        return
    ranks, dtype = config.parallel_config.tensor_parallel_size, config.model_config.dtype
    prepare(found.model, dtype, steps_of(config), ranks, on, init_logger("vllm.plugins.rlk").info)


def steps_of(config: Any) -> Steps:
    """Return the sizes of an engine's steps, from a VllmConfig."""
    scheduler, cache, model = config.scheduler_config, config.cache_config, config.model_config
    lora = config.lora_config
    return Steps(
        context=model.max_model_len, tokens=scheduler.max_num_batched_tokens,
        sequences=scheduler.max_num_seqs, page=cache.block_size, pages=cache.num_gpu_blocks,
        logprobs=model.logprobs_mode.partition("_")[0], adapters=lora.max_lora_rank if lora else 0,
    )  # fmt: skip


def rlk_calls(self: Any) -> dict[str, int]:
    """Return how often each hook was called in this worker: `llm.collective_rpc("rlk_calls")`."""
    return calls()


def rlk_numerics_id(self: Any) -> str | None:
    """Return the id of the model's numerics, as of `rlk.nn.CausalLM`; None for another quantization."""
    from rlk.integrations.vllm.layers import rlk_config
    from rlk.nn import CausalLM

    found = rlk_config(self.vllm_config)
    if found is None:
        return None
    dtype = self.vllm_config.model_config.dtype
    return CausalLM(found.model, dtype=dtype, device="meta").numerics_id(self.worker.device)
