"""What is asked of a server: the gate's questions, the benchmark's load. Small Jobs beside it."""

from __future__ import annotations

from dataclasses import dataclass

from tunewright_operator.api.endpoint import ServeEndpoint, ServeEndpointSpec
from tunewright_operator.api.pods import PodTemplate
from tunewright_operator.plan import names, pods, progress
from tunewright_operator.plan.jobs import Rules, workload
from tunewright_operator.plan.settings import Settings
from tunewright_operator.plan.stage import Manifest, Stage
from tunewright_operator.plan.volumes import CONFIG, WORK, Volumes
from tunewright_workloads.contract.accelerators import accelerator, slice_of
from tunewright_workloads.contract.configs import BenchConfig, ServeConfig
from tunewright_workloads.contract.models import ModelSpec

HTTP = "http"
"""Name of the port on which a server answers."""

BENCHMARK_KEY = "benchmark.json"
"""File of the benchmark's figures, and their key in the ConfigMap `<endpoint>-benchmark`."""


def benchmark_map(name: str) -> str:
    """Name of the ConfigMap that a benchmark's figures go to."""
    return names.child(name, "benchmark")


def url(name: str, namespace: str) -> str:
    """Base of the OpenAI API inside the cluster."""
    return f"http://{names.child(name, limit=63)}.{namespace}.svc/v1"


@dataclass(frozen=True)
class Probes:
    """The Jobs that ask one endpoint. uri: of the model served; model: its shape, None while unknown."""

    resource: ServeEndpoint
    settings: Settings
    uri: str
    model: ModelSpec | None

    @property
    def name(self) -> str:
        return self.resource.metadata.name

    @property
    def namespace(self) -> str:
        return self.resource.metadata.namespace or "default"

    @property
    def spec(self) -> ServeEndpointSpec:
        return self.resource.spec

    def labels(self, component: str) -> dict[str, str]:
        return names.labels(names.ENDPOINT, self.name, component)

    def gate(self, config: ServeConfig, revision: str, selector: dict[str, str]) -> Stage:
        """A Job that asks the new revision what the merge recorded, through a Service of its own.

        The Service that carries the traffic is applied once this has passed. The preview's name holds the
        revision: one that was led from the old revision to the new would for a moment, or for good, let the
        old one answer for the new.

        selector: what finds the revision's pods.
        """
        preview = names.child(self.name, f"preview-{revision}", limit=63)
        labels = {**self.labels("gate"), names.REVISION: revision}
        service: Manifest = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": preview, "namespace": self.namespace, "labels": labels},
            "spec": {
                "selector": {**selector, names.REVISION: revision},
                "ports": [{"name": HTTP, "port": 80, "targetPort": HTTP, "protocol": "TCP"}],
            },
        }
        volumes = Volumes(self.settings)
        model = volumes.resolve(self.uri, "spec.model.uri")
        command = [
            "python3", "-m", "tunewright_workloads.serve.gate",
            "--url", f"http://{preview}.{self.namespace}.svc",
            "--model-dir", model, "--name", config.served_name, "--dtype", self._precision(config),
            "--no-hashes", "--patience", "300",
        ]  # fmt: skip
        return Stage("gate", (service, self._job("gate", command, labels, revision, volumes)))

    def _precision(self, config: ServeConfig) -> str:
        """The coarsest rounding between the recorded log-probabilities and the server's."""
        if config.kv_cache_dtype == "fp8":
            return "fp8"
        if config.dtype != "auto":
            return config.dtype
        return "float32" if self.spec.accelerator.type == "cpu" else "bfloat16"

    def benchmark(self, revision: str) -> Stage:
        """A Job that loads the endpoint through its Service and leaves its figures in a ConfigMap."""
        found = self.spec.benchmark
        assert found is not None
        config = BenchConfig(
            url=url(self.name, self.namespace).removesuffix("/v1"),
            model=self.resource.served_name,
            input_tokens=found.input_tokens,
            output_tokens=found.output_tokens,
            rates=tuple(found.rates),
            requests=found.requests,
            warmup=found.warmup,
            accelerator=self.spec.accelerator.type,
            topology=self.spec.accelerator.topology,
            count=self.spec.accelerator.count,
            provisioning=self.spec.accelerator.provisioning.mode,
            params=(self.model.params_active or self.model.params) if self.model else None,
            output=f"{WORK}/{BENCHMARK_KEY}",
        )
        labels = {**self.labels("bench"), names.REVISION: revision}
        text = config.text()
        config_map: Manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": names.child(self.name, f"bench-{revision}", limit=63),
                "namespace": self.namespace,
                "labels": labels,
            },
            "immutable": True,
            "data": {"bench.json": text},
        }
        command = ["python3", "-m", "tunewright_workloads.bench", "--config", f"{CONFIG}/bench.json"]
        job = self._job(
            "bench", command, labels, revision, Volumes(self.settings), config_map["metadata"]["name"]
        )
        return Stage("bench", (config_map, job), config)

    def _job(
        self, stage: str, command: list[str], labels: dict[str, str], revision: str, volumes: Volumes,
        config_map: str | None = None,
    ) -> Manifest:  # fmt: skip
        """A small Job on an ordinary node, beside the server."""
        chip, rows = accelerator("cpu"), slice_of("cpu")
        image = self.settings.train("cpu")
        mounted, mounts = volumes.render(config_map, scratch_gib=1)
        sidecars, account = [], self.spec.service_account_name
        if stage == "bench":
            target = benchmark_map(self.name)
            relay, token = progress.sidecar(
                target, image, self.settings.pull_policy, file=f"{WORK}/{BENCHMARK_KEY}"
            )
            sidecars, mounted, account = [relay], [*mounted, token], target
        container: Manifest = {
            "name": stage,
            "image": image,
            "imagePullPolicy": self.settings.pull_policy,
            "command": command,
            "env": pods.environment({"JAX_PLATFORMS": "cpu"}, self.spec.pod_template),
            "resources": pods.resources(
                chip, rows, cpu="100m", memory="512Mi", scratch=None, user=PodTemplate()
            ),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": mounts,
        }
        template = pods.pod(
            labels={**labels, names.STAGE: stage},
            annotations={},
            container=container,
            volumes=mounted,
            selector={},
            tolerations=[],
            user=self.spec.pod_template,
            account=account,
            grace=30,
            restart="Never",
            sidecars=sidecars,
        )
        made, _ = workload(
            self.name, f"{stage}-{revision}", self.namespace, labels, template, rows, Rules(retries=3),
            self.settings,
        )  # fmt: skip
        return made[0]

    def shared(self) -> tuple[Manifest, ...]:
        """Where the benchmark's figures go, and the account that may write them."""
        if not self.spec.benchmark:
            return ()
        target, labels = benchmark_map(self.name), self.labels("bench")
        return (
            progress.account(target, self.namespace, labels),
            *progress.objects(target, self.namespace, labels, target),
        )
