"""What a replay refuses of stages."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.stages import Call, Gate, Hold, Pools, Stage
from tokenfleet.domain.trace import Bools, Trace
from tokenfleet.domain.world import ClosedLoop
from tokenfleet.simulator.checking_sharing import shared_problems
from tokenfleet.simulator.checking_world import SHORTEST_TICK_S, client_problems, door_problems, loop_problems

DAY_S = 86_400.0


def check_stages(trace: Trace, pools: Pools, closed_loop: ClosedLoop | None, read_tokens_per_s: float | None) -> None:
    """Raise one :class:`BadInput` with everything that is wrong with the stages and the loop around them."""
    problems: list[Problem] = [] if closed_loop is None else list(loop_problems(closed_loop, trace.request_count))
    called: set[str] = set()
    for index, stage in enumerate(pools.stages):
        where = f"stages[{index}]"
        columns: dict[str, npt.NDArray[np.generic]] = {"takes": stage.takes}
        columns |= {} if stage.instead is None else {"instead": stage.instead}
        if isinstance(stage, Call):
            columns |= {"input_tokens": stage.input_tokens, "output_tokens": stage.output_tokens}
            problems += _call_problems(where, stage, pools, called)
            called.add(stage.pool)
        elif isinstance(stage, Hold):
            problems += _hold_problems(where, stage)
        elif isinstance(stage, Gate):
            columns |= {name: column for name, column in _gate_columns(stage) if column is not None}
            problems += _gate_problems(where, stage, pools, called)
            problems += _smaller_problems(where, stage, pools.stages[:index], pools.stages[index + 1 :])
        else:
            columns["duration_s"] = stage.duration_s
            if not np.all((stage.duration_s >= 0) & np.isfinite(stage.duration_s)):
                problems.append(Problem(f"{where}.duration_s", "a time that is negative or not known", "at least 0"))
        for name, column in columns.items():
            if len(column) != trace.request_count:
                what = f"{len(column)} entries for {trace.request_count} requests"
                problems.append(Problem(f"{where}.{name}", what, "give one per request"))
    problems += shared_problems(pools, closed_loop, read_tokens_per_s)
    if not called:
        problems.append(Problem("stages", "no pool is called", "give at least one Call"))
    if problems:
        raise BadInput(problems)


def _call_problems(where: str, stage: Call, pools: Pools, called: set[str]) -> list[Problem]:
    problems = []
    if stage.pool not in pools.fleets:
        near = get_close_matches(stage.pool, pools.fleets, n=1, cutoff=0.0)
        mend = f"nearest: {near[0]}" if near else "give its fleet"
        problems.append(Problem(f"{where}.pool", f"no pool is called {stage.pool!r}", mend))
    if stage.pool in called:
        what = f"{stage.pool!r} is called twice: requests would come back to it"
        problems.append(Problem(f"{where}.pool", what, "give each stage a pool of its own"))
    if stage.call_count < 1:
        problems.append(Problem(f"{where}.call_count", f"{stage.call_count}", "at least 1"))
    if stage.call_count > 1 and stage.is_seen:
        problems.append(Problem(f"{where}.is_seen", "nobody reads several answers at once", "set it to False"))
    return problems


def _hold_problems(where: str, stage: Hold) -> list[Problem]:
    return [
        Problem(f"{where}.{name}", f"{value} s is no time of day", f"0 up to {DAY_S:.0f}")
        for name in ("opens_s", "closes_s", "start_s")
        if not 0.0 <= (value := getattr(stage, name)) < DAY_S
    ]


def _gate_columns(gate: Gate) -> Iterator[tuple[str, Bools | None]]:
    yield "batch", gate.batch
    yield "smaller", gate.smaller


def _smaller_problems(where: str, gate: Gate, before: Sequence[Stage], behind: Sequence[Stage]) -> Iterator[Problem]:
    """Whether the smaller answer is behind the gate, all of it."""
    if gate.smaller is None:
        return
    name = gate.smaller_answer
    if any(stage.answer == name for stage in before):
        what = f"the answer {name!r} begins before it: requests would come back to it"
        yield Problem(f"{where}.smaller_answer", what, "put the gate in front")
    elif not any(stage.answer == name and stage.instead is not None for stage in behind):
        what = f"nobody behind it takes requests that are sent to the answer {name!r}"
        yield Problem(f"{where}.smaller_answer", what, "give parts of that answer, with instead")


def _gate_problems(where: str, gate: Gate, pools: Pools, called: set[str]) -> Iterator[Problem]:
    later = {stage.pool for stage in pools.stages if isinstance(stage, Call)} - called
    for name in gate.watched:
        if name not in later:
            near = get_close_matches(name, later, n=1, cutoff=0.0)
            mend = f"nearest: {near[0]}" if near else "put the gate before the pool"
            yield Problem(f"{where}.watched", f"no pool behind it is called {name!r}", mend)
    gates = [stage for stage in pools.stages if isinstance(stage, Gate)]
    if len({each.name for each in gates}) < len(gates):
        yield Problem(f"{where}.name", "two gates have the same name", "name each once")
    if len({each.tick_s for each in gates}) > 1 or not gate.tick_s >= SHORTEST_TICK_S:
        yield Problem(f"{where}.tick_s", f"{gate.tick_s:g} s", "the same for all gates, at least a microsecond")
    yield from door_problems(f"{where}.door", gate.door)
    yield from client_problems(where, gate.clients)
