"""Writers of recorded rollouts: objects of the shapes that the libraries return, without rlk."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlk.drift import writers
from rlk.drift.engine import Unwatched
from rlk.drift.recorded import Recorded

NONE = math.nan


@dataclass
class Logprob:
    """A log-prob as vLLM returns it."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


def vllm() -> list[Any]:
    """Return RequestOutputs: two completions of a prompt, and one of another without its log-probs."""

    def made(ids: tuple[int, ...], logps: tuple[float, ...]) -> Any:
        return SimpleNamespace(
            token_ids=ids, logprobs=[{i: Logprob(x), 99: Logprob(-9.0)} for i, x in zip(ids, logps)]
        )

    first = SimpleNamespace(
        prompt_token_ids=[3, 4], prompt_logprobs=[None, {4: Logprob(-0.5)}],
        outputs=[made((5, 6), (-1.0, -2.0)), made((7,), (-3.0,))],
    )  # fmt: skip
    second = SimpleNamespace(prompt_token_ids=[8], prompt_logprobs=None, outputs=[made((9,), (-4.0,))])
    return [first, second]


ROWS = [([3, 4, 5, 6], [NONE, -0.5, -1.0, -2.0]), ([3, 4, 7], [NONE, -0.5, -3.0]), ([8, 9], [NONE, -4.0])]
WITHOUT_PROMPTS = [([3, 4, 5, 6], [NONE, NONE, -1.0, -2.0]), ([3, 4, 7], [NONE, NONE, -3.0]), ROWS[2]]


def sglang(path: str) -> None:
    outputs = [
        {"text": "", "meta_info": {"output_token_logprobs": made, "input_token_logprobs": given}}
        for made, given in (
            ([(-1.0, 5, None), (-2.0, 6, None)], [(None, 3, None), (-0.5, 4, None)]),
            ([(-3.0, 7, None)], [(None, 3, None), (-0.5, 4, None)]),
            ([(-4.0, 9, None)], []),
        )
    ]
    writers.write_sglang(path, [[3, 4], [3, 4], [8]], outputs)


def trl_function(path: str) -> None:
    output = {
        "prompt_ids": [[3, 4], [3, 4], [8]],
        "completion_ids": [[5, 6], [7], [9]],
        "logprobs": [[[-0.1, -1.0], [-2.0, -5.0]], [[-3.0, -6.0]], [[-4.0]]],
        "logprob_token_ids": [[[2, 5], [6, 2]], [[7, 2]], [[9]]],
    }
    writers.write_trl(path, output)


def trl_batch(path: str) -> None:
    batch = {
        "prompt_ids": torch.tensor([[3, 4], [3, 4], [0, 8]]),
        "prompt_mask": torch.tensor([[1, 1], [1, 1], [0, 1]]),
        "completion_ids": torch.tensor([[5, 6], [7, 0], [9, 0]]),
        "completion_mask": torch.tensor([[1, 1], [1, 0], [1, 0]]),
        "sampling_per_token_logps": torch.tensor([[-1.0, -2.0], [-3.0, 0.0], [-4.0, 0.0]]),
    }
    writers.write_trl(path, batch)


def verl(path: str) -> None:
    batch = {
        "input_ids": torch.tensor([[3, 4, 5, 6], [3, 4, 7, 0], [0, 8, 9, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [0, 1, 1, 0]]),
        "position_ids": torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 1, 2]]),
        "responses": torch.tensor([[5, 6], [7, 0], [9, 0]]),
        "rollout_log_probs": torch.tensor([[-1.0, -2.0], [-3.0, 0.0], [-4.0, 0.0]]),
    }
    writers.write_verl(path, SimpleNamespace(batch=batch))


@pytest.mark.parametrize(
    ("write", "rows"),
    [
        (
            lambda path: writers.write_vllm(path, vllm(), temperature=1.0, stage="none", special={"eos": 1}),
            ROWS,
        ),
        (sglang, ROWS),
        (trl_function, WITHOUT_PROMPTS),
        (trl_batch, WITHOUT_PROMPTS),
        (verl, WITHOUT_PROMPTS),
    ],
    ids=["vllm", "sglang", "trl", "a batch of trl", "verl"],
)
def test_a_writer_keeps_tokens_positions_and_log_probs(
    tmp_path: Path, write: Callable[[str], None], rows: list[Any]
) -> None:
    path = str(tmp_path / "x.safetensors")
    write(path)
    read = Recorded(path)
    found = read.score(read.sequences, Unwatched())
    assert read.sequences.lists() == [ids for ids, _ in rows]
    if write is verl:  # the others do not say what positions the model had
        assert found.positions is not None
        assert found.positions.tolist() == [i for ids, _ in rows for i in range(len(ids))]
    else:
        assert found.positions is None
    want = torch.tensor([x for _, logps in rows for x in logps])
    assert torch.equal(found.logps.nan_to_num(9.0), want.nan_to_num(9.0))
    assert torch.equal(found.known, ~want.isnan())
    if rows is ROWS and "vllm" in str(read._texts["engine"]):
        assert read.facts().temperature == 1.0 and read.facts().special == {"eos": 1}


def tool_turn(kind: str, path: str) -> None:
    """Write a prompt 3, a sampled 4, the tokens 5 and 6 of a tool, with zeros as log-probs, a sampled 7."""
    mask, logps = torch.tensor([[1, 0, 0, 1, 0]]), torch.tensor([[-1.0, 0.0, 0.0, -2.0, 0.0]])
    ids, exists = torch.tensor([[4, 5, 6, 7, 0]]), torch.tensor([[1, 1, 1, 1, 0]])
    one = torch.tensor([[1]])
    if kind == "verl":
        batch = {
            "input_ids": torch.cat([3 * one, ids], 1), "attention_mask": torch.cat([one, exists], 1),
            "position_ids": torch.arange(6)[None], "responses": ids, "rollout_log_probs": logps,
            "response_mask": mask,
        }  # fmt: skip
        writers.write_verl(path, SimpleNamespace(batch=batch))
    elif kind == "trl batch":
        batch = {
            "prompt_ids": 3 * one, "prompt_mask": one, "completion_ids": ids, "completion_mask": exists,
            "sampling_per_token_logps": logps, "tool_mask": mask,
        }  # fmt: skip
        writers.write_trl(path, batch)
    else:
        rows = {"completion_ids": ids, "logprobs": logps, "env_mask": mask}
        writers.write_trl(path, {"prompt_ids": [[3]], **{n: x[:, :4].tolist() for n, x in rows.items()}})


@pytest.mark.parametrize("kind", ["verl", "trl batch", "trl function"])
def test_tokens_of_a_tool_have_no_log_prob(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / "x.safetensors")
    tool_turn(kind, path)
    read = Recorded(path)
    found = read.score(read.sequences, Unwatched())
    assert read.sequences.lists() == [[3, 4, 5, 6, 7]]
    assert found.logps.isnan().tolist() == [True, False, True, True, False]
    assert found.logps[[1, 4]].tolist() == [-1.0, -2.0]


def test_wrong_rollouts_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="give a pair for each"):  # ids and log-probs as two lists
        writers.write_rollouts(path, "x", [[1, 2, 3], [-1.0, -2.0, -3.0]])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="sequence 1 has 2 ids and 1 log-probs"):
        writers.write_rollouts(path, "x", [([1], [0.0]), ([1, 2], [0.0])])
    with pytest.raises(ValueError, match="no sequence"):
        writers.write_rollouts(path, "x", [])
    with pytest.raises(ValueError, match="positions"):
        writers.write_rollouts(path, "x", [([1], [0.0])], positions=[[0, 1]])
    silent = vllm()
    silent[0].outputs[0].logprobs = None
    with pytest.raises(ValueError, match="logprobs=0"):
        writers.write_vllm(path, silent)
    with pytest.raises(ValueError, match="logprob_token_ids"):
        writers.write_trl(path, {"prompt_ids": [[1]], "completion_ids": [[2]], "logprobs": [[[-1.0, -2.0]]]})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"temprature": 0.5}, "temprature is no setting, expected one of temperature, stage"),
        ({"temperature": 0.0}, "temperature is 0.0, expected a number above 0"),
        ({"temperature": "warm"}, "temperature is 'warm'"),
        ({"stage": "softmax"}, "stage is 'softmax', expected one of logits"),
        ({"dtype": "auto"}, "dtype is 'auto', expected one of"),
        ({"padding": "both"}, "padding is 'both'"),
        ({"vocabulary": 1.5}, "vocabulary is 1.5"),
        ({"special": {"eos": "</s>"}}, "expected ids by name"),
        ({"weights": {"lm_head.weight": 3}}, "expected hex digits by name"),
    ],
)
def test_settings_that_the_format_does_not_have_are_refused(
    tmp_path: Path, setting: dict[str, Any], message: str
) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(ValueError, match=message):
        writers.write_rollouts(str(path), "x", [([1, 2], [NONE, 0.0])], **setting)
    assert not path.exists()


def test_the_writers_are_one_file_that_needs_nothing_of_rlk(tmp_path: Path) -> None:
    source = Path(writers.__file__).read_text()
    modules = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(source))
        for name in (
            [a.name for a in node.names] if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip
    assert modules == {"__future__", "json", "collections", "typing", "numpy", "safetensors"}
    (tmp_path / "copied.py").write_text(source)
    code = "import sys, copied; copied.write_rollouts('x', 'own', [([1, 2], [float('nan'), -1.0])]); "
    code += "assert not {'rlk', 'torch'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env={"PYTHONPATH": ""})
    assert Recorded(tmp_path / "x").sequences.lists() == [[1, 2]]
