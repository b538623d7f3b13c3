"""Subjects of commits are short and begin with a verb in the imperative, from the commit on that says so."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import commit_subjects
import pytest

RIGHT = (
    "Fuse the dQ scale into the epilogue", "Merge branch 'wip'", "Embed ids by rows", "Pass the address",
    "Re-measure attention", "Bias the scores", "Implement a scan", "Seed the generator", "A" + "d" * 71,
)  # fmt: skip
WRONG = (
    "The epilogue scales dQ", "Fused the scale", "Fusing the scale", "Fuses the scale", "fuse the scale",
    "cute: fuse the scale", "Attention in pieces", "Rows of a batch", "What a block computes", "Decision 12",
    "rms_norm: round once", "A" + "d" * 72, "", "Alignment of tiles",
)  # fmt: skip


@pytest.mark.parametrize("subject", RIGHT)
def test_a_right_subject_passes(subject: str) -> None:
    assert commit_subjects.wrong(subject) == []


@pytest.mark.parametrize("subject", WRONG)
def test_a_wrong_subject_is_found(subject: str) -> None:
    assert commit_subjects.wrong(subject)


# --- which commits are checked ---


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository whose first commit breaks the rule, before there is one."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    root = tmp_path / "there"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    commit(root, "Older, before the rule")
    return root


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *who, "-C", str(root), *words], check=True, capture_output=True, text=True
    ).stdout


def commit(root: Path, subject: str) -> None:
    git(root, "commit", "-q", "--allow-empty", "-m", subject)


def rule(root: Path) -> None:
    """Commit the file that makes later subjects count."""
    path = root / commit_subjects.FILE
    path.parent.mkdir()
    path.write_text("")
    git(root, "add", "-A")
    commit(root, "Rules for subjects")


def checked(root: Path) -> list[str]:
    return list(commit_subjects.subjects(root)[0].values())


def test_commits_after_the_rule_are_checked(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(repository) == [] and commit_subjects.main(repository) == 0
    rule(repository)
    assert checked(repository) == []
    commit(repository, "Add a tile")
    assert checked(repository) == ["Add a tile"] and commit_subjects.main(repository) == 0
    commit(repository, "Tiles")
    assert checked(repository) == ["Tiles", "Add a tile"] and commit_subjects.main(repository) == 1
    assert "'Tiles' begins with 'Tiles'" in capsys.readouterr().out


def test_a_branch_from_before_the_rule_may_be_merged(repository: Path) -> None:
    git(repository, "branch", "older")
    rule(repository)
    git(repository, "switch", "-q", "older")
    commit(repository, "Work from before")
    git(repository, "switch", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "older", "-m", "Merge branch 'older'")
    assert checked(repository) == ["Merge branch 'older'"]


@pytest.mark.parametrize(("depth", "count"), [(1, 0), (2, 1), (3, 2)])
def test_a_shallow_clone_is_checked_as_far_as_it_goes(repository: Path, depth: int, count: int) -> None:
    rule(repository)
    for name in ("one", "two"):
        commit(repository, f"Add tile {name}")
    clone = repository.parent / "shallow"
    git(repository, "clone", "-q", f"--depth={depth}", repository.as_uri(), str(clone))
    assert checked(clone) == ["Add tile two", "Add tile one"][:count]
    assert commit_subjects.main(clone) == 0


def test_a_tree_without_git_is_not_checked(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it lies inside of another repository, and where git is not installed."""
    rule(repository)
    commit(repository, "Tiles")
    inside = repository / "unpacked"
    inside.mkdir()
    monkeypatch.setenv("PATH", "")
    for root in (inside, repository):
        assert commit_subjects.main(root) == 0
        assert capsys.readouterr().out == "0 subjects checked: there is no git history here\n"
    monkeypatch.undo()
    assert commit_subjects.main(inside) == 0
    assert commit_subjects.main(repository) == 1
