"""``dataclass`` as in the standard library, for frozen ones at a tenth of the price.

The standard library writes and compiles six functions for each frozen dataclass while its module is imported. A command
declares some three hundred and makes objects of a third of them, so that a fifth of its first second went there. Here
all frozen dataclasses share the methods that need no code of their own, and ``__init__`` is written when the first
object is made. Fields, ``replace``, ``asdict``, comparison, ``hash`` and pickling are as usual.
"""

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, ClassVar

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool = False, slots: bool = False, kw_only: bool = False) -> Callable[[type], type]:
        """As :func:`dataclasses.dataclass`; what is not frozen, or has no slots, is left to it."""
        if not (frozen and slots):
            return dataclasses.dataclass(frozen=frozen, slots=slots, kw_only=kw_only)
        return lambda kind: _frozen(kind, kw_only=kw_only)


def _frozen(kind: type, *, kw_only: bool) -> type:
    made: type = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(kind)

    def first(self: object, *positional: object, **named: object) -> None:
        written = _init_of(made)
        setattr(made, "__init__", written)  # noqa: B010 - mypy refuses an assignment
        written(self, *positional, **named)

    compared = attrgetter("__class__", *(each.name for each in dataclasses.fields(made) if each.compare))
    for name, method in {**_SHARED, "__init__": first, "__compared__": compared}.items():
        if name not in kind.__dict__:
            setattr(made, name, method)
    return made


def _init_of(kind: type) -> FunctionType:
    """The ``__init__`` of a frozen dataclass, which takes every field."""
    known: dict[str, object] = {"_put": object.__setattr__, "_MISSING": dataclasses.MISSING}
    ordered = ["self"]
    by_name: list[str] = []
    body: list[str] = []
    for each in dataclasses.fields(kind):
        name = each.name
        given, value = name, name
        if each.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = each.default
            given = f"{name}=_default_{name}"
        elif each.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = each.default_factory
            given = f"{name}=_MISSING"
            value = f"_make_{name}() if {name} is _MISSING else {name}"
        (by_name if each.kw_only else ordered).append(given)
        body.append(f"_put(self, {name!r}, {value})")
    if hasattr(kind, "__post_init__"):
        body.append("self.__post_init__()")
    taken = ", ".join([*ordered, *(["*", *by_name] if by_name else [])])
    exec(f"def __init__({taken}): " + "; ".join(body or ["pass"]), known)
    written = known["__init__"]
    assert isinstance(written, FunctionType)
    written.__qualname__ = f"{kind.__qualname__}.__init__"
    return written


class _Shared:
    """What one frozen dataclass does as the next."""

    __compared__: "ClassVar[attrgetter[object]]"

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return bool(self.__compared__(self) == self.__compared__(other))

    def __hash__(self) -> int:
        return hash(self.__compared__(self))

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields if each.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __setattr__(self, name: str, _value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __setstate__(self, state: tuple[None, dict[str, object]]) -> None:
        for name, value in state[1].items():
            object.__setattr__(self, name, value)


_SHARED = {name: method for name, method in vars(_Shared).items() if callable(method)}
"""The methods that all frozen dataclasses have in common, by name."""
