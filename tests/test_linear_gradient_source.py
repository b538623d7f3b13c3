"""The generated source of a linear head's gradient has the oracle's bits under any schedule."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from linear_cases import Grads, cotangents, head, options_of

from rlk import ops
from rlk.ir.nodes import Dot, Kernel
from rlk.lower.common.emitted import Emitted
from rlk.passes.walk import walk
from rlk.runtime.call import dispatch as runtime
from rlk.runtime.call.dispatch import dispatch
from rlk.schedule.schedule import Schedule
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators.interpreter import interpret

Change = Callable[[Kernel, Schedule], Schedule]
DESCRIPTOR = "make_tensor_descriptor"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave the oracle in charge; fill memory that nobody wrote with NaN, so that reading it is seen."""
    before = dispatch.interpreter
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
    dispatch.interpret_with(before)


@dataclass
class Backward:
    """A forward call that the oracle made, and its gradients by the oracle or by generated source."""

    leaves: list[torch.Tensor]
    outputs: list[torch.Tensor]
    given: Grads

    def run(self) -> list[torch.Tensor]:
        found = torch.autograd.grad(self.outputs, self.leaves, list(self.given.values()), retain_graph=True)
        return list(found)

    def by_oracle(self) -> list[torch.Tensor]:
        dispatch.interpret_with(None)
        return self.run()

    def by_triton(self, monkeypatch: pytest.MonkeyPatch, change: Change, edit: Edit = str) -> Ran:
        """Run generated source with every schedule changed, and the text edited."""
        texts: list[Emitted] = []
        real: Any = runtime.lowered

        def lowered(*args: Any) -> Any:
            program, _, chosen, _ = real(*args[:5])
            schedules = tuple(change(k, s) for k, s in zip(program.kernels, chosen, strict=True))
            *made, emitted = real(*args[:5], schedules)
            texts.append(replace(emitted, source=edit(emitted.source)))
            return (*made, texts[-1])

        with monkeypatch.context() as patched:
            patched.setattr(runtime, "lowered", lowered)
            dispatch.interpret_with(interpret)
            grads = self.run()
        (emitted,) = texts
        return Ran(grads, emitted.source)


Edit = Callable[[str], str]


@dataclass
class Ran:
    grads: list[torch.Tensor]
    source: str


def backward(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    ids: torch.Tensor,
    given: Grads,
    wanted: tuple[str, ...] = ("hidden", "weight"),
    view: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
    **options: Any,
) -> Backward:
    """Run the forward in the oracle; view: what of hidden is passed."""
    dispatch.interpret_with(None)
    leaves = {"hidden": hidden, "weight": weight}
    asked = [leaves[name].requires_grad_() for name in wanted]
    made = ops.linear_logp(view(hidden), weight, ids, needs=tuple(given), **options)
    return Backward(asked, [getattr(made, name) for name in given], given)


def case(rows: int, depth: int, vocabulary: int, dtype: torch.dtype = torch.bfloat16) -> Backward:
    return backward(*head((rows,), depth, vocabulary, dtype), cotangents((rows,)))


def chosen(_: Kernel, schedule: Schedule) -> Schedule:
    return schedule


def compare(ran: Ran, want: list[torch.Tensor]) -> None:
    for i, (a, b) in enumerate(zip(ran.grads, want, strict=True)):
        assert_same_bits(a, b, f"gradient {i}")


# --- sizes, options and layouts ---

SIZES = [(1, 64, 517), (1, 24, 3), (7, 72, 301), (40, 64, 1024), (130, 16, 100), (5, 1, 1), (3, 33, 7)]


@pytest.mark.parametrize(("rows", "depth", "vocabulary"), SIZES)
def test_any_size_has_the_bits_of_the_oracle(
    rows: int, depth: int, vocabulary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = case(rows, depth, vocabulary, torch.float16 if rows % 2 else torch.bfloat16)
    compare(it.by_triton(monkeypatch, chosen), it.by_oracle())


@pytest.mark.parametrize("math", ["portable", "sm90"])
@pytest.mark.parametrize("name", ["temperature by row", "mask", "everything"])
def test_any_option_has_the_bits_of_the_oracle(name: str, math: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, vocabulary = (2, 7), 301
    options = {**options_of(rows, vocabulary, torch.bfloat16)[name], "math": math}
    given = cotangents(rows, ("logp", "lse", "entropy"))
    it = backward(*head(rows, 40, vocabulary), given, **options)
    compare(it.by_triton(monkeypatch, chosen), it.by_oracle())


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all but the last token": lambda x: x[:, :-1],
    "every second token": lambda x: x[:, 1:6:2],
    "half of the columns": lambda x: x[..., :32],
    "expanded": lambda x: x[:1].expand(3, 6, 64),
}


@pytest.mark.parametrize("name", VIEWS)
def test_hidden_may_have_any_strides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, ids = head((3, 6), 64, 100)
    shape = VIEWS[name](hidden).shape
    it = backward(
        hidden, weight[:, : shape[-1]].detach().clone(), ids[: shape[0], : shape[1]],
        cotangents(tuple(shape[:-1])), view=VIEWS[name],
    )  # fmt: skip
    compare(it.by_triton(monkeypatch, chosen), it.by_oracle())


def test_two_nests_of_loops_have_the_bits_of_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 8192 rows: the partial results of one nest lie where those of the other were."""
    it = case(8200, 16, 5)
    ran = it.by_triton(monkeypatch, chosen)
    assert len(re.findall(r"^    for T_piece in", ran.source, re.M)) == 1
    assert len(re.findall(r"^    for V_piece in", ran.source, re.M)) == 1
    compare(ran, it.by_oracle())


@pytest.mark.parametrize("name", ["plain", "everything"])
def test_kept_logits_have_the_bits_of_the_oracle(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, vocabulary = (2, 7), 301
    options = options_of(rows, vocabulary, torch.bfloat16)[name]
    tensors, given = head(rows, 40, vocabulary), cotangents(rows, ("logp", "entropy"))
    want = backward(*tensors, given, **options).by_oracle()
    dispatch.interpret_with(interpret)  # the forward too: what it keeps is its own
    hidden, weight = (x.detach().requires_grad_() for x in tensors[:2])
    made = ops.linear_logp(hidden, weight, tensors[2], needs=tuple(given), keep_logits=1 << 20, **options)
    outputs = [getattr(made, field) for field in given]
    ran = Backward([hidden, weight], outputs, given).by_triton(monkeypatch, chosen)
    assert "logits_ptr" in ran.source
    compare(ran, want)


@pytest.mark.parametrize("rows", [20, 8200])
def test_a_buffer_of_generated_source_has_the_bits_of_the_oracle(rows: int) -> None:
    hidden, weight, ids = head((rows,), 16, 5)
    found = []
    for interpreter in (None, interpret):
        dispatch.interpret_with(None)
        buffer = torch.linspace(-1, 1, weight.numel()).view(weight.shape)
        leaf = weight.detach().requires_grad_()
        made = ops.linear_logp(hidden, leaf, ids, weight_grad_out=buffer).logp
        dispatch.interpret_with(interpreter)
        made.backward(cotangents((rows,))["logp"])
        assert leaf.grad is None
        found.append(buffer)
    assert_same_bits(found[1], found[0], "buffer")


# --- schedules ---


def contracts(kernel: Kernel) -> bool:
    return any(isinstance(let.node, Dot) for let in walk(kernel.body))


def of_dots(**fields: Any) -> Change:
    """Change fields of the schedules of contractions; tile: of both of their axes."""

    def change(kernel: Kernel, schedule: Schedule) -> Schedule:
        if not contracts(kernel):
            return replace(schedule, warps=1)
        rest = {name: x for name, x in fields.items() if name != "tile"}
        tiles = tuple((axis, fields.get("tile", n)) for axis, n in schedule.tiles)
        return replace(schedule, tiles=tiles, **rest)

    return change


SCHEDULES: dict[str, Change] = {
    "chosen": chosen,
    "smallest tiles": of_dots(tile=16, depth=16, programs=0, flat=False, parts=1),
    "one loop": of_dots(tile=32, depth=32, programs=3, flat=True, parts=1, group=2),
    "turns": of_dots(tile=64, depth=16, programs=2, flat=False, parts=1, group=3),
    "parts": of_dots(tile=64, depth=64, parts=2, programs=0, flat=False),
    "many parts in turns": of_dots(tile=128, depth=32, parts=4, programs=5, flat=False, warps=8),
    "parts in one loop": of_dots(tile=32, depth=64, parts=2, programs=2, flat=True),
    "by pointers": of_dots(descriptors=False),
    "small, by pointers": of_dots(tile=16, depth=32, descriptors=False, programs=4, flat=False, parts=1),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_schedule_changes_a_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for size, dtype in (((40, 64, 520), torch.bfloat16), ((33, 48, 301), torch.float16)):
        it = case(*size, dtype)
        ran = it.by_triton(monkeypatch, SCHEDULES[name])
        compare(ran, it.by_oracle())
        assert (DESCRIPTOR in ran.source) == ("pointers" not in name)
        assert "halves(" in ran.source or "parts" not in name


def test_a_depth_that_does_not_divide_a_row_is_read_by_pointers(monkeypatch: pytest.MonkeyPatch) -> None:
    """72 bytes apart hidden's rows are not aligned; the workspaces of pieces always are."""
    it = case(20, 36, 300)
    ran = it.by_triton(monkeypatch, chosen)
    compare(ran, it.by_oracle())
    assert "weight_tiles" not in ran.source and "dz_tiles" in ran.source


@pytest.mark.parametrize("wanted", ["hidden", "weight"])
def test_a_frozen_input_has_no_kernel(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, given = head((20,), 64, 100), cotangents((20,))
    both = backward(*tensors, given).by_oracle()
    hidden, weight, ids = (x.detach() for x in tensors)
    one = backward(hidden, weight, ids, given, (wanted,))
    ran = one.by_triton(monkeypatch, chosen)
    other = {"hidden": "weight", "weight": "hidden"}[wanted]
    assert f"d_{wanted}" in ran.source and f"d_{other}" not in ran.source
    assert ("merged_" in ran.source) == (wanted == "hidden")
    compare(ran, [both[0 if wanted == "hidden" else 1]])


# --- controls ---


def wrong(edit: Edit, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many elements of each gradient differ after an edit of the generated text."""

    def seen(source: str) -> str:
        assert edit(source) != source
        return edit(source)

    it = case(40, 64, 801, torch.float16)
    ran = it.by_triton(monkeypatch, of_dots(tile=32, depth=16, parts=1, programs=0, flat=False), seen)
    return [differing(a, b) for a, b in zip(ran.grads, it.by_oracle(), strict=True)]


def test_pieces_merged_in_another_order_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    swaps = {"in (0, 2, 4, 6)": "in (0, 1, 4, 6)", "in (1, 5)": "in (2, 5)"}

    def edit(source: str) -> str:
        for old, new in swaps.items():
            source = source.replace(old, new)
        return source

    hidden, weight = wrong(edit, monkeypatch)
    assert hidden and not weight


def test_partial_results_of_16_bits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = re.compile(r"(tl\.store\(merged_3_0_ptr.*?, )(\w+)(, mask)")

    def edit(source: str) -> str:
        return pattern.sub(r"\1\2.to(tl.float16).to(tl.float32)\3", source)

    hidden, weight = wrong(edit, monkeypatch)
    assert hidden > 100 and not weight


def test_rows_in_another_order_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows change places in what is compacted: no result but the sum over rows knows."""

    def prepare(saved: Any, scalars: Any) -> Any:
        order = real(saved, scalars)["order"]
        return {"order": torch.cat((order[8:24], order[:8], order[24:]))}

    from rlk.specs.linear_logp import linear_logp

    it = case(70, 64, 1001, torch.float16)
    want, real = it.by_oracle(), linear_logp.calls.prepare
    monkeypatch.setattr(linear_logp.calls, "prepare", prepare)
    hidden, weight = (differing(a, b) for a, b in zip(it.by_oracle(), want, strict=True))
    assert weight and not hidden
