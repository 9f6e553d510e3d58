"""Sessions: requests that follow each other, each repeating what was said before."""

from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Floats
from tokenfleet.workload.arrivals import MINUTE_S, renewal_cv_for
from tokenfleet.workload.clients import Clients, client_starts, clients_of, own_lengths
from tokenfleet.workload.preset_files import Preset
from tokenfleet.workload.streams import stream

Longs = npt.NDArray[np.int64]
_Number = TypeVar("_Number", np.int64, np.float64)

_WARM_UP_S = 3600.0
"""Sessions start up to this long before second 0, so that the trace opens with conversations under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Requests before they become a trace, by session and turn."""

    session: Longs
    start_s: Floats
    client: Longs
    prompt: Longs
    """Which system prompt, -1 for none."""
    passage: Longs
    """Which first passage, -1 for none."""
    input_tokens: Longs
    output_tokens: Longs


def enough_turns(kind: Preset, seed: int, shape: Floats, total: int, duration_s: float) -> tuple[Turns, Longs]:
    """Draw sessions until ``total`` requests fall into the trace, and leave whole sessions out at random beyond it.

    Returns:
        All turns, and the places of those kept.
    """
    clients = clients_of(kind, seed, renewal_cv_for(kind.interarrival_cv, shape))
    pilot = np.maximum(np.rint(kind.turns.draw(stream(seed, "turns", "pilot"), 4096)), 1)
    warm_s = 0.0
    if pilot.max() > 1:
        pause = float(np.exp(np.interp(0.0, kind.turn_gap_s.z, kind.turn_gap_s.log_value)))
        warm_s = min(_WARM_UP_S, float(np.ceil(4 * pause * pilot.mean() / MINUTE_S) * MINUTE_S) + MINUTE_S)
    sessions = int(total / float(pilot.mean()) * (1.1 + warm_s / duration_s)) + 8
    while True:
        turns = _turns(kind, clients, seed, sessions, shape, warm_s, duration_s)
        inside = np.flatnonzero((turns.start_s >= 0) & (turns.start_s < duration_s))
        if len(inside) >= total:
            return turns, _thinned(turns, inside, total, seed)
        sessions = int(sessions * max(1.1, 1.1 * total / max(len(inside), 1))) + 8


def _turns(
    kind: Preset, clients: Clients, seed: int, sessions: int, shape: Floats, warm_s: float, duration_s: float
) -> Turns:
    client = np.repeat(np.arange(len(clients.share)), _dealt(clients.share, sessions))
    turn_counts = np.maximum(np.rint(kind.turns.draw(stream(seed, "turns"), sessions)), 1).astype(np.int64)
    session = np.repeat(np.arange(sessions), turn_counts)
    first = np.concatenate(([0], np.cumsum(turn_counts)[:-1]))
    opens = np.zeros(len(session), dtype=bool)
    opens[first] = True
    prompt, passage, base = _openings(kind, seed, sessions)
    output = _lengths(kind, clients, client[session], seed, "output")
    opening = _lengths(kind, clients, client, seed, "input")
    # An opening longer than the context is cut to it, as a service would.
    opening = np.clip(opening, 1, np.maximum(kind.longest_context_tokens - base - output[first], 1))
    new = kind.next_input_tokens.draw_tokens(stream(seed, "next input tokens"), len(session))
    new[first] = opening
    whole = _running(new + output, first, session) + base[session]
    too_long = (whole > kind.longest_context_tokens) & ~opens
    fits = _running(too_long.astype(np.int64), first, session) == 0
    pause = kind.turn_gap_s.draw(stream(seed, "turn gaps"), len(session)) + output * kind.reply_s_per_token
    since_start = _running(pause, first, session) - pause
    start_s = _starts(clients, client, seed, shape, warm_s, duration_s)[session] + since_start
    keep = np.flatnonzero(fits)
    return Turns(
        session=session[keep],
        start_s=start_s[keep],
        client=client[session][keep],
        prompt=prompt[session][keep],
        passage=passage[session][keep],
        input_tokens=(whole - output)[keep],
        output_tokens=output[keep],
    )


def _starts(clients: Clients, client: Longs, seed: int, shape: Floats, warm_s: float, duration_s: float) -> Floats:
    load = np.concatenate((np.full(int(warm_s // MINUTE_S), shape[0]), shape))
    upto = np.concatenate(([0.0], np.cumsum(load)))
    upto /= upto[-1]
    starts = np.empty(len(client))
    for index in range(len(clients.share)):
        mine = np.flatnonzero(client == index)
        if len(mine):
            starts[mine] = client_starts(clients, index, seed, len(mine), -warm_s, duration_s, upto)
    return starts


def _openings(kind: Preset, seed: int, sessions: int) -> tuple[Longs, Longs, Longs]:
    """System prompt and first passage of each session, and the tokens of both."""
    prompt = np.full(sessions, -1, dtype=np.int64)
    base = np.zeros(sessions, dtype=np.int64)
    if kind.system_prompt_tokens:
        upto = np.cumsum(kind.system_prompt_shares) / np.sum(kind.system_prompt_shares)
        prompt = np.searchsorted(upto, stream(seed, "system prompts").random(sessions), side="right")
        base = np.array(kind.system_prompt_tokens, dtype=np.int64)[prompt]
    passage = np.full(sessions, -1, dtype=np.int64)
    if kind.passages is not None:
        weight = np.arange(1, kind.passages.count + 1) ** -kind.passages.zipf
        upto = np.cumsum(weight) / weight.sum()
        passage = np.searchsorted(upto, stream(seed, "passages").random(sessions), side="right")
        base = base + kind.passages.tokens
    return prompt, passage, base


def _lengths(kind: Preset, clients: Clients, client: Longs, seed: int, side: Literal["input", "output"]) -> Longs:
    random = stream(seed, f"{side} tokens")
    median = clients.input_median if side == "input" else clients.output_median
    ratio = clients.input_ratio if side == "input" else clients.output_ratio
    if np.isnan(median[0]):
        table = kind.first_input_tokens if side == "input" else kind.output_tokens
        return table.draw_tokens(random, len(client))
    return own_lengths(median[client], ratio[client], random)


def _dealt(share: Floats, count: int) -> Longs:
    """``count`` dealt out by share, to the last one."""
    upto = np.rint(np.concatenate(([0.0], np.cumsum(share))) * count)
    return np.asarray(np.diff(upto), dtype=np.int64)


def _running(values: npt.NDArray[_Number], first: Longs, session: Longs) -> npt.NDArray[_Number]:
    """Sum of ``values`` within each session, up to and with each turn."""
    upto = np.cumsum(values, dtype=values.dtype)
    return np.asarray(upto - (upto[first] - values[first])[session], dtype=values.dtype)


def _thinned(turns: Turns, inside: Longs, total: int, seed: int) -> Longs:
    session = turns.session[inside]
    numbers, position, sizes = np.unique(session, return_inverse=True, return_counts=True)
    order = stream(seed, "kept sessions").permutation(len(numbers))
    upto = np.cumsum(sizes[order])
    last = int(np.searchsorted(upto, total))
    kept = np.zeros(len(numbers), dtype=bool)
    kept[order[: last + 1]] = True
    places = inside[kept[position]]
    surplus = int(upto[last]) - total
    # The session that would be one too many loses its latest turns.
    if surplus:
        cut = np.flatnonzero(turns.session[places] == numbers[order[last]])[-surplus:]
        places = np.delete(places, cut)
    return places
