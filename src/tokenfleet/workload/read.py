"""The door for logs: finds out what a file is, reads it, and says what it did."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Quality, Trace
from tokenfleet.workload.admit import Admission, admit
from tokenfleet.workload.anonymize import anonymized, hashed_names
from tokenfleet.workload.benchmarks.read import tool_of
from tokenfleet.workload.formats import cloud, engine_logs, gateways, litellm, otel, public_traces, usage
from tokenfleet.workload.formats.rows import Reading, ReadOptions
from tokenfleet.workload.formats.source import Source, open_source
from tokenfleet.workload.formats.table import is_table, read_table
from tokenfleet.workload.metrics.exposition import is_query
from tokenfleet.workload.profile_file import PROFILE_KIND
from tokenfleet.workload.spelling import nearest
from tokenfleet.workload.trace_file import is_own, read_own

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of log."""

    name: str
    matches: Callable[[Source], bool]
    read: Callable[[Source, ReadOptions], Reading]


def _read_table(source: Source, options: ReadOptions) -> Reading:
    kinds = {"csv": "CSV", "jsonl": "JSON lines", "parquet": "Parquet", "json": "JSON"}
    separators = {";": ", semicolons", "\t": ", tabs", "|": ", bars"}
    name = f"{kinds[source.kind]} table{separators.get(source.separator, '')}"
    return read_table(source, options, name=name)


FORMATS: tuple[Format, ...] = (
    Format("azure", public_traces.is_azure, public_traces.read_azure),
    Format("burstgpt", public_traces.is_burstgpt, public_traces.read_burstgpt),
    Format("mooncake", public_traces.is_mooncake, public_traces.read_mooncake),
    Format("bailian", public_traces.is_bailian, public_traces.read_bailian),
    Format("litellm", litellm.is_litellm, litellm.read_litellm),
    Format("otel", otel.is_otel, otel.read_otel),
    Format("langfuse", gateways.is_langfuse, gateways.read_langfuse),
    Format("helicone", gateways.is_helicone, gateways.read_helicone),
    Format("portkey", gateways.is_portkey, gateways.read_portkey),
    Format("openrouter", gateways.is_openrouter, gateways.read_openrouter),
    Format("envoy", gateways.is_envoy, gateways.read_envoy),
    Format("kong", gateways.is_kong, gateways.read_kong),
    Format("bedrock", cloud.is_bedrock, cloud.read_bedrock),
    Format("apim", cloud.is_apim, cloud.read_apim),
    Format("azure_openai", cloud.is_azure_openai, cloud.read_azure_openai),
    Format("sglang", engine_logs.is_sglang, engine_logs.read_sglang),
    Format("tgi", engine_logs.is_tgi, engine_logs.read_tgi),
    Format("vllm_log", engine_logs.is_vllm_log, engine_logs.read_vllm_log),
    Format("usage", usage.is_usage, usage.read_usage),
    Format("table", is_table, _read_table),
)
"""In order: the first that recognises the content reads it."""


FORMATS_IN_PARTS = ("table", "azure")
"""Formats whose rows mean the same alone as beside all others, under the names of their columns."""


def format_of(path: str | Path) -> str | None:
    """Name of the format that a file's content shows; ``None`` when none is known.

    Raises:
        BadInput: missing, a folder, empty or not text.
    """
    source = open_source(Path(path))
    return next((entry.name for entry in FORMATS if entry.matches(source)), None)


def format_names() -> tuple[str, ...]:
    """Formats that can be named to overrule detection."""
    return tuple(entry.name for entry in FORMATS)


def read_trace(
    paths: str | Path | Sequence[str | Path],
    *,
    format: str | None = None,  # noqa: A002 - the name every user of a reader expects
    columns: Mapping[str, str] | None = None,
    zone: str | None = None,
    time_unit: Literal["s", "ms", "us", "ns"] | None = None,
    cached: Literal["inside", "outside"] | None = None,
    zero_output: Literal["drop", "keep"] = "drop",
    unfinished: Literal["drop", "impute"] = "drop",
    most_broken_fraction: float = 0.5,
    spread_ticks: bool = True,
    salt: str | None = None,
    progress: Progress | None = None,
) -> tuple[Trace, Quality]:
    """Read logs of any known format into one trace.

    Args:
        paths: One file or several; gzip is opened on the fly. Several files become one trace on one clock.
        format: Overrules detection; see :func:`format_names`.
        columns: Role -> column name, such as ``{"arrival": "ts", "input_tokens": "in"}``; for tables.
        zone: IANA time zone of stamps that are written without one.
        time_unit: Unit of stamps that are numbers.
        cached: Whether input counts already contain cached tokens.
        zero_output: Drop rows with 0 output tokens as failed, or keep them as prefill-only requests.
        most_broken_fraction: Refuse a file of which a larger share has no record or no readable time.
        unfinished: Leave out calls that failed, were turned away or lost their counts, or keep them as unmet demand
            with the lengths of random calls of their model; the quality report says how many.
        spread_ticks: Spread requests inside coarse clock ticks; the quality report says so.
        salt: Hash the names of tenants and sessions with it on the way in: no name comes out again, and the same name
            gets the same hash wherever the same salt is used.
        progress: Told which file is being read.

    Returns:
        The trace, second 0 at its first request, and the quality report.

    Raises:
        BadInput: files missing or unreadable, columns missing, or a question that only a person can answer.
    """
    files = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if not files:
        raise BadInput.at("files", "none given", "name at least one log file")
    options = ReadOptions(format=format, columns=dict(columns or {}), zone=zone, time_unit=time_unit, cached=cached)
    if len(files) == 1 and format is None and is_own(files[0]):
        return _read_own(files[0], salt)
    readings = _read_all(files, options, progress)
    if salt is not None:
        readings = [replace(reading, rows=anonymized(reading.rows, salt)) for reading in readings]
    return admit(
        readings,
        options,
        Admission(
            zero_output=zero_output,
            unfinished=unfinished,
            spread_ticks=spread_ticks,
            most_broken_fraction=most_broken_fraction,
        ),
    )


def _read_own(path: Path, salt: str | None) -> tuple[Trace, Quality]:
    trace, quality = read_own(path)
    if salt is not None:
        trace = replace(trace, tenants=hashed_names("tenant", trace.tenants, salt))
    return trace, quality


def _read_all(files: Sequence[Path], options: ReadOptions, progress: Progress | None) -> list[Reading]:
    readings: list[Reading] = []
    problems: list[Problem] = []
    for index, path in enumerate(files):
        if progress is not None:
            progress(f"reading {path.name}", index, len(files))
        try:
            readings.append(_read_one(open_source(path), options))
        except BadInput as error:
            problems += error.problems
    if problems:
        raise BadInput(dict.fromkeys(problems))
    if progress is not None:
        progress("read", len(files), len(files))
    return readings


def read_rows(path: str | Path, options: ReadOptions | None = None) -> Reading:
    """Rows of one file under canonical names, before any is left out: what each format knows and does not know."""
    return _read_one(open_source(Path(path)), options or ReadOptions())


def _read_one(source: Source, options: ReadOptions) -> Reading:
    if options.format is not None:
        chosen = [entry for entry in FORMATS if entry.name == options.format]
        if not chosen:
            mend = nearest(options.format, list(format_names())) or ", ".join(format_names())
            raise BadInput.at("format", f"there is no format '{options.format}'", mend)
    else:
        named = bool(options.columns)
        chosen = [entry for entry in FORMATS if entry.matches(source) and (not named or entry.name == "table")]
    if not chosen or (chosen[0].name == "table" and not options.columns):
        _requests_or_not(source)
    if not chosen:
        raise BadInput.at(
            source.where, f"is {source.kind} of no known kind", f"known formats: {', '.join(format_names())}"
        )
    reading = chosen[0].read(source, options)
    packed = {"format": reading.detected["format"] + ", gzip"} if source.packed else {}
    return replace(reading, where=source.where, detected={**reading.detected, **packed})


def _requests_or_not(source: Source) -> None:
    """Files without single requests are told by what they are, not by the columns they lack."""
    if PROFILE_KIND in source.head[:200]:
        mend = "give the log itself; --compare, estimate and synth read profiles"
        raise BadInput.at(source.where, "is a profile of traffic, written by this program", mend)
    tool = tool_of(source)
    if tool is not None:
        what = f"is a benchmark result ({tool.name}), not a log of traffic"
        raise BadInput.at(source.where, what, "give the log of the service itself")
    if source.kind == "prometheus" or is_query(source.head) or '"resourceMetrics"' in source.head[:400]:
        raise BadInput.at(
            source.where,
            "holds metrics: rates and histograms, no single requests",
            "give a request log; metrics tell no joint lengths, sessions or peaks within a minute",
        )
    if source.record.get("object") == "page" or {"results", "metadata"} == set(source.columns):
        raise BadInput.at(
            source.where,
            "holds sums per hour or day, no single requests",
            "give a request log; sums tell the peak minute only as a range",
        )
