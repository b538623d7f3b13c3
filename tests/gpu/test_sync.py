"""On a device a digest of weights is the host's, whatever their strides, dtypes and sizes."""

from __future__ import annotations

import pytest
import torch

from rlk.sync import compare, digest

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.int8)
SHAPES = ((), (0, 4), (7,), (300, 700), (4096, 1024), (3, 50_001))  # less than a block, whole blocks, both


def weights() -> dict[str, torch.Tensor]:
    """Return tensors of the host of all dtypes and shapes, and views that are not contiguous or aligned."""
    drawn = torch.Generator().manual_seed(0)
    found = {
        f"{str(dtype)[6:]} {list(shape)}": (torch.randn(shape, generator=drawn) * 30).to(dtype)
        for dtype in DTYPES
        for shape in SHAPES
    }
    wide = torch.randn(500, 901, generator=drawn).bfloat16()
    return found | {"columns": wide[:, 3:703], "transposed": wide.T, "odd": wide.view(-1)[1:]}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_digest_of_a_device_is_that_of_the_host(dtype: torch.dtype | None) -> None:
    host = weights()
    wide = host["columns"]._base
    assert wide is not None
    copied = wide.cuda()
    views = {"columns": copied[:, 3:703], "transposed": copied.T, "odd": copied.view(-1)[1:]}
    device = {name: x.cuda() for name, x in host.items()} | views
    want = digest(host, dtype=dtype)
    assert compare(want, digest(device, dtype=dtype)) == ()
    copied.view(torch.int16)[200, 100] ^= 1 << 14  # a bit of all three views
    changed = {each.name for each in compare(want, digest(device, dtype=dtype))}
    assert changed == set(views)


def test_one_digest_has_weights_of_both() -> None:
    host = weights()
    mixed = {name: x.cuda() if i % 2 else x for i, (name, x) in enumerate(host.items())}
    assert digest(mixed) == digest(host)
