"""vLLM's attention backend CUSTOM: keys and values written and read by rlk, in vLLM's pages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.attention.backends.utils import get_kv_cache_layout

from rlk import ops
from rlk.env import Env
from rlk.integrations.tensors import no_form
from rlk.integrations.vllm.hooks import PEER, hook
from rlk.nn.serving import PAGE
from rlk.ops.attention import paged_attention_into
from rlk.ops.heads import WRITTEN
from rlk.runtime.binding.arguments import VECTOR
from rlk.runtime.binding.invocation import Tensors
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.call.entry import observing
from rlk.runtime.call.tape import Call, taped

NAME = "CUSTOM"
_attention = hook("attention", "AttentionImpl.forward")
_rope = hook("rope", "RotaryEmbedding")


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """Norms (of `layers`, or None) and rotation of heads of q and k before attention."""

    q_norm: Any
    k_norm: Any
    cos: torch.Tensor
    sin: torch.Tensor
    interleaved: bool


@dataclass(frozen=True, slots=True, eq=False)
class PagedMetadata(AttentionMetadata):
    """The tokens of a step: the arguments of `rlk.ops.paged_attention`, and the slots of new keys.

    Its tensors are vLLM's own buffers, which a CUDA graph reads at each replay. bound: calls that a layer
    made in this step, which others repeat with their own tensors.
    """

    tokens: int
    cu_seqlens: torch.Tensor
    context_lens: torch.Tensor
    block_table: torch.Tensor
    slots: torch.Tensor
    bound: dict[object, Bound] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """The bound calls of a layer's attention, with what all layers of a step give them."""

    write: Call
    read: Call

    @staticmethod
    def of(calls: list[Call], own: Iterable[torch.Tensor]) -> Bound | None:
        """Return recorded calls without the arguments of their layer, whose tensors are `own`.

        None where a call was not recorded, or another argument is in the memory of one of them.
        """
        others = [{n: t for n, t in call.tensors.items() if n not in OWN} for call in calls]
        places = {_address(t) for t in own}
        if len(calls) != 2 or any(_address(t) in places for each in others for t in each.values()):
            return None
        return Bound(*(replace(c, tensors=each, made={}) for c, each in zip(calls, others, strict=True)))


KEYS, VALUES = ((name, WRITTEN[name]) for name in ("k_cache", "v_cache"))
"""The arguments of calls that are a layer's cache, as it is read and as it is written."""
OWN = {"qkv", "q_weight", "k_weight", "o", *KEYS, *VALUES}
"""The arguments of calls that are a layer's own."""


def _address(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr()


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """The keys and the values [pages, page, Hk, E] of a layer's cache.

    layout: its shape, strides, dtype and alignment.
    """

    cache: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    layout: object


def may_repeat(x: torch.Tensor) -> bool:
    """Return whether layers may repeat the calls of another: on a device, if nothing looks at arguments.

    A graph is captured once, and its memory is its own: there each layer makes its calls.
    """
    looked_at = observing() or dispatch.recorder is not None or Env.current().check
    captured = x.is_cuda and torch.cuda.is_current_stream_capturing()
    return on_a_device(x) and not (looked_at or captured)


def on_a_device(x: torch.Tensor) -> bool:
    """Return whether operators leave offsets and pages to kernels: those on the host are looked at."""
    return x.is_cuda


class Builder(AttentionMetadataBuilder[PagedMetadata]):
    """Metadata without a kernel and without waiting for the device."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> PagedMetadata:
        m = common_attn_metadata
        if m.causal is not True:
            raise no_form(PEER, "attention that is not causal", "use a decoder")
        return PagedMetadata(
            m.num_actual_tokens, m.query_start_loc, m.seq_lens, m.block_table_tensor, m.slot_mapping
        )


class Paged(AttentionImpl[PagedMetadata]):
    """Attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **others: Any,
    ) -> None:
        found = {
            "alibi_slopes": alibi_slopes,
            "kv_sharing_target_layer_name": kv_sharing_target_layer_name,
            **others,
        }
        if odd := sorted(name for name, value in found.items() if value is not None):
            raise no_form(PEER, f"attention with {', '.join(odd)}", "use a model of a supported family")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.window, self.softcap = sliding_window, logits_soft_cap or None
        self.heads: Heads | None = None
        self.pages: Pages | None = None

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: PagedMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write keys and values of new tokens into their slots, and the attention of all into output.

        query, output: [T, Hq, E]; key, value: [T, Hk, E], of the model's dtype. kv_cache: [pages, Hk, page,
        2 E], keys before values. Rows behind attn_metadata.tokens are padding and left as they are; without
        attn_metadata output is 0. Returns output. Raises LaunchError for tensors that
        `rlk.ops.paged_attention` does not take.
        """
        _attention.count()
        if attn_metadata is None:  # vLLM measures memory before there is a cache
            return output.fill_(0)
        m = attn_metadata
        keys, values = kv_cache.transpose(1, 2).chunk(2, -1)
        ops.write_cache(key[: m.tokens], value[: m.tokens], keys, values, m.slots[: m.tokens])
        self._read(output[: m.tokens], query[: m.tokens], keys, values, m)
        return output

    def attend(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: PagedMetadata | None,
        output: torch.Tensor,
    ) -> None:
        """Do what `forward` does with heads before their norms and rotation, which `heads` has.

        qkv: [T, (Hq + 2 Hk) E], positions: [T], output: [T, Hq E]. Raises LaunchError for tensors that
        `rlk.ops.cache_qkv` does not take.
        """
        _attention.count()
        _rope.count()
        if attn_metadata is None:
            output.fill_(0)
            return
        m, at = attn_metadata, self.heads
        assert at is not None
        pages = self._pages(kv_cache)
        own = {"qkv": qkv[: m.tokens], "o": output[: m.tokens]}
        if at.q_norm is not None:
            own |= {"q_weight": at.q_norm.weight, "k_weight": at.k_norm.weight}
        if not may_repeat(qkv):
            self._attend(own, positions, pages, m)
            return
        sizes = [(t.dtype, t.shape, t.stride(), t.data_ptr() % VECTOR) for t in own.values()]
        key = (self.options_key, pages.layout, positions.data_ptr(), *sizes)
        bound = m.bound.get(key)
        if bound is None:
            with taped() as calls:
                self._attend(own, positions, pages, m)
            if (found := Bound.of(calls, (*own.values(), kv_cache))) is not None:
                m.bound[key] = found
            return
        read = {"o": own.pop("o").view(m.tokens, self.num_kv_heads, -1, self.head_size)}
        own["qkv"] = own["qkv"].view(m.tokens, -1, self.head_size)
        caches = dict.fromkeys(KEYS, pages.keys) | dict.fromkeys(VALUES, pages.values)
        bound.write.run(bound.write.tensors | own | caches, bound.write.scalars)
        bound.read.run(bound.read.tensors | read | caches, bound.read.scalars)

    def _attend(self, own: Tensors, positions: torch.Tensor, pages: Pages, m: PagedMetadata) -> None:
        """Call the operators of `attend`. own: the arguments that are the layer's."""
        at = self.heads
        assert at is not None
        given: dict[str, Any] = {name: t for name, t in own.items() if name.endswith("_weight")}
        if at.q_norm is not None:
            given |= {"profile": at.q_norm.PROFILE, "eps": at.q_norm.variance_epsilon}
        dim = 2 * at.cos.shape[-1]
        q = ops.cache_qkv(
            own["qkv"], pages.keys, pages.values, m.slots[: m.tokens], cos=at.cos, sin=at.sin,
            position_ids=positions[: m.tokens], interleaved=at.interleaved,
            rotary_dim=None if dim == self.head_size else dim, **given,
        )  # fmt: skip
        self._read(own["o"].unflatten(-1, (self.num_heads, -1)), q, pages.keys, pages.values, m)

    @cached_property
    def options_key(self) -> object:
        """The options of a layer's attention: equal ones make calls that differ in their tensors alone."""
        at = self.heads
        assert at is not None
        norm = None if at.q_norm is None else (at.q_norm.PROFILE, at.q_norm.variance_epsilon)
        options = (self.num_heads, self.num_kv_heads, self.head_size, self.scale, self.window, self.softcap)
        return (*options, norm, at.interleaved, at.cos.data_ptr(), at.sin.data_ptr())

    def _pages(self, kv_cache: torch.Tensor) -> Pages:
        """Return the keys and values of a cache, which a layer is given at every step."""
        if self.pages is None or self.pages.cache is not kv_cache:
            keys, values = kv_cache.transpose(1, 2).chunk(2, -1)
            layout = (kv_cache.shape, kv_cache.stride(), kv_cache.dtype, kv_cache.data_ptr() % VECTOR)
            self.pages = Pages(kv_cache, keys, values, layout)
        return self.pages

    def _read(
        self, out: torch.Tensor, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, m: PagedMetadata
    ) -> None:
        """Write the attention [T, Hq, E] of rotated heads over the cache into out."""
        paged_attention_into(
            out, q, keys, values, m.block_table, m.context_lens, m.cu_seqlens,
            scale=self.scale, window=self.window, softcap=self.softcap,
        )  # fmt: skip


class RlkBackend(AttentionBackend):
    """The backend that `attention_backend="CUSTOM"` names."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float16]
    forward_includes_kv_cache_update: bool = True  # so that no write is lost if vLLM changes who does it

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[Paged]:
        return Paged

    @staticmethod
    def get_builder_cls() -> type[Builder]:
        return Builder

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        return [MultipleOf(1)]

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        return PAGE

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        return (num_blocks, num_kv_heads, block_size, 2 * head_size)

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        by_token = get_kv_cache_layout() == "NHD"
        if include_num_layers_dimension:
            return (1, 0, 3, 2, 4) if by_token else (1, 2, 0, 3, 4)
        return (0, 2, 1, 3) if by_token else (0, 1, 2, 3)

    @staticmethod
    def use_cascade_attention(*args: Any, **kwargs: Any) -> bool:
        return False

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return False
