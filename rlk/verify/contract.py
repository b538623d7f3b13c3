"""The contract of a model as data: operator by operator and view by view, what is promised of the results.

A promise is bitwise where rlk gives one, a bar on the error against float64 elsewhere. Controls are promises
of the other kind: a changed model must be found to differ. What stock transformers does is only measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

import torch

from rlk.nn import CausalLM
from rlk.verify import peers, ranks, views
from rlk.verify.bench import Bench, Outcome
from rlk.verify.controls import (
    SHORT,
    Product,
    split_k,
    split_k_rounded,
    terms_of_control,
    with_leaves,
    with_product,
    with_routers,
)
from rlk.verify.models import run_leaves
from rlk.verify.peers import PeerView
from rlk.verify.rows import (
    accuracy,
    compared,
    patched,
    patched_gradients,
    stock,
    stock_gradients,
)

BAR = 1.05  # of rlk's error against float64, times that of transformers in the same dtype
GROUPS = {
    "training": "packed, one by one, padded, checkpointed, compiled; gradients; log-probs without logits",
    "prefill": "whole, in chunks of several sizes, over pages of several sizes, after a shared prefix",
    "decode": "token by token, several batches and pages, empty slots, preemption, CUDA graphs",
    "rollout": "log-probs of drawn tokens in a changing batch, against those of training",
    "patch": "a transformers model under rlk.patch, against rlk.nn",
    "ranks": "two processes of a CPU that share weights, or micro-batches, against one",
    "accuracy": "errors against float64, beside those of transformers",
}
"""Parts of the contract that can be asked for one by one."""
CONTROL, STOCK = "control", "stock"
COMPILED = "torch.compile"
ROUTERS = "routers by torch"
"""The controls of a model of experts in which tokens change them."""
CHAIN = "on this device torch's product adds in the order of one leaf where it does not split K"
"""Why a product by torch may have rlk's bits."""


class Kind(Enum):
    """The kinds of promises."""

    BITWISE = "bitwise"
    ACCURACY = "accuracy"
    CONTROL = "must differ"
    MEASURED = "not promised"


@dataclass(frozen=True, slots=True)
class Promise:
    """A row of the contract.

    operator: whose results are compared, of which dtype; "logits" stands for the chain of all operators, each
    of which is counted too (`CHAINS` says what is behind their names). against: what they are compared with.
    unit: what is counted. share: of the time. needs: "cpu", "gpu", "transformers", "patch", "float64",
    "shares" (ranks can share the model). unseen: names of modules that the view computes without calling
    them, whose results are not compared. may_agree: of a control, why the model's bits do not fail the run.
    """

    group: str
    view: str
    operator: str
    dtype: str
    kind: Kind
    against: str
    run: Callable[[Bench, float], Outcome]
    unit: str = "tokens"
    share: float = 1.0
    needs: tuple[str, ...] = ()
    bar: float | None = None
    unseen: frozenset[str] = frozenset()
    may_agree: str | None = None

    @property
    def key(self) -> str:
        """Return the name of the row."""
        return f"{self.group}: {self.view}"


TRAINING = "training, packed"
LOGITS, LOGP, GRADIENTS = "logits", "linear_logp", "gradients"


def contract(bench: Bench) -> tuple[Promise, ...]:
    """Return the rows of a model's contract at the sizes of a run; those of stock transformers apart."""
    return (*_training(bench), *_prefill(bench), *_decode(bench), *_rollout(bench), *_patch(bench),
            *_ranks(bench), *_accuracy(bench), *_controls(bench))  # fmt: skip


def _bitwise(group: str, view: str, run: Any, **more: Any) -> Promise:
    given = {"operator": LOGITS, "dtype": "f32", "against": TRAINING, **more}
    return Promise(group, view, kind=Kind.BITWISE, run=run, **given)


def _training(bench: Bench) -> Iterator[Promise]:
    row = partial(_bitwise, "training")
    yield row("the same call again", compared(views.again))
    yield row("packed, other batches and order", compared(views.other_batches))
    yield row("one by one", compared(views.one_by_one))
    for side in ("right", "left"):
        padded = partial(views.padded, sides=(side,), extra=7 * (side == "left"))
        yield row(f"padded on the {side}", compared(padded))
    unseen = frozenset(summed_norms(bench.run.model))
    yield row("gradient checkpointing", compared(views.checkpointed), unseen=unseen)
    compiled = compared(views.compiled, traced=False)
    yield row(COMPILED, compiled, needs=("gpu",))
    logp = {"operator": LOGP, "against": "logp of the logits"}
    yield row("log-probs without logits", compared(views.without_logits), **logp)
    rows = {"operator": GRADIENTS, "dtype": bench.dtype, "unit": "rows of gradients"}
    for name, view, against in (
        ("gradients, again", views.gradients_again, "the same micro-batch"),
        ("gradients, checkpointing", views.gradients, "without checkpointing"),
        ("gradients, padded", views.gradients_padded, "packed"),
    ):
        yield row(name, compared(view), against=against, **rows)


def summed_norms(model: CausalLM) -> Iterator[str]:
    """Yield the norms that checkpointing computes without calling them: of what a layer before returned.

    Their input is summed before, and `rlk.nn.normed.norm_of_total` takes their weight.
    """
    for i, layer in enumerate(model.model.layers):
        if i and layer.sums_alike:
            yield f"layers.{i}.input_layernorm"


def _prefill(bench: Bench) -> Iterator[Promise]:
    row = partial(_bitwise, "prefill")
    page = bench.sizes.page
    yield row(f"whole, pages of {page}", compared(partial(views.prefilled, chunks=(bench.sizes.longest,))))
    for chunk, slots in bench.chunked:
        view = partial(views.prefilled, chunks=(chunk,), page=slots)
        yield row(f"chunks of {chunk}, pages of {slots}", compared(view))
    yield row(f"chunks of any size, pages of {page}", compared(views.prefilled), share=1.5)
    yield row(f"after a shared prefix, pages of {page}", compared(views.hit))


def _decode(bench: Bench) -> Iterator[Promise]:
    row, few, page = partial(_bitwise, "decode"), bench.few, bench.sizes.page
    yield row(f"token by token from the first, pages of {page}", compared(views.token_by_token), share=1.5)
    for batch in bench.sizes.batches:
        view = partial(views.decoded, batch=batch)
        yield row(f"batch {batch}, pages of {page}", compared(view, few), share=1.5)
    middle = sorted(bench.sizes.batches)[len(bench.sizes.batches) // 2]
    for slots in bench.pages:
        view = partial(views.decoded, batch=middle, page=slots)
        yield row(f"batch {middle}, pages of {slots}", compared(view, few))
    most = max(bench.sizes.batches)
    empty = -(-most // 4)
    view = partial(views.decoded, batch=most, empty=empty)
    if empty < most:
        yield row(f"{empty} of {most} slots empty", compared(view, few))
    yield row(f"batch {middle}, preempted", compared(partial(views.decoded, batch=middle, preempt=True), few))
    for batch in bench.sizes.batches:
        view = partial(views.decoded, batch=batch, graph=True, empty=batch // 4)
        run = compared(view, few, traced=False)
        yield row(f"CUDA graph, batch {batch}", run, needs=("gpu",))


def _rollout(bench: Bench) -> Iterator[Promise]:
    more = {"operator": LOGP, "against": "logps of the finished sequences", "unit": "drawn tokens"}
    yield _bitwise("rollout", "generate, few pages", compared(views.generated), **more)


def _patch(bench: Bench) -> Iterator[Promise]:
    row = partial(_bitwise, "patch", against="rlk.nn in training, packed", needs=("transformers", "patch"))
    for name, view, most in peer_views(bench):
        yield row(name, patched(view, most))
    rows = {"operator": GRADIENTS, "dtype": bench.dtype, "unit": "rows of gradients"}
    yield row("gradients", patched_gradients, **rows | {"against": "rlk.nn, packed"})


def _ranks(bench: Bench) -> Iterator[Promise]:
    leaves = run_leaves(bench.run.model.config)
    row = partial(_bitwise, "ranks", needs=("cpu", "shares"), against=f"one rank, {leaves} leaves")
    rows = {"operator": GRADIENTS, "unit": "parameters' gradients"}
    weights, both, batches = "two share weights", "two share weights and tokens", "two share micro-batches"
    of_batches = rows | {"needs": ("cpu",)}
    yield row(weights, ranks.row("weights"), share=4.0)
    yield row(both, ranks.row("gradients of weights"), dtype=bench.dtype, **rows)
    yield row(batches, ranks.row("micro-batches"), **of_batches)
    controls = (
        row(f"{weights}, parts rounded first", ranks.row("rounded first")),
        row(f"{both}, parts rounded first", ranks.row("gradients rounded first"), dtype=bench.dtype, **rows),
        row(f"{batches}, local sums first", ranks.row("local sums first"), **of_batches),
    )
    yield from (replace(each, kind=Kind.CONTROL) for each in controls)


def peer_views(bench: Bench) -> Iterator[tuple[str, PeerView, int | None]]:
    """Yield the views that a model of transformers has: name, view, and the most tokens, None for all."""
    yield "packed", peers.packed, None
    yield "one by one", peers.one_by_one, None
    yield "padded on the right", partial(peers.padded, side="right"), None
    yield "padded on the left", partial(peers.padded, side="left", extra=7), None
    yield "gradient checkpointing", peers.checkpointed, None
    chunk, most = bench.chunked[0][0], bench.most_cached
    yield f"chunks of {chunk} over a cache", partial(peers.chunked, chunk=chunk), most
    yield "token by token over a cache", partial(peers.chunked, chunk=1), most
    yield "a batch's last tokens over a cache", partial(peers.decoded, steps=bench.sizes.steps), most


def _accuracy(bench: Bench) -> Iterator[Promise]:
    for what, name in (("root_mean_square", "root mean square"), ("largest", "largest of each token, mean")):
        yield Promise(
            "accuracy", f"logits, {name}", LOGITS, "f32", Kind.ACCURACY, "float64, beside transformers",
            partial(accuracy, what=what), needs=("transformers", "float64"), bar=BAR,
        )  # fmt: skip


def _split_k(terms: int) -> tuple[str, Product]:
    """Return a product in two halves of K that other bits show, and its name."""
    if terms < SHORT:
        return "split-K, halves rounded", split_k_rounded  # which any model shows
    return "split-K", split_k


def _controls(bench: Bench) -> Iterator[Promise]:
    linear = torch.nn.functional.linear
    leaves = bench.other_leaves
    chain = CHAIN if bench.device.type == "cuda" else None
    terms = terms_of_control(bench.run.model)
    why = None
    if terms < SHORT:
        why = f"sums of {terms} terms in another order may have the same 16 bits"
    split, halves = _split_k(terms)
    changed: list[tuple[str, Any, str | None]] = [
        ("one product by torch", partial(with_product, product=linear), why or chain),
        (f"one product by torch, {split}", partial(with_product, product=halves), None),
        (f"other chunks of products: {leaves} leaves", partial(with_leaves, leaves=leaves), why),
    ]
    config = bench.run.model.config
    if config.experts is not None:
        if config.hidden_size >= SHORT:
            changed.append((ROUTERS, partial(with_routers, product=linear), chain))
        split, halves = _split_k(config.hidden_size)
        changed.append((f"{ROUTERS}, {split}", partial(with_routers, product=halves), None))
    for name, view, may_agree in changed:
        run = compared(view, bench.few, until_difference=True)
        yield Promise(
            CONTROL, name, LOGITS, "f32", Kind.CONTROL, TRAINING, run, share=0.5, may_agree=may_agree
        )  # fmt: skip


def stock_contract(bench: Bench) -> tuple[Promise, ...]:
    """Return rows that measure the same views of stock transformers, which promises nothing of them."""
    needs = ("transformers",)
    made = [
        Promise(STOCK, name, LOGITS, bench.dtype, Kind.MEASURED, "one by one", stock(view, most), needs=needs)
        for name, view, most in peer_views(bench)
        if name != "one by one"
    ]
    rows = (GRADIENTS, bench.dtype, Kind.MEASURED, "packed", stock_gradients)
    return (*made, Promise(STOCK, "gradients, padded", *rows, "rows of gradients", needs=needs))
