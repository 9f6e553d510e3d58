"""From files of any kind to what they say about traffic: single requests, sums over time, or a metrics page.

What a kind of input can be trusted for is said once, here, and shown on every face.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from tokenfleet import workload
from tokenfleet.app.executor import Executor, mapper_of
from tokenfleet.app.quantities import Unreadable, parse_duration_s
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Workload

Progress = Callable[[str, int, int], None]
Parts = Literal["auto", "yes", "no"]
Level = Literal["high", "medium", "low"]

_MINUTE_S, _HOUR_S = 60.0, 3600.0
_DAY_S = 23.9 * _HOUR_S
"""A log ends with its last request: that of a whole day falls short of it by a moment."""
_WHOLE_BYTES: Final = 256 << 20
"""Text larger than this together is counted in parts: read whole, 90 MB of CSV took 0.6 GB."""
_PACKED_WHOLE_BYTES: Final = 40 << 20
"""The same for Parquet and gzip, which unpack to many times their size: 32 MB of Parquet took 1.4 GB."""
_LARGEST_SUMS_BYTES: Final = 256 << 20
"""No export of sums or metrics is larger; a larger file is a request log that could not be read."""
_TABLE_ENDINGS: Final = (
    ".csv",
    ".tsv",
    ".jsonl",
    ".ndjson",
    ".parquet",
    ".csv.gz",
    ".tsv.gz",
    ".jsonl.gz",
    ".ndjson.gz",
)
_PACKED_ENDINGS: Final = (".parquet", ".gz")
_OPTIONS: Final = {
    "files": "FILES",
    "format": "--format",
    "columns": "--columns",
    "zone": "--zone",
    "time_unit": "--time-unit",
    "cached": "--cached",
    "salt": "--anonymize",
    "executor": "--executor",
    "engine": "--engine",
    "end": "--last",
    "server": "FILES",
}
"""Options by the names that reading gives to the same things."""
_MENDS: Final = {
    "say time_unit: s, or ms, us, ns": "say --time-unit s, or ms, us, ns",
    "say time_unit: ms, or s": "say --time-unit ms, or s",
    "name the zone of those without: say zone: UTC, or Europe/Berlin": "name the zone of those without: --zone UTC",
    "embedding or rerank traffic? then say zero_output: keep; else map another column": (
        "embedding or rerank traffic? then say --zero-output keep; else map another column with --columns"
    ),
    "name the zone, or profile them one by one": "name the zone with --zone, or profile them one by one",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What a person says about the files."""

    paths: Sequence[Path]
    format: str | None = None
    columns: Mapping[str, str] | None = None
    zone: str | None = None
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    cached: Literal["inside", "outside"] | None = None
    zero_output: Literal["drop", "keep"] = "drop"
    unfinished: Literal["drop", "impute"] = "drop"
    salt: str | None = None
    parts: Parts = "auto"
    executor: Executor = "local"
    """Who counts the parts; a cluster counts in parts always."""


Found = Workload | workload.Aggregates | workload.MetricsSnapshot
"""Single requests described, or sums over time, or one scrape (or what happened between two)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A Prometheus server to ask instead of files."""

    address: str
    engine: str = "vLLM"
    last: str = "1d"
    """How far back to ask, such as ``7d``."""
    labels: str = ""
    """Further label matchers, such as ``namespace="prod"``."""


def is_address(name: str) -> bool:
    """Whether an argument is a server and no file."""
    return name.startswith(("http://", "https://"))


def ask(server: Server, *, now_s: float) -> workload.Aggregates:
    """Sums per minute, up to now.

    Args:
        server: What to ask, and of which engine.
        now_s: Seconds since 1970.

    Raises:
        BadInput: an address, engine or span that is none, or no counters of the engine on the server.
        NoAnswer: the server did not answer.
    """
    from tokenfleet.app.prometheus import traffic

    try:
        span_s = parse_duration_s(server.last)
    except Unreadable as error:
        raise BadInput.at("--last", error.what, error.mend) from None
    with _as_options():
        return traffic(
            server.address, server.engine, start_s=now_s - span_s, end_s=now_s, step_s=_MINUTE_S, labels=server.labels
        )


def take_in(files: Files, *, progress: Progress | None = None) -> Found:
    """Read files and describe what they hold.

    Request logs come first, because they tell most; files that hold none may still be sums per minute, hour or day, or
    metrics pages: one page counts since its engine's start, two tell what happened from the first to the second.

    Args:
        files: The files, and what overrules detection.
        progress: Told what is being done, how much is done, and how much there is.

    Raises:
        BadInput: files that hold nothing about traffic, or a question that only a person can answer.
    """
    with _as_options():
        if _in_parts(files):
            return _counted(files, progress)
        try:
            return _read(files, progress)
        except BadInput as refused:
            weaker = _weaker(files.paths)
            if weaker is None:
                raise refused from None
            return weaker


def _read(files: Files, progress: Progress | None) -> Workload:
    trace, quality = workload.read_trace(
        list(files.paths),
        format=files.format,
        columns=files.columns,
        zone=files.zone,
        time_unit=files.time_unit,
        cached=files.cached,
        zero_output=files.zero_output,
        unfinished=files.unfinished,
        salt=files.salt,
        progress=progress,
    )
    if files.salt is not None:
        quality = replace(quality, detected={**quality.detected, "names": "hashed with a salt"})
    return workload.profile(trace, quality)


def _counted(files: Files, progress: Progress | None) -> Workload:
    return workload.profile_files(
        list(files.paths),
        format=files.format,
        columns=files.columns,
        zone=files.zone,
        time_unit=files.time_unit,
        cached=files.cached,
        zero_output=files.zero_output,
        progress=progress,
        mapper=mapper_of(files.executor),
    )


def _in_parts(files: Files) -> bool:
    """Whether to count part by part.

    Raises:
        BadInput: parts are asked for beside something that needs whole files.
    """
    whole = {
        "--anonymize": files.salt is not None,
        "--unfinished impute": files.unfinished != "drop",
        "--format": files.format not in (None, "table"),
        "--in-parts no": files.parts == "no",
    }
    needs = [option for option, given in whole.items() if given]
    spread = files.executor != "local"
    if (files.parts == "yes" or spread) and needs:
        raise BadInput.at(
            "--executor" if spread else "--in-parts",
            f"does not go with {needs[0]}, which needs whole files",
            "leave one of them out",
        )
    if files.parts != "auto" or needs or spread:
        return files.parts == "yes" or spread
    present = [path for path in files.paths if path.is_file()]
    tables = len(present) == len(files.paths) and all(path.name.endswith(_TABLE_ENDINGS) for path in present)
    if tables and files.format is None and not files.columns:
        tables = all(workload.format_of(path) in workload.FORMATS_IN_PARTS for path in present)
    packed = sum(path.stat().st_size for path in present if path.name.endswith(_PACKED_ENDINGS))
    return tables and (packed > _PACKED_WHOLE_BYTES or sum(path.stat().st_size for path in present) > _WHOLE_BYTES)


def _weaker(paths: Sequence[Path]) -> workload.Aggregates | workload.MetricsSnapshot | None:
    """Sums or metrics, when that is what the files hold."""
    if any(not path.is_file() or path.stat().st_size > _LARGEST_SUMS_BYTES for path in paths):
        return None
    if len(paths) == 1:
        try:
            return workload.read_aggregates(paths[0])
        except BadInput:
            return _scrape(paths)
    return _scrape(paths) if len(paths) == 2 else None


def _scrape(paths: Sequence[Path]) -> workload.MetricsSnapshot | None:
    try:
        pages = [workload.read_metrics(path) for path in paths]
    except BadInput:
        return None
    return pages[0] if len(pages) == 1 else workload.between(pages[0], pages[1])


@contextmanager
def _as_options() -> Iterator[None]:
    """Problems of reading, in the words of the command line."""
    try:
        yield
    except BadInput as error:
        raise BadInput(
            replace(each, where=_option(each.where), mend=_MENDS.get(each.mend, _mapped(each.mend)))
            for each in error.problems
        ) from None


def _option(where: str) -> str:
    if where.startswith("columns."):
        return f"--columns {where.removeprefix('columns.')}"
    return _OPTIONS.get(where, where)


def _mapped(mend: str) -> str:
    """``say columns: {arrival: ts}`` in the words of the command line."""
    return re.sub(r"say columns: \{(\w+): (.*?)\}", r"say --columns \1=\2", mend)


def kind_of(found: Found) -> str:
    """What kind of input this is, by the name that its confidence goes by."""
    if isinstance(found, Workload):
        return "request log"
    if isinstance(found, workload.Aggregates):
        if found.bucket_s <= _MINUTE_S:
            return "minute aggregates"
        return "hourly totals" if found.bucket_s <= _HOUR_S else "daily totals"
    return "metrics page"


def confidence(found: Found) -> tuple[Level, str]:
    """How far this kind of input can be trusted to size a fleet, and why."""
    kind = kind_of(found)
    if isinstance(found, Workload):
        if found.duration_s >= _DAY_S:
            return "high", "every request is known, over a day or more"
        why = "every request is known, but less than a day of them: the daily peak may lie outside"
        return ("medium" if found.duration_s >= _HOUR_S else "low"), why
    return _CONFIDENCE[kind]


_CONFIDENCE: Final[Mapping[str, tuple[Level, str]]] = {
    "minute aggregates": ("medium", "the peak minute is known; joint lengths, bursts within it and sessions are not"),
    "hourly totals": ("low", "the peak minute is a range; of lengths only the mean is known"),
    "daily totals": ("low", "the peak minute is a wide range; of lengths only the mean is known"),
    "metrics page": ("low", "totals and histograms; neither the peak minute nor joint lengths are known"),
}
