"""The same views by a model of transformers: stock, or patched to compute by rlk."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlk.observe import positions_of
from rlk.verify.views import GRADIENT_TOKENS, Span, padded_ids, taken_gradients

See = Callable[[Sequence[Span], Tensor, Tensor | None], Tensor]
"""Takes spans, logits [n, V] of their tokens, and which rows of the call these are (None: all)."""


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """A causal language model of transformers, and sequences to run. call: the most tokens of a call."""

    model: Any
    sequences: list[Tensor]
    see: See
    call: int = 8192

    def groups(self) -> Iterator[list[int]]:
        """Yield sequences in turn, of at most `call` tokens with padding to the longest, or one of more."""
        group: list[int] = []
        for i in range(len(self.sequences)):
            longest = max(len(self.sequences[j]) for j in (*group, i))
            if group and longest * (len(group) + 1) > self.call:
                yield group
                group = []
            group.append(i)
        if group:
            yield group

    def logits(self, ids: Tensor, **options: Any) -> Any:
        """Return what the model returns for ids [B, L]."""
        return self.model(ids, **{"use_cache": False, **options})


PeerView = Callable[[Peer], Iterator[Tensor]]


def packed(peer: Peer) -> Iterator[Tensor]:
    """Score sequences behind each other in one row, told apart by their positions."""
    with torch.no_grad():
        for group in peer.groups():
            parts = [peer.sequences[i] for i in group]
            positions = torch.cat([torch.arange(len(x), device=x.device) for x in parts])
            logits = peer.logits(torch.cat(parts)[None], position_ids=positions[None]).logits[0]
            yield peer.see([(i, 0, len(x)) for i, x in zip(group, parts, strict=True)], logits, None)


def one_by_one(peer: Peer) -> Iterator[Tensor]:
    """Score each sequence alone."""
    with torch.no_grad():
        for i, ids in enumerate(peer.sequences):
            yield peer.see([(i, 0, len(ids))], peer.logits(ids[None]).logits[0], None)


def padded(peer: Peer, side: str, extra: int = 0) -> Iterator[Tensor]:
    """Score batches, padded on a side; extra: columns more than the longest needs."""
    with torch.no_grad():
        for group in peer.groups():
            yield _padded(peer, group, side, extra)


def _padded(peer: Peer, group: list[int], side: str, extra: int) -> Tensor:
    parts = [peer.sequences[i] for i in group]
    ids, mask, at = padded_ids(parts, side, extra)
    positions = positions_of(mask)
    logits = peer.logits(ids, attention_mask=mask, position_ids=positions).logits
    rows = torch.cat([r * ids.shape[1] + torch.arange(x.start, x.stop) for r, x in enumerate(at)])
    rows = rows.to(ids.device)
    return peer.see(
        [(i, 0, len(x)) for i, x in zip(group, parts, strict=True)], logits.flatten(0, 1)[rows], rows
    )


def checkpointed(peer: Peer) -> Iterator[Tensor]:
    """Run each sequence alone in training, with gradient checkpointing."""
    with training(peer.model):
        for i, ids in enumerate(peer.sequences):
            yield peer.see([(i, 0, len(ids))], peer.logits(ids[None]).logits[0].detach(), None)


@contextmanager
def training(model: Any) -> Iterator[None]:
    """Put a model into training with gradient checkpointing meanwhile."""
    model.train()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # newer versions have another name, older ones have not
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        try:
            yield
        finally:
            model.gradient_checkpointing_disable()
            model.eval()


def chunked(peer: Peer, chunk: int) -> Iterator[Tensor]:
    """Read each sequence in chunks over a cache of keys and values; of 1 token: as a rollout decodes."""
    from transformers import DynamicCache

    with torch.no_grad():
        for i, ids in enumerate(peer.sequences):
            cache = DynamicCache()
            seen = []
            for at in range(0, len(ids), chunk):
                part = ids[at : at + chunk]
                out = peer.logits(part[None], past_key_values=cache, use_cache=True)
                seen.append(peer.see([(i, at, len(part))], out.logits[0], None))
            yield torch.cat(seen)


def decoded(peer: Peer, steps: int) -> Iterator[Tensor]:
    """Prefill all but the last tokens of batches of one length, padded on the left, then decode these."""
    from transformers import DynamicCache

    with torch.no_grad():
        for group in peer.groups():
            parts = [peer.sequences[i] for i in group]
            ids, mask, _ = padded_ids(parts, "left")
            positions = positions_of(mask)
            last = min(steps, min(map(len, parts)) - 1)
            if last < 1:
                continue
            cache, first = DynamicCache(), ids.shape[1] - last
            seen = []
            peer.logits(
                ids[:, :first], attention_mask=mask[:, :first], position_ids=positions[:, :first],
                past_key_values=cache, use_cache=True,
            )  # fmt: skip
            for at in range(first, ids.shape[1]):
                out = peer.logits(
                    ids[:, at : at + 1], attention_mask=mask[:, : at + 1],
                    position_ids=positions[:, at : at + 1], past_key_values=cache, use_cache=True,
                )  # fmt: skip
                where = at - ids.shape[1]
                spans = [(i, len(x) + where, 1) for i, x in zip(group, parts, strict=True)]
                seen.append(peer.see(spans, out.logits[:, -1], None))
            yield torch.cat(seen)


def gradients_of(model: Any, sequences: Sequence[Tensor], how: str) -> dict[str, Tensor]:
    """Return gradients of a micro-batch's mean log-prob by names of parameters.

    how: "packed", or the side of padding.
    """
    if how == "packed":
        positions = torch.cat([torch.arange(len(x), device=x.device) for x in sequences])
        ids, options = torch.cat(list(sequences))[None], {"position_ids": positions[None]}
        logits = model(ids, use_cache=False, **options).logits[0].split([len(x) for x in sequences])
    else:
        ids, mask, at = padded_ids(sequences, how, extra=3)
        positions = positions_of(mask)
        out = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
        logits = [row[inside] for row, inside in zip(out, at, strict=True)]
    total = sum(chosen(z, x).sum() for z, x in zip(logits, sequences, strict=True))
    (total / sum(map(len, sequences))).backward()
    return taken_gradients(model)


def micro_batch(sequences: Sequence[Tensor], call: int) -> list[Tensor]:
    """Return the first sequences, of at most GRADIENT_TOKENS and `call` tokens together, one at least."""
    made: list[Tensor] = []
    for ids in sequences:
        if made and sum(map(len, made)) + len(ids) > min(GRADIENT_TOKENS, call):
            break
        made.append(ids)
    return made


def chosen(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probs of ids[1:], in f32 (f64 of f64 logits), as trainers compute them."""
    wide = logits[:-1] if logits.dtype == torch.float64 else logits[:-1].float()
    return torch.log_softmax(wide, -1).gather(-1, ids[1:, None])[:, 0]
