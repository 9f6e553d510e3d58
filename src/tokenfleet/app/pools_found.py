"""What holds pools up, in sentences and for machines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from tokenfleet.app.pools_diagnosis import LinkFinding, PoolFinding, SystemFinding
from tokenfleet.app.simulate_document import against_document, diagnosis_document
from tokenfleet.app.simulate_words import (
    NO_TOKENS,
    against_line,
    behind_lines,
    broken_by_silence,
    in_time_yet,
    mend_lines,
    odd_lines,
    unanswered_causes,
    verdict_line,
    waiting_lines,
)
from tokenfleet.contract import DiagnosisLimits
from tokenfleet.domain.slo import SloResult

_READERS_FULL: Final = "the pool is saturated: calls wait for those before them."
_NO_ROOM_NEEDED: Final = {"rejected_too_long", "rejected_nobody_ready"}
"""Refusals that a pool with more room would have made, too."""
_LINK_MEND: Final = (
    "A faster link, more replicas that prefill (each has links of its own), an fp8 KV cache, or prefill and decode on "
    "the same replicas help."
)


def found_lines(found: SystemFinding, results: Sequence[SloResult], limits: DiagnosisLimits) -> list[str]:
    """Who holds the others up, by what, and what it rests on; then the others that are saturated."""
    broken = [result for result in results if not result.kept]
    alarms = [line for each in found.pools.values() for line in _alarm_lines(each, limits)]
    if any(not result.sample_count for result in broken) and all(each.reads for each in found.pools.values()):
        alarms.append(NO_TOKENS)
    if not found.saturated:
        return [*_at_ease(found, broken), *alarms]
    first, *others = found.saturated
    lines = [_headline(first, limits, alone=len(found.pools) == 1), *_evidence(first, limits)]
    lines += [f"{_told(each, limits)} {_first_times(each, limits)}" for each in others]
    lines += [line for line in alarms if not line.startswith(f"{first.culprit}: ")]
    return [*lines, *_end_lines(found, first, broken, limits)]


def _end_lines(
    found: SystemFinding, first: PoolFinding | LinkFinding, broken: Sequence[SloResult], limits: DiagnosisLimits
) -> list[str]:
    """What keeps the promise; who had no answer, and whether that alone breaks it and more replicas are in vain."""
    if not broken:
        return ["The promise holds all the same."]
    in_vain = found.refused_by.keys() <= _NO_ROOM_NEEDED and not found.timed_out_count
    # Where a quantile falls on requests without an answer, those who had one may be late, too.
    in_vain = in_vain and all(each.predicted is not None for each in broken)
    if in_vain and len(broken_by_silence(found, broken)) == len(broken):
        return [f"{line[0].upper()}{line[1:]}" for line in in_time_yet(found, broken, "no pool is saturated")]
    causes = unanswered_causes(found)
    is_told = isinstance(first, PoolFinding) and unanswered_causes(first.diagnosis) == causes
    return [*([f"Without an answer: {', '.join(causes)}."] if causes and not is_told else []), _closing(first, limits)]


def pool_lines(each: PoolFinding, limits: DiagnosisLimits) -> list[str]:
    """What helps a pool, and what its verdict rests on."""
    found, behind = each.diagnosis, _behind(each, limits)
    mend = [] if each.reads or each.neighbour else mend_lines(found)
    lines = [*(behind[1:] if behind else mend), _first_times(each, limits)]
    if found.itl.factor is not None:
        lines.append(against_line("ITL", found.itl, limits.itl_quantile))
    return [
        *lines,
        *waiting_lines(found, limits),
        *odd_lines(found, each.named.fleet, gaps_are_own=each.neighbour is None and not behind),
    ]


def _behind(each: PoolFinding, limits: DiagnosisLimits) -> list[str]:
    """Where one replica holds the pool up and the others do not."""
    if each.neighbour is not None:
        return []
    return behind_lines(each.diagnosis, limits, each.slowed, each.named.fleet.router, "pool")


def _evidence(each: PoolFinding | LinkFinding, limits: DiagnosisLimits) -> list[str]:
    if isinstance(each, PoolFinding):
        return pool_lines(each, limits)
    return [_LINK_MEND, _first_times(each, limits)]


def _headline(first: PoolFinding | LinkFinding, limits: DiagnosisLimits, *, alone: bool) -> str:
    if isinstance(first, PoolFinding) and first.neighbour is not None:
        return f"{first.neighbour} holds {first.name} up: {_verdict(first, limits)}"
    name, _, verdict = _told(first, limits).partition(": ")
    return f"{name}{'' if alone else ' holds the others up'}: {verdict}"


def _told(each: PoolFinding | LinkFinding, limits: DiagnosisLimits) -> str:
    """What is full, with its name in front."""
    if isinstance(each, PoolFinding):
        return f"{each.name}: {_verdict(each, limits)}"
    return f"{each.name} from {each.sender} to {each.receiver}: {_link_verdict(each)}"


def _link_verdict(each: LinkFinding) -> str:
    if each.asked_fraction is None or each.asked_fraction < 1.0:
        return "the link is saturated in bursts: transfers of KV wait for those before them."
    return f"the link is saturated: KV asks for {each.asked_fraction:.2f} times what it carries."


def _closing(first: PoolFinding | LinkFinding, limits: DiagnosisLimits) -> str:
    if isinstance(first, LinkFinding):
        return "A faster link helps first."
    if _behind(first, limits):
        return f"Mending that replica helps first, not more of {first.name}."
    if first.neighbour is None:
        return f"More replicas of {first.name} help first."
    return f"GPUs of its own for {first.name} help first, or more replicas of both."


def finding_document(found: SystemFinding, results: Sequence[SloResult], limits: DiagnosisLimits) -> dict[str, object]:
    """The diagnosis of all pools, ready for JSON."""
    return {
        "verdict": found.verdict,
        "held_up_by": found.saturated[0].culprit if found.saturated else None,
        "alarm": found.alarm,
        "text": found_lines(found, results, limits),
        "pools": {
            name: diagnosis_document(each.diagnosis, [_verdict(each, limits), *pool_lines(each, limits)])
            for name, each in found.pools.items()
        },
        "links": [_link_document(each, limits) for each in found.links],
    }


def _link_document(each: LinkFinding, limits: DiagnosisLimits) -> dict[str, object]:
    return {
        "name": each.name,
        "from": each.sender,
        "to": each.receiver,
        "verdict": each.verdict,
        "transfer": against_document(each.against),
        "asked_fraction": each.asked_fraction,
        "text": [_told(each, limits), *_evidence(each, limits)] if each.against.up else [_first_times(each, limits)],
    }


def stretch_document(found: SystemFinding, results: Sequence[SloResult], limits: DiagnosisLimits) -> dict[str, object]:
    """The promise and the diagnosis of one stretch of the run."""
    return {
        "slo": [asdict(result) for result in results],
        "diagnosis": finding_document(found, results, limits),
    }


def _at_ease(found: SystemFinding, broken: Sequence[SloResult]) -> list[str]:
    if found.verdict == "unknown":
        return ["unknown: no pool got a call."]
    if not broken:
        return ["fine: no pool is slower than one with company takes."]
    return in_time_yet(found, broken, "no pool is saturated")


def _verdict(each: PoolFinding, limits: DiagnosisLimits) -> str:
    found = each.diagnosis
    if each.neighbour is not None:
        return (
            f"steps of {each.name} wait for those of {each.neighbour} on the same GPUs; with GPUs of its own "
            f"{each.name} takes no longer than with company."
        )
    if behind := _behind(each, limits):
        return behind[0]
    if each.reads and found.verdict == "prefill":
        return _READERS_FULL
    if found.verdict == "fine":
        return "fine: calls take no longer than with company."
    return "no call came." if found.verdict == "unknown" else verdict_line(found)


def _first_times(each: PoolFinding | LinkFinding, limits: DiagnosisLimits) -> str:
    if isinstance(each, LinkFinding):
        return against_line("The time of a transfer", each.against, limits.ttft_quantile)
    name = "The time of a call" if each.reads else "TTFT"
    return against_line(name, each.diagnosis.ttft, limits.ttft_quantile)


def _alarm_lines(each: PoolFinding, limits: DiagnosisLimits) -> list[str]:
    if each.diagnosis.alarm not in ("warning", "emergency"):
        return []
    return [f"{each.name}: {line}" for line in waiting_lines(each.diagnosis, limits)]
