"""Calls with no launch run the host's code, and autograd records what a call requires."""

from __future__ import annotations

import pytest
import torch

import rlk
from benchmarks import host_time
from rlk.testing.bits import differing


def test_calls_are_bound_as_on_a_device_and_nothing_stays_behind() -> None:
    pytest.importorskip("triton")
    launched: list[int] = []

    class Counting(host_time.NoDriver):
        def launch(self, configuration: int, function: int, parameters: int, extra: None) -> int:
            launched.append(parameters)
            return 0

    with pytest.MonkeyPatch.context() as patch, host_time.unlaunched():
        patch.setattr(host_time, "NoDriver", Counting)
        for name, (call, inputs) in host_time.calls().items():
            for form, each in host_time.forms(call, inputs):
                launched.clear()
                assert host_time.microseconds(each, number=2, repeats=1) > 0.0
                assert len(launched) >= 52, (name, form)
        for replayed in (False, True):
            launched.clear()
            with host_time.decoding(replayed) as step:
                for _ in range(4):
                    step()
            assert len(launched) == 4 * 9, replayed
    x = torch.randn(3, 32)
    got = rlk.ops.rms_norm(x, torch.ones(32))
    assert differing(got, rlk.ops.rms_norm(x.clone(), torch.ones(32))) == 0 and len(launched) > 0
    wide = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + 1e-6)
    assert float((got.double() - wide).abs().max()) < 1e-5


def test_calls_of_one_shape_record_what_each_of_them_requires() -> None:
    def gradients(*wanted: str) -> dict[str, torch.Tensor | None]:
        draw = torch.Generator().manual_seed(1)
        made = {n: torch.randn(*s, generator=draw) for n, s in (("x", (5, 48)), ("weight", (48,)))}
        for name in wanted:
            made[name].requires_grad_(True)
        seed = torch.randn(5, 48, generator=draw)
        y = rlk.ops.rms_norm(made["x"], made["weight"])
        assert y.requires_grad == bool(wanted)
        if wanted:
            y.backward(seed)
        return {name: t.grad for name, t in made.items()}

    both = gradients("x", "weight")
    for _ in range(2):  # bound, then found
        assert gradients() == {"x": None, "weight": None}
        for name, other in (("x", "weight"), ("weight", "x")):
            alone = gradients(name)
            assert alone[other] is None
            assert differing(alone[name], both[name]) == 0
