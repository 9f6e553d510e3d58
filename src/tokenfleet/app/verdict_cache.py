"""Verdicts kept beside the replays they rest on: a plan that asks the same again reads a line instead of a record."""

import contextlib
import hashlib
import json
import os
from dataclasses import asdict
from functools import cache
from pathlib import Path

from tokenfleet import contract, planner
from tokenfleet.app.replay_cache import ReplayCache
from tokenfleet.domain.slo import SloResult
from tokenfleet.planner import Asked, Latencies, Verdict


class VerdictCache:
    """The :class:`tokenfleet.planner.Verdicts` of a replay cache. Safe with other processes and threads beside it."""

    def __init__(self, kept: ReplayCache) -> None:
        self._kept = kept

    def knows(self, asked: Asked) -> bool:
        """Whether a verdict is kept; it may still turn out to be damaged."""
        return self._path(asked).exists()

    def find(self, asked: Asked) -> Verdict | None:
        """The verdict kept; ``None`` where there is none or it is damaged."""
        path = self._path(asked)
        try:
            found = json.loads(path.read_bytes())
            verdict = _verdict(found)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return verdict

    def keep(self, asked: Asked, verdict: Verdict) -> None:
        """Write it, whole or not at all."""
        self._kept.write(self._path(asked), json.dumps(asdict(verdict)).encode())

    def _path(self, asked: Asked) -> Path:
        return self._kept.path(
            asked.trace, asked.fleet, asked.window_s, asked.hopeless, asked.slo, asked.clients, _judging()
        )


def _verdict(found: dict[str, object]) -> Verdict:
    def results(name: str) -> tuple[SloResult, ...]:
        rows = found[name]
        if not isinstance(rows, list):
            raise TypeError(name)
        return tuple(SloResult(**row) for row in rows)

    seen, cut = found["seen"], found["cut"]
    if not isinstance(seen, dict) or not isinstance(cut, bool):
        raise TypeError("seen")
    return Verdict(peak=results("peak"), overall=results("overall"), seen=Latencies(**seen), cut=cut)


@cache
def _judging() -> str:
    """Digest of the sources that judge: an edited rule finds nothing of yesterday's."""
    digest = hashlib.blake2b(digest_size=20)
    for package in (contract, planner):
        for path in sorted(Path(str(package.__file__)).parent.glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
