"""The door for benchmark results."""

from collections.abc import Callable
from pathlib import Path

from tokenfleet.domain.benchmark import BenchmarkRun
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.workload.benchmarks import reports, single_files
from tokenfleet.workload.formats.source import Source, open_source


@dataclass(frozen=True, slots=True)
class Tool:
    """One kind of result file."""

    name: str
    matches: Callable[[Source], bool]
    read: Callable[[Source], list[BenchmarkRun]]


TOOLS: tuple[Tool, ...] = (
    Tool("vllm", single_files.is_vllm, single_files.read_vllm),
    Tool("sglang", single_files.is_sglang, single_files.read_sglang),
    Tool("guidellm", reports.is_guidellm, reports.read_guidellm),
    Tool("aiperf_records", reports.is_aiperf_records, reports.read_aiperf_records),
    Tool("aiperf", reports.is_aiperf, reports.read_aiperf),
    Tool("inference_perf", reports.is_inference_perf, reports.read_inference_perf),
    Tool("inference_perf_requests", reports.is_inference_perf_requests, reports.read_inference_perf_requests),
    Tool("llmperf", single_files.is_llmperf, single_files.read_llmperf),
    Tool("genai_bench", single_files.is_genai_bench, single_files.read_genai_bench),
    Tool("aiconfigurator", single_files.is_aiconfigurator, single_files.read_aiconfigurator),
)
"""In order: the first that recognises the content reads it."""


def read_benchmark(path: str | Path) -> tuple[BenchmarkRun, ...]:
    """Read a result file of a load tool, found out from its content.

    Returns:
        One run, or several where the file holds several levels or lines.

    Raises:
        BadInput: missing, broken, or no result file that is known.
    """
    source = open_source(Path(path))
    tool = tool_of(source)
    if tool is None:
        names = ", ".join(entry.name for entry in TOOLS)
        raise BadInput.at(source.where, "is no benchmark result that is known", f"known: {names}")
    return tuple(tool.read(source))


def tool_of(source: Source) -> Tool | None:
    """The tool that wrote a file, if any."""
    return next((tool for tool in TOOLS if tool.matches(source)), None)
