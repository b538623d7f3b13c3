"""The platform of RLK_VLLM=cpu, and two functions of vLLM's extension for CPUs, in torch."""

from __future__ import annotations

from typing import Any

import torch
from vllm.platforms.cpu import CpuPlatform

_library = torch.library.Library("_C", "FRAGMENT")


def slots(cu: torch.Tensor, at: torch.Tensor, table: torch.Tensor, out: torch.Tensor, block: int) -> None:
    """Write the slot of each token of a step: of sequences cu [B + 1], at their positions, by their pages."""
    tokens = int(cu[-1])
    owner = torch.repeat_interleave(torch.arange(len(cu) - 1), cu.diff().long())
    position = at[:tokens].long()
    out[:tokens] = table[owner, position // block].long() * block + position % block
    out[tokens:] = -1


class OraclePlatform(CpuPlatform):
    """A CPU whose attention is rlk's."""

    @classmethod
    def import_kernels(cls) -> None:
        """Look for no extension."""

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: Any, *args: Any, **kwargs: Any) -> str:
        path: str = selected_backend.get_path()
        return path

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        given = vllm_config.parallel_config.distributed_executor_backend
        super().check_and_update_config(vllm_config)
        # vLLM's own choice on a CPU is a process for one rank, too
        one = vllm_config.parallel_config.world_size == 1
        vllm_config.parallel_config.distributed_executor_backend = "uni" if one else given


for schema, run in (
    (
        "compute_slot_mapping_kernel_impl(Tensor cu, Tensor at, Tensor table, Tensor(a!) out, int block)",
        slots,
    ),
    ("init_cpu_memory_env(int[] nodes)", lambda nodes: None),
):
    _library.define(f"{schema} -> ()")
    _library.impl(schema.partition("(")[0], run, "CompositeExplicitAutograd")
