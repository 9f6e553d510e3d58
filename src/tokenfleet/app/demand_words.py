"""Where the demand comes from and what is taken for granted of it, as a person reads it."""

from collections.abc import Iterator
from pathlib import Path

from tokenfleet.app.scaling_types import AutoscalingSpec
from tokenfleet.app.scenario_types import Scenario, WorkloadSource
from tokenfleet.app.takes_types import TakesSpec
from tokenfleet.app.taking import time_of_day_s
from tokenfleet.domain.slo import clock
from tokenfleet.domain.trace import Trace


def about_demand(asked: Scenario, trace: Trace) -> tuple[str, ...]:
    """Where the demand comes from and what was taken for granted of it, for a person who was not there."""
    source = asked.workload
    return (
        _origin(source, asked.seed),
        *_about_cuts(source, trace),
        *_about_sessions(source, trace),
        *about_clock(asked, trace),
        *_about_priority(asked, trace),
    )


def _about_priority(asked: Scenario, trace: Trace) -> tuple[str, ...]:
    """That an engine which looks at priorities finds none."""
    ranks = trace.priority
    if asked.engine.scheduling != "priority" or (ranks is not None and bool((ranks != ranks[0]).any())):
        return ()
    return (
        "All requests have the same priority, so scheduling: priority serves them in order of arrival; give classes "
        "one: slo.classes.NAME.priority.",
    )


def about_clock(asked: Scenario, trace: Trace) -> tuple[str, ...]:
    """Whose clock the times of day in a scenario go by, where its log has one; empty without such a time."""
    keys = tuple(_times_of_day(asked))
    if not keys or (trace.start_utc is None and not trace.time_of_day_s):
        return ()
    whose = "UTC" if trace.start_utc is not None else "the clock of the log, whose stamps name no zone"
    first = clock(time_of_day_s(trace) // 60.0 * 60.0)
    return (f"Times of day ({', '.join(keys)}) go by {whose}: second 0 of the demand is {first} there.",)


def _times_of_day(asked: Scenario) -> Iterator[str]:
    """Keys of the scenario that hold one."""
    promises = {"slo": asked.slo, **{f"slo.classes.{name}": each for name, each in asked.slo.classes.items()}}
    yield from (f"{key}.done_by" for key, each in promises.items() if each.done_by is not None)
    pools = {f"pools.{name}": each for name, each in (asked.pools or {}).items()}
    takes = {f"slo.classes.{name}": each.takes for name, each in asked.slo.classes.items()}
    takes |= {key: each.takes for key, each in pools.items() if each.takes is not None}
    windows = {key: each.window for key, each in pools.items()}
    if asked.batch is not None:
        takes["batch"], windows["batch"] = asked.batch.takes, asked.batch.window
    yield from (f"{key}.takes" for key, each in takes.items() if _by_the_clock(each))
    yield from (f"{key}.window" for key, each in windows.items() if each is not None)
    scaled = {
        "autoscaling": asked.autoscaling,
        **{f"{key}.autoscaling": each.autoscaling for key, each in pools.items()},
    }
    yield from (f"{key}.schedule" for key, each in scaled.items() if _is_scheduled(each))


def _by_the_clock(takes: TakesSpec) -> bool:
    return takes.arrives_from is not None or takes.arrives_until is not None


def _is_scheduled(spec: AutoscalingSpec | None) -> bool:
    return spec is not None and bool(spec.schedule)


def at_max_output(source: WorkloadSource, trace: Trace) -> int | None:
    """Requests whose outputs reach the most that is allowed, where engines stop; ``None`` where nothing is."""
    return None if source.max_output is None else int((trace.output_tokens >= source.max_output).sum())


def _about_cuts(source: WorkloadSource, trace: Trace) -> tuple[str, ...]:
    bounds = {"max_input": source.max_input, "max_request": source.max_request}
    cuts = " and ".join(f"{name} {most:,}" for name, most in bounds.items() if most is not None)
    cut = (f"Prompts are cut: {cuts} tokens.",) if cuts else ()
    count = at_max_output(source, trace)
    if count is None:
        return cut
    return (
        *cut,
        f"Outputs end at {source.max_output:,} tokens (max_output), with finish reason length: "
        f"{count:,} of {trace.request_count:,} get that far.",
    )


def _origin(source: WorkloadSource, seed: int) -> str:
    grown = f", times {source.growth:g} for growth" if source.growth != 1.0 else ""
    if source.trace is not None:
        return f"Demand: as logged in {', '.join(Path(path).name for path in source.trace)}{grown}."
    if source.preset is not None:
        kind = f"published statistics of the preset {source.preset}"
    elif source.profile is not None:
        kind = f"the profile {Path(source.profile).name}"
    else:
        kind = (
            f"the lengths you gave (log-normal), the busiest minute {source.peak_to_mean:g} times the mean, "
            f"bursty arrivals (coefficient of variation {source.interarrival_cv:g}; 1 is Poisson)"
        )
    return f"Demand: drawn from {kind}{grown}, seed {seed}. Your real traffic decides."


def _about_sessions(source: WorkloadSource, trace: Trace) -> tuple[str, ...]:
    if source.trace is None or trace.session is None:
        return ()
    if source.sessions == "repeat":
        return ("Each prompt of a session is taken to repeat the prompt before it and its answer.",)
    if trace.prefix_node is not None:
        return ()
    return (
        "The log has sessions and no block hashes, so no prompt is found in a prefix cache. If prompts repeat what was "
        "said before, write  workload: {sessions: repeat}.",
    )
