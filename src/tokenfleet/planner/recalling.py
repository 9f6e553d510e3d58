"""Answers to pure questions that an earlier plan asked too."""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Recall(Protocol):
    """Remembers what was worked out on a question, or has it worked out."""

    def __call__(self, name: str, asked: object, make: Callable[[], T], /) -> T:
        """What ``make`` returns.

        Args:
            name: What kind of question it is.
            asked: Everything that the answer hangs on, but for the sources and the catalog: plain values, dataclasses,
                arrays, and tuples of them.
            make: Works it out: a pure function of ``asked``.
        """


def anew(_name: str, _asked: object, make: Callable[[], T], /) -> T:
    """A :class:`Recall` that remembers nothing."""
    return make()
