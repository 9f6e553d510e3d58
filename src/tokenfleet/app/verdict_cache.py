"""What replays came to, kept beside them: a plan that asks the same again reads a line instead of a replay.

Kept is what was measured, clause by clause, at the end and at every look on the way, not whether a promise was kept. So
a promise with other limits is held against the same lines, and against those of stopped replays too: a stricter one
stops at the look at which its own replay would have stopped. Whoever asks about the peak window alone looks at other
moments, so the looks of both are kept apart. Behind the last look of a stopped replay nothing is known of further ones,
though its end may be. A file holds what is known of one stretch of traffic, a line each fleet;
lines are added at the end, the last one of a fleet counts.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import astuple
from pathlib import Path
from typing import Any

from tokenfleet.app.digests import source_digest
from tokenfleet.app.replay_cache import ReplayCache
from tokenfleet.contract import judged_again, measured, without_limits
from tokenfleet.domain.fleet import Fleet
from tokenfleet.planner import UNSEEN, Asked, Hopeless, Latencies, Look, Verdict

_Line = dict[str, Any]
_NONE_TAKEN: dict[str, Any] = {"seen": (), "all": False}
_ALL_TAKEN: dict[str, Any] = {"seen": (), "all": True}


class VerdictCache:
    """The :class:`tokenfleet.planner.Verdicts` of a replay cache. Safe with other processes and threads beside it."""

    def __init__(self, kept: ReplayCache, announce: Callable[[str], None] = lambda _: None) -> None:
        """Over an open cache.

        Args:
            kept: Whose folder is used.
            announce: Told when something kept is damaged.
        """
        self._kept = kept
        self._announce = announce
        # Traces are kept beside their number, so that nobody else gets their id.
        self._paths: dict[tuple[object, ...], tuple[object, Path]] = {}
        self._files: dict[Path, dict[bytes, _Line]] = {}
        self._names: dict[tuple[object, ...], tuple[Fleet, bytes]] = {}
        self._unwritten: dict[Path, list[bytes]] = {}

    def knows(self, asked: Asked) -> bool:
        """Whether :meth:`find` finds something."""
        return self.find(asked) is not None

    def find(self, asked: Asked) -> Verdict | None:
        """What a replay with this promise comes to; ``None`` where no line says it."""
        line = self._lines(self._path(asked)).get(self._name(asked), {})
        hopeless = asked.hopeless
        taken = _ALL_TAKEN if hopeless is None else line.get(_looks_of(hopeless), _NONE_TAKEN)
        for peak, overall in taken["seen"]:
            look = Look(judged_again(asked.slo, peak), judged_again(asked.slo, overall))
            if hopeless is not None and hopeless.gives_up(look):
                return Verdict(look.peak, look.overall, UNSEEN, cut=True)
        if "end" not in line:
            return None
        peak, overall, seen = line["end"]
        whole = Verdict(judged_again(asked.slo, peak), judged_again(asked.slo, overall), Latencies(*seen))
        # Looks that were not taken give up nothing that is kept in the end.
        if hopeless is None or taken["all"] or (whole.kept_in_peak if hopeless.peak_only else whole.kept):
            return whole
        return None

    def keep(self, asked: Asked, verdict: Verdict) -> None:
        """Add a line, which is written by :meth:`flush`."""
        path, name = self._path(asked), self._name(asked)
        line = dict(self._lines(path).get(name, {}))
        if asked.hopeless is not None:
            seen = [(measured(look.peak), measured(look.overall)) for look in asked.hopeless.looks]
            line[_looks_of(asked.hopeless)] = {"seen": seen, "all": not verdict.cut}
        if not verdict.cut:
            line["end"] = measured(verdict.peak), measured(verdict.overall), astuple(verdict.seen)
        self._lines(path)[name] = line
        body = name + b" " + json.dumps(line, separators=(",", ":")).encode()
        self._unwritten.setdefault(path, []).append(b"%08x %s\n" % (zlib.crc32(body), body))

    def flush(self) -> None:
        """Write what was added, in one piece for each file."""
        while self._unwritten:
            path, lines = self._unwritten.popitem()
            self._kept.add(path, b"".join(lines))

    def _path(self, asked: Asked) -> Path:
        key = id(asked.trace), asked.window_s, asked.slo, asked.clients
        if key not in self._paths:
            clauses = without_limits(asked.slo)
            where = self._kept.path(asked.trace, asked.window_s, clauses, asked.clients, source_digest())
            self._paths[key] = asked.trace, where.with_suffix(".verdicts")
        return self._paths[key][1]

    def _name(self, asked: Asked) -> bytes:
        fleet = self._kept.as_replayed(asked.trace, asked.fleet)
        key = fleet.router, *((id(group.replica), group.replica_count) for group in fleet.groups)
        if key not in self._names:
            self._names[key] = fleet, self._kept.digest(fleet).hex().encode()
        return self._names[key][1]

    def _lines(self, path: Path) -> dict[bytes, _Line]:
        """What a file says, read once."""
        if path not in self._files:
            try:
                content = path.read_bytes()
            except OSError:
                content = b""
            else:
                with contextlib.suppress(OSError):
                    os.utime(path)
            good, damaged_count = _read(content.splitlines())
            if damaged_count:
                self._announce(f"{path} is damaged: what is missing is replayed again")
            self._files[path] = good
        return self._files[path]


def _read(lines: Iterable[bytes]) -> tuple[dict[bytes, _Line], int]:
    """Lines by the name of their fleet, and how many are damaged."""
    good: dict[bytes, _Line] = {}
    damaged_count = 0
    for line in lines:
        checksum, _, body = line.partition(b" ")
        name, _, text = body.partition(b" ")
        if checksum == b"%08x" % zlib.crc32(body):
            good[name] = json.loads(text)
        else:
            damaged_count += 1
    return good, damaged_count


def _looks_of(hopeless: Hopeless) -> str:
    return "window_looks" if hopeless.peak_only else "looks"
