"""Laws of distillation losses: their formula in float64, tokens without probability, rows that stay apart."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rlk import ops
from rlk.errors import Code, LaunchError, RlkError
from rlk.runtime.call import entry as calls
from rlk.runtime.registry import find
from rlk.specs import distill as spec
from rlk.testing.bits import as_bits, assert_same_bits, differing

BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ULP = {torch.float32: 2.0**-22, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
ROWS, V = (2, 3), 700
INF, NAN = math.inf, math.nan


def drawn(
    dtype: torch.dtype = torch.float32, apart: float = 1.0, rows: tuple[int, ...] = ROWS, vocabulary: int = V
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a student, and of a teacher that differs from it so much."""
    generator = torch.Generator().manual_seed(0)
    student = 3 * torch.randn(*rows, vocabulary, generator=generator)
    teacher = student + apart * torch.randn(*rows, vocabulary, generator=generator)
    return student.to(dtype), teacher.to(dtype)


def by_trl(
    student_logits: torch.Tensor, teacher_logits: torch.Tensor, beta: float, temperature: Any = 1.0
) -> torch.Tensor:
    """The steps of TRL's `GKDTrainer.generalized_jsd_loss`, in the dtype given, summed over tokens."""
    scale = temperature[..., None].double() if isinstance(temperature, torch.Tensor) else temperature
    lq, lp = (F.log_softmax(z / scale, -1) for z in (student_logits, teacher_logits))
    if beta == 0:
        terms = F.kl_div(lq, lp, reduction="none", log_target=True)
    elif beta == 1:
        terms = F.kl_div(lp, lq, reduction="none", log_target=True)
    else:
        lm = torch.logaddexp(lq + math.log(1 - beta), lp + math.log(beta))
        of_teacher = F.kl_div(lm, lp, reduction="none", log_target=True)
        of_student = F.kl_div(lm, lq, reduction="none", log_target=True)
        terms = beta * of_teacher + (1 - beta) * of_student
    return terms.sum(-1)


def close(got: torch.Tensor, want: torch.Tensor, rtol: float = 5e-6, atol: float = 1e-6) -> None:
    torch.testing.assert_close(got.detach().double(), want.detach().double(), rtol=rtol, atol=atol)


def pulled(student: torch.Tensor, teacher: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss and the gradient, of a cotangent that differs by row."""
    leaf = student.clone().requires_grad_()
    made = ops.jsd_loss(leaf, teacher, **options)
    made.backward(torch.linspace(-1.0, 2.0, made.numel()).reshape(made.shape))
    assert leaf.grad is not None and leaf.grad.dtype is student.dtype and made.dtype is torch.float32
    return made.detach(), leaf.grad


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "temperature of each row": {"temperature": torch.tensor([[0.5, 1.0, 2.0], [1.5, 0.9, 1.1]])},
}

# formulas


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("beta", BETAS)
def test_a_divergence_is_trls_with_its_gradient(beta: float, name: str, dtype: torch.dtype) -> None:
    student, teacher = drawn(dtype)
    wide = student.double().requires_grad_()
    want = by_trl(wide, teacher.double(), beta, **OPTIONS[name])
    want.backward(torch.linspace(-1.0, 2.0, want.numel()).reshape(want.shape).double())
    assert wide.grad is not None
    made, grad = pulled(student, teacher, beta=beta, **OPTIONS[name])
    close(made, want)
    close(grad, wide.grad, ULP[dtype] + 2e-5, 1e-6 if dtype is not torch.float16 else 1e-5)
    close(ops.jsd_loss.reference(student, teacher, beta=beta, **OPTIONS[name]), want, 1e-12, 1e-12)


def test_the_betas_of_both_kls_and_of_their_mixture_mean_what_the_paper_says() -> None:
    """p = (3/4, 1/4), q = (1/2, 1/2): KL(p | q) and KL(q | p) by hand, and the swapped ones as a control."""
    student, teacher = torch.zeros(1, 2), torch.tensor([[math.log(3.0), 0.0]])
    forward = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    reverse = 0.5 * math.log(2 / 3) + 0.5 * math.log(2.0)
    m = 0.25 * torch.tensor([0.75, 0.25]).double() + 0.75 * torch.tensor([0.5, 0.5]).double()
    p, q = torch.tensor([0.75, 0.25]).double(), torch.tensor([0.5, 0.5]).double()
    mixture = 0.25 * (p * (p / m).log()).sum() + 0.75 * (q * (q / m).log()).sum()
    for beta, want in ((0.0, forward), (1.0, reverse), (0.25, float(mixture))):
        assert ops.jsd_loss(student, teacher, beta=beta).item() == pytest.approx(want, rel=1e-5)
        swapped = ops.jsd_loss(teacher, student, beta=beta).item()
        assert swapped != pytest.approx(want, rel=1e-2)


def test_dtypes_of_student_and_teacher_need_not_agree() -> None:
    student, teacher = drawn(torch.bfloat16)
    wide = teacher.float() + 1e-3
    want = by_trl(student.double(), wide.double(), 0.5)
    made, grad = pulled(student, wide)
    close(made, want)
    assert grad.any()


@pytest.mark.parametrize("apart", [1e-3, 1e-2])
@pytest.mark.parametrize("beta", BETAS)
def test_a_small_divergence_keeps_its_digits_and_is_not_negative(beta: float, apart: float) -> None:
    """The control is the plain sum p (log p - log q), whose f32 error is that of a log-sum-exp."""
    student, teacher = drawn(apart=apart, rows=(64,))
    want = by_trl(student.double(), teacher.double(), beta)
    made = ops.jsd_loss(student, teacher, beta=beta)
    tolerance = 2e-6 / apart
    assert (made >= 0).all() and ((made - want).abs() <= tolerance * want).all()
    if beta in (0.0, 1.0):
        assert ((by_trl(student, teacher, beta) - want).abs() > tolerance * want).any()
    same, grad = pulled(student, student, beta=beta)
    assert not same.any()
    assert grad.abs().max() < 1e-7


@pytest.mark.parametrize("apart", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("beta", [1e-6, 1e-4, 0.5, 1 - 1e-6])
def test_a_small_mixture_has_the_absolute_error_that_its_page_says(beta: float, apart: float) -> None:
    """The controls are values below 0, and an error above a hundredth of the bound."""
    student, teacher = drawn(apart=apart, rows=(64,))
    want = by_trl(student.double(), teacher.double(), beta)
    lq, lp = (torch.log_softmax(x.double(), -1) for x in (student, teacher))
    bound = 2.0**-24 * ((beta * lp.exp() + (1 - beta) * lq.exp()) * (lp - lq).abs()).sum(-1)
    made = ops.jsd_loss(student, teacher, beta=beta)
    assert ((made - want).abs() <= 1.5 * bound).all() and (made >= -1.5 * bound).all()
    assert ((made - want).abs() > 0.01 * bound).any()
    assert beta != 1e-6 or (made < 0).any()


@pytest.mark.parametrize("beta", BETAS)
def test_models_far_apart_stay_finite(beta: float) -> None:
    """Log-probs that differ by thousands: e^d overflows, the divergence of a mixture is at most log 2."""
    student, teacher = drawn(apart=0.0)
    student[..., 3], teacher[..., 5] = 3000.0, 3000.0
    made, grad = pulled(student, teacher, beta=beta)
    close(made, by_trl(student.double(), teacher.double(), beta))
    assert made.isfinite().all() and grad.isfinite().all()


@pytest.mark.parametrize("beta", [2.0**-24, 1e-7, 1 - 1e-7, 1 - 2.0**-24])
def test_a_beta_next_to_an_end_is_a_mixture_still(beta: float) -> None:
    """A mixture next to 0 or 1 is almost no divergence; the KLs at 0 and 1 are something else."""
    student, teacher = drawn(apart=9.0)
    student[..., :5], teacher[..., 5:9] = -INF, -INF
    made, grad = pulled(student, teacher, beta=beta)
    assert made.isfinite().all() and grad.isfinite().all() and (made.abs() < 1e-4).all()
    assert (ops.jsd_loss(student, teacher, beta=round(beta)) == INF).all()


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("beta", [1e-6, 1 - 1e-6])
def test_a_beta_next_to_an_end_keeps_the_digits_of_the_other_weight(beta: float, linear: bool) -> None:
    """The control is 1 - beta of a beta that was rounded to f32, an error of a hundredth."""
    student = torch.zeros(8, 40, dtype=torch.bfloat16)
    teacher = student.clone()
    student[:, 3], teacher[:, 5] = 16.0 + torch.arange(8), 16.0  # far apart: terms that cancel are small
    wide = student.double().requires_grad_()
    want = by_trl(wide, teacher.double(), beta)
    want.sum().backward()
    leaf = student.clone().requires_grad_()
    made = (
        ops.linear_jsd_loss(leaf, torch.eye(40).bfloat16(), teacher, torch.eye(40).bfloat16(), beta=beta)
        if linear
        else ops.jsd_loss(leaf, teacher, beta=beta)
    )
    made.sum().backward()
    assert leaf.grad is not None and wide.grad is not None
    assert ((made - want).abs() <= 2e-3 * want).all()
    rounded = by_trl(student.double(), teacher.double(), torch.tensor(beta).item())
    if beta > 0.5:
        assert ((rounded - want).abs() > 5e-3 * want).all()
        close(leaf.grad, wide.grad, 2.0**-7, 1e-9)


# tokens without probability


@pytest.mark.parametrize("beta", BETAS)
def test_a_token_that_both_models_exclude_is_not_there(beta: float) -> None:
    student, teacher = drawn()
    student[..., 100:300], teacher[..., 100:300] = -INF, -INF
    rest = [torch.cat((x[..., :100], x[..., 300:]), -1) for x in (student, teacher)]
    made, grad = pulled(student, teacher, beta=beta)
    close(made, by_trl(rest[0].double(), rest[1].double(), beta))
    assert grad.isfinite().all() and not grad[..., 100:300].any()


@pytest.mark.parametrize("excluded", ["student", "teacher"])
@pytest.mark.parametrize("beta", BETAS)
def test_a_token_that_one_model_excludes_makes_one_kl_infinite(beta: float, excluded: str) -> None:
    student, teacher = drawn()
    (student if excluded == "student" else teacher)[..., 7] = -INF
    made, grad = pulled(student, teacher, beta=beta)
    if (beta, excluded) in ((0.0, "student"), (1.0, "teacher")):
        assert (made == INF).all()
    else:
        p, q = (torch.softmax(x.double(), -1) for x in (teacher, student))
        if beta in (0.0, 1.0):
            a, b = (p, q) if beta == 0.0 else (q, p)
            want = torch.where(a == 0, 0.0, a * (a / b).log()).sum(-1)
        else:
            m = beta * p + (1 - beta) * q
            want = sum(
                w * torch.where(a == 0, 0.0, a * (a / m).log()).sum(-1) for w, a in ((beta, p), (1 - beta, q))
            )
        close(made, want)
        assert grad.isfinite().all()
    if beta == 0.0:
        weights = torch.linspace(-1.0, 2.0, 6).reshape(ROWS)[..., None].double()
        difference = torch.softmax(student.double(), -1) - torch.softmax(teacher.double(), -1)
        close(grad, weights * difference, 2e-5)
    elif excluded == "student":
        assert not grad[..., 7].any()


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("odd", [NAN, INF, -INF])
@pytest.mark.parametrize("side", [0, 1])
def test_a_row_that_is_no_distribution_is_nan_and_no_other(side: int, odd: float, beta: float) -> None:
    pair = drawn(rows=(5,))
    want = ops.jsd_loss(*pair, beta=beta)
    if odd == -INF:
        pair[side][2] = -INF
    else:
        pair[side][2, 411] = odd
    made = ops.jsd_loss(*pair, beta=beta)
    others = torch.tensor([0, 1, 3, 4])
    assert made[2].isnan()
    assert_same_bits(made[others], want[others])


@pytest.mark.parametrize("temperature", [0.0, -1.0, NAN, INF])
def test_a_temperature_of_a_row_that_is_not_positive_gives_nan(temperature: float) -> None:
    student, teacher = drawn(rows=(3,))
    made = ops.jsd_loss(student, teacher, temperature=torch.tensor([1.0, temperature, 1.0]))
    assert made.isnan().tolist() == [False, True, False]


# rows


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_rows_that_do_not_count_are_not_read(beta: float) -> None:
    student, teacher = drawn(rows=(5,))
    mask = torch.tensor([True, False, True, True, False])
    want, slope = pulled(student, teacher, beta=beta, mask=mask)
    student[1], teacher[1], student[4] = NAN, INF, -INF
    made, grad = pulled(student, teacher, beta=beta, mask=mask)
    assert_same_bits(made, want)
    assert_same_bits(grad, slope)
    assert not as_bits(made[~mask]).any() and not as_bits(grad[~mask]).any()
    assert ops.jsd_loss(student, teacher, beta=beta)[1].isnan(), "it would be seen"


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_a_row_has_the_same_bits_in_every_batch(beta: float) -> None:
    student, teacher = drawn(torch.bfloat16, rows=(12,), vocabulary=2049)
    temperature = 0.5 + torch.rand(12, generator=torch.Generator().manual_seed(3))

    def call(rows: torch.Tensor) -> list[torch.Tensor]:
        leaf = student[rows].requires_grad_()
        made = ops.jsd_loss(leaf, teacher[rows], beta=beta, temperature=temperature[rows])
        made.sum().backward()
        assert leaf.grad is not None
        return [made.detach(), leaf.grad]

    want = call(torch.arange(12))
    for rows in (
        torch.tensor([7]),
        torch.tensor([11, 3]),
        torch.arange(12).flip(0),
        torch.arange(12).repeat(3),
    ):
        for got, whole in zip(call(rows), want, strict=True):
            assert_same_bits(got, whole[rows])
    wide = torch.stack((student, student.flip(0)), 1).flatten(0, 1)[::2]
    assert_same_bits(ops.jsd_loss(wide, teacher, beta=beta, temperature=temperature), want[0])
    shaped = ops.jsd_loss(
        student.view(3, 4, -1), teacher.view(3, 4, -1), beta=beta, temperature=temperature.view(3, 4)
    )
    assert_same_bits(shaped.flatten(), want[0])


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_another_order_of_the_vocabulary_has_other_bits(beta: float) -> None:
    """The control: a sum in another order, and plain torch, are seen."""
    student, teacher = drawn(rows=(100,), vocabulary=2049)
    want = ops.jsd_loss(student, teacher, beta=beta)
    assert differing(ops.jsd_loss(student.flip(-1), teacher.flip(-1), beta=beta), want)
    assert differing(by_trl(student, teacher, beta), want)


@pytest.mark.parametrize(("pattern", "text"), [("chunk=256", "chunk=128"), ("split=8", "split=4")])
def test_another_fold_has_other_bits(pattern: str, text: str, tmp_path: Path) -> None:
    source = Path(spec.__file__).read_text(encoding="utf-8")
    fold = 'V = Axis("V", chunk=256, split=8)'
    source, count = re.subn(
        r"import LOG2E, Scoring, V, inverse_of", "import LOG2E, Scoring, inverse_of", source
    )
    assert count == 1
    student, teacher = drawn(rows=(100,), vocabulary=2049)
    want = ops.jsd_loss(student, teacher)
    for name, line in (("same", fold), ("other", fold.replace(pattern, text))):
        path = tmp_path / f"{name}.py"
        path.write_text(source.replace('T = Axis("T", dynamic=True)', f'T = Axis("T", dynamic=True)\n{line}'))
        altered, _ = find(f"{path}:jsd_loss")
        tensors = {"student_logits": student, "teacher_logits": teacher}
        made = calls.call(altered, tensors, {"beta": 0.5, "rest": 0.5}, {"form": "mixture"})["loss"]
        assert bool(differing(made, want)) is (name == "other")


def test_no_rows_give_nothing() -> None:
    student, teacher = drawn(rows=(0,))
    made, grad = pulled(student, teacher)
    assert made.shape == (0,) and grad.shape == (0, V)


# refusals

X, Y = drawn(rows=(3,), vocabulary=8)
WARM = torch.ones(3)
REFUSED: dict[str, tuple[dict[str, Any], Code, str]] = {
    "a beta below 0": ({"beta": -0.1}, Code.ARG_VALUE, "a finite number of at least 0 and of at most 1"),
    "a beta above 1": ({"beta": 1.5}, Code.ARG_VALUE, "beta=1.5"),
    "a beta of NaN": ({"beta": NAN}, Code.ARG_VALUE, "beta=nan"),
    "a beta that f32 rounds to 1": ({"beta": 1 - 1e-12}, Code.ARG_VALUE, "at least 5.96e-08 from both"),
    "a beta that f32 rounds to 0": ({"beta": 1e-60}, Code.ARG_VALUE, "a number at least 5.96e-08 from both"),
    "a tensor as beta": ({"beta": torch.tensor(0.5)}, Code.ARG_TYPE, "beta"),
    "a temperature of 0": ({"temperature": 0.0}, Code.ARG_VALUE, "temperature=0.0"),
    "integers as temperatures": ({"temperature": torch.arange(1, 4)}, Code.ARG_DTYPE, "temperature"),
    "temperatures of other rows": ({"temperature": torch.ones(4)}, Code.ARG_SHAPE, "temperature"),
    "a temperature of fewer dims": (
        {"student_logits": X.expand(3, 3, 8), "teacher_logits": Y.expand(3, 3, 8), "temperature": WARM},
        Code.ARG_SHAPE,
        "temperature has shape (3,), expected (3, 3) as the rows of student_logits have",
    ),
    "a mask of other rows": ({"mask": torch.ones(4, dtype=torch.bool)}, Code.ARG_SIZE, "mask"),
    "a mask of numbers": ({"mask": torch.ones(3)}, Code.ARG_DTYPE, "mask"),
    "a teacher of another vocabulary": ({"teacher_logits": Y[:, 1:]}, Code.ARG_SIZE, "teacher_logits"),
    "a teacher of other rows": ({"teacher_logits": Y[1:]}, Code.ARG_SIZE, "teacher_logits"),
    "a teacher of doubles": ({"teacher_logits": Y.double()}, Code.ARG_DTYPE, "teacher_logits"),
    "no teacher": ({"teacher_logits": None}, Code.ARG_TYPE, "teacher_logits"),
    "no vocabulary": ({"student_logits": X[:, :0], "teacher_logits": Y[:, :0]}, Code.ARG_VALUE, "shape"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_by_name(name: str) -> None:
    options, code, text = REFUSED[name]
    with pytest.raises(LaunchError) as caught:
        ops.jsd_loss(**{"student_logits": X, "teacher_logits": Y, **options})
    message = str(caught.value)
    assert caught.value.code is code and message.startswith("jsd_loss: ") and text in message


def test_a_temperature_may_be_one_for_a_dim_of_the_rows() -> None:
    wide = (X.expand(3, 3, 8), Y.expand(3, 3, 8))
    heat = torch.tensor([[0.5], [1.0], [2.0]])
    assert_same_bits(
        ops.jsd_loss(*wide, temperature=heat),
        ops.jsd_loss(*wide, temperature=heat.expand(3, 3).contiguous()),
    )


def test_a_teacher_has_no_gradient() -> None:
    with pytest.raises(RlkError, match="teacher_logits"):
        ops.jsd_loss(X, Y.clone().requires_grad_())
