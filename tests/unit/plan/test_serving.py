"""A ServeEndpoint's children, rule by rule."""

from __future__ import annotations

import json

import pytest

from support import specs
from tunewright_operator import plan
from tunewright_operator.plan import Settings
from tunewright_operator.plan.probes import url
from tunewright_workloads.contract import configs
from tunewright_workloads.contract.faults import UserError

CPU = {"spec.accelerator": {"type": "cpu"}}
BLUE = {"spec.rollout": {"strategy": "blueGreen"}}
REF = {"spec.model": {"fineTuneJobRef": {"name": "support-bot"}}}


def deployment(made):
    return made.stage("serve").workload


def of_kind(made, kind):
    return [m for m in made.manifests() if m["kind"] == kind]


def service(made):
    return made.after[-1]


def variables(stage):
    return {e["name"]: e.get("value") for e in stage.container["env"]}


# -- what is served -------------------------------------------------------------------------


def test_a_job_of_the_file_is_served_from_where_it_publishes():
    made = plan.endpoint(specs.endpoint(REF), job=specs.job())
    assert made.stage("serve").config.model == made.output == "gs://acme/models/support-bot/merged"


def test_a_model_on_a_claim_is_mounted_read_only():
    made = plan.endpoint(specs.endpoint(REF | CPU), job=specs.job(specs.TINY))
    stage = made.stage("serve")
    assert stage.config.model == "file:///mnt/claims/data/out/merged"
    (mount,) = [m for m in stage.container["volumeMounts"] if m["mountPath"] == "/mnt/claims/data"]
    assert mount["readOnly"] is True


def test_a_job_that_nobody_knows_is_refused():
    with pytest.raises(UserError, match=r"fineTuneJobRef\.name: names a FineTuneJob that is not known"):
        plan.endpoint(specs.endpoint(REF))
    made = plan.endpoint(specs.endpoint(REF), uri="gs://acme/other/merged")
    assert made.stage("serve").config.model == "gs://acme/other/merged"


def test_a_job_without_a_merged_model_is_refused():
    with pytest.raises(UserError, match="publishes no merged model"):
        plan.endpoint(specs.endpoint(REF), job=specs.job({"spec.output.merge": False}))


# -- the server -----------------------------------------------------------------------------


def test_the_configuration_is_read_by_the_workload(tmp_path):
    stage = plan.endpoint(specs.endpoint()).stage("serve")
    (data,) = stage.configmaps.values()
    path = tmp_path / "serve.json"
    path.write_text(data["serve.json"])
    assert configs.load(configs.ServeConfig, path) == stage.config
    assert stage.container["command"] == [
        "python3", "-m", "tunewright_workloads.serve", "--config", "/etc/tunewright/serve.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("accelerator", "engine", "tp", "dp", "image"),
    [
        ({"type": "cpu"}, "jax", 1, 1, "tunewright/train:"),
        ({"type": "v6e", "topology": "2x4"}, "vllm", 8, 1, "tunewright/serve-tpu:"),
        ({"type": "v7x", "topology": "2x2x1"}, "vllm", 2, 4, "tunewright/serve-tpu:"),
        ({"type": "h100", "count": 2}, "vllm", 2, 1, "tunewright/serve-gpu:"),
    ],
)
def test_engine_parallelism_and_image_follow_from_the_accelerator(accelerator, engine, tp, dp, image):
    stage = plan.endpoint(specs.endpoint(accelerator=accelerator)).stage("serve")
    assert (stage.config.engine, stage.config.tensor_parallel, stage.config.data_parallel) == (engine, tp, dp)
    assert stage.container["image"].startswith(image)


def test_the_users_image_is_taken_as_it_is():
    made = plan.endpoint(specs.endpoint(engine={"image": "r/x@sha256:1"}), Settings(registry="mine/"))
    assert made.stage("serve").container["image"] == "r/x@sha256:1"


def test_the_registry_is_put_before_our_images():
    made = plan.endpoint(specs.endpoint(), Settings(registry="mine/"))
    assert made.stage("serve").container["image"].startswith("mine/tunewright/serve-tpu:")
    assert made.stage("gate").container["image"].startswith("mine/tunewright/train:")


@pytest.mark.parametrize("accelerator", [{"type": "cpu"}, {"type": "v6e", "topology": "2x4"}])
def test_every_budget_holds_the_one_before_it(accelerator):
    """A start that takes too long ends by the engine's own message, not by a probe."""
    stage = plan.endpoint(specs.endpoint(accelerator=accelerator)).stage("serve")
    probe = stage.container["startupProbe"]
    startup = probe["periodSeconds"] * probe["failureThreshold"]
    engine = int(variables(stage).get("VLLM_ENGINE_READY_TIMEOUT_S") or 0)
    assert engine < startup < stage.workload["spec"]["progressDeadlineSeconds"]
    if accelerator["type"] != "cpu":
        assert startup >= 45 * 60, "a cold slice compiles for up to half an hour, after loading the weights"


@pytest.mark.parametrize("kind", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_probes_ask_the_server_and_not_only_its_socket(kind):
    probe = plan.endpoint(specs.endpoint()).stage("serve").container[kind]
    assert probe["httpGet"] == {"path": "/health", "port": "http"}


def test_liveness_is_lenient():
    probe = plan.endpoint(specs.endpoint()).stage("serve").container["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 120


@pytest.mark.parametrize("drain", [0, 30, 3600])
def test_the_grace_period_holds_the_pause_and_the_drain(drain):
    stage = plan.endpoint(specs.endpoint(drainSeconds=drain)).stage("serve")
    pause = stage.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause > 0, "the Service must have forgotten the pod before it stops listening"
    assert stage.template["spec"]["terminationGracePeriodSeconds"] > pause + drain
    assert stage.config.drain_seconds == drain


def test_vllm_gets_shared_memory():
    volumes = plan.endpoint(specs.endpoint()).stage("serve").template["spec"]["volumes"]
    (shm,) = [v for v in volumes if v["name"] == "shm"]
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}


def test_the_compile_cache_is_mounted_and_keyed_by_what_shapes_a_program():
    def cache(**engine):
        stage = plan.endpoint(specs.endpoint(compileCache={"pvc": "vllm-cache"}, engine=engine)).stage(
            "serve"
        )
        assert variables(stage).get("VLLM_XLA_CACHE_PATH") in (None, stage.config.compile_cache)
        return stage.config.compile_cache

    assert cache().startswith("/mnt/claims/vllm-cache/")
    assert cache() == cache()
    assert cache(maxModelLength=4096) != cache()
    assert cache(image="other") != cache()


def test_a_new_model_finds_the_programs_of_the_last_one():
    one, other = (
        plan.endpoint(specs.endpoint({"spec.model.uri": u}, compileCache={"pvc": "c"})).stage("serve").config
        for u in ("gs://acme/a/merged", "gs://acme/b/merged")
    )
    assert one.compile_cache == other.compile_cache


def test_what_the_small_engine_does_not_know_is_refused():
    with pytest.raises(UserError) as caught:
        plan.endpoint(specs.endpoint(CPU, engine={"maxBatchedTokens": 4096, "kvCacheDtype": "bfloat16"}))
    assert {f.place for f in caught.value.faults} == {
        "spec.engine.maxBatchedTokens",
        "spec.engine.kvCacheDtype",
    }


def test_a_model_that_does_not_fit_is_refused_with_the_numbers():
    with pytest.raises(UserError, match=r"spec\.accelerator: does not hold .* GiB of weights"):
        plan.endpoint(
            specs.endpoint(REF | {"spec.accelerator": {"type": "v6e", "topology": "1x1"}}), job=specs.job()
        )


def test_the_memory_of_a_model_that_fits_is_told():
    made = plan.endpoint(specs.endpoint(REF), job=specs.job())
    assert any("GiB of KV cache" in note for note in made.notes)


def test_experimental_accelerators_are_said_to_be_so():
    made = plan.endpoint(specs.endpoint(accelerator={"type": "v5p", "topology": "2x2x1"}))
    assert any("experimental" in note for note in made.notes)


def test_faults_of_the_engine_name_the_users_field():
    with pytest.raises(UserError) as caught:
        plan.endpoint(specs.endpoint(engine={"maxBatchedTokens": 1024}))
    assert caught.value.faults[0].place == "spec.engine.maxBatchedTokens"


# -- rollout --------------------------------------------------------------------------------


def test_recreate_needs_no_spare_slice():
    made = plan.endpoint(specs.endpoint())
    assert deployment(made)["spec"]["strategy"] == {"type": "Recreate"}
    assert deployment(made)["metadata"]["name"] == "support-bot-serve"


def test_a_deployments_selector_never_changes():
    """It is immutable: a selector with the revision in it would make every rollout fail."""
    one = deployment(plan.endpoint(specs.endpoint(), digest="a"))
    other = deployment(plan.endpoint(specs.endpoint(), digest="b"))
    assert one["metadata"]["name"] == other["metadata"]["name"]
    assert one["spec"]["selector"] == other["spec"]["selector"]
    assert one["spec"]["template"] != other["spec"]["template"], "a new digest must roll out"


def test_blue_green_has_a_deployment_for_each_revision():
    one, other = (deployment(plan.endpoint(specs.endpoint(BLUE), digest=d)) for d in "ab")
    assert one["metadata"]["name"] != other["metadata"]["name"]
    assert one["spec"]["selector"] != other["spec"]["selector"]


@pytest.mark.parametrize("changes", [{}, BLUE])
def test_traffic_goes_only_to_the_revision_that_passed_the_gate(changes):
    one, other = (plan.endpoint(specs.endpoint(changes), digest=d) for d in "ab")
    for made in (one, other):
        selector = service(made)["spec"]["selector"].items()
        assert selector <= made.stage("serve").template["metadata"]["labels"].items()
    assert not (
        service(one)["spec"]["selector"].items()
        <= other.stage("serve").template["metadata"]["labels"].items()
    )


def test_the_service_comes_last():
    assert service(plan.endpoint(specs.endpoint()))["kind"] == "Service"


def test_without_a_gate_nothing_stands_before_the_traffic():
    made = plan.endpoint(specs.endpoint(rollout={"gate": False}))
    assert [s.name for s in made.stages] == ["serve"]
    assert "tunewright.dev/revision" not in service(made)["spec"]["selector"]


def test_the_gate_asks_the_new_revision_by_its_own_service():
    made = plan.endpoint(specs.endpoint())
    gate = made.stage("gate")
    (preview,) = [m for m in gate.manifests if m["kind"] == "Service"]
    command = gate.container["command"]
    assert command[command.index("--url") + 1] == f"http://{preview['metadata']['name']}.team.svc"
    assert command[command.index("--model-dir") + 1] == "gs://acme/models/support-bot/merged"
    assert preview["spec"]["selector"].items() <= made.stage("serve").template["metadata"]["labels"].items()
    assert not preview["spec"]["selector"].items() <= gate.template["metadata"]["labels"].items()
    other = plan.endpoint(specs.endpoint({"spec.model": {"uri": "gs://acme/models/other"}})).stage("gate")
    assert preview["metadata"]["name"] not in [m["metadata"]["name"] for m in other.manifests], (
        "a Service of the old revision would let the old server answer for the new one"
    )
    codes = [
        r["onExitCodes"]["values"] for r in gate.job["podFailurePolicy"]["rules"] if r["action"] == "FailJob"
    ]
    assert codes == [[2]], "a wrong answer is final; a server that does not answer yet is asked again"


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [(CPU, "float32"), ({}, "bfloat16"), ({"spec.engine.kvCacheDtype": "fp8"}, "fp8")],
)
def test_the_gate_allows_the_rounding_of_what_is_served(changes, dtype):
    command = plan.endpoint(specs.endpoint(changes)).stage("gate").container["command"]
    assert command[command.index("--dtype") + 1] == dtype


def test_a_pod_that_restarts_during_a_rollout_starts_as_what_it_was():
    (config,) = of_kind(plan.endpoint(specs.endpoint()), "ConfigMap")
    (other,) = of_kind(plan.endpoint(specs.endpoint(engine={"maxModelLength": 1024})), "ConfigMap")
    assert config["immutable"] is True
    assert config["metadata"]["name"] != other["metadata"]["name"]


@pytest.mark.parametrize("change", [{"replicas": 3}, {"autoscaling": {"max": 4}}])
def test_scaling_is_no_new_revision(change):
    one, other = plan.endpoint(specs.endpoint()), plan.endpoint(specs.endpoint(**change))
    assert deployment(one)["spec"]["template"] == deployment(other)["spec"]["template"]


# -- scaling and watching -------------------------------------------------------------------


def test_a_fixed_number_of_replicas():
    made = plan.endpoint(specs.endpoint(replicas=3))
    assert deployment(made)["spec"]["replicas"] == 3
    assert not of_kind(made, "HorizontalPodAutoscaler")


@pytest.mark.parametrize("changes", [{}, BLUE])
def test_autoscaling_owns_the_number_of_replicas(changes):
    scale = {"min": 2, "max": 4, "targetWaitingRequests": 7}
    made = plan.endpoint(specs.endpoint(changes, autoscaling=scale))
    assert "replicas" not in deployment(made)["spec"], "or every apply would undo the autoscaler"
    (hpa,) = of_kind(made, "HorizontalPodAutoscaler")
    spec = hpa["spec"]
    assert spec["scaleTargetRef"]["name"] == deployment(made)["metadata"]["name"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 4)
    (metric,) = spec["metrics"]
    assert "vllm:num_requests_waiting" in metric["pods"]["metric"]["name"]
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "7"}


def test_optional_kinds_are_planned_where_their_crds_are():
    bare = plan.endpoint(specs.endpoint())
    full = plan.endpoint(specs.endpoint(), Settings(pod_monitoring=True, endpoint_picker="picker"))
    assert not of_kind(bare, "PodMonitoring") and not of_kind(bare, "InferencePool")
    (monitoring,), (pool,) = of_kind(full, "PodMonitoring"), of_kind(full, "InferencePool")
    assert monitoring["spec"]["endpoints"][0]["path"] == "/metrics"
    assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
    assert pool["spec"]["endpointPickerRef"]["name"] == "picker"


def test_an_interruption_takes_one_replica_at_a_time():
    (budget,) = of_kind(plan.endpoint(specs.endpoint(replicas=3)), "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1


def test_the_benchmark_loads_the_public_service_and_its_figures_have_a_place():
    made = plan.endpoint(specs.endpoint(benchmark={"rates": [1.0, 2.0], "requests": 7}))
    stage = made.stage("bench")
    config = json.loads(next(iter(stage.configmaps.values()))["bench.json"])
    assert config["rates"] == [1.0, 2.0] and config["requests"] == 7
    assert config["model"] == "support-bot"
    assert "://support-bot.team.svc" in config["url"]
    (relay,) = stage.template["spec"]["initContainers"]
    (target,) = [m["metadata"]["name"] for m in made.shared if m["kind"] == "ConfigMap"]
    assert config["output"] in relay["command"] and target in relay["command"]


def test_the_url_is_what_the_service_is_called():
    made = plan.endpoint(specs.endpoint())
    assert url("support-bot", "team") == f"http://{service(made)['metadata']['name']}.team.svc/v1"


@pytest.mark.parametrize("name", ["bot", "b" * 63])
def test_the_operator_finds_and_keeps_what_the_relays_write(name):
    from tunewright_operator.plan import progress
    from tunewright_operator.plan.probes import BENCHMARK_KEY, benchmark_map
    from tunewright_operator.reconcile import cache, resources

    measured = plan.endpoint(specs.endpoint({"metadata.name": name}, benchmark={}))
    trained = plan.job(specs.job({"metadata.name": name}))
    for made, target, key in (
        (measured.stage("bench"), benchmark_map(name), BENCHMARK_KEY),
        (trained.stage("train"), progress.config_map(name), progress.KEY),
    ):
        (relay,) = made.template["spec"]["initContainers"]
        command = relay["command"]
        assert command[command.index("--config-map") + 1] == target
        assert command[command.index("--file") + 1].rpartition("/")[2] == key
        seen = {"metadata": {"name": target, "namespace": "team"}, "data": {key: "{}", "other": "x"}}
        assert cache.slim(resources.CONFIGMAP, seen)["data"] == {key: "{}"}


# -- the compile cache is filled once -------------------------------------------------------

CACHED = {"spec.compileCache": {"pvc": "vllm-cache"}}


def warm(made):
    return next((s for s in made.stages if s.name == "warm"), None)


def test_a_job_fills_the_compile_cache_with_what_the_server_will_ask_of_it():
    made = plan.endpoint(specs.endpoint(CACHED))
    assert [s.name for s in made.stages] == ["warm", "serve", "gate"]
    filling, serve = warm(made), made.stage("serve")
    assert filling.config == serve.config
    assert filling.container["command"] == [*serve.container["command"], "--warm-up"]
    assert filling.container["resources"] == serve.container["resources"], "the same slice"
    assert filling.template["spec"]["nodeSelector"] == serve.template["spec"]["nodeSelector"]
    assert variables(filling) == variables(serve)
    (data,) = filling.configmaps.values()
    assert json.loads(data["serve.json"])["compileCache"] == serve.config.compile_cache
    assert not {"startupProbe", "livenessProbe", "lifecycle"} & filling.container.keys()
    assert filling.workload["kind"] == "Job" and filling.job["backoffLimit"] == 1


def test_no_service_finds_the_job_that_fills_the_cache():
    made = plan.endpoint(specs.endpoint(CACHED), Settings(pod_monitoring=True, endpoint_picker="picker"))
    labels = warm(made).template["metadata"]["labels"].items()
    selectors = [m["spec"]["selector"] for m in made.manifests() if "selector" in m.get("spec", {})]
    assert len(selectors) == 6
    for selector in selectors:
        assert not selector.get("matchLabels", selector).items() <= labels


def test_another_version_of_the_model_finds_the_job_done_and_other_arguments_do_not():
    def name(changes, digest):
        return warm(plan.endpoint(specs.endpoint(CACHED | changes), digest=digest)).workload["metadata"][
            "name"
        ]

    assert name({}, "a") == name({"spec.model.uri": "gs://acme/other/merged"}, "b")
    assert name({}, "a") != name({"spec.engine": {"maxModelLength": 4096}}, "a")
    assert name({}, "a") != name({"spec.accelerator": {"type": "v6e", "topology": "2x2"}}, "a")


@pytest.mark.parametrize("changes", [{}, CPU | CACHED, CPU | CACHED | {"spec.engine": {"name": "vllm"}}])
def test_nothing_is_filled_where_there_is_no_cache_or_nothing_compiles_long(changes):
    assert warm(plan.endpoint(specs.endpoint(changes))) is None


def test_a_gateway_gets_only_what_has_passed_the_gate():
    made = plan.endpoint(specs.endpoint(), Settings(endpoint_picker="picker"))
    (pool,) = of_kind(made, "InferencePool")
    assert pool["spec"]["selector"]["matchLabels"] == service(made)["spec"]["selector"]


@pytest.mark.parametrize(
    "image",
    ["vllm/vllm-tpu", "vllm/vllm-tpu:v0.32.0", "docker.io/vllm/vllm-openai@sha256:" + "a" * 64,
     "vllm/vllm-openai:v1@sha256:" + "a" * 64],
)  # fmt: skip
def test_vllms_own_image_is_refused_with_how_to_make_the_right_one(image):
    with pytest.raises(
        UserError, match=r"spec\.engine\.image: is vLLM's own image.*Dockerfile\.serve"
    ) as caught:
        plan.endpoint(specs.endpoint(engine={"image": image}))
    assert f"BASE={image}" in caught.value.text()


@pytest.mark.parametrize(
    "image", ["registry.example:5000/vllm/vllm-tpu", "mine/serve-tpu@sha256:1", "localhost:5000/x"]
)
def test_an_image_of_ones_own_is_taken_whatever_it_is_made_of(image):
    made = plan.endpoint(specs.endpoint(engine={"image": image}))
    assert made.stage("serve").container["image"] == image
