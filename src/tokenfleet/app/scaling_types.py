"""Keys of a scenario about scaling and about what is given up under pressure."""

import re
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from tokenfleet.app.phase_types import PhaseSpec
from tokenfleet.app.quantities import Unreadable, parse_duration_s
from tokenfleet.app.scenario_words import (
    Count,
    Duration,
    Fraction,
    Positive,
    Rate,
    Strict,
    Tokens,
    Wait,
    nothing_said,
    one_as_list,
    problem,
)
from tokenfleet.catalog import Storage
from tokenfleet.domain.rungs import RungKind

RuleName = Literal[
    "queue", "kv", "active", "active_tokens", "free_kv", "wait", "ttft", "drain", "schedule", "forecast", "seasonal"
]
_TIME_OF_DAY: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_BUSY: Final = re.compile(r"gpu|util|busy|duty", re.IGNORECASE)


def _no_busy_share(value: object) -> object:
    if isinstance(value, str) and _BUSY.search(value):
        raise problem(
            f'"{value}" is no signal: a GPU that shows 60 % busy may use 95 % of its memory bandwidth',
            "scale by queue, kv, active, ttft or drain",
        )
    return value


def _time_of_day(value: object) -> str:
    # YAML reads an unquoted 08:00 as text and 20:00 as the number 1200, in minutes.
    text = f"{value // 60:02d}:{value % 60:02d}" if isinstance(value, int) else str(value)
    if _TIME_OF_DAY.fullmatch(text) is None:
        raise problem(f'"{value}" is no time of day', 'write it as "08:30"')
    return text


def _waits(value: object) -> object:
    """One limit, or one for each priority; keys of a file are text."""
    try:
        if isinstance(value, dict):
            return {int(priority): parse_duration_s(limit) for priority, limit in value.items()}
        return parse_duration_s(value)
    except Unreadable as error:
        raise problem(error.what, error.mend) from None
    except ValueError:
        raise problem(f"{value} does not go by priorities", "write wait: {0: 2s, 1: 60s}") from None


Waits = Annotated[
    float | dict[int, float], BeforeValidator(_waits, json_schema_input_type=str | float | dict[str, str | float])
]
TimeOfDay = Annotated[str, BeforeValidator(_time_of_day, json_schema_input_type=str)]
Rule = Annotated[RuleName, BeforeValidator(_no_busy_share)]


class SupplySpec(Strict):
    """Machines that are taken back or not to be had, more often while demand is high."""

    spot_reclaims_per_hour: Annotated[float, Field(ge=0)] = 0.0
    """Events per hour at mean demand; each takes half of the replicas above ``min``, which are then spot machines."""
    spot_notice: Duration = 30.0
    """From the notice to the end of a spot machine."""
    stock_outs_per_hour: Annotated[float, Field(ge=0)] = 0.0
    """Spans per hour at mean demand in which no new machine is to be had."""
    stock_out: Duration = 900.0
    """Mean length of such a span."""


class AutoscalingSpec(Strict):
    """How many replicas run while the traffic runs."""

    policy: Annotated[list[Rule], BeforeValidator(one_as_list), Field(min_length=1)] = Field(default=["queue", "kv"])
    """Signals to scale by; the one that asks for most decides."""
    group: str | None = None
    """Which of the scenario's ``groups`` is scaled; the others stay. ``min``, ``start``, ``max`` and ``schedule`` count
    its replicas."""
    max: Annotated[Count, Field(ge=1)]
    """Most replicas. Charge quotas with it: it is what the policy may come to hold."""
    min: Annotated[int, Field(ge=0)] = 1
    """Fewest replicas."""
    start: Annotated[Count, Field(ge=1)] | None = None
    """Replicas that are ready when the traffic starts; left out, ``min``, and at least one with nobody beside it."""
    queue: Positive = 4.0
    """Requests waiting on the fullest replica above which more are asked for; 3 to 5."""
    kv: Fraction = 0.85
    """KV memory in use on the fullest replica above which more are asked for; 80 to 85 %."""
    active: Positive | None = None
    """Requests running and waiting on the fullest replica above which more are asked for."""
    active_tokens: Tokens | None = None
    """Tokens of running requests, prompts and outputs, in the fullest replica above which more are asked for."""
    free_kv: Tokens | None = None
    """Tokens for which the fullest replica has KV memory free, below which more are asked for: the longest prompt."""
    wait: Waits | None = None
    """How long a request may wait to be admitted before more are asked for: ``2s``, or by priority ``{0: 2s, 1: 60s}``;
    priorities that are not named may wait."""
    ttft: Duration | None = None
    """p90 of TTFT above which more are asked for; left out, the tightest limit that is promised."""
    drain: Duration = 30.0
    """Time in which a queue must be worked off."""
    schedule: dict[TimeOfDay, Annotated[int, Field(ge=0)]] | None = None
    """Replicas from a time of day on, such as ``{"08:00": 6, "20:00": 2}``; UTC where the log knows it."""
    ahead: Duration | None = None
    """How far ahead ``schedule``, ``forecast`` and ``seasonal`` look; left out, the cold start."""
    capacity: Rate | None = None
    """Requests per second that one replica sustains, as planned; left out, learned while queues are there."""
    relax: Fraction = 0.6
    """Limits are this much tighter for replicas that may go: the hysteresis."""
    stable: Duration = 300.0
    """A replica goes when no wish of this long would have kept it."""
    cool_down: Duration = 300.0
    """From one change to the next one downwards."""
    step: Annotated[Count, Field(ge=1)] | None = None
    """Most replicas asked for at one tick; left out, all that are needed."""
    tick: Duration = 15.0
    """Time between two looks at the fleet."""
    start_timeout: Duration | None = None
    """A replica that is not ready by then is given up and asked for anew."""
    gpu_quota: Annotated[Count, Field(ge=1)] | None = None
    """GPUs there are; a ``max`` beyond them is refused, and no fleet is planned that takes more."""
    storage: Storage = "network_disk"
    """Where a starting replica reads its weights; for the cold start, where ``cold_start`` does not say it."""
    warm_node: bool = False
    """Machines stand ready, so that a start does not wait for one."""
    cached_image: bool = False
    """They have the image."""
    compile_cache: bool = False
    """Compiled graphs and built kernels are kept between starts."""
    supply: SupplySpec = nothing_said()
    """Machines that are taken back or not to be had."""

    @model_validator(mode="after")
    def _rules_have_their_limits(self) -> "AutoscalingSpec":
        for name in ("active", "active_tokens", "free_kv", "wait", "schedule"):
            if name in self.policy and not getattr(self, name):
                raise problem(f"policy names {name}, and nothing says what it means", f"write {name}: as well")
        if self.min > self.max or (self.start or self.max) > self.max:
            raise problem(f"min {self.min}, start {self.start or self.min}, max {self.max} is no range", "raise max")
        return self


class MarkSpec(Strict):
    """Levels of pressure, each on the worst replica; any of them enters a rung, all of them leave it."""

    waiting: Positive | None = None
    """Requests waiting."""
    kv: Fraction | None = None
    """Share of KV memory in use."""
    ttft: Duration | None = None
    """p90 of TTFT since the last tick."""


class EvaluationSpec(Strict):
    """Evidence that a smaller model may answer."""

    measure: str
    """What was measured, such as ``helpdesk answers judged right``."""
    score: Annotated[float, Field()]
    """What the smaller model reached."""
    required: Annotated[float, Field()]
    """What it had to reach."""
    as_of: str
    """When."""
    source: str
    """Where the record lies."""


class RungSpec(Strict):
    """One thing that is given up."""

    give_up: RungKind
    """Which."""
    enter: MarkSpec
    """Pressure at which it is given up."""
    leave: MarkSpec
    """Pressure below which it comes back; the same levels as under ``enter``, lower."""
    limit: Tokens | None = None
    """For ``cap_output`` and ``cap_context``: requests that declare more are refused, none is cut."""
    quota: Tokens | None = None
    """For ``tenant_quota``: tokens per second and tenant."""
    input: Tokens | None = None
    """For ``smaller_model``: prompts up to this long."""
    output: Tokens | None = None
    """For ``smaller_model``: of those, the ones that declare no longer an answer; left out, all."""
    sessions: Count | None = None
    """For ``limit_sessions``: conversations open at once."""
    wait: Wait | None = None
    """For ``cap_wait``: whoever came meanwhile and is not admitted so long after its arrival is refused."""
    model: str = ""
    """For ``smaller_model``: which, where the scenario has no ``pools``."""
    fleet: PhaseSpec | None = None
    """For ``smaller_model``: its replicas, which run all the time beside the others; not with ``pools``, either."""
    pool: str | None = None
    """For ``smaller_model`` with ``pools``: the one that answers. Without ``takes`` it answers nobody else."""
    evaluation: EvaluationSpec | None = None
    """For ``smaller_model``: the record it passed. Without one it answers nobody."""


class LadderSpec(Strict):
    """What is given up under pressure, rung by rung in this order."""

    rungs: list[RungSpec]
    """The rungs, the first to be taken first."""
    queue_limit: Annotated[Count, Field(ge=1)]
    """Requests that may wait on one replica before arrivals are refused; always in force."""
    batch: Annotated[list[str], BeforeValidator(one_as_list)] = Field(default=[])
    """Labels of the log (task, tier or log type) that are batch, for ``shed_batch``."""
    climb: Duration = 30.0
    """From one step to the next one up."""
    calm: Duration = 120.0
    """How long pressure must be gone before a rung is left."""
    session_idle: Duration = 300.0
    """For ``limit_sessions``: how long after its last answer a conversation counts as open."""
