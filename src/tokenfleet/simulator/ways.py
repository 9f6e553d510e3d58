"""The ways of requests through pools that are replayed on one clock: which call waits for which.

Where users wait for their answers, a way begins and ends with a mark, which takes no time and asks nothing of any pool:
the first calls wait for the one, whoever waits for the request waits for the other.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.stages import Call, Pools, Wait
from tokenfleet.domain.trace import Bools, Floats, Trace, rows_of
from tokenfleet.domain.world import BY_CLOCK, ClosedLoop
from tokenfleet.simulator.building import PS_PER_S

Buffer = npt.NDArray[np.int64]
MARK = -1
"""Stands for the pool of a mark."""
_NOTHING = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """All calls to all pools, those of a request one behind the other, in the order in which requests come."""

    caller: Buffer
    pool: Buffer
    """``MARK`` where a way begins and ends, if users wait for it."""
    loop: ClosedLoop
    arrival_s: Floats
    """When the way of the request begins, for those that come by the clock; what is behind follows from it."""

    @property
    def is_call(self) -> Bools:
        """Which of them are no marks."""
        found: Bools = self.pool != MARK
        return found

    @property
    def likeness(self) -> slice:
        """The place of a call like which marks are written, for they are none; of a mark where nobody calls."""
        first = int(np.argmax(self.is_call)) if len(self.pool) else 0
        return slice(first, first + 1)

    @property
    def opens(self) -> Buffer:
        """The first of each request."""
        return np.flatnonzero(np.diff(self.caller, prepend=-1))

    @property
    def closes(self) -> Buffer:
        """The last of each request."""
        return np.flatnonzero(np.diff(self.caller, append=-1))


@dataclass(frozen=True, slots=True)
class _Leg:
    """A part of the way, for those who take it."""

    takes: Buffer
    pool: int
    call_count: int
    before: Buffer
    """Number of the leg that each one waits for; ``_NOTHING``: it is the first."""
    waits_s: Floats
    """Time between that and this one."""


def calls_of_all(trace: Trace, pools: Pools, users: ClosedLoop | None = None) -> Calls:
    """The calls of each request one behind the other, and what each waits for.

    Args:
        trace: The requests.
        pools: Calls, and waits between them.
        users: Who waits for whom; ``None``: all come by the clock.
    """
    legs = _legs_of(trace, pools, has_marks=users is not None)
    first_s = trace.arrival_s.copy()
    if users is not None:
        # Whoever does not come by the clock keeps their place.
        first_s = np.maximum.accumulate(np.where(np.asarray(users.after) == BY_CLOCK, first_s, 0.0))
    for leg in legs:
        opens = leg.before == _NOTHING
        first_s[leg.takes[opens]] += leg.waits_s[opens]
    sizes = np.array([leg.call_count for leg in legs])
    lengths = [len(leg.takes) * leg.call_count for leg in legs]
    number = np.repeat(np.arange(len(legs)), lengths)
    caller, cause, delay_s = (
        np.concatenate([np.repeat(column, leg.call_count) for column, leg in zip(columns, legs, strict=True)])
        for columns in zip(*((leg.takes, leg.before, leg.waits_s) for leg in legs), strict=True)
    )
    order = np.lexsort((number, caller, first_s[caller]))
    caller, number, cause, delay_s = caller[order], number[order], cause[order], delay_s[order]
    # The last call before the first one of a leg is the one right before it.
    begins = np.flatnonzero(np.diff(caller, prepend=-1) | np.diff(number, prepend=-1))
    start = np.repeat(begins, np.diff(begins, append=len(caller)))
    follows = cause != _NOTHING
    pool = np.array([leg.pool for leg in legs])[number]
    loop = ClosedLoop(
        after=np.where(follows, start - 1, BY_CLOCK).astype(np.int32),
        delay_s=delay_s,
        end_count=np.where(follows, sizes[cause], 1).astype(np.int32),
        only_after_success=follows,
        at_once=True,
    )
    calls = Calls(caller=caller, pool=pool, loop=loop, arrival_s=first_s[caller])
    return calls if users is None else with_users(calls, users)


def _legs_of(trace: Trace, pools: Pools, *, has_marks: bool) -> list[_Leg]:
    """The parts of the way in their order."""
    everybody = np.arange(trace.request_count)
    waited_s, before = np.zeros(len(everybody)), np.full(len(everybody), _NOTHING)
    legs: list[_Leg] = []

    def add(takes: Buffer, pool: int, call_count: int = 1) -> None:
        legs.append(_Leg(takes, pool, call_count, before[takes], waited_s[takes]))
        before[takes] = len(legs) - 1
        waited_s[takes] = 0.0

    if has_marks:
        add(everybody, MARK)
    pool = 0
    for stage in pools.stages:
        if isinstance(stage, Wait):
            waited_s += np.where(stage.takes, np.rint(stage.duration_s * PS_PER_S) / PS_PER_S, 0.0)
        elif isinstance(stage, Call):
            add(np.flatnonzero(stage.takes), pool, stage.call_count)
            pool += 1
    if has_marks:
        add(everybody, MARK)
    return legs


def with_users(calls: Calls, users: ClosedLoop) -> Calls:
    """The ways of the requests, which begin when those of others have ended.

    Args:
        calls: With marks.
        users: Who waits for whom.
    """
    asked = calls.caller[calls.opens]
    end_of = np.empty(len(asked), dtype=np.int64)
    end_of[asked] = calls.closes
    cause = np.asarray(users.after)[asked]
    after, delay_s = calls.loop.after.copy(), calls.loop.delay_s.copy()
    after[calls.opens] = np.where(cause >= 0, end_of[cause], cause)
    delay_s[calls.opens] = np.maximum(1, np.rint(np.asarray(users.delay_s)[asked] * PS_PER_S)) / PS_PER_S
    return replace(calls, loop=replace(calls.loop, after=after, delay_s=delay_s, marks=~calls.is_call))


def rows_of_calls(trace: Trace, stages: Sequence[Call], calls: Calls) -> Trace:
    """The calls as requests; a mark is written like one of them."""
    caller = np.where(calls.is_call, calls.caller, calls.caller[calls.likeness])
    rows = replace(rows_of(trace, caller), arrival_s=calls.arrival_s, kv_delivered=None)
    inputs, outputs = rows.input_tokens.copy(), rows.output_tokens.copy()
    node = None if rows.prefix_node is None else rows.prefix_node.copy()
    for number, stage in enumerate(stages):
        mine = calls.pool == number
        inputs[mine], outputs[mine] = stage.input_tokens[caller[mine]], stage.output_tokens[caller[mine]]
        if node is not None and not stage.shares_prefixes:
            node[mine] = -1
    return replace(rows, input_tokens=inputs, output_tokens=outputs, prefix_node=node)
