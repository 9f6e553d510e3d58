"""What holds each pool up, from its calls under load and the same calls alone, and which pool holds up the others."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from tokenfleet import contract
from tokenfleet.app.alone import alone
from tokenfleet.app.pools_fleet import NamedPool
from tokenfleet.app.pools_question import PoolSystem
from tokenfleet.app.simulate_run import Window, prefill_fraction_in
from tokenfleet.contract import Diagnosis, DiagnosisLimits
from tokenfleet.contract.diagnosis import Against, Alarm, Verdict
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord, requests_of
from tokenfleet.domain.stages import Call, PoolRun, StagedRun
from tokenfleet.domain.trace import Bools, rows_of
from tokenfleet.simulator.passing import announced

_AT_EASE: Final = ("fine", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFinding:
    """One pool in one stretch of the run."""

    named: NamedPool
    diagnosis: Diagnosis
    excess_s: float
    """What a usual call takes longer than alone: to its first token, and over its gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemFinding:
    """All pools in one stretch of the run."""

    pools: Mapping[str, PoolFinding]
    """In the order of the stages."""

    @property
    def saturated(self) -> list[PoolFinding]:
        """Pools that hold requests up, the one that costs most time first."""
        found = [each for each in self.pools.values() if each.diagnosis.verdict not in _AT_EASE]
        return sorted(found, key=lambda each: -each.excess_s)

    @property
    def alarm(self) -> Alarm:
        """The gravest of all pools."""
        order: tuple[Alarm, ...] = ("emergency", "warning", "none")
        raised = {each.diagnosis.alarm for each in self.pools.values()}
        return next((alarm for alarm in order if alarm in raised), "unknown")

    @property
    def verdict(self) -> Verdict:
        """That of the pool that holds up the others; ``fine`` where none does."""
        if self.saturated:
            return self.saturated[0].diagnosis.verdict
        return "fine" if any(each.diagnosis.verdict == "fine" for each in self.pools.values()) else "unknown"


def findings(
    system: PoolSystem, staged: StagedRun, limits: DiagnosisLimits, window_s: Window | None = None
) -> SystemFinding:
    """Diagnose every pool on its own calls.

    A call counts from its arrival at the pool; in a window, by that time. Batch in a lane is left out, where others
    come to the pool. A pool that generates nothing is judged by the end of its calls.

    Args:
        system: The pools.
        staged: Their run, with telemetry, and the gaps of the window.
        limits: Where flat ends.
        window_s: Look at calls that arrive, and moments that lie, inside.
    """
    calls = {stage.pool: stage for stage in system.pools.stages if isinstance(stage, Call)}
    return SystemFinding(
        pools={
            named.name: _finding(
                named, calls[named.name], _waited_for(staged.pools[named.name], system.batch), limits, window_s
            )
            for named in system.named
        }
    )


def _waited_for(run: PoolRun, batch: Bools | None) -> PoolRun:
    """The calls that somebody waits for; all of them where nobody does."""
    if batch is None or batch[run.caller].all() or not batch[run.caller].any():
        return run
    chosen = ~batch[run.caller]
    return replace(
        run, trace=rows_of(run.trace, chosen), record=requests_of(run.record, chosen), caller=run.caller[chosen]
    )


def _finding(
    named: NamedPool, call: Call, run: PoolRun, limits: DiagnosisLimits, window_s: Window | None
) -> PoolFinding:
    fleet = announced(named.fleet) if call.is_announced else named.fleet
    seen_as = answered if named.does in ("reads", "sees") else _as_is
    record = seen_as(run.record)
    inside = _inside(record, window_s)
    if not inside.any():
        return PoolFinding(named=named, diagnosis=_of_nobody(record, limits, window_s), excess_s=0.0)
    found = contract.diagnose(
        record,
        alone(run.trace, fleet, record.replica, window_s, seen_as, run.caller if call.call_count > 1 else None),
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
    return PoolFinding(named=named, diagnosis=found, excess_s=excess_s)


def _longer_s(against: Against) -> float:
    known = against.loaded_s is not None and against.alone_s is not None and against.up
    return (against.loaded_s or 0.0) - (against.alone_s or 0.0) if known else 0.0


def _of_nobody(record: RunRecord, limits: DiagnosisLimits, window_s: Window | None) -> Diagnosis:
    """What can be said of a pool without calls: its queues and its busy share."""
    nothing = requests_of(record, np.zeros(len(record.arrival_s), dtype=np.bool_))
    return contract.diagnose(nothing, nothing, limits, window_s=window_s)


def _as_is(record: RunRecord) -> RunRecord:
    return record


def answered(record: RunRecord) -> RunRecord:
    """The record of requests without output, their end taken for their first token."""
    return replace(record, first_token_s=np.where(record.output_tokens == 0, record.finish_s, record.first_token_s))


def _inside(record: RunRecord, window_s: Window | None) -> Bools:
    start_s, end_s = window_s or (-np.inf, np.inf)
    return (record.arrival_s >= start_s) & (record.arrival_s < end_s)
