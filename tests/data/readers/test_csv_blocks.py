"""The fast reader against Python's ``csv`` and pandas-like truths: same cells, same refusals."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.data.readers.csv_blocks import CsvFile, _quotes_at_edges
from gossamer.data.readers.table_files import TableFile, read_columns
from gossamer.errors import InvalidData


def by_python(text: str, delimiter: str = ",") -> list[list[str]] | None:
    """Rows below the names by the csv module alone; ``None`` where it refuses."""
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True
    )
    try:
        names = next(reader)
        rows = [row for row in reader if any(row) or len(row) == len(names)]
    except (csv.Error, StopIteration):
        return None
    if any(len(row) != len(names) for row in rows):
        return None
    return [[cell.strip() for cell in row] for row in rows]


def by_blocks(path: Path, size: int) -> list[list[str]]:
    tables = list(CsvFile.open(path).blocks(size))
    if not tables:
        return []
    columns = [column.to_pylist() for column in pa.concat_tables(tables).columns]
    return [list(row) for row in zip(*columns, strict=True)]


CELLS = st.text(alphabet='ab1.," \n\t;é', max_size=5)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=1, max_size=6), st.booleans())
def test_any_cells_come_back_as_python_reads_them(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], quoted: bool
) -> None:
    path = tmp_path_factory.mktemp("cells") / "t.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        quoting = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
        writer = csv.writer(file, quoting=quoting, lineterminator="\n")
        writer.writerow(["a", "b"])
        writer.writerows(rows)
    wanted = by_python(path.read_text(encoding="utf-8"))
    for size in (7, 1 << 20):
        if wanted is None:
            with pytest.raises(InvalidData):
                by_blocks(path, size)
        else:
            assert by_blocks(path, size) == wanted


@settings(max_examples=600, deadline=None)
@given(st.text(alphabet='a1," \n\r', max_size=24))
def test_any_file_is_read_or_refused_as_by_python(
    tmp_path_factory: pytest.TempPathFactory, body: str
) -> None:
    text = "a,b\n" + body
    path = tmp_path_factory.mktemp("file") / "t.csv"
    path.write_bytes(text.encode())
    wanted = by_python(text)
    for size in (5, 1 << 20):
        if wanted is None:
            with pytest.raises(InvalidData):
                by_blocks(path, size)
        else:
            assert by_blocks(path, size) == wanted


@pytest.mark.parametrize(
    ("text", "fast"),
    [
        ('"a","b"\n', True),
        ('"a""b",c\n', True),
        ('"",""', True),
        ('"a\nb",c\n', True),
        ('"x"y,1\n', False),
        ('1, "x"\n', False),
        ('a"b,1\n', False),
        ('"a,1\n', False),
    ],
)
def test_quotes_that_pyarrow_reads_in_another_way_never_reach_it(text: str, fast: bool) -> None:
    assert _quotes_at_edges(text.encode(), ",") is fast


def test_a_stray_quote_hands_the_rest_to_python(tmp_path: Path) -> None:
    rows = [f"{i},{i}" for i in range(2000)]
    rows[700] = '5" pipe,1'
    rows[900] = '"two\nlines",1'
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "\n".join(rows))
    wanted = by_python(path.read_text())
    assert wanted is not None
    assert all(by_blocks(path, size) == wanted for size in (64, 3000, 1 << 20))


def test_blocks_of_any_size_give_the_same_rows_and_lines(tmp_path: Path) -> None:
    rows = [f'{i},"x, {i % 3}"' for i in range(500)]
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "\n".join(rows))
    wanted = by_python(path.read_text())
    assert all(by_blocks(path, size) == wanted for size in (64, 1000, 1 << 20))
    rows[437] += ",more"
    path.write_text("a,b\n" + "\n".join(rows))
    for size in (64, 1000, 1 << 20):
        with pytest.raises(InvalidData, match=r"t\.csv, line 439 = 3 cells: must have 2"):
            by_blocks(path, size)


@pytest.mark.parametrize("name", ["t.tsv", "t.tsv.gz", "t.csv.gz", "t.CSV"])
def test_names_of_files(tmp_path: Path, name: str) -> None:
    delimiter = "\t" if "tsv" in name else ","
    text = delimiter.join("ab") + "\n" + delimiter.join("1x") + "\n"
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert {k: v.tolist() for k, v in read_columns(path).items()} == {"a": ["1"], "b": ["x"]}


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 5000)[:-20])
    with pytest.raises(InvalidData, match=r"t\.csv\.gz.*cannot be read"):
        read_columns(path)


@pytest.mark.parametrize(
    ("text", "encoding", "said"),
    [
        ("naïve,b\né €,2\n", "cp1252", "Windows-1252"),
        ("naïve,b\né \x81,2\n", "latin-1", "read as Latin-1"),
    ],
)
def test_bytes_that_are_not_utf8_are_latin_with_a_remark(
    tmp_path: Path, text: str, encoding: str, said: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode(encoding))
    file = TableFile(path)
    assert file.read()["naïve"].tolist() == [text.splitlines()[1].partition(",")[0]]
    assert "not in UTF-8" in file.notes[0]
    assert said in file.notes[0]


def test_utf16_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("a,b\n1,2\n".encode("utf-16"))
    with pytest.raises(InvalidData, match=r"not a readable .csv file in UTF-8; save it as UTF-8"):
        read_columns(path)


def test_a_character_across_blocks_is_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.data.readers.csv_blocks._BLOCK", 5)
    path = tmp_path / "t.csv"
    for text in ("a,bé\n1,é2\n", "a,b\néé,é\n"):
        path.write_text(text, encoding="utf-8")
        assert CsvFile.open(path).encoding == "utf-8"
    path.write_bytes("a,b\né".encode()[:-1] + b"aaaaaaaaaa")
    assert CsvFile.open(path).encoding == "cp1252"


def test_an_index_without_a_name_is_left_out_with_a_remark(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(",a\n0,5\n1,6\n2,7\n")
    file = TableFile(path)
    assert {k: v.tolist() for k, v in file.read().items()} == {"a": ["5", "6", "7"]}
    assert "the first column has no name and counts the rows" in file.notes[0]
    batches = list(TableFile(path).batches(2))
    assert [batch["a"].tolist() for batch in batches] == [["5", "6"], ["7"]]
    for cells in ("1,5\n2,6", "x,5\ny,6", "0.0,5\n1.5,6"):
        path.write_text(f",a\n{cells}\n")
        with pytest.raises(InvalidData, match="number 1 has no name"):
            read_columns(path)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_batches_hold_the_rows_of_the_whole(tmp_path: Path, kind: str) -> None:
    numbers = np.arange(1000)
    path = tmp_path / f"t.{kind}"
    if kind == "csv":
        path.write_text("n\n" + "\n".join(map(str, numbers)))
    else:
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"n": numbers}), path, row_group_size=130)
    sizes, found = [], []
    for batch in TableFile(path).batches(256):
        sizes.append(len(batch["n"]))
        found += [int(value) for value in batch["n"].tolist()]
    assert sizes == [256, 256, 256, 232]
    assert found == numbers.tolist()
