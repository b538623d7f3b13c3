"""Inputs of a transformers model as packed tokens: padding, packing by positions, keys in a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rlk import ops
from rlk.integrations.tensors import no_form
from rlk.nn.packed import spread
from rlk.nn.tokens import Heads, Tokens, WholeSequences
from rlk.ops.offsets import checked_offsets, on_the_host, owners_of, refuse_misplaced
from rlk.runtime.binding.checks import has_dims, has_dtype, is_tensor

PEER, OP = "transformers", "rlk.patch"
INTEGERS = (torch.int64, torch.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Tokens [B, L] of which some are padding, and the packed ones that exist.

    rows: int64 [T], of each token that exists among all B * L, None if all do. tokens: what attention needs.
    """

    shape: tuple[int, int]
    rows: torch.Tensor | None
    tokens: Tokens

    def pack(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows [T, ...] of x [B, L, ...] that exist."""
        x = x.flatten(0, 1)
        return x if self.rows is None else x[self.rows]

    def restore(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [T, ...] as [B, L, ...], 0 at padding."""
        return spread(x, self.rows, self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class CachedSequences:
    """Tokens whose keys and values go into a cache of transformers, [B, heads, slots, head_dim] a layer.

    cu_q, cu_k: int32 [B + 1], offsets of the new tokens and of all keys that exist. rows_q: as `Batch.rows`.
    rows_k: int64, of these keys among all B * slots, None if all exist. seen: slots before the new tokens'.
    """

    positions: torch.Tensor
    cu_q: torch.Tensor
    cu_k: torch.Tensor
    rows_q: torch.Tensor | None
    rows_k: torch.Tensor | None
    shape: tuple[int, int]
    seen: int
    cache: Any
    routes: None = None  # a patched model records none

    def attend(self, layer: int, qkv: torch.Tensor, heads: Heads, **options: Any) -> torch.Tensor:
        q, k, v = heads.split(qkv, self.positions)
        new = (spread(x, self.rows_q, self.shape).transpose(1, 2) for x in (k, v))
        held = self.cache.update(*new, layer)
        if self.seen == 0:  # the new keys are all there are
            return ops.varlen_attention(q, k, v, self.cu_q, self.cu_q, **options).o
        slots = self.seen + self.shape[1]  # a static cache has more
        keys, values = (x[:, :, :slots].transpose(1, 2).flatten(0, 1) for x in held)
        if self.rows_k is not None:
            keys, values = keys[self.rows_k], values[self.rows_k]
        return ops.varlen_attention(q, keys, values, self.cu_q, self.cu_k, **options).o


def check_given(given: object) -> None:
    """Raise LaunchError for what are no ids [B, L], int32 or int64, and no embeddings [B, L, hidden]."""
    x = is_tensor(OP, "input_ids", given)
    if not (x.is_floating_point() and x.dim() == 3):
        has_dims(OP, "input_ids", x.shape, 2, "2 dims [B, L]")
        has_dtype(OP, "input_ids", x, *INTEGERS)


def read(
    shape: tuple[int, int],
    device: torch.device,
    *,
    mask: torch.Tensor | None,
    positions: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    cache: Any,
    window: bool,
    longest: int,
) -> Batch:
    """Return the packed tokens of a call of a model; waits for the device once or twice.

    Padding, left or right, is removed, and sequences count their positions from 0: where `positions` begin
    elsewhere, angles differ by a common turn. Without a mask and a cache a sequence begins where `positions`
    do not ascend by 1, as in transformers. window: some layer has one. longest: rows of the rotary tables.
    Raises UnsupportedError for what is not attention of whole sequences up to each token.
    """
    if mask is not None and (not isinstance(mask, torch.Tensor) or mask.ndim != 2):
        found = f"{mask.ndim}-D" if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise no_form(PEER, f"an attention_mask that is {found}", "give a 2-D mask of padding, or none")
    if mask is not None and mask.is_complex():
        has_dtype(OP, "attention_mask", mask, torch.bool, *INTEGERS)
    if cu_seqlens is not None:
        offsets = checked_offsets(OP, "cu_seq_lens_q", cu_seqlens)
        if len(offsets) and on_the_host(offsets):
            refuse_misplaced(OP, "cu_seq_lens_q", offsets, shape[0] * shape[1], "tokens")
    seen = 0 if cache is None else int(cache.get_seq_length())
    slots = seen + shape[1]
    if mask is not None and mask.shape != (shape[0], slots):
        raise no_form(
            PEER, f"an attention_mask {tuple(mask.shape)} of {slots} keys in {shape[0]} rows", "give all keys"
        )
    at = None if positions is None else _rows_of(positions, shape)
    padded, holes, broken, other = _flags(mask, at)
    if other:
        what = "an attention_mask of floats that are not 0 and 1"
        raise no_form(PEER, what, "give 1 for tokens and 0 for padding: nothing is added to scores")
    if padded and holes and (at is None or window):
        raise no_form(PEER, "an attention_mask with holes", "pad on one side")
    if cu_seqlens is not None or (broken and mask is None):
        if padded or cache is not None:
            raise no_form(PEER, "packed sequences beside padding or a cache", "pass use_cache=False, no mask")
        return _packed(shape, at, cu_seqlens, device, longest)
    if broken and not padded:
        raise no_form(PEER, "position_ids that begin anew beside an attention_mask", "leave the mask out")
    keys = mask.bool() if padded and mask is not None else None
    asks = None if keys is None else keys[:, -shape[1] :]
    if asks is not None and at is not None and broken and _skips(at, asks):
        raise no_form(PEER, "position_ids that skip tokens", "count the tokens of each row")
    if slots > longest and (keys is None or int(keys.sum(1).max()) > longest):
        raise too_long(slots, longest)
    cu_q, cu_k = (_offsets(x, shape[0], n, device) for x, n in ((asks, shape[1]), (keys, slots)))
    rows_q, rows_k = (None if x is None else x.flatten().nonzero().flatten() for x in (asks, keys))
    count = shape[0] * shape[1] if rows_q is None else len(rows_q)
    if cache is None:
        return Batch(shape, rows_q, WholeSequences.of(cu_q, count))
    index = torch.arange(count, device=device)
    owner = owners_of(cu_q[1:], count)
    where = (index - cu_q[owner + 1] + (cu_k[1:] - cu_k[:-1])[owner]).to(torch.int32)
    return Batch(shape, rows_q, CachedSequences(where, cu_q, cu_k, rows_q, rows_k, shape, seen, cache))


def too_long(found: int, longest: int) -> Exception:
    """Return the error for a sequence that is longer than its model's rotary tables."""
    return no_form(PEER, f"a sequence of {found} tokens", f"config.max_position_embeddings is {longest}")


def _rows_of(positions: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Return the positions of all tokens, [B, L]."""
    has_dtype(OP, "position_ids", is_tensor(OP, "position_ids", positions), *INTEGERS)
    if positions.shape not in ((shape[1],), (1, shape[1]), shape):
        raise no_form(PEER, f"position_ids {tuple(positions.shape)} of tokens {shape}", "give one a token")
    return positions.expand(shape)


def _flags(mask: torch.Tensor | None, at: torch.Tensor | None) -> tuple[bool, bool, bool, bool]:
    """Return whether there is padding, padding between tokens, a position not 1 above the one before.

    The last: whether a mask of floats has others than 0 and 1. One wait for the device, if any.
    """
    flags: dict[str, torch.Tensor] = {}
    if mask is not None:
        real = torch.nn.functional.pad(mask.bool().to(torch.int8), (1, 0))
        flags |= {"padded": ~mask.bool().all(), "holes": ((real.diff(dim=1) == 1).sum(1) > 1).any()}
        if mask.is_floating_point():
            flags["other"] = ((mask != 0) & (mask != 1)).any()
    if at is not None:
        flags["broken"] = (at.diff(dim=1) != 1).any()
    found = dict(zip(flags, torch.stack([*flags.values()]).tolist() if flags else (), strict=True))
    padded, holes, broken, other = (found.get(n, False) for n in ("padded", "holes", "broken", "other"))
    return padded, holes, broken, other


def _skips(at: torch.Tensor, asks: torch.Tensor) -> bool:
    """Return whether positions [B, L] skip between two tokens of a row that exist."""
    row = torch.arange(len(at), device=at.device)[:, None].expand(at.shape)[asks]
    return bool(((at[asks].diff() != 1) & (row.diff() == 0)).any())


def _offsets(real: torch.Tensor | None, rows: int, width: int, device: torch.device) -> torch.Tensor:
    if real is None:
        return torch.arange(rows + 1, dtype=torch.int32, device=device) * width
    return torch.nn.functional.pad(real.sum(1).cumsum(0), (1, 0)).to(torch.int32)


def _packed(
    shape: tuple[int, int],
    at: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    device: torch.device,
    longest: int,
) -> Batch:
    """Return whole sequences that fill the rows, by their offsets or by where positions begin."""
    count = shape[0] * shape[1]
    if cu_seqlens is None:
        assert at is not None
        begins = torch.nn.functional.pad(at.diff(dim=1) != 1, (1, 0), value=True)
        starts = begins.flatten().nonzero().flatten()
        cu_seqlens = torch.nn.functional.pad(starts, (0, 1), value=count)
    tokens = WholeSequences.of(cu_seqlens.to(device, torch.int32), count)
    if count > longest and int(tokens.positions.max()) >= longest:
        raise too_long(int(tokens.positions.max()) + 1, longest)
    return Batch(shape, None, tokens)
