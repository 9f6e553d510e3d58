"""Replays a trace on a fleet: the door between columns and the compiled kernel."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import (
    BusyTime,
    ClassGaps,
    GapHistogram,
    Ledger,
    Onlooker,
    RunRecord,
    Status,
    Telemetry,
    Turmoil,
    WorkDone,
    entries_of,
)
from tokenfleet.domain.trace import Floats, Ints, Trace
from tokenfleet.domain.world import World
from tokenfleet.simulator import layout as at
from tokenfleet.simulator.bins import GAP_BINS, gap_bounds_ps
from tokenfleet.simulator.building import PS_PER_S, build, ledger_rows, to_ps
from tokenfleet.simulator.checking import check
from tokenfleet.simulator.classes import combinations
from tokenfleet.simulator.entry import plain
from tokenfleet.simulator.equipping import with_settled_cache
from tokenfleet.simulator.pausing import Pauses
from tokenfleet.simulator.placing import Buffer, Places, Section
from tokenfleet.simulator.roster import Roster
from tokenfleet.simulator.stretches import in_stretches
from tokenfleet.simulator.surroundings import Surroundings, in_lanes, surround
from tokenfleet.simulator.viewing import Desk, Scraper, blocks_of

MOST_SAMPLES = 1_000_000
IDLE = BusyTime(prefill_s=0.0, decode_s=0.0, cached_prefix_s=0.0, step_count=0, mixed_step_count=0)
LANES = {"priority 0": "lane interactive", "priority 1": "lane batch"}
"""What the two priorities stand for where batch waits in a lane of its own."""
LOOKING = ("least_waiting", "least_kv", "by_length", "by_tier")
"""Routers that look into the replicas."""


def replay(
    trace: Trace,
    fleet: Fleet,
    *,
    peak_window_s: tuple[float, float] | None = None,
    telemetry_interval_s: float | None = None,
    world: World | None = None,
    hopeless: Onlooker | None = None,
) -> RunRecord:
    """Replay every request of a trace on a fleet, to the end of the last one.

    A request reaches the router at its arrival and the scheduler of its replica ``request_ps`` later. Scheduling
    follows the rules of the engine, by its name (see :func:`tokenfleet.simulator.rules.rule_set_note`), and its
    settings; every output length counts as foreseen (``max_tokens``), so async scheduling wastes no step on a request
    that has ended. A decoding sequence attends to its context and its own new token.

    Args:
        trace: Requests in order of arrival.
        fleet: At least one replica.
        peak_window_s: Start and end in seconds since the start of the trace; token gaps of steps that end inside
            (start included, end excluded) are counted apart.
        telemetry_interval_s: Gauges are taken at multiples of it, from one interval on to the first multiple
            after the last request has ended, each after the last step boundary up to that moment. The record then
            has a ledger, too: when each request was admitted, and what it took of the gpus.
        world: Failures, starts, clients that come back, admission, closed loops, a controller; ``None``: a quiet
            world, in which every replica is ready all the time and requests arrive by the clock.
        hopeless: Asked on the way, when it wants to; where it says yes the replay stops there and the record as it
            stands is the answer, with ``cut_s``. Not asked while telemetry is taken, by a router that looks into
            replicas, or in a world that is not quiet.

    Returns:
        The run record, one entry per request in the order of the trace.

    Raises:
        BadInput: The trace, the fleet, the world, the window or the interval cannot be used; all problems at once.
    """
    check(trace, fleet, world)
    check_times(trace, peak_window_s, telemetry_interval_s)
    fleet = with_settled_cache(trace, fleet)
    interval_ps = at.NEVER_PS if telemetry_interval_s is None else to_ps(telemetry_interval_s)
    if world is not None:
        return replay_in(world, trace, fleet, peak_window_s, interval_ps)
    memory, places = build(trace, fleet, peak_window_s, detailed=telemetry_interval_s is not None)
    peak = peak_window_s is not None
    scraper = scraper_for(memory, places, fleet)
    pauses = Pauses(memory, gauges_of(memory, places), interval_ps, scraper)
    if scraper is None and telemetry_interval_s is None and hopeless is not None:
        cut = until_hopeless(pauses, places, trace, peak_window_s, hopeless)
        if cut is not None:
            return cut
    pauses.run_to_end()
    return record(memory, places, trace, telemetry(pauses, fleet), peak)


def check_times(trace: Trace, peak_window_s: tuple[float, float] | None, telemetry_interval_s: float | None) -> None:
    """Refuse a window or an interval that cannot be used."""
    if peak_window_s is not None and not 0.0 <= peak_window_s[0] < peak_window_s[1]:
        raise BadInput.at("peak_window_s", f"{peak_window_s} is no window", "start before end, both from 0 on")
    if telemetry_interval_s is not None and not 1e-6 <= telemetry_interval_s < np.inf:
        raise BadInput.at("telemetry_interval_s", f"{telemetry_interval_s} s", "at least a microsecond")
    if telemetry_interval_s is not None and trace.duration_s > MOST_SAMPLES * telemetry_interval_s:
        what = f"{telemetry_interval_s:g} s gives more than {MOST_SAMPLES:,} samples in {trace.duration_s:,.0f} s"
        raise BadInput.at("telemetry_interval_s", what, "take a longer interval")


def replay_in(
    world: World, trace: Trace, fleet: Fleet, peak_window_s: tuple[float, float] | None, interval_ps: int
) -> RunRecord:
    """Replay a checked trace in a checked world."""
    return run_in(world, trace, fleet, peak_window_s, interval_ps).record


@dataclass(frozen=True, slots=True)
class Run:
    """A replay in a world at its end."""

    record: RunRecord
    replicas: Buffer
    """Their rows."""
    pools: Buffer
    """Their rows."""


def run_in(
    world: World, trace: Trace, fleet: Fleet, peak_window_s: tuple[float, float] | None, interval_ps: int
) -> Run:
    """Such a replay, and what it leaves behind."""
    trace, fleet = in_lanes(trace, fleet, world)
    memory, places, around = surround(
        trace, fleet, peak_window_s, world, detailed=interval_ps < at.NEVER_PS or world.looks_inside
    )
    roster = Roster(memory, places, around, fleet)
    desk = None if world.controller is None else Desk(memory, places, around, trace, fleet, world)
    scraper = scraper_for(memory, places, fleet) if world.lane is None else Scraper(memory, places, fleet)
    pauses = Pauses(memory, gauges_of(memory, places), interval_ps, scraper, roster, desk, world.happenings)
    pauses.run_to_end()
    quiet = record(memory, places, trace, telemetry(pauses, fleet), peak_window_s is not None)
    if world.lane is not None:
        quiet = replace(quiet, class_gaps={LANES.get(name, name): gaps for name, gaps in quiet.class_gaps.items()})
    return Run(with_world(quiet, memory, around, roster), roster.rows, roster.pools)


def until_hopeless(
    pauses: Pauses,
    places: Places,
    trace: Trace,
    peak_window_s: tuple[float, float] | None,
    hopeless: Onlooker,
) -> RunRecord | None:
    """Replay from look to look; the record of the look at which somebody gave up, or ``None``."""
    last_s, peak = trace.duration_s, peak_window_s is not None
    for cut_s in hopeless.looks_s(last_s):
        if cut_s >= last_s:
            break
        pauses.run_to(to_ps(cut_s))
        if hopeless(glance(pauses.memory, places, trace, peak, cut_s)):
            return replace(record(pauses.memory, places, trace, None, peak), cut_s=cut_s)
    return None


def warm_up(announce: Callable[[str], None]) -> bool:
    """Make the kernel ready: load its machine code, or compile it once per machine and version.

    Models whose layers have windows run in one of their own, which is made ready at their first replay.

    Args:
        announce: Called with one line for a person, and only when the kernel must be compiled.

    Returns:
        Whether it had to be compiled.
    """
    compiling = not plain.is_cached
    if compiling:
        announce("Compiling the replay kernel, once on this machine: about 10 seconds ...")
    plain(np.zeros(at.HEADER_WORDS, dtype=np.int64), -1)
    return compiling


def scraper_for(memory: Buffer, places: Places, fleet: Fleet) -> Scraper | None:
    """Who shows the gauges to the router, if it looks at them."""
    return Scraper(memory, places, fleet) if fleet.router in LOOKING else None


def gauges_of(memory: Buffer, places: Places) -> Buffer:
    """The gauges of the last pause, one row per replica."""
    return memory[places.samples.start : places.samples.stop].reshape(-1, at.SAMPLE_WORDS)


def telemetry(pauses: Pauses, fleet: Fleet) -> Telemetry | None:
    """The samples as columns."""
    if not pauses.samples:
        return None
    blocks = blocks_of(fleet)
    stacked = np.stack(pauses.samples)
    return Telemetry(
        time_s=np.arange(1.0, len(stacked) + 1.0) * (pauses.interval_ps / PS_PER_S),
        running=stacked[:, :, at.SAMPLE_RUNNING].astype(np.int32),
        waiting=stacked[:, :, at.SAMPLE_WAITING].astype(np.int32),
        kv_used_fraction=1.0 - stacked[:, :, at.SAMPLE_FREE_BLOCKS] / blocks,
        active_tokens=stacked[:, :, at.SAMPLE_ACTIVE_TOKENS],
        state=np.stack(pauses.states) if pauses.states else None,
        done=WorkDone(
            busy_s=stacked[:, :, at.SAMPLE_BUSY] / PS_PER_S,
            step_count=stacked[:, :, at.SAMPLE_STEPS],
            prefill_step_count=stacked[:, :, at.SAMPLE_STEPS_WITH_PREFILL],
            prefill_tokens=stacked[:, :, at.SAMPLE_PREFILL_TOKENS],
            decode_tokens=stacked[:, :, at.SAMPLE_DECODE_TOKENS],
            context_tokens=stacked[:, :, at.SAMPLE_READ_TOKENS],
            pair_count=stacked[:, :, at.SAMPLE_PREFILL_PAIRS],
            kept_draft_tokens=stacked[:, :, at.SAMPLE_KEPT_TOKENS],
            preemption_count=stacked[:, :, at.SAMPLE_PREEMPTIONS],
            swap_count=stacked[:, :, at.SAMPLE_SWAPS],
            swapped_block_count=stacked[:, :, at.SAMPLE_SWAPPED_BLOCKS],
            recomputed_tokens=stacked[:, :, at.SAMPLE_RECOMPUTED_TOKENS],
        ),
    )


def with_world(quiet: RunRecord, memory: Buffer, around: Surroundings, roster: Roster) -> RunRecord:
    """The record in the order of the trace, and what the world did to it."""
    visits = memory[around.visits.start : around.visits.stop].reshape(-1, at.VISIT_WORDS)
    back = np.empty(len(around.order), dtype=np.int64)
    back[around.order] = np.arange(len(around.order))
    attempts = visits[back, at.ATTEMPTS].astype(np.int32)
    end_ps = int(memory[at.ENDED])
    requests = roster.places.requests
    links = memory[requests.start : requests.stop].reshape(-1, at.REQUEST_WORDS)[:, at.LINK]
    partial = np.where(quiet.status == int(Status.FINISHED), 0, links >> 32).astype(np.int32)
    return replace(
        quiet,
        arrival_s=seconds(visits[back, at.FIRST_ARRIVAL]),
        first_token_s=quiet.first_token_s[back],
        finish_s=quiet.finish_s[back],
        cached_tokens=quiet.cached_tokens[back],
        preemption_count=quiet.preemption_count[back],
        replica=np.where(attempts > 0, quiet.replica[back], np.int32(-1)),
        status=np.where(attempts > 0, quiet.status[back], np.int8(Status.CANCELLED)),
        end_s=end_ps / PS_PER_S,
        ready_s=None if quiet.ready_s is None else np.where(attempts == 1, quiet.ready_s[back], np.nan),
        ledger=None if quiet.ledger is None else entries_of(quiet.ledger, back),
        turmoil=Turmoil(
            attempt_count=attempts,
            degraded=visits[back, at.DEGRADED].astype(np.int8),
            **attempts_of(roster.pools),
            left_s=seconds(visits[back, at.LEFT]),
            partial_output_tokens=partial[back],
            state_s=roster.state_s(end_ps),
            spells=roster.spells_s(),
            decisions=tuple(each for each in roster.decisions if to_ps(each.time_s) <= end_ps),
        ),
    )


class Attempts(TypedDict):
    """What became of attempts: fields of a turmoil."""

    refused_count: int
    lost_count: int
    cancelled_count: int
    timed_out_count: int
    wasted_output_tokens: int


def attempts_of(pools: Buffer) -> Attempts:
    """What became of the attempts to have an answer from some pools."""
    total = pools.sum(axis=0).tolist()
    return Attempts(
        refused_count=total[at.REFUSED_COUNT] + total[at.OVERDUE_COUNT],
        lost_count=total[at.LOST_COUNT],
        cancelled_count=total[at.CANCELLED_COUNT],
        timed_out_count=total[at.TIMED_OUT_COUNT],
        wasted_output_tokens=total[at.WASTED_TOKENS],
    )


def record(memory: Buffer, places: Places, trace: Trace, samples: Telemetry | None, peak: bool) -> RunRecord:
    """Read the columns back out of the buffer."""
    rows = memory[places.requests.start : places.requests.stop].reshape(-1, at.REQUEST_WORDS)
    replicas = memory[places.replicas.start : places.replicas.stop].reshape(-1, at.REPLICA_WORDS)
    outcomes = read_outcomes(rows)
    return RunRecord(
        **outcomes,
        arrival_s=trace.arrival_s,
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        gaps=histogram(memory, places.gaps),
        peak_gaps=histogram(memory, places.peak_gaps) if peak else None,
        class_gaps=class_gaps(memory, places, trace, peak=peak) if places.ledger.words else {},
        busy=busy_time(replicas),
        replica_count=len(replicas),
        end_s=float(np.fmax.reduce(outcomes["finish_s"], initial=0.0)),
        telemetry=samples,
        class_bits=trace.class_bits,
        classes=trace.classes,
        time_of_day_s=trace.time_of_day_s,
        ledger=None if samples is None else ledger(memory, places),
    )


def glance(memory: Buffer, places: Places, trace: Trace, peak: bool, cut_s: float) -> RunRecord:
    """The record as it stands, as far as a promise hangs on it: read by those who look at many replays on the way."""
    rows = memory[places.requests.start : places.requests.stop].reshape(-1, at.REQUEST_WORDS)
    come = rows[: memory[at.ARRIVED_COUNT]]
    count = len(rows)
    first_s, finish_s = np.full(count, np.nan), np.full(count, np.nan)
    first_s[: len(come)], finish_s[: len(come)] = seconds(come[:, at.FIRST_TOKEN]), seconds(come[:, at.FINISH])
    place = rows[:, at.PLACE]
    nothing: Ints = np.broadcast_to(np.int32(0), count)
    return RunRecord(
        arrival_s=trace.arrival_s,
        first_token_s=first_s,
        finish_s=finish_s,
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        cached_tokens=nothing,
        preemption_count=nothing,
        replica=(place & at.HALF).astype(np.int32),
        status=(place >> 32).astype(np.int8),
        gaps=histogram(memory, places.gaps),
        peak_gaps=histogram(memory, places.peak_gaps) if peak else None,
        busy=IDLE,
        replica_count=places.replicas.words // at.REPLICA_WORDS,
        end_s=cut_s,
        telemetry=None,
        cut_s=cut_s,
        class_bits=trace.class_bits,
        classes=trace.classes,
        time_of_day_s=trace.time_of_day_s,
    )


class Outcomes(TypedDict):
    """What became of each request: columns of a record."""

    first_token_s: Floats
    finish_s: Floats
    ready_s: Floats
    cached_tokens: Ints
    preemption_count: Ints
    replica: Ints
    status: npt.NDArray[np.int8]


def read_outcomes(rows: Buffer) -> Outcomes:
    """The columns that the rows of requests hold."""
    count = len(rows)
    found = Outcomes(
        first_token_s=np.empty(count),
        finish_s=np.empty(count),
        ready_s=np.empty(count),
        cached_tokens=np.empty(count, dtype=np.int32),
        preemption_count=np.empty(count, dtype=np.int32),
        replica=np.empty(count, dtype=np.int32),
        status=np.empty(count, dtype=np.int8),
    )

    def read(part: slice) -> None:
        fields = rows[part].T.copy()
        first_ps, finish_ps, history, place = fields[[at.FIRST_TOKEN, at.FINISH, at.HISTORY, at.PLACE]]
        known = np.maximum(first_ps, finish_ps) >= 0
        found["first_token_s"][part] = seconds(first_ps)
        found["finish_s"][part] = seconds(finish_ps)
        found["ready_s"][part] = np.where(known, fields[at.READY] / PS_PER_S, np.nan)
        found["cached_tokens"][part] = history & at.HALF
        found["preemption_count"][part] = history >> 32 & at.MOST_PREEMPTIONS
        found["replica"][part] = place & at.HALF
        found["status"][part] = place >> 32

    in_stretches(count, read)
    return found


def busy_time(replicas: Buffer) -> BusyTime:
    """What replicas spent their time on, from their rows."""
    return BusyTime(
        prefill_s=total_s(replicas[:, at.PREFILL_BUSY]),
        decode_s=total_s(replicas[:, at.DECODE_BUSY]),
        cached_prefix_s=total_s(replicas[:, at.CACHED_BUSY]),
        step_count=int(replicas[:, at.STEPS].sum()),
        mixed_step_count=int(replicas[:, at.MIXED_STEPS].sum()),
    )


def ledger(memory: Buffer, places: Places) -> Ledger:
    """What each request took, as columns."""
    rows = ledger_rows(memory, places)
    return Ledger(
        scheduled_s=seconds(rows[:, at.SCHEDULED]),
        prefill_gpu_s=rows[:, at.PREFILL_GPU] / PS_PER_S,
        cached_gpu_s=rows[:, at.CACHED_GPU] / PS_PER_S,
        decode_gpu_s=rows[:, at.DECODE_GPU] / PS_PER_S,
        recomputed_tokens=rows[:, at.COMPUTED_AGAIN].copy(),
        swap_count=rows[:, at.SWAP_COUNT].astype(np.int32),
    )


def total_s(times_ps: Buffer) -> float:
    """The sum of picoseconds in seconds; that of a large fleet over a week does not fit into 64 bits."""
    total_ps: int = sum(times_ps.tolist())
    return total_ps / PS_PER_S


def seconds(times_ps: Buffer) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Picoseconds to seconds; what never happened (-1) is NaN."""
    times_s = times_ps / PS_PER_S
    times_s[times_ps < 0] = np.nan
    return times_s


def class_gaps(memory: Buffer, places: Places, trace: Trace, *, peak: bool) -> dict[str, ClassGaps]:
    """The gaps of each traffic class and priority."""
    return {
        name: ClassGaps(
            gaps=histogram(memory, places.gaps, numbers),
            peak_gaps=histogram(memory, places.peak_gaps, numbers) if peak else None,
        )
        for name, numbers in combinations(trace).names.items()
    }


def histogram(memory: Buffer, counts: Section, numbers: Buffer | None = None) -> GapHistogram:
    """The gaps of some combinations of classes, or of all, with edges in seconds; the last bin has no upper end."""
    by_class = memory[counts.start : counts.stop].reshape(-1, GAP_BINS)
    count = by_class.sum(axis=0) if numbers is None else by_class[numbers].sum(axis=0)
    return GapHistogram(lower_s=_gap_bounds_s(), count=count)


@cache
def _gap_bounds_s() -> Floats:
    bounds = gap_bounds_ps() / PS_PER_S
    bounds[-1] = np.inf
    bounds.flags.writeable = False
    return bounds
