import numpy as np
import pytest

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload import Lengths
from tokenfleet.workload.streams import stream

DRAWS = 200_000


@pytest.mark.parametrize("mean", [1.0, 1.5, 3.0, 12.0, 800.0, 50_000.0])
def test_a_mean_is_exact_and_spread_out(mean):
    drawn = Lengths.parse(f"{mean:g}").draw(stream(1, "x"), DRAWS)
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    if mean > 10:
        assert (drawn - 1).std() / (drawn.mean() - 1) == pytest.approx(1.0, rel=0.03)
        assert drawn.max() <= Lengths.parse(f"{mean:g}").cap_tokens + 1


def test_median_and_p95_are_those_points_and_not_everybodys_length():
    lengths = Lengths.parse("700:1500")
    drawn = lengths.draw(stream(1, "x"), DRAWS)
    assert np.median(drawn) == pytest.approx(700, rel=0.01)
    assert np.quantile(drawn, 0.95) == pytest.approx(1500, rel=0.01)
    assert drawn.mean() == pytest.approx(lengths.mean_tokens, rel=0.01)
    assert lengths.mean_tokens < 800
    assert lengths.quantile_tokens(0.95) == pytest.approx(1500)


def test_equal_median_and_p95_is_a_constant():
    assert set(Lengths.parse("64:64").draw(stream(0, "x"), 100).tolist()) == {64}


def test_thousands_may_be_written_short():
    assert Lengths.parse("1.5k:50K").quantile_tokens(0.5) == pytest.approx(1500)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1:1000000", "bring them nearer: nothing is longer than 50,000,000 tokens"),
        ("1500:700", "700:1500"),
        ("", "not a length"),
        ("abc", "not a length"),
        ("-5", "not a length"),
        ("0", "below one token"),
        ("1:2:3", "MEDIAN:P95"),
        ("700:", "not a length"),
        ("99m", "ten million"),
        ("nan", "not a length"),
        ("inf", "not a length"),
    ],
)
def test_bad_lengths_say_how_to_mend_them(text, words):
    with pytest.raises(BadInput) as error:
        Lengths.parse(text, where="--input")
    assert words in str(error.value)
    assert error.value.problems[0].where == "--input"


def test_the_description_states_the_assumption():
    assert "coefficient of variation 1 assumed" in Lengths.parse("800").describe()
    assert "p95 1500" in Lengths.parse("700:1500").describe()
