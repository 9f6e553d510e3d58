"""Floor 2: the past. Reads logs, says what is wrong with them, describes them, draws traffic like them.

Promises: rows read = rows kept + rows dropped, by reason; unknown is never 0; the same seed draws the same bytes.
Must not know replicas, prices or promises.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenfleet.workload.benchmarks.read import read_benchmark
    from tokenfleet.workload.client_profiles import draw_clients
    from tokenfleet.workload.closed_loop import close_loop
    from tokenfleet.workload.comparing import Change, compare
    from tokenfleet.workload.draw import draw_trace
    from tokenfleet.workload.history import repeated_history
    from tokenfleet.workload.lengths import Lengths
    from tokenfleet.workload.like import synthesize_like
    from tokenfleet.workload.metrics.aggregates import Aggregates, read_aggregates
    from tokenfleet.workload.metrics.queries import (
        RangeQuery,
        aggregates_of_answers,
        prometheus_queries,
        snapshot_of_answer,
    )
    from tokenfleet.workload.metrics.snapshot import MetricsSnapshot, between, read_metrics
    from tokenfleet.workload.parts import profile_files
    from tokenfleet.workload.prefixes import shared_input_tokens, units_of
    from tokenfleet.workload.preset_files import Preset, preset, preset_document, preset_names, presets
    from tokenfleet.workload.profile_file import load_profile, profile_document, save_profile
    from tokenfleet.workload.profiling import profile
    from tokenfleet.workload.read import FORMATS_IN_PARTS, format_names, format_of, read_trace
    from tokenfleet.workload.report import profile_facts, quality_lines
    from tokenfleet.workload.scale import (
        Grower,
        cut_inputs,
        cut_requests,
        grow,
        peak_window,
        repeated,
        repeated_with_rows,
    )
    from tokenfleet.workload.splicing import splice, stretch
    from tokenfleet.workload.surging import FRONT_FRACTION, Shape, surge, surge_with_rows
    from tokenfleet.workload.synthesizing import synthesize
    from tokenfleet.workload.trace_file import write_trace

_HOME = {
    "FORMATS_IN_PARTS": "read",
    "FRONT_FRACTION": "surging",
    "Aggregates": "metrics.aggregates",
    "Change": "comparing",
    "Lengths": "lengths",
    "MetricsSnapshot": "metrics.snapshot",
    "Preset": "preset_files",
    "RangeQuery": "metrics.queries",
    "Shape": "surging",
    "aggregates_of_answers": "metrics.queries",
    "between": "metrics.snapshot",
    "close_loop": "closed_loop",
    "compare": "comparing",
    "draw_clients": "client_profiles",
    "draw_trace": "draw",
    "format_names": "read",
    "format_of": "read",
    "Grower": "scale",
    "grow": "scale",
    "load_profile": "profile_file",
    "cut_inputs": "scale",
    "cut_requests": "scale",
    "peak_window": "scale",
    "preset": "preset_files",
    "preset_document": "preset_files",
    "preset_names": "preset_files",
    "presets": "preset_files",
    "profile": "profiling",
    "profile_document": "profile_file",
    "profile_facts": "report",
    "profile_files": "parts",
    "prometheus_queries": "metrics.queries",
    "quality_lines": "report",
    "read_aggregates": "metrics.aggregates",
    "read_benchmark": "benchmarks.read",
    "read_metrics": "metrics.snapshot",
    "read_trace": "read",
    "repeated": "scale",
    "repeated_history": "history",
    "repeated_with_rows": "scale",
    "save_profile": "profile_file",
    "shared_input_tokens": "prefixes",
    "units_of": "prefixes",
    "snapshot_of_answer": "metrics.queries",
    "splice": "splicing",
    "stretch": "splicing",
    "surge": "surging",
    "surge_with_rows": "surging",
    "synthesize": "synthesizing",
    "synthesize_like": "like",
    "write_trace": "trace_file",
}
"""What is loaded on first use: a command that draws its traffic should not wait for thirty readers."""

__all__ = [
    "FORMATS_IN_PARTS",
    "FRONT_FRACTION",
    "Aggregates",
    "Change",
    "Grower",
    "Lengths",
    "MetricsSnapshot",
    "Preset",
    "RangeQuery",
    "Shape",
    "aggregates_of_answers",
    "between",
    "close_loop",
    "compare",
    "cut_inputs",
    "cut_requests",
    "draw_clients",
    "draw_trace",
    "format_names",
    "format_of",
    "grow",
    "load_profile",
    "peak_window",
    "preset",
    "preset_document",
    "preset_names",
    "presets",
    "profile",
    "profile_document",
    "profile_facts",
    "profile_files",
    "prometheus_queries",
    "quality_lines",
    "read_aggregates",
    "read_benchmark",
    "read_metrics",
    "read_trace",
    "repeated",
    "repeated_history",
    "repeated_with_rows",
    "save_profile",
    "shared_input_tokens",
    "snapshot_of_answer",
    "splice",
    "stretch",
    "surge",
    "surge_with_rows",
    "synthesize",
    "synthesize_like",
    "units_of",
    "write_trace",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """Load a reader when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'tokenfleet.workload' has no attribute '{name}'")
    return getattr(import_module(f"tokenfleet.workload.{_HOME[name]}"), name)
