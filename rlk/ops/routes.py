"""Recorded choices of experts: stored by rollout, replayed by training, compared with what training chose."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from rlk.errors import Code, LaunchError
from rlk.ops.offsets import on_the_host
from rlk.runtime.binding.checks import has_dims, integer, is_tensor, wrong_value

OP = "Routes.of"
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def compact_dtype(experts: int) -> torch.dtype:
    """Return the smallest integer dtype of torch that holds the ids of so many experts."""
    if experts <= 1 << 8:
        return torch.uint8
    return torch.int16 if experts <= 1 << 15 else torch.int32


class Flips(NamedTuple):
    """Tokens whose experts differ between two runs.

    tokens: how many differ in some layer, of `total` tokens. first_token: the lowest of them, and first_layer
    the lowest layer in which it does, -1 each without any. by_layer: tokens that differ in each layer.
    """

    tokens: int
    total: int
    first_token: int
    first_layer: int
    by_layer: tuple[int, ...]

    @staticmethod
    def of_layers(flipped: Sequence[torch.Tensor]) -> Flips:
        """Return the report of one bool tensor [T] a layer, as `Route.flipped`; waits for the device."""
        each = torch.stack([is_tensor("Flips", "flipped", x).reshape(-1) for x in flipped], -1).cpu()
        found = each.nonzero()  # by token, then by layer
        token, layer = found[0].tolist() if len(found) else (-1, -1)
        return Flips(int(each.any(-1).sum()), len(each), token, layer, tuple(each.sum(0).tolist()))

    def __str__(self) -> str:
        if not self.tokens:
            return f"no token of {self.total} changed experts"
        layers = f"{sum(1 for n in self.by_layer if n)} of {len(self.by_layer)} layers"
        return (
            f"{self.tokens} of {self.total} tokens changed experts, in {layers}: "
            f"the first is token {self.first_token}, in layer {self.first_layer}"
        )


def _marked(ids: torch.Tensor, experts: int) -> torch.Tensor:
    """Return sorted ids in a compact dtype; those of a token with one outside of the experts are its largest.

    The dtype's largest number is outside of the experts too, or is a token's expert k times. For one choice
    of exactly as many experts as a dtype holds it is neither: such ids are in a wider one.
    """
    k, dtype = ids.shape[-1], compact_dtype(experts)
    if k == 1 and torch.iinfo(dtype).max == experts - 1:
        dtype = compact_dtype(experts + 1)
    low, high = (ids[..., :1] < 0).any(-1), (ids[..., -1:].long() >= experts).any(-1)  # k may be 0
    wrong = (low | high)[..., None]
    return ids.to(dtype).masked_fill(wrong, torch.iinfo(dtype).max).contiguous()


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """The experts of tokens in every layer that has experts. Make one with `Routes.of`.

    ids: [T, layers, k], uint8 up to 256 experts, int16 up to 32768, ascending for each token and layer.
    experts: of a layer. Layers without experts are not counted. On a device, a token that has ids outside of
    the experts holds one number k times (if k is 1, 256 experts take int16).
    """

    ids: torch.Tensor
    experts: int

    @staticmethod
    def of(ids: torch.Tensor | Sequence[torch.Tensor], *, experts: int) -> Routes:
        """Return ids of any integer dtype, [T, layers, k] or one [T, k] a layer, sorted and stored compactly.

        Raises LaunchError for ids outside of [0, experts) and for an expert that a token has twice, where ids
        are on the host; on a device such a token makes `route(replay=)` set the error word.
        """
        experts = integer(OP, "experts", experts, 1, 2**31 - 1)
        if not isinstance(ids, torch.Tensor):
            layers = [is_tensor(OP, f"ids[{i}]", x) for i, x in enumerate(ids)]
            if not layers:
                raise wrong_value(OP, "ids", ids, "one tensor [T, k] a layer")
            for i, x in enumerate(layers):
                has_dims(OP, f"ids[{i}]", x.shape, 2, "2 dims [T, k]")
                if x.shape != layers[0].shape:
                    raise LaunchError(
                        Code.ARG_SHAPE, op=OP, name=f"ids[{i}]", got=tuple(x.shape),
                        wanted=tuple(layers[0].shape), why="of ids[0]",
                    )  # fmt: skip
            ids = torch.stack(layers, 1)
        has_dims(OP, "ids", ids.shape, 3, "3 dims [T, layers, k]")
        if ids.dtype not in INTEGERS:
            raise LaunchError(Code.ARG_DTYPE, op=OP, name="ids", got=ids.dtype, wanted="an integer dtype")
        ids = ids.sort(-1).values
        if not on_the_host(ids):
            return Routes(_marked(ids, experts), experts)
        if ids.numel():
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= experts:
                raise wrong_value(OP, "ids", low if low < 0 else high, f"ids from 0 to {experts - 1}")
            twice = (ids[..., 1:] == ids[..., :-1]).any(-1).nonzero()
            if len(twice):
                token, layer = twice[0].tolist()
                value = ids[token, layer].tolist()
                wanted = f"k different experts (token {token}, layer {layer} has one twice)"
                raise wrong_value(OP, "ids", value, wanted)
        return Routes(ids.to(compact_dtype(experts)).contiguous(), experts)

    @staticmethod
    def cat(parts: Sequence[Routes]) -> Routes:
        """Return the tokens of several records of one model, one after the other."""
        if not parts:
            raise wrong_value("Routes.cat", "parts", parts, "at least one")
        for part in parts[1:]:
            part.check("Routes.cat", "parts[0]", **parts[0]._sizes(), tokens=part.tokens)
        return Routes(torch.cat([part.ids for part in parts]), parts[0].experts)

    @property
    def tokens(self) -> int:
        return self.ids.shape[0]

    @property
    def layers(self) -> int:
        return self.ids.shape[1]

    @property
    def k(self) -> int:
        return self.ids.shape[2]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the ids: tokens * layers * k, up to 256 experts."""
        return self.ids.nbytes

    def take(self, tokens: torch.Tensor | slice) -> Routes:
        """Return the routes of some tokens, by their indices (int64) or a slice, such as of a micro-batch."""
        return Routes(self.ids[tokens].contiguous(), self.experts)

    def to(self, device: torch.device | str) -> Routes:
        """Return the routes on a device."""
        return Routes(self.ids.to(device), self.experts)

    def digest(self) -> str:
        """Return 16 hex digits of sizes and ids: equal where rollout and training hold the same routes."""
        found = hashlib.sha256(repr((self.experts, tuple(self.ids.shape))).encode())
        ids = self.ids.cpu().to(compact_dtype(self.experts + 1))  # of one dtype, whatever `_marked` chose
        found.update(ids.contiguous().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()[:16]

    def flips(self, other: Routes) -> Flips:
        """Return which tokens have other experts in another record; waits for the device."""
        other.check("Routes.flips", "self", **self._sizes(), tokens=self.tokens, name="other")
        if not self.layers:
            return Flips(0, self.tokens, -1, -1, ())
        return Flips.of_layers((self.ids != other.ids).any(-1).unbind(1))

    def check(
        self, op: str, other: str, *, tokens: int, layers: int, k: int, experts: int, name: str = "routes"
    ) -> None:
        """Raise LaunchError, one finding for each size that is not what `other` needs."""
        needed = {"experts": experts, "k": k, "layers": layers, "tokens": tokens}
        wrong = [
            LaunchError(Code.ARG_SIZE, op=op, name=name, axis=axis, got=got, other=other, wanted=wanted)
            for axis, wanted in needed.items()
            if (got := getattr(self, axis)) != wanted
        ]
        if wrong:
            raise LaunchError.collected(tuple(d for error in wrong for d in error.diagnostics))

    def _sizes(self) -> dict[str, int]:
        return {"layers": self.layers, "k": self.k, "experts": self.experts}


torch.serialization.add_safe_globals([Routes])  # torch.load takes a record without weights_only=False
