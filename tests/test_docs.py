"""Examples of the documents run as they are shown."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import rlk
from rlk.errors import Code
from rlk.integrations import continuous_batching
from rlk.integrations import transformers as adapter

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```py(?:thon)?\n(.*?)```", re.DOTALL)


def blocks(file: str) -> list[str]:
    """Return the Python blocks of a document."""
    return BLOCK.findall((ROOT / file).read_text())


def test_the_operator_of_the_guide_runs_and_has_its_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, use, *_ = blocks("docs/writing-a-spec.md")
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
    torch.testing.assert_close(made.loss.double(), wanted, rtol=1e-6, atol=0)  # type: ignore[attr-defined]
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=1e-5, atol=1e-10)  # type: ignore[attr-defined]


def test_the_gradient_with_an_extra_input_is_called_as_the_guide_prints_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, spec, use, *_ = blocks("docs/writing-a-spec.md")
    (tmp_path / "head.py").write_text(spec)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("head", None)
    scope: dict[str, object] = {}
    torch.manual_seed(0)
    exec(compile(use, "use.py", "exec"), scope)
    given = [scope[name] for name in ("hidden", "weight")]
    hidden, weight = (x.detach().double().requires_grad_() for x in given)  # type: ignore[attr-defined]
    torch.logsumexp(hidden @ weight.T, -1).sum().backward()
    for x, exact in zip(given, (hidden, weight), strict=True):
        torch.testing.assert_close(x.grad.double(), exact.grad, rtol=2e-2, atol=2e-2)  # type: ignore[attr-defined]


def test_the_mean_of_sequences_of_the_guide_is_called_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, use = blocks("docs/writing-a-spec.md")[4:6]
    (tmp_path / "mean.py").write_text(spec)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("mean", None)
    scope: dict[str, object] = {}
    exec(compile(use, "use.py", "exec"), scope)
    x, made = scope["x"], scope["mean"]
    exact = x.detach().double().requires_grad_()  # type: ignore[attr-defined]
    want = torch.stack([exact[:3].mean(), 0 * exact[0], exact[3:].mean()])
    want.sum().backward()
    torch.testing.assert_close(made.double(), want)  # type: ignore[attr-defined]
    torch.testing.assert_close(x.grad.double(), exact.grad)  # type: ignore[attr-defined]


def test_the_derived_gradient_of_the_guide_is_that_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rlk.cli import main

    *_, spec, use = blocks("docs/writing-a-spec.md")
    (tmp_path / "layer.py").write_text(spec)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "layer", raising=False)
    torch.manual_seed(0)
    exec(compile(use, "use.py", "exec"), {})
    del sys.modules["layer"]
    command = re.search(r"`rlk (show layer.py.*?)`", (ROOT / "docs/writing-a-spec.md").read_text())
    assert command is not None and main(command[1].split()) == 0
    printed = capsys.readouterr().out
    assert "for t in L.stream(T):" in printed and printed.count("tree=Tree.vector8") == 2


@pytest.mark.parametrize(("block", "name"), [(0, "zloss"), (2, "head_lse"), (4, "sequence_mean")])
def test_the_operators_of_the_guide_pass_every_check(tmp_path: Path, block: int, name: str) -> None:
    from rlk.cli import main

    (tmp_path / "spec.py").write_text(blocks("docs/writing-a-spec.md")[block])
    targets = [] if name == "zloss" else ["--target", "sm_90a"]  # one of them on every target of the command
    assert main(["check", f"{tmp_path / 'spec.py'}:{name}", *targets]) == 0


def test_the_commands_of_the_guide_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rlk.cli import main

    monkeypatch.chdir(tmp_path)
    Path("zloss.py").write_text(blocks("docs/writing-a-spec.md")[0])
    text = (ROOT / "docs/writing-a-spec.md").read_text()
    checked, shown = re.findall(r"^\$ rlk (.*?) *(?:#.*)?$", text, re.MULTILINE)
    assert checked == "check zloss.py:zloss"  # which the test above runs
    assert main(shown.split()) == 0 and "program zloss" in capsys.readouterr().out


def test_the_messages_of_troubleshooting_are_real(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlk.backends import cute
    from rlk.errors import RlkError
    from rlk.runtime.call import oracle
    from rlk.runtime.kernels.build import kernel_key

    def without_a_compiler() -> None:
        monkeypatch.setattr(cute, "toolchain", lambda: None)
        monkeypatch.setattr(cute, "installing", lambda extra: f"pip install -e '/path/to/rlk[{extra}]'")
        kernel_key("cute", "", None, "sm_90a")

    def with_a_check() -> None:
        checking = replace(oracle.Env.current(), check=True)
        monkeypatch.setattr(oracle.Env, "current", staticmethod(lambda: checking))
        rlk.ops.logp(torch.zeros(2, 8), torch.tensor([0, 8]))

    text = (ROOT / "docs/troubleshooting.md").read_text()
    found = re.findall(r"(?:```python\n(.*?)```\n)?```text\n(.*?)```", text, re.DOTALL)
    unwritten = iter((without_a_compiler, with_a_check))
    assert len(found) == 8
    for code, message in found:
        with pytest.raises(RlkError) as error:
            exec(code, {"torch": torch, "rlk": rlk}) if code else next(unwritten)()
        assert str(error.value) == message.rstrip("\n")


def test_the_example_of_the_readme_runs() -> None:
    _, example, _ = blocks("README.md")
    scope: dict[str, object] = {}
    exec(compile(example.replace("32768", "512"), "README.md", "exec"), scope)
    grad, layout = scope["logits"].grad, scope["layout"]  # type: ignore[attr-defined]
    assert grad[layout.active].any() and not grad[~layout.active].any()  # type: ignore[attr-defined]


def test_the_spec_of_the_readme_is_the_example_and_becomes_the_kernel_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlk.cli import main

    spec, *_ = blocks("README.md")
    assert spec in (ROOT / "examples/rms_norm.py").read_text()
    shown = re.search(r"```text\n\$ rlk (.*?)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    monkeypatch.chdir(ROOT)
    assert main(shown[1].split()) == 0
    emitted = capsys.readouterr().out
    parts = [part for part in shown[2].split("    ...\n") if part]
    assert len(parts) == 2 and all(part in emitted for part in parts)


STEPS = ("norm", "weighted", "loss", "project", "head")


@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_the_tutorial_runs_and_shows_what_it_prints(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its spec is checked, its call compares itself with float64, and its commands print the lines shown."""
    from rlk.cli import main

    number = STEPS.index(step) + 1
    section = re.split(r"^## \d. .*$", (ROOT / "docs/tutorial.md").read_text(), flags=re.MULTILINE)[number]
    spec, use = BLOCK.findall(section)
    assert spec.startswith(f"# {step}.py")
    (tmp_path / f"{step}.py").write_text(spec)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, step, raising=False)
    torch.manual_seed(0)
    exec(compile(use, "use.py", "exec"), {})
    del sys.modules[step]
    laws = ("slope", "tiles", "rows")
    assert main(["check", f"{step}.py:{step}", *(w for law in laws for w in ("--law", law))]) == 0
    shown = re.findall(r"```text\n\$ rlk (.*?)\n(.*?)```", section, re.DOTALL)
    assert len(shown) == 2
    for command, lines in shown:
        capsys.readouterr()
        assert main(command.split()) == 0
        printed = capsys.readouterr().out
        source = "--source" in command
        parts = lines.split("    ...\n") if source else [x for x in lines.splitlines() if x != "..."]
        assert [part for part in parts if part not in printed] == []
        places = [printed.index(part) for part in parts]
        assert places == sorted(places)


def broken_links(pages: Path) -> list[str]:
    """Return the links between pages that lead nowhere, and pages of the navigation that are not there."""
    found = []
    for page in pages.rglob("*.md"):
        targets = re.findall(r"\]\(([^)#:\s]+)\)", page.read_text())
        found += [f"{page.name}: {target}" for target in targets if not (page.parent / target).exists()]
    nav = json.loads((pages.parent / "mkdocs.yml").read_text())["nav"]
    return found + [
        name for name in re.findall(r'"([^"]+\.md)"', json.dumps(nav)) if not (pages / name).exists()
    ]


def test_the_site_has_every_page_and_no_link_leads_nowhere(tmp_path: Path) -> None:
    from rlk.pages.page import backends, index, page

    pages = tmp_path / "pages"
    (pages / "operators").mkdir(parents=True)
    (pages / "operators/index.md").write_text(re.sub(r"\]\(\w+\.md\)", "]", index()))
    (pages / "operators/backends.md").write_text(backends(targets=()))
    (pages / "operators/rope.md").write_text(page("rope", targets=()))
    subprocess.run([sys.executable, ROOT / "tools/site.py", tmp_path], check=True)
    assert not broken_links(pages)
    listed = re.findall(r'"([^"]+\.md)"', (tmp_path / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(str(path.relative_to(pages)) for path in pages.rglob("*.md"))
    (pages / "aot.md").write_text("[elsewhere](nowhere.md)")
    assert broken_links(pages) == ["aot.md: nowhere.md"]


SECTIONS = ["Context", "Decision", "Consequences", "Measurements"]


def is_a_decision(name: str, text: str) -> bool:
    """Return whether a page has its file's number and a decision's sections, the last of them optional."""
    title = re.match(r"# (\d+)\. \S", text)
    found = re.findall(r"^## (.*)$", text, re.MULTILINE)
    return title is not None and int(title[1]) == int(name[:4]) and found in (SECTIONS, SECTIONS[:3])


def test_decisions_have_the_sections_of_a_decision() -> None:
    pages = {path.name: path.read_text() for path in (ROOT / "docs/decisions").glob("[0-9]*.md")}
    assert [name for name, text in pages.items() if not is_a_decision(name, text)] == []
    assert len({name[:4] for name in pages}) == len(pages)
    name, text = next(iter(pages.items()))
    assert not is_a_decision(name, text.replace("## Context", "**Before.**"))
    assert not is_a_decision(f"9{name[1:]}", text)


def missing_from(architecture: str) -> list[str]:
    """Return the paths in a text that do not exist, and the folders of rlk for which it has no row."""
    named = re.findall(r"`((?:rlk|templates|tests|docs|generated)/[\w/.-]*)`", architecture)
    folders = [f"rlk/{path.parent.name}" for path in (ROOT / "rlk").glob("*/__init__.py")]
    rows = re.findall(r"^\| `(rlk/\w+)` \|", architecture, re.MULTILINE)
    return [name for name in named if not (ROOT / name).exists()] + sorted({*folders} - {*rows})


def test_the_page_of_error_codes_is_current() -> None:
    text = (ROOT / "docs/error-codes.md").read_text()
    page = runpy.run_path(str(ROOT / "tools/error_codes.py"))["page"]
    assert text == page(), "run: python tools/error_codes.py"
    assert all(f"\n| `{code.name}` | " in text for code in Code)


def test_the_architecture_names_files_that_exist_and_every_folder() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    assert not missing_from(text)
    moved = text.replace("| `rlk/passes` |", "| `rlk/elsewhere` |")
    assert missing_from(moved) == ["rlk/elsewhere", "rlk/passes"]


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
    block, whitened, placed, _ = blocks("docs/advantages.md")
    scope: dict[str, Any] = {}
    exec(compile(block, "advantages.py", "exec"), scope)
    exec(compile(whitened, "advantages.py", "exec"), scope)
    assert scope["tokens"].shape == scope["layout"].shape and scope["tokens"].any()
    exec(compile(placed, "placed.py", "exec"), scope)
    exact = rlk.ops.optimal_token_baseline.reference(
        scope["placed"], scope["found"].logp, scope["squares"], scope["groups"], layout=scope["layout"],
        align="active",
    )  # fmt: skip
    torch.testing.assert_close(scope["over"].advantages.double(), exact.advantages, rtol=1e-5, atol=1e-6)
    values, layout = scope["values"], scope["layout"]
    assert values.grad[layout.active].any() and not values.grad[~layout.active].any()  # type: ignore[attr-defined]


def test_the_distillation_of_the_page_is_its_formula() -> None:
    block, _, _, distilled = blocks("docs/advantages.md")
    scope: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(block, "advantages.py", "exec"), scope)
    exec(compile(distilled, "distilled.py", "exec"), scope)
    wide = scope["hidden"].detach().double().requires_grad_()
    active, ids = scope["layout"].active, scope["ids"]

    def scored(hidden: torch.Tensor, head: str) -> torch.Tensor:
        logits = hidden.double() @ scope[head].double().T
        return torch.log_softmax(logits, -1).gather(-1, ids[:, None])[:, 0]

    taught, logp = scored(scope["teacher_hidden"], "teacher_head"), scored(wide, "head")
    old = logp.detach()
    wanted = (-torch.exp(logp - old) * (taught - old))[active].mean()
    wanted.backward()
    torch.testing.assert_close(scope["distilled"].loss.double(), wanted, rtol=2e-5, atol=1e-6)
    assert wide.grad is not None and not scope["hidden"].grad[~active].any()
    torch.testing.assert_close(scope["hidden"].grad.double(), wide.grad, rtol=2e-2, atol=2e-5)


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


def test_the_page_about_models_runs(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from model_families import written

    (block,) = blocks("docs/models.md")
    path, folder = written("qwen3", tmp_path / "given"), tmp_path / "made"
    scope: dict[str, Any] = {"path": path, "folder": folder}
    exec(compile(block, "models.py", "exec"), scope)
    assert (folder / "model.safetensors").exists() and scope["model"].lm_head.weight.grad.any()
    assert scope["prompt"].any()


def test_the_page_about_experts_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    from model_families import SIZES, written_of

    config = transformers.MixtralConfig(
        **SIZES, num_hidden_layers=1, num_local_experts=4, num_experts_per_tok=2, sliding_window=None
    )
    scope: dict[str, Any] = {"path": written_of(config, tmp_path)}
    for block in blocks("docs/moe.md"):
        exec(compile(block, "moe.py", "exec"), scope)
        shown = re.search(r"^print\(log.flips\(\)\)  # (.*)$", block, re.MULTILINE)
        assert shown and capsys.readouterr().out.splitlines()[-1] == shown[1]
    assert scope["model"].model.layers[0].mlp.gate.weight.grad.any()


def test_the_page_about_engines_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The page itself compares rollouts with trainers; its last weight is one that did not arrive."""
    if pytest.importorskip("transformers").__version__ not in continuous_batching.VERSIONS:
        pytest.skip("a version of transformers whose batching is refused")
    scope: dict[str, Any] = {}
    for block in blocks("docs/engines.md")[:2]:
        exec(compile(block, "engines.py", "exec"), scope)
    assert len(scope["rewards"]) == 3 and scope["drawn"].any()
    assert [each.name for each in scope["late"]] == ["model.norm.weight"]
    shown = re.search(r"^print\(\*late\)  # (.*)$", blocks("docs/engines.md")[1], re.MULTILINE)
    assert shown is not None and capsys.readouterr().out.splitlines()[-1] == shown[1]


def test_the_command_of_the_page_about_verify_prints_what_it_shows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rlk.cli import main

    shown = re.search(r"```text\n\$ rlk (.*?)\n(.*?)```", (ROOT / "docs/verify.md").read_text(), re.DOTALL)
    assert shown is not None
    assert main(shown[1].split()) == 0
    moved = re.compile(r"\b\d+ differ.*")  # how much of a control differs depends on torch's product
    printed = capsys.readouterr().out.partition("\n\n")[2]
    assert moved.sub("", printed) == moved.sub("", shown[2])


def test_the_page_about_decoding_runs() -> None:
    (block,) = blocks("docs/decoding.md")
    found: dict[str, Any] = {}
    exec(block, found)
    # the control: the log-probs of the whole softmax are others
    raw = found["model"].logps(found["ids"], found["layout"]).logp
    assert (raw != found["trained"]).sum() > len(raw) // 3


def test_the_matrix_of_the_guide_is_one(tmp_path: Path) -> None:
    from rlk.aot.matrix import read_matrix

    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/aot.md").read_text(), re.DOTALL)
    (tmp_path / "matrix.toml").write_text(text)
    made = read_matrix(str(tmp_path / "matrix.toml"))
    assert [model.vocab for model in made.models] == [151936, 65536]
    assert made.calls[0].backward and made.calls[0].rows == (8191, 8192)
