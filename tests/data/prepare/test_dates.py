"""Dates against Python's datetime, which shares no code with them."""

from __future__ import annotations

import datetime as dt
import math

import numpy as np
import pytest

from gossamer.data.prepare.date_column import DateColumn
from gossamer.data.prepare.date_format import find_format, read_dates
from gossamer.data.prepare.findings import Findings
from gossamer.data.prepare.rules import TableRules
from gossamer.data.prepare.table_input import TableInput
from gossamer.data.prepare.texts import Texts
from gossamer.errors import InvalidData

RNG = np.random.default_rng(4)
DAYS = [dt.date(1899, 12, 31) + dt.timedelta(int(d)) for d in RNG.integers(0, 60_000, 80)]
WRITTEN = {
    "YYYY-MM-DD": "%Y-%m-%d",
    "YYYY/MM/DD": "%Y/%m/%d",
    "DD.MM.YYYY": "%d.%m.%Y",
    "DD/MM/YYYY": "%d/%m/%Y",
    "MM/DD/YYYY": "%m/%d/%Y",
    "DD-MM-YYYY": "%d-%m-%Y",
    "MM-DD-YYYY": "%m-%d-%Y",
    "DD Mon YYYY": "%d %b %Y",
    "Mon DD, YYYY": "%B %d, %Y",
}


@pytest.mark.parametrize("form", list(WRITTEN))
def test_every_format_is_found_and_read(form: str) -> None:
    texts = Texts.of([*(day.strftime(WRITTEN[form]) for day in DAYS), ""])
    assert find_format("c", texts, TableRules()) == form
    days, bad = read_dates(texts, form)
    assert days[:-1].tolist() == [(day - dt.date(1970, 1, 1)).days for day in DAYS]
    assert np.isnan(days[-1])
    assert not bad.any()


@pytest.mark.parametrize(
    ("cell", "iso"),
    [
        ("2024-02-29T10:20:30Z", "2024-02-29T10:20:30+00:00"),
        ("2024-02-29 10:20", "2024-02-29T10:20:00+00:00"),
        ("2024-02-29 10:20:30.25+02:00", "2024-02-29T10:20:30.250+02:00"),
        ("2024-02-29 12:05 AM", "2024-02-29T00:05:00+00:00"),
        ("2024-02-29 12:05 pm", "2024-02-29T12:05:00+00:00"),
        ("2024-01-01 00:30:00-0130", "2024-01-01T00:30:00-01:30"),
    ],
)
def test_times_of_day(cell: str, iso: str) -> None:
    days, _ = read_dates(Texts.of([cell]), "YYYY-MM-DD")
    assert days[0] * 86_400 == pytest.approx(dt.datetime.fromisoformat(iso).timestamp(), abs=1e-3)


@pytest.mark.parametrize("cell", ["2023-02-29", "2024-13-01", "2024-00-10", "2024-01-01 25:00"])
def test_days_that_are_none(cell: str) -> None:
    days, bad = read_dates(Texts.of([cell]), "YYYY-MM-DD")
    assert np.isnan(days[0])
    assert bad[0]


def test_day_and_month_are_told_by_the_column_or_asked_for() -> None:
    texts = Texts.of(["03/04/2024", "05/06/2024"])
    with pytest.raises(InvalidData, match=r"row 0 = 03/04/2024.*day_first=true or day_first=false"):
        find_format("c", texts, TableRules())
    assert find_format("c", texts, TableRules(day_first=True)) == "DD/MM/YYYY"
    assert find_format("c", texts, TableRules(day_first=False)) == "MM/DD/YYYY"
    mixed = Texts.of(["13/04/2024", "05/16/2024", "05/17/2024"])
    with pytest.raises(InvalidData, match=r"row 0 = 13/04/2024: is no date as MM/DD/YYYY"):
        find_format("c", mixed, TableRules())


def column(cells: object) -> DateColumn:
    inputs = TableInput.fit({"d": np.asarray(cells)}, np.arange(len(cells)))  # type: ignore[arg-type]
    assert isinstance(inputs.columns[0], DateColumn)
    return inputs.columns[0]


def test_features_are_year_month_weekday_and_elapsed() -> None:
    cells = np.array([day.isoformat() for day in DAYS], dtype=object)
    found = column(cells)
    x = found.encode(cells, Findings())
    assert found.features == [
        f"d ({part})"
        for part in (
            *("year", "month sin", "month cos", "weekday sin", "weekday cos"),
            "elapsed days",
        )
    ]
    years = np.array([day.year for day in DAYS], dtype=float)
    elapsed = np.array([(day - min(DAYS)).days for day in DAYS], dtype=float)
    for place, values in ((0, years), (5, elapsed)):
        wanted = (values - values.mean()) / values.std()
        np.testing.assert_allclose(x[:, place], wanted, atol=1e-5)  # float32
    for place, turns in (
        (1, [(day.month - 1) / 12 for day in DAYS]),
        (3, [day.weekday() / 7 for day in DAYS]),
    ):
        np.testing.assert_allclose(
            x[:, place], [math.sin(2 * math.pi * t) for t in turns], atol=1e-6
        )
        np.testing.assert_allclose(
            x[:, place + 1], [math.cos(2 * math.pi * t) for t in turns], atol=1e-6
        )


def test_arrow_and_text_and_numpy_dates_are_one() -> None:
    texts = np.array([day.strftime("%d.%m.%Y") for day in DAYS], dtype=object)
    found = column(texts)
    wanted = found.encode(texts, Findings())
    stamps = np.array(DAYS, dtype="datetime64[D]")
    iso = np.array([day.isoformat() for day in DAYS], dtype=object)
    assert np.array_equal(found.encode(stamps, Findings()), wanted)
    assert np.array_equal(found.encode(iso, Findings()), wanted)
    assert np.array_equal(column(stamps).encode(iso, Findings()), wanted)


def test_a_date_that_cannot_be_read_is_named() -> None:
    found = column(np.array(["2024-01-05", "2024-02-05"], dtype=object))
    with pytest.raises(InvalidData, match="column 'd', row 1 = soon: is not a date as YYYY-MM-DD"):
        found.encode(np.array(["2024-03-01", "soon"], dtype=object), Findings())


def test_missing_dates_are_the_mean_with_a_feature_that_says_so() -> None:
    cells = np.array(["2024-01-05", "", "2024-03-05 06:00"], dtype=object)
    found = column(cells)
    assert found.features[-3:] == ["d (time sin)", "d (time cos)", "d (missing)"]
    x = found.encode(cells, Findings())
    assert x[1].tolist() == [0.0] * 8 + [1.0]
    assert x[:, 8].tolist() == [0.0, 1.0, 0.0]
    assert x[2, 6:8].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert TableInput.from_json(TableInput((found,)).to_json()) == TableInput((found,))


def test_stored_dates_are_checked() -> None:
    good = column(np.array(["2024-01-05", "2024-02-05"], dtype=object)).to_json()
    for change, said in (
        ({"form": "soon"}, "must be one of"),
        ({"year": [0, 0]}, "positive scale"),
    ):
        with pytest.raises(InvalidData, match=said):
            DateColumn.from_json(good | change)
