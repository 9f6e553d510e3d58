"""Floor 3: the virtual world: the compiled replica engine and the fleet around it.

Promises: jumping over steps equals stepping, exactly; the same trace and fleet give the same bytes; requests
and KV blocks are conserved. Must not choose a fleet, know prices or read files.
"""

from collections.abc import Callable

from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.trace import Trace

__all__ = ["replay", "rule_set_note", "warm_up"]


def replay(
    trace: Trace,
    fleet: Fleet,
    *,
    peak_window_s: tuple[float, float] | None = None,
    telemetry_interval_s: float | None = None,
) -> RunRecord:
    """Replay a trace on a fleet; see :func:`tokenfleet.simulator.replaying.replay`."""
    from tokenfleet.simulator.replaying import replay as run

    return run(trace, fleet, peak_window_s=peak_window_s, telemetry_interval_s=telemetry_interval_s)


def rule_set_note(engine_name: str) -> str:
    """Say whose batching rules are followed; see :func:`tokenfleet.simulator.rules.rule_set_note`."""
    from tokenfleet.simulator.rules import rule_set_note as note

    return note(engine_name)


def warm_up(announce: Callable[[str], None]) -> bool:
    """Compile the kernel, or load it from disk; see :func:`tokenfleet.simulator.replaying.warm_up`."""
    from tokenfleet.simulator.replaying import warm_up as run

    return run(announce)
