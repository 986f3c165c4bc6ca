"""A whole dataset: what is kept, dropped, counted and refused before anything is trained."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.rows import assistant, build, chat, config, environment, user, words, write
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.data import __main__ as cli
from tunewright_workloads.data import batches, dataset, report

LONG = chat(user("why"), assistant("because " * 200))
TINY = str(words().directory)


def describe(train: dataset.Dataset, validation: dataset.Dataset | None = None, **more: object) -> dict:
    settings = config(**more)
    made = batches.Batches(train, 4, settings.max_length, settings.packing)
    return report.describe(train, validation, settings, made, epochs=1)


def test_rows_of_many_files_and_formats_lie_end_to_end(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", chat(user("1"), assistant("x")), {"prompt": "2", "completion": "y"})
    b = tmp_path / "b.jsonl.gz"
    b.write_bytes(gzip.compress(json.dumps({"text": "three"}).encode()))
    found = dataset.build([dataset.Source("a", a), dataset.Source("b", b)], words(), config())
    assert len(found) == found.read == 3
    assert found.formats == {"messages": 1, "prompt-completion": 1, "text": 1}
    assert "three" in words().decode(found.row(2)[0].tolist())
    assert found.lengths.sum() == len(found.tokens) == len(found.mask)


@pytest.mark.parametrize(("overlong", "kept", "dropped"), [("drop", 1, {"overlong": 1}), ("truncate", 2, {})])
def test_overlong_rows(tmp_path: Path, overlong: str, kept: int, dropped: dict[str, int]) -> None:
    found = build(write(tmp_path / "a.jsonl", chat(), LONG), max_length=64, overlong=overlong)
    assert len(found) == kept
    assert found.dropped == dropped
    assert found.lengths.max() <= 64


def test_overlong_rows_that_must_not_be_are_named_with_their_length(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a.jsonl:2: is \d+ tokens long; dataset.maxLength is 64"):
        build(write(tmp_path / "a.jsonl", chat(), LONG), max_length=64, overlong="fail")


def test_a_row_whose_answer_was_cut_off_is_dropped_and_the_lever_named(tmp_path: Path) -> None:
    cut = chat(user("why " * 100), assistant("so"))
    found = build(write(tmp_path / "a.jsonl", chat(), cut), max_length=32, overlong="truncate")
    assert found.dropped == {"answerTruncated": 1}
    notes = describe(found, max_length=32)["notes"]
    assert any("maxLength (32) is the lever" in n for n in notes)


def test_a_file_whose_answers_are_all_cut_off_is_an_error(tmp_path: Path) -> None:
    cut = chat(user("why " * 100), assistant("so"))
    with pytest.raises(UserError, match=r"no row is left to train on.*Raise dataset.maxLength"):
        build(write(tmp_path / "a.jsonl", cut, cut), max_length=32, overlong="truncate")


def test_empty_answers_are_dropped_and_counted(tmp_path: Path) -> None:
    thinking = chat(user(), assistant("<|channel>thought\nhm<channel|>"))
    found = build(write(tmp_path / "a.jsonl", chat(), chat(user(), assistant(" ")), thinking))
    assert found.dropped == {"emptyAnswer": 2}
    with pytest.raises(UserError, match="no answer to train on"):
        build(write(tmp_path / "b.jsonl", thinking))


def test_faults_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    sources = [
        dataset.Source(n, write(tmp_path / n, *rows))
        for n, rows in {"a": ["{x", chat()], "b": [chat(user(None), assistant())], "c": [{"foo": 1}]}.items()
    ]
    with pytest.raises(UserError) as error:
        dataset.build(sources, words(), config())
    assert [f.place for f in error.value.faults] == ["a:1", "b:1: messages[0].content", "c:1: (row)"]


def test_many_faults_are_counted_and_the_first_shown(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        build(write(tmp_path / "a.jsonl", *["{x"] * 400))
    assert "(400 faults)" in error.value.text()
    assert "... and 350 more" in error.value.text()


def test_duplicates_and_rows_in_both_sets_are_counted(tmp_path: Path) -> None:
    one, two, three = (chat(user(q), assistant("x")) for q in "abc")
    train = build(write(tmp_path / "a.jsonl", one, two, one, one))
    validation = build(write(tmp_path / "b.jsonl", two, three))
    found = describe(train, validation)
    assert found["duplicates"] == 2
    assert found["validation"]["alsoInTrain"] == 1
    assert any("2 rows being an exact copy" in n for n in found["notes"])
    assert any("1 row of the validation data in the training data" in n for n in found["notes"])


def test_the_report_counts_tokens_steps_and_waste(tmp_path: Path) -> None:
    data = build(write(tmp_path / "a.jsonl", *[chat(user("q" * i), assistant("x")) for i in range(40)]))
    found = describe(data, max_length=128)
    assert found["rows"] == {"read": 40, "kept": 40, "dropped": {}}
    assert found["tokens"] == data.lengths.sum()
    assert sum(b["rows"] for b in found["lengths"]["histogram"]) == 40
    assert found["batch"]["efficiency"] == pytest.approx(
        data.lengths.sum() / (found["batch"]["rowsPerEpoch"] * 128), abs=1e-4
    )
    assert found["steps"]["total"] == -(-found["batch"]["rowsPerEpoch"] // 4)
    text = report.text(found)
    assert "40 of 40" in text and "packed" in text
    json.dumps(found)


def test_a_dataset_smaller_than_a_batch_is_said(tmp_path: Path) -> None:
    found = describe(build(write(tmp_path / "a.jsonl", chat())))
    assert any("fewer than training.globalBatchSize (4)" in n for n in found["notes"])


def test_columns_that_are_not_used_are_said(tmp_path: Path) -> None:
    found = describe(build(write(tmp_path / "a.jsonl", chat(score=1), chat(score=2))))
    assert "2 rows: has the column score, which is not used" in found["notes"]


def test_the_first_token_of_a_row_is_never_a_target(tmp_path: Path) -> None:
    found = build(write(tmp_path / "a.jsonl", chat(), {"text": "x"}), loss_on="all")
    assert not found.mask[found.starts[:-1]].any()
    assert found.mask.dtype == np.bool_


def test_the_command_prints_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a b.jsonl", chat(), chat(user("other"), assistant("y")))
    assert cli.main([str(path), "--tokenizer", TINY, "--validation", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"]["kept"] == 2
    assert found["validation"]["alsoInTrain"] == 2
    assert cli.main([str(path), "--tokenizer", TINY, "--no-packing", "--steps", "5"]) == 0
    assert "padded" in capsys.readouterr().out


def test_the_command_refuses_bad_data_with_the_contracts_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.jsonl", chat(), "{x")
    assert cli.main([str(path), "--tokenizer", TINY]) == 2
    assert "a.jsonl:2: is not JSON" in capsys.readouterr().err
    assert cli.main([str(path), "--tokenizer", TINY, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["faults"][0]["place"].endswith("a.jsonl:2")
    assert cli.main([str(tmp_path / "no.jsonl"), "--tokenizer", TINY]) == 2
    monkeypatch.chdir(path.parent)
    assert cli.main([f"../{path.parent.name}/{path.name}", "--tokenizer", TINY]) == 2
    assert "segments" not in capsys.readouterr().err
    assert cli.main([str(path), "--model", "gemma-4-tinny"]) == 2
    assert "gemma-4-tiny" in capsys.readouterr().err


def test_validation_needs_no_jax(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", chat())
    code = (
        "import sys; from tunewright_workloads.data.__main__ import main;"
        f"code = main([{str(path)!r}, '--tokenizer', {TINY!r}]);"
        "bad = {'jax', 'torch', 'transformers', 'tunix'} & set(sys.modules);"
        "sys.exit(f'imported {bad}' if bad else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr
