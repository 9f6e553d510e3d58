"""How what is behind a gate moves its door: its controller is asked tick by tick."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.stages import Call, Gate, Pools
from tokenfleet.domain.trace import Bools
from tokenfleet.domain.world import FleetView, Happening
from tokenfleet.simulator.building import PS_PER_S, to_ps
from tokenfleet.simulator.gating import Turn
from tokenfleet.simulator.passing import Passage, smaller_answers, takers, to_ps_column

Buffer = npt.NDArray[np.int64]


def heard_first(pools: Pools, moved: Buffer) -> dict[str, Bools]:
    """By pool, the requests whose first token that a user sees is that of this pool.

    Args:
        pools: The stages.
        moved: To which answers gates have sent requests, see :class:`tokenfleet.simulator.joining.Journey`.
    """
    silent, answers = np.ones(len(moved), dtype=np.bool_), smaller_answers(pools)
    found: dict[str, Bools] = {}
    for stage in pools.stages:
        if isinstance(stage, Call):
            speaks = takers(stage, moved, answers) & (stage.output_tokens > 0) & stage.is_seen
            found[stage.pool] = speaks & silent
            silent = silent & ~speaks
    return found


def turns_of(gate: Gate, found: Passage, heard: Mapping[str, Bools], end_ps: int) -> tuple[Turn, ...]:
    """Ask a new controller at every tick until all has ended; what becomes of the door.

    Args:
        gate: The gate.
        found: What became of everybody, by the turns before.
        heard: As :func:`heard_first`.
        end_ps: When the last request ended.
    """
    controller, tick_ps = gate.controllers(), to_ps(gate.tick_s)
    entrance = found.entrances[gate.name]
    attempts_ps, refusals_ps = np.array(entrance.attempts_ps), np.array(entrance.refusals_ps)
    turns: list[Turn] = []
    for time_ps in range(tick_ps, end_ps, tick_ps):
        views = {name: found.watched[name].at(time_ps) for name in gate.watched}
        times, rows = _firsts({name: _new(name, found, time_ps, tick_ps) for name in gate.watched}, found, heard)
        ttft_s = (times - entrance.first_ps[rows]) / PS_PER_S
        seen = FleetView(
            time_s=time_ps / PS_PER_S,
            state=np.concatenate([each.state for each in views.values()]),
            running=np.concatenate([each.running for each in views.values()]),
            waiting=np.concatenate([each.waiting for each in views.values()]),
            kv_used_fraction=np.concatenate([each.kv_used_fraction for each in views.values()]),
            free_kv_tokens=np.concatenate([each.free_kv_tokens for each in views.values()]),
            arrived_count=_since(attempts_ps, time_ps, tick_ps),
            refused_count=_since(refusals_ps, time_ps, tick_ps),
            ttft_p90_s=float(np.quantile(ttft_s, 0.9, method="inverted_cdf")) if len(ttft_s) else None,
            first_tokens=rows.astype(np.int32),
            first_token_s=times / PS_PER_S,
        )
        turns += [_turn(gate, happening, time_ps) for happening in controller(seen)]
    return tuple(sorted(turns, key=lambda turn: turn.time_ps))


def _firsts(
    new: Mapping[str, tuple[Buffer, Buffer]], found: Passage, heard: Mapping[str, Bools]
) -> tuple[Buffer, Buffer]:
    """First tokens that users saw since the last tick: when, in picoseconds, and whose."""
    times, rows = [], []
    for name, (calls, times_ps) in new.items():
        callers = found.runs[name].caller[calls].astype(np.int64)
        mine = heard[name][callers]
        times.append(times_ps[mine])
        rows.append(callers[mine])
    return np.concatenate(times), np.concatenate(rows)


def _new(name: str, found: Passage, time_ps: int, tick_ps: int) -> tuple[Buffer, Buffer]:
    """Calls to a pool whose first token left since the last tick, and when, in picoseconds."""
    view = found.watched[name].views.get(time_ps)
    if view is not None:
        return view.first_tokens.astype(np.int64), to_ps_column(view.first_token_s)
    # The pool has nothing to do any more, so its controller was not asked; the last tokens left all the same.
    first_ps = to_ps_column(found.runs[name].record.first_token_s)
    calls = np.flatnonzero((first_ps > time_ps - tick_ps) & (first_ps <= time_ps))
    return calls, first_ps[calls]


def _since(times_ps: Buffer, time_ps: int, tick_ps: int) -> int:
    """How many of these times lie between two ticks, up to the first of which those at second 0 count."""
    before = np.searchsorted(times_ps, time_ps - tick_ps, "right") if time_ps > tick_ps else 0
    return int(np.searchsorted(times_ps, time_ps, "right") - before)


def _turn(gate: Gate, happening: Happening, time_ps: int) -> Turn:
    if happening.door is None or to_ps(happening.time_s) < time_ps:
        what = f"{happening.kind} at {happening.time_s} s, asked at {time_ps / PS_PER_S} s"
        raise BadInput.at(f"{gate.name}.controllers", what, "answer with a door, for the tick or later")
    return Turn(to_ps(happening.time_s), happening.door, happening.reason)
