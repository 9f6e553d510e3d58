"""Engine settings with which fewer replicas of a pool keep the promise: the size of steps, and sequences at once.

Every running request waits while a step computes somebody's prompt, so smaller steps trade TTFT for the gaps between
tokens, and so do fewer sequences at once. A pool that only computes prompts, or reads, has no gaps: there a smaller
step lets a prompt be first instead of waiting for the end of those beside it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from tokenfleet import planner
from tokenfleet.app.compose import steps_are_free
from tokenfleet.app.phase_types import PhaseSpec
from tokenfleet.app.pool_trials import Capped, Counts, Trials
from tokenfleet.app.pools_fleet import NamedPool, merged
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.stages import Call

_GRAIN_TOKENS: Final = 64
_PARTS: Final = (2, 4, 8, 16)
"""Of the engine's step: the sizes tried where no gap says which way to go."""


def with_fewer(trials: Trials, counts: Counts, caps: dict[int, Capped]) -> tuple[Trials, Counts]:
    """Settings for the pools whose steps and sequences nobody fixed, where they let fewer replicas do.

    Args:
        trials: The pools as the engine's defaults have them.
        counts: What keeps the promise with those.
        caps: What the cap on its utilization asks of a pool, by its number.

    Returns:
        The trials of the pools chosen, and their counts.
    """
    for index, named in enumerate(trials.system.named):
        # Beside another pool there are as many as of that one, whatever the setting.
        if named.beside is None and is_free(trials.asked, named):
            trials, counts = _Pool(trials, counts, index, caps.get(index)).shrunk()
    return trials, counts


def with_smaller_steps(trials: Trials) -> Iterator[Trials]:
    """Where gaps are too long at any count: steps of a half to a sixteenth in all pools that answer and are free.

    Args:
        trials: The pools as the engine's defaults have them; the largest counts tried break the promise.
    """
    broken = trials.broken(trials.largest)
    if not any(result.name.startswith(("itl", "tpot")) for result in broken):
        return
    free = [named for named in trials.system.named if named.does == "answers" and is_free(trials.asked, named)]
    for part in _PARTS:
        asked = trials.asked
        for named in free:
            engine = named.replica.deployment.engine
            tokens = engine.max_batched_tokens // part
            if engine.chunked_prefill and tokens >= max(_GRAIN_TOKENS, engine.step_token_count):
                slots = min(engine.max_sequence_count, tokens // engine.step_token_count)
                asked = with_setting(asked, named, _steps(tokens, slots))
        if asked is not trials.asked:
            yield trials.with_asked(asked)


class _Pool:
    """One pool, the others as they are."""

    def __init__(self, usual: Trials, counts: Counts, index: int, cap: Capped | None) -> None:
        self._usual, self._counts, self._index, self._cap = usual, counts, index, cap
        self._named = usual.system.named[index]

    def shrunk(self) -> tuple[Trials, Counts]:
        """The fewest replicas with which some setting keeps the promise."""
        most = self._counts[self._index] - 1
        found: dict[int, Trials] = {}

        def enough(count: int) -> bool:
            setting = self._setting(count)
            if setting is not None:
                found[count] = setting
            return setting is not None

        if most < 1 or not enough(most):
            return self._usual, self._counts
        count = planner.smallest_enough(lambda fewer: fewer in found or enough(fewer), most // 2, most) or most
        return found[count], self._of(count)

    def _setting(self, count: int) -> Trials | None:
        """The setting with which so many are enough; ``None`` where none was found."""
        engine = self._named.replica.deployment.engine
        slots = engine.max_sequence_count
        seen = _Seen(self, count)
        tokens = engine.max_batched_tokens
        if self._named.does not in ("answers", "decodes"):
            sizes = (tokens // part for part in _PARTS)
            return next((seen.trials for size in sizes if size >= self._least_tokens and not seen(size, slots)), None)
        if self._named.does == "answers":
            planner.balanced(
                planner.sizes_between(self._least_tokens, tokens, _GRAIN_TOKENS), lambda size: seen(size, slots)
            )
            tokens = seen.nearest_tokens(tokens)
        if not seen.is_found:
            planner.balanced(planner.sizes_between(1, slots, 1), lambda fewer: seen(tokens, fewer))
        return seen.trials if seen.is_found else None

    @property
    def _least_tokens(self) -> int:
        """The smallest step that the pool can take: a whole prompt where it is not cut."""
        engine = self._named.replica.deployment.engine
        if engine.chunked_prefill and self._named.does not in ("reads", "sees"):
            return max(_GRAIN_TOKENS, engine.step_token_count)
        calls = (each for each in self._usual.system.pools.stages if isinstance(each, Call))
        return max(int(call.input_tokens[call.takes].max(initial=1)) for call in calls if call.pool == self._named.name)

    def broken_with(self, tokens: int, slots: int, count: int) -> tuple[Trials, tuple[SloResult, ...]]:
        """What so many replicas of a setting break."""
        trials = self._usual.with_asked(with_setting(self._usual.asked, self._named, _steps(tokens, slots)))
        return trials, self._broken(trials, count)

    def _broken(self, trials: Trials, count: int) -> tuple[SloResult, ...]:
        found = trials.broken(self._of(count))
        if found or self._cap is None:
            return found
        return replace(self._cap, trials=self._cap.trials.with_asked(trials.asked)).broken(count)

    def _of(self, count: int) -> Counts:
        return (*self._counts[: self._index], count, *self._counts[self._index + 1 :])


class _Seen:
    """Settings of one pool that were tried with one count."""

    def __init__(self, pool: _Pool, count: int) -> None:
        self._pool, self._count = pool, count
        self._excess: dict[int, float] = {}
        self.is_found = False

    def __call__(self, tokens: int, slots: int) -> tuple[SloResult, ...]:
        """What is broken with steps of so many tokens and so many sequences at once."""
        self.trials, broken = self._pool.broken_with(tokens, slots, self._count)
        self._excess[tokens] = max(map(planner.excess_of, broken), default=0.0)
        self.is_found = not broken
        return broken

    def nearest_tokens(self, usual: int) -> int:
        """The size of step with which the least is broken."""
        return min(self._excess, key=lambda tokens: self._excess[tokens], default=usual)


def _steps(tokens: int, slots: int) -> Mapping[str, object]:
    return {"max_batched_tokens": tokens, "max_sequence_count": slots}


def is_free(asked: Scenario, named: NamedPool) -> bool:
    """Whether nobody has said how large a step of the pool is, or how many sequences run at once."""
    spec = _spec(asked, named)
    fixed = (spec.max_batched_tokens, spec.max_sequence_count)
    return fixed == (None, None) and steps_are_free(asked)


def _spec(asked: Scenario, named: NamedPool) -> PhaseSpec:
    """What the scenario says of a pool."""
    if named.does == "sees":
        if asked.images is None or asked.images.encoder is None:
            raise ValueError("a pool for images that nobody asked for")
        return asked.images.encoder
    spec = (asked.pools or {})[named.behind]
    own = {"prefills": spec.prefill, "decodes": spec.decode}.get(named.does)
    return spec if own is None else merged(spec, own)


def with_setting(asked: Scenario, named: NamedPool, setting: Mapping[str, object]) -> Scenario:
    """The scenario with other keys of :class:`PhaseSpec` for one pool, or for one phase of it."""
    if asked.images is not None and asked.images.encoder is not None and named.does == "sees":
        encoder = asked.images.encoder.model_copy(update=setting)
        return asked.model_copy(update={"images": asked.images.model_copy(update={"encoder": encoder})})
    pools = dict(asked.pools or {})
    spec = pools[named.behind]
    phase, own = {"prefills": ("prefill", spec.prefill), "decodes": ("decode", spec.decode)}.get(
        named.does, (None, None)
    )
    changed = setting if phase is None or own is None else {phase: own.model_copy(update=setting)}
    pools[named.behind] = spec.model_copy(update=changed)
    return asked.model_copy(update={"pools": pools})


def setting_notes(usual: Iterable[NamedPool], chosen: Iterable[NamedPool], *, do_usual: bool) -> Iterator[str]:
    """Which pools take other settings than the engine's, in a sentence each; ``do_usual``: the usual ones would do."""
    for before, after in zip(usual, chosen, strict=True):
        was, now = before.replica.deployment.engine, after.replica.deployment.engine
        said = []
        if was.max_batched_tokens != now.max_batched_tokens:
            said.append(f"steps of {now.max_batched_tokens:,} tokens (by default {was.max_batched_tokens:,})")
        if now.max_sequence_count < min(was.max_sequence_count, now.max_batched_tokens // now.step_token_count):
            said.append(f"at most {now.max_sequence_count:,} sequences at once (by default {was.max_sequence_count:,})")
        if said:
            with_them = "it" if len(said) == 1 and "sequences at once" in said[0] else "them"
            why = "fewer replicas keep the promise" if do_usual else "the promise is kept only"
            yield f"The pool {after.name} takes {' and '.join(said)}: {why} with {with_them}."
