"""Lines that are wider than the terminal: nothing is lost, and columns stay columns."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.app.columns import columns, figures, folded, shown_width

LOSSES = columns(
    [
        ("1 replica gone", "3 serve", "kept", "1 more to spare, $1.55/h"),
        ("the fullest node in zone eu-a drained", "2 serve", "kept", ""),
    ]
)


def test_a_cell_without_room_goes_on_below_and_the_others_stay_in_their_columns():
    assert folded(LOSSES, 60) == [
        "1 replica gone                         3 serve  kept",
        "  1 more to spare, $1.55/h",
        "the fullest node in zone eu-a drained  2 serve  kept",
    ]
    assert folded(LOSSES, 80) == LOSSES


def test_words_wrap_within_their_column_and_keep_their_indent():
    assert folded(["columns  arrival=timestamp, input=prompt, output=answer"], 34) == [
        "columns  arrival=timestamp,",
        "         input=prompt,",
        "         output=answer",
    ]
    assert folded(["  29 calls, p50 58 ms, p95 149 ms, 1 waiting"], 30) == [
        "  29 calls, p50 58 ms, p95",
        "    149 ms, 1 waiting",
    ]


def test_a_number_stays_with_its_unit():
    assert folded(["of a mean request: main 1.27 s, 85.2 % of it"], 29) == [
        "of a mean request: main",
        "  1.27 s, 85.2 % of it",
    ]


def test_figures_go_on_in_a_second_table_with_the_names_of_the_rows():
    heads = ("", "requests", "share", "input p50 / p95", "output p50 / p95")
    rows = [
        heads,
        ("search", "20,711", "59.6%", "907 / 4,019", "136 / 500"),
        ("an old mail", "7", "0%", "1 / 2", "3 / 4"),
    ]
    assert folded(figures(rows), 46) == [
        "             requests  share  input p50 / p95",
        "search         20,711  59.6%      907 / 4,019",
        "an old mail         7     0%            1 / 2",
        "             output p50 / p95",
        "search              136 / 500",
        "an old mail             3 / 4",
    ]


def test_wide_characters_fill_two_columns():
    assert shown_width("客服 a") == 6
    assert columns([("客服", "x"), ("abcdef", "y")]) == ["客服    x", "abcdef  y"]
    assert folded(["客服客服 客服"], 8) == ["客服客服", "  客服"]


_CELLS = st.lists(st.text("ab 客,", max_size=30).map(str.strip), min_size=1, max_size=6)


@given(st.lists(st.tuples(st.integers(0, 4), _CELLS), max_size=6), st.integers(32, 110))
def test_nothing_is_lost_and_no_line_is_wider_than_the_room(rows, room):
    lines = [" " * indent + "   ".join(cells) for indent, cells in rows]
    shown = folded(lines, room)
    assert all(shown_width(line) <= room for line in shown)
    if not any(len(line) == len(other) for line, other in itertools.pairwise(lines)):
        assert "".join("".join(shown).split()) == "".join("".join(lines).split())


@given(st.lists(st.tuples(*[st.text("abc", min_size=1, max_size=14)] * 6), min_size=2, max_size=5))
def test_every_figure_of_a_table_is_there(rows):
    shown = " ".join(folded(figures(rows), 34)).split()
    assert set(shown) == {cell for row in rows for cell in row}
