"""Mount paths become folders, at path boundaries and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.plans import Script, script
from tunewright_operator.local.pod import Rewrite, materialise
from tunewright_workloads.contract.faults import UserError

A = Path("/home/me/.tunewright/claims/a")
AB = Path("/home/me/.tunewright/claims/ab")
rewrite = Rewrite({"/mnt/claims/a": A, "/mnt/claims/ab": AB, "/var/tunewright": Path("/w")})


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("/mnt/claims/a", f"{A}"),
        ("/mnt/claims/a/x/y", f"{A}/x/y"),
        ("file:///mnt/claims/a/x", f"file://{A}/x"),
        ("file:///mnt/claims/ab/x", f"file://{AB}/x"),
        ("--out=/mnt/claims/a,/mnt/claims/ab", f"--out={A},{AB}"),
        ("x:/var/tunewright:/mnt/claims/a", f"x:/w:{A}"),
        ('{"p":"/var/tunewright/p.json"}', '{"p":"/w/p.json"}'),
        ("/mnt/claims/abc", "/mnt/claims/abc"),
        ("/mnt/claims/a-b", "/mnt/claims/a-b"),
        ("/mnt/claims/a.old", "/mnt/claims/a.old"),
        ("/data/mnt/claims/a", "/data/mnt/claims/a"),
        ("./mnt/claims/a", "./mnt/claims/a"),
        ("gs://mnt/claims/a", "gs://mnt/claims/a"),
        ("gs://bucket/var/tunewright/x", "gs://bucket/var/tunewright/x"),
        ("hf://var/tunewright", "hf://var/tunewright"),
        ("https://h/mnt/claims/a", "https://h/mnt/claims/a"),
        ("~/mnt/claims/a", "~/mnt/claims/a"),
    ],
)
def test_only_whole_mount_paths_are_rewritten(text, want):
    assert rewrite(text) == want


@given(st.text(max_size=60))
def test_text_without_a_mount_path_stays_as_it_is(text):
    if "/mnt/claims" not in text and "/var/tunewright" not in text:
        assert rewrite(text) == text


def test_a_folder_whose_own_path_holds_a_mount_path_is_not_rewritten_twice():
    again = Rewrite({"/mnt/claims/a": Path("/x/mnt/claims/a"), "/x": Path("/y")})
    assert again("/mnt/claims/a/f") == "/x/mnt/claims/a/f"


def build(stage, tmp_path, **more):
    options = {"environ": {"PATH": "/bin"}, "namespace": "team", **more}
    return materialise(
        stage, home=tmp_path / "home", claims=tmp_path / "claims", cache=tmp_path / "cache", **options
    )


def test_files_folders_command_and_environment_of_a_pod(tmp_path):
    stage = script(
        "train",
        "cat /etc/tunewright/train.json /tmp/own /etc/tunewright.d",
        config=Script(note="/mnt/claims/data/n", output="file:///mnt/claims/data/out"),
        env=[
            {"name": "WHERE", "value": "/var/tunewright/w"},
            {"name": "NS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        ],
    )
    command = build(stage, tmp_path)
    config = tmp_path / "home/volumes/config"
    assert command.argv == ["/bin/sh", "-c", f"cat {config}/train.json /tmp/own /etc/tunewright.d"]
    assert command.env["WHERE"] == f"{tmp_path}/home/volumes/work/w"
    assert command.env["NS"] == "team"
    assert command.env["PATH"] == "/bin"
    assert command.progress == tmp_path / "home/volumes/work/progress.json"
    written = json.loads((config / "train.json").read_text())
    assert written["note"] == f"{tmp_path}/claims/data/n"
    assert written["output"] == f"file://{tmp_path}/claims/data/out"
    assert (tmp_path / "claims/data").is_dir()


def test_changes_of_this_machine_go_into_the_configuration_file_only(tmp_path):
    stage = script("serve", "true")
    build(stage, tmp_path, changes={"port": 1234})
    assert json.loads((tmp_path / "home/volumes/config/serve.json").read_text())["port"] == 1234
    assert "port" not in json.loads(stage.configmaps["it-serve"]["serve.json"])


def test_python_is_the_interpreter_that_runs_the_command_line(tmp_path):
    import sys

    stage = script("train", "", argv=["python3", "-m", "x"])
    assert build(stage, tmp_path).argv == [sys.executable, "-m", "x"]


SECRET = [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-secret", "key": "token"}}}]


def test_a_secret_comes_from_the_shell(tmp_path):
    command = build(script("train", "", env=SECRET), tmp_path, environ={"HF_TOKEN": "t"})
    assert command.env["HF_TOKEN"] == "t"


def test_a_secret_that_the_shell_lacks_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(UserError, match=r"HF_TOKEN: comes from hf-secret/token .* `export HF_TOKEN="):
        build(script("train", "", env=SECRET), tmp_path)


def test_a_planned_variable_wins_over_the_shell(tmp_path):
    stage = script("train", "", env=[{"name": "A", "value": "planned"}])
    assert build(stage, tmp_path, environ={"A": "shell"}).env["A"] == "planned"


def test_the_users_home_and_caches_stay_the_users(tmp_path):
    """A login to the hub and what was downloaded before are there."""
    from tunewright_operator.plan.pods import WRITABLE

    env = [{"name": name, "value": value} for name, value in WRITABLE.items()]
    command = build(script("train", "", env=env), tmp_path, environ={"HOME": "/home/me"})
    assert command.env["HOME"] == "/home/me"
    assert "HF_HOME" not in command.env


def test_a_volume_that_only_a_cluster_has_is_refused(tmp_path):
    volume = {"name": "bucket", "csi": {"driver": "gcsfuse.csi.storage.gke.io"}}
    with pytest.raises(UserError, match="volume bucket is a csi"):
        build(script("train", "", volumes=[volume]), tmp_path)
