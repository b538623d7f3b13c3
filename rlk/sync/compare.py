"""The comparison of two digests: which weights did not arrive, and where in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from rlk.errors import Code, LaunchError
from rlk.runtime.binding.checks import wrong_type
from rlk.sync.blocks import BLOCK, SIZE
from rlk.sync.digests import EMBEDDING, HEAD, Digest, WeightDigest

Kind = Literal["missing", "extra", "dtype", "shape", "stale", "half-written", "differs"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A weight that is not what was sent. what: what was found, and where."""

    name: str
    kind: Kind
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


def compare(sent: Digest, received: Digest, before: Digest | None = None) -> tuple[Difference, ...]:
    """Return every weight of `received` that has not the bits of `sent`, by name; nothing if all have.

    before: the digest of what the receiver had until then. With it a weight is "stale" if it still is that.
    A weight is "half-written" if some blocks that the sync changes are as sent, and some blocks are not;
    without `before` all are taken as changed, so that a stale weight is called so where a block did not
    change. Any other content "differs". An `lm_head.weight` that `sent` or `before` leaves out is the
    embedding; one that `received` leaves out is that only if `before` does too, and "missing" if not.
    """
    given = {"sent": sent, "received": received, **({} if before is None else {"before": before})}
    for argument, one in given.items():
        if not isinstance(one, Digest):
            wanted = "rlk.sync.Digest (llm.apply_model returns a list, one of each worker)"
            raise wrong_type("sync.compare", argument, one, wanted)
    found = []
    for name in sorted({*sent.weights, *received.weights}):
        ours, old = _weight(sent, name), None if before is None else _weight(before, name)
        tied = before is not None and name not in before.weights
        theirs = _weight(received, name) if tied else received.weights.get(name)
        if ours == theirs:
            continue
        if theirs is None:
            found.append(Difference(name, "missing", "was not received"))
        elif ours is None:
            found.append(Difference(name, "extra", "was not sent"))
        elif ours.dtype != theirs.dtype:
            found.append(Difference(name, "dtype", f"is {theirs.dtype}, sent as {ours.dtype}"))
        elif ours.shape != theirs.shape:
            found.append(Difference(name, "shape", f"is {list(theirs.shape)}, sent as {list(ours.shape)}"))
        else:
            found.append(Difference(name, *_content(ours, theirs, old)))
    return tuple(found)


def check(sent: Digest, received: Digest, before: Digest | None = None) -> None:
    """Raise LaunchError that names every weight that `compare` finds."""
    found = compare(sent, received, before)
    if found:
        listed = "\n".join(f"      {each}" for each in found)
        cast = sorted({received.weights[each.name].dtype for each in found if each.kind == "dtype"})
        what = [f"digest what is sent with dtype=torch.{dtype}, as the sync casts it" for dtype in cast]
        if any(each.kind != "dtype" for each in found):
            what.append(
                "send them again, all of them, and wait for the transfer before the next token is drawn"
            )
        raise LaunchError(
            Code.WEIGHTS_DIFFER,
            count=len(found), total=len(sent.weights), listed=listed, remedy="; ".join(what),
        )  # fmt: skip


def _weight(digest: Digest, name: str) -> WeightDigest | None:
    """Return a weight; a head that is left out is the embedding."""
    found = digest.weights.get(name)
    return digest.weights.get(EMBEDDING) if found is None and name == HEAD else found


def _content(ours: WeightDigest, theirs: WeightDigest, old: WeightDigest | None) -> tuple[Kind, str]:
    """Return how the blocks of two weights of one dtype and shape differ."""
    sent, received = _blocks(ours), _blocks(theirs)
    wrong = [i for i, (a, b) in enumerate(zip(sent, received, strict=True)) if a != b]
    where = f"{len(wrong)} of {len(sent)} blocks differ, the first at {_place(ours, wrong[0])}"
    if old == theirs:
        return "stale", f"is still what was there before: {where}"
    known = old is not None and len(old.blocks) == len(theirs.blocks)
    earlier = _blocks(old) if old is not None and known else [b""] * len(sent)
    arrived = any(a == b != c for a, b, c in zip(sent, received, earlier, strict=True))
    return ("half-written" if arrived else "differs"), where


def _blocks(weight: WeightDigest) -> list[bytes]:
    return [weight.blocks[at : at + SIZE] for at in range(0, len(weight.blocks), SIZE)]


def _place(weight: WeightDigest, block: int) -> str:
    """Return the elements of a block in words, and its first row."""
    count = 1
    for extent in weight.shape:
        count *= extent
    per = BLOCK // getattr(torch, weight.dtype).itemsize
    first, last = block * per, min((block + 1) * per, count) - 1
    inner = count // weight.shape[0] if len(weight.shape) > 1 else 1
    row = f", from row {first // inner} on" if len(weight.shape) > 1 else ""
    return f"elements {first} to {last}{row}"
