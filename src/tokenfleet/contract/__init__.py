"""Floor 2: the promise: judge a run against it, write it down, read it, let it expire.

Promises: a clause is judged by the same code whether the run was simulated or measured. Must not choose a fleet
or run anything.
"""

from tokenfleet.contract.check import ContractCheck, check_contract
from tokenfleet.contract.document import contract_document
from tokenfleet.contract.judge import judge
from tokenfleet.contract.paper import contract_text, read_contract, write_contract
from tokenfleet.contract.quantile import conservative_rank

__all__ = [
    "ContractCheck",
    "check_contract",
    "conservative_rank",
    "contract_document",
    "contract_text",
    "judge",
    "read_contract",
    "write_contract",
]
