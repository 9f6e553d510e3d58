"""What holds pools up, in sentences and for machines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from tokenfleet.app.pools_diagnosis import PoolFinding, SystemFinding
from tokenfleet.app.simulate_document import diagnosis_document
from tokenfleet.app.simulate_words import against_line, mend_lines, odd_lines, verdict_line, waiting_lines
from tokenfleet.app.slo_words import spoken
from tokenfleet.contract import DiagnosisLimits
from tokenfleet.domain.slo import SloResult

_READERS: Final = ("reads", "sees")
_FULL: Final = "the pool is saturated: calls wait for those before them"


def found_lines(found: SystemFinding, results: Sequence[SloResult], limits: DiagnosisLimits) -> list[str]:
    """Which pool holds the others up, by what, and what it rests on; then the others that are saturated."""
    broken = [spoken(result.name) for result in results if not result.kept]
    alarms = [line for each in found.pools.values() for line in _alarm_lines(each, limits)]
    if not found.saturated:
        return [_at_ease(found, broken), *alarms]
    first, *others = found.saturated
    whose = "" if len(found.pools) == 1 else " holds the others up"
    lines = [f"{first.named.name}{whose}: {_verdict(first)}", *pool_lines(first, limits)]
    lines += [f"{each.named.name}: {_verdict(each)} {_first_times(each, limits)}" for each in others]
    lines += [line for line in alarms if not line.startswith(f"{first.named.name}: ")]
    closing = f"More replicas of {first.named.name} help first." if broken else "The promise holds all the same."
    return [*lines, closing]


def pool_lines(each: PoolFinding, limits: DiagnosisLimits) -> list[str]:
    """What helps a pool, and what its verdict rests on."""
    found = each.diagnosis
    lines = [*([] if each.named.does in _READERS else mend_lines(found)), _first_times(each, limits)]
    if found.itl.factor is not None:
        lines.append(against_line("ITL", found.itl, limits.itl_quantile))
    return [*lines, *waiting_lines(found, limits), *odd_lines(found, each.named.fleet)]


def finding_document(found: SystemFinding, results: Sequence[SloResult], limits: DiagnosisLimits) -> dict[str, object]:
    """The diagnosis of all pools, ready for JSON."""
    return {
        "verdict": found.verdict,
        "held_up_by": found.saturated[0].named.name if found.saturated else None,
        "alarm": found.alarm,
        "text": found_lines(found, results, limits),
        "pools": {
            name: diagnosis_document(each.diagnosis, [_verdict(each), *pool_lines(each, limits)])
            for name, each in found.pools.items()
        },
    }


def stretch_document(found: SystemFinding, results: Sequence[SloResult], limits: DiagnosisLimits) -> dict[str, object]:
    """The promise and the diagnosis of one stretch of the run."""
    return {
        "slo": [asdict(result) for result in results],
        "diagnosis": finding_document(found, results, limits),
    }


def _at_ease(found: SystemFinding, broken: Sequence[str]) -> str:
    if found.verdict == "unknown":
        return "unknown: no pool got a call."
    if not broken:
        return "fine: no pool is slower than one with company takes."
    verb = "breaks" if len(broken) == 1 else "break"
    return f"no pool is saturated, yet {', '.join(broken)} {verb} the promise: single requests or steps take that long."


def _verdict(each: PoolFinding) -> str:
    if each.named.does in _READERS and each.diagnosis.verdict == "prefill":
        return f"{_FULL}."
    if each.diagnosis.verdict == "fine":
        return "fine: calls take no longer than with company."
    return "no call came." if each.diagnosis.verdict == "unknown" else verdict_line(each.diagnosis)


def _first_times(each: PoolFinding, limits: DiagnosisLimits) -> str:
    name = "The time of a call" if each.named.does in _READERS else "TTFT"
    return against_line(name, each.diagnosis.ttft, limits.ttft_quantile)


def _alarm_lines(each: PoolFinding, limits: DiagnosisLimits) -> list[str]:
    if each.diagnosis.alarm not in ("warning", "emergency"):
        return []
    return [f"{each.named.name}: {line}" for line in waiting_lines(each.diagnosis, limits)]
