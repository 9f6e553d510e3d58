"""A key by identity: for what is worked out of a large value once, and kept beside it."""

from typing import Generic, TypeVar

T = TypeVar("T")


class Itself(Generic[T]):
    """Equal to nothing but a key of the very same value, which it keeps alive."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
