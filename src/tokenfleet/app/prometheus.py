"""Asks a Prometheus server, over HTTP and reading only; what the answers mean is for the workload room."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final

from tokenfleet import workload
from tokenfleet.domain.errors import BadInput, TokenfleetError

Opener = Callable[[str, float], bytes]
"""Gets a URL within so many seconds and returns the body."""

_MOST_BYTES: Final = 256 << 20
"""No answer that is asked for here is longer."""


class NoAnswer(TokenfleetError):
    """A live system that did not answer, or not with what was asked for."""

    exit_code = 3


def get(url: str, timeout_s: float) -> bytes:
    """The body behind a URL.

    Raises:
        NoAnswer: no connection, a time-out, or a status other than success.
    """
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            body: bytes = answer.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(500).decode("utf-8", errors="replace")
        raise NoAnswer(f"{_bare(url)}: answered {error.code}: {_reason(said) or error.reason}") from error
    except OSError as error:
        raise NoAnswer(f"{_bare(url)}: did not answer: {getattr(error, 'reason', error)}") from error
    if len(body) > _MOST_BYTES:
        raise NoAnswer(f"{_bare(url)}: answered with more than {_MOST_BYTES >> 20} MiB; ask for a shorter span")
    return body


def traffic(
    server: str,
    engine: str,
    *,
    start_s: float,
    end_s: float,
    step_s: float = 60.0,
    labels: str = "",
    timeout_s: float = 30.0,
    opener: Opener = get,
) -> workload.Aggregates:
    """Requests and tokens per step, from the counters that a Prometheus server keeps of an engine.

    Args:
        server: Such as ``http://prometheus:9090``, a path before ``/api`` included.
        engine: Whose metrics to ask for, such as ``vLLM``.
        start_s: Seconds since 1970.
        end_s: The same.
        step_s: Seconds between two points.
        labels: Further label matchers, such as ``namespace="prod"``.
        timeout_s: How long to wait for each answer.
        opener: Gets a URL; another one brings headers or certificates of its own.

    Raises:
        BadInput: an address that is none, an unknown engine, a span that is none, or no counters of it on the server.
        NoAnswer: the server did not answer, or not with JSON.
    """
    base = _checked(server)
    queries = workload.prometheus_queries(engine, start_s=start_s, end_s=end_s, step_s=step_s, labels=labels)
    answers = [_ask(f"{base}/api/v1/query_range", query.parameters, timeout_s, opener) for query in queries]
    return workload.aggregates_of_answers(answers, where=server)


def scrape(
    server: str, prefix: str, *, at_s: float, labels: str = "", timeout_s: float = 30.0, opener: Opener = get
) -> workload.MetricsSnapshot:
    """All metrics of one engine as they stood at one time; two of them tell what happened in between.

    Args:
        server: As in :func:`traffic`.
        prefix: How the names of the engine's metrics begin, such as ``vllm:``.
        at_s: Seconds since 1970.
        labels: Further label matchers.
        timeout_s: How long to wait.
        opener: Gets a URL.

    Raises:
        BadInput: an address that is none, or no such metrics on the server.
        NoAnswer: the server did not answer, or not with JSON.
    """
    matchers = ", ".join([f'__name__=~"{prefix}.*"', *([labels] if labels else [])])
    told = {"query": f"{{{matchers}}}", "time": f"{at_s:.10g}"}
    answer = _ask(f"{_checked(server)}/api/v1/query", told, timeout_s, opener)
    return workload.snapshot_of_answer(answer, where=server)


def _checked(server: str) -> str:
    parts = urllib.parse.urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput.at("server", f"'{server}' is no address", "write it as http://prometheus:9090")
    return server.rstrip("/")


def _ask(address: str, parameters: Mapping[str, str], timeout_s: float, opener: Opener) -> Any:  # noqa: ANN401 - JSON
    body = opener(f"{address}?{urllib.parse.urlencode(parameters)}", timeout_s)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NoAnswer(f"{address}: the answer is no JSON; is this a Prometheus server?") from error


def _bare(url: str) -> str:
    """The address without its question, and without a password."""
    parts = urllib.parse.urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def _reason(said: str) -> str | None:
    try:
        found = json.loads(said)
    except ValueError:
        return None
    return str(found["error"]) if isinstance(found, dict) and "error" in found else None
