"""Replays that were run before, kept on disk: a plan with one number changed replays only what the number changes.

A replay is a pure function of the kernel's sources, the trace, the fleet, the peak window and the telemetry interval.
The name of a kept record is a digest of all of these, so prices, promises, spare replicas, dates and error bands can
change without a replay, and so can a context limit that no request meets. An edited kernel finds nothing of before.
"""

import contextlib
import json
import math
import os
import secrets
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfleet import simulator
from tokenfleet.app.digests import digest_of
from tokenfleet.app.whole_files import home_cache
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.run import (
    BusyTime,
    ClassGaps,
    Decision,
    GapHistogram,
    Ledger,
    RunRecord,
    Spell,
    Telemetry,
    Turmoil,
    WorkDone,
)
from tokenfleet.domain.slo import Slo
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import World
from tokenfleet.planner import Hopeless

MOST_BYTES = 512 << 20
"""What is kept; beyond it, what was used longest ago goes."""
_PRUNED_FRACTION = 0.8
_OWNER_ONLY = 0o700
_OWNER_ONLY_FILE = 0o600
_FORMAT = b"7"
"""Raised with every change of what is written, so that no other reader meets it."""
_WORD_BYTES = 8
_CHANGES_NOTHING = "band"
"""An error band changes no replay."""
_COLUMNS = ("arrival_s", "first_token_s", "finish_s", "cached_tokens", "preemption_count", "replica", "status")
_TURMOIL = ("attempt_count", "degraded", "left_s", "partial_output_tokens", "state_s")
_GAUGES = ("time_s", "running", "waiting", "kv_used_fraction", "active_tokens")
_DONE = tuple(field.name for field in fields(WorkDone))
_LEDGER = tuple(field.name for field in fields(Ledger))


def cache_folder() -> Path:
    """Where records lie: ``replays`` beside whatever else is kept from run to run."""
    return home_cache() / "replays"


class ReplayCache:
    """Replays, or reads the record of the same replay run before. Safe with other processes and threads beside it."""

    def __init__(
        self,
        folder: Path,
        *,
        most_bytes: int = MOST_BYTES,
        announce: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Nothing is touched before :meth:`open`.

        Args:
            folder: Where records lie.
            most_bytes: Beyond it, what was used longest ago goes.
            announce: Told when the kernel must be compiled, before the first replay that is not found.
        """
        self._folder = folder
        self._most_bytes = most_bytes
        self._announce = announce
        self._warming = threading.Lock()
        self._warm = False
        self._kernel = simulator.kernel_digest()
        self.found_count = 0
        self.run_count = 0
        # What was digested is kept beside its number, so that nobody else gets its id.
        self._digests: dict[int, tuple[object, bytes]] = {}
        self._longest: dict[int, tuple[Trace, int]] = {}
        self._unlimited: dict[int, tuple[ReplicaPhysics, ReplicaPhysics]] = {}

    def open(self) -> bool:
        """Make the folder, for its owner alone, and room in it; ``False`` where it cannot be written."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # What was worked out is read as objects, which only their owner may have written.
            self._folder.chmod(_OWNER_ONLY)
            (probe := self._folder / f".{secrets.token_hex(8)}").touch()
            probe.unlink()
        except OSError:
            return False
        self._prune()
        return True

    def replay(
        self,
        trace: Trace,
        fleet: Fleet,
        *,
        peak_window_s: tuple[float, float] | None = None,
        telemetry_interval_s: float | None = None,
        hopeless: Hopeless | None = None,
        world: World | None = None,
    ) -> RunRecord:
        """As :func:`tokenfleet.simulator.replay`, from disk where it can.

        What a controller decides is not kept. Where somebody looks on the way everything is replayed, and no record is
        kept: what was seen is, elsewhere (:mod:`tokenfleet.app.verdict_cache`).
        """
        run = partial(
            self.unkept,
            trace,
            fleet,
            peak_window_s=peak_window_s,
            telemetry_interval_s=telemetry_interval_s,
            hopeless=hopeless,
            world=world,
        )
        if hopeless is not None or (world is not None and world.controller is not None):
            return run()
        path = self.path(trace, self.as_replayed(trace, fleet), peak_window_s, telemetry_interval_s, world)
        known = _read(path, trace)
        if known is not None:
            self.found_count += 1
            return known
        if path.exists():
            self._announce(f"{path} is damaged: replayed again")
        record = run()
        self.write(path, _written(record))
        return record

    def unkept(self, trace: Trace, fleet: Fleet, **asked: Any) -> RunRecord:  # noqa: ANN401 - handed on
        """As :func:`tokenfleet.simulator.replay`, whatever is kept, and nothing is."""
        self.run_count += 1
        self._warm_up()
        return simulator.replay(trace, fleet, **asked)

    def _warm_up(self) -> None:
        """The kernel is loaded, or compiled, when something must be replayed: loading takes as long as many answers."""
        with self._warming:
            if not self._warm:
                simulator.warm_up(self._announce)
                self._warm = True

    @property
    def folder(self) -> Path:
        """Where everything lies."""
        return self._folder

    def path(self, *asked: object) -> Path:
        """Where something lies that hangs on all of these, and on the kernel."""
        return self._folder / digest_of(_FORMAT, self._kernel, self.digest(*asked)).hex()

    def as_replayed(self, trace: Trace, fleet: Fleet) -> Fleet:
        """The fleet without context limits that no request of a trace meets: equal ones have equal replays."""
        if id(trace) not in self._longest:
            longest = int((trace.input_tokens.astype(np.int64) + trace.output_tokens).max(initial=0))
            self._longest[id(trace)] = trace, longest
        longest = self._longest[id(trace)][1]

        def settled(group: ReplicaGroup) -> ReplicaGroup:
            limit = group.replica.context_limit_tokens
            return group if limit and limit < longest else replace(group, replica=self._without_limit(group.replica))

        return replace(fleet, groups=tuple(settled(group) for group in fleet.groups))

    def _without_limit(self, replica: ReplicaPhysics) -> ReplicaPhysics:
        if id(replica) not in self._unlimited:
            deployment = replica.deployment
            free = replace(deployment, engine=replace(deployment.engine, context_limit_tokens=None))
            self._unlimited[id(replica)] = replica, replace(replica, deployment=free, model_context_tokens=None)
        return self._unlimited[id(replica)][1]

    def digest(self, *asked: object) -> bytes:
        """Digest of what a replay hangs on."""
        return digest_of(*asked, known=self._known, without=_CHANGES_NOTHING)

    def digest_of_part(self, part: Trace | ReplicaPhysics) -> bytes:
        """Digest of what a search asks about again and again, worked out once."""
        if id(part) not in self._digests:
            self.note(part, digest_of(part, without=_CHANGES_NOTHING))
        return self._digests[id(part)][1]

    def note(self, part: Trace | ReplicaPhysics, digest: bytes) -> None:
        """The digest of a part is known already."""
        self._digests[id(part)] = part, digest

    def _known(self, value: object) -> bytes | None:
        if isinstance(value, Trace | ReplicaPhysics):
            return self.digest_of_part(value)
        return _digest_of_equal(value) if isinstance(value, Hopeless | Slo) else None

    def write(self, path: Path, content: bytes) -> None:
        """Keep it, whole or not at all."""
        draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        # A full disk costs what is kept, not the plan.
        with contextlib.suppress(OSError):
            try:
                draft.write_bytes(content)
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)

    def add(self, path: Path, line: bytes) -> None:
        """Add a line at the end of a file, in one piece; lines of two processes do not mix."""
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _OWNER_ONLY_FILE)
            try:
                os.write(file, line)
            finally:
                os.close(file)

    def _prune(self) -> None:
        """Delete what was used longest ago, where there is too much; reading a record makes it young again."""
        kept = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process prunes at the same time
                    found = entry.stat()
                    kept.append((found.st_mtime, found.st_size, entry.path))
        total = sum(size for _, size, _ in kept)
        if total <= self._most_bytes:
            return
        for _, size, path in sorted(kept, key=lambda each: each[0]):
            Path(path).unlink(missing_ok=True)
            total -= size
            if total <= _PRUNED_FRACTION * self._most_bytes:
                return


@lru_cache(maxsize=256)
def _digest_of_equal(value: object) -> bytes:
    return digest_of(value)


def _written(record: RunRecord) -> bytes:
    """A record as bytes: a line of JSON, then its columns, each on a word of its own; lengths stand in the trace."""
    arrays: list[npt.NDArray[np.generic]] = [getattr(record, name) for name in _COLUMNS]
    for gaps in (record.gaps, record.peak_gaps):
        arrays += [] if gaps is None else [gaps.lower_s, gaps.count]
    telemetry = record.telemetry
    done, states = (None, None) if telemetry is None else (telemetry.done, telemetry.state)
    for part, names in ((telemetry, _GAUGES), (done, _DONE), (record.ledger, _LEDGER)):
        arrays += [] if part is None else [getattr(part, name) for name in names]
    for apart in record.class_gaps.values():
        arrays += [each.count for each in (apart.gaps, apart.peak_gaps) if each is not None]
    arrays += [] if states is None else [states]
    arrays += [] if record.ready_s is None else [record.ready_s]
    turmoil = record.turmoil
    arrays += [] if turmoil is None else [getattr(turmoil, name) for name in _TURMOIL]
    packed = [np.ascontiguousarray(array).tobytes() for array in arrays]
    body = b"".join(each + bytes(-len(each) % _WORD_BYTES) for each in packed)
    head = {
        "checksum": zlib.crc32(body),
        "columns": [[array.dtype.str, *array.shape] for array in arrays],
        "busy": {field.name: getattr(record.busy, field.name) for field in fields(BusyTime)},
        "replica_count": record.replica_count,
        "end_s": record.end_s,
        "peak": record.peak_gaps is not None,
        "telemetry": telemetry is not None,
        "ledger": record.ledger is not None,
        "classes": list(record.class_gaps),
        "states": states is not None,
        "ready": record.ready_s is not None,
        "turmoil": None if turmoil is None else _counted(turmoil),
    }
    return json.dumps(head).encode() + b"\n" + body


def _columns(body: bytes, shapes: list[list[Any]]) -> Iterator[npt.NDArray[Any]]:
    start = 0
    for kind, *shape in shapes:
        count = math.prod(shape)
        yield np.frombuffer(body, dtype=kind, count=count, offset=start).reshape(shape)
        start += -(-count * np.dtype(kind).itemsize // _WORD_BYTES) * _WORD_BYTES


def _counted(turmoil: Turmoil) -> dict[str, object]:
    return {
        **{field.name: getattr(turmoil, field.name) for field in fields(Turmoil) if field.name not in _TURMOIL},
        "decisions": [asdict(each) for each in turmoil.decisions],
        "spells": [asdict(each) for each in turmoil.spells],
    }


def _read(path: Path, trace: Trace) -> RunRecord | None:
    """The record kept at ``path``; ``None`` where it is not there or damaged."""
    try:
        line, _, body = path.read_bytes().partition(b"\n")
        head = json.loads(line)
    except (OSError, ValueError):
        return None
    if zlib.crc32(body) != head["checksum"]:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    columns_left = iter(_columns(body, head["columns"]))

    def column() -> npt.NDArray[Any]:
        return next(columns_left)

    columns: dict[str, Any] = {name: column() for name in _COLUMNS}
    gaps = GapHistogram(lower_s=column(), count=column())
    peak_gaps = GapHistogram(lower_s=column(), count=column()) if head["peak"] else None
    gauges: dict[str, Any] = {name: column() for name in _GAUGES} if head["telemetry"] else {}
    if gauges:
        gauges["done"] = WorkDone(**{name: column() for name in _DONE})
    ledger = Ledger(**{name: column() for name in _LEDGER}) if head["ledger"] else None
    class_gaps = {
        name: ClassGaps(
            gaps=replace(gaps, count=column()),
            peak_gaps=None if peak_gaps is None else replace(peak_gaps, count=column()),
        )
        for name in head["classes"]
    }
    state = column() if head["states"] else None
    telemetry = Telemetry(**gauges, state=state) if gauges else None
    ready_s = column() if head["ready"] else None
    turmoil = None
    if head["turmoil"] is not None:
        decisions = tuple(
            Decision(**{**each, "replicas": tuple(each["replicas"])}) for each in head["turmoil"].pop("decisions")
        )
        spells = tuple(Spell(**each) for each in head["turmoil"].pop("spells"))
        counted: dict[str, Any] = head["turmoil"] | {name: column() for name in _TURMOIL}
        turmoil = Turmoil(decisions=decisions, spells=spells, **counted)
    return RunRecord(
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        gaps=gaps,
        peak_gaps=peak_gaps,
        busy=BusyTime(**head["busy"]),
        replica_count=head["replica_count"],
        end_s=head["end_s"],
        telemetry=telemetry,
        turmoil=turmoil,
        ready_s=ready_s,
        class_bits=trace.class_bits,
        classes=trace.classes,
        time_of_day_s=trace.time_of_day_s,
        ledger=ledger,
        class_gaps=class_gaps,
        **columns,
    )
