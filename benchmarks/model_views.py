"""Comparison of a model's views, bit for bit: training, scoring, padding, prefill, decoding; and controls.

`python -m benchmarks.model_views --shape qwen3-8b --layers 4 --tokens 200000 --seconds 500 --out FILE` gives
a model random weights, takes a digest of each token's f32 logits over the whole vocabulary in a packed pass
with gradients, and counts the tokens whose digest is another one in each view. Rows of controls must differ.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rlk
from benchmarks.harness import PACKAGES
from benchmarks.rows import text_of
from rlk.nn import CausalLM, ModelConfig, PagedCache
from rlk.testing.digests import row_digests
from rlk.tune.record import versions

SIGMA = 4.0  # spread of logits
ROWS = 1024  # of logits at a time


def _shape(kind: str, hidden: int, inner: int, heads: int, keys: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": kind, "hidden_size": hidden, "intermediate_size": inner, "hidden_act": "silu",
        "num_attention_heads": heads, "num_key_value_heads": keys, "head_dim": 128, "rms_norm_eps": 1e-6,
        "vocab_size": 151936, "rope_theta": 1e6, "num_hidden_layers": 36, "tie_word_embeddings": False,
        **more,
    }  # fmt: skip


SHAPES = {
    "qwen3-8b": _shape("qwen3", 4096, 12288, 32, 8),
    "qwen3-0.6b": _shape("qwen3", 1024, 3072, 16, 8, num_hidden_layers=28, tie_word_embeddings=True),
    "llama-3-8b": _shape(
        "llama",
        4096,
        14336,
        32,
        8,
        num_hidden_layers=32,
        vocab_size=128256,
        rope_theta=5e5,
        rms_norm_eps=1e-5,
    ),
    "tiny": _shape("qwen3", 64, 2048, 4, 2, num_hidden_layers=2, head_dim=16, vocab_size=96),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens in all, the most of a call and of a sequence; steps of a decode; batches; slots of a page."""

    tokens: int
    call: int = 8192
    longest: int = 2048
    steps: int = 64
    batches: tuple[int, ...] = (1, 16, 64)
    page: int = 64


@dataclass(slots=True, eq=False)
class Run:
    """A model, its sequences, and the digests that each token of the first of them had in training."""

    model: CausalLM
    sizes: Sizes
    sequences: list[Tensor]
    random: random.Random
    cache: PagedCache | None = None
    want: list[Tensor] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        """Return the device of the model."""
        return self.model.lm_head.weight.device

    @property
    def trained(self) -> list[int]:
        """Return the sequences whose digests are known."""
        return list(range(len(self.want)))

    def integers(self, numbers: Sequence[int]) -> Tensor:
        """Return int32 numbers on the device."""
        return torch.tensor(numbers, dtype=torch.int32, device=self.device)

    def offsets(self, lengths: Sequence[int]) -> Tensor:
        """Return where sequences of these lengths begin."""
        return self.integers([0, *torch.tensor(lengths).cumsum(0).tolist()])

    def digests(self, hidden: Tensor, model: CausalLM | None = None) -> Tensor:
        """Return the digest of the logits of each hidden state, a few rows of logits at a time."""
        head = (model or self.model).logits
        with torch.no_grad():
            made = [row_digests(head(part)) for part in hidden.detach().split(ROWS)]
        return torch.cat(made) if made else torch.zeros(0, dtype=torch.int64, device=self.device)

    def differs(self, index: int, first: int, digests: Tensor) -> Tensor:
        """Return which tokens of a sequence, from its first-th on, have other digests than in training."""
        return self.want[index][first : first + len(digests)] != digests

    def groups(self, order: Sequence[int], tokens: int) -> Iterator[list[int]]:
        """Yield sequences in turn, of at most so many tokens, or one of more."""
        group: list[int] = []
        for i in order:
            if group and sum(len(self.sequences[j]) for j in (*group, i)) > tokens:
                yield group
                group = []
            group.append(i)
        if group:
            yield group


View = Callable[[Run], Iterator[Tensor]]
"""A generator of bool [n], which of n tokens have other bits than in training."""


# --- whole sequences ----------------------------------------------------------------------------------------


def packed(run: Run, group: Sequence[int], model: CausalLM | None = None) -> tuple[Tensor, list[int]]:
    """Return the digests of packed sequences, and their lengths."""
    lengths = [len(run.sequences[i]) for i in group]
    layout = rlk.Layout.packed(run.offsets(lengths), tokens=sum(lengths))
    hidden = (model or run.model)(torch.cat([run.sequences[i] for i in group]), layout)
    return run.digests(hidden, model), lengths


def train(run: Run, deadline: float) -> None:
    """Take the digests of all sequences by packed passes with gradients, until the deadline."""
    for group in run.groups(range(len(run.sequences)), run.sizes.call):
        digests, lengths = packed(run, group)
        run.want += digests.split(lengths)
        if time.monotonic() > deadline:
            return


def compared(run: Run, group: Sequence[int], digests: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return which tokens of whole sequences differ."""
    parts = digests.split(list(lengths))
    return torch.cat([run.differs(i, 0, part) for i, part in zip(group, parts, strict=True)])


def other_batches(run: Run) -> Iterator[Tensor]:
    """Packed in another order, into calls of other sizes."""
    order = run.trained
    run.random.shuffle(order)
    with torch.no_grad():
        for group in run.groups(order, run.sizes.call // 3):
            yield compared(run, group, *packed(run, group))


def one_by_one(run: Run) -> Iterator[Tensor]:
    """Score each sequence alone."""
    with torch.no_grad():
        for i in run.trained:
            yield run.differs(i, 0, run.digests(run.model(run.sequences[i])))


def padded(run: Run) -> Iterator[Tensor]:
    """Rows of one length, with padding on either side in turn."""
    with torch.no_grad():
        for group, side in zip(run.groups(run.trained, run.sizes.call), cycle(("right", "left"))):
            lengths = [len(run.sequences[i]) for i in group]
            longest = max(lengths)
            ids = torch.zeros(len(group), longest, dtype=torch.int64, device=run.device)
            rows = [slice(0, n) if side == "right" else slice(longest - n, longest) for n in lengths]
            for row, at, i in zip(ids, rows, group, strict=True):
                row[at] = run.sequences[i]
            hidden = run.model(ids, rlk.Layout.padded(run.integers(lengths), longest, side=side))
            exist = torch.cat([x[at] for x, at in zip(hidden, rows, strict=True)])
            yield compared(run, group, run.digests(exist), lengths)


def checkpointed(run: Run) -> Iterator[Tensor]:
    """With gradients and gradient checkpointing."""
    with checkpointing(run.model):
        for group in run.groups(run.trained, run.sizes.call):
            yield compared(run, group, *packed(run, group))


def gradients(run: Run) -> Iterator[Tensor]:
    """Rows of gradients, with checkpointing and without; counted by rows of parameters, not by tokens."""
    group = next(run.groups(run.trained, min(2048, run.sizes.call)))
    made = []
    for how in (nullcontext(), checkpointing(run.model)):
        with how:
            lengths = [len(run.sequences[i]) for i in group]
            layout = rlk.Layout.packed(run.offsets(lengths), tokens=sum(lengths))
            logp = run.model.logps(torch.cat([run.sequences[i] for i in group]), layout).logp
            assert logp is not None
            logp.mean().backward()
        grads = [p.grad for p in run.model.parameters()]
        made.append(torch.cat([row_digests(g.reshape(-1, g.shape[-1])) for g in grads if g is not None]))
        run.model.zero_grad(set_to_none=True)
    yield made[0] != made[1]


def without_logits(run: Run) -> Iterator[Tensor]:
    """Log-probs by `linear_logp`, against `logp` of the logits."""
    with torch.no_grad():
        for group in run.groups(run.trained, run.sizes.call):
            lengths = [len(run.sequences[i]) for i in group]
            ids = torch.cat([run.sequences[i] for i in group])
            layout = rlk.Layout.packed(run.offsets(lengths), tokens=len(ids))
            got, hidden = run.model.logps(ids, layout).logp, run.model(ids, layout)
            assert got is not None
            after = ids.roll(-1)
            want = [
                rlk.ops.logp(run.model.logits(h), t).logp
                for h, t in zip(hidden.split(ROWS), after.split(ROWS), strict=True)
            ]
            there = torch.ones(len(ids), dtype=torch.bool, device=run.device)
            there[run.offsets(lengths)[:-1].long()] = False  # nothing predicts a first token
            moved = torch.cat(want).roll(1)  # type: ignore[arg-type]
            yield (got.view(torch.int32) != moved.view(torch.int32))[there]


@contextmanager
def checkpointing(model: CausalLM) -> Iterator[None]:
    """Run layers again in backward meanwhile."""
    model.gradient_checkpointing_enable()
    try:
        yield
    finally:
        model.model.gradient_checkpointing = False


# --- pages --------------------------------------------------------------------------------------------------


def tables(run: Run, rows: int) -> tuple[PagedCache, Tensor]:
    """Return the cache, NaN in all its pages, and pages for as many sequences in any order."""
    columns = -(-run.sizes.longest // run.sizes.page)
    if run.cache is None:
        run.cache = run.model.cache(columns * max(16, *run.sizes.batches), run.sizes.page)
    for x in (run.cache.keys, run.cache.values):
        x.fill_(torch.nan)
    order = list(range(run.cache.pages))
    run.random.shuffle(order)
    return run.cache, run.integers(order[: rows * columns]).view(rows, columns)


def advance(
    run: Run, group: Sequence[int], cache: PagedCache, table: Tensor, begins: list[int], ends: list[int]
) -> list[Tensor]:
    """Prefill tokens [begin, end) of each sequence in one call; return their hidden states."""
    counts = [b - a for a, b in zip(begins, ends, strict=True)]
    ids = torch.cat([run.sequences[i][a:b] for i, a, b in zip(group, begins, ends, strict=True)])
    hidden = run.model.prefill(ids, cache, table, run.integers(ends), run.offsets(counts))
    return list(hidden.split(counts))


def fill(run: Run, group: Sequence[int], cache: PagedCache, table: Tensor, ends: list[int]) -> None:
    """Prefill the first tokens of each sequence, in calls of bounded size."""
    each = max(1, run.sizes.call // len(group))
    for first in range(0, max(ends), each):
        begins, until = ([min(at, n) for n in ends] for at in (first, first + each))
        advance(run, group, cache, table, begins, until)


def prefilled(run: Run) -> Iterator[Tensor]:
    """Prefill by chunks of any size, beside others."""
    for group in _batches(run.trained, 16):
        cache, table = tables(run, len(group))
        lengths = [len(run.sequences[i]) for i in group]
        begins = [0] * len(group)
        while begins != lengths:
            chunks = [run.random.choice((1, 17, 64, 100, 500, 1000)) for _ in group]
            ends = [min(a + n, top) for a, n, top in zip(begins, chunks, lengths, strict=True)]
            made = advance(run, group, cache, table, begins, ends)
            digests = run.digests(torch.cat(made)).split([len(x) for x in made])
            yield torch.cat([run.differs(i, a, d) for i, a, d in zip(group, begins, digests, strict=True)])
            begins = ends


def hit(run: Run) -> Iterator[Tensor]:
    """Prefill of what follows a prefix, whose pages another sequence filled."""
    page = run.sizes.page
    for group in _batches([i for i in run.trained if len(run.sequences[i]) > page], 8):
        cache, table = tables(run, 2 * len(group))
        lengths = [len(run.sequences[i]) for i in group]
        first, second = table.split(len(group))
        fill(run, group, cache, first, lengths)
        shared = [run.random.randrange(1, (n - 1) // page + 1) for n in lengths]
        for row, other, n in zip(second, first, shared, strict=True):
            row[:n] = other[:n]
        begins = [n * page for n in shared]
        made = advance(run, group, cache, second, begins, lengths)
        digests = run.digests(torch.cat(made)).split([len(x) for x in made])
        yield torch.cat([run.differs(i, a, d) for i, a, d in zip(group, begins, digests, strict=True)])


def _batches(order: Sequence[int], size: int) -> Iterator[list[int]]:
    for at in range(0, len(order), size):
        yield list(order[at : at + size])


@dataclass(frozen=True, slots=True)
class Decoding:
    """Static buffers of a step, whose unused slots have a context of 0."""

    cache: PagedCache
    ids: Tensor
    table: Tensor
    lens: Tensor

    def hidden(self, model: CausalLM) -> Tensor:
        """Run a step."""
        return model.decode(self.ids, self.cache, self.table, self.lens)


def decoded(
    run: Run, batch: int, *, graph: bool = False, empty: int = 0, preempt: bool = False
) -> Iterator[Tensor]:
    """Decode the sequences' own tokens from any place on, in a batch of which some slots may be empty.

    preempt: half-way through the pages are taken away, and all is read again.
    """
    steps = run.sizes.steps
    long = [i for i in run.trained if len(run.sequences[i]) >= steps]
    cache, table = tables(run, batch)
    zeros = partial(torch.zeros, batch, device=run.device)
    at = Decoding(cache, zeros(dtype=torch.int64), table.clone(), zeros(dtype=torch.int32))
    step = captured(run, at) if graph else lambda: at.hidden(run.model)
    while True:
        run.random.shuffle(long)
        for group in _batches(list(islice(cycle(long), -(-len(long) // batch) * batch)), batch):
            group = group[: batch - empty]
            slots = sorted(run.random.sample(range(batch), len(group)))
            begins = [run.random.randrange(len(run.sequences[i]) - steps + 1) for i in group]
            _, table = tables(run, batch)
            at.table.copy_(table)
            fill(run, group, cache, table[slots], begins)
            pairs = list(zip(group, begins, strict=True))
            newest = torch.stack([run.sequences[i][a : a + steps] for i, a in pairs])
            made = []
            for s in range(steps):
                if preempt and s == steps // 2:
                    at.table.copy_(tables(run, batch)[1])
                    fill(run, group, cache, at.table[slots], [a + s for a in begins])
                at.ids.zero_(), at.lens.zero_()
                at.ids[slots], at.lens[slots] = newest[:, s], run.integers([a + s + 1 for a in begins])
                made.append(run.digests(step()[slots]))
            digests = torch.stack(made, 1)
            yield torch.cat([run.differs(i, a, d) for (i, a), d in zip(pairs, digests, strict=True)])


def captured(run: Run, at: Decoding) -> Callable[[], Tensor]:
    """Capture a step in a CUDA graph, with empty slots; return its replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        at.hidden(run.model)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hidden = at.hidden(run.model)

    def replay() -> Tensor:
        graph.replay()
        return hidden

    return replay


# --- controls -----------------------------------------------------------------------------------------------


class Swapped(torch.nn.Module):
    """A linear layer by another function of x and its weight."""

    def __init__(self, like: Any, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.bias, self.leaves, self.product = like.weight, like.bias, like.leaves, product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight)


def split_k(x: Tensor, w: Tensor) -> Tensor:
    """Return x w^T by torch, in two halves of K that are added in f32."""
    half = x.shape[1] // 2
    parts = [torch.mm(x[:, s].float(), w[:, s].float().t()) for s in (slice(0, half), slice(half, None))]
    return (parts[0] + parts[1]).to(x.dtype)


def with_product(run: Run, product: Callable[[Tensor, Tensor], Tensor]) -> Iterator[Tensor]:
    """The down projection of a layer half-way by another product."""
    layers = run.model.model.layers
    mlp = layers[(len(layers) - 1) // 2].mlp
    own = mlp.down_proj
    mlp.down_proj = Swapped(own, product)
    try:
        yield from control(run, run.model)
    finally:
        mlp.down_proj = own


def with_leaves(run: Run, leaves: int) -> Iterator[Tensor]:
    """The same weights in a model of another number of leaves."""
    config, dtype = replace(run.model.config, leaves=leaves), run.model.lm_head.weight.dtype
    other = CausalLM(config, device="meta", dtype=dtype)  # without memory of its own
    other.load_state_dict(run.model.state_dict(), assign=True)
    yield from control(run, other)


def control(run: Run, model: CausalLM) -> Iterator[Tensor]:
    """Packed as in training, by another model."""
    with torch.no_grad():
        for group in run.groups(run.trained, run.sizes.call):
            yield compared(run, group, *packed(run, group, model))


# --- the run ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A row: its name, its view, a share of the time, the most tokens (None: one pass over all)."""

    case: str
    view: View
    share: float = 1.0
    most: int | None = None
    control: bool = False
    counts: str = "tokens"


def cases(run: Run, few: int) -> Iterator[Asked]:
    """Yield what is compared. few: tokens of decodes and controls, each."""
    yield Asked("packed, other batches", other_batches)
    yield Asked("one by one", one_by_one)
    yield Asked("padded", padded)
    yield Asked("gradient checkpointing", checkpointed)
    yield Asked("gradients, checkpointing", gradients, 0.5, counts="rows of gradients")
    yield Asked("log-probs without logits", without_logits)
    yield Asked("prefill, chunked", prefilled, 1.5)
    yield Asked("prefill, prefix hit", hit)
    graphs = (False, True) if run.device.type == "cuda" else (False,)
    for graph in graphs:
        for batch in run.sizes.batches:
            view = partial(decoded, batch=batch, graph=graph)
            yield Asked(f"decode{', graph' * graph}, batch {batch}", view, 1.5, few)
    batch = sorted(run.sizes.batches)[len(run.sizes.batches) // 2]
    view = partial(decoded, batch=batch, graph=graphs[-1], empty=-(-batch // 4))
    yield Asked(f"decode{', graph' * graphs[-1]}, {-(-batch // 4)} of {batch} slots empty", view, 1.0, few)
    yield Asked(f"decode, batch {batch}, preempted", partial(decoded, batch=batch, preempt=True), 1.0, few)
    linear = torch.nn.functional.linear
    for name, changed in (
        ("one product by torch", partial(with_product, product=linear)),
        ("one product by torch, split-K", partial(with_product, product=split_k)),
        ("leaves 8", partial(with_leaves, leaves=8)),
    ):
        yield Asked(f"control: {name}", changed, 0.5, few, control=True)


def measured(run: Run, asked: Asked, deadline: float) -> dict[str, Any]:
    """Return the row of a case: what was compared until the deadline, at least once."""
    began, tokens, unequal = time.monotonic(), 0, 0
    for wrong in asked.view(run):
        tokens, unequal = tokens + len(wrong), unequal + int(wrong.sum())
        if time.monotonic() > deadline or (asked.most is not None and tokens >= asked.most):
            break
    c = run.model.config
    return {
        "op": "causal_lm",
        "pass": "fwd+bwd" if asked.view is gradients else "fwd",
        "shape": {"model": c.model_type, "hidden": c.hidden_size, "layers": c.num_hidden_layers},
        "case": asked.case,
        asked.counts.replace(" ", "_"): tokens,
        "unequal": unequal,
        "control": asked.control,
        "holds": (unequal > 0) if asked.control else (unequal == 0),
        "seconds": round(time.monotonic() - began, 1),
    }


def random_model(shape: str, layers: int | None, longest: int, device: str) -> CausalLM:
    """Return a model with random weights, whose logits spread by about SIGMA."""
    given = SHAPES[shape] | {"max_position_embeddings": longest}
    if layers is not None:
        given["num_hidden_layers"] = layers
    model = CausalLM(ModelConfig.of(given), device=device)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.normal_(1.0, 0.1)
            else:
                is_head = "lm_head" in name or (model.lm_head.weight is p)
                p.normal_(0.0, (SIGMA if is_head else 1.0) / p.shape[1] ** 0.5)
    return model


def random_sequences(sizes: Sizes, vocabulary: int, device: str) -> list[Tensor]:
    """Return sequences of random ids, of at least steps tokens each."""
    how, found = random.Random(1), 0
    made = []
    while found < sizes.tokens:
        made.append(torch.randint(vocabulary, (how.randint(sizes.steps, sizes.longest),)).to(device))
        found += len(made[-1])
    return made


def compare(
    shape: str, layers: int | None, sizes: Sizes, seconds: float, few: int, told: Callable[[Any], None]
) -> dict[str, Any]:
    """Compare all views within a time; tell the record after each row."""
    end = time.monotonic() + seconds
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = random_model(shape, layers, sizes.longest, device)
    run = Run(model, sizes, random_sequences(sizes, model.config.vocab_size, device), random.Random(2))
    todo = list(cases(run, few))
    left = sum(x.share for x in todo)
    train(run, time.monotonic() + (end - time.monotonic()) * 2.0 / (2.0 + left))
    with torch.no_grad():
        sigma = float(model.logits(model(run.sequences[0])[-ROWS:]).std())
    record: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "versions": versions(PACKAGES),
        "command": " ".join(["python -m benchmarks.model_views", *sys.argv[1:]]),
        "numerics_id": model.numerics_id(device),
        "trained_tokens": sum(map(len, run.want)),
        "logits_sigma": round(sigma, 2),
        "rows": [],
    }
    for asked in todo:
        now = time.monotonic()
        row = measured(run, asked, now + (end - now) * asked.share / left)
        row["shape"]["model"] = shape
        left -= asked.share
        record["rows"].append(row)
        told(record)
    return record


def main(args: Sequence[str] | None = None) -> int:
    """Run from the command line; exit with 1 if a view differs, or a control does not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-8b")
    parser.add_argument("--layers", type=int, help="default: those of the model")
    parser.add_argument("--tokens", type=int, default=200_000, help="of training; views repeat them")
    parser.add_argument("--few", type=int, default=20_000, help="tokens of each decode and control")
    parser.add_argument("--seconds", type=float, default=500.0, help="all of it takes about as long")
    parser.add_argument("--longest", type=int, default=2048, help="tokens of the longest sequence")
    parser.add_argument("--call", type=int, default=8192, help="tokens of a call in training")
    parser.add_argument("--steps", type=int, default=64, help="tokens of a decode")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64], help="sequences of a decode")
    parser.add_argument("--page", type=int, default=64, help="slots of a page")
    parser.add_argument("--out", type=Path, required=True, help="file of the record")
    given = parser.parse_args(args)
    if given.longest < given.steps:
        parser.error(f"--longest {given.longest} is below --steps {given.steps}")
    sizes = Sizes(given.tokens, given.call, given.longest, given.steps, tuple(given.batches), given.page)

    def told(record: dict[str, Any]) -> None:
        row = record["rows"][-1]
        counts = {k: v for k, v in row.items() if k not in ("op", "shape", "case")}
        print(f"{row['case']}: {counts}", flush=True)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text_of(record), encoding="utf-8")

    record = compare(given.shape, given.layers, sizes, given.seconds, given.few, told)
    compared_tokens = sum(row.get("tokens", 0) for row in record["rows"] if not row["control"])
    wrong = [row["case"] for row in record["rows"] if not row["holds"]]
    print(f"{compared_tokens} tokens compared, logits spread by {record['logits_sigma']}; wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
