from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gossamer.data import TableRules, load, load_inputs
from gossamer.data.readers.table_files import read_columns
from gossamer.errors import InvalidData, InvalidValue, UnknownName


def write(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def flowers(folder: Path, delimiter: str = ",", name: str = "t.csv") -> Path:
    rows = [["petal", "colour", "kind"]]
    for i in range(60):
        rows.append([f"{i / 7:.3f}", ["red", "blue"][i % 2], ["rose", "iris", "aster"][i % 3]])
    return write(folder, "\n".join(delimiter.join(row) for row in rows) + "\n", name)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters(tmp_path: Path, delimiter: str) -> None:
    data = load(flowers(tmp_path, delimiter), target="kind")
    assert data.class_names == ["aster", "iris", "rose"]
    assert data.input_shape == (3,)
    assert (data.num_train, len(data.x_val), len(data.x_test)) == (43, 5, 12)
    assert "classification, inferred: 'kind' holds text" in data.notes[0]
    assert "fixed 20% of the rows (12 of 60)" in data.notes[1]


def test_quotes_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    text = '\ufeff"a, b", c \n"1","x, y"\n\n 2 , "say ""z"""\n'
    columns = read_columns(write(tmp_path, text))
    assert list(columns) == ["a, b", "c"]
    assert columns["a, b"].tolist() == ["1", "2"]
    assert columns["c"].tolist() == ["x, y", 'say "z"']


def test_prediction_takes_the_same_columns_in_any_order(tmp_path: Path) -> None:
    data = load(flowers(tmp_path), target="kind")
    raw = load_inputs(write(tmp_path, "colour,petal\nblue,0\nred,1\n", "new.csv"))
    x = data.preparation.prepare(raw)
    assert x[:, 1:].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    labelled = load_inputs(write(tmp_path, "kind,colour,petal\n,blue,0\n?,red,1\n", "more.csv"))
    assert data.preparation.prepare(labelled).tolist() == x.tolist()
    wrong = load_inputs(write(tmp_path, "color,petal\nblue,0\n", "wrong.csv"))
    with pytest.raises(InvalidData, match="'colour' is missing and column 'color' was not there"):
        data.preparation.prepare(wrong)


def test_category_that_looks_like_a_number_stays_one(tmp_path: Path) -> None:
    rows = "".join(f"{['007', 'A1', 'B2', 'C3'][i % 4]},{i}.5\n" for i in range(40))
    data = load(write(tmp_path, "code,y\n" + rows), target="y")
    raw = load_inputs(write(tmp_path, "code\n007\n", "new.csv"))
    assert data.preparation.prepare(raw).tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_test_part_never_enters_the_scales(tmp_path: Path) -> None:
    path = write(tmp_path, "a,y\n" + "".join(f"{i * 0.5},{i * 1.5}\n" for i in range(50)))
    data = load(path, target="y")
    rows = {round(v, 4) for v in (data.preparation.target_to_original(data.y_test) / 1.5).tolist()}
    changed = [
        f"{999 if i in rows else i * 0.5},{-7.25 if i in rows else i * 1.5}" for i in range(50)
    ]
    other = load(write(tmp_path, "a,y\n" + "\n".join(changed), "other.csv"), target="y")
    assert len(rows) == 10
    assert other.preparation == data.preparation
    assert other.y_train.tolist() == data.y_train.tolist()
    assert other.x_test.tolist() != data.x_test.tolist()


def test_task_inference_and_override(tmp_path: Path) -> None:
    path = write(tmp_path, "a,n,m\n" + "".join(f"{i}.1,{i % 4},{i}\n" for i in range(40)))
    assert load(path, target="n").class_names == ["0", "1", "2", "3"]
    assert load(path, target="m").task == "regression"
    assert load(path, target="n", task="regression").task == "regression"
    with pytest.raises(InvalidValue, match="task = ranking"):
        load(path, target="n", task="ranking")  # type: ignore[arg-type]


def test_target_must_be_named(tmp_path: Path) -> None:
    path = flowers(tmp_path)
    with pytest.raises(
        InvalidValue, match=r"must name a column of t\.csv; columns: petal, colour, kind"
    ):
        load(path)
    with pytest.raises(UnknownName, match=r"target column = Kind.*colour, kind, petal"):
        load(path, target="Kind")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there are none"),
        ("a,b\n", "holds no row of data"),
        ("1,2\n3,4\n", "line 1 = 1, 2: holds numbers, not names"),
        ("a,a\n1,2\n", "columns of t.csv = a: names two"),
        ("a,,c\n1,2,3\n", "number 2 has no name"),
        ("a,b\n1,2\n1,2,3\n", "t.csv, line 3 = 3 cells: must have 2"),
        ('a,b\n1,2\n1,"x"y\n', "t.csv, after line 2 .*not a readable .csv"),
    ],
)
def test_files_that_are_no_table(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidData, match=said):
        read_columns(write(tmp_path, text))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="does not exist"):
        load(tmp_path / "none.csv", target="a")


def test_bad_cells_name_column_and_row(tmp_path: Path) -> None:
    rows = [f"{i},{i}.5" for i in range(30)]
    rows[7] = "inf,7.5"
    with pytest.raises(InvalidData, match="column 'a', row 7 = inf: must be finite"):
        load(write(tmp_path, "a,y\n" + "\n".join(rows)), target="y")
    rows[7] = "7,inf"
    with pytest.raises(InvalidData, match="column 'y', row 7 = inf: must be finite"):
        load(write(tmp_path, "a,y\n" + "\n".join(rows)), target="y", task="regression")


@pytest.mark.parametrize("cell", ["", "nan", "?", "NA"])
def test_missing_cells_are_refused_where_it_is_asked(tmp_path: Path, cell: str) -> None:
    rows = [f"{i},{i}.5" for i in range(30)]
    rows[7] = f"{cell},7.5"
    with pytest.raises(InvalidData, match="column 'a', row 7: is missing"):
        load(
            write(tmp_path, "a,y\n" + "\n".join(rows)),
            target="y",
            rules=TableRules(missing="error"),
        )


def test_rows_without_a_target_are_left_out_with_a_remark(tmp_path: Path) -> None:
    rows = [f"{i},{i}.5" for i in range(40)]
    rows[3], rows[9] = "3,", "9,NA"
    data = load(write(tmp_path, "a,y\n" + "\n".join(rows)), target="y")
    assert data.num_train + len(data.x_val) + len(data.x_test) == 38
    assert "2 of 40 rows have no target 'y' and are left out" in data.notes
    kept = [row for i, row in enumerate(rows) if i not in (3, 9)]
    same = load(write(tmp_path, "a,y\n" + "\n".join(kept), "kept.csv"), target="y")
    assert same.preparation == data.preparation
    rows[20] = "inf,1.5"
    with pytest.raises(InvalidData, match="column 'a', row 20 = inf"):
        load(write(tmp_path, "a,y\n" + "\n".join(rows), "bad.csv"), target="y")
    assert torch.equal(same.x_test, data.x_test)
    with pytest.raises(InvalidData, match="target 'y': is missing in every row"):
        load(write(tmp_path, "a,y\n1,\n2,\n3,\n"), target="y")


def parquet(folder: Path, columns: dict[str, Any]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "t.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_agrees_with_csv(tmp_path: Path) -> None:
    import pyarrow as pa

    columns = read_columns(flowers(tmp_path))
    petal = np.asarray(columns["petal"]).astype(float)
    colour = pa.array(columns["colour"].tolist()).dictionary_encode()
    path = parquet(tmp_path, {"petal": petal, "colour": colour, "kind": columns["kind"].tolist()})
    one, two = load(path, target="kind"), load(tmp_path / "t.csv", target="kind")
    assert one.preparation == two.preparation
    assert one.x_train.tolist() == two.x_train.tolist()


def test_parquet_types_and_nulls(tmp_path: Path) -> None:
    from decimal import Decimal

    columns = read_columns(
        parquet(
            tmp_path,
            {
                "i": [1, None, 3],
                "b": [True, None, False],
                "s": ["x", None, " y "],
                "d": [Decimal("1.5"), Decimal("2.5"), Decimal("3.5")],
                "u": np.array([1, 2, 3], dtype=np.uint8),
            },
        )
    )
    assert np.array_equal(columns["i"], [1.0, np.nan, 3.0], equal_nan=True)
    assert columns["b"].tolist() == ["True", "", "False"]
    assert columns["s"].tolist() == ["x", "", "y"]
    assert columns["d"].tolist() == [1.5, 2.5, 3.5]
    assert columns["u"].dtype == np.uint8


def test_parquet_faults(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="column 'l' = type list"):
        read_columns(parquet(tmp_path, {"l": [[1], [2]]}))
    with pytest.raises(InvalidData, match="holds no row"):
        read_columns(parquet(tmp_path, {"a": []}))
    path = tmp_path / "t.parquet"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InvalidData, match=r"not a readable .parquet"):
        read_columns(path)
