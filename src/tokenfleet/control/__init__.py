"""Floor 2: the brain without hands: which replica gets a request, who is let in, how many replicas there should be.

Owns routing, admission, the degradation ladder and scaling. Promises: pure functions of what a controller can know,
state passed in and returned; those per request are scalar functions that numba compiles as they are, those per tick are
plain Python. Must not know the future (the output length of a request), time sources or I/O.
"""

from tokenfleet.control.admission import (
    REASONS,
    admit,
    bucket_left_tokens,
    bucket_refilled,
    bucket_reserved,
    bucket_settled,
    queue_turn,
    retry_after_s,
)
from tokenfleet.control.hashing import scrambled
from tokenfleet.control.ladder import (
    Evaluation,
    Ladder,
    LadderState,
    LadderStep,
    Mark,
    Rung,
    check_ladder,
    climb,
    door_of,
)
from tokenfleet.control.routing import (
    WEIGHT_ONE,
    home_replica,
    least_in_flight,
    least_kv,
    least_loaded,
    least_waiting,
    power_of_two,
    prefix_affinity,
    round_robin,
)
from tokenfleet.control.rules import (
    ActiveRule,
    DrainRule,
    ForecastRule,
    KvRule,
    QueueRule,
    Rule,
    ScheduleRule,
    TtftRule,
)
from tokenfleet.control.scaling import (
    ScalingPolicy,
    ScalingState,
    ScalingStep,
    check_policy,
    decide,
    worst_case_gpu_count,
)
from tokenfleet.control.signals import Signals, signals_of

__all__ = [
    "REASONS",
    "WEIGHT_ONE",
    "ActiveRule",
    "DrainRule",
    "Evaluation",
    "ForecastRule",
    "KvRule",
    "Ladder",
    "LadderState",
    "LadderStep",
    "Mark",
    "QueueRule",
    "Rule",
    "Rung",
    "ScalingPolicy",
    "ScalingState",
    "ScalingStep",
    "ScheduleRule",
    "Signals",
    "TtftRule",
    "admit",
    "bucket_left_tokens",
    "bucket_refilled",
    "bucket_reserved",
    "bucket_settled",
    "check_ladder",
    "check_policy",
    "climb",
    "decide",
    "door_of",
    "home_replica",
    "least_in_flight",
    "least_kv",
    "least_loaded",
    "least_waiting",
    "power_of_two",
    "prefix_affinity",
    "queue_turn",
    "retry_after_s",
    "round_robin",
    "scrambled",
    "signals_of",
    "worst_case_gpu_count",
]
