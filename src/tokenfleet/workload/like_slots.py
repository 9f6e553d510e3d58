"""Places for requests of a trace drawn from a profile: who, in which session, roughly when and how long."""

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Floats, Ints, LengthCounts, SessionShape, Workload
from tokenfleet.workload.joint import BINS, bins_of, draw_cells, fixed_edges
from tokenfleet.workload.like_parties import Party, unit_starts
from tokenfleet.workload.session_shape import PAUSE_STEPS_PER_OCTAVE, STEP_BASE, STEP_ZERO
from tokenfleet.workload.streams import stream

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Slots:
    """Requests in order of time."""

    session: Longs
    """-1 for none."""
    tenant: Ints
    """Place in the names of the profile's tenants; -1 when it has none."""
    party: Longs
    time_s: Floats
    """Wanted; only the order counts."""
    input_tokens: Ints
    output_tokens: Ints


def slots_of(workload: Workload, parties: list[Party], duration_s: float, seed: int, attempt: int) -> Slots:
    """Draw places for all requests of all parties; attempts differ in which session starts when."""
    names = {name: place for place, name in enumerate(workload.tenant_request_counts)}
    found: list[Slots] = []
    sessions = 0
    for number, party in enumerate(parties):
        slots = _slots(workload, party, number, duration_s, (seed, attempt), sessions)
        places = np.array([names[name] for name in party.names] or [-1])
        found.append(_with_tenant(slots, party, places, seed, number))
        sessions = max(sessions, int(slots.session.max(initial=-1)) + 1)
    joined = [np.concatenate([getattr(slots, name) for slots in found]) for name in Slots.__slots__]
    order = np.argsort(joined[Slots.__slots__.index("time_s")], kind="stable")
    return Slots(*(column[order] for column in joined))


def _with_tenant(slots: Slots, party: Party, places: Longs, seed: int, number: int) -> Slots:
    """A session has one tenant."""
    if len(places) == 1:
        tenant = np.full(len(slots.session), places[0])
    else:
        unit = np.where(slots.session >= 0, slots.session, -1 - np.arange(len(slots.session)))
        _, unit = np.unique(unit, return_inverse=True)
        drawn = stream(seed, "tenants", number).random(int(unit.max()) + 1)
        tenant = places[np.minimum(np.searchsorted(np.cumsum(party.shares), drawn, side="right"), len(places) - 1)][
            unit
        ]
    return Slots(
        slots.session, tenant.astype(np.int32), slots.party, slots.time_s, slots.input_tokens, slots.output_tokens
    )


def _slots(
    workload: Workload, party: Party, number: int, duration_s: float, seeds: tuple[int, int], first: int
) -> Slots:
    shape, seed = workload.sessions, seeds[0]
    inside = 0 if shape is None else round(party.count * shape.request_count / workload.request_count)
    alone = party.count - inside
    lone_s = unit_starts(party, alone, duration_s, seed, f"alone {number}")
    session, time_s, wanted = np.full(alone, -1, dtype=np.int64), lone_s, stream(seed, "alone", number).random(alone)
    if shape is not None and len(shape.alone_input_bins.values):
        wanted = _within(_spread(shape.alone_input_bins, alone, seed, f"alone input {number}"), wanted)
    if shape is not None and inside:
        turns = _turn_counts(shape, inside, seed, number)
        mine, start_s = _session_times(shape, party, turns, duration_s, seeds, number)
        session = np.concatenate((session, mine + first))
        time_s = np.concatenate((time_s, start_s))
        wanted = np.concatenate((wanted, _session_inputs(workload, shape, turns, seed, number)))
    input_tokens, output_tokens = _ranked(workload, party, wanted, seed, number)
    if shape is not None and inside:
        output_tokens = _answers(shape, session, wanted, input_tokens, output_tokens, stream(seed, "answers", number))
    tenant = np.full(len(session), -1, dtype=np.int32)
    return Slots(session, tenant, np.full(len(session), number), time_s, input_tokens, output_tokens)


def _ranked(workload: Workload, party: Party, wanted: Floats, seed: int, number: int) -> tuple[Ints, Ints]:
    """The party's lengths, as its joint table has them, dealt to its places in the order of what they want."""
    input_tokens, output_tokens = draw_cells(workload, party.cells, seed, len(wanted), str(number))
    ties = stream(seed, "pairs", number)
    by_input = np.argsort(input_tokens + ties.random(len(wanted)), kind="stable")
    place = np.argsort(wanted + 1e-6 * ties.random(len(wanted)), kind="stable")
    given, made = np.empty_like(input_tokens), np.empty_like(output_tokens)
    given[place], made[place] = input_tokens[by_input], output_tokens[by_input]
    return given, made


def _answers(
    shape: SessionShape, session: Longs, wanted: Floats, given: Ints, made: Ints, random: np.random.Generator
) -> Ints:
    """Answers of prompts of nearly one length change places, so that long ones come before prompts that grow much."""
    follows = np.flatnonzero((session[1:] == session[:-1]) & (session[1:] >= 0))
    growth = np.zeros(len(session))
    growth[follows] = (wanted[1:] - wanted[:-1])[follows]
    bins = bins_of(given.astype(np.int64))
    ranks = np.empty(len(follows))
    ranks[np.argsort(growth[follows] + random.random(len(follows)))] = (np.arange(len(follows)) + 0.5) / len(follows)
    key = random.standard_normal(len(session))
    tie = shape.growth_output_correlation
    key[follows] = tie * _normal(ranks) + np.sqrt(max(1 - tie**2, 0)) * key[follows]
    out = np.empty_like(made)
    out[np.lexsort((key, bins))] = made[np.lexsort((made, bins))]
    return out


def _normal(share: Floats) -> Floats:
    """About the normal score of a share: enough to order by."""
    return np.asarray(np.log(share / (1 - share)) / 1.702, dtype=np.float64)


def _spread(counts: LengthCounts, size: int, seed: int, name: str) -> Longs:
    """``size`` draws of counted values: each value gets its share of them, in random order."""
    random = stream(seed, name)
    place = (random.permutation(size) + random.random(size)) / max(size, 1) * int(counts.counts.sum())
    index = np.searchsorted(np.cumsum(counts.counts), place, side="right")
    return counts.values[np.minimum(index, len(counts.values) - 1)]


def _within(bins: Longs, share: Floats) -> Floats:
    """A length inside each bin."""
    edges = fixed_edges()
    return np.asarray(edges[bins] + share * (edges[bins + 1] - edges[bins] - 1), dtype=np.float64)


def _turn_counts(shape: SessionShape, requests: int, seed: int, number: int) -> Longs:
    """Turns of each session, as many sessions as make exactly so many requests."""
    mean = float(np.dot(shape.turns.values, shape.turns.counts) / shape.turns.counts.sum())
    sessions = max(1, round(requests / mean))
    turns = _spread(shape.turns, sessions, seed, f"turns {number}").copy()
    while (off := requests - int(turns.sum())) != 0:
        if off > 0:
            turns = np.append(turns, min(off, max(round(mean), 1)))
            continue
        # The last sessions lose what is one too many; those that lose all are none.
        upto = np.cumsum(turns)
        turns = np.minimum(turns, np.maximum(requests - (upto - turns), 0))
        turns = turns[turns > 0]
    return turns


def _session_times(
    shape: SessionShape, party: Party, turns: Longs, duration_s: float, seeds: tuple[int, int], number: int
) -> tuple[Longs, Floats]:
    """Session and time of each turn; a session longer than the trace goes on at its start, as another one."""
    seed, attempt = seeds
    starts = unit_starts(party, len(turns), duration_s, seed, f"sessions {number}")
    starts = starts[stream(seed, "session order", number, attempt).permutation(len(starts))]
    first = np.cumsum(turns) - turns
    session = np.repeat(np.arange(len(turns)), turns)
    bins = (
        _spread(shape.pause_bins, len(session), seed, f"pauses {number}")
        if len(shape.pause_bins.values)
        else session * 0
    )
    share = stream(seed, "pauses within", number).random(len(session))
    pause_s = 2.0 ** ((bins + share) / PAUSE_STEPS_PER_OCTAVE) / 1000
    pause_s[first] = 0.0
    upto = np.cumsum(pause_s)
    since_s = upto - upto[first][session]
    span_s = since_s[first + turns - 1]
    fits = span_s < duration_s
    # What starts late must end in time: the clock of its start is shortened by its length.
    begin_s = np.where(fits, starts * (1 - span_s / max(duration_s, 1e-9)), starts)
    time_s = begin_s[session] + since_s
    lap = np.floor(time_s / duration_s).astype(np.int64)
    _, renamed = np.unique(session * (int(lap.max(initial=0)) + 1) + lap, return_inverse=True)
    return renamed.astype(np.int64), time_s - lap * duration_s


def _session_inputs(workload: Workload, shape: SessionShape, turns: Longs, seed: int, number: int) -> Floats:
    """Input tokens that turns want: an opening, then growth as it was seen at that length."""
    random = stream(seed, "growth", number)
    edges = fixed_edges()
    level = _within(
        _spread(shape.opening_input_bins, len(turns), seed, f"openings {number}"), random.random(len(turns))
    )
    first = np.cumsum(turns) - turns
    wanted = np.empty(int(turns.sum()))
    wanted[first] = level
    if len(shape.steps.values):
        upto, begin, end = _rows(shape.steps)
        for turn in range(1, int(turns.max())):
            going = np.flatnonzero(turns > turn)
            row = bins_of(np.maximum(level[going], 0).astype(np.int64))
            place = begin[row] + random.random(len(going)) * (end[row] - begin[row])
            code = shape.steps.values[np.searchsorted(upto, place, side="right")] % STEP_BASE - STEP_ZERO
            size = np.abs(code)
            step = np.sign(code) * (edges[size] + random.random(len(going)) * (edges[size + 1] - edges[size] - 1))
            level[going] = np.clip(level[going] + step, 1, workload.input_tokens.max)
            wanted[first[going] + turn] = level[going]
    return wanted


def _rows(steps: LengthCounts) -> tuple[Floats, Floats, Floats]:
    """Running counts of steps, and where the steps from each bin of length begin and end in them.

    A bin from which no step was seen takes those of the nearest one.
    """
    upto = np.cumsum(steps.counts).astype(np.float64)
    row = steps.values // STEP_BASE
    known = np.unique(row)
    nearest = known[np.abs(known[None, :] - np.arange(BINS)[:, None]).argmin(axis=1)]
    padded = np.concatenate(([0.0], upto))
    return upto, padded[np.searchsorted(row, nearest)], padded[np.searchsorted(row, nearest, side="right")]
