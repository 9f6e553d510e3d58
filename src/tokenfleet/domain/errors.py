"""The error tree; every error owns its exit code.

::

    TokenfleetError            70  a bug of ours unless a subclass says otherwise
    |-- BadInput                2  what a person gave cannot be used: where, what, how to mend; all problems at once
    |-- OutOfRange              2  a question beyond what the physics was shown; refused, never extrapolated in silence
    `-- NoAnswer                3  a live system that did not answer; lives in ``app/prometheus.py``, where we ask one

*Infeasible is an answer*, not an error: see :class:`tokenfleet.domain.plan.Reason`.
"""

from collections.abc import Iterable

from tokenfleet.domain.records import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input: where it stands, what is wrong, how to mend it."""

    where: str
    what: str
    mend: str = ""

    def __str__(self) -> str:
        """One line: ``where: what; mend``."""
        return f"{self.where}: {self.what}" + (f"; {self.mend}" if self.mend else "")


class TokenfleetError(Exception):
    """Root of every error this package raises on purpose."""

    exit_code = 70


class BadInput(TokenfleetError):
    """Input that cannot be used. Carries every problem found, not only the first."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @classmethod
    def at(cls, where: str, what: str, mend: str = "") -> "BadInput":
        """A single problem."""
        return cls([Problem(where, what, mend)])


class OutOfRange(TokenfleetError):
    """A question outside the range in which the answer was checked."""

    exit_code = 2
