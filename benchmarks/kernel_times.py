"""Device time of a decoder layer by kernel, beside that of its peer: where a layer loses to it.

`python -m benchmarks.kernel_times --model Llama-3-8B --batch 1 --length 16384` prints both lists, the longest
kernel first, in microseconds of one forward pass; `--backward` of forward and backward, `--decode` of one
token of each sequence, whose other keys lie in pages.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import DeviceType, ProfilerActivity, profile

from benchmarks import layers, peers
from benchmarks.layers import TorchLayer

WARMUPS, CALLS = 3, 5


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, how often one call launches it, and the microseconds of these launches together."""

    name: str
    launches: float
    us: float


def kernels_of(events: Iterable[Any], calls: int, device: DeviceType = DeviceType.CUDA) -> list[Kernel]:
    """Return the kernels among a profiler's events, per call, the longest first."""
    found: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.device_type == device:
            found[event.name].append(event.time_range.elapsed_us())
    made = [Kernel(name, len(us) / calls, sum(us) / calls) for name, us in found.items()]
    return sorted(made, key=lambda k: -k.us)


def measured(launch: Callable[[], object]) -> list[Kernel]:
    """Return the kernels of a call, launched several times one after the other."""
    for _ in range(WARMUPS):
        launch()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(CALLS):
            launch()
        torch.cuda.synchronize()
    return kernels_of(found.events(), CALLS)


def table(title: str, kernels: Sequence[Kernel]) -> str:
    """Return a list of kernels as text, with their sum."""
    lines = [f"{title}: {sum(k.us for k in kernels):.1f} us in {sum(k.launches for k in kernels):g} launches"]
    lines += [f"{k.us:10.1f}  {k.launches:4g}  {k.name[:110]}" for k in kernels]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the kernels of one layer, rlk's and the peer's."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=tuple(layers.models()), default="Qwen3-8B")
    parser.add_argument("--batch", type=int, default=1, help="sequences")
    parser.add_argument("--length", type=int, default=8192, help="tokens of each; of --decode: its keys")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--backward", action="store_true", help="forward and backward")
    kind.add_argument("--decode", action="store_true", help="one new token of each sequence")
    args = parser.parse_args(argv)
    config = layers.models()[args.model]
    layer = layers.layer_of(config)
    torch_layer = TorchLayer.of(config, layer, grad=args.backward)
    tokens = args.batch if args.decode else args.batch * args.length
    given = layers.states(tokens, config.hidden_size)
    if args.decode:
        at: Any = layers.pages(config, args.batch, args.length)
        attend = layers.attend_pages(at, torch_layer)
    else:
        at = layers.whole(args.batch, args.length)
        attend = layers.attend_whole(at, torch_layer)
    ours, theirs = (lambda: layer(*given, at)), (lambda: torch_layer(*given, attend))
    if args.backward:
        given = tuple(t.requires_grad_() for t in given)
        seeds = tuple(torch.randn_like(t) for t in given)
        ours = peers.with_grad(ours, (*given, *layer.parameters()), seeds)
        theirs = peers.with_grad(theirs, (*given, *torch_layer.weights), seeds)
    else:
        ours, theirs = peers.without_grad(ours), peers.without_grad(theirs)
    print(table("rlk", measured(ours)), table("torch.compile + cuBLAS + FA4", measured(theirs)), sep="\n\n")


if __name__ == "__main__":
    main()
