"""How long requests have waited: a look into the queues of a replay that pauses."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tokenfleet.simulator import layout as at
from tokenfleet.simulator.placing import Buffer, Places


class Queues:
    """The lists in which requests wait, replica by replica."""

    def __init__(self, memory: Buffer, places: Places) -> None:
        self.memory = memory
        self.replicas_at = places.replicas.start

    def oldest_wait_ps(self, replica_count: int, level_count: int, time_ps: int) -> npt.NDArray[np.int64]:
        """How long who has waited for longest has waited, 0 where nobody does; shape (replica, priority level).

        Who was preempted, or is with the front end still, does not count.
        """
        waits = np.zeros((replica_count, level_count), dtype=np.int64)
        for number in range(replica_count):
            replica = self.replicas_at + number * at.REPLICA_WORDS
            if self.memory[replica + at.WAITING] == 0:
                continue
            for head, in_it_count in self._lists(replica, level_count):
                self._walk(head, in_it_count, time_ps, waits[number])
        return waits

    def _lists(self, replica: int, level_count: int) -> Iterator[tuple[int, int]]:
        """The lists of a replica, that of all priorities and those of each: first row, and how many are in it."""
        memory = self.memory
        yield int(memory[replica + at.QUEUE_HEAD]), level_count
        if memory[memory[replica + at.GROUP] + at.BY_PRIORITY]:
            levels = int(memory[replica + at.LEVELS_AT])
            yield from ((head, 1) for head in memory[levels : levels + 2 * level_count : 2].tolist())

    def _walk(self, request: int, missing: int, time_ps: int, waits: npt.NDArray[np.int64]) -> None:
        """Note the first of each priority in a list, which is in order of arrival but for who was preempted."""
        memory = self.memory
        while request != at.NONE and missing:
            history = int(memory[request + at.HISTORY])
            level, wait_ps = history >> 56, time_ps - int(memory[request + at.READY])
            if wait_ps > waits[level] and not history >> 32 & at.MOST_PREEMPTIONS:
                missing -= 1
                waits[level] = wait_ps
            request = int(memory[request + at.LINK]) & at.HALF
