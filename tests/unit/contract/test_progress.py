from __future__ import annotations

from tunewright_workloads.contract import progress
from tunewright_workloads.contract.progress import Progress, ProgressFile


def test_a_record_comes_back_as_it_was_written(tmp_path):
    record = Progress(stage="train", step=3, total_steps=10, loss=1.25, tokens_per_second=99.5)
    assert ProgressFile(tmp_path / "p.json").write(record)
    assert progress.read(tmp_path / "p.json") == record


def test_records_in_quick_succession_are_written_once(tmp_path):
    now = [0.0]
    out = ProgressFile(tmp_path / "p.json", every=10, clock=lambda: now[0])
    assert out.write(Progress(stage="train", step=1))
    now[0] = 9.9
    assert not out.write(Progress(stage="train", step=2))
    now[0] = 10.0
    assert out.write(Progress(stage="train", step=3))


def test_the_end_and_a_new_checkpoint_are_never_held_back(tmp_path):
    out = ProgressFile(tmp_path / "p.json", every=1000, clock=lambda: 0.0)
    out.write(Progress(stage="train", step=1))
    assert out.write(Progress(stage="train", step=2, checkpoint=2))
    assert not out.write(Progress(stage="train", step=3, checkpoint=2))
    assert out.write(Progress(stage="train", step=4, checkpoint=2, done=True))


def test_a_missing_or_torn_file_is_no_progress(tmp_path):
    assert progress.read(tmp_path / "none.json") is None
    (tmp_path / "torn.json").write_text('{"stage": "tra')
    assert progress.read(tmp_path / "torn.json") is None


def test_the_line_uses_the_names_of_status():
    line = Progress(stage="train", step=1, total_steps=2, eval_loss=0.5).line()
    assert '"totalSteps":2' in line and '"evalLoss":0.5' in line and "null" not in line
