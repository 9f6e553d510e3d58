"""Floor 2: the past. Reads logs, says what is wrong with them, describes them, draws traffic like them.

Promises: rows read = rows kept + rows dropped, by reason; unknown is never 0; the same seed draws the same bytes.
Must not know replicas, prices or promises.
"""

from tokenfleet.workload.benchmarks.read import read_benchmark
from tokenfleet.workload.draw import draw_trace
from tokenfleet.workload.lengths import Lengths
from tokenfleet.workload.like import synthesize_like
from tokenfleet.workload.metrics.aggregates import Aggregates, read_aggregates
from tokenfleet.workload.metrics.snapshot import MetricsSnapshot, between, read_metrics
from tokenfleet.workload.presets import Preset, preset, preset_document, preset_names, presets
from tokenfleet.workload.profile import profile
from tokenfleet.workload.profile_file import load_profile, profile_document, save_profile
from tokenfleet.workload.read import format_names, read_trace
from tokenfleet.workload.report import Change, compare, profile_facts, quality_lines
from tokenfleet.workload.scale import grow, peak_window
from tokenfleet.workload.synthesize import synthesize
from tokenfleet.workload.trace_file import write_trace

__all__ = [
    "Aggregates",
    "Change",
    "Lengths",
    "MetricsSnapshot",
    "Preset",
    "between",
    "compare",
    "draw_trace",
    "format_names",
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
    "quality_lines",
    "read_aggregates",
    "read_benchmark",
    "read_metrics",
    "read_trace",
    "save_profile",
    "synthesize",
    "synthesize_like",
    "write_trace",
]
