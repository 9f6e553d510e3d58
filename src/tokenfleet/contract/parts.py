"""Clauses judged over different requests: some wait, and some only have to be done in time."""

from collections.abc import Callable
from dataclasses import replace

from tokenfleet.domain.slo import Slo, SloResult


def judged_in_parts(slo: Slo, judge: Callable[[Slo, bool], tuple[SloResult, ...]]) -> tuple[SloResult, ...]:
    """The clauses of a promise where some requests are offline work: deadlines hold for all, the rest for the others.

    Args:
        slo: The promise.
        judge: Judges a promise over all requests (``True``), or over those that somebody waits for.
    """
    waiting, done = replace(slo, deadlines=()), replace(slo, latency=(), class_rates=(), queue_limit_count=None)
    return (*judge(waiting, False), *judge(done, True)[len(done.rates) :])
