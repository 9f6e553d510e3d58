"""Floor 2: the brain without hands: which replica gets a request, who is let in, how many replicas there should be.

Owns routing, admission, the degradation ladder and scaling. Promises: pure functions of what a controller can know,
state passed in and returned; those per request are scalar functions that the simulator compiles, those per tick are
plain Python. Must not know the future (the output length of a request), time sources or I/O.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from tokenfleet.control.lanes import takes_batch, until_open_us
    from tokenfleet.control.routing import (
        MOST_GROUPS,
        NOT_SERVED,
        WEIGHT_ONE,
        home_replica,
        least_in_flight,
        least_kv,
        least_loaded,
        least_waiting,
        narrowest_fit,
        power_of_two,
        prefix_affinity,
        round_robin,
    )
    from tokenfleet.control.rules import (
        ActiveRule,
        ActiveTokensRule,
        DrainRule,
        ForecastRule,
        FreeKvRule,
        KvRule,
        QueueRule,
        Rule,
        ScheduleRule,
        SeasonalRule,
        TtftRule,
        WaitRule,
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

_HOME = {
    "MOST_GROUPS": "routing",
    "NOT_SERVED": "routing",
    "REASONS": "admission",
    "WEIGHT_ONE": "routing",
    "ActiveRule": "rules",
    "ActiveTokensRule": "rules",
    "DrainRule": "rules",
    "Evaluation": "ladder",
    "ForecastRule": "rules",
    "FreeKvRule": "rules",
    "KvRule": "rules",
    "Ladder": "ladder",
    "LadderState": "ladder",
    "LadderStep": "ladder",
    "Mark": "ladder",
    "QueueRule": "rules",
    "Rule": "rules",
    "Rung": "ladder",
    "ScalingPolicy": "scaling",
    "ScalingState": "scaling",
    "ScalingStep": "scaling",
    "ScheduleRule": "rules",
    "SeasonalRule": "rules",
    "Signals": "signals",
    "TtftRule": "rules",
    "WaitRule": "rules",
    "admit": "admission",
    "bucket_left_tokens": "admission",
    "bucket_refilled": "admission",
    "bucket_reserved": "admission",
    "bucket_settled": "admission",
    "check_ladder": "ladder",
    "check_policy": "scaling",
    "climb": "ladder",
    "decide": "scaling",
    "door_of": "ladder",
    "home_replica": "routing",
    "least_in_flight": "routing",
    "least_kv": "routing",
    "least_loaded": "routing",
    "least_waiting": "routing",
    "narrowest_fit": "routing",
    "power_of_two": "routing",
    "prefix_affinity": "routing",
    "queue_turn": "admission",
    "retry_after_s": "admission",
    "round_robin": "routing",
    "scrambled": "hashing",
    "signals_of": "signals",
    "takes_batch": "lanes",
    "until_open_us": "lanes",
    "worst_case_gpu_count": "scaling",
}
"""What is loaded on first use: compiled replays need rules as sources, not as objects."""

__all__ = [
    "MOST_GROUPS",
    "NOT_SERVED",
    "REASONS",
    "WEIGHT_ONE",
    "ActiveRule",
    "ActiveTokensRule",
    "DrainRule",
    "Evaluation",
    "ForecastRule",
    "FreeKvRule",
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
    "SeasonalRule",
    "Signals",
    "TtftRule",
    "WaitRule",
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
    "narrowest_fit",
    "power_of_two",
    "prefix_affinity",
    "queue_turn",
    "retry_after_s",
    "round_robin",
    "scrambled",
    "signals_of",
    "takes_batch",
    "until_open_us",
    "worst_case_gpu_count",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """Load a rule when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'tokenfleet.control' has no attribute '{name}'")
    return getattr(import_module(f"tokenfleet.control.{_HOME[name]}"), name)
