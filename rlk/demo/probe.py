"""Values of a step that are computed again by another executor, to compare their bits.

On a GPU the other executor is the oracle, on the CPU. On a CPU, where rlk runs the oracle, it is generated
Triton source under the bit-faithful interpreter, in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import rlk
from rlk import ops
from rlk.demo.batch import Case
from rlk.demo.measure import same_bits
from rlk.demo.report import BitsRow
from rlk.demo.step import Step, loss_with


class Inputs(NamedTuple):
    """Inputs of a recomputation: sampled rows of logits [R, V] with their gradient, and all tokens [T]."""

    logits: Tensor
    ids: Tensor
    d_rows: Tensor
    logp: Tensor
    old: Tensor
    ref: Tensor
    mask: Tensor
    cu_seqlens: Tensor
    advantages: Tensor


class Values(NamedTuple):
    """The results of a recomputation, per sampled row or per token, and the loss."""

    logp: Tensor
    entropy: Tensor
    lse: Tensor
    d_logits: Tensor
    ratio: Tensor
    kl: Tensor
    loss: Tensor
    d_logp: Tensor


def choose(case: Case, whole: Step, count: int, seed: int) -> tuple[Inputs, Values]:
    """Sample active rows of a finished step: inputs of a second computation, and its expected results."""
    pack = case.batch.pack
    mask = pack(case.batch.mask)
    active = mask.nonzero()[:, 0]
    order = torch.randperm(len(active), generator=torch.Generator().manual_seed(seed))[:count]
    at = active[order.sort().values.to(active.device)]
    d_logp, logp = pack(whole.d_logp), pack(whole.logp)
    positions = case.batch.real.nonzero()[at].unbind(1)
    inputs = Inputs(
        case.logits[positions],
        case.batch.targets[positions],
        d_logp[at],
        logp,
        pack(case.old),
        pack(case.ref),
        mask,
        case.batch.cu_seqlens,
        case.batch.advantages,
    )
    rows = (logp[at], pack(whole.entropy)[at], pack(whole.lse)[at], whole.d_logits[positions])
    values = Values(*rows, pack(whole.ratio), pack(whole.kl), whole.loss, d_logp)
    return Inputs(*(t.cpu() for t in inputs)), Values(*(t.cpu() for t in values))


def compute(inputs: Inputs, math: str) -> Values:
    """Compute the values from CPU tensors through rlk.ops; `math` names the exp2 model of the folds."""
    leaf = inputs.logits.clone().requires_grad_()
    probs = ops.logp(leaf, inputs.ids, needs=("logp", "entropy", "lse"), math=math)
    (d_logits,) = torch.autograd.grad(probs.logp, leaf, inputs.d_rows)
    apart = ops.ratio_kl(inputs.logp, inputs.old, inputs.ref, mask=inputs.mask)
    layout = rlk.Layout.packed(inputs.cu_seqlens, mask=inputs.mask)
    logp = inputs.logp.clone().requires_grad_()
    loss = loss_with(logp, inputs.old, inputs.ref, inputs.advantages, layout)
    (d_logp,) = torch.autograd.grad(loss, logp)
    found = (probs.logp, probs.entropy, probs.lse, d_logits, apart.ratio, apart.kl, loss, d_logp)
    return Values(*(value.detach() for value in found))


def compare(got: Values, want: Values, against: str) -> Iterator[BitsRow]:
    """Compare all values of two computations."""
    for name in Values._fields:
        yield same_bits(name, against, getattr(got, name), getattr(want, name))


def interpreted(inputs: Inputs, math: str) -> Values | None:
    """Compute the values with generated Triton source under the interpreter; None without triton."""
    if find_spec("triton") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder) / "inputs.pt", Path(folder) / "values.pt"
        torch.save(tuple(inputs), given)
        # the environment is read once per process, and this process runs the oracle
        command = ["env", "RLK_INTERPRET=1", sys.executable, "-m", "rlk.demo.probe", math]
        subprocess.run([*command, str(given), str(found)], check=True)
        return Values(*torch.load(found, weights_only=True))


if __name__ == "__main__":
    model, source, sink = sys.argv[1:]
    torch.save(tuple(compute(Inputs(*torch.load(source, weights_only=True)), math=model)), sink)
