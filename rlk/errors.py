"""Every error that rlk raises on purpose: a code, a place, what was found, and what to write instead."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Self


@dataclass(frozen=True, slots=True)
class Loc:
    """A place in the author's source: file, line, and the name of the spec it belongs to."""

    file: str = "<unknown>"
    line: int = 0

    def __str__(self) -> str:
        return f"{_short(self.file)}:{self.line}"

    def source(self) -> str:
        """Return the stripped source line, or an empty string when the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def mentions(self, name: str) -> bool:
        """Return whether the source line has a name as a word of its own."""
        return re.search(rf"\b{re.escape(name)}\b", self.source()) is not None


NOWHERE = Loc()


def _short(file: str) -> str:
    """Keep the last two parts of a path: enough to find the file, stable across machines."""
    return "/".join(Path(file).parts[-2:])


_LANGUAGE = tuple(str(Path(__file__).parent / part) for part in ("ir", "lang"))


def author() -> Loc:
    """Return the innermost running line outside the language and the IR: what the author of a spec wrote."""
    frame = _author_frame(sys._getframe(1))
    return Loc(frame.f_code.co_filename, frame.f_lineno)


def author_variables() -> list[tuple[str, object]]:
    """Return the local variables of the author's running functions, the outermost function's first."""
    frame: FrameType | None = _author_frame(sys._getframe(1))
    found: list[tuple[str, object]] = []
    while frame is not None and not _is_language(frame.f_code.co_filename):
        found[:0] = frame.f_locals.items()
        frame = frame.f_back
    return found


def _author_frame(frame: FrameType) -> FrameType:
    while frame.f_back is not None and _is_language(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_language(file: str) -> bool:
    # <string>: the __init__ that dataclasses write
    return file.startswith(_LANGUAGE) or file == "<string>" or file.endswith("contextlib.py")


class Code(Enum):
    """A stable error code: its message template and the lines that say how to mend it."""

    # authors of specs
    FLOAT_SUM_NEEDS_TREE = (
        "float sum over {axis} needs a fixed order",
        "write tree=Tree.halving, or use L.max where order does not matter",
    )
    TREE_NOT_A_PERMUTATION = ("{order} is not a permutation of index bits", "list each bit 0..n-1 once")
    TREE_WIDTH = ("a tree of {bits} bits cannot order {width} terms", "use a rule such as Tree.halving")
    STREAM_LEAK = (
        "a value made inside a stream (line {made}) is used after it",
        "carry it out with L.total(...) or L.softmax_sum(...)",
    )
    STREAM_NESTED = (
        "{what} inside a stream of {outer}",
        "write a stream of an axis without piece=, and its fold; or both before the outer stream",
    )
    STREAM_BROKEN = (
        "a stream is left before its end",
        "write no break and no return inside it; leave elements out with L.where",
    )
    TILE_HAS_NO_TRUTH = (
        "a tile has no truth value while tracing",
        "write L.where(condition, a, b) for if, & | ~ for and, or, not; L.minimum, L.maximum for min, max",
    )
    TILE_NOT_ITERABLE = ("a tile cannot be iterated while tracing", "use L.stream(axis)")
    NO_SUCH_AXIS = ("{what} has no axis {axis} (its axes are {axes})", "name an axis the tile has")
    AXIS_NEEDS_CHUNK = ("axis {axis} is streamed but has no chunk", "declare Axis({axis!r}, chunk=...)")
    AXIS_LEAF = ("axis {axis}: leaf={leaf!r} is unknown", 'use leaf="chunk", "piece" or "segment"')
    AXIS_LEAF_SIZE = (
        "axis {axis}: its leaf is the piece, but {piece} elements are no whole number of chunks of {chunk}",
        "declare piece= as a multiple of chunk=",
    )
    AXIS_SEGMENT = (
        "axis {axis}: its leaf is the segment, so that it has chunks ({chunk}) and neither split nor piece",
        "declare chunk= alone",
    )
    AXIS_SIZE = ("axis {axis}: {field}={value} must be a power of two", "choose a power of two")
    AXIS_EXTENT = (
        "axis {axis}: extent={extent} is not allowed{why}",
        "give a whole number from 1, or what follows from another axis: N // 4, N * 2, -(-N // 128)",
    )
    EXTENT_OF = (
        "{what} is no extent",
        "divide or multiply a whole axis by a whole number from 1: N // 4, N * 2, -(-N // 128)",
        "for another length: no extent=, and a tensor parameter that has the axis",
    )
    AXIS_TWO_CUTS = ("axis {axis} has both split and piece", "keep one: split is a count, piece a size")
    AXIS_FAN_IN = ("axis {axis} has a fan_in but no pieces", "declare Axis({axis!r}, piece=..., fan_in=...)")
    FAN_IN_NEEDS_SUM = (
        "{what} over axis {axis} would merge its pieces by fan_in={fan_in}",
        "fan_in adds the sums of pieces: use L.total, or an axis without fan_in",
    )
    AXIS_TWO_ROLES = (
        "axis {axis} is used whole, or streamed again, inside its own stream",
        "take its chunk there, x[v] and v.pos, reduced by a fold: L.total(); or do it outside of it",
    )
    TILE_OPERATOR = ("{what} is not defined for tiles", "write {instead}")
    DTYPE_UNKNOWN = ("{what}: {got!r} is no dtype", "write one of rlk.lang: {choices}")
    DTYPE_OF_NUMBERS = (
        "{what}: the number {value} has no dtype, and no tile beside it that has one",
        "write L.number({value}, i32), or with another dtype; a Python float is an f32",
    )
    VALUE_WANTED = ("{what} needs a tile or a number, got {got}", "{instead}")
    FOLD_AS_VALUE = ("fold {what} is used as a value", "write {instead}")
    OPTIONAL_ABSENT = (
        "{name} is None here: this variant is that of calls without it",
        "write its terms under: if {name} is not None",
    )
    AXIS_WANTED = (
        "{what}: {got!r} is no Axis",
        'name the axis itself, as in over=N for N = Axis("N")',
    )
    ORDER_WANTED = (
        "{what}: {got!r} is no order of a sum",
        "write Tree.halving, Tree.pairwise or Tree.vector8",
    )
    DTYPE_MIX = ("{what} mixes {a} and {b}", "cast one side with .to(dtype)")
    DTYPE_WANTED = ("{what} needs {wanted}, got {got}", "cast with .to(dtype)")
    QUOTIENT = (
        "{sign} is of {wanted}, got {got}",
        "write a / b for floats and a // b for integers, or cast with .to(dtype)",
    )
    INTEGER_UNDEFINED = (
        "{what} is not defined: {rule}",
        "limit the operands first, with L.maximum(x, 0), L.clip or L.where",
    )
    INDEX_COUNT = ("{what} has {dims} dims, got {got} indices", "give one index per dim")
    INDEX_WHAT = (
        "{what} cannot be indexed by {got}",
        "x[v] is of a stream; write x.at(index, N) for a gather: of each dim its axis, an integer or a tile",
    )
    INSIDE_WHAT = (
        "{what}.at: inside={got!r} names no dims",
        "use True, a dim as an axis, or a tuple of them",
    )
    OUTPUT_TWICE = ("output {name} is written twice", "write each output once")
    OUTPUT_IS_INPUT = ("output {name} has the name of a parameter of the spec", "choose another name for it")
    RESERVED_NAME = ("{name}: generated kernels use this name", "choose another, such as {instead}")
    OUTPUT_MISSING = ("the spec writes no output", "end with return L.out(name=value, ...)")
    OUTPUT_IN_STREAM = ("output {name} lives inside a stream", "use L.emit(...) inside it, or carry it out")
    KEEP_IN_STREAM = ("{name} is kept inside a stream", "keep it before or after the stream")
    OUTPUT_AXES = ("output {name} is stored without its axis {axis}", "outputs keep every parallel axis")
    UNKNOWN_NAME = ("{what} {name!r} is unknown", "choose one of: {choices}")
    TENSOR_AXIS = (
        "Tensor: the dim {got!r} is no Axis",
        'declare it first: N = Axis("N"{extent}), then Tensor[f32, N]',
    )
    PARAM_KIND = (
        "parameter {name}: {found} is not a tensor, scalar or static",
        "annotate {instead}",
    )
    NOT_CALLED = ("@{name} is written without parentheses", "write @{instead}")
    RANGE_EMPTY = ("Scalar: no number is from {least} to {most}", "write Scalar[f32, smallest:largest]")
    DEFAULT_REFUSED = (
        "parameter {name}: a call may not give its default, {value!r}",
        "write a default that is {accepted}",
    )
    INTO_WRONG = (
        "output {name} cannot be written into {input}: {why}",
        "an output has the dtype and dims of the input that it is written into; an input takes one",
    )
    INTO_GRADIENT = (
        "{op} writes {name} into its input {input}, so it has no gradient",
        "leave into= out, and write a second operator that returns its outputs",
    )
    VJP_WRT = ("vjp names {name!r}, which is no floating input of {op}", "name tensor inputs of the operator")
    VJP_OF_NOTHING = ("vjp of {op} names no input", 'name those that it is differentiable in: @{op}.vjp("x")')
    VJP_TWICE = ("vjp of {op} names {name!r} twice", "name each input once")
    VJP_OUTPUTS = ("vjp of {op} returns {got}, expected {wanted}", "return one cotangent per named input")
    VJP_COTANGENT = (
        "the vjp of {op} takes {name}, which is no cotangent of an output of {op}",
        "cotangents are named d_<output>, here: {choices}",
    )
    VJP_WITHOUT_COTANGENT = (
        "the vjp of {op} takes no cotangent: no output of {op} would have a gradient",
        "name its tensor parameters d_<output>, here: {choices}",
    )
    VJP_COTANGENT_TYPE = (
        "vjp of {op}: {output} is {wanted}, but its cotangent {name} is {got}",
        "declare {name}: {annotation}",
    )
    VJP_DTYPE = ("vjp of {op}: {name} is {got}, but {input} is {wanted}", "cast it with .to({wanted})")
    VJP_DIMS = (
        "vjp of {op}: {name} has the dims {got}, {input} has {wanted}",
        'write L.place("{name}", ({wanted}), ({{}}, tile)) in place of {name}=tile in L.out',
    )
    VJP_SAVED = ("{name!r} is not saved by {op}", "add it to saves=(...)")
    VJP_DERIVED = ("the gradient of {op} cannot be derived through {what}", "{instead}")
    VJP_SUM = (
        "the derived gradient of {op} is a sum over {axes}, in an order that no field of an axis states",
        'give each chunk=, and piece= for parallel sums: Axis("{axis}", chunk=1, piece=64, ...)',
    )
    TRACE_OUTSIDE = ("L.{what} is used outside a traced spec", "call it inside an @op function")
    FOLD_UNUSED = ("fold {what} absorbed nothing", "absorb once inside a stream")
    FOLD_WITHOUT_ENTROPY = (
        "fold {what} has no sum of e (z - max)",
        "declare L.softmax_sum(entropy=True), or L.softmax_states(..., centred=...)",
    )
    FOLD_TWICE = ("fold {what} absorbs twice", "absorb once per stream")
    CARRY_STEPS = (
        "{what} along axis {axis}, which is taken by {taken}",
        "declare an axis with neither split, piece nor leaf; reduce chunks in another stream",
    )
    WHOLE_OF_STREAM = (
        "a reduction over all of {axis} by chunks, of what line {made} keeps or makes of a stream",
        'write it to memory, L.table(x, "name"), and reduce its .at(...); or absorb it in that stream',
    )
    TOP_COUNT = (
        "the k of a top is {k}",
        "L.top(k) of a Python number k of 1 to {most} has .values and .indices",
    )
    CARRY_TYPE = ("a carry of {held} is handed {given}", "name its rows in L.carry(init, rows), and cast")
    FOLD_LEAF = (
        "fold {what} absorbs along axis {axis}, where one accumulator would take a single chunk of {chunk}",
        'declare the axis with leaf="segment" or leaf="piece", and chunks of 16 or more',
    )
    FOLD_OUTSIDE = ("fold {what} absorbs outside a stream", "absorb inside for ... in L.stream(axis)")
    PIECES_COMBINED = (
        "axis {axis} is contracted piece by piece, and {what} in the same kernel",
        "cut the kernel with L.keep, or use an axis of another name",
    )
    DOT_SHARES_AXIS = (
        "dot: both factors have axis {axis}, which is not contracted",
        "give one factor another axis, or name the axis in each=: one contraction for each of its indices",
    )
    DOT_PIECES = (
        "a contraction of i8 over {axis}, which has pieces",
        "use an axis without split and piece: sums of integers have no order",
    )
    DOT_ONTO = (
        "dot over {axis} adds onto a sum, but the axis has no pieces in ascending order",
        "declare Axis({axis!s}, piece=...), or add the sum afterwards",
    )
    MERGE_NEEDS_STATES = ("merge over {axis} has no states",)
    # files of authors
    SPEC_FAILS = ("not a spec: {why}", "RLK_LOG=debug shows the traceback")
    # the verifier
    VALUE_UNDEFINED = ("value %{value} is used before it is defined",)
    VALUE_TWICE = ("value %{value} is defined twice",)
    TYPE_WRONG = ("%{value} is declared {declared} but computes {computed}",)
    RESULT_INDEX = ("result {index} of %{value}, which yields {count} values",)
    LOOP_TYPES = ("loop carries {carried}, but its body yields {yielded}",)
    STORE_TARGET = ("store to {name!r}, which is no output or workspace",)
    PARAM_UNKNOWN = ("{name!r} is no parameter of this kernel",)
    NODE_NOT_CORE = ("{node} must be expanded before lowering",)
    PARSE = ("cannot parse line {line}: {text!r}",)
    # tuners
    SCHEDULE_FIELD = ("schedule {field}={value!r}: {why}",)
    SCHEDULE_TABLE = ("table of schedules {place}: {why}", "mend the entry, or unset RLK_SCHEDULES")
    # backends
    CANNOT_LOWER = ("{backend} on {target} lacks {lacks}", "instead: {instead}")
    UNSUPPORTED = ("{what} is not supported by {backend} on {target}", "alternatives: {alternatives}")
    NO_BACKEND = ("no backend for {op} on {device}: {why}", "alternatives: {alternatives}")
    # toolchains
    COMPILE_FAILED = ("{backend} cannot compile {kernel}: {reason}", "generated source: {path}")
    # callers
    COMPOSED = ("{name} has no spec of its own: it runs {parts}", "name these")
    ARG_TYPE = ("{op}: {name} must be a {wanted}, got {got}",)
    ARG_DTYPE = ("{op}: {name} has dtype {got}, expected {wanted}", "cast it before the call")
    ARG_RANK = ("{op}: {name} has {got} dims {shape}, expected {wanted}",)
    ARG_SIZE = ("{op}: {name} has {axis} = {got}, but {other} has {axis} = {wanted}",)
    ARG_EXTENT = ("{op}: {name} has {axis} = {got}, expected {wanted}",)
    ARG_EXTENT_STEP = (
        "{op}: {axis} = {got} is not a multiple of {step}, and {of} has the extent {share}",
        "pad {axis} to a multiple of {step}",
    )
    ARG_SHAPE = ("{op}: {name} has shape {got}, expected {wanted} {why}",)
    ARG_DEVICE = ("{op}: {name} is on {got}, but {other} is on {wanted}", "move it before the call")
    ARG_STRIDE = ("{op}: {name} has last-dim stride {got}, expected 1", "call .contiguous() on it")
    WRITTEN_STRIDE = (
        "{op}: {name} is written, and has last-dim stride {got}, expected 1",
        "t = {name}.contiguous(); pass t as {name}, then {name}.copy_(t)",
    )
    ARG_OVERLAP = ("{op}: {name} is written, and its memory overlaps {other}", "{instead}")
    ARG_MISSING = ("{op}: {name} is required {why}",)
    COTANGENT_MISSING = (
        "{op}: {name} is required, but the result that is differentiated does not depend on {output}",
        "declare {name}: {annotation}, the last parameters, and leave its terms out where it is None",
    )
    INDEX_OUTSIDE = (
        "index {dim} of {param} is outside [0, {n}), of an element that no condition leaves out",
        "pass indices inside",
        "or write a condition: when= of .at, L.place and L.table",
    )
    READS_NOTHING = (
        "{op} reads no tensor: nothing says where it runs and how large its results are",
        "use a tensor parameter in the spec; one that results go to by into= is enough",
    )
    FLOAT64_RESULTS = (
        "the float64 form of {op} returns {got}, expected {wanted}",
        "return one tensor for each result: a tuple in their order, or a dict by name",
    )
    NOT_REGISTERED = (
        "{op} is not registered with torch, as {who}",
        'write rlk.register({op}, namespace="...") below its gradient, with a name that is yours alone',
    )
    UNKNOWN_NAMESPACE = (
        "no installed package has operators of the namespace {name!r}: those are {choices}",
        "pip install -e a package that has {name} among its entry points of the group rlk.operators",
        "without an installation, name the file: path/to/spec.py:{op}",
    )
    NAME_TAKEN = (
        "{name} is taken: {by}",
        "use another name, or another namespace",
    )
    ARG_VALUE = ("{op}: {name}={value!r} is not allowed", "expected {wanted}")
    ARG_PLACED = (
        "{op}: {name} is {got} on its mesh: {why}",
        "call .redistribute(placements=[Replicate()]) on it, or .to_local() on all for this process's rows",
        "shards of a vocabulary: linear_logp(..., group=, vocab_start=)",
    )
    CANNOT_WRITE = ("a program with {what} is not written as a spec", "print its tile IR: --after trace")
    NOT_DIFFERENTIABLE = ("{op} has no gradient for {name}", "detach it; gradients exist for: {choices}")
    FORWARD_MODE = (
        "{op} has no derivative in forward mode, and {name} is a dual tensor",
        "use backward or torch.autograd.grad, or pass torch.autograd.forward_ad.unpack_dual(x).primal",
    )
    TRANSFORMED = (
        "{op} has no rule for torch.func, and {name} is a tensor of one of its transforms",
        "gradients: .backward() or torch.autograd.grad; vmap: leading dims of one call",
    )
    DOUBLE_BACKWARD = ("{op} has no second derivative",)
    BAD_ROW = ("{op}: row {row} has {what}",)
    RANKS_DIFFER = (
        "{op}: ranks differ in {count}\n{found}",
        "{remedy}",
    )
    RANKS_MISSING = (
        "{op}: {missing} of {ranks} ranks said nothing within {seconds:g} s",
        "look at the log of these ranks",
        "where they start late: a longer timeout= of init_process_group, or of rlk.parallel.agree",
    )
    RANKS_ENDED = (
        "{op}: rank {rank} of {ranks} {ended}:\n{said}",
        "see what it said; it needs what this process has: packages, memory, RLK_* variables",
    )
    RANKS_STORE = (
        "{op}: the store of torch.distributed cannot be reached any more: {error}",
        "its process has ended (rank 0, or the launcher): look at its log",
    )
    RANKS_ALONE = (
        "{op}: this is one of {ranks} ranks (WORLD_SIZE), but torch.distributed is not initialized",
        "call torch.distributed.init_process_group first",
        "a process of its own: unset WORLD_SIZE",
    )
    GRADIENT_ROUND = (
        "{op}: {at}: {found}",
        "run one backward of the whole model for each number of numbers(), without no_sync()",
    )
    LAYOUT_MISMATCH = ("{op}: {name} has {got} tokens, but the layout has {wanted}",)
    # adapters to other packages
    PEER_ABSENT = ("{peer} is not installed", "install {peer} {versions}")
    PEER_UNKNOWN = (
        "{peer} {got} is not one that rlk knows ({versions}); not as expected: {missing}",
        "looked for: {looked}",
        "install {peer} {versions}, or call rlk.ops yourself",
    )
    PEER_CALL = ("{peer}: rlk does not support {what}", "{instead}")
    PEER_REQUEST = (
        "{peer}: {count} of {total} requests failed, the first with: {error}",
        "the log of {peer} has where it failed",
    )
    HOOK_SILENT = (
        "{peer}: the start-up run did not call rlk for {names}",
        "another plugin or an option of {peer} computes them: remove it",
    )
    SWAP_OFF = ("rlk's functions are not in {peer}", "call patch() first, once for each unpatch()")
    SWAP_LOST = ("another replaced {names} of {peer} after rlk did", "undo replacements in reverse order")
    ROLLOUT_DIFFERS = (
        "{peer}: {count} of {of} log-probs of the rollout differ from the policy's, by up to {most}",
        "send the weights after every step, or keep the pass for old log-probs",
    )
    PATCH_PART = ("{where}: {what}", "{instead}")
    PATCH_NOTHING = (
        "rlk.patch exchanged nothing, because of the above",
        "with strict=False it leaves that as it is, and exchanges {rest}",
    )
    PATCH_TWICE = ("{where} is patched already", "undo the first patch")
    PATCH_UNDONE = (
        "{op}: the patch of this model was undone: it computes by transformers again",
        "call it inside of `with rlk.patch(model) as patched:`, or before patched.undo()",
    )
    PATCH_IN_PARTS = (
        "{op}: the patched {model} holds no causal language model that is exchanged whole",
        "patch a model with a head, such as Qwen3ForCausalLM; after strict=False see `.problems`",
    )
    # checkpoints of models
    CHECKPOINT_FILE = ("{path}: {what}", "{instead}")
    CHECKPOINT_LACKS = ("{path}: missing tensors, {count} in all: {names}", "a {model} model has them")
    CHECKPOINT_EXTRA = (
        "{path}: unknown tensors, {count} in all: {names}",
        "a {model} model with this config has no such tensors",
    )
    CHECKPOINT_SHAPE = ("{path}: {name} has shape {got}, expected {wanted}", "the config says so")
    CHECKPOINT_DTYPE = ("{path}: {name} has dtype {got}", "expected {wanted}")
    WEIGHTS_DIFFER = (
        "{count} of {total} weights are not as they were sent:\n{listed}",
        "{remedy}",
    )
    # checks of whole models
    VERIFY_STATE = (
        "{path}: the state of another run: {names} differ; {name} was {got!r}, now it is {wanted!r}",
        "name another file, or delete this one to begin anew",
    )
    # comparisons of engines
    DRIFT_FILE = ("{path} is no recorded rollout: {what}", "{instead}")
    DRIFT_ENGINE = ("engine {name}: {what}", "{instead}")
    RAISED_ANEW = ("{text}",)
    # rlk itself
    INTERNAL = ("internal error: {what}", "please report it with the generated source")

    def __init__(self, message: str, *fixes: str) -> None:
        self.message = message
        self.fixes = fixes


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One located finding."""

    code: Code
    loc: Loc
    fields: tuple[tuple[str, object], ...]

    @property
    def message(self) -> str:
        """The first line, without the place."""
        return self.code.message.format(**dict(self.fields))

    @property
    def fix(self) -> tuple[str, ...]:
        """The lines that say how to mend it."""
        return tuple(fix.format(**dict(self.fields)) for fix in self.code.fixes)

    def __str__(self) -> str:
        place = f"{self.loc}: " if self.loc != NOWHERE else ""
        lines = [f"{place}{self.message}"]
        if self.loc != NOWHERE and self.loc.source():
            lines.append(f"      {self.loc.source()}")
        lines += [f"    {fix}" for fix in self.fix]
        lines[-1] += f"   [{self.code.name}]"
        return "\n".join(lines)


class RlkError(Exception):
    """The base of every error that rlk raises on purpose.

    Carries one or more `Diagnostic`s; `code` is the first one's.
    """

    def __init__(self, code: Code, loc: Loc = NOWHERE, **fields: object) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = (Diagnostic(code, loc, tuple(fields.items())),)
        super().__init__(str(self))

    @classmethod
    def collected(cls, diagnostics: tuple[Diagnostic, ...]) -> RlkError:
        """Build one error from several findings."""
        error = cls.__new__(cls)
        error.diagnostics = diagnostics
        Exception.__init__(error, str(error))
        return error

    @property
    def code(self) -> Code:
        return self.diagnostics[0].code

    def reworded(self, **words: Mapping[object, object]) -> Self:
        """Return the same error with other words in fields of its findings: field=dict(old=new)."""

        def told(key: str, value: object) -> object:
            return words.get(key, {}).get(value, value) if isinstance(value, str) else value

        findings = (
            replace(d, fields=tuple((key, told(key, value)) for key, value in d.fields))
            for d in self.diagnostics
        )
        found = type(self).collected(tuple(findings))
        assert isinstance(found, type(self))
        return found

    def __str__(self) -> str:
        return "\n".join(str(d) for d in self.diagnostics)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle what was found: errors cross processes, from ranks and from workers."""
        return type(self).collected, (self.diagnostics,)


class SpecError(RlkError):
    """The author of a spec can fix this."""


class ScheduleError(RlkError):
    """The tuner can fix this: a schedule does not fit the kernel."""


class UnsupportedError(RlkError):
    """A backend lacks something; the message lists alternatives."""


ANY_BACKEND, ANY_TARGET = "every backend", "every target"


class LoweringError(UnsupportedError):
    """A backend lacks a form for a line of a spec; the author can write something else.

    backend, target: names, or ANY_BACKEND and ANY_TARGET. lacks: a noun phrase in the words of the language.
    instead: what to write, or which backend to use.
    """

    def __init__(
        self, lacks: str, instead: str, loc: Loc = NOWHERE, *, backend: str = ANY_BACKEND,
        target: str = ANY_TARGET,
    ) -> None:  # fmt: skip
        super().__init__(Code.CANNOT_LOWER, loc, backend=backend, target=target, lacks=lacks, instead=instead)

    @property
    def loc(self) -> Loc:
        return self.diagnostics[0].loc

    @property
    def backend(self) -> str:
        return self._field("backend")

    @property
    def lacks(self) -> str:
        return self._field("lacks")

    @property
    def instead(self) -> str:
        return self._field("instead")

    def placed(self, loc: Loc) -> LoweringError:
        """Return the same error at a place."""
        made = type(self).collected((replace(self.diagnostics[0], loc=loc),))
        assert isinstance(made, LoweringError)
        return made

    def _field(self, name: str) -> str:
        return str(dict(self.diagnostics[0].fields)[name])


class CompileError(RlkError):
    """A toolchain rejected generated code."""


class LaunchError(RlkError):
    """The caller can fix this: shape, dtype, device, alignment or option. Nothing was launched."""


class InternalError(RlkError):
    """rlk broke its own rules."""
