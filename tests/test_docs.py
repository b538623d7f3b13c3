"""What the documents show runs as they show it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rlk.integrations import transformers as adapter

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```py(?:thon)?\n(.*?)```", re.DOTALL)


def blocks(file: str) -> list[str]:
    """Return the Python blocks of a document."""
    return BLOCK.findall((ROOT / file).read_text())


def test_the_operator_of_the_guide_runs_and_has_its_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, use, _ = blocks("docs/writing-a-spec.md")
    (tmp_path / "zloss.py").write_text(spec)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("zloss", None)
    scope: dict[str, object] = {}
    torch.manual_seed(0)
    exec(compile(use, "use.py", "exec"), scope)
    logits, made = scope["logits"], scope["made"]
    exact = logits.detach().double().requires_grad_()  # type: ignore[attr-defined]
    wanted = 1e-4 * torch.logsumexp(exact, -1) ** 2
    wanted.sum().backward()
    torch.testing.assert_close(made["loss"].double(), wanted, rtol=1e-6, atol=0)  # type: ignore[index]
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=1e-5, atol=1e-10)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("block", "name"), [(0, "zloss"), (2, "head_lse")])
def test_the_operators_of_the_guide_pass_every_check(tmp_path: Path, block: int, name: str) -> None:
    from rlk.cli import main

    (tmp_path / "spec.py").write_text(blocks("docs/writing-a-spec.md")[block])
    assert main(["check", f"{tmp_path / 'spec.py'}:{name}"]) == 0


def test_the_losses_of_the_guide_run_as_they_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, spec, use = blocks("docs/losses.md")
    torch.manual_seed(0)
    shown: dict[str, object] = {}
    exec(compile(record, "record.py", "exec"), shown)
    assert shown["made"].metrics["log_ratio_histogram"].sum() == shown["made"].metrics["active"]  # type: ignore[attr-defined]
    (tmp_path / "soft.py").write_text(spec)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("soft", None)
    scope: dict[str, object] = {}
    exec(compile(use, "use.py", "exec"), scope)
    logp = scope["logp"].detach().double().requires_grad_()  # type: ignore[attr-defined]
    a = torch.tensor([1.0, -0.5]).double()
    means = torch.stack([(logp + 1.1)[:20].mean(), (logp + 1.1)[20:].mean()])
    wanted = (-a * torch.tanh(2 * means) / 2).mean()
    wanted.backward()
    torch.testing.assert_close(scope["made"].loss.double(), wanted, rtol=2e-6, atol=0)  # type: ignore[attr-defined]
    torch.testing.assert_close(scope["logp"].grad.double(), logp.grad, rtol=2e-6, atol=0)  # type: ignore[attr-defined]


def test_the_loss_of_the_guide_takes_ten_lines() -> None:
    _, spec, _ = blocks("docs/losses.md")
    body = [line for line in spec.splitlines() if line and not line.startswith("#")]
    assert len(body) <= 10


def test_the_page_about_advantages_runs() -> None:
    (block,) = blocks("docs/advantages.md")
    scope: dict[str, object] = {}
    exec(compile(block, "advantages.py", "exec"), scope)
    values, layout = scope["values"], scope["layout"]
    assert values.grad[layout.active].any() and not values.grad[~layout.active].any()  # type: ignore[attr-defined]


def test_the_page_about_attention_runs() -> None:
    paged, in_transformers = blocks("docs/attention.md")
    scope: dict[str, Any] = {}
    exec(compile(paged, "paged.py", "exec"), scope)
    by_heads = scope["kv_cache"].transpose(2, 3).contiguous().transpose(2, 3)  # HND in memory
    rest = (scope["block_table"], scope["seq_lens"], scope["query_start_loc"])
    got = scope["ops"].paged_attention(scope["q"], *by_heads, *rest)
    assert torch.equal(got.o, scope["rollout"].o) and got.o.any()
    if pytest.importorskip("transformers").__version__ in adapter.VERSIONS:
        exec(compile(in_transformers, "transformers.py", "exec"), scope)
        assert scope["logits"].shape == (1, 8, 50)


def test_the_matrix_of_the_guide_is_one(tmp_path: Path) -> None:
    from rlk.aot.matrix import read_matrix

    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/aot.md").read_text(), re.DOTALL)
    (tmp_path / "matrix.toml").write_text(text)
    made = read_matrix(str(tmp_path / "matrix.toml"))
    assert [model.vocab for model in made.models] == [151936, 65536]
    assert made.calls[0].backward and made.calls[0].rows == (8191, 8192)
