"""One model, the same tokens, run in the ways that rollout and training run them: do log-probs agree?

As a trainer does: sequences alone, in a batch padded on the right, in one padded on the left. As a rollout
does: token by token over a cache of keys and values. Once by transformers, once by `rlk.nn`, with the same
weights in bf16.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlk import ops
from rlk.demo.measure import same_bits
from rlk.demo.report import RLK, TORCH, BitsRow, ViewRow
from rlk.demo.text import Sample
from rlk.nn import CausalLM, ModelConfig
from rlk.verify import peers, views

ALONE = "one by one"
RIGHT = "one batch, padded on the right"
LEFT = "one batch, padded on the left"
CACHED = "token by token over a cache"
EXTRA = 7  # tokens of padding more than a batch needs, on the left
PAGE = 16


@dataclass(frozen=True, slots=True)
class View:
    """The log-probs f32 [N] of one way to run the tokens, by transformers ("stock") and by rlk."""

    name: str
    stock: Tensor
    rlk: Tensor


def both(stock: Any, samples: Sequence[Sample], device: str) -> tuple[View, ...]:
    """Run samples in every way, by a model of transformers and by rlk with its weights."""
    own = CausalLM(ModelConfig.of(stock.config), device=device, dtype=stock.dtype)
    own.load_state_dict(stock.state_dict())
    tokens = [torch.tensor((*s.prompt, *s.completion), device=device) for s in samples]
    with torch.no_grad():
        theirs, ours = _stock(stock, tokens), _rlk(own, tokens)
    return tuple(View(name, theirs[name], ours[name]) for name in theirs)


def rows(found: Sequence[View]) -> tuple[ViewRow, ...]:
    """Compare every view with the first."""
    first, made = found[0], []
    for view in found[1:]:
        counts: list[Any] = []
        for got, want in ((view.stock, first.stock), (view.rlk, first.rlk)):
            counts += [same_bits(view.name, first.name, got, want).differing, float((got - want).abs().max())]
        made.append(ViewRow(view.name, first.rlk.numel(), *counts))
    return tuple(made)


def bits(found: Sequence[ViewRow]) -> Iterator[BitsRow]:
    """Return the comparisons of rlk's log-probs, none of which may differ."""
    for row in found:
        yield BitsRow(
            "log-probs of the model", f"{row.view} against {ALONE}", row.compared, row.rlk_differing
        )


# --- by transformers and by rlk -----------------------------------------------------------------------------


def _stock(model: Any, tokens: list[Tensor]) -> dict[str, Tensor]:
    ways: dict[str, peers.PeerView] = {
        ALONE: peers.one_by_one,
        RIGHT: partial(peers.padded, side="right"),
        LEFT: partial(peers.padded, side="left", extra=EXTRA),
        CACHED: partial(peers.chunked, chunk=1),
    }
    return {name: _peer_logps(view, model, tokens) for name, view in ways.items()}


def _peer_logps(view: peers.PeerView, model: Any, tokens: list[Tensor]) -> Tensor:
    held = _Held(tokens)
    for _ in view(
        peers.Peer(model, tokens, lambda spans, logits, rows: held.take(spans, logits, _stock_logp))
    ):
        pass
    return held.logps()


def _rlk(model: CausalLM, tokens: list[Tensor]) -> dict[str, Tensor]:
    ways: dict[str, views.View] = {
        ALONE: views.one_by_one,
        RIGHT: partial(views.padded, sides=("right",)),
        LEFT: partial(views.padded, sides=("left",), extra=EXTRA),
        CACHED: views.token_by_token,
    }
    longest, count = max(map(len, tokens)), sum(map(len, tokens))
    sizes = views.Sizes(count, call=count, longest=longest, batches=(len(tokens),), page=PAGE)
    found = {}
    for name, view in ways.items():
        run = _Scores(model, sizes, tokens, random.Random(0), held=_Held(tokens))
        for _ in view(run):
            pass
        found[name] = run.held.logps()
    return found


class _Held:
    """Log-probs of the tokens of sequences after their first, as calls give them."""

    def __init__(self, tokens: Sequence[Tensor]) -> None:
        self.tokens = tokens
        self.found = [torch.full((len(ids) - 1,), torch.nan, device=ids.device) for ids in tokens]

    def take(self, spans: Sequence[views.Span], logits: Tensor, logp: Any) -> Tensor:
        """Keep the log-probs that logits [n, V] give to the tokens behind those of the spans."""
        at = 0
        for i, first, count in spans:
            after = self.tokens[i][first + 1 : first + 1 + count]
            if len(after):
                self.found[i][first : first + len(after)] = logp(logits[at : at + len(after)], after)
            at += count
        return logits.new_zeros(at, dtype=torch.bool)

    def logps(self) -> Tensor:
        """Return those of all sequences, one behind the other."""
        return torch.cat(self.found)


def _stock_logp(logits: Tensor, ids: Tensor) -> Tensor:
    """Return log-probs in f32, as trainers compute them."""
    return torch.log_softmax(logits.float(), -1).gather(-1, ids[:, None])[:, 0]


def _rlk_logp(logits: Tensor, ids: Tensor) -> Tensor:
    found = ops.logp(logits, ids).logp
    assert found is not None
    return found


@dataclass(eq=False)
class _Scores(views.Run):
    """A run that keeps log-probs, and compares nothing."""

    held: _Held = field(kw_only=True)

    @property
    def trained(self) -> list[int]:
        return list(range(len(self.sequences)))

    def see(self, spans: Sequence[views.Span], hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.held.take(spans, self.model.logits(hidden if rows is None else hidden[rows]), _rlk_logp)


# --- the picture ----------------------------------------------------------------------------------------


def picture(found: Sequence[View], path: Path) -> None:
    """Draw how far the log-probs of each view are from those of sequences alone, stock beside rlk."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    first, others = found[0], found[1:]
    figure, panels = pyplot.subplots(
        len(others), 2, figsize=(12, 2.1 * len(others)), sharex=True, sharey=True, layout="constrained"
    )
    floor, top = 1e-5, 1.0
    for line, (view, row) in enumerate(zip(others, rows(found), strict=True)):
        sides = (
            ("transformers, bf16", view.stock - first.stock, row.stock_differing, TORCH),
            ("rlk.nn, bf16", view.rlk - first.rlk, row.rlk_differing, RLK),
        )
        for panel, (name, gaps, count, colour) in zip(panels[line], sides, strict=True):
            shown = gaps.abs().cpu()
            moved = shown > 0
            at = torch.arange(len(shown))
            panel.scatter(at[moved], shown[moved].clamp(min=floor), s=7, color=colour)
            panel.scatter(at[~moved], torch.full((int((~moved).sum()),), floor / 2), s=3, color="#b8b8b8")
            panel.set_yscale("log")
            panel.set_ylim(floor / 4, top)
            panel.text(
                0.99, 0.94, f"{count:,} of {row.compared:,} differ", ha="right", va="top",
                transform=panel.transAxes, fontsize=9, weight="bold", color=colour if count else "#444444",
            )  # fmt: skip
            panel.spines[["top", "right"]].set_visible(False)
            if line == 0:
                panel.set_title(name, fontsize=11)
        panels[line][0].set_ylabel(f"{row.view}\n|difference|", fontsize=8)
    for panel in panels[-1]:
        panel.set_xlabel("token (grey dots at the bottom: the same bits)", fontsize=9)
    figure.suptitle(f"Log-probs of the same tokens under the same weights, against sequences run {ALONE}")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
