"""Matrices of calls and config.json files that are read, and messages about the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aot_cases import CONFIG

from rlk.aot import calls, matrix
from rlk.aot.matrix import read_matrix
from rlk.cli import main
from rlk.errors import LaunchError


def test_the_shipped_matrix_has_the_models_that_it_promises() -> None:
    found = {model.name: model for model in read_matrix("common").models}
    assert {"llama-3-8b", "llama-3-70b", "qwen3-0.6b", "qwen3-32b", "gemma-3-27b"} <= set(found)
    assert found["llama-3-70b"].tp == (1, 2, 4, 8)
    for model in found.values():
        assert all(model.vocab % 8 == model.intermediate % ranks == 0 for ranks in model.tp)
    assert {each.op for each in read_matrix("common").calls} <= set(calls.CALLERS)


def test_a_model_may_be_named_alone(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text('[[model]]\nname = "qwen3-8b"\ntp = [2]\n')
    made = read_matrix(str(tmp_path / "m.toml"))
    assert (made.models[0].vocab, made.models[0].tp, made.calls) == (151936, (2,), matrix.common().calls)


SIZES = "[[model]]\nname='x'\nvocab=8\nintermediate=8\nheads=1\nkv_heads=1\nhead_dim=8\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[model]]\nname = 'unheard'", "llama-3-8b"),
        ("[[model]]\nname = 'llama-3-8b'\nhiden = 3", "hiden"),
        ("models = 3", "models"),
        ("[[model]\n", "TOML"),
        ("", "no model"),
        ("[[model]]\nname='qwen3-8b'\n[[call]]\nop='swiglu'\nrows=[0]", "at least 1"),
        ("[[model]]\nname='qwen3-8b'\n[[call]]\nop='swiglu'\nrows=[1]\ndtypes=['fp8']", "bf16, f16"),
        ("[[model]]\nname='qwen3-8b'\n[[call]]\nop='swiglu'", "rows"),
        ("\xff\x00", "TOML"),
        ("model = 3", "[[model]]"),
        ("model = ['qwen3-8b']", "[[model]]"),
        ("[[model]]\nname='qwen3-8b'\ntp=2", "model: tp=2"),
        ("[[model]]\nname='qwen3-8b'\ntp=[0]", "model: tp=[0]"),
        (f"{SIZES}hidden=64.5", "model: hidden=64.5"),
        (f"{SIZES}hidden=0", "at least 1"),
        (f"{SIZES}hidden={'9' * 5000}", "TOML"),
        ("[[model]]\nname='qwen3-8b'\n[[call]]\nop='swiglu'\nrows=5", "rows=5"),
        ("[[model]]\nname='qwen3-8b'\n[[call]]\nop='swiglu'\nrows=[1]\noptions=['x']", "a list of tables"),
        ("[[model]]\nname='qwen3-8b'\n[[call]]\nop='swiglu'\nrows=[1]\nbackward=1", "true or false"),
    ],
)
def test_a_wrong_matrix_says_where(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(text, encoding="latin-1")
    with pytest.raises(LaunchError) as caught:
        read_matrix(str(tmp_path / "m.toml"))
    assert said in str(caught.value)


def test_sizes_are_read_from_a_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    plain = {**CONFIG, "head_dim": None, "num_key_value_heads": None, "torch_dtype": "float16"}
    path.write_text(json.dumps(plain))
    model, dtype = matrix.model_of_config(path, 4)
    assert (model.kv_heads, model.head_dim, model.tp, dtype) == (4, 64, (4,), "f16")
    path.write_text(
        json.dumps({"model_type": "gemma3", "text_config": {**CONFIG, "model_type": "gemma3_text"}})
    )
    assert matrix.model_of_config(path, 1)[0].profile == "gemma"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "hidden_size is None"),
        ("[", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("[" * 99999, "RecursionError"),
        ("\xff", "UnicodeDecodeError"),
        (json.dumps({**CONFIG, "num_attention_heads": 0}), "num_attention_heads is 0"),
        (json.dumps({**CONFIG, "num_key_value_heads": 0}), "num_key_value_heads is 0"),
        (json.dumps({**CONFIG, "head_dim": 64.5}), "head_dim is 64.5"),
        (json.dumps({**CONFIG, "num_key_value_heads": 3}), "4 num_attention_heads do not share 3"),
        (json.dumps({**CONFIG, "hidden_size": "256"}), "hidden_size is '256'"),
        (json.dumps({**CONFIG, "vocab_size": -1}), "vocab_size is -1"),
        (json.dumps({**CONFIG, "vocab_size": True}), "vocab_size is True"),
        (
            json.dumps({**CONFIG, "hidden_size": 1, "num_attention_heads": 2, "head_dim": None}),
            "head_dim is 0",
        ),
    ],
)
def test_a_wrong_config_says_which_size(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="latin-1")
    assert main(["warmup", "--model-config", str(path), "--target", "sm_90a"]) == 2
    said = capsys.readouterr()
    assert f"expected the config.json of a decoder ({why}" in said.err and not said.out
