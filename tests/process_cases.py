"""A process that has computed with many threads, and its children: prints what each of them got."""

from __future__ import annotations

import hashlib
import multiprocessing
import sys

import torch

from rlk import ops

BIG = (1200, 1024)  # torch computes on so many numbers in several threads


def digest(device: str, bias: float = 0.0) -> str:
    """Return a hash of results and gradients of a step."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(BIG, generator=generator) + bias).to(device, torch.bfloat16).requires_grad_()
    weight = torch.randn(300, BIG[1], generator=generator).to(device, torch.bfloat16).requires_grad_()
    y = ops.rms_norm(x, weight[0])
    made = ops.linear_logp(y[:40], weight, torch.arange(40, device=device), needs=("logp", "entropy"))
    (y.float().clone().sum() + made.logp.sum() + made.entropy.sum()).backward()
    content = hashlib.sha256()
    for t in (y, made.logp, made.entropy, x.grad, weight.grad):
        content.update(t.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def send(pipe: object, device: str, biases: tuple[float, ...]) -> None:
    pipe.send([digest(device, bias) for bias in biases])  # type: ignore[attr-defined]


def child(method: str, device: str, *biases: float) -> list[str]:
    """Return what a child gets of each bias; it is killed after a minute."""
    context = multiprocessing.get_context(method)
    mine, theirs = context.Pipe()
    process = context.Process(target=send, args=(theirs, device, biases))
    process.start()
    found: list[str] = mine.recv() if mine.poll(60) else ["nothing"] * len(biases)
    process.kill()
    process.join()
    return found


if __name__ == "__main__":
    method, device = sys.argv[1:]
    # CUDA must not be used before a fork; torch's threads may be
    before = digest(device) if device == "cpu" else ""
    first, other = child(method, device, 0.0, 1e-2)
    # on a CPU a spawned child takes nothing along that a second one would show
    second = first if (method, device) == ("spawn", "cpu") else child(method, device, 0.0)[0]
    print(before or digest(device), first, second, other)
