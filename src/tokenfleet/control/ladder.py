"""The degradation ladder: what is given up, in which order, when a fleet has more than it can hold.

A ladder is declared beforehand, rung by rung, each with the pressure at which it is entered and the lower one at which
it is left. Rungs are cumulative: on rung 3, rungs 1 and 2 hold as well. One rung at a time, up after the last step has
had time to act, down after a while of calm; every step leaves an entry that says why.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from tokenfleet.control.signals import Signals
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.rungs import RungKind
from tokenfleet.domain.world import NO_CAP, Door

NEEDED: Mapping[RungKind, str] = {
    "tenant_quota": "quota_tokens_per_s",
    "smaller_model": "input_tokens",
    "cap_output": "limit_tokens",
    "cap_context": "limit_tokens",
    "cap_wait": "wait_s",
    "limit_sessions": "session_count",
}
"""What each rung must say beside its thresholds."""
QUOTA_BURST_S = 60
"""A tenant may save up a minute of its quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A level of pressure, on the worst replica; ``None`` does not count."""

    waiting_count: float | None = None
    kv_fraction: float | None = None
    ttft_p90_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Evidence that a smaller model may answer."""

    model: str
    measure: str
    score: float
    required_score: float
    as_of: str
    source: str

    @property
    def passed(self) -> bool:
        """Whether the score reaches what was required."""
        return self.score >= self.required_score


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One thing that is given up."""

    kind: RungKind
    enter: Mark
    """Entered when any of these is reached."""
    leave: Mark
    """Left when everything is below these."""
    limit_tokens: int | None = None
    quota_tokens_per_s: int | None = None
    """Tokens per second and tenant."""
    input_tokens: int | None = None
    """Prompts up to this long go to the smaller model."""
    output_tokens: int | None = None
    """Of those, the ones whose output limit is not above this; ``None``: all."""
    session_count: int | None = None
    """Sessions that may be open at once."""
    wait_s: float | None = None
    """Who has not been admitted so long after its arrival is refused."""
    model: str = ""
    evaluation: Evaluation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Rungs in the order in which they are taken. The bound of the queue is none of them: it is always in force."""

    rungs: tuple[Rung, ...]
    queue_limit_count: int
    """Requests that may wait on one replica."""
    climb_s: float = 30.0
    """From one step to the next one up."""
    calm_s: float = 120.0
    """How long all must be calm before a rung is left."""

    @property
    def caps_waits(self) -> bool:
        """Whether a rung refuses who waits too long."""
        return any(rung.kind == "cap_wait" for rung in self.rungs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderState:
    """Where a fleet stands."""

    rung_count: int = 0
    """Rungs in force."""
    changed_s: float = float("-inf")
    calm_since_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderStep:
    """An entry of the log."""

    time_s: float
    rung_count: int
    """Rungs in force from now on."""
    kind: RungKind
    entered: bool
    reason: str


def climb(seen: Signals, ladder: Ladder, state: LadderState) -> tuple[LadderState, LadderStep | None]:
    """Move at most one rung.

    Args:
        seen: The signals of one tick. Missing ones neither enter nor leave a rung.
        ladder: Checked with :func:`check_ladder`.
        state: What the tick before returned.

    Returns:
        The state for the next tick, and the entry of the log where a rung was entered or left.
    """
    high = _next_reached(seen, ladder, state)
    if high:
        calm = replace(state, calm_since_s=None)
        if seen.time_s - state.changed_s < ladder.climb_s:
            return calm, None
        return _stepped(seen, ladder, calm, state.rung_count + 1, high)
    if state.rung_count == 0:
        return state, None
    low = _is_calm(seen, ladder.rungs[state.rung_count - 1].leave)
    if not low:
        return replace(state, calm_since_s=None), None
    since_s = seen.time_s if state.calm_since_s is None else state.calm_since_s
    if seen.time_s - since_s < ladder.calm_s:
        return replace(state, calm_since_s=since_s), None
    return _stepped(seen, ladder, state, state.rung_count - 1, f"{low} for {ladder.calm_s:g} s")


def door_of(ladder: Ladder, state: LadderState) -> Door:
    """What the door goes by while these rungs are in force."""
    door = Door()
    for rung in ladder.rungs[: state.rung_count]:
        limit = rung.limit_tokens or 0
        match rung.kind:
            case "shed_batch":
                door = replace(door, batch_is_open=False)
            case "tenant_quota":
                rate = rung.quota_tokens_per_s or 0
                burst = min(QUOTA_BURST_S * rate, NO_CAP)
                door = replace(door, quota_tokens_per_s=rate, quota_burst_tokens=burst)
            case "cap_output":
                door = replace(door, output_cap_tokens=min(door.output_cap_tokens, limit))
            case "cap_context":
                door = replace(door, context_cap_tokens=min(door.context_cap_tokens, limit))
            case "cap_wait":
                waits_s = [each for each in (door.wait_cap_s, rung.wait_s) if each is not None]
                door = replace(door, wait_cap_s=min(waits_s))
            case "limit_sessions":
                door = replace(door, session_limit_count=rung.session_count or 0)
            case "smaller_model":
                most = NO_CAP if rung.output_tokens is None else rung.output_tokens
                door = replace(door, smaller_input_tokens=rung.input_tokens or 0, smaller_output_tokens=most)
    return door


def check_ladder(ladder: Ladder, where: str = "ladder") -> None:
    """Refuse a ladder that cannot be climbed, or that nobody may climb.

    Raises:
        BadInput: every rung whose thresholds give no hysteresis or no meaning, that lacks its limit, or that sends
            requests to a model without a passed evaluation.
    """
    problems = []
    if sum(rung.kind == "smaller_model" for rung in ladder.rungs) > 1:
        what = "two rungs send requests to a smaller model"
        problems.append(Problem(f"{where}.rungs", what, "leave one: a fleet has one smaller model"))
    if ladder.queue_limit_count < 1:
        what = f"{ladder.queue_limit_count} requests may wait, so nobody is served under load"
        problems.append(Problem(f"{where}.queue_limit", what, "a bound from 1 on; it is always in force"))
    for index, rung in enumerate(ladder.rungs):
        problems += _rung_problems(rung, f"{where}.rungs[{index}]")
    if problems:
        raise BadInput(problems)


def _stepped(
    seen: Signals, ladder: Ladder, state: LadderState, rung_count: int, reason: str
) -> tuple[LadderState, LadderStep]:
    entered = rung_count > state.rung_count
    rung = ladder.rungs[max(rung_count, state.rung_count) - 1]
    step = LadderStep(time_s=seen.time_s, rung_count=rung_count, kind=rung.kind, entered=entered, reason=reason)
    return LadderState(rung_count=rung_count, changed_s=seen.time_s), step


def _pressure(seen: Signals, mark: Mark) -> list[tuple[str, float | None, float]]:
    """(words, what is seen, mark) for each threshold of a mark."""
    waiting = None if seen.waiting is None else max(seen.waiting, default=0)
    kv = None if seen.kv_used_fraction is None else max(seen.kv_used_fraction, default=0.0)
    found: list[tuple[str, float | None, float]] = []
    if mark.waiting_count is not None:
        found.append(("waiting on the fullest replica", waiting, mark.waiting_count))
    if mark.kv_fraction is not None:
        found.append(("of the fullest KV memory in use", kv, mark.kv_fraction))
    if mark.ttft_p90_s is not None:
        found.append(("s TTFT p90", seen.ttft_p90_s, mark.ttft_p90_s))
    return found


def _next_reached(seen: Signals, ladder: Ladder, state: LadderState) -> str:
    """Why the next rung is entered; empty when it is not."""
    if state.rung_count == len(ladder.rungs):
        return ""
    for words, value, mark in _pressure(seen, ladder.rungs[state.rung_count].enter):
        if value is not None and value >= mark:
            return f"{value:.3g} {words}, {mark:g} reached"
    return ""


def _is_calm(seen: Signals, leave: Mark) -> str:
    """Why a rung may be left; empty when something is not below its mark, or unknown."""
    levels = _pressure(seen, leave)
    # No first token since the last tick is no sign of pressure where nobody waits.
    idle = seen.waiting is not None and sum(seen.waiting) == 0
    for words, value, mark in levels:
        if value is None and words.endswith("p90") and idle:
            continue
        if value is None or value >= mark:
            return ""
    return ", ".join(f"{words} below {mark:g}" for words, _, mark in levels)


def _rung_problems(rung: Rung, where: str) -> list[Problem]:
    if rung.kind not in get_args(RungKind):
        return [Problem(f"{where}.kind", f'unknown rung "{rung.kind}"', f"known: {', '.join(get_args(RungKind))}")]
    problems = []
    needed = NEEDED.get(rung.kind)
    if needed is not None and not (getattr(rung, needed) or 0) > 0:
        problems.append(
            Problem(f"{where}.{needed}", f"{rung.kind} does not say how much", f"write a positive number as {needed}")
        )
    names = ("waiting_count", "kv_fraction", "ttft_p90_s")
    entered = {name: getattr(rung.enter, name) for name in names if getattr(rung.enter, name) is not None}
    left = {name: getattr(rung.leave, name) for name in names if getattr(rung.leave, name) is not None}
    if not entered or set(entered) != set(left):
        what = f"is entered by {', '.join(entered) or 'nothing'} and left by {', '.join(left) or 'nothing'}"
        problems.append(Problem(where, what, "give the same thresholds under enter and leave, at least one"))
    for name in sorted(set(entered) & set(left)):
        if left[name] >= entered[name]:
            what = f"left at {left[name]:g}, entered at {entered[name]:g}: it would be left as soon as it is entered"
            problems.append(Problem(f"{where}.leave.{name}", what, "leave well below enter"))
    if rung.kind == "smaller_model":
        problems += _evaluation_problems(rung, where)
    return problems


def _evaluation_problems(rung: Rung, where: str) -> list[Problem]:
    record = rung.evaluation
    if record is None:
        what = f"sends requests to {rung.model or 'a model without a name'} without an evaluation record"
        return [Problem(f"{where}.evaluation", what, "say what was measured, when, and the score it had to reach")]
    if record.model != rung.model:
        return [Problem(f"{where}.evaluation", f"is of {record.model}, not of {rung.model}", "evaluate that model")]
    if not record.passed:
        what = f"{record.model} has {record.measure} {record.score:g} and needs {record.required_score:g}"
        return [Problem(f"{where}.evaluation", what, "a model that failed answers nobody")]
    return []
