"""Views of several ranks: processes of a CPU that share a model's weights, or its micro-batches, over gloo.

`python -m rlk.verify.ranks FOLDER RANK` is one of them: it compares what ranks give with what one rank gave.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from rlk.errors import Code, LaunchError
from rlk.nn import CausalLM
from rlk.nn.ranks import Ranks
from rlk.parallel import accumulate_in_order, parallelize
from rlk.parallel.plan import cuts_of
from rlk.verify import views
from rlk.verify.bench import Bench, Outcome
from rlk.verify.models import OP, RANKS, run_leaves, unshared
from rlk.verify.rows import Row
from rlk.verify.views import Run

LIMIT = 900.0
"""Seconds after which ranks that have not ended are ended."""

SHOWN = 20
"""Last lines of a rank's log that an error shows."""

SHARE = 5.0
"""Of a row's time one rank has a part of so many: two ranks repeat what it does in more ways."""

Found = dict[str, Tensor]
"""What differs, bool [n], by view: tokens, or gradients of parameters. "tokens": int64 [], the number run."""


def row(view: str) -> Row:
    """Return the row that compares a view of ranks with one rank: what differs on any of them counts."""

    def run(bench: Bench, deadline: float) -> Outcome:
        every = bench.once("ranks", lambda of: launched(of, deadline))
        wrong = torch.stack([found[view] for found in every]).any(0)
        model = bench.run.model
        values = sum(p.numel() for p in model.parameters())
        if view in ("weights", "rounded first"):
            values = len(wrong) * model.config.vocab_size
        complete = int(every[0]["tokens"]) == sum(map(len, bench.run.trained_sequences))
        return Outcome(len(wrong), int(wrong.sum()), values, complete=complete)

    return run


def launched(bench: Bench, deadline: float) -> list[Found]:
    """Return what every rank finds, of the sequences that training ran; of fewer with a near deadline.

    Raises LaunchError.
    """
    run = bench.run
    model = run.model
    given = {
        "config": replace(model.config, leaves=run_leaves(model.config)),
        "shared": unshared(model.config) is None,
        "dtype": model.lm_head.weight.dtype,
        "weights": model.state_dict(),
        "sequences": run.trained_sequences,
        "sizes": run.sizes,
    }
    with tempfile.TemporaryDirectory(prefix="rlk-ranks-") as name:
        folder = Path(name)
        now = time.monotonic()
        want = one_rank(given, now + (deadline - now) / SHARE)
        torch.save(given | {"want": want}, folder / "given.pt")
        _run(folder)
        return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


def _run(folder: Path) -> None:
    """Run all ranks; raise LaunchError where one fails, or does not end in time."""
    end = time.monotonic() + LIMIT
    logs = [folder / f"{rank}.log" for rank in range(RANKS)]
    started = []
    try:
        for rank, log in enumerate(logs):
            command = [sys.executable, "-m", "rlk.verify.ranks", str(folder), str(rank)]
            with log.open("w") as said:
                started.append(subprocess.Popen(command, stdout=said, stderr=said))
        while None in (ended := [each.poll() for each in started]) and not any(ended):
            if time.monotonic() > end:
                break
            time.sleep(0.05)
    finally:
        for each in started:
            each.kill()
            each.wait()
    failed = sorted((rank for rank, code in enumerate(ended) if code != 0), key=lambda rank: not ended[rank])
    if failed:  # first those that raised
        rank, code = failed[0], ended[failed[0]]
        how = f"did not end within {LIMIT:g} s" if code is None else f"ended with {code}"
        lines = logs[rank].read_text(errors="replace").splitlines()[-SHOWN:]  # the log is deleted
        shown = "\n".join(f"    {line}" for line in lines or ["it printed nothing"])
        raise LaunchError(Code.RANKS_ENDED, op=OP, rank=rank, ranks=RANKS, ended=how, said=shown)


# --- what is computed ---------------------------------------------------------------------------------------


def run_of(given: dict[str, Any]) -> Run:
    """Return a run of a model with memory of its own."""
    model = CausalLM(given["config"], device="cpu", dtype=given["dtype"])
    model.load_state_dict(given["weights"])
    return Run(model, given["sizes"], given["sequences"], random.Random(0))


def one_rank(given: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Return what one rank gives: digests of logits, gradients, gradients summed over micro-batches.

    After the deadline no further sequences are taken: ranks compare those that have a digest.
    """
    run = run_of(given)
    views.train(run, deadline)
    found = {"digests": run.want, "gradients": views.gradients_of(run)}
    return found | {"summed": summed(run, run.model)}


class Loss(torch.nn.Module):
    """The loss of a micro-batch, as a module that DistributedDataParallel calls."""

    def __init__(self, model: CausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, tokens: int) -> Tensor:
        """Return the sum of -log p of a sequence, over the tokens of all."""
        logp = self.model.logps(ids).logp
        assert logp is not None
        return -logp.sum() / tokens


def summed(run: Run, model: CausalLM, group: dist.ProcessGroup | None = None) -> dict[str, Tensor]:
    """Return the f32 gradients of a step whose micro-batches are sequences, and forget them."""
    numbers = views.micro_batch(run)
    tokens = sum(len(run.sequences[i]) for i in numbers)
    loss: torch.nn.Module = Loss(model)
    if group is not None:
        loss = DistributedDataParallel(loss, process_group=group)
    order = accumulate_in_order(loss)
    for number, _ in order.numbers(len(numbers)):
        loss(run.sequences[numbers[number]], tokens).backward()
    return {name: p.main_grad for name, p in model.named_parameters()}  # type: ignore[attr-defined]


def local_sums(run: Run, group: dist.ProcessGroup) -> dict[str, Tensor]:
    """Return the gradients of such a step as DistributedDataParallel adds them: the control.

    A rank's own micro-batches first, then ranks, in the dtype of the model. Of one micro-batch nothing is
    added, and nothing is returned.
    """
    numbers = views.micro_batch(run)
    if len(numbers) < 2 or group.size() < 2:
        return {}
    loss, tokens = Loss(run.model), sum(len(run.sequences[i]) for i in numbers)
    for i in numbers[group.rank() :: group.size()]:
        loss(run.sequences[i], tokens).backward()
    found = {}
    for name, p in run.model.named_parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(grad, group=group)
        found[name] = grad.float()
    return found


# --- one of the ranks ---------------------------------------------------------------------------------------


@contextmanager
def rounded_first() -> Iterator[None]:
    """Let ranks round their parts first and add by the backend, as Megatron-LM does: the control."""

    def total(self: Ranks, partial: Tensor, dtype: torch.dtype) -> Tensor:
        part = partial.detach().bfloat16()
        dist.all_reduce(part, group=self.group)
        return part.to(dtype)[self.rows(len(part))]

    with patch.object(Ranks, "total", total):
        yield


def compared(given: dict[str, Any], group: dist.ProcessGroup) -> Found:
    """Return what this rank finds: of micro-batches alone where ranks cannot share the weights."""
    want = given["want"]
    whole = run_of(given)
    whole.want = want["digests"]
    found: Found = {"tokens": torch.tensor(sum(map(len, whole.want)))}
    found["micro-batches"] = _by_parameter(summed(whole, whole.model, group), want["summed"])
    plain = run_of(given)
    plain.want = want["digests"]
    sums = local_sums(plain, group)
    found["local sums first"] = _by_parameter(sums, want["summed"] if sums else {})
    if not given["shared"]:
        return found

    def shared(sp: bool) -> Run:
        run = run_of(given)
        run.want = want["digests"]
        parallelize(run.model, group, sp=sp)
        return run

    found["weights"] = torch.cat(list(views.again(shared(False))))
    run = shared(True)
    cuts = cuts_of(whole.model, Ranks(group, group.size(), group.rank()))
    parts = {name: x[cuts.get(name, ())] for name, x in want["gradients"].items()}
    found["gradients of weights"] = _by_parameter(views.gradients_of(run), parts)
    with rounded_first():
        found["rounded first"] = torch.cat(list(views.again(shared(False))))
        found["gradients rounded first"] = _by_parameter(views.gradients_of(shared(True)), parts)
    return found


def _by_parameter(got: dict[str, Tensor], want: dict[str, Tensor]) -> Tensor:
    """Return which parameters' gradients have other bits; those of shares have a part of the rows each."""
    assert got.keys() == want.keys()
    integers = {2: torch.int16, 4: torch.int32}

    def bits(x: Tensor) -> Tensor:
        return x.contiguous().view(integers[x.element_size()])

    wrong = [not torch.equal(bits(x), bits(want[name])) for name, x in got.items()]
    return torch.tensor(wrong, dtype=torch.bool)


def main(folder: Path, rank: int) -> None:
    """Compare as one rank, and write what differs."""
    torch.set_num_threads(1)
    given = torch.load(folder / "given.pt", weights_only=False)  # of the process that started this one
    store = f"file://{folder / 'store'}"
    limit = timedelta(seconds=LIMIT)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS, timeout=limit)
    torch.save(compared(given, dist.group.WORLD), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
