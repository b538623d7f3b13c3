"""`rlk.drift.Monitor` on a device: no update but the first waits for it, and numbers are those of the CPU."""

from __future__ import annotations

import pytest
import torch

from rlk.drift import Monitor


def test_an_update_does_not_wait_for_the_device() -> None:
    torch.manual_seed(0)
    trained = -torch.rand(4, 64)
    given = (trained, trained + 0.1 * torch.rand(4, 64), torch.ones(4, 64), torch.randint(96, (4, 64)))
    on_device = tuple(x.cuda() for x in given)
    monitor, host = Monitor(alarm=0.01), Monitor(alarm=0.01)
    monitor.update(*on_device)  # copies the edges of the histogram
    monitor.read()
    torch.cuda.set_sync_debug_mode("error")
    try:
        monitor.update(*on_device)
        with pytest.raises(RuntimeError, match="synchroniz"):
            on_device[0].sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    host.update(*given)
    found, want = monitor.read(), host.read()
    assert found == pytest.approx(want, rel=1e-5) and monitor.last_histogram == host.last_histogram
