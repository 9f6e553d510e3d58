"""What each request of a run took of the gpus, by line of the bill: time, not tokens.

A token of a long prompt costs more than one of a short prompt, for it looks back on more; a token generated on a long
context reads more, and one generated in good company costs less. Inside a line of the bill, requests are charged by
this.
"""

from dataclasses import dataclass

from tokenfleet.domain.run import Ledger
from tokenfleet.domain.trace import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestWork:
    """Gpu time of each request in gpu-seconds, by line of the bill; arrays in the order of the run."""

    input_s: Floats
    """Prompt tokens that no cache served, and their attention to one another."""
    cached_s: Floats
    """Their attention to the cached part of the prompt."""
    output_s: Floats
    """Tokens generated."""


def request_work(ledger: Ledger) -> RequestWork:
    """The ledger of a run by line of the bill.

    Every step of the run is shared out additively, so the work of two requests together is the sum of both, and that
    of all of them is the time in which the replicas were busy.
    """
    return RequestWork(
        input_s=ledger.prefill_gpu_s - ledger.cached_gpu_s,
        cached_s=ledger.cached_gpu_s,
        output_s=ledger.decode_gpu_s,
    )
