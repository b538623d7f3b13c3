"""The ranks that share the weights of a model: their leaves, their tokens, and what they exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from rlk.digest import canonical, digest_bytes, digest_word
from rlk.errors import Code, LaunchError
from rlk.ops.collective import part_over_ranks, total_over_ranks
from rlk.runtime.binding.checks import wrong_value
from rlk.runtime.call.alike import REFUSED, SHOWN, check_alike, text_of
from rlk.runtime.call.collective import SHARE, Share, carried_by, ordered_gather
from rlk.runtime.call.marked import sharing

T = TypeVar("T")
BLOCK = 64
"""Tokens of a piece, as the gradient of a norm's weight sums them: a rank's tokens are whole pieces."""


@dataclass(slots=True, eq=False)
class Ranks:
    """Ranks of a process group that share the weights of a model (tensor parallelism).

    size: a divisor of the model's leaves. sequence: between the products a rank has the tokens `rows` alone
    (sequence parallelism). tokens: of the running forward pass, on all ranks together; its modules set it,
    since a rank's own rows do not say it. call: arguments of the next forward pass by name, which are
    compared with its ids.
    """

    group: dist.ProcessGroup
    size: int
    rank: int
    sequence: bool = False
    tokens: int = 0
    call: dict[str, object] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        """Return a copy for a copied model, which has the same process group."""
        made = memo[id(self)] = replace(self)
        return made

    def share(self, count: int) -> int:
        """Return a rank's equal share of a number, such as leaves, heads or rows of a weight."""
        return count // self.size

    def part(self, leaves: int) -> tuple[int, int]:
        """Return the leaves of this rank, as `ops.matmul` takes them."""
        own = self.share(leaves)
        return self.rank * own, (self.rank + 1) * own

    # --- tokens ---------------------------------------------------------------------------------------------

    def longest(self, tokens: int) -> int:
        """Return how many tokens the first rank has: whole blocks of 64; the last ranks may have fewer."""
        blocks = -(-tokens // BLOCK)
        return -(-blocks // self.size) * BLOCK

    def rows(self, tokens: int) -> slice:
        """Return which of the tokens this rank has between the products."""
        if not self.sequence:
            return slice(0, tokens)
        each = self.longest(tokens)
        return slice(min(self.rank * each, tokens), min((self.rank + 1) * each, tokens))

    def check_same_ids(self, op: str, ids: torch.Tensor) -> None:
        """Raise LaunchError on every rank where ranks got other ids, or other arguments of `call`.

        8 bytes are exchanged, and the host reads them: for ids on a device nothing is compared. A rank that
        refused its ids before says so by `refuse`.
        """
        call, self.call = self.call, {}
        if ids.device.type != "cpu" or self.size == 1:
            return
        if "cpu" not in (kinds := carried_by(self.group)):
            wanted = " or ".join(kinds)
            raise LaunchError(Code.ARG_DEVICE, op=op, name="ids", got="cpu", other="group", wanted=wanted)
        content = ids.to(torch.int64).contiguous().numpy().tobytes()
        facts = {"tokens": str(ids.numel()), "digest of ids": digest_bytes(content)[:16]}
        every = self._exchanged(op, facts | {name: _shown(value) for name, value in call.items()})
        called = {told["call"] for told in every.values() if "call" in told} or {str(call.get("call", op))}
        check_alike(called.pop() if len(called) == 1 else "rlk.parallel", every)

    def refuse(self, ids: object) -> None:
        """Take part in the comparison of ids as a rank that refused its own; it raises what it has raised."""
        self.call = {}
        if not isinstance(ids, torch.Tensor) or ids.device.type != "cpu" or self.size == 1:
            return
        if "cpu" in carried_by(self.group):
            self._exchanged("refuse", {"tokens": REFUSED})

    def _exchanged(self, op: str, own: dict[str, str]) -> dict[int, dict[str, str]]:
        """Return the facts of each rank, those that matter; nothing where all ranks have the same."""
        mine = torch.tensor(digest_word(canonical(own)))
        every = ordered_gather(mine, self.group, op=op)
        if bool((every == mine).all()):
            return {}
        told: list[Any] = [None] * self.size
        dist.all_gather_object(told, own, group=self.group)
        if any(facts["tokens"] == REFUSED for facts in told):
            told = [{"tokens": facts["tokens"]} for facts in told]
        return dict(zip(dist.get_process_group_ranks(self.group), told, strict=True))

    def all_tokens(self, x: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return the rows of all ranks [tokens, ...] of a rank's rows; those it has if it has all.

        Raises LaunchError, before anything is sent, for other rows than a rank has of so many tokens.
        """
        if not self.sequence:
            return x
        own = self.rows(tokens)
        if len(x) != own.stop - own.start:
            wanted = f"{own.stop - own.start}, those of this rank of ranks.tokens = {tokens}: set it first"
            raise wrong_value("rlk.parallel", "tokens of x", len(x), wanted)
        return self.rows_of_all(x, self.longest(tokens), tokens)

    def rows_of_all(self, x: torch.Tensor, most: int, count: int) -> torch.Tensor:
        """Return `count` rows of all ranks, of which each has at most `most`, all but the last ones so many.

        Without a gradient. Each rank receives size * most rows.
        """
        own = x.detach()
        if len(own) < most:
            own = torch.cat([own, own.new_zeros(most - len(own), *own.shape[1:])])
        return ordered_gather(own, self.group).flatten(0, 1)[:count]

    def all_columns(self, x: torch.Tensor) -> torch.Tensor:
        """Return the columns of all ranks [..., size * N] of a rank's own [..., N], without a gradient."""
        return ordered_gather(x.detach(), self.group).movedim(0, -2).flatten(-2)

    def total(self, partial: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the sum over ranks of f32 partial [tokens, ...], rounded once: the rows that this rank has.

        Ranks continue the pairwise tree of leaves.
        """
        own, tokens = partial.detach(), len(partial)
        if not self.sequence:
            return total_over_ranks(own, self.group, dtype)
        rows, padded = self.rows(tokens), self.size * self.longest(tokens)
        if tokens < padded:
            own = torch.cat([own, own.new_zeros(padded - tokens, *own.shape[1:])])
        return part_over_ranks(own, self.group, dtype)[: rows.stop - rows.start]

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows of all ranks of x; in backward a rank keeps the gradient of its own.

        For what every rank computes alike from all tokens, or whose gradient is summed over ranks already.
        """
        if not self.sequence:
            return x
        made: torch.Tensor = _Whole.apply(x, self, self.tokens)
        return made

    def own_rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows that this rank has of x, which every rank computes alike from all tokens.

        In backward each rank has the gradient of all rows.
        """
        if not self.sequence:
            return x
        made: torch.Tensor = _OwnRows.apply(x, self)
        return made


def or_all_raise(ranks: Ranks | None, ids: object, make: Callable[[], T]) -> T:
    """Return make(), which comes before the embedding of ids; if it raises, so do the other ranks there.

    Where ids are on a device, ranks compare none, and others wait for their timeout.
    """
    if ranks is None:
        return make()
    try:
        return make()
    except Exception:
        ranks.refuse(ids)
        raise


def _shown(value: object) -> str:
    """Return the text of an argument: the numbers of a short tensor, the digest of a longer one."""
    if isinstance(value, torch.Tensor) and value.numel() <= SHOWN:
        return str(value.tolist())
    return text_of(float(value) if isinstance(value, int) else value)


def mark_shares(model: torch.nn.Module, ranks: Ranks) -> None:
    """Mark the parameters that modules name in `shares`, anew: copies and FSDP2 put other tensors there."""
    sharing.difference_update(model.modules())  # which it marks too
    sharing.add(model)
    for module in model.modules():
        for name, dim in getattr(module, "shares", {}).items():
            if (p := module._parameters.get(name)) is not None:
                setattr(p, SHARE, Share(ranks.group, dim))


class _Whole(torch.autograd.Function):
    """Tokens of all ranks; the gradient of each is the same on every rank."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ranks: Ranks, tokens: int) -> torch.Tensor:
        ctx.rows = ranks.rows(tokens)
        return ranks.all_tokens(x, tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grad[ctx.rows], None, None


class _OwnRows(torch.autograd.Function):
    """A rank's own tokens; the gradient is that of all."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        ctx.ranks, ctx.tokens = ranks, len(x)
        return x[ranks.rows(len(x))].clone()  # no view: it would keep all rows in memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.ranks.all_tokens(grad, ctx.tokens), None
