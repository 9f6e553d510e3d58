"""Which column means what: the names people use, and the questions to ask when they do not say."""

import difflib
import re
from collections.abc import Mapping, Sequence

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.workload.formats.rows import ROLES
from tokenfleet.workload.spelling import nearest

NAMES: dict[str, tuple[str, ...]] = {
    "arrival": (
        "arrival", "arrivaltime", "arrivedat", "arrivaltimestamp", "starttime", "startedat", "start", "requesttime",
        "requeststarttime", "requesttimestamp", "requestcreatedat", "timestamp", "time", "ts", "datetime", "createdat",
        "created", "eventtime", "timegenerated", "date",
    ),
    "input_tokens": (
        "inputtokens", "prompttokens", "contexttokens", "requesttokens", "numprefilltokens", "prefilltokens",
        "inputlength", "promptlength", "inputlen", "promptlen", "inputtoks", "prompttoks", "numprompttokens",
        "numinputtokens", "inputtokencount", "prompttokencount", "tokensin", "tokensinput", "tokensprompt", "isl",
        "requnits", "usageinputtokens", "usageprompttokens", "genaiusageinputtokens",
    ),
    "output_tokens": (
        "outputtokens", "completiontokens", "generatedtokens", "responsetokens", "numdecodetokens", "decodetokens",
        "outputlength", "completionlength", "outputlen", "completionlen", "outputtoks", "completiontoks",
        "numoutputtokens", "numcompletiontokens", "outputtokencount", "completiontokencount", "tokensout",
        "tokensoutput", "tokenscompletion", "osl", "resunits", "usageoutputtokens", "usagecompletiontokens",
        "genaiusageoutputtokens", "generationtokens",
    ),
    "cached_tokens": (
        "cachedtokens", "cachedinputtokens", "inputcachedtokens", "cachereadtokens", "cachereadinputtokens",
        "cachedprompttokens", "promptcachereadtokens", "cachehittokens",
    ),
    "reasoning_tokens": ("reasoningtokens", "thinkingtokens", "thoughtstokens", "outputreasoningtokens"),
    "ttft": ("ttft", "timetofirsttoken", "firsttokenlatency"),
    "e2e": ("e2e", "e2elatency", "latency", "duration", "totaltime", "elapsedtime", "apitime", "requestduration"),
    "streamed": ("stream", "streamed", "streaming", "isstream", "isstreaming"),
    "status": ("status", "statuscode", "responsestatus", "responsecode", "httpstatus"),
    "finish": ("finishreason", "stopreason", "finish"),
    "model": ("model", "modelname", "modelid", "requestmodel", "deployment", "deploymentname"),
    "tenant": (
        "tenant", "tenantid", "client", "clientid", "customer", "customerid", "team", "teamid", "user", "userid",
        "organization", "organizationid", "org", "orgid", "project", "projectid", "apikey", "consumer",
    ),
    "session": ("session", "sessionid", "conversation", "conversationid", "chatid", "threadid"),
    "label": ("task", "tier", "logtype", "route", "usecase", "requesttype", "priority"),
    "request_id": ("requestid", "id", "rid", "callid", "correlationid"),
}  # fmt: skip
"""Role -> names in order of preference, in lower case without separators and without a unit at the end."""

_UNIT_END = re.compile(r"_(?:s|sec|secs|seconds|ms|millis|milliseconds|us|ns|utc|iso)$")
_NEEDED = ("arrival", "input_tokens", "output_tokens")
_MUST_NOT_GUESS = ("input_tokens", "output_tokens", "cached_tokens")


def plain(name: str) -> str:
    """A column name in lower case, without separators and without a unit at the end."""
    return re.sub(r"[^a-z0-9]", "", _UNIT_END.sub("", name.strip().lower()))


def map_columns(columns: Sequence[str], told: Mapping[str, str], *, where: str) -> dict[str, str]:
    """Find the column of every role.

    Args:
        columns: Names in the file.
        told: What a person mapped: role -> column. It comes first.
        where: The file, for errors.

    Returns:
        Role -> column, for the roles that were found.

    Raises:
        BadInput: an unknown role or column in ``told``, a needed role without a column, or two columns that may both
            hold a token count; all problems at once, each with the nearest name.
    """
    problems = _told_problems(columns, told, where)
    found = {role: column for role, column in told.items() if column in columns}
    taken = set(found.values())
    for role, names in NAMES.items():
        if role in told:
            continue
        hits = [column for name in names for column in columns if plain(column) == name and column not in taken]
        if role in _MUST_NOT_GUESS and len(hits) > 1:
            problems.append(
                Problem(
                    where,
                    f"{role} may be column {' or '.join(repr(hit) for hit in hits)}",
                    f"map {role} to one of them",
                )
            )
        if hits:
            found[role] = hits[0]
            taken.add(hits[0])
    problems += [_missing(role, columns, where) for role in _NEEDED if role not in found and role not in told]
    if problems:
        raise BadInput(problems)
    return found


def _told_problems(columns: Sequence[str], told: Mapping[str, str], where: str) -> list[Problem]:
    problems = []
    for role, column in told.items():
        if role not in ROLES:
            problems.append(
                Problem("columns", f"there is no role '{role}'", nearest(role, list(ROLES)) or _list(ROLES))
            )
        if column not in columns:
            mend = nearest(column, list(columns)) or _list(columns)
            problems.append(Problem(where, f"has no column '{column}' for {role}", mend))
    return problems


def _missing(role: str, columns: Sequence[str], where: str) -> Problem:
    names = {plain(column): column for column in columns}
    close = [hit for name in NAMES[role] for hit in difflib.get_close_matches(name, list(names), n=1, cutoff=0.75)]
    hint = f"is it '{names[close[0]]}'? " if close else ""
    return Problem(where, f"no column for {role}", f"{hint}map {role} to one of: {_list(columns)}")


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")
