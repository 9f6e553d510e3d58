"""Candidates that need no replay, because one that is no worse has broken the promise already.

A search over hundreds of candidates meets the same gpu in many guises. What breaks the promise with fast weights and a
small KV cache breaks it with slow weights and a larger one, so one replay speaks for all of them.
"""

from collections.abc import Iterable
from dataclasses import field, replace

from tokenfleet.domain.plan import Reason
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import SloResult
from tokenfleet.planner import words
from tokenfleet.planner.candidates import Candidate, Failure
from tokenfleet.planner.counting import CLEARLY
from tokenfleet.planner.early import excess_of

_AS_MUCH_CACHE = 1.1


@dataclass(frozen=True, slots=True)
class Broken:
    """A replay that broke the promise."""

    candidate: Candidate
    count: int
    clauses: tuple[SloResult, ...]
    """Those that are missed by more than a hair."""

    def speaks_for(self, candidate: Candidate, count: int) -> bool:
        """Whether ``count`` replicas of ``candidate`` break the promise as well.

        They are as many at most and no better in anything that decides: prefill, decode and KV cache; for TTFT their
        steps carry no more tokens and sequences, for ITL no fewer.
        """
        if count > self.count or candidate.kv_tokens > self.candidate.kv_tokens:
            return False
        if not no_better(candidate, self.candidate):
            return False
        if any(slow < fast for slow, fast in zip(candidate.decode_s, self.candidate.decode_s, strict=True)):
            return False
        mine, its = candidate.replica.deployment.engine, self.candidate.replica.deployment.engine
        tokens = mine.max_batched_tokens - its.max_batched_tokens
        sequences = mine.max_sequence_count - its.max_sequence_count
        late, slow = (_of(self.clauses, kind) is not None for kind in ("ttft_", "itl_"))
        return (late and max(tokens, sequences) <= 0) or (slow and min(tokens, sequences) >= 0)


def _of(clauses: Iterable[SloResult], kind: str) -> SloResult | None:
    return next((result for result in clauses if result.name.startswith(kind)), None)


def no_better(one: Candidate, other: Candidate) -> bool:
    """Whether ``one`` runs under the same rules, prefills no faster and caches no more, to a tenth.

    Smaller steps leave a little more room for the cache, which mends no TTFT that more than enough replicas break.
    """
    mine, its = one.replica.deployment.engine, other.replica.deployment.engine
    if mine.name != its.name or mine.prefix_caching != its.prefix_caching:
        return False
    if one.kv_tokens > _AS_MUCH_CACHE * other.kv_tokens:
        return False
    return all(slow >= fast for slow, fast in zip(one.prefill_s, other.prefill_s, strict=True))


@dataclass(slots=True)
class Outdone:
    """What has been broken so far, and who is out with it."""

    _failed: list[tuple[Candidate, Failure, SloResult]] = field(default_factory=list)
    _broken: list[Broken] = field(default_factory=list)

    def note_failure(self, candidate: Candidate, failure: Failure) -> None:
        """Remember that more than enough replicas break the promise, where TTFT is among what they break."""
        late = _of(failure.verdict.broken, "ttft_")
        if late is not None and not failure.untried:
            self._failed.append((candidate, failure, late))

    def note_broken(self, candidate: Candidate, count: int, broken: Iterable[SloResult]) -> None:
        """Remember that so many replicas break these clauses; those missed by a hair say nothing of others."""
        clearly = tuple(result for result in broken if excess_of([result]) > CLEARLY)
        if clearly:
            self._broken.append(Broken(candidate, count, clearly))

    def by_failure(self, candidate: Candidate) -> Failure | None:
        """Why a replica keeps the promise at no count, where one that prefills no slower and caches no less does not.

        With more than enough replicas nobody waits, so what breaks TTFT is prefill and the cache alone, and both are
        the other's at best.

        Returns:
            ``None`` where no failure says so.
        """
        for other, failure, late in self._failed:
            if no_better(candidate, other):
                text = (
                    f"{candidate.name} prefills no faster than {other.name}, of which even "
                    f"{words.replicas(failure.count)} break the promise: {failure.verdict.said(late)}."
                )
                reasons = (Reason(kind="capacity", text=text),)
                return replace(failure, replica=candidate.replica, reasons=reasons, inferred=True)
        return None

    def fails(self, candidate: Candidate) -> bool:
        """Whether :meth:`by_failure` finds something."""
        return any(no_better(candidate, other) for other, _, _ in self._failed)

    def by_count(self, candidate: Candidate, count: int) -> Broken | None:
        """A replay which shows that ``count`` replicas of a candidate are too few; ``None`` where there is none."""
        return next((one for one in self._broken if one.speaks_for(candidate, count)), None)
