"""The door in front of pools: who is let in when, while it is moved as a replay before has found.

Attempts pass in order of time, at equal times in the order of the trace. The door moves after whatever happens at that
moment; whoever ends at a moment is in a session up to and including it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import field
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from tokenfleet.control import admit, backoff_ps, bucket_left_tokens, bucket_refilled, bucket_reserved, scrambled
from tokenfleet.control.admission import ADMITTED, BATCH_SHED, SMALLER_MODEL
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import Decision, Status
from tokenfleet.domain.stages import Gate, GateRun
from tokenfleet.domain.trace import Bools, Ints, Trace
from tokenfleet.domain.world import NO_CAP, Door
from tokenfleet.simulator.building import PS_PER_S, to_ps

Buffer = npt.NDArray[np.int64]
PS_PER_US = 1_000_000
MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class Turn:
    """A door from a moment on."""

    time_ps: int
    door: Door
    reason: str


@dataclass(frozen=True, slots=True)
class Entrance:
    """What became of those who came to a gate; one entry per request."""

    time_ps: Buffer
    """When it was let in, or turned away for good; -1 where it never came."""
    status: npt.NDArray[np.int8]
    first_ps: Buffer
    """When it came first; -1 where it never did."""
    is_moved: Bools
    """Whether it was let in to the smaller model."""
    run: GateRun
    attempts_ps: list[int]
    """Of every attempt."""
    refusals_ps: list[int]


def limits_sessions(gate: Gate, turns: Sequence[Turn]) -> bool:
    """Whether the door ever counts open sessions."""
    return any(door.session_limit_count < NO_CAP for door in (gate.door, *(turn.door for turn in turns)))


class Doorkeeper:
    """One gate in one replay.

    Args:
        gate: The gate.
        trace: All requests.
        turns: When the door moves, in order of time.
        ends_ps: When each request ends, wherever that is; -1 where nobody knows yet.
    """

    def __init__(self, gate: Gate, trace: Trace, turns: Sequence[Turn], ends_ps: Buffer) -> None:
        count = trace.request_count
        self.gate, self.door = gate, gate.door
        self.turns = deque(turns)
        self.taken: list[Turn] = []
        self.inputs: list[int] = trace.input_tokens.tolist()
        self.outputs: list[int] = trace.output_tokens.tolist()
        self.smaller: list[bool] = [False] * count if gate.smaller is None else gate.smaller.tolist()
        self.batch: list[bool] = [False] * count if gate.batch is None else gate.batch.tolist()
        self.tenant: list[int] = [-1] * count if trace.tenant is None else trace.tenant.tolist()
        full = self.door.quota_burst_tokens * MICRO
        self.buckets = dict.fromkeys(range(len(trace.tenants)), (full, 0))
        counts = limits_sessions(gate, turns)
        self.sessions = Sessions(trace.session, ends_ps, to_ps(gate.session_idle_s)) if counts else None
        self.attempts = np.zeros(count, dtype=np.int32)

    def let_in(self, rows: Buffer, now_ps: Buffer) -> Entrance:
        """Have requests pass that come at these times."""
        entered_ps, first_ps = np.full(len(self.inputs), -1), np.full(len(self.inputs), -1)
        first_ps[rows] = now_ps
        status = np.zeros(len(self.inputs), dtype=np.int8)
        is_moved = np.zeros(len(self.inputs), dtype=np.bool_)
        at_once = self._passes(now_ps)
        entered_ps[rows[at_once]] = now_ps[at_once]
        self.attempts[rows[at_once]] = 1
        attempts_ps, refusals_ps = np.sort(now_ps[at_once]).tolist(), []
        coming = list(zip(now_ps[~at_once].tolist(), rows[~at_once].tolist(), strict=True))
        heapify(coming)
        while coming:
            time_ps, row = heappop(coming)
            attempts_ps.append(time_ps)
            self.attempts[row] += 1
            self._turn_to(time_ps)
            verdict = self._verdict(row, time_ps)
            if verdict in (ADMITTED, SMALLER_MODEL):
                entered_ps[row] = time_ps
                is_moved[row] = verdict == SMALLER_MODEL
                self._begin(row)
                continue
            refusals_ps.append(time_ps)
            if self.attempts[row] < self.gate.clients.attempt_count:
                heappush(coming, (time_ps + self._wait_ps(row), row))
            else:
                entered_ps[row] = time_ps
                status[row] = int(Status.REJECTED_BATCH_SHED) + verdict - BATCH_SHED
        run = self._run(len(refusals_ps))
        return Entrance(entered_ps, status, first_ps, is_moved, run, attempts_ps, refusals_ps)

    def _passes(self, now_ps: Buffer) -> Bools:
        """Those who come while the door stands wide open: nothing about them counts."""
        if self.door != Door() or self.sessions is not None:
            return np.zeros(len(now_ps), dtype=np.bool_)
        return now_ps <= (self.turns[0].time_ps if self.turns else np.iinfo(np.int64).max)

    def _run(self, refused_count: int) -> GateRun:
        decisions = tuple(
            Decision(time_s=turn.time_ps / PS_PER_S, kind="door", replicas=(), reason=turn.reason)
            for turn in (*self.taken, *self.turns)
        )
        return GateRun(
            name=self.gate.name, attempt_count=self.attempts, refused_count=refused_count, decisions=decisions
        )

    def _wait_ps(self, row: int) -> int:
        clients, attempt = self.gate.clients, int(self.attempts[row])
        drawn = scrambled(row, attempt)
        wait_ps = backoff_ps(attempt, to_ps(clients.backoff_s), to_ps(clients.longest_backoff_s), drawn)
        return max(1, to_ps(self.gate.retry_after_s), wait_ps)

    def _turn_to(self, time_ps: int) -> None:
        while self.turns and self.turns[0].time_ps < time_ps:
            turn = self.turns.popleft()
            self.taken.append(turn)
            before, self.door = self.door, turn.door
            quota = (turn.door.quota_tokens_per_s, turn.door.quota_burst_tokens)
            if quota != (before.quota_tokens_per_s, before.quota_burst_tokens):
                full = turn.door.quota_burst_tokens * MICRO
                self.buckets = dict.fromkeys(self.buckets, (full, turn.time_ps // PS_PER_US))
        if self.sessions is not None:
            self.sessions.pass_to(time_ps)

    def _verdict(self, row: int, time_ps: int) -> int:
        door, inputs, outputs = self.door, self.inputs[row], self.outputs[row]
        limit = door.session_limit_count
        return admit(
            self.batch[row],
            door.batch_is_open,
            inputs + outputs,
            self._quota_left(row, time_ps),
            inputs,
            outputs,
            door.smaller_input_tokens if self.smaller[row] else 0,
            door.smaller_output_tokens,
            self.sessions is not None and not self.sessions.is_open(row),
            limit if self.sessions is None else limit - len(self.sessions.open),
            door.context_cap_tokens,
            door.output_cap_tokens,
            0,
            1,
            1,
        )

    def _has_quota(self, row: int) -> bool:
        return self.tenant[row] >= 0 and self.door.quota_tokens_per_s != NO_CAP

    def _quota_left(self, row: int, time_ps: int) -> int:
        if not self._has_quota(row):
            return NO_CAP
        level, then_us = self.buckets[self.tenant[row]]
        now_us, door = time_ps // PS_PER_US, self.door
        level = bucket_refilled(level, now_us - then_us, door.quota_tokens_per_s, door.quota_burst_tokens)
        self.buckets[self.tenant[row]] = level, now_us
        return bucket_left_tokens(level)

    def _begin(self, row: int) -> None:
        if self._has_quota(row):
            level, then_us = self.buckets[self.tenant[row]]
            self.buckets[self.tenant[row]] = bucket_reserved(level, self.inputs[row] + self.outputs[row]), then_us
        if self.sessions is not None:
            self.sessions.begin(row)


@dataclass(slots=True)
class Sessions:
    """Conversations behind a gate. A request without one is one of its own, and ends with it."""

    session: Ints | None
    ends_ps: Buffer
    idle_ps: int
    open: set[int] = field(default_factory=set)
    in_flight: dict[int, int] = field(default_factory=dict)
    last_ps: dict[int, int] = field(default_factory=dict)
    ending: list[tuple[int, int]] = field(default_factory=list)
    """Heap of ends of requests that were let in, and their sessions."""
    closing: list[tuple[int, int]] = field(default_factory=list)
    """Heap of moments at which a session may close."""

    def key(self, row: int) -> int:
        """The session of a request; below 0 where it is its own."""
        known = -1 if self.session is None else int(self.session[row])
        return known if known >= 0 else -1 - row

    def is_open(self, row: int) -> bool:
        """Whether the session of a request is."""
        return self.key(row) in self.open

    def begin(self, row: int) -> None:
        """A request is let in."""
        key = self.key(row)
        self.open.add(key)
        self.in_flight[key] = self.in_flight.get(key, 0) + 1
        if self.ends_ps[row] >= 0:
            heappush(self.ending, (int(self.ends_ps[row]), key))

    def pass_to(self, now_ps: int) -> None:
        """End what ended before now, and close what has been idle for too long."""
        while self.ending and self.ending[0][0] < now_ps:
            end_ps, key = heappop(self.ending)
            self.in_flight[key] -= 1
            self.last_ps[key] = end_ps
            if not self.in_flight[key]:
                heappush(self.closing, (end_ps + (self.idle_ps if key >= 0 else 0), key))
        while self.closing and self.closing[0][0] <= now_ps:
            _, key = heappop(self.closing)
            if not self.in_flight[key] and (key < 0 or self.last_ps[key] + self.idle_ps <= now_ps):
                self.open.discard(key)
