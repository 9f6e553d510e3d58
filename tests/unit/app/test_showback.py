"""Who pays, from counters alone."""

import csv
import json

import numpy as np
import pytest

from commands import ended
from tokenfleet.cost import bill_of_counters
from tokenfleet.domain.errors import BadInput

WEIGHTS = np.array([1e-4, 1e-5, 2e-3])
KINDS = ("input_tokens", "cached_tokens", "output_tokens")


def minutes(count=40, seed=1):
    random = np.random.default_rng(seed)
    tokens = np.round(random.uniform([1e5, 0, 1e4], [4e5, 2e5, 5e4], (count, 3)))
    return tokens @ WEIGHTS + 3.0, tokens


def written(folder, busy, tokens, usage):
    counters, tenants = folder / "counters.csv", folder / "usage.csv"
    with counters.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("busy_gpu_s", *KINDS))
        writer.writerows([spent, *row] for spent, row in zip(busy, tokens, strict=True))
    with tenants.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("tenant", *KINDS))
        writer.writerows((name, *row) for name, row in usage.items())
    return counters, tenants


def asked(paths, *more):
    return ("showback", *paths, "--gpus", "4", "--spare-gpus", "1", "--usd", "2.5", *more)


def test_weights_are_found_and_the_lines_are_the_price_to_the_last_bit():
    busy, tokens = minutes()
    found = bill_of_counters(busy, tokens, interval_s=60.0, gpu_count=4, usd_per_gpu_hour=2.5, spare_gpu_count=1)
    told = found.gpu_s_per_million_tokens
    # What goes with no token is shared like the rest, so every weight is larger by the same factor.
    dearer = 1.0 / (1.0 - found.anyway_fraction)
    assert [told[kind] for kind in ("input", "cached", "output")] == pytest.approx(WEIGHTS * 1e6 * dearer, rel=1e-6)
    assert found.anyway_fraction == pytest.approx(3.0 * len(busy) / busy.sum(), rel=1e-6)
    hour = found.bill
    work = hour.input_usd_per_hour + hour.cached_usd_per_hour + hour.output_usd_per_hour
    assert work == pytest.approx(7.5 * busy.mean() / 180.0)
    peak = busy.max() / 60.0
    assert hour.headroom_usd_per_hour == pytest.approx(work * (3.0 / peak - 1.0))
    assert hour.idle_usd_per_hour == pytest.approx(7.5 * (1.0 - busy.mean() / busy.max()))
    assert work + hour.headroom_usd_per_hour + hour.idle_usd_per_hour + hour.spare_usd_per_hour == 10.0
    assert hour.usd_per_million_output_tokens == pytest.approx(told["output"] * 2.5 / 3600)


def test_a_kind_that_never_came_has_no_price():
    _, tokens = minutes()
    tokens[:, 1] = 0.0
    found = bill_of_counters(tokens @ WEIGHTS, tokens, interval_s=60.0, gpu_count=4, usd_per_gpu_hour=2.5)
    assert found.bill.usd_per_million_cached_tokens is None
    assert "cached" not in found.gpu_s_per_million_tokens


def test_tenants_and_what_nobody_used_are_the_invoice_to_the_cent(tmp_path, capsys):
    busy, tokens = minutes()
    whole = tokens.sum(axis=0)
    usage = {"chat": np.floor(whole * 0.5), "search": np.floor(whole * 0.3)}
    paths = written(tmp_path, busy, tokens, usage)
    code, out, _ = ended(capsys, *asked(paths, "--json"))
    assert code == 0
    found = json.loads(out)
    assert [each["tenant"] for each in found["tenants"]] == ["chat", "search", "unknown"]
    cents = sum(round(100 * each["busy_usd"]) for each in found["tenants"])
    cents += sum(round(100 * found[f"{part}_usd"]) for part in ("headroom", "idle", "spare"))
    assert cents == round(100 * found["total_usd"]) == round(100 * 10.0 * len(busy) / 60)
    chat, search, rest = (each["busy_usd"] for each in found["tenants"])
    assert (chat / search, chat / rest) == pytest.approx((5 / 3, 2.5), abs=0.05)
    code, out, _ = ended(capsys, *asked(paths))
    assert code == 0
    assert "chat $" in out
    assert "headroom $" in out


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"factor": 50}, "busy gpu-seconds in an interval of 3 gpus"),
        ({"extra": 7}, "7 more than were counted"),
        ({"usage": {}}, "has no rows"),
        ({"count": 3}, "give more intervals"),
        ({"usage": {"a": [0, "many", -1]}}, "give a number of 0 or more"),
    ],
)
def test_what_cannot_be_shared_is_refused(tmp_path, capsys, more, told):
    busy, tokens = minutes(more.get("count", 40))
    usage = more.get("usage", {"chat": tokens.sum(axis=0) + more.get("extra", 0)})
    paths = written(tmp_path, busy * more.get("factor", 1), tokens, usage)
    code, _, err = ended(capsys, *asked(paths))
    assert code == 2
    assert told in " ".join(err.split())


def test_files_and_options_that_cannot_be_read(tmp_path, capsys):
    busy, tokens = minutes()
    counters, usage = written(tmp_path, busy, tokens, {"chat": tokens.sum(axis=0)})
    for paths, told in (((tmp_path / "none.csv", usage), "cannot be read"), ((usage, counters), "lacks the columns")):
        code, _, err = ended(capsys, *asked(paths))
        assert code == 2
        assert told in " ".join(err.split())
    code, _, err = ended(capsys, *asked((counters, usage), "--interval", "soon"))
    assert code == 2
    assert "is not a duration" in " ".join(err.split())
    for price in ("nan", "inf", "0", "-1", "soon"):
        code, _, err = ended(capsys, *asked((counters, usage), "--usd", price))
        assert code == 2
        assert "--usd: " in err
    usage.write_text(usage.read_text() + usage.read_text().splitlines()[1] + "\n")
    code, _, err = ended(capsys, *asked((counters, usage)))
    assert "again" in " ".join(err.split())


def test_tokens_that_no_busy_time_follows_are_told(tmp_path, capsys):
    busy, tokens = minutes()
    busy = tokens @ (WEIGHTS * [1, 0, 1]) - 1e-6 * tokens[:, 1] + 3.0
    _, out, _ = ended(capsys, *asked(written(tmp_path, busy, tokens, {"chat": tokens.sum(axis=0)})))
    assert "no busy time follows cached tokens: their tenants pay nothing for them" in " ".join(out.split())


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("chat,1,000,5,7", "usage.csv:2: more cells than the head has"),
        ("chat,1,5", "usage.csv:2: output_tokens is missing"),
        (" ,1,5,7", "usage.csv:2: tenant is empty"),
        ("chat,1e16,5,7", "usage.csv:2: input_tokens is '1e16'"),
    ],
)
def test_a_row_that_may_be_read_in_two_ways_is_read_in_none(tmp_path, capsys, row, told):
    busy, tokens = minutes()
    counters, usage = written(tmp_path, busy, tokens, {})
    usage.write_text(usage.read_text() + row + "\n")
    code, _, err = ended(capsys, *asked((counters, usage)))
    assert code == 2
    assert told in " ".join(err.split())
    assert "1 problem" in err


def test_files_of_spreadsheets_begin_with_a_mark(tmp_path, capsys):
    busy, tokens = minutes()
    paths = written(tmp_path, busy, tokens, {"chat": tokens.sum(axis=0)})
    plain = ended(capsys, *asked(paths, "--json"))
    for path in paths:
        path.write_text(path.read_text(), encoding="utf-8-sig")
    assert ended(capsys, *asked(paths, "--json")) == plain


def test_what_nobody_can_share_is_told_by_its_file_or_option(tmp_path, capsys):
    busy, tokens = minutes()
    counters, usage = written(tmp_path, busy * 50, tokens, {"chat": tokens.sum(axis=0)})
    _, _, err = ended(capsys, *asked((counters, usage)))
    assert "counters.csv: " in " ".join(err.split())
    _, _, err = ended(capsys, *asked((counters, usage), "--spare-gpus", "4"))
    assert err.startswith("--gpus: ")
    _, _, err = ended(capsys, *asked((counters, usage), "--usd", "9999999999999999"))
    assert err.startswith("--usd: ")


def test_counters_that_tell_nothing_are_refused():
    busy, tokens = minutes()
    told = {"interval_s": 60.0, "usd_per_gpu_hour": 2.5}
    with pytest.raises(BadInput, match="none of them carries"):
        bill_of_counters(busy, tokens, gpu_count=1, spare_gpu_count=1, **told)
    with pytest.raises(BadInput, match="no gpu was ever busy"):
        bill_of_counters(busy * 0.0, tokens, gpu_count=4, **told)
    with pytest.raises(BadInput, match="95% of the busy time goes with no token"):
        bill_of_counters(tokens @ WEIGHTS * 0.05 + 0.95 * np.mean(tokens @ WEIGHTS), tokens, gpu_count=4, **told)
    with pytest.raises(BadInput, match="does not follow any tokens"):
        bill_of_counters(170.0 - tokens @ [1e-4, 1.5e-4, 1e-3], tokens, gpu_count=4, **told)
