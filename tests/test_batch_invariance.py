"""A row's bits do not depend on the rows beside it, for every operator and gradient; a break is seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rlk import ops
from rlk.runtime.call import entry as calls
from rlk.runtime.registry import find
from rlk.specs import logp as logp_spec
from rlk.testing.bits import assert_same_bits, differing

ROWS, V, N = 12, 2049, 200
Rows = dict[str, torch.Tensor]
Call = Callable[[Rows], list[torch.Tensor]]
Move = Callable[[torch.Tensor], torch.Tensor]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ids(limit: int) -> torch.Tensor:
    return torch.randint(limit, (ROWS,), generator=torch.Generator().manual_seed(9))


def pulled(made: list[torch.Tensor], given: Rows, leaf: str) -> list[torch.Tensor]:
    """Return outputs and the gradient of one leaf, with a cotangent that belongs to each row."""
    g = given["g"]
    smooth = [y for y in made if y.requires_grad]
    shaped = [g.reshape(g.shape + (1,) * (y.dim() - g.dim())) for y in smooth]
    cotangents = [(i + 1.0) * x.expand_as(y) for i, (x, y) in enumerate(zip(shaped, smooth, strict=True))]
    torch.autograd.backward(smooth, [c.to(y.dtype) for c, y in zip(cotangents, smooth, strict=True)])
    grad = given[leaf].grad
    assert grad is not None
    return [*made, grad]


def leafed(given: Rows, leaf: str) -> Rows:
    return given | {leaf: given[leaf].detach().requires_grad_()}


def scoring(given: Rows) -> list[torch.Tensor]:
    given = leafed(given, "x")
    made = ops.logp(
        given["x"], given["ids"], needs=("logp", "lse", "entropy", "argmax", "lse2"),
        temperature=given["t"].abs() + 0.5, mask=given["mask"], math="sm90",
    )  # fmt: skip
    assert made.lse2 is not None
    made = made._replace(lse2=made.lse2.detach())  # backward refuses it
    return pulled(list(made), given, "x")  # type: ignore[arg-type]


def distilling(beta: float) -> Call:
    def call(given: Rows) -> list[torch.Tensor]:
        given = leafed(given, "x")
        made = ops.jsd_loss(
            given["x"], given["r"], beta=beta, temperature=given["t"].abs() + 0.5, mask=given["mask"]
        )
        return pulled([made], given, "x")

    return call


def norming(profile: str) -> Call:
    def call(given: Rows) -> list[torch.Tensor]:
        given = leafed(given, "x")
        w = normal(V, seed=4).to(given["x"].dtype)
        made = ops.rms_norm(given["x"], w, residual=given["r"], profile=profile)  # type: ignore[arg-type]
        return pulled(list(made), given, "x")

    return call


def gating(given: Rows) -> list[torch.Tensor]:
    given = leafed(given, "x")
    return pulled([ops.swiglu(given["x"], given["r"])], given, "x")


def gelu_gating(approximate: str) -> Call:
    def call(given: Rows) -> list[torch.Tensor]:
        given = leafed(given, "x")
        return pulled([ops.geglu(given["x"], given["r"], approximate=approximate)], given, "x")  # type: ignore[arg-type]

    return call


def gating_within_limits(given: Rows) -> list[torch.Tensor]:
    given = leafed(given, "x")
    return pulled([ops.clamped_swiglu(given["x"][..., : V // 2 * 2], limit=1.0)], given, "x")


def rotating(interleaved: bool, width: int | None = None) -> Call:
    def call(given: Rows) -> list[torch.Tensor]:
        given = leafed(given, "q")
        tables = normal(40, 8, seed=5), normal(40, 8, seed=6)
        tables = tables if width is None else tuple(t[:, : width // 2] for t in tables)
        options = {"interleaved": interleaved, "rotary_dim": width}
        made = ops.rope(given["q"], given["q"], *tables, position_ids=given["ids"] % 40, **options)
        return pulled([made[0]], given, "q")

    return call


def norming_heads(rotated: bool) -> Call:
    def call(given: Rows) -> list[torch.Tensor]:
        given = leafed(given, "q")
        w = normal(16, seed=4).to(given["q"].dtype)
        tables = {"cos": normal(V, 8, seed=5), "sin": normal(V, 8, seed=6), "position_ids": given["ids"]}
        return pulled([ops.qk_norm(given["q"], w, **(tables if rotated else {}))], given, "q")

    return call


def looking_up(given: Rows) -> list[torch.Tensor]:
    return [ops.embedding(given["ids"], normal(V, 24, seed=7))]


def comparing(given: Rows) -> list[torch.Tensor]:
    given = leafed(given, "t")
    made = ops.ratio_kl(given["t"], given["g"], given["g"] + 0.3, mask=given["mask"])
    return pulled(list(made), given, "t")


CALLS: dict[str, Call] = {
    "logp": scoring,
    "jsd_loss": distilling(0.3),
    "jsd_loss forward": distilling(0.0),
    "jsd_loss reverse": distilling(1.0),
    "rms_norm hf_llama": norming("hf_llama"),
    "rms_norm gemma": norming("gemma"),
    "rms_norm vllm": norming("vllm"),
    "qk_norm": norming_heads(False),
    "qk_norm rotated": norming_heads(True),
    "swiglu": gating,
    "geglu": gelu_gating("tanh"),
    "geglu by erf": gelu_gating("none"),
    "clamped_swiglu": gating_within_limits,
    "rope": rotating(False),
    "rope partial": rotating(False, 10),
    "rope interleaved": rotating(True),
    "embedding": looking_up,
    "ratio_kl": comparing,
}


def batch(dtype: torch.dtype = torch.bfloat16) -> Rows:
    mask = torch.ones(ROWS, dtype=torch.bool)
    mask[4] = False
    return {
        "x": 3 * normal(ROWS, V, dtype=dtype),
        "r": normal(ROWS, V, seed=1, dtype=dtype),
        "q": normal(ROWS, 3, 16, seed=2, dtype=dtype),
        "t": normal(ROWS, seed=3),
        "g": normal(ROWS, seed=8),
        "ids": ids(V),
        "mask": mask,
    }


def moved(given: Rows, move: Move) -> Rows:
    return {name: move(x) for name, x in given.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", CALLS)
def test_a_row_alone_has_the_bits_of_the_row_in_a_batch(name: str, dtype: torch.dtype) -> None:
    given = batch(dtype)
    want = CALLS[name](given)
    for row in (0, 4, 7, ROWS - 1):
        got = CALLS[name](moved(given, lambda x, row=row: x[row : row + 1].clone()))  # type: ignore[misc]
        for a, b in zip(got, want, strict=True):
            assert_same_bits(a[0], b[row], f"{name}, row {row}")


@pytest.mark.parametrize("name", CALLS)
def test_order_neighbours_and_shape_of_rows_change_no_bit(name: str) -> None:
    given = batch()
    want = CALLS[name](given)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2))
    forms: dict[str, tuple[Move, Move]] = {
        "permuted": (lambda x: x[order], lambda y: y[order.argsort()]),
        "padded": (lambda x: torch.cat((x.flip(0)[:3], x, x.flip(0)[:2])), lambda y: y[3:-2]),
        "as a matrix": (lambda x: x.unflatten(0, (3, 4)), lambda y: y.flatten(0, 1)),
        "as a cube": (lambda x: x.unflatten(0, (2, 3, 2)), lambda y: y.flatten(0, 2)),
        "every other": (lambda x: torch.stack((x, x.flip(0)), 1).flatten(0, 1)[::2], lambda y: y),
        "of longer rows": (
            lambda x: torch.cat((x.unflatten(0, (3, 4)),) * 2, 1)[:, :4],
            lambda y: y.flatten(0, 1),
        ),
        "transposed": (
            lambda x: x.unflatten(0, (3, 4)).transpose(0, 1),
            lambda y: y.transpose(0, 1).flatten(0, 1),
        ),
    }
    for form, (there, back) in forms.items():
        rows = moved(given, there)
        for i, (a, b) in enumerate(zip(CALLS[name](rows), want, strict=True)):
            assert_same_bits(back(a), b, f"{name} {form}, result {i}")


@pytest.mark.parametrize("name", CALLS)
def test_a_call_repeats_itself(name: str) -> None:
    first, second = CALLS[name](batch()), CALLS[name](batch())
    for a, b in zip(first, second, strict=True):
        assert_same_bits(a, b)


def test_sums_over_rows_follow_the_rows_and_nothing_else() -> None:
    """dW of a norm: rows in other leading dims have its bits; rows in another order have not."""
    x, g = normal(600, N), normal(600, N, seed=1)

    def weight_grad(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        w = normal(N, seed=2).requires_grad_()
        ops.rms_norm(x, w).backward(g)
        assert w.grad is not None
        return w.grad

    want = weight_grad(x, g)
    assert_same_bits(weight_grad(x.reshape(20, 30, N), g.reshape(20, 30, N)), want)
    assert_same_bits(weight_grad(x.repeat(1, 2)[:, :N], g), want)
    assert differing(weight_grad(x.flip(0), g.flip(0)), want)


# negative controls


def other_fold(folder: Path, pattern: str, text: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return logp of a spec that was altered."""
    source, count = re.subn(pattern, text, Path(logp_spec.__file__).read_text(encoding="utf-8"))
    assert count
    path = folder / "altered.py"
    path.write_text(source, encoding="utf-8")
    op, _ = find(f"{path}:logp")
    return lambda x, i: calls.call(op, {"logits": x, "ids": i}, {"ignore_index": -100}, {"needs": ()})["logp"]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("chunk=256", "chunk=128"), ("split=8", "split=4"), ("split=8", "split=2"), ("chunk=256", "chunk=64")],
)
def test_another_fold_of_the_vocabulary_has_other_bits(pattern: str, text: str, tmp_path: Path) -> None:
    x, picked = 3 * normal(200, V), torch.randint(V, (200,))
    want = ops.logp(x, picked).logp
    assert differing(other_fold(tmp_path, pattern, text)(x, picked), want)


def test_the_same_fold_from_another_file_has_the_same_bits(tmp_path: Path) -> None:
    x, picked = 3 * normal(200, V), torch.randint(V, (200,))
    assert_same_bits(other_fold(tmp_path, "chunk=256", "chunk=256")(x, picked), ops.logp(x, picked).logp)


def test_the_order_of_the_vocabulary_and_plain_torch_have_other_bits() -> None:
    x, picked = 3 * normal(200, V), torch.randint(V, (200,))
    want = ops.logp(x, picked, needs=("lse",)).lse
    turned = ops.logp(x.flip(-1), V - 1 - picked, needs=("lse",)).lse
    assert differing(turned, want)
    assert differing(torch.logsumexp(x, -1), want)


def test_rows_whose_fold_follows_the_batch_would_be_seen() -> None:
    """A sum split by the number of rows, as tuned libraries split it, fails the law above."""

    def tuned(x: torch.Tensor) -> torch.Tensor:
        parts = 2 if len(x) > 4 else 7
        return torch.stack([part.sum(-1) for part in x.exp().chunk(parts, -1)]).sum(0)

    x = normal(ROWS, V)
    assert any(differing(tuned(x[row : row + 1])[0], tuned(x)[row]) for row in range(ROWS))
