"""Which column means what: the names people use, and the questions to ask when they do not say."""

import difflib
import json
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
    "label": ("label", "task", "tier", "logtype", "route", "usecase", "requesttype", "priority"),
    "priority": ("priority", "requestpriority", "schedulingpriority"),
    "request_id": ("requestid", "id", "rid", "callid", "correlationid"),
}  # fmt: skip
"""Role -> names in order of preference, in lower case without separators and without a unit at the end."""

_WORDS: dict[str, tuple[str, ...]] = {
    "arrival": ("when", "at", "clock", "arrived", "received", "sent", "时间"),
    "input_tokens": ("input", "inputs", "prompt", "prompts", "context", "request", "question", "in"),
    "output_tokens": (
        "output", "outputs", "completion", "completions", "generated", "generation", "response", "answer", "reply",
        "out",
    ),
    "cached_tokens": ("cached", "cache", "cachehits", "cacheread"),
    "reasoning_tokens": ("reasoning", "thinking", "thoughts"),
    "ttft": ("firsttoken",),
    "e2e": ("responsetime", "elapsed", "took"),
    "status": ("code", "result", "outcome", "error"),
    "model": ("engine", "llm"),
    "tenant": ("account", "company", "group", "namespace", "owner"),
    "session": ("chat", "thread", "dialog"),
    "label": ("kind", "category", "tag"),
    "priority": ("urgency", "prio"),
}  # fmt: skip
"""Words that people use for a role and that are too loose to take a column by: they only help to ask."""

_PARTS: dict[str, tuple[str, ...]] = {
    "arrival": ("请求时间", "到达时间", "开始时间"),
    "input_tokens": ("输入", "提示"),
    "output_tokens": ("输出", "生成", "回答"),
}
"""The same in Chinese, which writes no spaces between words: parts of a name, the likeliest first."""

_UNIT_END = re.compile(r"_(?:s|sec|secs|seconds|ms|millis|milliseconds|us|ns|utc|iso)$")
_UNREAD = "\N{REPLACEMENT CHARACTER}"
_NEEDED = ("arrival", "input_tokens", "output_tokens")
_MUST_NOT_GUESS = ("input_tokens", "output_tokens", "cached_tokens")
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
"""A name that needs no quotes, in a scenario or in a shell."""


def plain(name: str) -> str:
    """A column name in lower case, without separators and without a unit at the end; letters of every script stay."""
    return re.sub(r"[\W_]", "", _UNIT_END.sub("", name.strip().lower()))


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
    found = {role: column for role, column in told.items() if role in ROLES and column in columns}
    taken = set(found.values())
    for role, names in NAMES.items():
        if role in told:
            continue
        # Words of a priority are names of tiers, so its column may be read as a label, too.
        free = taken - {found.get("label")} if role == "priority" else taken
        hits = [column for name in names for column in columns if plain(column) == name and column not in free]
        if role in _MUST_NOT_GUESS and len(hits) > 1 and len(set(hits)) == 1:
            problems.append(Problem(where, f"{len(hits)} columns are called {hits[0]!r}", "leave one"))
        elif role in _MUST_NOT_GUESS and len(hits) > 1:
            problems.append(
                Problem(
                    where,
                    f"{role} may be column {' or '.join(repr(hit) for hit in hits)}",
                    _mapped(role, hits[0]) + " or the other",
                )
            )
        if hits:
            found[role] = hits[0]
            taken.add(hits[0])
    meant = {*told, *(_role_meant(role) for role in told if role not in ROLES)}
    problems += [_missing(role, columns, where) for role in _NEEDED if role not in found and role not in meant]
    if problems:
        raise BadInput(problems)
    return found


def _told_problems(columns: Sequence[str], told: Mapping[str, str], where: str) -> list[Problem]:
    problems = []
    for role, column in told.items():
        if role not in ROLES:
            near = _role_meant(role)
            mend = (f"did you mean {near}? " if near else "") + f"roles: {', '.join(ROLES)}"
            problems.append(Problem(f"columns.{role}", "there is no such role", mend))
        if column not in columns:
            mend = nearest(column, list(columns)) or f"columns: {_list(columns)}"
            problems.append(Problem(f"columns.{role}", f"{where} has no column '{column}'", mend))
    return problems


def _role_meant(word: str) -> str | None:
    """The role that a word stands for: one of its names, else a name nearly spelled so."""
    names = {name: role for role in ROLES for name in (plain(role), *NAMES[role], *_WORDS.get(role, ()))}
    close = difflib.get_close_matches(plain(word), list(names), n=1, cutoff=0.75)
    return names[close[0]] if close else None


def _missing(role: str, columns: Sequence[str], where: str) -> Problem:
    if any(_UNREAD in column for column in columns):
        mend = "its names of columns hold bytes that are no UTF-8: save the log as UTF-8"
        return Problem(where, f"no column for {role}", mend)
    names = {plain(column): column for column in columns}
    spelled = [name for name in names if name.isascii()]
    close = [hit for name in NAMES[role] for hit in difflib.get_close_matches(name, spelled, n=1, cutoff=0.75)]
    close += [name for name in _WORDS[role] if name in names]
    close += [name for part in _PARTS.get(role, ()) for name in names if part in name]
    if not close:
        return Problem(where, f"no column for {role}", f"{_mapped(role, 'NAME')}, NAME one of: {_list(columns)}")
    hint = names[close[0]]
    return Problem(where, f"no column for {role}", f"is it '{hint}'? {_mapped(role, hint)}; columns: {_list(columns)}")


def _mapped(role: str, column: str) -> str:
    """How to map a role, in a form that every face of the program can put into its own words."""
    return f"say columns: {{{role}: {column if _BARE.fullmatch(column) else json.dumps(column, ensure_ascii=False)}}}"


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")
