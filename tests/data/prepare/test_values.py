from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from gossamer.data.prepare.texts import MISSING, Texts
from gossamer.data.prepare.values import as_integers, as_numbers, as_texts, kind_of
from gossamer.errors import InvalidData


def text(*cells: str | None) -> np.ndarray:
    return np.array(cells, dtype=object)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.array([1, 2]), "int"),
        (np.array([1.0, 2.0]), "float"),
        (np.array([True, False]), "str"),
        (text("1", "-2", "+3"), "int"),
        (text("1", "2.5", "1e-3"), "float"),
        (text("1", "", "3"), "int"),
        (text("red", "blue"), "str"),
        (text("1_000", "2_000"), "str"),
        (np.array(["a", "b"]), "str"),
        (text("", ""), "str"),
        (text("03", "04"), "int"),
        (text("A03", "04"), "str"),
        (text("1,5", "2,25", "3,0"), "float"),
        (text("$464,645", "$1,200"), "int"),
        (text("2024-01-05", "", "2024-02-29"), "date"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "date"),
    ],
)
def test_kind_of(values: np.ndarray, kind: str) -> None:
    assert kind_of("c", values) == kind


def test_a_typing_error_is_not_a_category() -> None:
    cells = [str(i) for i in range(30)]
    cells[7] = "12..3"
    with pytest.raises(InvalidData, match=r"column 'age', row 7 = 12\.\.3"):
        kind_of("age", text(*cells))


def test_a_typing_error_is_not_a_category_of_dates_or_money_either() -> None:
    days = [f"2024-01-{d:02d}" for d in range(1, 31)]
    days[4] = "2024-01-55"
    with pytest.raises(InvalidData, match=r"row 4 = 2024-01-55: is not a date, though 90%"):
        kind_of("sold", text(*days))
    money = [f"${i},000" for i in range(1, 31)]
    money[3] = "ask"
    with pytest.raises(InvalidData, match=r"row 3 = ask: is not a number.*read like \$1,234"):
        kind_of("price", text(*money))


def test_mostly_missing_text_is_a_category() -> None:
    assert kind_of("note", text(*[""] * 30, "wet", "dry")) == "str"


def test_foreign_dtype_is_refused() -> None:
    with pytest.raises(InvalidData, match=r"column 'when'.*timedelta64"):
        kind_of("when", np.array([3], dtype="timedelta64[D]"))


def test_numbers_are_read_exactly() -> None:
    assert as_numbers("c", text("0.1", " 2 ", "-1e3")).tolist() == [0.1, 2.0, -1000.0]
    assert as_numbers("c", np.array([True, False])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("cell", ["", "NA", "nan", "?", None])
def test_missing_numbers_name_column_and_row(cell: str | None) -> None:
    with pytest.raises(InvalidData, match="column 'age', row 1: is missing"):
        as_numbers("age", text("1", cell, "3"))


def test_nan_and_infinity_name_column_and_row() -> None:
    with pytest.raises(InvalidData, match="column 'age', row 2: is missing"):
        as_numbers("age", np.array([1.0, 2.0, np.nan]))
    with pytest.raises(InvalidData, match="column 'age', row 1 = -inf: must be finite"):
        as_numbers("age", np.array([1.0, -np.inf]))
    with pytest.raises(InvalidData, match="column 'age', row 0 = inf: must be finite"):
        as_numbers("age", text("inf"))


def test_not_a_number_names_the_cell() -> None:
    with pytest.raises(InvalidData, match="column 'age', row 1 = old: is not a number"):
        as_numbers("age", text("1", "old"))


def test_texts_are_stripped_and_missing_ones_named() -> None:
    assert as_texts("c", text(" a ", "b")) == ["a", "b"]
    assert as_texts("c", np.array([3, 1])) == ["3", "1"]
    with pytest.raises(InvalidData, match="column 'c', row 1: is missing"):
        as_texts("c", text("a", None))
    with pytest.raises(InvalidData, match="column 'c', row 0: is missing"):
        as_texts("c", np.array([np.nan]))


def test_integers_accept_whole_floats_only() -> None:
    assert as_integers("y", np.array([1.0, 3.0])).tolist() == [1, 3]
    assert as_integers("y", text("7", "8")).tolist() == [7, 8]
    with pytest.raises(InvalidData, match=r"column 'y', row 1 = 2\.5.*whole number"):
        as_integers("y", np.array([1.0, 2.5]))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_missing_cells_are_those_of_the_list_whatever_their_neighbours(kind: pa.DataType) -> None:
    cells = ["", "?", "NA", "n/a", "NaN", "nULL", "12", "-3.5", "no", "N", "nano", None]
    for some in [*itertools.combinations(cells, 2), cells, ["1", "22"], ["1", ""], [None]]:
        whole = pa.array(["n", *some, "?"], kind)
        wanted = [cell is None or cell.lower() in MISSING for cell in some]
        part = whole.slice(1, len(some))
        for given in (part, pa.chunked_array([part.slice(0, 1), part.slice(1)], kind)):
            assert Texts(given).missing.tolist() == wanted, some


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (("1", "-2", "+3"), "int"),
        (("1", None, "?"), "int"),
        (("1.0", "2.0"), "float"),
        (("1", "2e0"), "float"),
        (("1", "2."), "float"),
        (("1", "", "2.0"), "float"),
    ],
)
def test_whole_numbers_are_those_written_so(cells: tuple[str | None, ...], kind: str) -> None:
    column = pa.array(["x", *cells, "0.5"]).slice(1, len(cells))
    assert kind_of("c", Texts(column)) == kind
    assert kind_of("c", Texts(pa.chunked_array([column.slice(0, 1), column.slice(1)]))) == kind
