"""The operators of the gallery: laws on the oracle, lowerings, autograd, compilers, and random rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rlk
from rlk.cli import main

NAMES = (
    "layer_norm",
    "smoothed_loss",
    "zloss_head",
    "router",
    "adamw",
    "linear_attention",
    "int8_rows",
    "w8a16",
    "fp8_rows",
    "fp8_linear",
)
LAWS = ("text", "float64", "slope", "tiles", "rows", "source", "lowers", "page")
REFUSED = {
    "w8a16": (2, "both factors are computed in the same kernel"),
}
"""The operators that a backend does not lower: in how many programs, and what it says."""


def test_the_entry_point_registers_them() -> None:
    assert repr(rlk.ops.gallery) == f"<rlk.ops.gallery: {', '.join(sorted(NAMES))}>"


@pytest.mark.parametrize("name", NAMES)
def test_the_laws_hold(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [word for law in LAWS for word in ("--law", law)]
    assert main(["check", f"gallery.{name}", *chosen]) == 0
    found = capsys.readouterr().out
    assert "all ok" in found
    refused = [line for line in found.splitlines() if line.startswith(name) and " no: " in line]
    count, said = REFUSED.get(name, (0, ""))
    assert [said in line for line in refused] == [True] * count


def test_an_operator_with_a_wrong_gradient_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control: the gradient of gates that do not add up to 1."""
    right = (Path(__file__).parents[1] / "gallery_ops" / "router.py").read_text()
    wrong = right.replace("(d_gates - level)", "d_gates").replace(
        'namespace="gallery"', 'namespace="control"'
    )
    (tmp_path / "router.py").write_text(wrong)
    assert main(["check", f"{tmp_path / 'router.py'}:router", "--law", "slope"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_compilers_see_them() -> None:
    logits = torch.randn(5, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)
    torch.library.opcheck(torch.ops.gallery.router.default, (logits, 2))
    compiled = torch.compile(lambda x: rlk.ops.gallery.router(x, k=2), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(logits), rlk.ops.gallery.router(logits, k=2))


def test_rounding_at_random_has_no_bias() -> None:
    """The mean of many rounded weights is the f32 weight; that of weights rounded to nearest is not."""
    n, lr = 1 << 16, 0.3 * 2.0**-7
    weight = torch.ones(n // 256, 256, dtype=torch.bfloat16)
    grad, zero = -torch.ones_like(weight), torch.zeros(n // 256, 256)
    row = torch.arange(n // 256, dtype=torch.int32)
    made = rlk.ops.gallery.adamw(
        weight, grad, zero, zero, row, lr=lr, beta1=0.0, beta2=0.0, eps=0.0, decay=0.0,
        scale1=1.0, scale2=1.0, seed=7, step=3,
    ).weight_out  # fmt: skip
    spread = 2.0**-7 * (0.3 * 0.7 / n) ** 0.5
    assert abs(float(made.double().mean()) - (1.0 + lr)) < 5.0 * spread
    assert float(torch.tensor(1.0 + lr).bfloat16()) == 1.0
