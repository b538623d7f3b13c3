"""Support of a draw for log-probs: a threshold for each row, or a bit for each token."""

from __future__ import annotations

import torch

from rlk.errors import Code, LaunchError
from rlk.ops.offsets import checked_offsets, on_the_host, refuse_misplaced
from rlk.ops.results import Csr, Support
from rlk.runtime.binding.checks import is_tensor, wrong_type, wrong_value
from rlk.runtime.binding.invocation import Tensors

WORD = 32  # bits


def kept_tokens(op: str, support: object, vocabulary: int, ids: torch.Tensor) -> Tensors:
    """Return the inputs of a log-prob that restrict it to a support of the rows of ids."""
    # no `match`: torch.compile follows class patterns from torch 2.11 on
    if isinstance(support, Support):
        for name in ("threshold", "last"):
            given = is_tensor(op, f"support.{name}", getattr(support, name))
            got, wanted = tuple(given.shape), tuple(ids.shape)
            if got != wanted:
                raise LaunchError(
                    Code.ARG_SIZE,
                    op=op,
                    name=f"support.{name}",
                    axis="rows",
                    got=got,
                    other="ids",
                    wanted=wanted,
                )
        return {"threshold": support.threshold, "last": support.last}
    if not isinstance(support, Csr):
        raise wrong_type(op, "support", support, "Support or Csr")
    for name, x in (("support.offsets", support.offsets), ("support.ids", support.ids)):
        checked_offsets(op, name, x)
    rows = len(support.offsets) - 1
    if rows != ids.numel():
        raise LaunchError(
            Code.ARG_SIZE,
            op=op,
            name="support.offsets[1:]",
            axis="rows",
            got=rows,
            other="ids",
            wanted=ids.numel(),
        )
    if on_the_host(support.offsets) and on_the_host(support.ids):
        _refuse(op, support, vocabulary)
    return {"words": _words(support, vocabulary).reshape(*ids.shape, -1)}


def _refuse(op: str, csr: Csr, vocabulary: int) -> None:
    """Raise LaunchError for offsets that do not cut the ids, ids outside, and ids that a row has twice."""
    refuse_misplaced(op, "support.offsets", csr.offsets, len(csr.ids), "ids")
    outside = (csr.ids < 0) | (csr.ids >= vocabulary)
    if bool(outside.any()):
        at = int(outside.to(torch.int8).argmax())
        raise wrong_value(op, f"support.ids[{at}]", int(csr.ids[at]), f"0 to {vocabulary - 1}")
    row = torch.repeat_interleave(csr.offsets.diff().long())
    place, seen = torch.sort(row * vocabulary + csr.ids.long(), stable=True)
    again = place[1:] == place[:-1]
    if bool(again.any()):
        at = int(seen[1:][again][0])
        raise wrong_value(op, f"support.ids[{at}]", int(csr.ids[at]), "each id of a row once")


def _words(csr: Csr, vocabulary: int) -> torch.Tensor:
    """Return a bit for each token of each row, i32 [rows, ceil(vocabulary / 32)].

    A row with an id outside of the vocabulary keeps nothing, which the kernel reports; no other row sees it.
    """
    rows, width = len(csr.offsets) - 1, -(-vocabulary // WORD)
    ids = csr.ids.to(torch.int64)
    place = torch.arange(len(ids), device=ids.device)
    row = torch.searchsorted(csr.offsets[1:].to(torch.int64), place, right=True)
    good = (ids >= 0) & (ids < vocabulary) & (row < rows)
    # one extra word, for tokens outside of a row
    at = torch.where(good, row * width + ids // WORD, rows * width)
    words = torch.zeros(rows * width + 1, dtype=torch.int64, device=ids.device)
    # every bit is added once: integer sums have no order
    words.index_add_(0, at, torch.ones_like(ids) << ids.remainder(WORD))
    spoiled = torch.zeros(rows + 1, dtype=torch.int64, device=ids.device)
    spoiled.index_add_(0, row, (~good).to(torch.int64))
    kept = words[:-1].to(torch.int32).reshape(rows, width)
    return torch.where(spoiled[:-1, None] > 0, 0, kept)


def words_from(words: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """Return the bits of tokens [start, start + count) as words of their own, i32 [..., ceil(count / 32)].

    Bits of tokens beyond these may follow: no kernel reads them.
    """
    first, shift, width = start // WORD, start % WORD, -(-count // WORD)
    if not shift:
        return words[..., first : first + width]
    # the words that hold the first bits of each new one, and the rest; the last has no successor
    wide = torch.nn.functional.pad(words.to(torch.int64) & 0xFFFFFFFF, (0, 1))[..., first:]
    low, high = wide[..., :width] >> shift, wide[..., 1 : width + 1] << (WORD - shift)
    return ((low | high) & 0xFFFFFFFF).to(torch.int32)
