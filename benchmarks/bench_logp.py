"""Benchmark of log-probs from logits, forward and with their gradient, at common vocabulary sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import rlk
from benchmarks import peers
from benchmarks.harness import Bar, Case, Checked, main, of_backend
from benchmarks.identity import compare, describe, oracle
from benchmarks.peers import Launch
from rlk.testing.bits import differing

ROWS = 8192
VOCABULARIES = (128256, 151936, 50257)
SAMPLED = (0, 17, -1)


@dataclass(frozen=True, slots=True)
class Inputs:
    """logits[N, V], ids[N] and the gradient of the log-probs; `room` has one row more, as some peers want."""

    room: Tensor
    ids: Tensor
    seed: Tensor

    @property
    def logits(self) -> Tensor:
        return self.room[:-1]


def inputs(rows: int, vocabulary: int) -> Inputs:
    """Draw logits as a trained model's: about N(0, 3^2)."""
    room = torch.empty(rows + 1, vocabulary, dtype=torch.bfloat16, device="cuda").normal_(0.0, 3.0)
    ids = torch.randint(vocabulary, (rows,), device="cuda")
    return Inputs(room, ids, torch.randn(rows, device="cuda"))


def forward(x: Inputs, needs: tuple[str, ...], **options: Any) -> Case:
    """Logp and lse, or with the entropy; one read of the logits."""
    rows, vocabulary = x.logits.shape
    entropy = "entropy" in needs
    plain = peers.plain_logp_entropy if entropy else peers.plain_logp
    call = lambda: rlk.ops.logp(x.logits, x.ids, needs=needs, **options)  # noqa: E731
    lse_only = peers.without_grad(lambda: rlk.ops.logp(x.logits, x.ids, needs=("logp", "lse")))
    against: dict[str, Callable[[], Launch]] = {
        "torch_eager": lambda: peers.without_grad(lambda: plain(x.logits, x.ids)),
        "torch_compile": lambda: peers.without_grad(peers.compiled(plain, x.logits, x.ids)),
    }
    if entropy:
        against["rlk_without_entropy"] = lambda: lse_only
    else:
        against["liger"] = lambda: peers.liger_logp(x.room, x.ids)
        against["quack"] = lambda: peers.quack_logp(x.logits, x.ids)
    big = rows == ROWS and vocabulary == 128256
    bar = of_backend(triton=Bar(0.58), cute=Bar(0.54)) if big and not entropy and not options else None
    return Case(
        op="logp",
        passes="fwd",
        shape={"N": rows, "V": vocabulary},
        rlk=lambda: peers.without_grad(call),
        peers=against,
        moved=x.logits.nbytes + rows * (8 + 4 * len(needs)),
        bar=bar,
        reference="rlk_without_entropy" if entropy else "liger",
        check=lambda: check(x, needs, options),
        describe=lambda: describe(rlk.ops.logp.explain(x.logits, x.ids, needs=needs, **options)),
        notes={"needs": list(needs), **options},
    )


def forward_backward(x: Inputs, bar: Bar | None) -> Case:
    """Log-probs and the gradient of the logits; two reads and one write of the logits."""
    logits = x.logits.detach().requires_grad_(True)
    rows, vocabulary = logits.shape

    def selected(logp: Callable[[Tensor, Tensor], Any]) -> Launch:
        return peers.with_grad(lambda: logp(logits, x.ids)[0], (logits,), x.seed)

    return Case(
        op="logp",
        passes="fwd+bwd",
        shape={"N": rows, "V": vocabulary},
        rlk=lambda: selected(rlk.ops.logp),
        peers={
            "torch_eager": lambda: selected(peers.plain_logp),
            "torch_compile": lambda: selected(peers.static(peers.plain_logp)),
            "liger": peers.absent("its cross-entropy writes the gradient over the logits: no second launch"),
            "quack": lambda: peers.quack_logp_grad(logits, x.ids, x.seed),
        },
        moved=3 * logits.nbytes,
        bar=bar,
        reference="quack",
        check=lambda: check_gradient(x),
        describe=lambda: describe(rlk.ops.logp.explain(logits, x.ids)),
    )


def check(x: Inputs, needs: tuple[str, ...], options: Mapping[str, Any]) -> Checked:
    """Compare sampled rows with float64 and with the oracle."""
    rows = torch.tensor(SAMPLED, device="cuda") % len(x.ids)
    out = rlk.ops.logp(x.logits, x.ids, needs=needs, **options)
    z = x.logits[rows].double() / float(options.get("temperature", 1.0))
    lse = torch.logsumexp(z, -1)
    wide = {
        "logp": z.gather(-1, x.ids[rows, None])[:, 0] - lse,
        "lse": lse,
        "entropy": lse - (torch.softmax(z, -1) * z).sum(-1),
    }
    error = max(float((getattr(out, name)[rows].double() - wide[name]).abs().max()) for name in needs)
    got = [getattr(out, name)[rows] for name in needs]
    return Checked(error, compare(rlk.ops.logp, got, x.logits[rows], x.ids[rows], needs=needs, **options))


def check_gradient(x: Inputs) -> Checked:
    """Compare the gradient of sampled rows with float64 and with the oracle."""
    rows = torch.tensor(SAMPLED, device="cuda") % len(x.ids)
    logits = x.logits.detach().requires_grad_(True)
    (grad,) = torch.autograd.grad(rlk.ops.logp(logits, x.ids).logp, logits, x.seed)
    z = x.logits[rows].double().requires_grad_(True)
    wide = torch.log_softmax(z, -1).gather(-1, x.ids[rows, None])[:, 0]
    (wide,) = torch.autograd.grad(wide, z, x.seed[rows].double())
    few = x.logits[rows].cpu().requires_grad_(True)
    (want,) = torch.autograd.grad(
        oracle(rlk.ops.logp, logits.device, few, x.ids[rows]).logp, few, x.seed[rows].cpu()
    )
    return Checked(float((grad[rows].double() - wide).abs().max()), differing(grad[rows].cpu(), want))


def cases() -> Iterator[Case]:
    """Yield the rows of the family; inputs of one vocabulary live at a time."""
    for vocabulary in VOCABULARIES:
        x = inputs(ROWS, vocabulary)
        yield forward(x, ("logp", "lse"))
        yield forward(x, ("logp", "lse", "entropy"))
        if vocabulary == 128256:
            yield forward(x, ("logp", "lse"), temperature=0.7)
        both = of_backend(triton=Bar(1.75), cute=Bar(1.62))
        yield forward_backward(x, both if vocabulary == 128256 else None)
        del x
        torch.cuda.empty_cache()
    for rows in (1, 7, 300):
        yield forward(inputs(rows, 128256), ("logp", "lse"))


if __name__ == "__main__":
    main("logp", cases)
