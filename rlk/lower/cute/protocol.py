"""Soundness of a warp-specialized Hopper kernel's pipelines and register pool, checked on a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from itertools import product
from operator import or_
from typing import NamedTuple, assert_never

from rlk.errors import Code, InternalError, ScheduleError

LARGEST = 200_000  # states; a sound protocol has one for each event
SM_REGISTERS = 65536
WARPGROUP = 128  # threads
GRAIN = 8  # registers per thread are allocated and moved by eights
MOVED = range(24, 257, GRAIN)  # legal operands of setmaxnreg


@dataclass(frozen=True, slots=True)
class Ring:
    """Slots in the shared memory of every CTA of a cluster, with a full and an empty mbarrier each.

    bytes: what a full barrier expects for one use. releases: arrivals that an empty barrier counts.
    fills: how many roles fill a slot together.
    """

    name: str
    stages: int
    bytes: int
    releases: int
    fills: int = 1


@dataclass(frozen=True, slots=True)
class Acquire:
    ring: str  # waits until the next slot to fill is empty; the first round passes


@dataclass(frozen=True, slots=True)
class Fill:
    """Arm the full barrier of the next slot to fill and issue loads, which land later and in any order."""

    ring: str
    own: tuple[int, ...] = ()  # bytes of each load into this CTA
    shared: tuple[int, ...] = ()  # bytes of each load into all CTAs of the cluster


@dataclass(frozen=True, slots=True)
class Pass:
    ring: str  # leaves the next slot to fill to another role


@dataclass(frozen=True, slots=True)
class Wait:
    ring: str  # waits until the next slot to read is full


@dataclass(frozen=True, slots=True)
class Read:
    ring: str  # issues a matrix instruction group, which reads the next slot until a `Drain` waits for it


@dataclass(frozen=True, slots=True)
class Reread:
    ring: str  # as `Read`, of the slot that was read last


@dataclass(frozen=True, slots=True)
class Drain:
    left: int = 0  # groups that may stay in flight


@dataclass(frozen=True, slots=True)
class Release:
    ring: str  # arrives at the empty barrier of the next slot to release, in every CTA of the cluster
    arrivals: int = 1


@dataclass(frozen=True, slots=True)
class Skip:
    ring: str
    uses: int = 1  # that another role reads and releases


@dataclass(frozen=True, slots=True)
class Tail:
    ring: str  # waits until every slot that was filled is released


@dataclass(frozen=True, slots=True)
class Repeat:
    count: int
    body: tuple[Op, ...]


Op = Acquire | Fill | Pass | Wait | Read | Reread | Drain | Release | Skip | Tail | Repeat


@dataclass(frozen=True, slots=True)
class Role:
    name: str
    body: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Protocol:
    """The rings of a cluster, and the roles that each of its CTAs runs."""

    cluster: int
    rings: tuple[Ring, ...]
    roles: tuple[Role, ...]


class Hazard(Enum):
    DEADLOCK = "deadlock"
    PARITY = "a wait passes by the parity of another phase"
    UNREADY = "read before full"
    OVERWRITE = "overwrite while read"
    ARRIVALS = "arrival in a phase that does not count it"
    BYTES = "byte count missed"
    EXIT = "access to a CTA that has exited"


class Fault(NamedTuple):
    """A violated rule, and the events that must come before it, in a possible order."""

    hazard: Hazard
    trace: tuple[str, ...]


class Report(NamedTuple):
    """The number of explored states, and the first fault."""

    states: int
    fault: Fault | None = None


def check(protocol: Protocol) -> Report:
    """Explore every interleaving, once for each order of the events whose order matters.

    This is dynamic partial-order reduction (Flanagan and Godefroid, POPL 2005): the path goes back to where
    two such events could have come the other way round. In a sound protocol none could: one path is all.
    """
    machine, path, states = Machine(protocol), list[_Step](), 1
    nodes = [_Node(machine.start, machine.ready(machine.start), dict.fromkeys(machine.start.at, 0))]
    while nodes:
        node = nodes[-1]
        process = next(iter(node.todo - node.done), None)
        if process is None:
            nodes.pop()
            del path[len(nodes) - 1 :]
            continue
        node.done.add(process)
        event, past = machine.event(node.state, process), node.past[process]
        for step in reversed(path):
            if not past & step.bit and event.meets(step.event, _Touch.ordered):
                past |= step.past
        state, hazard = machine.step(node.state, process)
        if hazard is not None:
            return Report(states, Fault(hazard, (*(str(s.event) for s in path if past & s.bit), str(event))))
        step = _Step(process, event, 1 << len(path), past | 1 << len(path))
        path.append(step)
        past_of = machine.pasts(node.past, process, step.past, state)
        nodes.append(_Node(state, machine.ready(state), past_of))
        states += 1
        if state.at and not nodes[-1].ready:
            hazard, ends = machine.stuck(state)
            return Report(states, Fault(hazard, (*(str(s.event) for s in path), *ends)))
        if states > LARGEST:
            raise InternalError(Code.INTERNAL, what=f"a protocol of more than {LARGEST} states")
        for other in state.at:
            known = other != process and other in node.state.at
            _go_back(nodes, path, machine, other, path[-1:] if known else path)
    return Report(states)


@dataclass(slots=True)
class _Node:
    """A state on the path: enabled processes, those to try, and the steps before each one's next event."""

    state: State
    ready: tuple[int, ...]
    past: dict[int, int]
    todo: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.todo.update(self.ready[:1])


class _Step(NamedTuple):
    process: int
    event: _Event
    bit: int
    past: int  # bits of the steps that come before it in every order, and its own


def _go_back(
    nodes: list[_Node], path: list[_Step], machine: Machine, process: int, since: list[_Step]
) -> None:
    """Have the next event of a process tried before the last step that it races with."""
    event, past = machine.event(nodes[-1].state, process), nodes[-1].past[process]
    for step in reversed(since):
        if not past & step.bit and event.meets(step.event, _Touch.races):
            at = step.bit.bit_length() - 1
            ahead = {s.process for s in path[at + 1 :] if past & s.bit} | {process}
            able = [p for p in nodes[at].ready if p in ahead]
            if nodes[at].todo.isdisjoint(able):
                nodes[at].todo.update(able[:1] or nodes[at].ready)
            return


def verify(protocol: Protocol) -> None:
    """Raise InternalError with the trace of the first fault."""
    fault = check(protocol).fault
    if fault is not None:
        raise InternalError(Code.INTERNAL, what="\n      ".join((fault.hazard.value, *fault.trace)))


def registers_fit(threads: int, warpgroups: tuple[int, ...]) -> bool:
    """Return whether a launch holds the registers per thread that its warpgroups set with setmaxnreg."""
    return sum(warpgroups) * WARPGROUP <= SM_REGISTERS // threads // GRAIN * GRAIN * threads


def claim_registers(threads: int, warpgroups: tuple[int, ...]) -> None:
    """Raise ScheduleError if setmaxnreg does not accept a count, or would wait for ever."""
    why = None
    if threads != WARPGROUP * len(warpgroups) or any(count not in MOVED for count in warpgroups):
        why = f"one for each {WARPGROUP} of {threads} threads, {MOVED[0]}, {MOVED[1]}, ... {MOVED[-1]}"
    elif not registers_fit(threads, warpgroups):
        why = "more than the launch holds, so that setmaxnreg waits for ever"
    if why is not None:
        raise ScheduleError(Code.SCHEDULE_FIELD, field="registers", value=warpgroups, why=why)


class _Verb(Enum):
    WAIT = "waits for"
    SIGNAL = "signals"
    LAND = "writes"
    READ = "reads"
    CLOSE = "has read"
    REACH = "reaches"
    EXIT = "leaves"


_Place = tuple[int, str]  # a CTA, and a barrier, a slot, or all of its memory
_Cell = tuple[int, int, int]  # phase, arrivals, bytes of a barrier; use, bytes, reads of a slot; 1: exited


class _Touch(NamedTuple):
    """The effect of an event on one object. at: a slot's use, or the completed phases of a barrier."""

    verb: _Verb
    place: _Place
    use: int = 0
    at: int = 0
    arrivals: int = 0
    bytes: int = 0

    def ordered(self, other: _Touch) -> bool:
        """Return whether the order of two touches matters: changes in one phase commute, observations too."""
        if self.place != other.place:
            return False
        changes = [touch.verb in (_Verb.SIGNAL, _Verb.LAND, _Verb.REACH) for touch in (self, other)]
        return any(changes) and not (all(changes) and self.at == other.at)

    def races(self, other: _Touch) -> bool:
        """Return whether, moreover, both can be next: no wait passes in the phase whose end it waits for."""
        return self.ordered(other) and not (
            _Verb.WAIT in (self.verb, other.verb) and (self.at - other.at) % 2
        )


class _Event(NamedTuple):
    who: str
    touches: tuple[_Touch, ...]
    starts: tuple[int, ...] = ()  # processes: what it sends

    def meets(self, other: _Event, how: Callable[[_Touch, _Touch], bool]) -> bool:
        return any(how(a, b) for a in self.touches for b in other.touches)

    def __str__(self) -> str:
        verb, (cta, name), use = self.touches[0][:3]
        return f"{self.who} {verb.value} {name} of cta {cta}" + (f", use {use}" if "[" in name else "")


class State(NamedTuple):
    at: dict[int, int]  # the next event of each process
    cells: dict[_Place, _Cell]


class Machine:
    """The events of each process: the roles of all CTAs, their exits, and all that is sent."""

    def __init__(self, protocol: Protocol) -> None:
        self.ctas, self.rings = range(protocol.cluster), {ring.name: ring for ring in protocol.rings}
        self.limits: dict[_Place, tuple[int, int]] = {}
        self.loaded: Counter[tuple[_Place, int]] = Counter()
        roles = tuple(product(self.ctas, protocol.roles))
        self.mates = [range(i, i + len(protocol.roles)) for i in range(0, len(roles), len(protocol.roles))]
        self.exits = [len(roles) + cta for cta in self.ctas]
        self.chains: list[list[_Event]] = [[] for _ in roles]
        for cta in self.ctas:
            self.chains.append([_Event("the last role", (_Touch(_Verb.EXIT, (cta, "the memory")),))])
        for i, (cta, role) in enumerate(roles):
            self.chains[i] += self._events(cta, f"cta {cta} {role.name}", role.body)
        self.start = State({i: 0 for i in range(len(roles)) if self.chains[i]}, {})

    def _events(self, cta: int, who: str, body: tuple[Op, ...]) -> Iterator[_Event]:
        put, get, free = Counter[str](), Counter[str](), Counter[str]()  # the next use of each ring
        reads: list[_Touch] = []
        for op in _unrolled(body):
            match op:
                case Acquire(ring):
                    yield _Event(who, (self._touch(_Verb.WAIT, cta, ring, put[ring], "empty"),))
                case Fill(ring, own, shared):
                    sent = [self._land(who, cta, ring, put[ring], bytes) for bytes in own]
                    sent += [
                        self._land(who, c, ring, put[ring], bytes) for bytes in shared for c in self.ctas
                    ]
                    arms = self._touch(_Verb.SIGNAL, cta, ring, put[ring], "full", 1)
                    yield _Event(who, (arms,), self._send(sent))
                    put[ring] += 1
                case Pass(ring):
                    put[ring] += 1
                case Wait(ring):
                    yield _Event(who, (self._touch(_Verb.WAIT, cta, ring, get[ring], "full"),))
                case Read(ring):
                    reads.append(self._touch(_Verb.CLOSE, cta, ring, get[ring], "slot"))
                    yield _Event(who, (reads[-1]._replace(verb=_Verb.READ),))
                    get[ring] += 1
                case Reread(ring):
                    reads.append(self._touch(_Verb.CLOSE, cta, ring, get[ring] - 1, "slot"))
                    yield _Event(who, (reads[-1]._replace(verb=_Verb.READ),))
                case Drain(left):
                    if len(reads) > left:
                        yield _Event(who, tuple(reads[: len(reads) - left]))
                        del reads[: len(reads) - left]
                case Release(ring, arrivals):
                    here, *there = (
                        self._touch(_Verb.SIGNAL, c, ring, free[ring], "empty", arrivals)
                        for c in sorted(self.ctas, key=lambda c: c != cta)
                    )
                    sent = [_Event(f"a release by {who}", (touch, _reach(touch))) for touch in there]
                    yield _Event(who, (here,), self._send(sent))
                    free[ring] += 1
                case Skip(ring, uses):
                    get[ring] += uses
                    free[ring] += uses
                case Tail(ring):
                    for use in range(put[ring], put[ring] + self.rings[ring].stages):
                        yield _Event(who, (self._touch(_Verb.WAIT, cta, ring, use, "empty"),))
                case Repeat():
                    pass
                case _:
                    assert_never(op)

    def _touch(
        self, verb: _Verb, cta: int, name: str, use: int, part: str, arrivals: int = 0, bytes: int = 0
    ) -> _Touch:
        ring = self.rings[name]
        phase, slot = divmod(use, ring.stages)
        place = cta, f"{name}[{slot}].{part}"
        self.limits[place] = (ring.fills, ring.bytes) if part == "full" else (ring.releases, 0)
        at = use if part == "slot" else phase + (verb is _Verb.WAIT and part == "full")
        return _Touch(verb, place, use, at, arrivals, bytes)

    def _land(self, who: str, cta: int, ring: str, use: int, bytes: int) -> _Event:
        lands = self._touch(_Verb.LAND, cta, ring, use, "slot", 0, bytes)
        self.loaded[lands.place, use] += bytes
        signals = self._touch(_Verb.SIGNAL, cta, ring, use, "full", 0, bytes)
        return _Event(f"a load of {bytes} bytes by {who}", (lands, signals, _reach(lands)))

    def _send(self, events: list[_Event]) -> tuple[int, ...]:
        self.chains += [[event] for event in events]
        return tuple(range(len(self.chains) - len(events), len(self.chains)))

    def event(self, state: State, process: int) -> _Event:
        return self.chains[process][state.at[process]]

    def ready(self, state: State) -> tuple[int, ...]:
        """Return the enabled processes: a wait sees only the parity of a phase."""
        firsts = ((process, self.event(state, process).touches[0]) for process in state.at)
        return tuple(p for p, t in firsts if t.verb is not _Verb.WAIT or (_cell(state, t)[0] - t.at) % 2 == 0)

    def step(self, before: State, process: int) -> tuple[State, Hazard | None]:
        """Return the state after the next event of a process, and the rule that it violates, if any."""
        state, event = State(dict(before.at), dict(before.cells)), self.event(before, process)
        state.at[process] += 1
        if state.at[process] == len(self.chains[process]):
            del state.at[process]
        state.at.update(dict.fromkeys(event.starts, 0))
        for mates, end in zip(self.mates, self.exits, strict=True):
            if process in mates and state.at.keys().isdisjoint(mates):
                state.at[end] = 0
        for touch in event.touches:
            made = self._change(touch, _cell(state, touch))
            if isinstance(made, Hazard):
                return state, made
            state.cells[touch.place] = made
        return state, None

    def _change(self, touch: _Touch, cell: _Cell) -> _Cell | Hazard:
        at, some, more = cell
        match touch.verb:
            case _Verb.WAIT:
                return cell if at == touch.at else Hazard.PARITY
            case _Verb.LAND:
                some = touch.bytes + (some if at == touch.at else 0)
                return (touch.at, some, 0) if not more else Hazard.OVERWRITE
            case _Verb.READ:
                full = (at, some) == (touch.at, self.loaded[touch.place, touch.at])
                return (at, some, more + 1) if full else Hazard.UNREADY
            case _Verb.CLOSE:
                return at, some, more - 1
            case _Verb.REACH:
                return cell if not at else Hazard.EXIT
            case _Verb.EXIT:
                return 1, 0, 0
            case _Verb.SIGNAL:
                found, limits = (some + touch.arrivals, more + touch.bytes), self.limits[touch.place]
                if at != touch.at or found[0] > limits[0] or found[1] > limits[1]:
                    return Hazard.ARRIVALS if touch.arrivals else Hazard.BYTES
                return (at + 1, 0, 0) if found == limits else (at, *found)
            case _:
                assert_never(touch.verb)

    def pasts(self, before: dict[int, int], process: int, past: int, state: State) -> dict[int, int]:
        """Return the steps before the next event of each process, after an event of one of them."""
        made = {**dict.fromkeys(state.at, past), **before, process: past}
        for mates, end in zip(self.mates, self.exits, strict=True):
            made[end] = reduce(or_, (made.get(mate, 0) for mate in mates))
        return made

    def stuck(self, state: State) -> tuple[Hazard, tuple[str, ...]]:
        """Return a description of a deadlock, with the event that each process waits for."""
        hazard, lines = Hazard.DEADLOCK, []
        for process in state.at:
            event = self.event(state, process)
            (phase, *found), limits = _cell(state, event.touches[0]), self.limits[event.touches[0].place]
            if found[0] == limits[0] and found[1] < limits[1]:
                hazard = Hazard.BYTES
            counts = f"{found[0]} of {limits[0]} arrivals, {found[1]} of {limits[1]} bytes"
            lines.append(f"{event} for ever: phase {phase} has {counts}")
        return hazard, tuple(lines)


def _reach(touch: _Touch) -> _Touch:
    return _Touch(_Verb.REACH, (touch.place[0], "the memory"))


def _cell(state: State, touch: _Touch) -> _Cell:
    return state.cells.get(touch.place, (0, 0, 0))


def _unrolled(body: tuple[Op, ...]) -> Iterator[Op]:
    for op in body:
        if isinstance(op, Repeat):
            for _ in range(op.count):
                yield from _unrolled(op.body)
        else:
            yield op
