"""Traffic drawn from published client profiles: how much each client sends over time, how it bunches, its lengths.

The layout is that of ServeGen (Apache-2.0, arXiv 2505.09999): in one folder ``chunk-N-trace.csv``, a line per window
``start, rate, variation of gaps, pattern, shape, scale`` without a header, and ``chunk-N-dataset.json``, per window the
share of each length.
"""

import ast
import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Floats, Observed, Quality, Trace
from tokenfleet.workload.arrivals import gamma_gaps, weibull_gaps
from tokenfleet.workload.checks import look
from tokenfleet.workload.streams import stream

_FIELDS = ("input_tokens", "output_tokens")
_REASONING = "reason_ratio"
_MEDIA = ("text_tokens", "image_tokens", "audio_tokens", "video_tokens")
"""What the input of multimodal clients is made of; their files have no field for all of it."""
_MOST_REQUESTS = 200_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    start_s: float
    rate_per_s: float
    weibull: bool
    shape: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Client:
    name: str
    windows: tuple[_Window, ...]
    starts_s: Floats
    """Start of each window of lengths."""
    lengths: tuple[Mapping[str, tuple[Floats, Floats]], ...]
    """Field -> values and cumulative shares, per window."""


def draw_clients(
    folder: str | Path,
    *,
    start_s: float = 0.0,
    duration_s: float = 86_400.0,
    rate_factor: float = 1.0,
    seed: int = 0,
) -> tuple[Trace, Quality]:
    """Draw the requests of all clients of a folder.

    Kept: each client's rate in every window, its pattern and shape of gaps, its lengths in every window. The files do
    not tell how a request's input and output go together: they are drawn apart, and so are text, images, audio and
    video of multimodal clients, whose tokens together are the input. Clients without lengths are left out.

    Args:
        folder: Holds ``chunk-N-trace.csv`` and ``chunk-N-dataset.json``.
        start_s: Where in the profiles to begin.
        duration_s: For how long.
        rate_factor: Requests as a multiple of the published ones.
        seed: Same seed, same bytes; each client has a stream of its own.

    Raises:
        BadInput: no such files, files that are none, numbers out of range, or no request in so short a time.
    """
    clients, silent = _read(Path(folder))
    _check(clients, start_s, duration_s, rate_factor, seed)
    columns = [
        _drawn(client, place, start_s, start_s + duration_s, rate_factor, seed) for place, client in enumerate(clients)
    ]
    counts = [len(column["arrival_s"]) for column in columns]
    if not sum(counts):
        raise BadInput.at("duration_s", "no request falls into so short a time", "make it longer or the rate higher")
    joined = {name: np.concatenate([column[name] for column in columns]) for name in columns[0]}
    tenant = np.repeat(np.arange(len(clients), dtype=np.int32), counts)
    order = np.argsort(joined["arrival_s"], kind="stable")
    reasoning = joined["reasoning_tokens"][order]
    trace = Trace(
        arrival_s=joined["arrival_s"][order] - joined["arrival_s"][order[0]],
        input_tokens=joined["input_tokens"][order].astype(np.int32),
        output_tokens=joined["output_tokens"][order].astype(np.int32),
        tenant=tenant[order],
        tenants=tuple(client.name for client in clients),
        observed=Observed(reasoning_tokens=reasoning.astype(np.int32)) if (reasoning >= 0).any() else None,
    )
    warnings = [f"{silent} clients have rates and no lengths: left out"] if silent else []
    quality = Quality(
        rows_read=trace.request_count,
        rows_kept=trace.request_count,
        rows_dropped={},
        detected={"format": "ServeGen client profiles, drawn", "clients": str(len(clients)), "seed": str(seed)},
        warnings=(*warnings, "input and output are drawn apart: the profiles do not join them", *look(trace)),
    )
    return trace, quality


def _drawn(
    client: _Client, place: int, start_s: float, end_s: float, rate_factor: float, seed: int
) -> dict[str, Floats]:
    arrival_s = _arrivals(client, place, start_s, end_s, rate_factor, seed)
    window = np.maximum(np.searchsorted(client.starts_s, arrival_s, side="right") - 1, 0)
    columns = {"arrival_s": arrival_s}
    for field in (*_FIELDS, _REASONING, *_MEDIA):
        share = stream(seed, f"client {field}", place).random(len(arrival_s))
        values = np.full(len(arrival_s), np.nan)
        for index in np.unique(window).tolist():
            if field in client.lengths[index]:
                mine = window == index
                lengths, upto = client.lengths[index][field]
                values[mine] = lengths[np.searchsorted(upto, share[mine], side="right").clip(max=len(lengths) - 1)]
        columns[field] = values
    media = np.stack([columns.pop(field) for field in _MEDIA])
    made_of = np.where(np.isnan(media[0]), np.nan, np.nansum(media, axis=0))
    columns["input_tokens"] = np.where(np.isnan(columns["input_tokens"]), made_of, columns["input_tokens"])
    for field in _FIELDS:
        columns[field] = np.maximum(columns[field], 1)
    ratio = columns.pop(_REASONING)
    columns["reasoning_tokens"] = np.where(np.isnan(ratio), -1.0, np.rint(ratio * columns["output_tokens"]))
    return columns


def _arrivals(client: _Client, place: int, start_s: float, end_s: float, rate_factor: float, seed: int) -> Floats:
    """One renewal process through all windows: what is left of a gap at the end of one carries over, in its share."""
    random = stream(seed, "client gaps", place)
    ends = [*(window.start_s for window in client.windows[1:]), client.windows[-1].start_s + _width(client)]
    left, pieces = -1.0, []
    for window, end in zip(client.windows, ends, strict=True):
        begin, until = max(window.start_s, start_s), min(end, end_s)
        expected = window.rate_per_s * rate_factor * (until - begin)
        if until <= begin or expected <= 0:
            continue
        place_in = _until(random, window, expected, left)
        left = place_in[-1] - expected
        pieces.append(begin + place_in[:-1] / expected * (until - begin))
    return np.concatenate(pieces) if pieces else np.zeros(0)


def _until(random: np.random.Generator, window: _Window, expected: float, left: float) -> Floats:
    """Places of arrivals, in gaps of mean 1, up to the first at or beyond ``expected``."""
    # Before the first window a gap is under way: a random part of it is left.
    at = [left if left >= 0 else float(_gaps(random, window, 1)[0] * random.random())]
    pieces = [np.array(at)]
    while pieces[-1][-1] < expected:
        ahead = int((expected - pieces[-1][-1]) * 1.1) + 16
        pieces.append(pieces[-1][-1] + np.cumsum(_gaps(random, window, ahead)))
    places = np.concatenate(pieces)
    return places[: int(np.searchsorted(places, expected)) + 1]


def _gaps(random: np.random.Generator, window: _Window, count: int) -> Floats:
    if window.weibull:
        return weibull_gaps(random, count, window.shape)
    return gamma_gaps(random, count, window.shape**-0.5)


def _width(client: _Client) -> float:
    """Length of the last window: that of the one before."""
    return client.windows[-1].start_s - client.windows[-2].start_s if len(client.windows) > 1 else 600.0


def _read(folder: Path) -> tuple[list[_Client], int]:
    if not folder.is_dir():
        raise BadInput.at(str(folder), "there is no such folder", "name the folder that holds chunk-1-trace.csv")
    found = sorted(folder.glob("chunk-*-trace.csv"), key=lambda path: (len(path.name), path.name))
    if not found:
        raise BadInput.at(str(folder), "holds no client profiles", "name the folder that holds chunk-1-trace.csv")
    clients, problems, silent = [], [], 0
    for path in found:
        try:
            client = _client(path, path.with_name(path.name.replace("-trace.csv", "-dataset.json")))
        except (ValueError, OSError, RecursionError, SyntaxError, MemoryError) as error:
            problems.append(Problem(str(path), f"cannot be read: {error}", "copy the pair of files again"))
            continue
        silent += not client.lengths
        clients += [client] if client.lengths else []
    if problems:
        raise BadInput(problems)
    return clients, silent


def _client(trace: Path, dataset: Path) -> _Client:
    windows = [_window(line) for line in trace.read_text().splitlines() if line.strip()]
    spans = sorted((float(start), fields) for start, fields in json.loads(dataset.read_text()).items())
    known = [(start, read) for start, fields in spans if _has_lengths(read := _lengths(fields))]
    if not windows or any(not later.start_s > early.start_s for early, later in itertools.pairwise(windows)):
        raise ValueError("windows are missing or out of order")
    return _Client(
        name="-".join(trace.name.split("-")[:2]),
        windows=tuple(windows),
        starts_s=np.array([start for start, _ in known]),
        lengths=tuple(read for _, read in known),
    )


def _has_lengths(read: Mapping[str, object]) -> bool:
    return "output_tokens" in read and ("input_tokens" in read or "text_tokens" in read)


def _window(line: str) -> _Window:
    start, rate, _, pattern, shape, _ = line.split(",")
    if not pattern:
        return _Window(start_s=float(start), rate_per_s=0.0, weibull=False, shape=1.0)
    if pattern not in ("Gamma", "Weibull"):
        raise ValueError(f"there is no pattern '{pattern}'")
    if not (0 <= float(rate) < 1e7 and 0 < float(shape) < 1e6):
        raise ValueError(f"rate {rate} or shape {shape} is out of range")
    return _Window(start_s=float(start), rate_per_s=float(rate), weibull=pattern == "Weibull", shape=float(shape))


def _lengths(fields: Mapping[str, object]) -> dict[str, tuple[Floats, Floats]]:
    """Values and cumulative shares of each field; the shares are written as text that looks like a Python dict."""
    read = {}
    for field in (*_FIELDS, _REASONING, *_MEDIA):
        shares = ast.literal_eval(str(fields.get(field, "{}")))
        if not isinstance(shares, dict):
            raise ValueError(f"{field} is no table of shares")  # noqa: TRY004 - a broken file, not a wrong type
        values = np.array([float(value) for value in shares])
        weight = np.array([float(weight) for weight in shares.values()])
        if len(values) and weight.sum() > 0:
            order = np.argsort(values)
            read[field] = values[order], np.cumsum(weight[order]) / weight.sum()
    return read


def _check(clients: list[_Client], start_s: float, duration_s: float, rate_factor: float, seed: int) -> None:
    problems = []
    if not clients:
        problems.append(Problem("folder", "no client has input_tokens and output_tokens", "copy the dataset files too"))
    if not 0 < rate_factor <= 1e4:
        problems.append(Problem("rate_factor", f"is {rate_factor:g}", "give a factor above 0"))
    if not (start_s >= 0 and 0 < duration_s <= 400 * 86_400):
        problems.append(Problem("duration_s", f"is {duration_s:g} s from {start_s:g} s", "give up to 400 days"))
    if seed < 0:
        problems.append(Problem("seed", f"is {seed}", "give 0 or a positive whole number"))
    most = sum(max(window.rate_per_s for window in client.windows) for client in clients) * rate_factor * duration_s
    if most > _MOST_REQUESTS:
        problems.append(
            Problem("rate_factor", f"gives up to {most:,.0f} requests", "make it lower or the time shorter")
        )
    if problems:
        raise BadInput(problems)
