"""What the operating system refuses is a line for a user; what is a bug stays a traceback."""

from __future__ import annotations

import errno
import importlib
import json
import os
from pathlib import Path

import pytest

from tunewright_workloads.contract import exits
from tunewright_workloads.contract.faults import machine
from tunewright_workloads.storage import StorageError

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/x")


def test_a_refusal_names_the_file_that_was_to_be_written():
    assert machine(FULL) == "/data/x: No space left on device. Free some space, or choose another place."
    two = OSError(errno.EACCES, os.strerror(errno.EACCES), "/from", None, "/to")
    assert (machine(two) or "").startswith("/to: Permission denied. ")
    assert machine(OSError(errno.EBADF, "Bad file descriptor")) is None
    assert machine(OSError("of a library")) is None


@pytest.mark.parametrize("module", ["train.__main__", "serve.__main__", "evaluate"])
def test_a_workload_on_a_full_disk_says_so_and_may_be_retried(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    program = importlib.import_module(f"tunewright_workloads.{module}")
    work = module.removesuffix(".__main__")

    class Config:
        progress = None

    loader = program if hasattr(program, "load") else program.configs
    monkeypatch.setattr(loader, "load", lambda *_: Config())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({}))

    def raises(error: OSError):
        def run(*_: object, **__: object):
            raise error

        monkeypatch.setattr(program, work, run)
        return program.main(["--config", str(path)])

    assert raises(FULL) == exits.RETRY
    assert (
        capsys.readouterr().err
        == "/data/x: No space left on device. Free some space, or choose another place.\n"
    )
    assert raises(StorageError("gs://b: gone")) == exits.RETRY
    assert "gs://b: gone" in capsys.readouterr().err
    with pytest.raises(OSError, match="a bug"):
        raises(OSError("a bug"))
