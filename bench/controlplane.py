"""Control plane: ours beside a raw watch loop, and JobSet's controller given as many JobSets.

    PYTHONPATH=operator:workloads python bench/controlplane.py [--jobs 1000] [--rate 60] [--idle 30] [--no-jobset]

One etcd and one API server on loopback (built from Go modules, `tests/cluster`), no controller
manager: what is measured is who makes the children, not who makes their pods. The raw loop is the
least that could do our work: one watch, 16 writes at a time, and the very same children, one status
write and one event for each resource, from manifests that were planned beforehand. Both start with
an empty namespace. Burst: all resources are created as fast as 16 clients can; from the first
create to the last child. Paced: at a fixed rate; from the answer to a create to the event of its
Job. The last line is JSON: burst_vs_raw, paced_p99_s, rss_mb, idle_writes (a minute), restart_writes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).parents[1]
for part in (ROOT, ROOT / "operator", ROOT / "workloads"):
    sys.path.insert(0, str(part))

from tests.cluster import addons  # noqa: E402
from tests.cluster.control import ControlPlane  # noqa: E402
from tests.cluster.operating import Operator, install, tiny  # noqa: E402

Object = dict[str, Any]
GROUP = "/apis/tunewright.dev/v1alpha1"
CLIENTS = 16


def spec() -> Object:
    return tiny()


class Api:
    """Plain HTTP to the API server."""

    def __init__(self, url: str, ca: str, token: str) -> None:
        self.url, self.ca, self.token = url, ca, token

    async def __aenter__(self) -> Api:
        tls = ssl.create_default_context(cafile=self.ca)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=0),
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def send(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> Object:
        data = None if body is None else json.dumps(body).encode()
        async with self.session.request(
            method, self.url + path, data=data, headers={"Content-Type": kind}
        ) as answer:
            text = await answer.read()
            if answer.status >= 400:
                raise RuntimeError(f"{method} {path}: {answer.status} {text[:500].decode()}")
            return dict(json.loads(text))

    async def watch(self, path: str) -> AsyncIterator[Object]:
        since = (await self.send("GET", path + "?limit=1"))["metadata"]["resourceVersion"]
        async with self.session.get(
            f"{self.url}{path}?watch=true&resourceVersion={since}", read_bufsize=2**24
        ) as answer:
            async for line in answer.content:
                yield json.loads(line)


# -- the raw loop ------------------------------------------------------------------------------------


def templates() -> list[tuple[str, str]]:
    """(path, manifest as text) of everything the plan makes at first, with NAME, SPACE and UID in it."""
    from tunewright_operator import api, plan
    from tunewright_operator.reconcile import children, resources

    body = {"metadata": {"name": "name-to-replace", "namespace": "space-to-replace"}, "spec": spec()}
    made = plan.job(api.FineTuneJob.model_validate(body))
    owner = {"name": "name-to-replace", "namespace": "space-to-replace", "uid": "uid-to-replace"}
    found = []
    for manifest in (*made.shared, *made.stages[0].manifests):
        adopted = children.adopt(manifest, owner, "FineTuneJob")
        found.append((resources.of(manifest).url("space-to-replace"), json.dumps(adopted)))
    return found


def raw_loop(url: str, ca: str, token: str, namespace: str, ready: Any) -> None:
    """The process of the raw loop."""
    asyncio.run(_raw(url, ca, token, namespace, ready))


async def _raw(url: str, ca: str, token: str, namespace: str, ready: Any) -> None:
    made = templates()
    queue: asyncio.Queue[Object] = asyncio.Queue()

    async def work(api: Api) -> None:
        while True:
            job = await queue.get()
            name, uid = job["metadata"]["name"], job["metadata"]["uid"]
            for path, text in made:
                body = text.replace("name-to-replace", name).replace("space-to-replace", namespace)
                body = body.replace("uid-to-replace", uid)
                await api.send("POST", path.replace("space-to-replace", namespace), json.loads(body))
            status = {"phase": "Provisioning", "message": "starting", "observedGeneration": 1}
            base = f"{GROUP}/namespaces/{namespace}/finetunejobs/{name}/status"
            await api.send("PATCH", base, {"status": status}, "application/merge-patch+json")
            event = {
                "metadata": {"name": f"{name}.{uid[:12]}", "namespace": namespace},
                "involvedObject": {"kind": "FineTuneJob", "name": name, "namespace": namespace, "uid": uid},
                "reason": "Starting",
                "message": "starting train",
                "type": "Normal",
            }
            await api.send("POST", f"/api/v1/namespaces/{namespace}/events", event)

    async with Api(url, ca, token) as api:
        tasks = [asyncio.create_task(work(api)) for _ in range(CLIENTS)]
        stream = api.watch(f"{GROUP}/namespaces/{namespace}/finetunejobs")
        ready.set()
        async for event in stream:
            if event["type"] == "ADDED":
                queue.put_nowait(event["object"])
            for task in tasks:
                if task.done():
                    task.result()


# -- load ---------------------------------------------------------------------------------------------


async def load(
    api: Api,
    namespace: str,
    count: int,
    rate: float | None,
    body: Object,
    path: str,
    children: str,
    label: str,
) -> tuple[float, list[float]]:
    """Creates `count` resources. Returns the seconds until the last child, and the delays of each."""
    created: dict[str, float] = {}
    answered: dict[str, float] = {}
    seen: dict[str, float] = {}
    done = asyncio.Event()

    async def observe() -> None:
        async for event in api.watch(children):
            if event["type"] != "ADDED":
                continue
            name = event["object"]["metadata"].get("labels", {}).get(label)
            if name and name not in seen:
                seen[name] = time.perf_counter()
                if len(seen) == count:
                    done.set()

    watcher = asyncio.create_task(observe())
    await asyncio.sleep(0.5)
    gate = asyncio.Semaphore(CLIENTS)

    async def create(index: int) -> None:
        name = f"job-{index}"
        text = json.dumps(body).replace("job-to-replace", name)
        async with gate:
            created[name] = time.perf_counter()
            await api.send("POST", path, json.loads(text))
            answered[name] = time.perf_counter()

    started = time.perf_counter()
    pending = []
    for index in range(count):
        if rate is not None:
            await asyncio.sleep(max(0.0, started + index / rate - time.perf_counter()))
        pending.append(asyncio.create_task(create(index)))
    await asyncio.gather(*pending)
    while not done.is_set():
        if watcher.done():
            watcher.result()
            raise RuntimeError("the watch of the children ended")
        await asyncio.wait([asyncio.create_task(done.wait())], timeout=1)
        if time.perf_counter() - started > 600:
            raise TimeoutError(f"{len(seen)} of {count} children after 10 minutes")
    watcher.cancel()
    total = max(seen.values()) - min(created.values())
    return total, [max(0.0, seen[n] - answered[n]) for n in seen]


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rss(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


def job_body() -> tuple[Object, str]:
    body = {
        "apiVersion": "tunewright.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {"name": "job-to-replace"},
        "spec": {**spec(), "output": {"uri": "gs://acme/models/job-to-replace"}},
    }
    return body, "finetunejobs"


def measure(
    plane: ControlPlane, who: str, count: int, rate: float | None
) -> tuple[float, list[float], dict[str, float]]:
    """One load on one controller, in a namespace of its own."""
    namespace = plane.create_namespace("bench")
    extra: dict[str, float] = {}
    body, plural = job_body()
    path = f"{GROUP}/namespaces/{namespace}/{plural}"
    children = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    access = (plane.url, str(plane.ca), str(plane.token))

    async def go() -> tuple[float, list[float]]:
        async with Api(*access) as api:
            return await load(api, namespace, count, rate, body, path, children, "tunewright.dev/job")

    if who == "raw":
        ready = multiprocessing.Event()
        process = multiprocessing.Process(target=raw_loop, args=(*access, namespace, ready), daemon=True)
        process.start()
        ready.wait(60)
        time.sleep(0.5)
        try:
            total, delays = asyncio.run(go())
            extra["rss"] = rss(process.pid or 0)
        finally:
            process.kill()
            process.join()
    else:
        with Operator(plane, "--namespaces", namespace) as ours:
            total, delays = asyncio.run(go())
            settle(ours)
            extra["rss"] = ours.rss / 2**20
            extra["requests"] = sum(requests(ours).values()) / count
    clear(plane, namespace, path)
    return total, delays, extra


def requests(ours: Operator) -> dict[str, int]:
    """Every request to the API server that is about a resource, by labels."""
    found = {}
    for line in (ours.get("/metrics") or "").splitlines():
        if line.startswith("tunewright_api_requests_total{") and "DISCOVER" not in line:
            what, _, number = line.rpartition(" ")
            found[what] = int(float(number))
    return found


def settle(ours: Operator, quiet: float = 3.0) -> None:
    """Waits until it has written nothing for a while."""
    last, since = ours.writes(), time.monotonic()
    while time.monotonic() - since < quiet:
        time.sleep(0.25)
        now = ours.writes()
        if now != last:
            last, since = now, time.monotonic()


def clear(plane: ControlPlane, namespace: str, path: str) -> None:
    """Nobody collects garbage here: what one measure leaves would weigh on the next."""
    core, batch = f"/api/v1/namespaces/{namespace}", f"/apis/batch/v1/namespaces/{namespace}"
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    for one in (path, f"{batch}/jobs", f"{core}/configmaps", f"{core}/serviceaccounts", f"{core}/events",
                f"{rbac}/roles", f"{rbac}/rolebindings",
                f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"):  # fmt: skip
        plane.request("DELETE", one, {"propagationPolicy": "Background"})


def restart(plane: ControlPlane, count: int, idle: float) -> tuple[float, int, float, float]:
    """Idle writes a minute, writes on a restart, seconds until ready, and memory with `count` resources."""
    namespace = plane.create_namespace("bench")
    body, plural = job_body()
    path = f"{GROUP}/namespaces/{namespace}/{plural}"
    children = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    async def go() -> None:
        async with Api(plane.url, str(plane.ca), str(plane.token)) as api:
            await load(api, namespace, count, None, body, path, children, "tunewright.dev/job")

    with Operator(plane, "--namespaces", namespace, "--resync", "15", "--pulse", "2") as ours:
        asyncio.run(go())
        settle(ours)
        before = sum(ours.writes().values())
        time.sleep(idle)
        idle_writes = (sum(ours.writes().values()) - before) * 60 / idle
        memory = ours.rss / 2**20
        ours.kill()
        started = time.monotonic()
        ours.start()
        ready = time.monotonic() - started
        time.sleep(20)
        writes = sum(ours.writes().values())
        memory = max(memory, ours.rss / 2**20)
    clear(plane, namespace, path)
    return idle_writes, writes, ready, memory


def jobset(plane: ControlPlane, count: int) -> float:
    """Children a second of JobSet's own controller: one Job each."""
    addons.jobset(plane)
    namespace = plane.create_namespace("bench")
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}
    job = {"template": {"spec": {"parallelism": 1, "completions": 1, "template": {"spec": pod}}}}
    body = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "job-to-replace"},
        "spec": {"replicatedJobs": [{"name": "w", "replicas": 1, **job}]},
    }
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets"
    children = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    async def go() -> float:
        async with Api(plane.url, str(plane.ca), str(plane.token)) as api:
            label = "jobset.sigs.k8s.io/jobset-name"
            return (await load(api, namespace, count, None, body, path, children, label))[0]

    return count / asyncio.run(go())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000, help="resources of each load")
    parser.add_argument("--rate", type=float, default=60.0, help="creates a second of the paced load")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds of doing nothing that are watched")
    parser.add_argument("--repeat", type=int, default=2, help="bursts of each, in turns; the best counts")
    parser.add_argument("--no-jobset", action="store_true", help="leave JobSet's controller out")
    options = parser.parse_args()
    children = len(templates())
    print(
        f"{options.jobs} FineTuneJobs, {children} children, one status and one event each; "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    bursts: dict[str, list[float]] = {"raw": [], "ours": []}
    extra: dict[str, dict[str, float]] = {}
    with ControlPlane(controllers=False) as plane:
        install(plane)
        for _ in range(options.repeat):
            for who in bursts:
                total, _, extra[who] = measure(plane, who, options.jobs, None)
                bursts[who].append(options.jobs / total)
                print(f"  burst {who}: {bursts[who][-1]:.1f}/s", flush=True)
        paced = {who: measure(plane, who, options.jobs, options.rate)[1] for who in bursts}
        idle, restarted, ready, memory = restart(plane, options.jobs, options.idle)
        peer = None if options.no_jobset else jobset(plane, options.jobs)
    best = {who: max(rates) for who, rates in bursts.items()}
    print(f"{'':24}{'raw loop':>12}{'ours':>12}{'JobSet':>12}")
    rows = [
        ("burst, resources/s", best["raw"], best["ours"], peer),
        ("burst, children/s", best["raw"] * children, best["ours"] * children, peer),
        ("paced, p50 s", quantile(paced["raw"], 0.5), quantile(paced["ours"], 0.5), None),
        ("paced, p99 s", quantile(paced["raw"], 0.99), quantile(paced["ours"], 0.99), None),
        ("memory, MB", extra["raw"]["rss"], memory, None),
        ("requests a resource", children + 2, extra["ours"]["requests"], None),
        ("writes a minute, idle", None, idle, None),
        ("writes on a restart", None, restarted, None),
        ("restart to ready, s", None, ready, None),
    ]
    for name, *values in rows:
        print(f"{name:24}" + "".join(f"{v:12.2f}" if v is not None else f"{'-':>12}" for v in values))
    result = {
        "burst_vs_raw": round(best["ours"] / best["raw"], 3),
        "paced_p99_s": round(quantile(paced["ours"], 0.99), 3),
        "rss_mb": round(memory, 1),
        "idle_writes": round(idle, 2),
        "restart_writes": restarted,
        "burst_per_s": round(best["ours"], 1),
        "raw_burst_per_s": round(best["raw"], 1),
        "jobset_per_s": None if peer is None else round(peer, 1),
        "requests_per_resource": round(extra["ours"]["requests"], 2),
        "jobs": options.jobs,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
