"""One fleet against prefill and decode apart, on as many GPUs of one kind: the load that each keeps the promise at.

That is the comparison behind "disaggregation gives 2-7x": capacity within the same promise, at equal GPUs, with every
split of them tried, and the fleet that does both given the steps that suit it best.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product

from tokenfleet import simulator, workload
from tokenfleet.domain.apart import ApartQuestion
from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.trace import Trace
from tokenfleet.planner import words
from tokenfleet.planner.disaggregated import handover_of
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.spread import Replay
from tokenfleet.planner.steps import step_variants
from tokenfleet.planner.traffic import Traffic, at_load, stretch

_REQUESTS = (2_000, 500, 125)
"""The busiest stretch of the demand, of which denser and thinner copies are replayed; of thin demand a shorter one, for
as many requests in less time are a larger load."""
_MOST_REQUESTS = 60_000
_MOST_FACTOR = 1_000.0
"""Beyond it nothing is left of the demand but its lengths."""
_LEAST_FACTOR = 1.0 / 64.0
_PRECISION = 1.03

Keeps = Callable[[Traffic], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What one way to use the GPUs carries within the promise."""

    said: str
    """The replicas, in words."""
    rate_per_s: float
    """Requests per second in the peak window, at the largest load that keeps the promise; found to 3 %."""
    at_least: bool
    """Nothing broke up to there, where the search stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualGpus:
    """Both ways on as many GPUs."""

    gpu_count: int
    together: Carried | None
    """The best fleet whose replicas prefill and decode; ``None``: none keeps the promise at any load."""
    apart: Carried | None
    """The best split into a pool that prefills and one that decodes."""
    usual: Carried | None
    """The best fleet with the engine's own size of steps: what a comparison that tunes one side only takes."""
    together_count: int
    apart_count: int
    """Ways of each kind that were tried."""
    replayed_count: int

    @property
    def factor(self) -> float | None:
        """Load of pools apart over that of the fleet; ``None`` where one of them keeps nothing.

        A bound where nothing broke one of them, and nothing at all where nothing broke either.
        """
        if self.together is None or self.apart is None:
            return None
        return self.apart.rate_per_s / self.together.rate_per_s


@dataclass(frozen=True, slots=True)
class _Way:
    said: str
    keeps: Keeps


def at_equal_gpus(
    question: PlanQuestion,
    trace: Trace,
    gpu_count: int,
    *,
    progress: Progress | None = None,
    replay: Replay | None = None,
) -> EqualGpus:
    """Finds the largest load of both ways on ``gpu_count`` GPUs, by replay.

    Args:
        question: Candidates of one gpu, the promise, and ``apart``, which says how KV crosses.
        trace: The demand; its busiest stretch is made denser and thinner.
        gpu_count: GPUs of each way.
        progress: Told what is being tried.
        replay: Runs replays instead of the simulator.

    Raises:
        ValueError: the question does not say how KV crosses.
    """
    if question.apart is None:
        raise ValueError("pools apart are compared, and nobody says how KV crosses between them")
    replays = Replays.of(question, replay)
    reporter = Reporter(progress)
    usual = list(_together(question.candidates, replays, gpu_count))
    together = [*usual, *_together(step_variants(question), replays, gpu_count)]
    apart = list(_apart(question, question.apart, replays, gpu_count))
    for count in _REQUESTS:
        window_s = workload.peak_window(trace, least_count=count // 4)
        traffic = stretch(Traffic(trace, window_s), count)
        found = EqualGpus(
            gpu_count=gpu_count,
            together=_best(together, traffic, reporter),
            apart=_best(apart, traffic, reporter),
            usual=_best(usual, traffic, reporter),
            together_count=len(together),
            apart_count=len(apart),
            replayed_count=replays.count,
        )
        if not any(each is not None and each.at_least for each in (found.together, found.apart)):
            break
    return found


def _together(replicas: Sequence[ReplicaPhysics], replays: Replays, gpu_count: int) -> Iterator[_Way]:
    """Fleets of equal replicas that take all the GPUs."""
    for replica in replicas:
        count, left = divmod(gpu_count, replica.deployment.layout.gpu_count)
        if not left:
            yield _Way(words.fleet(replica, count), _fleet_keeps(replays, replica, count))


def _fleet_keeps(replays: Replays, replica: ReplicaPhysics, count: int) -> Keeps:
    return lambda traffic: replays.quick(traffic, replica, count).kept


def _apart(question: PlanQuestion, asked: ApartQuestion, replays: Replays, gpu_count: int) -> Iterator[_Way]:
    """Every split of the GPUs between two kinds of replicas whose KV is of one precision."""
    for prefill, decode in product(question.candidates, repeat=2):
        sizes = prefill.deployment.layout.gpu_count, decode.deployment.layout.gpu_count
        crosses = prefill.deployment.gpu in asked.links
        if not crosses or prefill.deployment.kv_precision != decode.deployment.kv_precision:
            continue
        for prefill_count in range(1, gpu_count // sizes[0] + 1):
            decode_count, left = divmod(gpu_count - prefill_count * sizes[0], sizes[1])
            if decode_count and not left:
                counts = prefill_count, decode_count
                said = f"{words.fleet(prefill, counts[0])} prefill, {words.fleet(decode, counts[1])} decode"
                yield _Way(said, _pools_keep(question, asked, replays, (prefill, decode), counts))


def _pools_keep(
    question: PlanQuestion,
    asked: ApartQuestion,
    replays: Replays,
    replicas: tuple[ReplicaPhysics, ReplicaPhysics],
    counts: tuple[int, int],
) -> Keeps:
    handover = handover_of(question, asked, replicas[0])
    prefill, decode = (replays.fleet(replica, count) for replica, count in zip(replicas, counts, strict=True))

    def keeps(traffic: Traffic) -> bool:
        replays.count += 1
        # Gaps are counted class by class along with telemetry: one sample of it is enough.
        interval_s = max(1.0, traffic.trace.duration_s) if replays.slo.gaps_apart else None
        run = simulator.replay_stages(
            traffic.trace,
            simulator.apart(traffic.trace, prefill, decode, handover),
            peak_window_s=traffic.window_s,
            telemetry_interval_s=interval_s,
            run=replays.replay,
        )
        return replays.judged(traffic, run.record).kept

    return keeps


def _best(ways: Sequence[_Way], traffic: Traffic, reporter: Reporter) -> Carried | None:
    """The way that carries most; whoever cannot carry 3 % more than the best known is asked once."""
    best: Carried | None = None
    factor = 0.0
    for way in ways:
        reporter.say("equal gpus", way.said, 1.0)
        found = _largest(way.keeps, traffic, factor * _PRECISION)
        if found is not None:
            factor, at_least = found
            best = Carried(said=way.said, rate_per_s=factor * traffic.peak_rate_per_s, at_least=at_least)
    return best


def _largest(keeps: Keeps, traffic: Traffic, above: float) -> tuple[float, bool] | None:
    """The largest load factor from ``above`` on that keeps the promise, to 3 %; whether it is where the search ends.

    Returns:
        ``None`` where ``above`` breaks it, or is more than is tried; with an ``above`` of 0, where the thinnest
        traffic does.
    """
    most = min(_MOST_REQUESTS / traffic.trace.request_count, _MOST_FACTOR)

    @cache
    def kept(factor: float) -> bool:
        thinned = at_load(traffic, factor)
        return thinned is not None and keeps(thinned)

    low = above or 1.0
    if above > most:
        return None
    while not kept(low):
        if above or low <= _LEAST_FACTOR:
            return None
        low /= 2.0
    high = 2.0 * low
    while high <= most and kept(high):
        low, high = high, 2.0 * high
    if high > most:
        return low, True
    while high / low > _PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low, False
