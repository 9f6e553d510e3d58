"""Replays requests through several pools: exactly what one replay of everything at once would be.

Pools that share gpus are replayed at once. Others are replayed one after the other, for stages feed forward. What
comes back all the same, through the door of a gate and from users who wait for an answer, is found by replaying until
nothing changes: whatever comes back takes effect later than its cause, so each replay is right for longer than the one
before. Where users wait and no gate is in the way, one replay on one clock foresees when they come, which the next one
confirms.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.run import RunRecord, Status, requests_of
from tokenfleet.domain.stages import Call, Gate, Hold, Pools, Stage, StagedRun
from tokenfleet.domain.trace import Bools, Trace
from tokenfleet.domain.world import ClosedLoop, World
from tokenfleet.simulator import layout as at
from tokenfleet.simulator.building import PS_PER_S
from tokenfleet.simulator.checking_stages import check_stages
from tokenfleet.simulator.foreseeing import arrivals_foreseen_ps
from tokenfleet.simulator.gathering import Worlds
from tokenfleet.simulator.gating import limits_sessions
from tokenfleet.simulator.joining import Journey, added, classes_in, joined
from tokenfleet.simulator.looping import arrivals_ps
from tokenfleet.simulator.passing import Passing, Script, Window, to_ps_column
from tokenfleet.simulator.replaying import replay
from tokenfleet.simulator.surroundings import token_read_ps
from tokenfleet.simulator.together import together
from tokenfleet.simulator.turning import heard_first, turns_of

Buffer = npt.NDArray[np.int64]
STRIDE_PS = 1_000_000
"""By how much each replay is right for longer, at least; else what is not known to be right is left out of the next."""


def quiet(_name: str, _calls: Trace) -> World | None:
    """No world around any pool."""
    return None


def replay_stages(
    trace: Trace,
    pools: Pools,
    *,
    peak_window_s: Window | None = None,
    telemetry_interval_s: float | None = None,
    worlds: Worlds = quiet,
    closed_loop: ClosedLoop | None = None,
    read_tokens_per_s: float | None = None,
    run: Callable[..., RunRecord] = replay,
) -> StagedRun:
    """Replay every request of a trace through its stages.

    Args:
        trace: Requests in order of arrival; their lengths are what users sent and got.
        pools: Fleets, and the stages in the order in which requests take them.
        peak_window_s: As for :func:`tokenfleet.simulator.replaying.replay`.
        telemetry_interval_s: As there; a pool that has ended before the others reads as idle.
        worlds: What happens around each pool: failures, scaling, admission. What comes back to a pool after a refusal
            or a loss comes back to that pool. Asked anew for each replay of a pool, of which the last one counts.
        closed_loop: Requests that are sent when another has ended in its last stage, or where it was turned away. Of
            several that are free at one moment, the line goes on by their order.
        read_tokens_per_s: What a client reads of the tokens that it sees; whoever follows it, and its session, wait for
            that. ``None``: as fast as they come.
        run: Replays one pool, with the arguments of :func:`tokenfleet.simulator.replaying.replay`.

    Returns:
        The run of each pool, and the requests as their users see them. A request that a pool refuses goes no further.

    Raises:
        BadInput: A stage cannot be replayed; or a pool cannot, with the pool's name in front of the place.
    """
    check_stages(trace, pools, closed_loop, read_tokens_per_s)
    script, at_once = first_script(trace, closed_loop), None
    if pools.shares_gpus:
        times, slowly = (peak_window_s, telemetry_interval_s), read_tokens_per_s
        at_once = together(trace, pools, worlds, *times, users=closed_loop, read_tokens_per_s=slowly)
        script = replace(script, arrivals_ps=to_ps_column(at_once.arrival_s))
    elif closed_loop is not None or gates_of(pools):
        script = settled(trace, pools, worlds, closed_loop, script, read_tokens_per_s)
    passing = Passing(
        trace,
        pools,
        worlds,
        script,
        peak_window_s=peak_window_s,
        telemetry_interval_s=telemetry_interval_s,
        replayed=run,
        at_once=at_once,
    )
    found = passing.run()
    if closed_loop is not None:
        trace = replace(trace, arrival_s=script.arrivals_ps / PS_PER_S)
    gates = tuple(entrance.run for entrance in found.entrances.values())
    return StagedRun(
        record=joined(trace, found.journey, found.runs, gates),
        pools=found.runs,
        transfer_s=found.journey.transfer_ps / PS_PER_S,
        gates=gates,
    )


def first_script(trace: Trace, closed_loop: ClosedLoop | None) -> Script:
    """What is known before anything is replayed: who comes by the clock."""
    unknown_ps = np.full(trace.request_count, -1, dtype=np.int64)
    comes_ps = arrivals_ps(closed_loop, to_ps_column(trace.arrival_s), unknown_ps)
    return Script(arrivals_ps=comes_ps, turns={}, ends_ps=unknown_ps)


def gates_of(pools: Pools) -> list[Gate]:
    """The gates among the stages."""
    return [stage for stage in pools.stages if isinstance(stage, Gate)]


def settled(
    trace: Trace, pools: Pools, worlds: Worlds, loop: ClosedLoop | None, script: Script, reads_per_s: float | None
) -> Script:
    """The script that a replay by it confirms."""
    clock_ps = to_ps_column(trace.arrival_s)
    gates = gates_of(pools)
    nothing, right_ps = script, -1
    foreseen_ps = None if reads_per_s is not None or loop is None else arrivals_foreseen_ps(trace, pools, worlds, loop)
    if foreseen_ps is not None:
        script = replace(script, arrivals_ps=foreseen_ps)
    while True:
        found = Passing(trace, pools, worlds, script).run()
        sent = script.arrivals_ps >= 0
        ends_ps = np.where(sent, read_ps(found.journey, trace, reads_per_s), -1)
        heard = heard_first(pools, found.journey.moved)
        comes_ps = arrivals_ps(loop, clock_ps, ends_ps)
        # Doors are watched until the last one comes, too, who may not have come yet in this replay.
        last_ps = max(int(found.journey.now_ps[sent].max(initial=0)), int(comes_ps.max(initial=0)))
        following = Script(
            arrivals_ps=comes_ps,
            turns={gate.name: turns_of(gate, found, heard, last_ps) for gate in gates},
            ends_ps=ends_ps,
        )
        if is_confirmed(script, following, gates):
            return following
        if script.arrivals_ps is foreseen_ps:
            script = nothing
            continue
        parted_ps = parts_at_ps(script, following)
        script = up_to(following, parted_ps) if parted_ps - right_ps < STRIDE_PS else following
        right_ps = parted_ps


def parts_at_ps(script: Script, following: Script) -> int:
    """The moment up to which a script and what a replay by it found are the same: what both say until then is right."""
    apart_ps = [at.NEVER_PS]
    for said, found in ((script.arrivals_ps, following.arrivals_ps), (script.ends_ps, following.ends_ps)):
        times = np.stack([said, found])[:, said != found]
        apart_ps.append(int(times[times >= 0].min(initial=at.NEVER_PS)))
    for name, turns in following.turns.items():
        pairs = zip_longest(script.turns.get(name, ()), turns)
        apart_ps += [min(each.time_ps for each in pair if each) for pair in pairs if pair[0] != pair[1]][:1]
    return min(apart_ps)


def up_to(script: Script, time_ps: int) -> Script:
    """Only what a script says up to a moment: what is not right yet may come again and again a picosecond later."""
    return Script(
        arrivals_ps=np.where(script.arrivals_ps > time_ps, -1, script.arrivals_ps),
        turns={name: tuple(turn for turn in turns if turn.time_ps <= time_ps) for name, turns in script.turns.items()},
        ends_ps=np.where(script.ends_ps > time_ps, -1, script.ends_ps),
    )


def read_ps(journey: Journey, trace: Trace, tokens_per_s: float | None) -> Buffer:
    """When each user has read its answer, token after token from the first one on, or is told that there is none."""
    each_ps = token_read_ps(tokens_per_s)
    token_count = np.maximum(trace.output_tokens.astype(np.int64) - 1, 0)
    later_ps = np.minimum(token_count, at.NEVER_PS // 2 // max(each_ps, 1)) * each_ps
    answered = (journey.status == Status.FINISHED) & (journey.first_ps >= 0)
    return np.where(answered, np.maximum(journey.now_ps, journey.first_ps + later_ps), journey.now_ps)


def is_confirmed(script: Script, following: Script, gates: Sequence[Gate]) -> bool:
    """Whether a replay by a script found what the script says. Ends say something where open sessions are counted."""
    counted = any(limits_sessions(gate, script.turns.get(gate.name, ())) for gate in gates)
    return (
        are_one(script.arrivals_ps, following.arrivals_ps)
        and all(script.turns.get(name, ()) == turns for name, turns in following.turns.items())
        and (not counted or np.array_equal(script.ends_ps, following.ends_ps))
    )


def are_one(found_ps: Buffer, again_ps: Buffer) -> bool:
    """Whether times are the same, as far as seconds can tell: from an hour on, they round by picoseconds."""
    apart_ps = np.abs(found_ps - again_ps)
    return bool(np.all((apart_ps <= np.spacing(again_ps / PS_PER_S) * PS_PER_S) & ((found_ps < 0) == (again_ps < 0))))


def narrowed(pools: Pools, chosen: Buffer) -> Pools:
    """The stages of some requests, and one replica of each kind in every pool: for requests that come one at a time.

    Args:
        pools: The system.
        chosen: Numbers of the requests, in their order.
    """

    def of(column: Bools | None) -> Bools | None:
        return None if column is None else column[chosen]

    def part(whole: Stage) -> Stage:
        stage = replace(whole, takes=whole.takes[chosen], instead=of(whole.instead))
        if isinstance(stage, Call):
            inputs, outputs = stage.input_tokens[chosen], stage.output_tokens[chosen]
            return replace(stage, input_tokens=inputs, output_tokens=outputs)
        if isinstance(stage, Gate):
            return replace(stage, batch=of(stage.batch), smaller=of(stage.smaller))
        if isinstance(stage, Hold):
            return stage
        return replace(stage, duration_s=stage.duration_s[chosen])

    def one(fleet: Fleet) -> Fleet:
        return replace(fleet, groups=tuple(replace(group, replica_count=1) for group in fleet.groups))

    return Pools(
        fleets={name: one(fleet) for name, fleet in pools.fleets.items()},
        stages=tuple(part(stage) for stage in pools.stages),
    )


def of_requests(run: StagedRun, chosen: npt.NDArray[np.bool_], pools: Collection[str]) -> RunRecord:
    """The record of some requests alone, with the gaps that users see of some pools.

    Args:
        run: What happened to all of them.
        chosen: Which requests count.
        pools: The pools whose gaps are theirs.
    """
    record = run.record
    seen = [each for name, each in run.pools.items() if name in pools]
    peaks = [each.peak_gaps for each in seen if each.peak_gaps is not None]
    return replace(
        requests_of(record, chosen),
        gaps=added([each.gaps for each in seen if each.gaps is not None]),
        peak_gaps=None if record.peak_gaps is None else added(peaks),
        class_gaps=classes_in([each.class_gaps for each in seen]),
    )
