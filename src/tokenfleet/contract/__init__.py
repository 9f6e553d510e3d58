"""Floor 2: the promise: judge a run against it, write it down, read it, let it expire.

Promises: a clause is judged by the same code whether the run was simulated or measured. Must not choose a fleet
or run anything.
"""

from tokenfleet.contract.judge import judge

__all__ = ["judge"]
