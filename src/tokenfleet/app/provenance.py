"""What a result rests on: the resolved scenario, versions and digests, written into everything we hand out."""

import hashlib
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tokenfleet.domain.gpu import Gpu, GpuPrice
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.trace import Trace

if TYPE_CHECKING:
    from tokenfleet.app.scenario_types import Scenario


def resolved_scenario(
    scenario: "Scenario",
    *,
    model: ModelArchitecture,
    gpus: tuple[Gpu, ...],
    prices: tuple[GpuPrice, ...],
    trace: Trace,
    beside: tuple[ModelArchitecture, ...] = (),
) -> dict[str, object]:
    """The scenario with every default filled in, and what is needed to get the same answer again.

    Keys: ``scenario`` (as resolved, times in seconds, shares as fractions), ``versions`` of this package and of
    those that compute, ``seed``, and ``sha256`` of the demand and of the facts used; ``beside`` are models of pools
    that serve others than the scenario's.
    """
    written = scenario.model_dump(mode="json", exclude_none=True)
    written["model"] = model.name
    source = written["workload"]
    # Where a file lay is no part of the answer; what was in it is, and the digest of the demand says that.
    if "trace" in source:
        source["trace"] = [Path(path).name for path in source["trace"]]
    if "profile" in source:
        source["profile"] = Path(source["profile"]).name
    return {
        "scenario": written,
        "seed": scenario.seed,
        "versions": {name: version(name) for name in ("tokenfleet", "numpy", "numba", "llvmlite")},
        "sha256": {
            "demand": trace_digest(trace),
            "model": _digest(model),
            **({"models_beside": _digest(*beside)} if beside else {}),
            "gpus": _digest(*gpus),
            "prices": _digest(*prices),
        },
        "price_dates": sorted({price.as_of for price in prices if price.as_of}),
    }


def trace_digest(trace: Trace) -> str:
    """SHA-256 over the columns of a trace."""
    digest = hashlib.sha256()
    digest.update(trace.arrival_s.tobytes())
    columns = [trace.input_tokens, trace.output_tokens, trace.prefix_node, trace.session, trace.tenant]
    columns += [column for column in (trace.priority, trace.class_bits) if column is not None]
    if trace.prefixes is not None:
        columns += [trace.prefixes.parent, trace.prefixes.token_count]
    for column in columns:
        digest.update(b"none" if column is None else column.tobytes())
    return digest.hexdigest()


def _digest(*facts: object) -> str:
    return hashlib.sha256("\n".join(_lines(facts)).encode()).hexdigest()


def _lines(facts: Iterable[object]) -> list[str]:
    return [repr(fact) for fact in facts]
