"""A checkpoint is loaded as it is, or refused with all that is wrong with it before memory is taken."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nn_cases
import pytest
import torch
import transformers
from model_families import FAMILIES, equal, loaded, written
from safetensors.torch import load_file, save_file

from rlk.errors import Code, LaunchError
from rlk.nn import CausalLM, Decoder, ModelConfig
from rlk.nn import model as nn_model
from rlk.nn.checkpoint import EMBEDDING, HEAD
from rlk.nn.modules import merged_parameters
from rlk.nn.products import adjacent

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
SHARDS = 40_000  # bytes, so that a tiny model has several


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each family, f32 in one file."""
    return {name: written(name, tmp_path_factory.mktemp(name)) for name in FAMILIES}


@pytest.fixture
def copy(folders: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies a family's checkpoint, to be changed."""
    return lambda family: Path(shutil.copytree(folders[family], tmp_path / f"copy-{family}"))


def edited(folder: Path, **entries: Any) -> Path:
    """Change entries of config.json; None removes one."""
    file = folder / "config.json"
    found = json.loads(file.read_text()) | entries
    file.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))
    return folder


def rewritten(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """Change the tensors of a checkpoint of one file."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def refusal(folder: Path, **options: Any) -> LaunchError:
    """Return the error of a checkpoint that is refused before memory is taken."""
    with pytest.raises(LaunchError) as caught, pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn_model, "take_memory", lambda *_: pytest.fail("memory is taken"))
        CausalLM.from_pretrained(folder, **options)
    return caught.value


def codes(error: LaunchError) -> list[Code]:
    return [d.code for d in error.diagnostics]


def without(*names: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in names:
            del tensors[name]

    return change


# --- loading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_parameters_are_those_of_transformers_by_name_and_bits(
    folders: dict[str, Path], family: str, dtype: torch.dtype
) -> None:
    found = CausalLM.from_pretrained(folders[family], dtype=dtype)
    wanted = dict(loaded(folders[family], dtype).named_parameters())
    given = dict(found.named_parameters())
    assert given.keys() == wanted.keys()
    assert all(equal(given[name], wanted[name]) for name in wanted)
    assert not any(p.is_meta for p in given.values())
    assert (found.lm_head.weight is found.model.embed_tokens.weight) == found.config.tie_word_embeddings
    groups = list(merged_parameters(found))
    assert groups and all(adjacent(group) for group in groups)


def test_a_model_of_llama_3_has_its_scaled_angles(folders: dict[str, Path]) -> None:
    config = CausalLM.from_pretrained(folders["llama"]).config
    assert dict(config.ropes[0].scaling)["rope_type"] == "llama3"
    assert config.ropes[0] != ModelConfig.of(transformers.LlamaConfig()).ropes[0]


def test_windows_and_ropes_are_those_of_each_layer(folders: dict[str, Path]) -> None:
    assert CausalLM.from_pretrained(folders["mistral"]).config.windows == (8, 8)
    gemma = CausalLM.from_pretrained(folders["gemma3_text"]).config
    assert gemma.windows == (8, None)
    assert [rope.theta for rope in gemma.ropes] == [10000.0, 1000000.0]


@pytest.mark.parametrize("family", ("qwen2", "qwen3"))
def test_shards_are_one_checkpoint(folders: dict[str, Path], tmp_path: Path, family: str) -> None:
    loaded(folders[family], torch.float32).save_pretrained(tmp_path, max_shard_size=SHARDS)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    whole, cut = (CausalLM.from_pretrained(path) for path in (folders[family], tmp_path))
    pairs = zip(whole.state_dict().items(), cut.state_dict().items(), strict=True)
    assert all(a == b and equal(x, y) for (a, x), (b, y) in pairs)


def both(tensors: dict[str, torch.Tensor]) -> None:
    tensors[HEAD] = tensors[EMBEDDING].clone()


def head_alone(tensors: dict[str, torch.Tensor]) -> None:
    tensors[HEAD] = tensors.pop(EMBEDDING)


@pytest.mark.parametrize("change", (both, head_alone))
def test_a_tied_head_may_stand_in_the_file(
    folders: dict[str, Path], copy: Callable[[str], Path], change: Callable[[dict[str, torch.Tensor]], None]
) -> None:
    wanted = CausalLM.from_pretrained(folders["qwen2"])
    found = CausalLM.from_pretrained(rewritten(copy("qwen2"), change))
    assert equal(found.lm_head.weight, wanted.lm_head.weight)
    assert found.lm_head.weight is found.model.embed_tokens.weight


def test_buffers_that_older_versions_wrote_are_ignored(copy: Callable[[str], Path]) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8, dtype=torch.float64)
        tensors["model.rotary_emb.inv_freq"] = torch.zeros(8)

    CausalLM.from_pretrained(rewritten(copy("llama"), change))


def test_a_repository_is_found_in_the_cache_of_the_hub(folders: dict[str, Path], tmp_path: Path) -> None:
    home, commit = tmp_path / "models--some--model", "0" * 40
    shutil.copytree(folders["qwen2"], home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    found = CausalLM.from_pretrained("some/model", cache_dir=tmp_path, local_files_only=True)
    wanted = CausalLM.from_pretrained(folders["qwen2"])
    assert equal(found.lm_head.weight, wanted.lm_head.weight)


# --- refusals: what was found, and what is supported -----------------------------------------------------


def test_all_that_is_wrong_with_tensors_is_one_message(copy: Callable[[str], Path]) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for layer in range(2):
            del tensors[f"model.layers.{layer}.mlp.up_proj.weight"]
        tensors["score.weight"] = torch.zeros(2, 64)
        tensors["model.norm.weight"] = torch.zeros(32)
        tensors[HEAD] = tensors[HEAD].double()

    error = refusal(rewritten(copy("qwen3"), change))
    wrong = [Code.CHECKPOINT_LACKS, Code.CHECKPOINT_EXTRA, Code.CHECKPOINT_SHAPE, Code.CHECKPOINT_DTYPE]
    assert codes(error) == wrong
    for words in ("lm_head.weight has dtype F64",
                  "missing tensors, 2 in all: model.layers.{0..1}.mlp.up_proj.weight", "score.weight",
                  "model.norm.weight has shape [32], expected [64]"):  # fmt: skip
        assert words in str(error)


def test_a_head_that_is_not_tied_must_be_there(copy: Callable[[str], Path]) -> None:
    assert HEAD in str(refusal(rewritten(copy("qwen3"), without(HEAD))))


def test_a_head_that_differs_from_its_embedding_is_not_tied(copy: Callable[[str], Path]) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[HEAD] = tensors[EMBEDDING].clone()
        tensors[HEAD][-1, -1] += 1.0

    folder = rewritten(copy("qwen2"), change)
    assert "tie_word_embeddings" in str(refusal(folder))
    assert not CausalLM.from_pretrained(edited(folder, tie_word_embeddings=False)).config.tie_word_embeddings


@pytest.mark.parametrize("dtype", (torch.int8, torch.float8_e4m3fn, torch.float64))
def test_other_dtypes_are_refused(copy: Callable[[str], Path], dtype: torch.dtype) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        name = "model.layers.1.mlp.down_proj.weight"
        tensors[name] = tensors[name].to(dtype)

    error = refusal(rewritten(copy("llama"), change))
    assert codes(error) == [Code.CHECKPOINT_DTYPE]
    assert "model.layers.1.mlp.down_proj.weight" in str(error) and "F32, BF16, F16" in str(error)


def test_weights_beyond_f16_are_refused_in_f16(copy: Callable[[str], Path]) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"][3] = 1e5

    folder = rewritten(copy("llama"), change)
    with pytest.raises(LaunchError, match="model.norm.weight.*float16"):
        CausalLM.from_pretrained(folder, dtype=torch.float16)
    CausalLM.from_pretrained(folder)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"model_type": "gpt2"}, "llama, mistral, qwen2, qwen3, gemma2, gemma3_text"),
        ({"model_type": "gemma3"}, "gemma3_text"),
        ({"model_type": "no_model"}, "gemma3_text"),
        ({"hidden_act": "relu"}, "silu"),
        ({"quantization_config": {"quant_method": "fp8"}}, "16 or 32 bits"),
        ({"rope_parameters": DYNAMIC}, "default, linear, llama3, yarn"),
        ({"partial_rotary_factor": 0.5}, "rotates whole heads"),
        ({"rlk_leaves": 3}, "1, 2, 4 or 8"),
    ],
)  # fmt: skip
def test_an_unsupported_config_names_what_is_supported(
    copy: Callable[[str], Path], entries: dict[str, Any], words: str
) -> None:
    error = refusal(edited(copy("llama"), **entries))
    assert codes(error) == [Code.ARG_VALUE] and words in str(error)
    assert str(next(iter(entries))) in str(error) or "rope_type" in str(error)


def test_all_that_is_wrong_with_a_config_is_one_message(copy: Callable[[str], Path]) -> None:
    folder = rewritten(edited(copy("llama"), rope_parameters=DYNAMIC, hidden_act="relu"), quantized)
    error = refusal(folder, leaves=5)
    for words in ('config.rope_parameters["rope_type"]=\'dynamic\'', "relu", "rlk.nn: leaves=5", "I8"):
        assert words in str(error)
    with pytest.raises(LaunchError, match=r'config\.rope_scaling\["type"\]='):
        ModelConfig.of(nn_cases.QWEN3 | {"rope_scaling": {"type": "dynamic"}})
    kinds = dict.fromkeys(("full_attention", "sliding_attention"), DYNAMIC)
    with pytest.raises(LaunchError, match=r'config\.rope_parameters\["sliding_attention"\]\["rope_type"\]='):
        ModelConfig.of(FAMILIES["gemma3_text"]().to_dict() | {"rope_parameters": kinds})


def quantized(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3_text"])
def test_a_dict_without_an_activation_has_that_of_transformers(family: str) -> None:
    whole = FAMILIES[family]().to_dict()
    given = {key: x for key, x in whole.items() if key not in ("hidden_act", "hidden_activation")}
    assert ModelConfig.of(given) == ModelConfig.of(whole)
    with pytest.raises(LaunchError, match="config.hidden_act.*=None is not allowed"):
        ModelConfig.of(given | dict.fromkeys({"hidden_act", "hidden_activation"} & whole.keys()))


def test_leaves_must_divide_what_is_split(folders: dict[str, Path]) -> None:
    error = refusal(folders["llama"], leaves=3)
    assert "1, 2, 4 or 8" in str(error)
    config = transformers.LlamaConfig(intermediate_size=100, num_attention_heads=4, head_dim=2, hidden_size=8)
    with pytest.raises(LaunchError) as caught:
        ModelConfig.of(config, leaves=8)
    assert "intermediate_size=100" in str(caught.value) and "multiple of leaves = 8" in str(caught.value)


def test_files_that_cannot_be_read_are_named(copy: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copy("llama")
    file = folder / "model.safetensors"
    assert "is a file" in str(refusal(file))
    file.write_bytes(file.read_bytes()[:-100])  # a copy that was cut off
    assert str(file) in str(refusal(folder))
    file.rename(folder / "pytorch_model.bin")
    assert "save_pretrained" in str(refusal(folder))
    (folder / "config.json").write_text("{")
    assert "is no JSON" in str(refusal(folder))
    (folder / "config.json").unlink()
    assert "there is no config.json" in str(refusal(folder))


def test_a_repository_that_cannot_be_had_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that it has no config.json, which nobody could look at."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    said = str(refusal("no-such-owner/no-such-model"))  # type: ignore[arg-type]
    assert "there is no such folder" in said and "connect" in said and "no config.json" not in said


def test_options_that_would_be_ignored_are_refused(folders: dict[str, Path]) -> None:
    assert "'device_map' is unknown" in str(refusal(folders["llama"], device_map="auto"))
    if not torch.cuda.is_available():
        assert "device='cuda' is not allowed" in str(refusal(folders["llama"], device="cuda"))
    assert "device='gpu' is not allowed" in str(refusal(folders["llama"], device="gpu"))
    assert CausalLM.from_pretrained(folders["llama"], local_files_only=True).lm_head is not None


def test_a_shard_that_is_missing_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    CausalLM.from_pretrained(folders["llama"]).save_pretrained(tmp_path, max_shard_size=SHARDS)
    gone = sorted(tmp_path.glob("model-*.safetensors"))[1]
    gone.unlink()
    assert gone.name in str(refusal(tmp_path))


def test_float32_is_refused_when_a_model_is_made(folders: dict[str, Path]) -> None:
    error = refusal(folders["llama"], dtype=torch.float32)
    assert "torch.bfloat16 or torch.float16" in str(error)
    with pytest.raises(LaunchError, match="torch.bfloat16 or torch.float16"):
        CausalLM(ModelConfig.of(FAMILIES["llama"]()), dtype=torch.float32, device="meta")


# --- writing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", (SHARDS, "5GB"))
def test_what_is_written_is_read_by_both_bit_for_bit(
    folders: dict[str, Path], tmp_path: Path, family: str, size: int | str
) -> None:
    model = CausalLM.from_pretrained(folders[family], leaves=2)
    model.save_pretrained(tmp_path, max_shard_size=size)
    assert (tmp_path / "model.safetensors").exists() == (size == "5GB")
    wanted = dict(model.named_parameters())
    theirs, config = loaded(tmp_path, "auto"), json.loads((tmp_path / "config.json").read_text())
    ours = CausalLM.from_pretrained(tmp_path)
    for other in (theirs, ours):
        given = dict(other.named_parameters())
        assert given.keys() == wanted.keys() and all(equal(given[n], wanted[n]) for n in wanted)
    assert ours.config == model.config and ours.config.leaves == 2
    before = json.loads((folders[family] / "config.json").read_text())
    assert config == before | {"rlk_leaves": 2, "dtype": "bfloat16"}


def test_files_of_an_earlier_checkpoint_are_replaced(folders: dict[str, Path], tmp_path: Path) -> None:
    first, second = (CausalLM.from_pretrained(folders[name]) for name in ("llama", "qwen2"))
    for sizes in (("5GB", SHARDS), (SHARDS, "5GB"), (SHARDS, 2 * SHARDS)):
        for model, size in zip((first, second), sizes, strict=True):
            model.save_pretrained(tmp_path, max_shard_size=size)
        found = CausalLM.from_pretrained(tmp_path)
        assert equal(found.lm_head.weight, second.lm_head.weight)
    assert not list(tmp_path.glob("*.part"))


def test_no_shard_is_larger_than_asked_for(folders: dict[str, Path], tmp_path: Path) -> None:
    model = CausalLM.from_pretrained(folders["qwen3"])
    model.save_pretrained(tmp_path, max_shard_size="0.03MB")
    for file in tmp_path.glob("model-*.safetensors"):
        tensors = load_file(file)
        assert len(tensors) == 1 or sum(t.numel() * t.element_size() for t in tensors.values()) <= 30_000
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(p.numel() * 2 for p in model.parameters())


@pytest.mark.parametrize("size", (0, True, "5 gigabytes", 1.5))
def test_a_shard_size_that_is_none_is_refused(folders: dict[str, Path], tmp_path: Path, size: Any) -> None:
    with pytest.raises(LaunchError, match="max_shard_size"):
        CausalLM.from_pretrained(folders["llama"]).save_pretrained(tmp_path, max_shard_size=size)
    assert not list(tmp_path.iterdir())


def test_a_model_that_was_not_loaded_is_written_with_its_config(tmp_path: Path) -> None:
    config = FAMILIES["gemma3_text"]()
    model = CausalLM(ModelConfig.of(config))
    with pytest.raises(LaunchError, match="a config of this model: .* model_type, "):
        model.save_pretrained(tmp_path, config=FAMILIES["llama"]())
    with pytest.raises(LaunchError, match="config must be a config of transformers, or its dict, got int"):
        model.save_pretrained(tmp_path, config=5)
    for other, said in (
        ({"source": None}, "required for a ModelConfig that ModelConfig.of did not make(.|\n)*gemma3_text"),
        ({"rms_norm_eps": 1e-3}, "reads another rms_norm_eps"),
    ):
        with pytest.raises(LaunchError, match=said):
            CausalLM(replace(model.config, **other), device="meta").save_pretrained(tmp_path)
    model.save_pretrained(tmp_path, config=config)
    found = CausalLM.from_pretrained(tmp_path)
    assert found.config == model.config and equal(found.lm_head.weight, model.lm_head.weight)
    assert equal(dict(loaded(tmp_path, "auto").named_parameters())[EMBEDDING], model.lm_head.weight)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_a_config_is_written_without_naming_it_again(family: str, tmp_path: Path) -> None:
    """Of a config, and of its dict; the class that engines look up is written too."""
    config = FAMILIES[family]()
    for given in (config, config.to_dict()):
        model = CausalLM(ModelConfig.of(given, leaves=2))
        model.save_pretrained(tmp_path)
        found, theirs = CausalLM.from_pretrained(tmp_path), loaded(tmp_path, "auto")
        assert found.config == model.config
        assert all(equal(p, q) for p, q in zip(found.parameters(), model.parameters(), strict=True))
        written = json.loads((tmp_path / "config.json").read_text())
        assert written["architectures"] == [type(theirs).__name__]


def test_what_a_dict_leaves_out_is_not_what_a_class_has(tmp_path: Path) -> None:
    """Heads of 8 that follow from the sizes are written; a base of angles that nobody named is refused."""
    few = {name: x for name, x in nn_cases.QWEN3.items() if name not in ("head_dim", "tie_word_embeddings")}
    model = CausalLM(ModelConfig.of(few))
    model.save_pretrained(tmp_path)
    assert CausalLM.from_pretrained(tmp_path).config == model.config and model.config.head_dim == 8
    mixtral = few | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    del mixtral["rope_theta"]  # 1e4 where none is named, and 1e6 in transformers' MixtralConfig
    with pytest.raises(LaunchError, match="reads another ropes in it"):
        CausalLM(ModelConfig.of(mixtral)).save_pretrained(tmp_path)


def test_weights_of_f16_are_rounded_with_a_warning_unless_it_is_asked_for(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    half = CausalLM.from_pretrained(folders["llama"], dtype=torch.float16)
    half.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"21 of 21 tensors are float16(.|\n)*dtype=torch.float16 to keep"):
        assert CausalLM.from_pretrained(tmp_path).lm_head.weight.dtype == torch.bfloat16
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
        kept = CausalLM.from_pretrained(tmp_path, dtype=torch.float16)
        CausalLM.from_pretrained(folders["llama"])  # f32: every model is of fewer bits
    assert equal(kept.lm_head.weight, half.lm_head.weight)


# --- random weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_drawn_as_transformers_draws_them(family: str) -> None:
    """The mean and spread of each parameter; those of norms and biases are numbers that both have."""
    config = FAMILIES[family]()
    config.initializer_range = 0.05
    torch.manual_seed(1)
    wanted = dict(transformers.AutoModelForCausalLM.from_config(config).float().named_parameters())
    ours = CausalLM(ModelConfig.of(config))
    assert {name for name, _ in ours.named_parameters()} == set(wanted)
    for name, p in ours.named_parameters():
        got, want = p.detach().float(), wanted[name].detach()
        if p.dim() == 1:
            assert torch.equal(got, want), name
        else:
            few = 4 * 0.05 / got.numel() ** 0.5  # errors of a mean
            assert abs(got.std() - want.std()) < few and abs(got.mean()) < few, name


def test_a_seed_draws_the_same_weights_of_a_deviation_of_one_fiftieth() -> None:
    config = ModelConfig.of(nn_cases.QWEN3)
    assert config.initializer_range == 0.02
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(CausalLM(config))
    first, again, other = (m.model.embed_tokens.weight for m in models)
    assert equal(first, again) and not equal(first, other) and 0.018 < first.float().std() < 0.022
    assert 0.018 < models[0].lm_head.weight.float().std() < 0.022
    layer = models[0].model.layers[0].self_attn.q_proj
    with torch.no_grad():
        layer.weight.zero_()
    layer.reset_parameters()
    assert 0.018 < layer.weight.float().std() < 0.022
    with pytest.raises(LaunchError, match="config.initializer_range='much'"):
        ModelConfig.of(nn_cases.QWEN3 | {"initializer_range": "much"})


def test_a_model_is_made_of_its_own_config_alone() -> None:
    for given, said in (
        (FAMILIES["llama"](), r"rlk.nn.ModelConfig \(ModelConfig.of\(config\)"),
        (nn_cases.QWEN3, r"ModelConfig.of\(config\) makes one of a config of transformers or of its dict"),
        ("a/path", r"CausalLM.from_pretrained\(path\)"),
    ):
        for kind in (CausalLM, Decoder):
            with pytest.raises(LaunchError, match=said):
                kind(given)  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="config of transformers, or its dict, got int"):
        ModelConfig.of(5)


def test_a_bit_that_is_lost_in_a_file_is_seen(folders: dict[str, Path], tmp_path: Path) -> None:
    """Negative control of `equal`: one changed bit of a weight that was written."""
    model = CausalLM.from_pretrained(folders["qwen3"])
    model.save_pretrained(tmp_path)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[HEAD].view(torch.int16)[0, 0] ^= 1

    assert not equal(
        CausalLM.from_pretrained(rewritten(tmp_path, change)).lm_head.weight, model.lm_head.weight
    )
