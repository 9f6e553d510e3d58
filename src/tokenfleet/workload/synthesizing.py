"""Traffic of a known kind: sessions that grow, prompts that repeat, clients that bunch, a peak minute as asked."""

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.trace import Floats, Ints, PrefixTree, Trace
from tokenfleet.workload.arrivals import MINUTE_S, fit_into_minutes, minute_shape, peaked_counts
from tokenfleet.workload.clients import clients_of
from tokenfleet.workload.preset_files import Preset, preset
from tokenfleet.workload.sessions import Turns, enough_turns
from tokenfleet.workload.streams import stream

Longs = npt.NDArray[np.int64]

_LARGEST_COUNT = 50_000_000


def synthesize(
    name: str | Preset,
    *,
    peak_rate_per_s: float | None = None,
    mean_rate_per_s: float | None = None,
    duration_s: float = 3600.0,
    seed: int = 0,
) -> Trace:
    """Draw traffic of a preset.

    Args:
        name: A preset, or its name.
        peak_rate_per_s: Requests per second, averaged over the busiest whole minute.
        mean_rate_per_s: Requests per second over the whole trace; give this or the peak.
        duration_s: Length of the trace; its minutes carry a peak of the preset's height.
        seed: Same seed, same bytes.

    Returns:
        A trace with sessions, the prefix tree of all shared tokens, and tenants where the preset has them.

    Raises:
        BadInput: an unknown preset, both or no rate, or numbers out of range; all at once.
    """
    kind = preset(name) if isinstance(name, str) else name
    mean = _mean_rate(kind, peak_rate_per_s, mean_rate_per_s, duration_s, seed)
    total = round(mean * duration_s)
    if total < 1:
        raise BadInput.at("duration_s", "no request falls into so short a trace", "make it longer or the rate higher")
    ratio = kind.peak_to_mean_minute
    shape = minute_shape(stream(seed, "minute shape"), duration_s, ratio, "duration_s")
    turns, kept = enough_turns(kind, seed, shape, total, duration_s)
    start_s = turns.start_s[kept]
    load = np.bincount((start_s // MINUTE_S).astype(np.int64), minlength=len(shape)).astype(np.float64)
    counts = peaked_counts(load, total, mean * MINUTE_S * ratio, duration_s)
    order = np.argsort(start_s, kind="stable")
    arrival_s = fit_into_minutes(start_s[order], counts, duration_s)
    return _trace(turns, kept, arrival_s, order, clients_of(kind, seed, 1.0).names, kind)


def _mean_rate(kind: Preset, peak: float | None, mean: float | None, duration_s: float, seed: int) -> float:
    problems = []
    if (peak is None) == (mean is None):
        problems.append(Problem("rate", "needs the peak or the mean, and only one", "give peak_rate or mean_rate"))
    for name, rate in (("peak_rate", peak), ("mean_rate", mean)):
        if rate is not None and not 0 < rate < 1e6:
            problems.append(Problem(name, f"is {rate:g} requests/s", "give a rate above 0, below 1e6"))
    if not 0 < duration_s <= 400 * 86_400:
        problems.append(Problem("duration_s", f"is {duration_s:g} s", "give a time above 0 and up to 400 days"))
    if seed < 0:
        problems.append(Problem("seed", f"is {seed}", "give 0 or a positive whole number"))
    if problems:
        raise BadInput(problems)
    found = (
        mean if mean is not None else (peak or 0.0) / (kind.peak_to_mean_minute if duration_s >= 2 * MINUTE_S else 1)
    )
    if found * duration_s > _LARGEST_COUNT:
        raise BadInput.at("duration_s", "more than 50 million requests", "draw a shorter trace")
    return found


def _trace(turns: Turns, kept: Longs, arrival_s: Floats, order: Longs, names: tuple[str, ...], kind: Preset) -> Trace:
    """Put turns in order of arrival; ``kept`` are their places in ``turns``, by session and turn."""
    session, client = turns.session[kept], turns.client[kept]
    tree, node = _prefixes(turns, kept, kind)
    _, numbers = np.unique(session[order], return_inverse=True)
    return Trace(
        arrival_s=arrival_s,
        input_tokens=turns.input_tokens[kept][order].astype(np.int32),
        output_tokens=turns.output_tokens[kept][order].astype(np.int32),
        prefix_node=node[order] if len(tree.parent) else None,
        prefixes=tree if len(tree.parent) else None,
        session=numbers.astype(np.int32),
        tenant=client[order].astype(np.int32) if names else None,
        tenants=names,
    )


def _prefixes(turns: Turns, kept: Longs, kind: Preset) -> tuple[PrefixTree, Ints]:
    """System prompts, then first passages, then one node for each turn that another follows.

    A turn's node ends where its answer ends, so the next prompt continues it; the last turn of a session names the
    node before it, since nobody repeats its own part.
    """
    prompts = len(kind.system_prompt_tokens)
    pairs = turns.prompt[kept] * (kind.passages.count if kind.passages else 1) + np.maximum(turns.passage[kept], 0)
    has_passage = turns.passage[kept] >= 0
    used, passage_node = np.unique(pairs[has_passage], return_inverse=True)
    base = turns.prompt[kept].copy()
    base[has_passage] = prompts + passage_node
    session, total = turns.session[kept], (turns.input_tokens + turns.output_tokens)[kept]
    same = session[1:] == session[:-1]
    followed = np.append(same, False)
    follows = np.append(False, same)
    own = np.full(len(kept), -1, dtype=np.int64)
    own[followed] = prompts + len(used) + np.arange(int(followed.sum()))
    before = np.where(follows, np.concatenate(([-1], own[:-1])), base)
    passage_tokens = kind.passages.tokens if kind.passages else 0
    depth_of_base = np.where(turns.prompt[kept] >= 0, _prompt_tokens(kind)[turns.prompt[kept]], 0)
    depth_of_base = depth_of_base + has_passage * passage_tokens
    depth_before = np.where(follows, np.concatenate(([0], total[:-1])), depth_of_base)
    parent = np.concatenate(
        (np.full(prompts, -1), used // (kind.passages.count if kind.passages else 1), before[followed])
    )
    tokens = np.concatenate(
        (_prompt_tokens(kind)[:prompts], np.full(len(used), passage_tokens), (total - depth_before)[followed])
    )
    tree = PrefixTree(parent=parent.astype(np.int32), token_count=tokens.astype(np.int32))
    return tree, np.where(followed, own, before).astype(np.int32)


def _prompt_tokens(kind: Preset) -> Longs:
    """Tokens of each system prompt, with a last 0 that index -1 reads."""
    return np.array([*kind.system_prompt_tokens, 0], dtype=np.int64)
