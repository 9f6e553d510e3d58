"""Where replays run ahead of the one awaited: threads of this process, or the workers of a Ray cluster."""

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import Event, Lock
from typing import Any, Final, TypeVar

from tokenfleet import simulator
from tokenfleet.app.executor import Executor, ray_at
from tokenfleet.app.kept_work import KeptWork
from tokenfleet.app.lately import Lately
from tokenfleet.app.replay_cache import ReplayCache
from tokenfleet.app.verdict_cache import VerdictCache
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.trace import Trace
from tokenfleet.planner import Hopeless, Look, Pending, Recall, Replay, Spread, anew

T = TypeVar("T")

_AHEAD_PER_WORKER: Final = 2
_LONG_REQUESTS: Final = 500_000
"""Of longer traces one replay at a time: there may be no memory for two."""
_SWITCH_S: Final = 0.001
"""So soon a thread lets another have the interpreter: a replay gives it up and wants it back at every long table."""


@contextmanager
def spread_replays(
    executor: Executor,
    kept: ReplayCache | None = None,
    recall: Recall | None = None,
    *,
    announce: Callable[[str], None] = lambda _: None,
    address: str | None = None,
) -> Iterator[Spread]:
    """A replay beside which others run: those that a search will ask for next.

    Replays that are kept load the kernel when something must be replayed; without them it is loaded at once.

    Args:
        executor: ``local``: as many threads as this process has cores; ``ray``: the workers of a cluster.
        kept: Replays that were run before.
        recall: What else was worked out before; by itself what is kept beside replays that are.
        announce: Told when the kernel must be compiled.
        address: As for :func:`tokenfleet.app.executor.mapper_of`.

    Raises:
        BadInput: Ray is not installed.
    """
    here: Replay = simulator.replay if kept is None else kept.replay
    unkept = Lately(simulator.replay if kept is None else kept.unkept)
    verdicts = None if kept is None else VerdictCache(kept, announce)
    if recall is None:
        recall = anew if kept is None else KeptWork(kept, announce)
    if kept is None:
        simulator.warm_up(announce)
    try:
        if executor == "ray":
            yield _on_cluster(here, unkept, verdicts, recall, address)
        else:
            with _on_threads(here, unkept, verdicts, recall) as spread:
                yield spread
    finally:
        if verdicts is not None:
            verdicts.flush()


def _on_cluster(
    here: Replay, unkept: Replay, verdicts: VerdictCache | None, recall: Recall, address: str | None
) -> Spread:
    ray = ray_at(address)
    task = ray.remote(_replayed)
    width = _AHEAD_PER_WORKER * max(1, int(ray.cluster_resources().get("CPU", 1)))

    def on_ray(*question: Any) -> Pending:  # noqa: ANN401 - handed on
        return _OnRay(ray, task.remote(*question), question[-1])

    return Spread(here, on_ray, width, verdicts, recall, unkept=unkept)


@contextmanager
def _on_threads(here: Replay, unkept: Replay, verdicts: VerdictCache | None, recall: Recall) -> Iterator[Spread]:
    leaving, long = Event(), Lock()

    def unless_left(replay: Replay, trace: Trace, fleet: Fleet, **asked: Any) -> RunRecord:  # noqa: ANN401 - handed on
        with long if trace.request_count > _LONG_REQUESTS else nullcontext():
            if leaving.is_set():
                raise CancelledError
            return replay(trace, fleet, **asked)

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pool = ThreadPoolExecutor(cores)

    def on_thread(trace: Trace, fleet: Fleet, window_s: tuple[float, float], hopeless: Hopeless | None) -> Pending:
        return pool.submit(unless_left, here, trace, fleet, peak_window_s=window_s, hopeless=hopeless)

    def started(work: Callable[[], T], /) -> Callable[[], T]:
        return pool.submit(work).result

    before_s = sys.getswitchinterval()
    try:
        sys.setswitchinterval(min(before_s, _SWITCH_S))
        if cores > 1:
            kept_or_run, run = partial(unless_left, here), partial(unless_left, unkept)
            yield Spread(kept_or_run, on_thread, cores, verdicts, recall, unkept=run, start=started)
        else:
            yield Spread(here, on_thread, 0, verdicts, recall, unkept=unkept)
    finally:
        # Nobody waits for the parts of an answer that are under way: they end with the replay they are at.
        leaving.set()
        pool.shutdown(cancel_futures=True)
        sys.setswitchinterval(before_s)


@dataclass(frozen=True, slots=True)
class _OnRay:
    """A replay under way on a cluster."""

    ray: Any
    reference: Any
    hopeless: Hopeless | None

    def result(self) -> RunRecord:
        """Waits for it, and for what was seen on the way."""
        record: RunRecord
        record, looks = self.ray.get(self.reference)
        if self.hopeless is not None:
            self.hopeless.looks.extend(looks)
        return record


def _replayed(
    trace: Trace, fleet: Fleet, window_s: tuple[float, float], hopeless: Hopeless | None
) -> tuple[RunRecord, list[Look]]:
    record = simulator.replay(trace, fleet, peak_window_s=window_s, hopeless=hopeless)
    return record, [] if hopeless is None else hopeless.looks
