"""A replay with pauses: something happens to replicas, a router or a controller looks at them, samples are taken.

At a pause every event up to and including its time has passed. What happens at that time comes next, in the order
of the world's list; then the router's scrape; then the controller is asked, and what it answers for this very moment
happens; samples are last.
"""

import heapq

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput, TokenfleetError
from tokenfleet.domain.world import Happening
from tokenfleet.simulator import layout as at
from tokenfleet.simulator.building import to_ps
from tokenfleet.simulator.entry import advance
from tokenfleet.simulator.placing import Buffer
from tokenfleet.simulator.roster import Roster
from tokenfleet.simulator.viewing import Desk, Scraper


class Pauses:
    """One replay, from its first event to its last."""

    def __init__(
        self,
        memory: Buffer,
        gauges: Buffer,
        interval_ps: int = at.NEVER_PS,
        scraper: Scraper | None = None,
        roster: Roster | None = None,
        desk: Desk | None = None,
        happenings: tuple[Happening, ...] = (),
    ) -> None:
        self.memory, self.gauges, self.scraper, self.roster, self.desk = memory, gauges, scraper, roster, desk
        self.interval_ps = interval_ps
        self.sample_ps = interval_ps
        self.tick_ps = at.NEVER_PS if desk is None else desk.tick_ps
        self.scrape_ps = at.NEVER_PS if scraper is None else scraper.interval_ps
        self.samples: list[Buffer] = []
        self.states: list[npt.NDArray[np.int8]] = []
        """What the replicas were at each sample; empty in a quiet world."""
        self.agenda: list[tuple[int, int, Happening]] = []
        self.noted_count = 0
        self._note(happenings)

    def run_to_end(self) -> None:
        """Replay until every request has ended, and on to the next sample if samples are taken."""
        while True:
            next_ps = self.agenda[0][0] if self.agenda else at.NEVER_PS
            pause_ps = min(next_ps, self.tick_ps, self.scrape_ps, self.sample_ps, at.NEVER_PS - 1)
            following_ps = self._happen(pause_ps, self.run_to(pause_ps))
            following_ps = self._look(pause_ps, following_ps)
            sampled = pause_ps == self.sample_ps
            if sampled:
                self.sample_ps += self.interval_ps
                self.samples.append(self.gauges.copy())
                if self.roster is not None:
                    self.states.append(self.roster.states_now())
            is_over = following_ps == at.NEVER_PS and not self._lane_waits()
            if is_over and (sampled or self.interval_ps == at.NEVER_PS):
                self._check_end()
                return

    def _look(self, time_ps: int, following_ps: int) -> int:
        """Have the router scrape and the controller decide, where it is time; returns the time of the next event."""
        is_idle = following_ps == at.NEVER_PS
        if time_ps == self.scrape_ps and self.scraper is not None:
            self.scrape_ps += self.scraper.interval_ps
            self.scraper.scrape()
            if is_idle and self.desk is None:
                return self._give_up_lane(time_ps)
        if time_ps == self.tick_ps and self.desk is not None:
            self.tick_ps += self.desk.tick_ps
            if not is_idle or self._lane_waits():
                answer = self.desk.ask(time_ps)
                self._note(answer)
                following_ps = self._happen(time_ps, following_ps)
                if is_idle and not answer:
                    return self._give_up_lane(time_ps)
        return following_ps

    def _lane_waits(self) -> bool:
        return self.roster is not None and self.roster.lane_waits()

    def _give_up_lane(self, time_ps: int) -> int:
        """Where nothing will happen any more, those that wait in the lane are turned away.

        A replica that starts will be ready only if somebody is there to say so.
        """
        if self.roster is None or self.agenda or not self.roster.lane_waits():
            return at.NEVER_PS
        if self.desk is not None and self.roster.is_starting():
            return at.NEVER_PS
        return self.roster.dissolve_lane(time_ps)

    def _check_end(self) -> None:
        """Nothing happens any more; without an event beyond the end of time, every request has ended."""
        memory = self.memory
        if memory[at.TOTAL_IN_FLIGHT] or memory[at.LATE_COUNT] or memory[at.ARRIVED_COUNT] < memory[at.CLOCKED_COUNT]:
            raise BadInput.at("trace", "some requests would end after more than 103 days", "replay a part of it")

    def _note(self, happenings: tuple[Happening, ...]) -> None:
        for happening in happenings:
            heapq.heappush(self.agenda, (to_ps(happening.time_s), self.noted_count, happening))
            self.noted_count += 1

    def _happen(self, time_ps: int, following_ps: int) -> int:
        """Let happen what is due; returns the time of the next event."""
        if self.roster is None or not self.agenda or self.agenda[0][0] > time_ps:
            return following_ps
        while self.agenda and self.agenda[0][0] <= time_ps:
            self.roster.happen(heapq.heappop(self.agenda)[2], time_ps)
        return self.run_to(time_ps)

    def run_to(self, until_ps: int) -> int:
        """Advance the kernel; returns the time of the next event, ``NEVER_PS`` at the end."""
        following_ps = advance(self.memory, until_ps)
        while following_ps < 0:
            if self.desk is None or self.memory[at.FAULT] != at.FIRSTS_FULL:
                rule = self.memory[at.FAULT]
                raise TokenfleetError(f"the replay kernel broke its own rule {rule}: a bug, please report it")
            self.desk.read_firsts()
            following_ps = advance(self.memory, until_ps)
        return following_ps
