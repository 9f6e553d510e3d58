"""Floor 2: the promise: judge a run against it, write it down, read it, let it expire.

Promises: a clause is judged by the same code whether the run was simulated or measured. Must not choose a fleet
or run anything.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenfleet.contract.judge import (
    Found,
    Judging,
    clauses_of,
    ended,
    judge,
    judged_again,
    measured,
    time_given_s,
    without_limits,
)
from tokenfleet.contract.quantile import conservative_rank

if TYPE_CHECKING:
    from tokenfleet.contract.check import ContractCheck, check_contract
    from tokenfleet.contract.diagnosis import Against, Diagnosis, DiagnosisLimits, busy_fraction, diagnose, held_against
    from tokenfleet.contract.document import contract_document, fleets_of, with_drills
    from tokenfleet.contract.endings import refused_by, unanswered, unanswered_counts
    from tokenfleet.contract.fairness import Fairness, TenantService, fairness_of
    from tokenfleet.contract.minutes import Minutes, judge_minutes
    from tokenfleet.contract.paper import contract_text, read_contract, write_contract
    from tokenfleet.contract.parts import judged_in_parts
    from tokenfleet.contract.reading import most_at_once, read_s

_HOME = {
    "Against": "diagnosis",
    "ContractCheck": "check",
    "Diagnosis": "diagnosis",
    "DiagnosisLimits": "diagnosis",
    "Fairness": "fairness",
    "Minutes": "minutes",
    "TenantService": "fairness",
    "busy_fraction": "diagnosis",
    "check_contract": "check",
    "contract_document": "document",
    "contract_text": "paper",
    "diagnose": "diagnosis",
    "fairness_of": "fairness",
    "fleets_of": "document",
    "held_against": "diagnosis",
    "judge_minutes": "minutes",
    "judged_in_parts": "parts",
    "most_at_once": "reading",
    "read_contract": "paper",
    "read_s": "reading",
    "refused_by": "endings",
    "unanswered": "endings",
    "unanswered_counts": "endings",
    "with_drills": "document",
    "write_contract": "paper",
}
"""What is loaded on first use: judging a run needs no schema of the paper and no diagnosis."""

__all__ = [
    "Against",
    "ContractCheck",
    "Diagnosis",
    "DiagnosisLimits",
    "Fairness",
    "Found",
    "Judging",
    "Minutes",
    "TenantService",
    "busy_fraction",
    "check_contract",
    "clauses_of",
    "conservative_rank",
    "contract_document",
    "contract_text",
    "diagnose",
    "ended",
    "fairness_of",
    "fleets_of",
    "held_against",
    "judge",
    "judge_minutes",
    "judged_again",
    "judged_in_parts",
    "measured",
    "most_at_once",
    "read_contract",
    "read_s",
    "refused_by",
    "time_given_s",
    "unanswered",
    "unanswered_counts",
    "with_drills",
    "without_limits",
    "write_contract",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """Load a part of the paper when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'tokenfleet.contract' has no attribute '{name}'")
    return getattr(import_module(f"tokenfleet.contract.{_HOME[name]}"), name)
