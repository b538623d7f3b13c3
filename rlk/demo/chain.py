"""One model, the same tokens, run in the ways that rollout and training run them: do log-probs agree?

As a trainer does: sequences alone, in a batch padded on the right, in one padded on the left. As a rollout
does: token by token over a cache of keys and values. Once by transformers, once by `rlk.nn`, with the same
weights in bf16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rlk
from rlk import ops
from rlk.demo.measure import same_bits
from rlk.demo.report import RLK, TORCH, BitsRow, ViewRow
from rlk.demo.text import Sample
from rlk.nn import CausalLM, ModelConfig

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


def views(stock: Any, samples: Sequence[Sample], device: str) -> tuple[View, ...]:
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


# --- by transformers ------------------------------------------------------------------------------------


def _stock(model: Any, tokens: Sequence[Tensor]) -> dict[str, Tensor]:
    return {
        ALONE: torch.cat([_chosen(model(ids[None]).logits[0], ids) for ids in tokens]),
        RIGHT: _stock_padded(model, tokens, "right"),
        LEFT: _stock_padded(model, tokens, "left"),
        CACHED: torch.cat([_stock_cached(model, ids) for ids in tokens]),
    }


def _stock_padded(model: Any, tokens: Sequence[Tensor], side: str) -> Tensor:
    ids, mask = _padded(tokens, side)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask, position_ids=positions).logits
    return torch.cat([_chosen(logits[i][mask[i].bool()], each) for i, each in enumerate(tokens)])


def _stock_cached(model: Any, ids: Tensor) -> Tensor:
    cache, logits = None, []
    for token in ids:
        out = model(token[None, None], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        logits.append(out.logits[0, -1])
    return _chosen(torch.stack(logits), ids)


def _chosen(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probs of ids[1:], in f32, as trainers compute them."""
    scores = torch.log_softmax(logits[:-1].float(), -1)
    return scores.gather(-1, ids[1:, None])[:, 0]


# --- by rlk ---------------------------------------------------------------------------------------------


def _rlk(model: CausalLM, tokens: Sequence[Tensor]) -> dict[str, Tensor]:
    return {
        ALONE: torch.cat([model.logps(ids).logp[1:] for ids in tokens]),
        RIGHT: _rlk_padded(model, tokens, "right"),
        LEFT: _rlk_padded(model, tokens, "left"),
        CACHED: _rlk_cached(model, tokens),
    }


def _rlk_padded(model: CausalLM, tokens: Sequence[Tensor], side: Any) -> Tensor:
    ids, mask = _padded(tokens, side)
    layout = rlk.Layout.padded(mask.sum(1), ids.shape[1], side=side)
    logp = model.logps(ids, layout).logp
    return torch.cat([logp[i][mask[i].bool()][1:] for i in range(len(tokens))])


def _rlk_cached(model: CausalLM, tokens: Sequence[Tensor]) -> Tensor:
    """Decode all sequences at once, each in pages of its own, as long as it lasts."""
    width = -(-max(map(len, tokens)) // PAGE)
    cache = model.cache(len(tokens) * width, PAGE)
    device = tokens[0].device
    table = torch.arange(len(tokens) * width, dtype=torch.int32, device=device).view(-1, width)
    found: list[list[Tensor]] = [[] for _ in tokens]
    for at in range(max(map(len, tokens)) - 1):
        live = [i for i, ids in enumerate(tokens) if at + 1 < len(ids)]
        now, after = (torch.stack([tokens[i][at + step] for i in live]) for step in (0, 1))
        lengths = torch.full((len(live),), at + 1, dtype=torch.int32, device=device)
        hidden = model.decode(now, cache, table[live], lengths)
        logp = ops.logp(model.logits(hidden), after).logp
        for i, value in zip(live, logp, strict=True):
            found[i].append(value)
    return torch.stack([value for values in found for value in values])


def _padded(tokens: Sequence[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Return ids and mask [B, L] of sequences, padded on one side."""
    width = max(map(len, tokens)) + (EXTRA if side == "left" else 0)
    ids, mask = (tokens[0].new_zeros(len(tokens), width) for _ in range(2))
    for i, each in enumerate(tokens):
        inside = slice(0, len(each)) if side == "right" else slice(width - len(each), width)
        ids[i, inside], mask[i, inside] = each, 1
    return ids, mask


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
