"""What holds each pool up, from its calls under load and the same calls alone, and who holds up the others.

That may be a pool, a link between pools, or the neighbour on whose GPUs a pool stands.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from tokenfleet import contract, simulator
from tokenfleet.app.alone import alone, answered
from tokenfleet.app.lane_queue import without_batch
from tokenfleet.app.pools_fleet import NamedPool
from tokenfleet.app.pools_question import PoolSystem
from tokenfleet.app.simulate_run import Window, prefill_fraction_in
from tokenfleet.app.simulate_words import slowed_by_events
from tokenfleet.contract import Diagnosis, DiagnosisLimits
from tokenfleet.contract.diagnosis import Against, Alarm, Verdict
from tokenfleet.contract.quantile import order_statistic
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord, Status, requests_of
from tokenfleet.domain.stages import Call, PoolRun, StagedRun, Transfer
from tokenfleet.domain.trace import Bools, rows_of
from tokenfleet.simulator.passing import announced

SystemVerdict = Verdict | Literal["link", "shared_gpus"]
_AT_EASE: Final = ("fine", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFinding:
    """One pool in one stretch of the run."""

    named: NamedPool
    diagnosis: Diagnosis
    excess_s: float
    """What a usual call takes longer than alone: to its first token, and over its gaps."""
    reads: bool
    """Its calls generate nothing, so their time is that to their end."""
    neighbour: str | None = None
    """The busiest pool on the same GPUs, where the same calls take no longer than with company once nobody shares
    them; ``None``: the pool itself is the cause, or nothing is."""
    slowed: frozenset[int] = frozenset()
    """Its replicas that events slowed down."""

    @property
    def name(self) -> str:
        """Of the pool."""
        return self.named.name

    @property
    def verdict(self) -> SystemVerdict:
        """What is full."""
        return self.diagnosis.verdict if self.neighbour is None else "shared_gpus"

    @property
    def culprit(self) -> str:
        """Who holds the calls up: the pool, or its neighbour."""
        return self.neighbour or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFinding:
    """The links from a pool that prefills to one that decodes, in one stretch of the run."""

    name: str
    """Of the link."""
    sender: str
    receiver: str
    against: Against
    """Transfers against the same ones with the link to themselves."""
    asked_fraction: float | None
    """Time that the transfers that came take, over the time that the links of all senders had."""
    excess_s: float

    @property
    def verdict(self) -> SystemVerdict:
        """Whether it is full."""
        return "unknown" if self.against.up is None else "link" if self.against.up else "fine"

    @property
    def culprit(self) -> str:
        """The link."""
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemFinding:
    """All pools in one stretch of the run."""

    pools: Mapping[str, PoolFinding]
    """In the order of the stages."""
    links: tuple[LinkFinding, ...]
    """Those that somebody crossed, in the order of the stages."""
    refused_by: Mapping[str, int]
    """Requests that nobody served, by reason."""
    lost_count: int
    timed_out_count: int

    @property
    def saturated(self) -> list[PoolFinding | LinkFinding]:
        """Pools and links that hold requests up, the one that costs most time first."""
        everything: list[PoolFinding | LinkFinding] = [*self.pools.values(), *self.links]
        found = [each for each in everything if each.verdict not in _AT_EASE]
        return sorted(found, key=lambda each: -each.excess_s)

    @property
    def alarm(self) -> Alarm:
        """The gravest of all pools."""
        order: tuple[Alarm, ...] = ("emergency", "warning", "none")
        raised = {each.diagnosis.alarm for each in self.pools.values()}
        return next((alarm for alarm in order if alarm in raised), "unknown")

    @property
    def verdict(self) -> SystemVerdict:
        """That of the pool or link that holds up the others; ``fine`` where none does."""
        if self.saturated:
            return self.saturated[0].verdict
        return "fine" if any(each.diagnosis.verdict == "fine" for each in self.pools.values()) else "unknown"


def findings(
    system: PoolSystem, staged: StagedRun, limits: DiagnosisLimits, window_s: Window | None = None
) -> SystemFinding:
    """Diagnose every pool on its own calls.

    A call counts from its arrival at the pool; in a window, by that time. Batch in a lane is left out, where others
    come to the pool. Calls that generate nothing are judged by their end.

    Args:
        system: The pools.
        staged: Their run, with telemetry, and the gaps of the window.
        limits: Where flat ends.
        window_s: Look at calls that arrive, and moments that lie, inside.
    """
    calls = {stage.pool: stage for stage in system.pools.stages if isinstance(stage, Call)}
    runs = {named.name: _waited_for(staged.pools[named.name], system.batch) for named in system.named}
    pools = {
        named.name: _finding(named, calls[named.name], runs[named.name], limits, window_s) for named in system.named
    }
    waited = _inside(staged.record, window_s)
    status = staged.record.status[waited if system.batch is None or system.batch.all() else waited & ~system.batch]
    return SystemFinding(
        pools={name: _beside(each, calls[name], pools, runs, limits, window_s) for name, each in pools.items()},
        links=tuple(_links(system, staged, limits, window_s)),
        refused_by=contract.refused_by(status),
        lost_count=int((status == Status.LOST).sum()),
        timed_out_count=int((status == Status.TIMED_OUT).sum()),
    )


def _waited_for(run: PoolRun, batch: Bools | None) -> PoolRun:
    """The calls that somebody waits for; all of them where nobody does."""
    if batch is None or batch[run.caller].all() or not batch[run.caller].any():
        return run
    mine = batch[run.caller]
    return replace(
        run, trace=rows_of(run.trace, ~mine), record=without_batch(run.record, mine), caller=run.caller[~mine]
    )


def _finding(
    named: NamedPool, call: Call, run: PoolRun, limits: DiagnosisLimits, window_s: Window | None
) -> PoolFinding:
    fleet = announced(named.fleet) if call.is_announced else named.fleet
    record = answered(run.record)
    inside = _inside(record, window_s)
    reads = named.does in ("reads", "sees") or bool((run.trace.output_tokens == 0).all())
    if not inside.any():
        return PoolFinding(named=named, diagnosis=_of_nobody(record, limits, window_s), excess_s=0.0, reads=reads)
    found = contract.diagnose(
        record,
        alone(run.trace, fleet, record.replica, window_s, run.caller if call.call_count > 1 else None),
        limits,
        mixed=len(fleet.groups) > 1,
        window_s=window_s,
        prefill_fraction=prefill_fraction_in(record, window_s or (-np.inf, np.inf)),
        slot_counts=[
            group.replica.deployment.engine.max_sequence_count
            for group in fleet.groups
            for _ in range(group.replica_count)
        ],
    )
    if named.does == "decodes" and found.verdict in ("prefill", "prefill_and_decode"):
        # There are no prompts to compute: whoever waits there waits for those that decode.
        found = replace(found, verdict="decode")
    gap_count = float(np.maximum(run.trace.output_tokens[inside] - 1, 0).mean())
    excess_s = _longer_s(found.ttft) + gap_count * _longer_s(found.itl)
    slowed = slowed_by_events(() if record.turmoil is None else record.turmoil.decisions)
    return PoolFinding(named=named, diagnosis=found, excess_s=excess_s, reads=reads, slowed=slowed)


def _beside(
    found: PoolFinding,
    call: Call,
    pools: Mapping[str, PoolFinding],
    runs: Mapping[str, PoolRun],
    limits: DiagnosisLimits,
    window_s: Window | None,
) -> PoolFinding:
    """The finding with the neighbour that is the cause: with the GPUs to itself, the pool would be at ease."""
    named, run = found.named, runs[found.name]
    host = named.beside or named.name
    others = [each.name for each in pools.values() if host in (each.name, each.named.beside) and each is not found]
    if not others or found.verdict in _AT_EASE or run.record.telemetry is None:
        return found
    fleet = replace(named.fleet, groups=tuple(replace(group, berth=None) for group in named.fleet.groups))
    interval_s = float(run.record.telemetry.time_s[0])
    record = simulator.replay(run.trace, fleet, peak_window_s=window_s, telemetry_interval_s=interval_s)
    apart = _finding(replace(named, fleet=fleet), call, replace(run, record=record), limits, window_s)
    if apart.verdict not in _AT_EASE:
        return found
    busy_s = {name: work.prefill_s + work.decode_s for name in others for work in (runs[name].record.busy,)}
    return replace(found, neighbour=max(busy_s, key=lambda name: busy_s[name]))


def _links(
    system: PoolSystem, staged: StagedRun, limits: DiagnosisLimits, window_s: Window | None
) -> Iterator[LinkFinding]:
    stages = system.pools.stages
    for before, stage, after in zip(stages, stages[1:], stages[2:], strict=False):
        if isinstance(before, Call) and isinstance(stage, Transfer) and isinstance(after, Call):
            yield from _link(before.pool, stage, after.pool, staged, limits, window_s)


def _link(
    sender: str, stage: Transfer, receiver: str, staged: StagedRun, limits: DiagnosisLimits, window_s: Window | None
) -> Iterator[LinkFinding]:
    run = staged.pools[receiver]
    came_s = run.trace.arrival_s - staged.transfer_s[run.caller]
    start_s, end_s = window_s or (float(came_s.min(initial=0.0)), float(came_s.max(initial=0.0)))
    rows = run.caller[(came_s >= start_s) & (came_s <= end_s)]
    if not len(rows):
        return
    loaded_s = order_statistic(staged.transfer_s[rows], limits.ttft_quantile)
    alone_s = order_statistic(stage.duration_s[rows] + stage.latency_s, limits.ttft_quantile)
    against = contract.held_against(loaded_s, alone_s, limits.ttft_quantile, limits.ttft_up_factor)
    had_s = (end_s - start_s) * staged.pools[sender].record.replica_count
    yield LinkFinding(
        name=stage.link,
        sender=sender,
        receiver=receiver,
        against=against,
        asked_fraction=float(stage.duration_s[rows].sum()) / had_s if had_s > 0 else None,
        excess_s=_longer_s(against),
    )


def _longer_s(against: Against) -> float:
    known = against.loaded_s is not None and against.alone_s is not None and against.up
    return (against.loaded_s or 0.0) - (against.alone_s or 0.0) if known else 0.0


def _of_nobody(record: RunRecord, limits: DiagnosisLimits, window_s: Window | None) -> Diagnosis:
    """What can be said of a pool without calls: its queues and its busy share."""
    nothing = requests_of(record, np.zeros(len(record.arrival_s), dtype=np.bool_))
    return contract.diagnose(nothing, nothing, limits, window_s=window_s)


def _inside(record: RunRecord, window_s: Window | None) -> Bools:
    start_s, end_s = window_s or (-np.inf, np.inf)
    return (record.arrival_s >= start_s) & (record.arrival_s < end_s)
