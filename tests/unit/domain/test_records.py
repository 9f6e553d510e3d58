import copy
import dataclasses
import pickle

import pytest

from tokenfleet.domain import records


def declared(dataclass):
    """The same types by either decorator."""

    @dataclass(frozen=True, slots=True)
    class Ordered:
        first: int
        second: str = "b"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        plain: float
        given: int | None = None
        made: list[int] = dataclasses.field(default_factory=list)
        aside: int = dataclasses.field(default=0, compare=False)
        hidden: int = dataclasses.field(default=0, repr=False)
        inner: Ordered = Ordered(1)

        def __post_init__(self):
            if self.plain < 0:
                raise ValueError("negative")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Longer(Named):
        more: str

        def __repr__(self):
            return "own words"

    return Ordered, Named, Longer


@pytest.mark.parametrize("pick", [0, 1, 2])
@pytest.mark.parametrize(
    "values", [{"plain": 1.0}, {"plain": 2.0, "given": 3, "made": [1], "aside": 4, "hidden": 5, "more": "m"}]
)
def test_is_what_the_standard_library_makes(pick, values):
    made = []
    for dataclass in (dataclasses.dataclass, records.dataclass):
        kind = declared(dataclass)[pick]
        names = [each.name for each in dataclasses.fields(kind)]
        given = {"first": 7, "more": "m"} | values
        one = kind(**{name: given[name] for name in names if name in given})
        twin = copy.deepcopy(one)
        last = dataclasses.replace(one, **{names[0]: 9})
        assert one == twin
        assert one != last
        assert one != "another kind"
        assert not hasattr(one, "__dict__")
        made.append((names, repr(one), dataclasses.asdict(one), copy.copy(one) == one, repr(last), kind.__match_args__))
    assert made[0] == made[1]


def test_what_does_not_count_in_comparison_changes_neither_equality_nor_hash():
    _, named, longer = declared(records.dataclass)
    assert named(plain=1.0, aside=1, made=()) == named(plain=1.0, aside=2, made=())
    assert hash(named(plain=1.0, aside=1, made=())) == hash(named(plain=1.0, aside=2, made=()))
    assert longer(plain=1.0, more="") != named(plain=1.0)
    assert named(plain=1.0).made is not named(plain=1.0).made


def test_is_frozen():
    ordered, _, _ = declared(records.dataclass)
    one = ordered(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="first"):
        one.first = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="first"):
        del one.first
    assert one.first == 1


def test_says_what_is_missing_or_wrong():
    ordered, named, _ = declared(records.dataclass)
    with pytest.raises(TypeError, match=r"Ordered.__init__\(\) missing 1 required positional argument: 'first'"):
        ordered()
    with pytest.raises(TypeError, match="unexpected keyword argument 'third'"):
        ordered(1, third=3)
    with pytest.raises(TypeError, match="positional"):
        named(1.0)
    with pytest.raises(ValueError, match="negative"):
        named(plain=-1.0)


@records.dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """At the top of its module, where pickle finds it."""

    number: int
    inside: tuple["Kept", ...] = ()


def test_is_pickled():
    one = Kept(number=1, inside=(Kept(number=2),))
    assert pickle.loads(pickle.dumps(one)) == one


def test_leaves_others_to_the_standard_library():
    @records.dataclass(slots=True)
    class Open:
        number: int

    one = Open(1)
    one.number = 2
    assert one == Open(2)
