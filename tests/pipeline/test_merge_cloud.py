"""Base, adapter and output in a bucket; what goes wrong on the way changes no byte."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from support import gcs, merging
from tunewright_workloads import storage
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.gemma import tiny
from tunewright_workloads.merge import publish, verify
from tunewright_workloads.storage import cloud

pytestmark = pytest.mark.pipeline


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A server that holds base and adapter, and what they merge to on this machine's disk."""
    top = tmp_path_factory.mktemp("bucket")
    tiny.write(top / "base")
    merging.save(top / "train", top / "base", merging.arrays(top / "base"))
    publish.merge(
        merging.config(top / "base", top / "train", top / "out", top / "work", max_shard_size=300_000)
    )
    publish.merge(merging.config(top / "base", top / "train", top / "same", top / "work"))
    with gcs.server() as backend, gcs.proxy(backend) as proxy, pytest.MonkeyPatch.context() as patch:
        for name, value in gcs.environment(proxy.url).items():
            patch.setenv(name, value)
        for kind in ("base", "train"):
            store = storage.store(f"gs://bucket/in/{kind}")
            for name, data in merging.content(top / kind).items():
                store.put(name, data)
        yield SimpleNamespace(backend=backend, top=top)


@pytest.fixture
def proxy(bucket: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[gcs.Proxy]:
    monkeypatch.setattr(cloud, "CHUNK", 256 << 10)
    monkeypatch.setattr(cloud, "PATIENCE", 10.0)
    monkeypatch.setattr(cloud, "TIMEOUT", (2.0, 1.0))
    with gcs.proxy(bucket.backend) as made:
        for name, value in gcs.environment(made.url).items():
            monkeypatch.setenv(name, value)
        yield made


def published(uri: str) -> dict[str, bytes]:
    store = storage.store(uri)
    return {
        e.name: store.get(e.name) for e in store.entries() if e.name not in ("tunewright.json", "README.md")
    }


@pytest.mark.parametrize("size", [None, 300_000])
def test_a_merge_from_and_to_a_bucket_equals_one_on_the_disk_and_keeps_no_base_file(
    size: int | None, bucket: SimpleNamespace, proxy: gcs.Proxy, tmp_path: Path
) -> None:
    uri = f"gs://bucket/plain{size}"
    config = merging.config("gs://bucket/in/base", "gs://bucket/in/train", uri, tmp_path, max_shard_size=size)  # type: ignore[arg-type]
    manifest = publish.merge(config)
    want = merging.content(bucket.top / ("out" if size else "same"), manifest=False)
    want.pop("README.md")
    assert published(uri) == want
    assert not list(tmp_path.rglob("*.safetensors"))
    assert not [e for e in proxy.log if e[0] == "media" and e[1].endswith(".tunewright/claim.json")]
    local = publish.merge(
        merging.config(
            bucket.top / "base", bucket.top / "train", tmp_path / "again", tmp_path / "w", max_shard_size=size
        )
    )
    assert manifest.base.digest == local.base.digest  # a bucket names the digests that a disk is read for
    uploads = sum(kind == "upload" for kind, _ in proxy.log)
    assert publish.merge(config) == manifest
    assert sum(kind == "upload" for kind, _ in proxy.log) == uploads + 1, "the claim and nothing else"
    assert verify.verify(uri, tmp_path / "check", run=False).faults == []


@pytest.mark.parametrize(
    ("kind", "act"),
    [("media", a) for a in ("503", "reset", "cut", "corrupt", "slow")]
    + [("upload", a) for a in ("503", "reset", "lost", "damage", "slow")]
    + [("list", "503"), ("get", "reset"), ("delete", "lost")],
)
def test_faults_on_the_way_change_no_byte(
    kind: str, act: str, bucket: SimpleNamespace, proxy: gcs.Proxy, tmp_path: Path
) -> None:
    uri = f"gs://bucket/{kind}-{act}"
    fault = proxy.inject(kind, act, 3 if act != "slow" else 1)
    publish.merge(merging.config("gs://bucket/in/base", "gs://bucket/in/train", uri, tmp_path))
    want = merging.content(bucket.top / "same", manifest=False)
    want.pop("README.md")
    assert published(uri) == want
    assert fault.done


def test_another_writer_in_between_ends_this_one_and_leaves_no_manifest(
    bucket: SimpleNamespace, proxy: gcs.Proxy, tmp_path: Path
) -> None:
    uri = "gs://bucket/stolen"
    seen = 0

    def steal(request: gcs.Request) -> None:
        nonlocal seen
        seen += request.kind == "upload" and b".safetensors" in request.body[:2000]
        if seen == 2:
            seen += 100
            proxy.hook = None
            other = storage.store(uri)
            other.remove(".tunewright/claim.json")
            other.put(".tunewright/claim.json", b'{"tag": "another", "holder": "another"}')
            for i in range(1, 5):
                other.put(f"model-{i:05d}-of-00004.safetensors", b"the other's")

    proxy.hook = steal
    with pytest.raises(storage.LostClaimError, match="took over"):
        publish.merge(merging.config("gs://bucket/in/base", "gs://bucket/in/train", uri, tmp_path))
    left = published(uri)
    assert {left[n] for n in left if n.endswith(".safetensors") and "00001" not in n} <= {b"the other's"}
    assert not storage.store(uri).exists("tunewright.json")


def test_no_permission_to_write_names_who_and_what(
    bucket: SimpleNamespace, proxy: gcs.Proxy, tmp_path: Path
) -> None:
    proxy.inject("upload", "403", 100)
    with pytest.raises(UserError, match=r"robot@project.* lacks the permission storage\."):
        publish.merge(
            merging.config("gs://bucket/in/base", "gs://bucket/in/train", "gs://bucket/denied", tmp_path)
        )
