"""The loop over candidates: size the promising ones by replay, show the others too dear."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tokenfleet.domain.gpu import GpuPriceRange
from tokenfleet.domain.plan import Outpriced, Reason, Rejected, Sized
from tokenfleet.domain.replica import Deployment, ReplicaPhysics
from tokenfleet.planner import words
from tokenfleet.planner.counting import below_near_misses, smallest_enough
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.replays import Replays, Verdict
from tokenfleet.planner.traffic import Traffic

_NEAR_BEST = 1.1
_CURIOUS = 3.0
_RUNNERS_UP = 3
_CAP_OVER_ESTIMATE = 16


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that passed its floors, with its price and the count the formula suggests."""

    replica: ReplicaPhysics
    price: GpuPriceRange
    estimate: int
    variant: bool = False
    """Differs from another candidate only in the size of its steps."""

    @property
    def name(self) -> str:
        """Orders equals the same way every time."""
        return words.settled(self.replica.deployment)

    @property
    def family(self) -> Deployment:
        """The deployment without the setting that variants change."""
        deployment = self.replica.deployment
        engine = replace(deployment.engine, max_batched_tokens=0, max_sequence_count=0)
        return replace(deployment, engine=engine)

    @property
    def usd_per_replica_hour(self) -> float:
        """Price of one replica for one hour."""
        return self.replica.deployment.layout.gpu_count * self.price.price.price_usd_per_gpu_hour


@dataclass(frozen=True, slots=True)
class Answer:
    """A sized candidate and the replay it rests on."""

    candidate: Candidate
    sized: Sized
    verdict: Verdict

    @property
    def rank(self) -> tuple[float, int, float, str]:
        """Cheaper first, then fewer gpus, then lower TTFT, then by name."""
        ttft_s = self.verdict.seen.ttft_p99_s
        sized = self.sized
        return (
            sized.price_usd_per_hour,
            sized.gpu_count,
            float("inf") if ttft_s is None else ttft_s,
            self.candidate.name,
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """A replica that does not keep the promise though there are more than enough of it."""

    replica: ReplicaPhysics
    count: int
    verdict: Verdict
    reasons: tuple[Reason, ...]


@dataclass(slots=True)
class Found:
    """What became of each candidate."""

    answers: list[Answer] = field(default_factory=list)
    """Cheapest first."""
    outpriced: list[Outpriced] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    """Behind ``rejected``, variants included."""
    anomalies: list[str] = field(default_factory=list)

    def best_of_families(self) -> list[Answer]:
        """Answers, cheapest first, each the best of all that differ only in the size of their steps."""
        best: dict[Deployment, Answer] = {}
        for answer in self.answers:
            best.setdefault(answer.candidate.family, answer)
        return list(best.values())


class Search:
    """One search over one stretch of traffic."""

    def __init__(self, replays: Replays, traffic: Traffic, spare_count: int, reporter: Reporter) -> None:
        self._replays = replays
        self._traffic = traffic
        self._spare_count = spare_count
        self._reporter = reporter
        self._done_fraction = 0.0
        self.found = Found()

    def over(self, candidates: Sequence[Candidate]) -> Found:
        """Sizes candidates in order of their estimated price.

        A candidate is sized in full when its estimate is within a tenth of the best fleet known; up to
        three times while there are few runners-up, or when it is the first of its gpu. Any other candidate is tried
        once, at the largest count that would cost no more than the best fleet: when that breaks the promise, fewer
        replicas would too.
        """
        seen_gpus: set[str] = set()
        ordered = sorted(candidates, key=lambda one: (self._price(one, one.estimate), one.name))
        for index, candidate in enumerate(ordered):
            self._done_fraction = 0.05 + 0.5 * index / len(ordered)
            first = candidate.replica.deployment.gpu not in seen_gpus
            seen_gpus.add(candidate.replica.deployment.gpu)
            if self._worth_sizing(candidate, first) or self._fits_budget(candidate):
                self.size(candidate, candidate.estimate, self._replay_on(self._traffic, candidate))
        return self.found

    def size(self, candidate: Candidate, start: int, replay: Callable[[int], Verdict]) -> Answer | None:
        """Finds the smallest carrying count by ``replay``; keeps the answer, or the reason there is none."""
        verdicts: dict[int, Verdict] = {}

        def verdict(count: int) -> Verdict:
            if count not in verdicts:
                verdicts[count] = replay(count)
            return verdicts[count]

        cap = self._cap(candidate, start)
        border = smallest_enough(lambda count: verdict(count).kept, start, cap)
        if border is None:
            self._reject(candidate, cap, verdicts[cap])
            return None
        count = below_near_misses(lambda count: verdict(count).excess, border)
        self._note_anomalies(candidate, count, verdicts)
        answer = Answer(candidate, self._sized(candidate, count, verdicts[count]), verdicts[count])
        self.found.answers.append(answer)
        self.found.answers.sort(key=lambda one: one.rank)
        best = self.found.answers[0].sized
        price = f"${best.price_usd_per_hour:.2f}/h"
        self._reporter.best = f"{words.fleet(best.replica, best.replica_count)}, {price}"
        return answer

    def _replay_on(self, traffic: Traffic, candidate: Candidate) -> Callable[[int], Verdict]:
        def replay(count: int) -> Verdict:
            self._reporter.say("sizing", words.fleet(candidate.replica, count), self._done_fraction)
            return self._replays.verdict(traffic, candidate.replica, count)

        return replay

    def _price(self, candidate: Candidate, carrying_count: int) -> float:
        return candidate.usd_per_replica_hour * (carrying_count + self._spare_count)

    def _best_price(self) -> float | None:
        return self.found.answers[0].sized.price_usd_per_hour if self.found.answers else None

    def _affordable(self, candidate: Candidate, price: float) -> int:
        """Largest carrying count that costs at most ``price`` with the spare; 0 or less when there is none."""
        # The hair keeps a count whose price equals the limit but for rounding: ties are broken later.
        return int(price * (1 + 1e-12) / candidate.usd_per_replica_hour) - self._spare_count

    def _worth_sizing(self, candidate: Candidate, first_of_its_gpu: bool) -> bool:
        best = self._best_price()
        few = len(self.found.best_of_families()) < _RUNNERS_UP
        reach = _CURIOUS if first_of_its_gpu or few else _NEAR_BEST
        return best is None or self._price(candidate, candidate.estimate) <= reach * best

    def _fits_budget(self, candidate: Candidate) -> bool:
        best = self._best_price()
        if best is None:
            return True
        count = max(0, self._affordable(candidate, best))
        if count:
            verdict = self._replay_on(self._traffic, candidate)(count)
            if verdict.kept:
                return True
            broken = tuple(result.name for result in verdict.broken)
        else:
            broken = ()
        if not candidate.variant:
            self.found.outpriced.append(
                Outpriced(replica=candidate.replica, failed_count=count, broken=broken, price=candidate.price.price)
            )
        return False

    def _cap(self, candidate: Candidate, start: int) -> int:
        return max(start, _CAP_OVER_ESTIMATE * candidate.estimate + _CAP_OVER_ESTIMATE)

    def _sized(self, candidate: Candidate, count: int, verdict: Verdict) -> Sized:
        return Sized(
            replica=candidate.replica,
            carrying_count=count,
            spare_count=self._spare_count,
            price=candidate.price.price,
            price_low_usd_per_gpu_hour=candidate.price.low_usd_per_gpu_hour,
            price_high_usd_per_gpu_hour=candidate.price.high_usd_per_gpu_hour,
            slo=verdict.peak,
        )

    def _reject(self, candidate: Candidate, cap: int, verdict: Verdict) -> None:
        reasons = tuple(
            Reason(kind="capacity", text=f"Even {words.fleet(candidate.replica, cap)}: {words.broken(result)}.")
            for result in verdict.broken
        )
        self.found.failures.append(Failure(candidate.replica, cap, verdict, reasons))
        if candidate.variant:
            return
        deployment = candidate.replica.deployment
        self.found.rejected.append(
            Rejected(
                gpu=deployment.gpu,
                precision=deployment.precision,
                tensor_parallel=deployment.layout.tensor_parallel,
                reasons=reasons,
            )
        )

    def _note_anomalies(self, candidate: Candidate, count: int, verdicts: dict[int, Verdict]) -> None:
        for other in sorted(verdicts):
            if other > count and not verdicts[other].kept:
                names = ", ".join(result.name for result in verdicts[other].broken)
                self.found.anomalies.append(
                    f"{words.fleet(candidate.replica, other)} broke {names} although {count} keep the promise."
                )
