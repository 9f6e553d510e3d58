"""Turns a trace into a closed loop: requests that are sent because an earlier one has ended."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import BY_CLOCK, NEXT_IN_LINE, ClosedLoop
from tokenfleet.workload.streams import stream

_LONGEST_THINK_S = 86_400.0


def close_loop(
    trace: Trace,
    *,
    user_count: int | None = None,
    think_s: float = 0.0,
    ramp_s: float = 0.0,
    seed: int = 0,
) -> tuple[Trace, ClosedLoop]:
    """Let each turn of a session wait for the end of the one before it, and each session for a user.

    A request without a session is a session of its own, so with ``user_count`` and neither sessions nor thinking the
    concurrency is fixed: whoever is free sends the next request.

    Args:
        trace: Requests in order.
        user_count: Users, who take the sessions in order, each the next one when the last has ended; ``None``:
            sessions start when the trace says.
        think_s: Mean time between an end and the next request of the same user, drawn from an exponential
            distribution: a person who reads, a tool that runs.
        ramp_s: Users start evenly over this time; all at once with 0.
        seed: Decides the draws.

    Returns:
        The trace with the arrivals that are by the clock, and what waits for what.

    Raises:
        BadInput: no user, or a negative time; all problems at once.
    """
    _check(user_count, think_s, ramp_s)
    count = trace.request_count
    after = np.full(count, BY_CLOCK, dtype=np.int32)
    sessions = _sessions(trace)
    by_session = np.argsort(sessions, kind="stable")
    follows = np.flatnonzero(np.diff(sessions[by_session]) == 0) + 1
    after[by_session[follows]] = by_session[follows - 1]
    arrival_s = trace.arrival_s
    if user_count is not None:
        starts = np.flatnonzero(after == BY_CLOCK)
        after[starts[user_count:]] = NEXT_IN_LINE
        arrival_s = np.zeros(count)
        arrival_s[starts[:user_count]] = np.arange(len(starts[:user_count])) * (ramp_s / user_count)
        arrival_s = np.maximum.accumulate(arrival_s) if count else arrival_s
    delay_s = np.minimum(stream(seed, "think times").exponential(1.0, count) * think_s, _LONGEST_THINK_S)
    return replace(trace, arrival_s=arrival_s), ClosedLoop(after=after, delay_s=delay_s)


def _check(user_count: int | None, think_s: float, ramp_s: float) -> None:
    problems = []
    if user_count is not None and user_count < 1:
        problems.append(Problem("user_count", f"{user_count} users", "at least 1"))
    for name, value in (("think_s", think_s), ("ramp_s", ramp_s)):
        if not 0.0 <= value <= _LONGEST_THINK_S:
            problems.append(Problem(name, f"{value} s", "0 up to a day"))
    if problems:
        raise BadInput(problems)


def _sessions(trace: Trace) -> npt.NDArray[np.int64]:
    """The session of each request, its own where it has none."""
    rows = np.arange(trace.request_count, dtype=np.int64)
    if trace.session is None:
        return rows
    lone = trace.session < 0
    return np.where(lone, rows + int(trace.session.max(initial=0)) + 1, trace.session)
