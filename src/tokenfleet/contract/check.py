"""Does a contract still hold: the day, the digests, and the clauses against a run."""

from collections.abc import Mapping
from datetime import date
from typing import Literal

from tokenfleet.contract.document import digest
from tokenfleet.contract.judge import judge
from tokenfleet.contract.schema import Contract
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.slo import SloResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractCheck:
    """What is left of a contract."""

    state: Literal["valid", "expired", "void"]
    """``void`` when something it rests on changed, whatever the day; else ``expired`` after its last day."""
    reasons: tuple[str, ...]
    """For a person; empty when valid."""
    clauses: tuple[SloResult, ...]
    """Each clause against the run, when one was given."""
    exceeded: tuple[str, ...]
    """Where the run asked for more than the contract was examined with: its clauses prove nothing then."""
    failed_drills: tuple[str, ...]
    """Drills written into the contract that were not passed."""

    @property
    def kept(self) -> bool | None:
        """All clauses kept by a run within the demand of the contract; ``None`` without a run."""
        return all(clause.kept for clause in self.clauses) if self.clauses else None


def check_contract(
    document: Mapping[str, object],
    *,
    today: date,
    resolved: Mapping[str, object] | None = None,
    record: RunRecord | None = None,
    window_s: tuple[float, float] | None = None,
) -> ContractCheck:
    """Checks a contract against a day, what it rests on, and a run.

    Args:
        document: From :func:`read_contract`.
        today: The day it is asked for.
        resolved: What a plan made now would rest on; ``None``: the digests are not compared.
        record: A run, simulated or measured, to hold the clauses against.
        window_s: Judge only requests that arrive in this window of the record.

    Returns:
        State with reasons, and the clauses.
    """
    contract = Contract.model_validate(document)
    changes = [] if resolved is None else _changes(contract, resolved)
    late = [] if today <= contract.valid.until else [f"expired on {contract.valid.until}; plan again"]
    early = [] if today >= contract.valid.since else [f"starts on {contract.valid.since}"]
    clauses: tuple[SloResult, ...] = ()
    if record is not None:
        clauses = judge(record, contract.promise.slo, peak_only=window_s is not None, window_s=window_s)
    return ContractCheck(
        state="void" if changes else "expired" if late or early else "valid",
        reasons=(*changes, *late, *early),
        clauses=clauses,
        failed_drills=tuple(drill.name for drill in contract.drills if drill.passed is False),
        exceeded=() if record is None else _exceeded(contract, record, window_s),
    )


def _changes(contract: Contract, resolved: Mapping[str, object]) -> list[str]:
    now = resolved["sha256"]
    if not isinstance(now, Mapping):
        raise TypeError("resolved['sha256'] holds digests by name")
    today = {**now, "scenario": digest(resolved["scenario"])}
    return [
        f"void: {name} changed since the contract was made"
        for name, was in contract.valid.void_if_changed.items()
        if today.get(name) != was
    ]


def _exceeded(contract: Contract, record: RunRecord, window_s: tuple[float, float] | None) -> tuple[str, ...]:
    """What the run asked for beyond the contract."""
    demand, most = contract.workload, contract.longest_request_tokens
    longest = int((record.input_tokens.astype(int) + record.output_tokens).max()) if len(record.input_tokens) else 0
    found = []
    if longest > most:
        found.append(f"the longest request has {longest:,} tokens, a replica holds {most:,}")
    if window_s is not None:
        inside = (record.arrival_s >= window_s[0]) & (record.arrival_s < window_s[1])
        rate = float(inside.sum()) / (window_s[1] - window_s[0])
        if rate > demand.peak_rate_per_s:
            found.append(f"{rate:.3g} requests/s arrived, the contract is about {demand.peak_rate_per_s:.3g}")
    return tuple(found)
