"""`attn_implementation="rlk"`: packed, padded and cached sequences of transformers in `varlen_attention`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rlk import ops
from rlk.errors import UnsupportedError
from rlk.integrations.swap import Entry, Versions
from rlk.integrations.tensors import SHORT, no_form

NAME, PEER = "rlk", "transformers"
VERSIONS = Versions("5.17.0", "5.23.0")
IGNORED = frozenset(
    "position_ids cu_seq_lens_q cu_seq_lens_k max_length_q max_length_k num_items_in_batch use_cache "
    "cache_position output_hidden_states output_router_logits".split()
)
"""What models hand on to attention that changes nothing here, or is read by name."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """The starts of a batch's sequences, and the rows of their tokens (None: all rows)."""

    cu_q: torch.Tensor
    cu_k: torch.Tensor
    rows_q: torch.Tensor | None = None
    rows_k: torch.Tensor | None = None
    causal: bool = True
    window: int | None = None


def sequences(
    batch_size: int, q_length: int, kv_length: int, q_offset: int = 0, kv_offset: int = 0, *,
    mask_function: Callable[..., Any], attention_mask: torch.Tensor | None = None,
    device: torch.device | str | None = None, **_: object,
) -> Sequences:  # fmt: skip
    """Return what a mask says, as transformers asks for it once a forward; the host waits for packed ones.

    Padding may be left or right, packing is read from position_ids that begin anew. Raises UnsupportedError
    for a mask that is more than causal, a window, padding and packing, and for caches that dropped keys.
    """
    causal, window, packed = _read(mask_function)
    if kv_offset or isinstance(q_offset, torch.Tensor) or q_offset + q_length != kv_length:
        raise refused(
            f"{kv_length} keys from {kv_offset} on for {q_length} queries from {q_offset} on",
            "keys are counted from the start of a sequence: use DynamicCache() without a config, which keeps "
            "them all, or rlk.ops.paged_attention",
        )
    if packed is not None:
        new = torch.ones_like(packed, dtype=torch.bool)
        new[:, 1:] = packed[:, 1:] != packed[:, :-1]
        begins = new.flatten().nonzero().flatten()
        cu = torch.nn.functional.pad(begins, (0, 1), value=packed.numel()).to(torch.int32)
        return Sequences(cu, cu, None, None, causal, window)
    if attention_mask is None or bool(attention_mask.all()):
        return whole(batch_size, q_length, kv_length, causal, window, device)
    keys = attention_mask[:, -kv_length:].bool()
    if window is not None and bool((keys.int().diff(dim=1).abs().sum(1) > 1).any()):
        raise refused("a window over a mask with holes", "pad on one side")
    asks = keys[:, -q_length:]
    cu_q, cu_k = (torch.nn.functional.pad(x.sum(1).cumsum(0), (1, 0)).to(torch.int32) for x in (asks, keys))
    rows_q, rows_k = (x.flatten().nonzero().flatten() for x in (asks, keys))
    return Sequences(cu_q, cu_k, rows_q, rows_k, causal, window)


def whole(
    batch: int, queries: int, keys: int, causal: bool, window: int | None, device: torch.device | str | None
) -> Sequences:
    """Return the sequences of a batch without padding."""
    count = torch.arange(batch + 1, dtype=torch.int32, device=device)
    return Sequences(count * queries, count * keys, None, None, causal, window)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Sequences | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return `varlen_attention` of query [B, Hq, Lq, E], key [B, Hk, Lk, E], value [B, Hk, Lk, F].

    bf16 or f16. attention_mask: what `sequences` returned, or None: every row of the batch is a sequence.
    cu_seq_lens_q and cu_seq_lens_k, where a model hands them on, come before it. s_aux: sinks [Hq]. The
    result is [B, Lq, Hq, F], 0 at padding. Raises UnsupportedError for all that would be another function.
    """
    unknown = sorted(n for n, x in kwargs.items() if n not in IGNORED and x is not None and x is not False)
    if dropout or unknown:
        what = f"dropout={dropout}" if dropout else ", ".join(unknown)
        raise refused(what, 'set attention_dropout to 0 and leave it out, or use attn_implementation="eager"')
    if query.dtype not in SHORT:
        raise refused(f"attention of {query.dtype}", "load the model with dtype=torch.bfloat16 or float16")
    batch, length, keys = query.shape[0], query.shape[2], key.shape[2]
    if attention_mask is None:
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        attention_mask = whole(batch, length, keys, causal, sliding_window, query.device)
    if not isinstance(attention_mask, Sequences):
        raise refused(f"a mask {tuple(attention_mask.shape)}", "leave it to the model, or give 2 dims")
    at = attention_mask
    if sliding_window != at.window or is_causal not in (None, at.causal):
        found = f"window={sliding_window}, is_causal={is_causal}"
        raise refused(f"{found} of a layer whose mask has window={at.window}, is_causal={at.causal}", "")
    cu_q, cu_k = (kwargs.get(f"cu_seq_lens_{n}") for n in "qk")
    if cu_q is not None and cu_k is not None:
        if at.rows_k is not None:
            raise refused("cu_seq_lens beside padding", "leave one of them out")
        cu_q, cu_k = cu_q.to(torch.int32), cu_k.to(torch.int32)
    else:
        cu_q, cu_k = at.cu_q, at.cu_k
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    if at.rows_q is not None and at.rows_k is not None:
        q, k, v = q[at.rows_q], k[at.rows_k], v[at.rows_k]
    o = ops.varlen_attention(
        q, k, v, cu_q, cu_k, causal=at.causal, window=at.window, softcap=softcap, scale=scaling,
        sinks=None if s_aux is None else s_aux.float(),
    ).o  # fmt: skip
    if at.rows_q is not None:
        o = o.new_zeros(batch * length, *o.shape[1:]).index_copy(0, at.rows_q, o)
    return o.unflatten(0, (batch, length)), None


def _read(mask: Callable[..., Any]) -> tuple[bool, int | None, torch.Tensor | None]:
    """Return the parts of a mask function: whether it is causal, its window, its packed sequences."""
    name, inner = mask.__qualname__, inspect.getclosurevars(mask).nonlocals
    match name.removesuffix(".<locals>.inner_mask"):
        case "causal_mask_function" | "bidirectional_mask_function":
            return name.startswith("causal"), None, None
        case "sliding_window_overlay":
            return False, inner["sliding_window"], None
        case "packed_sequence_mask_function":
            return False, None, inner["packed_sequence_mask"]
        case "remap_positions_for_packed_sequence":
            return _read(inner["mask_function"])
        case "and_masks.<locals>.and_mask":
            causal, windows, packed = zip(*map(_read, inner["mask_functions"]), strict=True)
            one = (next((x for x in found if x is not None), None) for found in (windows, packed))
            made = (any(causal), *one)
            if made[1] is None or made[0]:
                return made
    raise refused(f"a mask by {name}", "causal masks, windows, padding and packed sequences are known")


def refused(what: str, instead: str) -> UnsupportedError:
    """Return the error for options that `varlen_attention` does not support."""
    return no_form(PEER, what, instead or "use eager attention")


NAMED = Entry(
    PEER,
    VERSIONS,
    NAME,
    {
        "transformers.modeling_utils:AttentionInterface._global_mapping": attend,
        "transformers.masking_utils:AttentionMaskInterface._global_mapping": sequences,
    },
)
patch, unpatch, patched = NAMED.patch, NAMED.unpatch, NAMED.patched
