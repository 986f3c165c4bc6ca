"""gs:// against the real protocol, with faults in between."""

import hashlib
import random
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from support import gcs
from tunewright_workloads import storage
from tunewright_workloads.contract.faults import UserError
from tunewright_workloads.contract.lineage import FileDigest
from tunewright_workloads.storage import cloud
from tunewright_workloads.storage.cloud import CloudStore


def place() -> str:
    """A prefix of its own for every test: the server outlives them."""
    return f"gs://{gcs.BUCKET}/{uuid4().hex}"


def opened(uri: str) -> CloudStore:
    made = storage.store(uri)
    assert isinstance(made, CloudStore)
    return made


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


BIG = noise(9 << 20)  # above the client library's bound between one request and a resumable upload


def digest(data: bytes) -> FileDigest:
    return FileDigest(size=len(data), sha256=hashlib.sha256(data).hexdigest())


def test_what_was_put_is_listed_read_and_fetched(proxy: gcs.Proxy, tmp_path: Path) -> None:
    store = opened(place())
    store.put("a/small.json", b"{}")
    (tmp_path / "big").write_bytes(BIG)
    store.put("big.bin", tmp_path / "big")
    assert [(e.name, e.size) for e in store.entries()] == [("a/small.json", 2), ("big.bin", len(BIG))]
    assert [e.name for e in store.entries("a")] == ["a/small.json"]
    assert store.exists("big.bin") and not store.exists("big")
    assert store.get("a/small.json") == b"{}"
    assert store.read("big.bin", 5_000_000, 1000) == BIG[5_000_000:5_001_000]
    assert storage.localize(f"{store.uri}/big.bin", tmp_path / "work").read_bytes() == BIG
    assert storage.localize(f"{store.uri}/big.bin", tmp_path / "work").name == "big.bin"
    top = storage.localize(str(store.uri), tmp_path / "work")
    assert (top / "a" / "small.json").read_bytes() == b"{}"
    assert (top / "big.bin").read_bytes() == BIG


@pytest.mark.parametrize("act", ["503", "reset", "cut", "slow", "corrupt"])
def test_a_download_survives_what_happens_on_the_way(act: str, proxy: gcs.Proxy, tmp_path: Path) -> None:
    store = opened(place())
    store.put("data", BIG[: 3 << 20])
    fault = proxy.inject("media", act, 3)
    path = storage.localize(f"{store.uri}/data", tmp_path)
    assert path.read_bytes() == BIG[: 3 << 20]
    assert fault.done == 3


@pytest.mark.parametrize("act", ["503", "reset", "half", "lost", "damage", "slow"])
@pytest.mark.parametrize("guarded", [True, False])
def test_a_resumable_upload_survives_what_happens_on_the_way(
    act: str, guarded: bool, proxy: gcs.Proxy, tmp_path: Path
) -> None:
    store = opened(place())
    (tmp_path / "big").write_bytes(BIG)
    fault = proxy.inject("chunk", act, 2 if act != "damage" else 1)
    if guarded:
        with store.claim("tag", "me"):
            store.put("big", tmp_path / "big", tag="tag", digest=digest(BIG))
    else:
        store.put("big", tmp_path / "big")
    assert fault.done
    assert store.get("big") == BIG


@pytest.mark.parametrize("act", ["503", "reset", "lost", "damage"])
def test_a_small_upload_survives_what_happens_on_the_way(act: str, proxy: gcs.Proxy) -> None:
    store = opened(place())
    with store.claim("tag", "me"):
        fault = proxy.inject("upload", act, 1)
        store.put("small", b"0123456789" * 100, tag="tag", digest=digest(b"0123456789" * 100))
        assert store.get("small") == b"0123456789" * 100
    assert fault.done


def test_a_download_that_is_damaged_every_time_ends_and_leaves_nothing(
    proxy: gcs.Proxy, tmp_path: Path
) -> None:
    store = opened(place())
    store.put("data", BIG[: 1 << 20])
    proxy.inject("media", "corrupt", 10_000)
    with pytest.raises(storage.StorageError, match="crc32c"):
        storage.localize(f"{store.uri}/data", tmp_path)
    assert not list(tmp_path.rglob("data"))


def test_a_server_that_never_answers_ends_in_an_error_that_names_the_object(
    proxy: gcs.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud, "PATIENCE", 1.0)
    store = opened(place())
    proxy.inject("upload", "503", 10_000)
    with pytest.raises(storage.StorageError, match="thing"):
        store.put("thing", b"data")


def test_an_interrupted_download_goes_on_where_it_broke_off(
    proxy: gcs.Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud, "PATIENCE", 1.0)
    store = opened(place())
    store.put("data", BIG[: 4 << 20])
    seen = 0

    def match(request: gcs.Request) -> bool:
        nonlocal seen
        seen += request.kind == "media"
        return request.kind == "media" and seen > 9

    broken = gcs.Fault(match, "503", 10_000)
    proxy.faults.append(broken)
    with pytest.raises(storage.StorageError):
        storage.localize(f"{store.uri}/data", tmp_path)
    proxy.faults.clear()
    proxy.log.clear()
    assert storage.localize(f"{store.uri}/data", tmp_path).read_bytes() == BIG[: 4 << 20]
    assert sum(kind == "media" for kind, _ in proxy.log) <= 16 - 5


def test_an_unchanged_object_is_not_fetched_twice_and_a_changed_one_is(
    proxy: gcs.Proxy, tmp_path: Path
) -> None:
    store = opened(place())
    store.put("data", b"one")
    storage.localize(f"{store.uri}/data", tmp_path)
    proxy.log.clear()
    assert storage.localize(f"{store.uri}/data", tmp_path).read_bytes() == b"one"
    assert not any(kind == "media" for kind, _ in proxy.log)
    store.put("data", b"two")
    assert storage.localize(f"{store.uri}/data", tmp_path).read_bytes() == b"two"


def test_a_prefix_becomes_a_directory_without_what_is_gone(proxy: gcs.Proxy, tmp_path: Path) -> None:
    store = opened(place())
    store.put("a", b"1")
    store.put("b", b"2")
    top = storage.localize(str(store.uri), tmp_path)
    store.remove("a")
    assert storage.localize(str(store.uri), tmp_path) == top
    assert [p.name for p in top.iterdir() if not p.name.startswith(".")] == ["b"]


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (lambda uri, tmp: storage.localize(f"{uri}/nothing", tmp, place="dataset.train[0]"), "no object here"),
        (lambda uri, tmp: storage.localize("gs://no-such-bucket/x", tmp, place="dataset.train[0]"), "no such bucket"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_a_fault_of_the_field(
    work: Callable[[str, Path], object], says: str, proxy: gcs.Proxy, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        work(place(), tmp_path)
    assert says in str(error.value)
    assert "dataset.train[0]" in str(error.value)


def test_a_missing_permission_names_who_and_what(proxy: gcs.Proxy, tmp_path: Path) -> None:
    store = opened(place())
    store.put("data", b"x")
    proxy.inject("get", "403", 10)
    with pytest.raises(UserError) as error:
        storage.localize(f"{store.uri}/data", tmp_path)
    assert "robot@project.iam.gserviceaccount.com" in str(error.value)
    assert "storage.objects.get" in str(error.value)
    assert "roles/storage.objectViewer" in str(error.value)


def test_finished_work_is_found_by_its_tag_and_by_no_other(proxy: gcs.Proxy) -> None:
    uri = place()
    with opened(uri).claim("one", "me"):
        pass
    store = opened(uri)
    with store.claim("one", "me"):
        store.put("shard", b"abc", tag="one", digest=digest(b"abc"), note="from")
    found = opened(uri).finished("one")
    assert found["shard"].digest == digest(b"abc")
    assert found["shard"].note == "from"
    assert opened(uri).finished("two") == {}
    assert store.ours("shard")
    store.put("other", b"abc")
    assert not store.ours("other")


def test_a_writer_whose_claim_was_taken_over_cannot_overwrite_its_successor(proxy: gcs.Proxy) -> None:
    uri = place()
    old, new = opened(uri), opened(uri)
    with pytest.raises(storage.LostClaimError), old.claim("old", "old"):
        old.put("shard", b"old", tag="old", digest=digest(b"old"))
        blob = new._bucket.blob(f"{new._prefix}.tunewright/claim.json")
        blob.delete()  # as if the lease had ended while `old` was asleep
        with new.claim("new", "new"):
            new.put("shard", b"new", tag="new", digest=digest(b"new"))
            old.put("shard", b"old again", tag="old", digest=digest(b"old again"))
    assert opened(uri).get("shard") == b"new"


def test_a_claim_waits_for_a_live_writer_and_takes_over_a_dead_one(proxy: gcs.Proxy) -> None:
    uri = place()
    order: list[str] = []
    first, second = opened(uri), opened(uri)
    with first.claim("first", "first"):
        started = threading.Thread(target=lambda: _hold(second, "second", order))
        started.start()
        started.join(4.0)  # two leases: the first one's heartbeat keeps it
        order.append("first")
    started.join(20)
    assert order == ["first", "second"]
    dead = opened(uri)
    dead._take("dead", "dead")  # and never again a sign of life
    _hold(opened(uri), "third", order)
    assert order[-1] == "third"


def _hold(store: CloudStore, tag: str, order: list[str]) -> None:
    with store.claim(tag, tag):
        order.append(tag)


def test_of_many_publishers_one_wins_and_the_others_are_told(proxy: gcs.Proxy) -> None:
    uri = place()
    stores = [opened(uri) for _ in range(8)]
    for store in stores:
        store._expected, store._claimed = {}, ("gone", 1)
    results: list[bool] = []

    def publish(i: int) -> None:
        try:
            stores[i].publish("tunewright.json", f"{i}".encode())
            results.append(True)
        except storage.LostClaimError:
            results.append(False)

    threads = [threading.Thread(target=publish, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False] * 7 + [True]
