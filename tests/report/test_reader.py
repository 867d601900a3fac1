from __future__ import annotations

import json

import pytest

from gossamer.errors import CheckpointError, InvalidValue
from gossamer.report import RunResult, read_run, read_runs


def test_whole_run(make_run):
    folder = make_run("first", "ssvi", 3, epochs=7, swaps=4)
    run = read_run(folder)
    assert isinstance(run, RunResult)
    assert (run.name, run.method, run.seed, run.data, run.model) == (
        "first",
        "ssvi",
        3,
        "digits",
        "mlp",
    )
    assert [epoch["epoch"] for epoch in run.epochs] == [1, 2, 3, 4, 5, 6, 7]
    assert [swap["step"] for swap in run.swaps] == [30, 60, 90, 120]
    assert run.metrics == json.loads((folder / "metrics.json").read_text())
    assert run.curves == json.loads((folder / "curves.json").read_text())
    assert run.environment["torch"] == "2.13.0"
    assert run.notes == ()
    assert run.task == "classification"


def test_sparsity_is_the_one_reached_else_the_one_asked_for(make_run):
    folder = make_run("run", metrics={"sparsity": 0.94997})
    assert read_run(folder).sparsity == 0.94997
    (folder / "metrics.json").unlink()
    assert read_run(folder).sparsity == 0.95
    (folder / "config.json").unlink()
    assert read_run(folder).sparsity is None


@pytest.mark.parametrize(
    "missing", ["config.json", "environment.json", "metrics.json", "curves.json", "record.jsonl"]
)
def test_every_file_is_optional(make_run, missing):
    folder = make_run("run")
    (folder / missing).unlink()
    run = read_run(folder)
    assert run.notes == (f"{missing} is missing",)


def test_task_from_config_metrics_curves_or_epochs(make_run):
    folder = make_run("run", regression=True)
    assert read_run(folder).task == "regression"
    (folder / "metrics.json").unlink()
    assert read_run(folder).task == "regression"
    (folder / "curves.json").unlink()
    assert read_run(folder).task == "regression"
    (folder / "record.jsonl").unlink()
    assert read_run(folder).task is None
    (folder / "config.json").write_text('{"task": "regression"}')
    assert read_run(folder).task == "regression"


def test_nested_metrics_become_dotted(make_run):
    folder = make_run("run")
    (folder / "metrics.json").write_text('{"accuracy": 1, "local": {"accuracy": 0.5, "x": {}}}')
    assert read_run(folder).metrics == {"accuracy": 1, "local.accuracy": 0.5, "local.x": {}}


GOOD = '{"kind": "epoch", "epoch": 1, "step": 3, "val": {"accuracy": 0.5}}\n'


@pytest.mark.parametrize(
    ("tail", "note"),
    [
        ('{"kind": "epoch", "epo', "one line damaged at the end of record.jsonl skipped"),
        ('{"kind": "ep\n\x00\x00\x00', "2 lines damaged at the end of record.jsonl skipped"),
        ("[1, 2]\n", "one line damaged at the end of record.jsonl skipped"),
    ],
)
def test_damage_at_the_end_of_the_record_is_skipped(make_run, tail, note):
    folder = make_run("run")
    (folder / "record.jsonl").write_text(GOOD + tail)
    run = read_run(folder)
    assert len(run.epochs) == 1
    assert run.notes == (note,)


def test_a_record_torn_in_its_only_line_is_empty(make_run):
    folder = make_run("run")
    (folder / "record.jsonl").write_text('{"kind": "epoch", "ep')
    assert read_run(folder).epochs == []


@pytest.mark.parametrize("content", [GOOD + "{torn\n" + GOOD, GOOD + "\n7\n" + GOOD])
def test_damage_inside_the_record_names_file_and_line(make_run, content):
    folder = make_run("run")
    (folder / "record.jsonl").write_text(content)
    line = 1 + content.split("\n").index("7" if "7" in content.split("\n") else "{torn")
    with pytest.raises(CheckpointError, match=rf"record\.jsonl = line {line} of .*is damaged"):
        read_run(folder)


def test_a_foreign_record_is_refused(make_run):
    folder = make_run("run")
    (folder / "record.jsonl").write_bytes(b"\x89PNG\nno\nrecord\n")
    with pytest.raises(CheckpointError, match="line 1 of"):
        read_run(folder)


@pytest.mark.parametrize("content", ["{", "[1]", "\x00", ""])
@pytest.mark.parametrize("name", ["config.json", "metrics.json", "curves.json"])
def test_damaged_tables_are_refused_by_name(make_run, name, content):
    folder = make_run("run")
    (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=f"{name} = .*is damaged") as caught:
        read_run(folder)
    assert "\n" not in str(caught.value)


def test_not_utf8_is_damage_too(make_run):
    folder = make_run("run")
    (folder / "metrics.json").write_bytes(b'{"a\xff": 1}')
    with pytest.raises(CheckpointError, match="is damaged"):
        read_run(folder)


def test_later_records_of_the_same_epoch_count(make_run):
    folder = make_run("run")
    again = GOOD.replace("0.5", "0.75")
    (folder / "record.jsonl").write_text(GOOD + GOOD.replace('"epoch": 1', '"epoch": 2') + again)
    run = read_run(folder)
    assert [epoch["epoch"] for epoch in run.epochs] == [1, 2]
    assert run.epochs[0]["val"]["accuracy"] == 0.75


def test_unknown_kinds_and_records_without_place_are_left_out(make_run):
    folder = make_run("run")
    extra = '{"kind": "note", "step": 1}\n{"kind": "epoch"}\n{"kind": "swap", "step": null}\n'
    (folder / "record.jsonl").write_text(extra + GOOD)
    run = read_run(folder)
    assert (len(run.epochs), len(run.swaps)) == (1, 0)


def test_no_folder_and_no_run(tmp_path):
    with pytest.raises(CheckpointError, match="is not a folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="holds no run"):
        read_run(tmp_path)


def test_several_runs_get_distinct_names_and_are_read_once(make_run, monkeypatch, tmp_path):
    paths = [make_run("a/run"), make_run("b/run"), make_run("c")]
    runs = read_runs([*paths, tmp_path / "a" / ".." / "a" / "run"])
    assert [run.name for run in runs] == ["a/run", "b/run", f"{tmp_path.name}/c"]
    monkeypatch.chdir(paths[2])
    assert read_run(".").name == "c"
    with pytest.raises(InvalidValue, match="at least one run"):
        read_runs([])


def test_notes_of_the_data_are_those_of_the_preparation(make_run):
    folder = make_run("run")
    assert read_run(folder).data_notes == ()
    (folder / "preparation.json").write_text('{"notes": ["column \'a\': x", "b"]}')
    assert read_run(folder).data_notes == ("column 'a': x", "b")
    (folder / "preparation.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"preparation\.json"):
        read_run(folder)
