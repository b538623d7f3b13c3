"""Functions of another package are exchanged everywhere, and exactly put back: of one made for the test."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rlk
from rlk.errors import LaunchError, UnsupportedError
from rlk.integrations import swap as module
from rlk.integrations import trl, verl
from rlk.integrations.swap import Swap, Swaps

SOURCES = {
    "__init__": "",
    "core": "REGISTRY = {}\n\ndef double(x, by=2):\n    return x * by\n\nREGISTRY['double'] = double\n"
    "def triple(x):\n    return 3 * x\n\nclass Trainer:\n    def loss(self, x):\n        return x\n",
    "user": "from toy.core import double as twice\n\ndef run(x):\n    return twice(x)\n",
    "late": "from toy.core import double\n",
}


def ours(x: int, by: int = 2) -> str:
    return f"{x} by {by}"


def loss_of_ours(self: Any, x: int) -> str:
    return f"loss {x}"


NAMES = {"toy.core:double": ours, "toy.core:Trainer.loss": loss_of_ours}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    folder = tmp_path / "toy"
    folder.mkdir()
    for name, source in SOURCES.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(module, "version", lambda peer: "1.0")
    yield importlib.import_module("toy.user")
    for name in [n for n in sys.modules if n.split(".")[0] == "toy"]:
        del sys.modules[name]


def made(**options: Any) -> Swap:
    return Swap("toy", ("1.0",), **{"names": NAMES, "registries": ("toy.core:REGISTRY",), **options})


def held(user: Any) -> tuple[Any, ...]:
    """Everything that the package has bound, as objects."""
    core = sys.modules["toy.core"]
    return (user.twice, core.double, core.REGISTRY["double"], vars(core.Trainer)["loss"], core.triple)


def test_a_function_is_exchanged_under_every_name(toy: Any) -> None:
    before = held(toy)
    with made().patched():
        assert toy.run(3) == "3 by 2"
        assert held(toy)[:4] == (ours, ours, ours, loss_of_ours)
        assert sys.modules["toy.core"].Trainer().loss(1) == "loss 1"
        assert held(toy)[4] is before[4]
    assert toy.run(3) == 6
    assert all(a is b for a, b in zip(held(toy), before, strict=True))


def test_an_exception_puts_everything_back(toy: Any) -> None:
    before = held(toy)
    with pytest.raises(ZeroDivisionError), made().patched():
        raise ZeroDivisionError
    assert all(a is b for a, b in zip(held(toy), before, strict=True))


def test_the_outermost_of_nested_swaps_puts_back(toy: Any) -> None:
    before, one = held(toy), made()
    with one.patched():
        with one.patched():
            assert toy.run(1) == "1 by 2"
        assert toy.run(1) == "1 by 2" and one.on
    assert not one.on and all(a is b for a, b in zip(held(toy), before, strict=True))
    with pytest.raises(LaunchError, match="once for each unpatch"):
        one.unpatch()


def test_a_module_that_is_imported_meanwhile_is_put_right_too(toy: Any) -> None:
    original = toy.twice
    with made().patched():
        late = importlib.import_module("toy.late")
        assert late.double is ours
    assert late.double is original


def test_what_another_put_there_since_stays_and_is_named(toy: Any) -> None:
    original, core, one = toy.twice, sys.modules["toy.core"], made()
    one.patch()
    other = core.double = lambda x, by=2: 0
    with pytest.raises(LaunchError, match="toy.core:double"):
        one.unpatch()
    assert core.double is other and toy.twice is original and not one.on


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"versions": ("2.0",)}, r"toy 1\.0 is not one that rlk knows \(2\.0\); not as expected: nothing"),
        ({"names": {**NAMES, "toy.core:gone": ours}}, r"toy\.core:gone \(not there\)"),
        ({"names": {"toy.nowhere:gone": ours}}, r"toy\.nowhere:gone \(not there\)"),
        ({"names": {**NAMES, "toy.core:triple": ours}}, r"toy\.core:triple\(x, by\), found \(x\)"),
    ],
)
def test_what_is_not_known_is_refused_and_nothing_is_exchanged(toy: Any, options: Any, said: str) -> None:
    before = held(toy)
    versions = options.pop("versions", ("1.0",))
    with pytest.raises(UnsupportedError, match=said) as refused:
        Swap("toy", versions, **{"names": NAMES, **options}).patch()
    assert "looked for: toy." in str(refused.value)
    assert all(a is b for a, b in zip(held(toy), before, strict=True))


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(UnsupportedError, match="no-such-package is not installed"):
        Swap("no-such-package", ("1.0",), {}).patch()


def test_of_several_swaps_none_stays_where_one_fails(toy: Any) -> None:
    before, good = held(toy), made()
    both = Swaps((good, Swap("toy", ("1.0",), {"toy.core:gone": ours})))
    with pytest.raises(UnsupportedError):
        both.patch()
    assert not good.on and all(a is b for a, b in zip(held(toy), before, strict=True))
    with Swaps((good,)).patched():
        assert good.on
    assert not good.on


def test_verls_own_vllm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"verl": "0.9.1", "vllm": "0.24.0"}
    monkeypatch.setattr("rlk.integrations.swap.version", installed.__getitem__)
    with pytest.raises(UnsupportedError, match=r"vllm 0\.24\.0 is not one that rlk knows \(0\.26\.0\)"):
        verl.engine_kwargs()
    installed["vllm"] = "0.26.0"
    assert verl.engine_kwargs() == {"quantization": "rlk"}


def test_adapters_import_no_framework() -> None:
    code = (
        "import sys, rlk.integrations.trl, rlk.integrations.verl\n"
        "sys.exit(any(name in sys.modules for name in ('trl', 'verl', 'transformers')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- refusals of TRL with vLLM in its process: before there is an engine ------------------------------------


def tiny(**options: Any) -> Any:
    """Return a policy that is patched with these options; unpatched: none of it."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=16, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, dtype="bfloat16",
    )  # fmt: skip
    model = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
    if options.pop("foreign", False):
        model.model.layers[0].mlp.forward = print
    if not options.pop("unpatched", False):
        rlk.patch(model, **options)
    return model


REFUSED: dict[str, Callable[[], dict[str, Any]]] = {
    "an adapter": lambda: {"model": SimpleNamespace(peft_config={})},
    "vllm_mode='server'": lambda: {"mode": "server"},
    "structured_outputs_regex='a+'": lambda: {"structured_outputs_regex": "a+"},
    "top_k=4": lambda: {"top_k": 4},
    "generation_kwargs['structured_outputs']": lambda: {"generation_kwargs": {"structured_outputs": 1}},
    "generation_kwargs['seed']": lambda: {"generation_kwargs": {"seed": 1}},
    "not patched whole": lambda: {"model": tiny(unpatched=True)},
    "a policy that is not patched whole": lambda: {"model": tiny(foreign=True, strict=False)},
    "logits are rounded": lambda: {"model": tiny(logits="model")},
}


@pytest.mark.parametrize("message", REFUSED)
def test_trl_makes_no_engine_whose_log_probs_no_policy_has(message: str) -> None:
    given = {"mode": "colocate", "generation_kwargs": {}, "model": SimpleNamespace()}
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        trl.init_vllm(SimpleNamespace(**trl.NEUTRAL_OPTIONS | given | REFUSED[message]()))


def test_a_rollout_is_compared_with_the_weights_that_drew_it_alone() -> None:
    """An evaluation sends newer weights while a part of the batch of older ones is still to be trained on."""
    accelerator = SimpleNamespace(gather=lambda x: x)
    model = SimpleNamespace(training=True)
    of = SimpleNamespace(accelerator=accelerator, model=model, _metrics={"train": defaultdict(list)})
    of.state, of._last_loaded_step = SimpleNamespace(global_step=1), 1
    logp, mask = torch.full((2, 3), -1.0), torch.ones(2, 3)
    batch = {"sampling_per_token_logps": logp - 0.5, "rlk_step": torch.zeros(2, dtype=torch.int64)}
    trl._check_rollout(of, logp, batch, mask)
    assert not of._metrics["train"]
    with pytest.raises(LaunchError, match="6 of 6"):  # the control
        trl._check_rollout(of, logp, batch | {"rlk_step": torch.ones(2, dtype=torch.int64)}, mask)
