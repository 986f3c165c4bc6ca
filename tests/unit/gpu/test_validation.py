"""The validation loss in PyTorch: row by row what whole batches give, and refused without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tunewright_workloads import storage
from tunewright_workloads.contract.configs import DatasetConfig
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.data import dataset, tokenizer
from tunewright_workloads.data.batches import Batches
from tunewright_workloads.gemma import architecture
from tunewright_workloads.gpu import base, validation
from tunewright_workloads.gpu.rows import Collator


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Batches, int]:
    """The sample model, its validation batches (the last one is not full) and its window."""
    work = tmp_path_factory.mktemp("work")
    directory = storage.localize("sample://gemma-4-tiny", work, place="model")
    words = tokenizer.load(directory)
    config = DatasetConfig(train=("sample://faq",), validation=("sample://faq",), max_length=128)
    rows = dataset.build(dataset.locate(config.validation, work, "v"), words, config, what="v")
    batches = Batches(rows, 5, 128, True, shuffle=False, pad_id=words.pad_id)
    return directory, batches, architecture.read(directory).window


def test_row_by_row_is_what_whole_batches_give(tiny):
    directory, batches, window = tiny
    model = base.load(directory, torch.float32)
    summed = count = 0.0
    with torch.no_grad():
        for step in range(batches.steps_in(0)):
            inputs = Collator(batches, window).inputs(*batches.at(step).arrays().values())
            labels = inputs.pop("labels")
            kept = (labels != -100).sum().item()
            mean = model(**inputs, labels=labels, use_cache=False).loss
            summed, count = summed + mean.item() * kept, count + kept
    assert batches.steps_in(0) > 1
    found = validation.loss(model, batches, window, 0, 1, "cpu")
    assert found == pytest.approx(summed / count, abs=1e-5)
    assert validation.published_loss(directory, batches, window, "float32", cpu=True) == found


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: bench/gpu.py measures on it")
def test_without_a_gpu_the_evaluation_of_a_gpu_job_is_refused(tiny):
    directory, batches, window = tiny
    with pytest.raises(UserError, match="PyTorch sees none here"):
        validation.published_loss(directory, batches, window, "bfloat16")
