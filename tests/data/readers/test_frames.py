"""Frames of every make give the columns of the file that they would be written to."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from gossamer.data import columns_of, from_arrays
from gossamer.data.prepare.texts import Texts
from gossamer.data.prepare.values import kind_of
from gossamer.errors import InvalidData

DAY = dt.datetime(2024, 2, 29, 12, 30)
VALUES: dict[str, list[Any]] = {
    "whole": [3, 1, 2],
    "gap": [1, None, 3],
    "real": [0.5, None, 2.5],
    "truth": [True, None, False],
    "text": [" red", None, "03"],
    "level": ["b", "a", None],
    "when": [DAY, None, DAY + dt.timedelta(days=1)],
}


def pandas_frame(**more: Any) -> Any:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(VALUES)
    return frame.astype({"gap": "Int64", "level": "category", "truth": "boolean"}).assign(**more)


def polars_frame() -> Any:
    pl = pytest.importorskip("polars")
    return pl.DataFrame(VALUES).with_columns(pl.col("level").cast(pl.Enum(["a", "b"])))


def arrow_frame() -> Any:
    table = pa.table(VALUES)
    return table.set_column(5, "level", table["level"].dictionary_encode())


@pytest.mark.parametrize("make", [pandas_frame, polars_frame, arrow_frame])
def test_frames_of_every_make(make: Any) -> None:
    columns = columns_of(make())
    assert list(columns) == list(VALUES)
    assert columns["whole"].tolist() == [3, 1, 2]
    assert np.array_equal(columns["gap"], [1.0, np.nan, 3.0], equal_nan=True)
    assert np.array_equal(columns["real"], [0.5, np.nan, 2.5], equal_nan=True)
    assert columns["truth"].tolist() == ["True", "", "False"]
    assert columns["text"].tolist() == ["red", "", "03"]
    assert columns["level"].tolist() == ["b", "a", ""]
    stamps = np.array(["2024-02-29T12:30", "NaT", "2024-03-01T12:30"], dtype="datetime64[us]")
    assert np.array_equal(columns["when"], stamps, equal_nan=True)


@pytest.mark.parametrize("make", [pandas_frame, polars_frame, arrow_frame, lambda: VALUES])
def test_they_prepare_to_the_same(make: Any) -> None:
    x = {name: values * 20 for name, values in VALUES.items()}
    frame = make()
    if frame is VALUES:
        frame = x
    elif isinstance(frame, pa.Table):
        frame = pa.concat_tables([frame] * 20)
    elif type(frame).__module__.startswith("pandas"):
        frame = frame.loc[np.tile(np.arange(3), 20)]
    else:
        frame = frame[np.tile(np.arange(3), 20)]
    y = np.arange(60.0)
    wanted = from_arrays(pa.table(x), y, task="regression")
    found = from_arrays(frame, y, task="regression")
    assert torch.equal(found.x_train, wanted.x_train)
    assert found.preparation == wanted.preparation


def test_pandas_of_older_habits() -> None:
    pd = pytest.importorskip("pandas")
    zone = pd.Series(pd.to_datetime(["2024-01-01 10:00", None])).dt.tz_localize("Europe/Zurich")
    frame = pd.DataFrame(
        {
            "words": pd.Series(["a", None], dtype=object),
            "mixed": pd.Series([1, "a"], dtype=object),
            "numbers": pd.Series([1, 2.5], dtype=object),
            "arrow": pd.Series(["x", None], dtype=pd.ArrowDtype(pa.string())),
            "codes": pd.Series([3, 7], dtype="category"),
            "zone": zone,
            "day": pd.Series([dt.date(2024, 1, 2), None], dtype=object),
        }
    )
    frame.index = [7, 9]
    columns = columns_of(frame)
    assert columns["words"].tolist() == ["a", ""]
    assert columns["mixed"].tolist() == ["1", "a"]
    assert columns["numbers"].tolist() == [1.0, 2.5]
    assert columns["arrow"].tolist() == ["x", ""]
    assert columns["codes"].tolist() == ["3", "7"]
    assert kind_of("codes", columns["codes"]) == "str"
    assert columns["zone"][0] == np.datetime64("2024-01-01T09:00")
    assert columns["day"][0] == np.datetime64("2024-01-02")
    assert np.isnat([columns["zone"][1], columns["day"][1]]).all()


def test_arrays() -> None:
    numbers = columns_of(np.arange(6.0).reshape(3, 2))
    assert {name: values.tolist() for name, values in numbers.items()} == {
        "x0": [0.0, 2.0, 4.0],
        "x1": [1.0, 3.0, 5.0],
    }
    objects = columns_of(np.array([[1, "a", True], [None, None, False]], dtype=object))
    assert np.array_equal(objects["x0"], [1.0, np.nan], equal_nan=True)
    assert objects["x1"].tolist() == ["a", ""]
    assert objects["x2"].tolist() == ["True", "False"]
    assert isinstance(objects["x2"], Texts)


def test_what_is_no_table_is_refused() -> None:
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    for frame, said in (
        (np.zeros(3), r"x = shape \(3,\): must be \[N, columns\]"),
        (pd.DataFrame({0: [1.0]}), "column name of x = 0: must be text"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "columns of x = a: names two of them"),
        (pl.DataFrame({"a": [1]}).lazy(), r"x = LazyFrame.*collect\(\)"),
        (pl.DataFrame({"a": [[1]]}), "column 'a' = type .*list.*: must hold numbers"),
        (pl.DataFrame({"a": [dt.timedelta(1)]}), "column 'a' = type duration"),
        ({}, "there is no column"),
        ([1, 2], "x = list: must be a data frame"),
    ):
        with pytest.raises(InvalidData, match=said):
            columns_of(frame)
