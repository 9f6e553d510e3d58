"""Pools of their own for short and long prompts, for tasks, or for tiers, against one pool for everybody.

Each pool serves its requests alone, keeps the whole promise at its own peak and has its own spare replicas, so that
together they keep what one pool keeps. Tasks, tiers and a gap between the lengths of prompts are sized by replay; of
other lengths to split at, the half that formulas like best.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from tokenfleet import workload
from tokenfleet.domain.plan import PlanQuestion, Sized, SplitPool, SplitTrial
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import Slo
from tokenfleet.domain.trace import Bools, Trace, of_class, rows_of
from tokenfleet.domain.ways import SplitBy, Takes
from tokenfleet.planner import words
from tokenfleet.planner.answer import cheapest
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.quotes import costs_less
from tokenfleet.planner.redundancy import spare_replicas
from tokenfleet.planner.screen import screen
from tokenfleet.planner.spread import Replay
from tokenfleet.planner.systems import members_of
from tokenfleet.planner.traffic import Traffic

_QUANTILES = (0.5, 0.75, 0.9, 0.95)
"""Where prompts are split into short and long, by the share of requests that are short; and in their widest gap."""
_FEWEST_REQUESTS = 200
"""Of fewer no p99 can be told."""
_MOST_POOLS = 6
_NOTHING: dict[SplitBy, str] = {
    "length": f"no length leaves {_FEWEST_REQUESTS} requests on both sides",
    "task": f"the trace names no tasks, not of all or too many, or one has fewer than {_FEWEST_REQUESTS} requests",
    "tier": f"the trace has no priorities, or too many, or one has fewer than {_FEWEST_REQUESTS} requests",
}


@dataclass(frozen=True, slots=True)
class Part:
    """The requests of one pool."""

    who: str
    takes: Takes
    chosen: Bools


@dataclass(frozen=True, slots=True)
class Split:
    """A way to divide the requests of a trace; every request is in one part."""

    by: SplitBy
    named: str
    parts: tuple[Part, ...]
    is_natural: bool = True
    """The requests themselves fall apart there, so it is sized whatever formulas say of it."""


def splits_of(trace: Trace, by: SplitBy) -> Iterator[Split]:
    """The ways to split a trace by prompt length, task or tier whose pools all have requests enough to judge."""
    found = _by_length(trace) if by == "length" else _by_mark(trace, by)
    for split in found:
        if all(int(part.chosen.sum()) >= _FEWEST_REQUESTS for part in split.parts):
            yield split


def _by_length(trace: Trace) -> Iterator[Split]:
    wanted = [float(np.quantile(trace.input_tokens, share)) for share in _QUANTILES]
    gaps = [_two_digits(middle) for middle in _widest_gap(trace)]
    for limit in dict.fromkeys((*gaps, *map(_two_digits, wanted))):
        first = f"prompts up to {limit:,} tokens"
        parts = {first: Takes(input_up_to_tokens=limit), "longer prompts": Takes(input_over_tokens=limit)}
        yield Split("length", f"{first}, and longer", _parts(trace, parts), is_natural=limit in gaps)


def _parts(trace: Trace, takes: Mapping[str, Takes]) -> tuple[Part, ...]:
    return tuple(Part(who, each, members_of(trace, each)) for who, each in takes.items())


def _widest_gap(trace: Trace) -> Iterator[float]:
    """The middle of the largest step from one prompt length to the next, with requests enough on both sides.

    None where that step is no gap: lengths that fall apart leave a factor of two between them.
    """
    lengths = np.sort(trace.input_tokens)[_FEWEST_REQUESTS - 1 : trace.request_count - _FEWEST_REQUESTS + 1]
    if len(lengths) < 2:
        return
    logs = np.log(np.maximum(lengths, 1))
    at = int(np.argmax(np.diff(logs)))
    if logs[at + 1] - logs[at] >= np.log(2.0):
        yield float(np.exp((logs[at] + logs[at + 1]) / 2))


def _two_digits(count: float) -> int:
    grain: int = 10 ** max(0, len(str(int(count))) - 2)
    return max(1, round(count / grain) * grain)


def _by_mark(trace: Trace, by: SplitBy) -> Iterator[Split]:
    takes = dict(_tasks(trace) if by == "task" else _tiers(trace))
    if 1 < len(takes) <= _MOST_POOLS:
        yield Split(by, ", ".join(takes), _parts(trace, takes))


def _tasks(trace: Trace) -> Iterator[tuple[str, Takes]]:
    """Labels of the log; none where a request has none, which no pool would answer."""
    seen = trace.observed
    if seen is None or seen.label is None or (seen.label < 0).any():
        return
    for value in np.unique(seen.label):
        name = seen.labels[value]
        yield name, Takes(label=name)


def _tiers(trace: Trace) -> Iterator[tuple[str, Takes]]:
    for value in () if trace.priority is None else np.unique(trace.priority):
        yield f"tier {value}", Takes(priority=int(value))


def split_trials(
    question: PlanQuestion,
    trace: Trace,
    one_pool: Sized | None,
    *,
    progress: Progress | None = None,
    replay: Replay | None = None,
) -> tuple[SplitTrial, ...]:
    """Tries every split that ``question`` asks for against one pool.

    Args:
        question: With ``splits``; each pool chooses among all its candidates.
        trace: The demand.
        one_pool: The fleet planned for everybody; ``None`` when there is none.
        progress: Told what is being tried.
        replay: Runs replays instead of the simulator.

    Returns:
        The cheapest first; those that formulas put in the dearer half, or that have no fleet, last.

    Raises:
        BadInput: a router nobody knows.
    """
    asked = replace(question, splits=(), apart=None)
    trials: list[SplitTrial] = []
    priced: list[tuple[float, Split]] = []
    for by in question.splits:
        splits = list(splits_of(trace, by))
        if not splits:
            trials.append(_out(by, "", None, _NOTHING[by]))
        for split in splits:
            usd = _estimated_usd(asked, trace, split)
            if usd is None:
                trials.append(_out(by, split.named, None, "no candidate passes its floors in one of the pools"))
            else:
                priced.append((usd, split))
    priced.sort(key=lambda each: (each[0], each[1].named))
    natural = [each for each in priced if each[1].is_natural]
    others = [each for each in priced if not each[1].is_natural]
    half = (len(others) + 1) // 2
    for usd, split in others[half:]:
        trials.append(_out(split.by, split.named, usd, "in the dearer half by formula, and not replayed"))
    trials += [
        _sized(asked, trace, usd, split, one_pool, progress, replay) for usd, split in (*natural, *others[:half])
    ]
    return tuple(sorted(trials, key=_dearness))


def question_to(question: PlanQuestion, part: Trace) -> PlanQuestion:
    """The question of one pool: what is promised to its requests, for no other comes to it."""
    return replace(question, slo=promised_to(question.slo, part))


def promised_to(slo: Slo, part: Trace) -> Slo:
    """What a promise says to the requests of a part: nothing of classes that it has none of."""
    return slo.to({name for name in part.classes if of_class(part, name).any()})


def _dearness(trial: SplitTrial) -> tuple[bool, float, str]:
    usd = trial.price_usd_per_hour
    return usd is None, usd or trial.estimated_usd_per_hour or 0.0, trial.named


def _out(by: SplitBy, named: str, usd: float | None, why: str) -> SplitTrial:
    return SplitTrial(by=by, named=named, estimated_usd_per_hour=usd, pools=(), why=why)


def _estimated_usd(question: PlanQuestion, trace: Trace, split: Split) -> float | None:
    """Price of a split by formula: of each pool the cheapest candidate, spare replicas included."""
    total = 0.0
    for each in split.parts:
        part = rows_of(trace, each.chosen)
        traffic, asked = Traffic(part, workload.peak_window(part)), question_to(question, part)
        prices = []
        for one in screen(asked, traffic, (), Reporter(None)).candidates:
            spare = spare_replicas(asked, one.replica, one.estimate)
            if spare is not None:
                prices.append((one.estimate + spare) * one.usd_per_replica_hour)
        if not prices:
            return None
        total += min(prices)
    return total


def _sized(
    question: PlanQuestion,
    trace: Trace,
    usd: float,
    split: Split,
    one_pool: Sized | None,
    progress: Progress | None,
    replay: Replay | None,
) -> SplitTrial:
    pools = []
    for part in split.parts:
        mine = rows_of(trace, part.chosen)
        made = cheapest(question_to(question, mine), mine, progress=progress, replay=replay)
        if made.sized is None:
            return _out(split.by, split.named, usd, f"no fleet keeps the promise to {part.who}")
        share = float(part.chosen.mean())
        pools.append(
            SplitPool(name=part.who, takes=part.takes, request_fraction=share, sized=made.sized, router=made.router)
        )
    trial = SplitTrial(by=split.by, named=split.named, estimated_usd_per_hour=usd, pools=tuple(pools), why="")
    return replace(trial, why=_why(trial, one_pool))


def _why(trial: SplitTrial, one_pool: Sized | None) -> str:
    """Won or lost, and what decided it: replicas that carry, and spare ones that each pool pays for itself."""
    usd = trial.price_usd_per_hour
    if one_pool is None or usd is None:
        return "won: no one pool keeps the promise"
    carrying = " and ".join(str(pool.sized.carrying_count) for pool in trial.pools)
    spare = sum(pool.sized.spare_count for pool in trial.pools)
    share = usd / one_pool.price_usd_per_hour - 1.0
    outcome = "won" if costs_less(usd, one_pool.price_usd_per_hour) else "lost"
    apart = f"{abs(share):.0%} {'cheaper' if share < 0.0 else 'dearer'}" if abs(share) >= 0.005 else "as dear"
    alike = all(pool.sized.replica.deployment == one_pool.replica.deployment for pool in trial.pools)
    kinds = "of the same kind" if alike else "each of its own kind"
    return (
        f"{outcome}, {apart}: {carrying} replicas {kinds} carry the pools where {one_pool.carrying_count} carry all, "
        f"and {words.replicas(spare)} stand spare where one pool keeps {one_pool.spare_count}"
    )
