"""Floor 3: the virtual world: the compiled replica engine and the fleet around it.

Promises: jumping over steps equals stepping, exactly; the same trace and fleet give the same bytes; requests
and KV blocks are conserved. Must not choose a fleet, know prices or read files.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.run import Onlooker, RunRecord
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import ClosedLoop, World

if TYPE_CHECKING:
    from tokenfleet.domain.stages import Pools, StagedRun
    from tokenfleet.simulator.checking import check_fleet, check_span
    from tokenfleet.simulator.splitting import apart, apart_stages
    from tokenfleet.simulator.staging import narrowed, of_requests

_HOME = {
    "apart": "splitting",
    "apart_stages": "splitting",
    "check_fleet": "checking",
    "check_span": "checking",
    "narrowed": "staging",
    "of_requests": "staging",
}

__all__ = [
    "apart",
    "apart_stages",
    "check_fleet",
    "check_span",
    "kernel_digest",
    "narrowed",
    "of_requests",
    "replay",
    "replay_stages",
    "rule_set_note",
    "warm_up",
]


def replay(
    trace: Trace,
    fleet: Fleet,
    *,
    peak_window_s: tuple[float, float] | None = None,
    telemetry_interval_s: float | None = None,
    world: World | None = None,
    hopeless: Onlooker | None = None,
) -> RunRecord:
    """Replay a trace on a fleet; see :func:`tokenfleet.simulator.replaying.replay`."""
    from tokenfleet.simulator.replaying import replay as run

    return run(
        trace,
        fleet,
        peak_window_s=peak_window_s,
        telemetry_interval_s=telemetry_interval_s,
        world=world,
        hopeless=hopeless,
    )


def replay_stages(
    trace: Trace,
    pools: "Pools",
    *,
    peak_window_s: tuple[float, float] | None = None,
    telemetry_interval_s: float | None = None,
    worlds: Callable[[str, Trace], World | None] = lambda _name, _calls: None,
    closed_loop: ClosedLoop | None = None,
    read_tokens_per_s: float | None = None,
    run: Callable[..., RunRecord] = replay,
) -> "StagedRun":
    """Replay a trace through several pools; see :func:`tokenfleet.simulator.staging.replay_stages`."""
    from tokenfleet.simulator.staging import replay_stages as through

    return through(
        trace,
        pools,
        peak_window_s=peak_window_s,
        telemetry_interval_s=telemetry_interval_s,
        worlds=worlds,
        closed_loop=closed_loop,
        read_tokens_per_s=read_tokens_per_s,
        run=run,
    )


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """Load what builds stages when it is first asked for: most replays need none of it."""
    if name not in _HOME:
        raise AttributeError(f"module 'tokenfleet.simulator' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"tokenfleet.simulator.{_HOME[name]}"), name)


def rule_set_note(engine_name: str) -> str:
    """Say whose batching rules are followed; see :func:`tokenfleet.simulator.rules.rule_set_note`."""
    from tokenfleet.simulator.rules import rule_set_note as note

    return note(engine_name)


def kernel_digest() -> str:
    """Name the rules that replays follow: equal digests give equal replays."""
    from tokenfleet.simulator.machine_code import kernel_digest as digest

    return digest()


def warm_up(announce: Callable[[str], None]) -> bool:
    """Compile the kernel, or load it from disk; see :func:`tokenfleet.simulator.replaying.warm_up`."""
    from tokenfleet.simulator.replaying import warm_up as run

    return run(announce)
