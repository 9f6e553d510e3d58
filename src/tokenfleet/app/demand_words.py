"""Where the demand comes from and what is taken for granted of it, as a person reads it."""

from pathlib import Path

from tokenfleet.app.scenario_types import WorkloadSource
from tokenfleet.domain.trace import Trace


def about_demand(source: WorkloadSource, seed: int, trace: Trace) -> tuple[str, ...]:
    """Where the demand comes from and what was taken for granted of it, for a person who was not there."""
    return (_origin(source, seed), *_about_cuts(source, trace), *_about_sessions(source, trace))


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
