"""Answers to pure questions, kept on disk beside the replays: what one changed number does not touch is read again.

The name of an answer is a digest of the question, of every source and fact of this package, and of what computes beside
it. Replicas and traces of an answer are known by its question and their place in it: nobody looks through hundreds of
replicas of which a few are replayed. The digests of traces, as replays know them, are kept with it.
"""

import contextlib
import os
import pickle
import zlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from tokenfleet.app.digests import digest_of, source_digest
from tokenfleet.app.replay_cache import ReplayCache
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.trace import Trace

T = TypeVar("T")

MOST_BYTES = 64 << 20
"""A longer answer is not kept: reading it takes as long as working it out."""
_CHECKSUM_BYTES = 4


class KeptWork:
    """A :class:`tokenfleet.planner.Recall` over the folder of a replay cache. Safe with other processes beside it."""

    def __init__(self, kept: ReplayCache, announce: Callable[[str], None]) -> None:
        """Over an open cache.

        Args:
            kept: Whose folder is used, and whose owner alone may read and write it.
            announce: Told when something kept is damaged and worked out again.
        """
        self._kept = kept
        self._announce = announce
        # What has a name is kept beside its id, so that nobody else gets it.
        self._names: dict[int, tuple[object, bytes]] = {}

    def __call__(self, name: str, asked: object, make: Callable[[], T], /) -> T:
        """What ``make`` returns, read where it was kept; see :class:`tokenfleet.planner.Recall`."""
        digest = digest_of(source_digest(), name, asked, known=self._known)
        path = self._kept.folder / f"{digest.hex()}.work"
        try:
            content = path.read_bytes()
        except OSError:
            content = b""
        body = memoryview(content)[_CHECKSUM_BYTES:]
        if content and zlib.crc32(body) == int.from_bytes(content[:_CHECKSUM_BYTES], "little"):
            made: T
            made, digests = pickle.loads(body)
            for trace, known in zip(_traces(made), digests, strict=True):
                self._kept.note(trace, known)
            with contextlib.suppress(OSError):
                os.utime(path)
        else:
            if content:
                self._announce(f"{path} is damaged: {name} worked out again")
            made = make()
            digests = [self._kept.digest_of_part(trace) for trace in _traces(made)]
            packed = pickle.dumps((made, digests), protocol=pickle.HIGHEST_PROTOCOL)
            if len(packed) <= MOST_BYTES:
                self._kept.write(path, zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES, "little") + packed)
        for place, part in enumerate(_heavy(made)):
            self._names.setdefault(id(part), (part, digest_of(digest, place)))
        return made

    def _known(self, value: object) -> bytes | None:
        named = self._names.get(id(value))
        if named is not None:
            return named[1]
        if isinstance(value, Trace):
            return self._kept.digest_of_part(value)
        if isinstance(value, ReplicaPhysics):
            self._names[id(value)] = value, digest_of(value)
            return self._names[id(value)][1]
        return None


def _traces(made: object) -> Iterator[Trace]:
    return (part for part in _heavy(made) if isinstance(part, Trace))


def _heavy(made: object) -> Iterator[Trace | ReplicaPhysics]:
    """Parts of an answer that have digests of their own, as they take long."""
    if isinstance(made, tuple):
        for part in made:
            yield from _heavy(part)
    elif isinstance(made, Trace | ReplicaPhysics):
        yield made
