"""What work takes of the gpus, by line of the bill: time, not tokens.

A token of a long prompt costs more than one of a short prompt, for it looks back on more; a token generated on a long
context reads more, and one generated in good company costs less. Inside a line of the bill, requests are charged by
this.
"""

import numpy as np

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import Ledger, RunRecord, Status
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWork:
    """Replica-seconds that one token of each kind takes; 0 of a kind there was none of."""

    input_s: float
    """Of a prompt token that no cache served."""
    cached_s: float
    output_s: float

    def of(self, tokens: "TokensByKind") -> tuple[float, float, float]:
        """Replica-seconds of ``tokens``, by kind."""
        return tokens.input * self.input_s, tokens.cached * self.cached_s, tokens.output * self.output_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensByKind:
    """Tokens of requests that finished."""

    input: int
    """Prompt tokens that no cache served."""
    cached: int
    output: int


def tokens_by_kind(record: RunRecord, window_s: tuple[float, float] | None = None) -> TokensByKind:
    """Tokens of the finished requests of a run, or of those that arrived in a window of it."""
    done = record.status == Status.FINISHED
    if window_s is not None:
        done &= (record.arrival_s >= window_s[0]) & (record.arrival_s < window_s[1])
    cached = int(record.cached_tokens[done].sum(dtype=np.int64))
    return TokensByKind(
        input=int(record.input_tokens[done].sum(dtype=np.int64)) - cached,
        cached=cached,
        output=int(record.output_tokens[done].sum(dtype=np.int64)),
    )


def token_work(record: RunRecord, *, rate_per_s: float | None = None) -> TokenWork:
    """What a token of each kind took in a run.

    Args:
        record: A run; of replicas that always had somebody waiting, for what a token takes of a full one.
        rate_per_s: Requests per second that this run sustained while all replicas were full. A request then took
            ``replicas / rate`` in all, and the run says only how that splits over the kinds of tokens: its end, where
            replicas run dry, does not count. ``None``: all time with work counts as it was.
    """
    busy, tokens = record.busy, tokens_by_kind(record)
    cached_s = min(busy.cached_prefix_s, busy.prefill_s)
    busy_s = busy.prefill_s + busy.decode_s
    full_s = busy_s
    if rate_per_s is not None:
        full_s = record.replica_count * int((record.status == Status.FINISHED).sum()) / rate_per_s
    shrunk = full_s / busy_s if busy_s else 0.0

    def each(spent_s: float, count: int) -> float:
        return spent_s * shrunk / count if count else 0.0

    return TokenWork(
        input_s=each(busy.prefill_s - cached_s, tokens.input),
        cached_s=each(cached_s, tokens.cached),
        output_s=each(busy.decode_s, tokens.output),
    )
