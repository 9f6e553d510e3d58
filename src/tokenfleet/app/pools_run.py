"""Replays a scenario's traffic through its pools, and the same requests alone, and judges the whole and each pool."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from tokenfleet import catalog, contract, performance, simulator, workload
from tokenfleet.app.around import looped
from tokenfleet.app.compose import Teller, demand_of, gpu_prices
from tokenfleet.app.demand_words import about_demand, at_max_output
from tokenfleet.app.lane_queue import INTERACTIVE, of_lane, with_gaps_of
from tokenfleet.app.pools_diagnosis import SystemFinding, findings
from tokenfleet.app.pools_doors import climbers_of
from tokenfleet.app.pools_fleet import NamedPool
from tokenfleet.app.pools_intervals import SystemIntervals, system_intervals
from tokenfleet.app.pools_question import PoolSystem, pool_system
from tokenfleet.app.pools_world import PoolWorlds, check_pool_events, scaling_notes
from tokenfleet.app.provenance import resolved_scenario
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.sending import sending_s
from tokenfleet.app.simulate_run import How, Window, asked_interval_s, cheapest, in_time, interval_for
from tokenfleet.app.world_question import lane_of
from tokenfleet.contract import DiagnosisLimits, Fairness, Minutes
from tokenfleet.contract.quantile import order_statistic
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord, Status, requests_of
from tokenfleet.domain.slo import Slo, SloResult
from tokenfleet.domain.stages import Call, Gate, Hold, PoolRun, Pools, StagedRun, Wait
from tokenfleet.domain.trace import Bools, Floats, Trace, Workload, rows_of
from tokenfleet.domain.world import ClosedLoop, ReplicaState
from tokenfleet.planner.scaling import gpu_hours
from tokenfleet.simulator.autoscaling import Autoscaler
from tokenfleet.simulator.controlling import Controller

_ALONE_APART_S: Final = 3_600.0
"""Longer than any request takes alone; idle time costs a replay nothing."""
_ALONE_COUNT: Final = 1_000
_DAY_S: Final = 86_400.0


SystemOf = Callable[[Scenario, Trace], PoolSystem]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """What one pool did."""

    named: NamedPool
    call_count: int
    refused_count: int
    """Calls that were refused for good."""
    timed_out_count: int
    cancelled_count: int
    """Calls that their users left."""
    preemption_count: int
    stay_p50_s: float | None
    """From a call's arrival at the pool to its end; batch in a lane aside."""
    stay_p95_s: float | None
    slower_p95_factor: float | None
    """``stay_p95_s`` over that of calls that come one at a time."""
    mean_s: float
    """Seconds that the pool takes of a request, over all of :func:`answered`, those that pass it by included."""
    busy_fraction: float | None
    prefill_fraction: float | None
    running_peak_count: int
    waiting_peak_count: int
    kv_peak_fraction: float | None
    """``None`` for models that keep no KV."""
    late_count: int | None
    """Calls that ended outside the pool's daily window; ``None`` without one."""
    lost_count: int
    """Calls that were lost with a replica, however often they came back."""
    gpu_hours: float
    """GPU-hours that its replicas held, up to its last answer; 0 on the GPUs of another pool, which has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPools:
    """A replay through several pools and what it means."""

    name: str
    model: str
    slo: Slo
    workload: Workload
    trace: Trace
    """Images in the prompts included."""
    batch: Bools | None
    """Which requests are batch in a lane; ``None`` without one."""
    pools: Pools
    staged: StagedRun
    interval_s: float
    peak_window_s: Window
    peak: tuple[SloResult, ...]
    whole: tuple[SloResult, ...]
    found_at_peak: SystemFinding
    found_in_all: SystemFinding
    limits: DiagnosisLimits
    minutes: Minutes
    at_max_output_count: int | None
    """Requests whose outputs end at ``workload.max_output``; ``None`` where none is set."""
    reads_tokens_per_s: float | None
    """What a client reads; ``None``: as fast as tokens come."""
    rows: tuple[PoolRow, ...]
    resolved: dict[str, object]
    assumptions: tuple[str, ...]
    intervals: SystemIntervals
    scalers: Mapping[str, Autoscaler]
    """Who scaled each pool that is scaled, with the log of what was decided."""
    climbers: Mapping[str, Controller]
    """Who climbed each ladder, by the pool before which its door stands."""
    has_users: bool
    """Whether requests wait for the answers to others."""

    @property
    def keeps_log(self) -> bool:
        """Whether anything is around the pools, so that what was decided and what became of replicas is told."""
        return self.has_users or self.record.turmoil is not None

    @property
    def transfer_mean_s(self) -> float:
        """Seconds that requests spend between pools, on average."""
        among = answered(self.staged, self.batch)
        return float(self.staged.transfer_s[among].mean()) if among.any() else 0.0

    @property
    def wait_mean_s(self) -> float:
        """Seconds that requests spend outside the pools, on average: waits and windows."""
        e2e_s = self.record.e2e_s[answered(self.staged, self.batch)]
        if not len(e2e_s):
            return 0.0
        rest_s = float(e2e_s.mean()) - sum(row.mean_s for row in self.rows) - self.transfer_mean_s
        # Picoseconds are lost to floats, and no time passes there.
        return max(0.0, round(rest_s, 9))

    @property
    def fairness(self) -> Fairness | None:
        """How tenants were served; ``None`` where fewer than two are known."""
        tenant = self.trace.tenant
        return None if tenant is None else contract.fairness_of(self.record, tenant, self.trace.tenants)

    @property
    def waited_for(self) -> RunRecord:
        """The requests that somebody waits for: all but batch in a lane, unless all are."""
        return self.record if self.batch is None or self.batch.all() else of_lane(self.record, INTERACTIVE, ~self.batch)

    @property
    def record(self) -> RunRecord:
        """The requests as their users see them."""
        return self.staged.record


def simulate_pools(asked: Scenario, how: How, teller: Teller, system_of: SystemOf = pool_system) -> SimulatedPools:
    """Replay the traffic of a scenario through its pools, and judge it.

    Args:
        asked: A scenario with ``pools``.
        how: Limits of the diagnosis, and what to sample.
        teller: Told what is being done.
        system_of: The pools, from the scenario and its demand; those that the scenario names unless given.

    Raises:
        BadInput: the demand cannot be read or drawn, or the pools do not serve it.
    """
    teller.say("reading the demand" if asked.workload.trace else "drawing the demand")
    text, described = demand_of(asked)
    simulator.check_span(text)
    text, loop = looped(asked, text)
    system = system_of(asked, text)
    check_pool_events(asked, system.named)
    simulator.warm_up(announce=teller.announce)
    teller.say("replaying all pools at once" if system.pools.shares_gpus else "replaying pool after pool")
    system = replace(system, trace=arrived(asked, system, loop))
    trace, pools = system.trace, system.pools
    window_s = workload.peak_window(in_time(trace))
    through = partial(simulator.replay_stages, read_tokens_per_s=_reads(asked))
    sampled_s = asked_interval_s(how, trace) or interval_for(_lasts_s(asked, system), pools.fleets.values())
    worlds = PoolWorlds(asked, system.named)
    staged = through(trace, pools, peak_window_s=window_s, telemetry_interval_s=sampled_s, worlds=worlds)
    climbers = climbers_of(pools)
    teller.say("replaying at both ends of the error band, and requests alone")
    peak, whole = _judged(asked, system, staged, window_s, loop, sampled_s)
    model, gpus = catalog.model(asked.model), _gpus(system)
    prices = tuple(price for gpu in gpus for price in gpu_prices(gpu, asked))
    return SimulatedPools(
        name=asked.name,
        model=model.name,
        slo=asked.slo.targets(),
        workload=described,
        trace=trace,
        batch=system.batch,
        pools=pools,
        staged=staged,
        interval_s=sampled_s,
        peak_window_s=window_s,
        peak=peak,
        whole=whole,
        found_at_peak=findings(system, staged, how.limits, window_s),
        found_in_all=findings(system, staged, how.limits),
        limits=how.limits,
        minutes=contract.judge_minutes(promised(system, staged), asked.slo.targets()),
        at_max_output_count=at_max_output(asked.workload, trace),
        reads_tokens_per_s=_reads(asked),
        rows=pool_rows(system, staged),
        resolved=resolved_scenario(asked, model=model, gpus=gpus, prices=prices, trace=trace),
        assumptions=tuple(_assumed(asked, system)),
        intervals=system_intervals(staged, pools, system.named, sampled_s, cheapest(prices)),
        scalers=worlds.scalers,
        climbers=climbers,
        has_users=loop is not None,
    )


def _lasts_s(asked: Scenario, system: PoolSystem) -> float:
    """Until when requests are sent, at least."""
    lane = lane_of(asked, system.trace)
    if lane is None or not lane.is_windowed:
        return sending_s(system.trace, system.windows.values())
    # How many days batch waits for slots in its window, a replay alone knows.
    worlds, reads = PoolWorlds(asked, system.named), _reads(asked)
    return simulator.replay_stages(system.trace, system.pools, worlds=worlds, read_tokens_per_s=reads).record.end_s


def _gpus(system: PoolSystem) -> tuple[Gpu, ...]:
    """The accelerators of all pools, old and new versions."""
    names = (group.replica.deployment.gpu for each in system.named for group in each.fleet.groups)
    return tuple(catalog.gpu(name) for name in dict.fromkeys(names))


def _assumed(asked: Scenario, system: PoolSystem) -> Iterator[str]:
    yield from about_demand(asked, system.trace)
    yield from system.notes
    yield from scaling_notes(asked, system.named)
    yield from _model_notes(system)


def _reads(asked: Scenario) -> float | None:
    """Tokens that a client reads in a second; ``None``: as fast as they come."""
    return None if asked.clients is None else asked.clients.reads


def arrived(asked: Scenario, system: PoolSystem, loop: ClosedLoop | None) -> Trace:
    """The requests with the times at which they come; those of users as a replay shows them."""
    if loop is None:
        return system.trace
    worlds = PoolWorlds(asked, system.named)
    run = simulator.replay_stages(
        system.trace, system.pools, worlds=worlds, closed_loop=loop, read_tokens_per_s=_reads(asked)
    )
    return replace(system.trace, arrival_s=run.record.arrival_s)


def _judged(
    asked: Scenario,
    system: PoolSystem,
    staged: StagedRun,
    peak_s: Window,
    loop: ClosedLoop | None,
    sampled_s: float,
) -> tuple[tuple[SloResult, ...], tuple[SloResult, ...]]:
    """The promise at the peak and over the whole run, with its range at both ends of the error band."""
    slo = asked.slo.targets()

    def at(*, slow: bool) -> StagedRun:
        return simulator.replay_stages(
            system.trace,
            at_band(system.pools, slow=slow),
            peak_window_s=peak_s,
            # Gaps are counted class by class along with telemetry.
            telemetry_interval_s=sampled_s if slo.gaps_apart_in(has_lane=system.batch is not None) else None,
            worlds=PoolWorlds(asked, system.named),
            closed_loop=loop,
            read_tokens_per_s=_reads(asked),
        )

    low, high = at(slow=False), at(slow=True)
    return (
        judged(system, staged, slo, window_s=peak_s, low=low, high=high),
        judged(system, staged, slo, low=low, high=high),
    )


def judged(
    system: PoolSystem,
    staged: StagedRun,
    slo: Slo,
    *,
    window_s: Window | None = None,
    low: StagedRun | None = None,
    high: StagedRun | None = None,
) -> tuple[SloResult, ...]:
    """The clauses of a promise: those about waiting for requests that are no offline work, deadlines for all."""

    def judge(part: Slo, everybody: bool) -> tuple[SloResult, ...]:
        def of(run: StagedRun) -> RunRecord:
            return run.record if everybody else promised(system, run)

        return contract.judge(
            of(staged),
            part,
            peak_only=window_s is not None,
            window_s=window_s,
            low=None if low is None else of(low),
            high=None if high is None else of(high),
        )

    return contract.judged_in_parts(slo, judge)


def who_waits(system: PoolSystem) -> Bools | None:
    """The requests that the promise is about: no batch, and none that wait for a daily window; ``None``: all.

    All, too, where none would be left.
    """
    held = [stage.takes for stage in system.pools.stages if isinstance(stage, Hold)]
    held += [] if system.batch is None else [system.batch]
    free = ~np.logical_or.reduce(held) if held else np.zeros(0, dtype=np.bool_)
    return free if free.any() else None


def promised(system: PoolSystem, staged: StagedRun, among: Bools | None = None) -> RunRecord:
    """The requests that the promise is about, all of them or some; see :func:`who_waits`."""
    free = who_waits(system)
    if free is None:
        return staged.record if among is None else requests_of(staged.record, among)
    pools = [each.name for each in system.named if each.behind not in system.windows]
    found = simulator.of_requests(staged, free if among is None else free & among, pools)
    has_both = system.batch is not None and system.batch.any()
    return with_gaps_of(found, INTERACTIVE, is_all=not has_both)


def at_band(pools: Pools, *, slow: bool) -> Pools:
    """The pools at one end of the error band of their step times."""

    def scaled(fleet: Fleet) -> Fleet:
        groups = []
        for group in fleet.groups:
            factor = group.replica.band.step_time_factor
            step_time = performance.scaled(group.replica.step_time, factor if slow else 1.0 / factor)
            groups.append(replace(group, replica=replace(group.replica, step_time=step_time)))
        return replace(fleet, groups=tuple(groups))

    return replace(pools, fleets={name: scaled(fleet) for name, fleet in pools.fleets.items()})


def alone(trace: Trace, pools: Pools, among: Bools) -> StagedRun:
    """Up to a thousand of these requests, spread evenly, an hour apart: what they take with nobody else there."""
    rows = np.flatnonzero(among)
    chosen = rows[np.unique(np.linspace(0, max(len(rows) - 1, 0), min(len(rows), _ALONE_COUNT)).astype(np.int64))]
    moments_s = np.arange(len(chosen), dtype=np.float64) * np.float64(_ALONE_APART_S)
    apart = replace(rows_of(trace, chosen), arrival_s=moments_s)
    kept = tuple(stage for stage in pools.stages if not isinstance(stage, (Hold, Gate)))
    # Between two of them nothing changes that a router could see.
    fleets = {name: replace(fleet, scrape_s=_ALONE_APART_S / 2) for name, fleet in pools.fleets.items()}
    return simulator.replay_stages(apart, simulator.narrowed(replace(pools, stages=kept, fleets=fleets), chosen))


def pool_rows(system: PoolSystem, staged: StagedRun) -> tuple[PoolRow, ...]:
    """One row for each pool, in the order of the stages."""
    waiting = np.ones(system.trace.request_count, dtype=np.bool_) if system.batch is None else ~system.batch
    idle = alone(system.trace, system.pools, waiting)
    among = answered(staged, system.batch)
    span_s = staged.record.span_s
    return tuple(
        _row(named, staged.pools[named.name], idle.pools[named.name], system, among, span_s) for named in system.named
    )


def answered(staged: StagedRun, batch: Bools | None) -> Bools:
    """The requests that finish and that somebody waits for: all but batch in a lane, unless all are."""
    finished: Bools = staged.record.status == Status.FINISHED
    return finished if batch is None or batch.all() else finished & ~batch


def _row(named: NamedPool, run: PoolRun, idle: PoolRun, system: PoolSystem, among: Bools, span_s: float) -> PoolRow:
    record, gauges = run.record, run.record.telemetry
    if gauges is None:
        raise ValueError("the run sampled no gauges")
    batch = system.batch
    # How long batch waits in its lane says nothing about how full the pool is for the others.
    waits = None if batch is None or batch[run.caller].all() else ~batch[run.caller]
    stay_s = stays_s(run, waits)
    loaded_s, alone_s = order_statistic(stay_s, 0.95), order_statistic(stays_s(idle), 0.95)
    busy_s = record.busy.prefill_s + record.busy.decode_s
    window = system.windows.get(named.behind)
    ended = contract.unanswered_counts(record.status)
    return PoolRow(
        named=named,
        call_count=len(run.caller),
        refused_count=ended["rejected_count"],
        timed_out_count=ended["timed_out_count"],
        cancelled_count=ended["cancelled_count"],
        preemption_count=int(record.preemption_count.sum(dtype=np.int64)),
        stay_p50_s=order_statistic(stay_s, 0.5),
        stay_p95_s=loaded_s,
        slower_p95_factor=loaded_s / alone_s if loaded_s is not None and alone_s else None,
        mean_s=float(stays_s(run, among[run.caller]).sum()) / max(int(among.sum()), 1),
        busy_fraction=busy_s / served_s if (served_s := serving_s(record, span_s)) > 0 else None,
        prefill_fraction=record.busy.prefill_s / busy_s if busy_s > 0 else None,
        running_peak_count=int(gauges.running.max(initial=0)),
        waiting_peak_count=int(gauges.waiting.max(initial=0)),
        kv_peak_fraction=float(gauges.kv_used_fraction.max(initial=0.0)) if named.keeps_kv else None,
        late_count=None if window is None else late_count(record.finish_s, window),
        lost_count=0 if record.turmoil is None else record.turmoil.lost_count,
        gpu_hours=gpu_hours(record, named.fleet) if named.beside is None else 0.0,
    )


def serving_s(record: RunRecord, span_s: float) -> float:
    """Replica-seconds in which calls could be served."""
    if record.turmoil is None:
        return record.replica_count * span_s
    serving = [int(state) for state in (ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.STOPPING)]
    return float(record.turmoil.state_s[:, serving].sum())


def stays_s(run: PoolRun, among: Bools | None = None) -> Floats:
    """Seconds that each caller spent in a pool, from its first call to the end of its last; of some calls, or all."""
    mine = slice(None) if among is None else among
    caller = run.caller[mine]
    if not len(caller):
        return np.zeros(0)
    callers, place = np.unique(caller, return_inverse=True)
    begin_s, end_s = np.full(len(callers), np.inf), np.full(len(callers), -np.inf)
    np.minimum.at(begin_s, place, run.trace.arrival_s[mine])
    # A caller one of whose calls came to nothing has no end.
    finish_s = run.record.finish_s[mine]
    np.maximum.at(end_s, place, np.where(np.isnan(finish_s), np.inf, finish_s))
    stay_s: Floats = end_s - begin_s
    return stay_s[np.isfinite(stay_s)]


def late_count(finish_s: Floats, window: Hold) -> int:
    """Calls that ended while the window was closed."""
    known = finish_s[np.isfinite(finish_s)]
    since_s = (known + window.start_s - window.opens_s) % _DAY_S
    return int((since_s > (window.closes_s - window.opens_s) % _DAY_S).sum())


def _model_notes(system: PoolSystem) -> list[str]:
    models = {each.model.name: each.model for each in system.named}
    return [note if len(models) == 1 else f"{name}: {note}" for name, model in models.items() for note in model.notes]


def stage_words(pools: Pools) -> str:
    """The way of requests in a line: ``embed > wait > chat-prefill > transfer > chat-decode``.

    A bar stands between stages that no request passes both of: ``embed | chat``.
    """
    words = ""
    before: Bools | None = None
    for stage in pools.stages:
        if isinstance(stage, Gate):
            continue
        if isinstance(stage, Call):
            word = stage.pool if stage.call_count == 1 else f"{stage.call_count} x {stage.pool}"
        else:
            word = "wait" if isinstance(stage, Wait) else "window" if isinstance(stage, Hold) else "transfer"
        if before is not None:
            words += " > " if (before & stage.takes).any() else " | "
        words += word
        before = stage.takes
    return words
