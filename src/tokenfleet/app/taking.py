"""Which requests of a demand a scenario speaks of, and the classes it makes promises to."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import numpy as np

from tokenfleet.app.takes_types import TakesSpec
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.slo import DAY_S
from tokenfleet.domain.trace import Bools, Ints, Trace

if TYPE_CHECKING:
    from tokenfleet.app.scenario_types import Scenario
    from tokenfleet.app.slo_types import ClassSpec

_LENGTHS: Final = (
    ("input_tokens", "input_over", "input_up_to"),
    ("output_tokens", "output_over", "output_up_to"),
)


def in_classes(trace: Trace, asked: "Scenario") -> Trace:
    """The demand with the class of each request, with the priority of its classes, and with a clock.

    Raises:
        BadInput: a class that takes in nobody, names that the demand does not have, or a priority that no engine of
            the scenario asks for.
    """
    timed = replace(trace, time_of_day_s=time_of_day_s(trace))
    classes = asked.slo.classes
    if not classes:
        return timed
    everybody = np.ones(trace.request_count, dtype=np.bool_)
    bits = np.zeros(trace.request_count, dtype=np.int32)
    problems: list[Problem] = []
    for index, (name, spec) in enumerate(classes.items()):
        where = f"slo.classes.{name}.takes"
        try:
            chosen = taken(spec.takes, timed, where, everybody, asked.seed)
        except BadInput as error:
            problems += error.problems
            continue
        if not chosen.any():
            problems.append(Problem(where, "takes in no request of the demand", "widen it, or leave the class out"))
        bits |= np.where(chosen, 1 << index, 0).astype(np.int32)
    problems += _unheard(asked, classes)
    if problems:
        raise BadInput(problems)
    marked = replace(timed, class_bits=bits, classes=tuple(classes))
    marked = replace(marked, priority=_priority(marked, classes))
    if asked.slo.targets().gaps_apart:
        _told_apart(marked)
    return marked


def _told_apart(trace: Trace) -> None:
    """Refuse a promise on the gaps of a class where there are more combinations of classes than are counted apart."""
    from tokenfleet.simulator.classes import MOST_CLASSES, combinations

    if not combinations(trace).names:
        what = f"requests are of more than {MOST_CLASSES} combinations of classes and priorities, and itl is of a class"
        raise BadInput.at("slo.classes", what, "make fewer classes overlap, or promise tpot to the class")


def _unheard(asked: "Scenario", classes: "dict[str, ClassSpec]") -> Iterator[Problem]:
    """Priorities that neither the engine nor the router would look at."""
    if asked.engine.scheduling == "priority" or asked.router == "by_tier":
        return
    for name, spec in classes.items():
        if spec.priority is not None:
            mend = "write engine: {name: vllm, scheduling: priority} or router: by_tier, or leave it out"
            yield Problem(f"slo.classes.{name}.priority", "the engine serves in order of arrival", mend)


def _priority(trace: Trace, classes: "dict[str, ClassSpec]") -> Ints | None:
    """Of each request the smallest number of its classes; where none has one, that of the log, or 0."""
    given = {index: spec.priority for index, spec in enumerate(classes.values()) if spec.priority is not None}
    if not given or trace.class_bits is None:
        return trace.priority
    usual = np.zeros(trace.request_count, dtype=np.int32) if trace.priority is None else trace.priority
    found = np.full(trace.request_count, np.iinfo(np.int32).max, dtype=np.int32)
    for index, priority in given.items():
        mine = (trace.class_bits >> index & 1).astype(np.bool_)
        found[mine] = np.minimum(found[mine], priority)
    return np.where(found == np.iinfo(np.int32).max, usual, found).astype(np.int32)


def nobody_in(key: str, takes: Bools | None) -> tuple[str, ...]:
    """A sentence where a key of the scenario takes in nobody; ``None``: it is not there."""
    return () if takes is None or takes.any() else (f"{key}.takes takes in no request of this demand.",)


def taken(takes: TakesSpec | None, trace: Trace, where: str, among: Bools, seed: int) -> Bools:
    """The requests of ``among`` that a person means.

    Args:
        takes: What must hold of them; ``None``: nothing.
        trace: The demand.
        where: The key of the scenario, for problems; it also names the random draw.
        among: Those there are.
        seed: Of the scenario.

    Raises:
        BadInput: names that the demand does not have.
    """
    if takes is None:
        return among.copy()
    found = among.copy()
    problems: list[Problem] = []
    for key, codes, names in _columns(trace):
        wanted = getattr(takes, key)
        if wanted is not None and codes is None:
            problems.append(Problem(f"{where}.{key}", "the demand names none", "give a log that does, or use share"))
        elif wanted is not None and codes is not None:
            found &= _named(wanted, codes, names, f"{where}.{key}", problems)
    if problems:
        raise BadInput(problems)
    for column, over, up_to in _LENGTHS:
        lengths: Ints = getattr(trace, column)
        least, most = getattr(takes, over), getattr(takes, up_to)
        found &= lengths > (-1 if least is None else least)
        found &= lengths <= (np.iinfo(np.int32).max if most is None else most)
    found &= _arriving(takes, trace)
    if takes.share is not None:
        random = np.random.default_rng([seed, 3, *where.encode()])
        found &= random.random(len(found)) < takes.share
    return found


def _arriving(takes: TakesSpec, trace: Trace) -> Bools:
    """Requests that arrive in the time of day that is meant; it may span midnight."""
    if takes.arrives_from is None and takes.arrives_until is None:
        return np.ones(trace.request_count, dtype=np.bool_)
    first_s = takes.arrives_from or 0.0
    length_s = ((takes.arrives_until or 0.0) - first_s) % DAY_S or DAY_S
    inside: Bools = np.mod(trace.arrival_s + trace.time_of_day_s - first_s, DAY_S) < length_s
    return inside


def _columns(trace: Trace) -> Iterator[tuple[str, Ints | None, tuple[str, ...]]]:
    observed = trace.observed
    yield "models", None if observed is None else observed.model, () if observed is None else observed.models
    yield "labels", None if observed is None else observed.label, () if observed is None else observed.labels
    yield "tenants", trace.tenant, trace.tenants


def _named(wanted: Sequence[str], codes: Ints, names: tuple[str, ...], where: str, problems: list[Problem]) -> Bools:
    """Requests of these names."""
    for name in wanted:
        if name not in names:
            near = get_close_matches(name, names, n=2, cutoff=0.0)
            problems.append(Problem(where, f'the demand has no "{name}"', f"nearest: {', '.join(near)}"))
    numbers = [names.index(name) for name in wanted if name in names]
    found: Bools = np.isin(codes, numbers)
    return found


def time_of_day_s(trace: Trace) -> float:
    """Seconds after midnight UTC at second 0 of the trace; its own clock where it has no dates."""
    if trace.start_utc is None:
        return trace.time_of_day_s
    from datetime import UTC, datetime

    return datetime.fromisoformat(trace.start_utc).astimezone(UTC).timestamp() % DAY_S
