"""A FineTuneJob's children, rule by rule."""

from __future__ import annotations

import json

import pytest

from support import specs
from tunewright_operator import plan
from tunewright_operator.plan import Settings
from tunewright_workloads.contract import configs, exits
from tunewright_workloads.contract.accelerators import ACCELERATORS
from tunewright_workloads.contract.faults import UserError

TINY = specs.TINY
FOUR_HOSTS = {"spec.accelerator": {"type": "v5p", "topology": "2x2x4"}}


def pods(made: plan.Plan):
    """(stage, pod template) of every Job of a plan."""
    return [(stage, stage.template) for stage in made.stages]


def kinds(made: plan.Plan) -> list[str]:
    return [m["kind"] for m in made.manifests()]


def config(made: plan.Plan, stage: str) -> dict:
    (data,) = made.stage(stage).configmaps.values()
    return json.loads(data[f"{stage}.json"])


# -- stages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "stages"),
    [
        ({}, ["train", "merge"]),
        ({"spec.output.merge": False}, ["train"]),
        (
            {"spec.evaluation": {"maxEvalLoss": 1.2}, "spec.dataset.validation": ["gs://acme/v.jsonl"]},
            ["train", "merge", "evaluate"],
        ),
        (
            {"spec.evaluation": {}, "spec.dataset.validation": ["gs://acme/v.jsonl"]},
            ["train", "merge", "evaluate"],
        ),
    ],
)
def test_stages_in_order(changes, stages):
    assert [s.name for s in plan.job(specs.job(changes)).stages] == stages


def test_the_output_is_where_the_next_stage_looks():
    made = plan.job(specs.job({"spec.evaluation": {}, "spec.dataset.validation": ["gs://acme/v.jsonl"]}))
    out = "gs://acme/models/support-bot"
    assert config(made, "train")["output"] == out
    assert config(made, "merge")["adapter"] == out
    assert (
        config(made, "merge")["output"] == config(made, "evaluate")["model"] == made.output == f"{out}/merged"
    )


@pytest.mark.parametrize("changes", [{}, TINY, FOUR_HOSTS])
def test_every_configuration_is_read_by_its_workload(changes, tmp_path):
    kinds = {"train": configs.TrainConfig, "merge": configs.MergeConfig, "evaluate": configs.EvaluateConfig}
    for stage in plan.job(specs.job(changes)).stages:
        (data,) = stage.configmaps.values()
        path = tmp_path / f"{stage.name}.json"
        path.write_text(data[f"{stage.name}.json"])
        assert configs.load(kinds[stage.name], path) == stage.config


def test_each_command_reads_the_file_that_is_mounted():
    for stage, template in pods(plan.job(specs.job())):
        command = stage.container["command"]
        assert command == [
            "python3", "-m", f"tunewright_workloads.{stage.name}", "--config", f"/etc/tunewright/{stage.name}.json",
        ]  # fmt: skip
        (volume,) = [v for v in template["spec"]["volumes"] if "configMap" in v]
        assert volume["configMap"]["name"] in stage.configmaps


def test_a_clipping_norm_of_zero_means_no_clipping():
    assert (
        config(plan.job(specs.job({"spec.training.maxGradNorm": 0})), "train")["training"]["maxGradNorm"]
        is None
    )


def test_a_mesh_of_auto_is_decided_by_the_plan_for_known_models():
    mesh = config(plan.job(specs.job()), "train")["mesh"]
    assert (mesh["fsdp"], mesh["tp"]) == (4, 1), "fsdp first: it costs the least communication"


def test_a_mesh_of_auto_is_left_to_the_workload_for_custom_models():
    made = plan.job(specs.job({"spec.model": {"name": "custom", "source": "gs://acme/base"}}))
    mesh = config(made, "train")["mesh"]
    assert (mesh["fsdp"], mesh["tp"]) == (None, None)
    assert "not checked" in made.notes[0]


# -- failure policy -------------------------------------------------------------------------


def rules(job_spec) -> dict:
    """What happens on each exit code and on DisruptionTarget."""
    found = {}
    for rule in job_spec["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule:
            for code in rule["onExitCodes"]["values"]:
                found[code] = rule["action"]
        else:
            (condition,) = rule["onPodConditions"]
            assert condition["status"] == "True"
            found[condition["type"]] = rule["action"]
    return found


def test_bad_input_fails_and_preemption_does_not_count():
    for stage in plan.job(specs.job()).stages:
        assert rules(stage.job) == {2: "FailJob", 75: "Ignore", "DisruptionTarget": "Ignore"}
        assert exits.KILLED not in rules(stage.job), "out of memory must count, or it would repeat for ever"


def test_a_pod_failure_policy_needs_pods_that_never_restart():
    for _, template in pods(plan.job(specs.job())):
        assert template["spec"]["restartPolicy"] == "Never"


def test_exit_codes_are_those_of_the_container_that_works_not_of_the_relay():
    for stage in plan.job(specs.job()).stages:
        names = {
            r["onExitCodes"]["containerName"]
            for r in stage.job["podFailurePolicy"]["rules"]
            if "onExitCodes" in r
        }
        assert names == {stage.container["name"]}


@pytest.mark.parametrize(
    ("changes", "stage", "limit"),
    [
        (TINY | {"spec.limits.retries": 1}, "train", 1),
        ({"spec.limits.retries": 1}, "train", 6),  # rejected pods of a node under repair count as well
        ({"spec.limits.retries": 9}, "train", 9),
        ({"spec.limits.retries": 1}, "merge", 1),
    ],
)
def test_backoff_limit(changes, stage, limit):
    assert plan.job(specs.job(changes)).stage(stage).job["backoffLimit"] == limit


def test_no_index_of_a_slice_has_a_limit_of_its_own():
    for settings in (Settings(), Settings(jobset=False)):
        made = plan.job(specs.job(FOUR_HOSTS), settings)
        assert "backoffLimitPerIndex" not in made.stage("train").job, (
            "a synchronous slice lives and dies as one"
        )


# -- placement ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accelerator", "selector", "chips"),
    [
        (
            {"type": "v5p", "topology": "2x2x1"},
            {"gke-tpu-accelerator": "tpu-v5p-slice", "gke-tpu-topology": "2x2x1"},
            4,
        ),
        (
            {"type": "v6e", "topology": "2x4"},
            {"gke-tpu-accelerator": "tpu-v6e-slice", "gke-tpu-topology": "2x4"},
            8,
        ),
        (
            {"type": "v6e", "topology": "2x4", "chipsPerHost": 4},
            {"gke-tpu-accelerator": "tpu-v6e-slice", "gke-tpu-topology": "2x4"},
            4,
        ),
        (
            {"type": "v5e", "topology": "4x4"},
            {"gke-tpu-accelerator": "tpu-v5-lite-podslice", "gke-tpu-topology": "4x4"},
            4,
        ),
        (
            {"type": "v7x", "topology": "2x2x1"},
            {"gke-tpu-accelerator": "tpu7x", "gke-tpu-topology": "2x2x1"},
            4,
        ),
    ],
)
def test_tpu_pods_take_all_chips_of_their_machine(accelerator, selector, chips):
    changes = {"spec.model.name": "gemma-4-e4b", "spec.accelerator": accelerator}
    template = plan.job(specs.job(changes)).stage("train").template
    assert template["spec"]["nodeSelector"] == {f"cloud.google.com/{k}": v for k, v in selector.items()}
    resources = template["spec"]["containers"][0]["resources"]
    assert resources["requests"]["google.com/tpu"] == resources["limits"]["google.com/tpu"] == chips
    assert {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"} in template["spec"][
        "tolerations"
    ]


ROWS = [
    pytest.param(chip, row, id=f"{chip.name}-{row.topology}-{row.chips_per_host}")
    for chip in ACCELERATORS.values()
    if chip.kind == "tpu"
    for row in chip.slices
]


@pytest.mark.parametrize(("chip", "row"), ROWS)
@pytest.mark.parametrize("jobset", [True, False])
def test_every_slice_of_the_catalog_gets_its_machines_and_all_their_chips(chip, row, jobset):
    devices = row.chips * chip.devices_per_chip
    changes = {
        "spec.model.name": "gemma-4-e2b",
        "spec.dataset.maxLength": 128,
        "spec.training": {"globalBatchSize": devices},
        "spec.accelerator": {"type": chip.name, "topology": row.topology, "chipsPerHost": row.chips_per_host},
    }
    stage = plan.job(specs.job(changes), Settings(jobset=jobset)).stage("train")
    assert stage.job["completions"] == stage.job["parallelism"] == row.hosts
    assert stage.container["resources"]["limits"]["google.com/tpu"] == row.chips_per_host
    kind = "Job" if row.hosts == 1 or not jobset else "JobSet"
    assert stage.workload["kind"] == kind
    mesh = stage.config.mesh
    assert (mesh.hosts, mesh.fsdp * mesh.tp) == (row.hosts, devices)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_gpus_are_trained_by_the_pytorch_program(count):
    changes = {
        "spec.model.name": "gemma-4-e4b",
        "spec.accelerator": {"type": "h100", "count": count},
        "spec.output.uri": "pvc://claim/bot",
    }
    stage = plan.job(specs.job(changes)).stage("train")
    spec = stage.template["spec"]
    assert stage.container["command"][2] == "tunewright_workloads.gpu"
    assert stage.container["image"].startswith("tunewright/train-gpu")
    assert spec["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert stage.container["resources"]["limits"] == {"nvidia.com/gpu": count}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    assert any(v.get("emptyDir", {}).get("medium") == "Memory" for v in spec["volumes"]), (
        "NCCL needs /dev/shm"
    )
    assert (stage.config.mesh.fsdp, stage.config.mesh.tp) == (count, 1), "one process a GPU, FSDP over all"
    assert stage.workload["kind"] == "Job"


def test_gpus_evaluate_with_the_image_that_trained():
    changes = {
        "spec.model.name": "gemma-4-e4b",
        "spec.accelerator": {"type": "h100", "count": 2},
        "spec.output.uri": "pvc://claim/bot",
        "spec.evaluation": {"maxEvalLoss": 1.5},
        "spec.dataset.validation": ["gs://acme/v.jsonl"],
    }
    stage = plan.job(specs.job(changes)).stage("evaluate")
    assert stage.container["command"][2] == "tunewright_workloads.evaluate"
    assert stage.container["image"].startswith("tunewright/train-gpu")
    assert stage.container["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert (stage.config.mesh.accelerator, stage.config.max_eval_loss) == ("h100", 1.5)


def test_what_gpus_cannot_do_is_refused():
    changes = {
        "spec.model.name": "gemma-4-e4b",
        "spec.accelerator": {"type": "h100", "count": 2, "mesh": {"fsdp": 1, "tp": 2}},
        "spec.adapter.quantizeBase": "int8",
    }
    with pytest.raises(UserError) as caught:
        plan.job(specs.job(changes))
    assert {f.place for f in caught.value.faults} == {
        "spec.adapter.quantizeBase",
        "spec.accelerator.mesh",
        "spec.output.uri",
    }


@pytest.mark.parametrize(
    ("provisioning", "selector"),
    [
        ({"mode": "onDemand"}, {}),
        ({"mode": "spot"}, {"cloud.google.com/gke-spot": "true"}),
        ({"mode": "flexStart"}, {"cloud.google.com/gke-flex-start": "true"}),
        ({"mode": "reservation", "name": "r1"}, {"cloud.google.com/reservation-name": "r1"}),
        ({"mode": "computeClass", "name": "c1"}, {"cloud.google.com/compute-class": "c1"}),
    ],
)
def test_provisioning_modes(provisioning, selector):
    made = plan.job(specs.job({"spec.accelerator.provisioning": provisioning}))
    base = {"cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"}
    found = made.stage("train").template["spec"]["nodeSelector"]
    assert {k: v for k, v in found.items() if k not in base} == selector
    assert "nodeSelector" not in made.stage("merge").template["spec"], "merging needs no slice"


def test_the_same_file_runs_on_ordinary_nodes():
    for _, template in pods(plan.job(specs.job(TINY))):
        assert "nodeSelector" not in template["spec"]
        assert "tolerations" not in template["spec"]
        assert "limits" not in template["spec"]["containers"][0]["resources"]


def test_nobody_tolerates_the_end_of_its_node():
    made = plan.job(specs.job({"spec.accelerator.provisioning": {"mode": "spot"}}))
    keys = {t.get("key") for _, p in pods(made) for t in p["spec"].get("tolerations", [])}
    assert "cloud.google.com/impending-node-termination" not in keys


def test_cpu_requests_stay_small():
    for stage in plan.job(specs.job()).stages:
        assert stage.container["resources"]["requests"]["cpu"] == "500m", "a large request stalls a TPU pool"


def test_training_pods_are_not_moved_by_the_autoscaler():
    for _, template in pods(plan.job(specs.job())):
        assert (
            template["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
        )


# -- several machines -----------------------------------------------------------------------


def test_a_slice_of_several_machines_is_one_jobset():
    made = plan.job(specs.job(FOUR_HOSTS))
    stage = made.stage("train")
    jobset = stage.workload
    assert (jobset["kind"], jobset["apiVersion"]) == ("JobSet", "jobset.x-k8s.io/v1alpha2")
    topology = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    assert jobset["metadata"]["annotations"][topology] == "cloud.google.com/gke-nodepool"
    job = stage.job
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 4, 4)
    assert job["backoffLimit"] == 0, "JobSet restarts all pods together"
    assert rules(job) == {2: "FailJob", 75: "FailJob", "DisruptionTarget": "FailJob"}
    policy = jobset["spec"]["failurePolicy"]
    assert policy["restartStrategy"] == "BlockingRecreate"
    assert made.stage("merge").workload["kind"] == "Job", "merging needs one machine"


@pytest.mark.parametrize(
    ("message", "action"),
    [
        (
            "Container train for pod ns/p failed with exit code 2 matching FailJob rule at index 0",
            "FailJobSet",
        ),
        (
            "Container train for pod ns/p failed with exit code 75 matching FailJob rule at index 1",
            "RestartJobSetAndIgnoreMaxRestarts",
        ),
        (
            "Pod ns/p has condition DisruptionTarget matching FailJob rule at index 2",
            "RestartJobSetAndIgnoreMaxRestarts",
        ),
        ("Container train for pod ns/p failed with exit code 25 matching FailJob rule at index 0", None),
    ],
)
def test_a_jobset_tells_bad_input_from_preemption_by_the_jobs_message(message, action):
    import re

    policy = plan.job(specs.job(FOUR_HOSTS)).stage("train").workload["spec"]["failurePolicy"]
    found = [
        r["action"]
        for r in policy["rules"]
        if "PodFailurePolicy" in r["onJobFailureReasons"]
        and any(re.search(p, message) for p in r["onJobFailureMessagePatterns"])
    ]
    assert found == ([action] if action else [])


def test_without_jobset_an_indexed_job_and_a_headless_service():
    made = plan.job(specs.job(FOUR_HOSTS | {"spec.limits.retries": 2}), Settings(jobset=False))
    stage = made.stage("train")
    (service,) = [m for m in stage.manifests if m["kind"] == "Service"]
    job = stage.workload
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True, "hosts find each other before any is ready"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert (job["spec"]["completionMode"], job["spec"]["completions"]) == ("Indexed", 4)
    assert job["spec"]["backoffLimit"] == 6 * 4, "when one host fails, all four do"


@pytest.mark.parametrize("name", ["a" * 63, "1" * 63, "ab-" * 20 + "c"])
def test_long_names_fit_what_kubernetes_makes_of_them(name):
    made = plan.job(specs.job(FOUR_HOSTS | {"metadata.name": name}))
    jobset = made.stage("train").workload["metadata"]["name"]
    assert len(f"{jobset}-train-0-999-abcde") <= 63
    for manifest in made.manifests():
        assert len(manifest["metadata"]["name"]) <= 63
        assert all(len(v) <= 63 for v in manifest["metadata"]["labels"].values())


# -- Kueue and suspend ----------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, FOUR_HOSTS])
def test_a_queued_job_starts_suspended_and_is_admitted_by_kueue_alone(changes):
    stage = plan.job(specs.job(changes, queue={"name": "tpu-team-a"})).stage("train")
    assert stage.workload["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "tpu-team-a"
    assert stage.workload["spec"]["suspend"] is True
    assert stage.create_only == ("/spec/suspend",), "we never set it back"


def test_the_merge_waits_in_no_queue():
    made = plan.job(specs.job(queue={"name": "tpu-team-a"}))
    assert "kueue.x-k8s.io/queue-name" not in made.stage("merge").workload["metadata"]["labels"]


@pytest.mark.parametrize("suspend", [True, False])
def test_without_a_queue_suspend_is_the_specs(suspend):
    stage = plan.job(specs.job(suspend=suspend)).stage("train")
    assert stage.workload["spec"]["suspend"] is suspend
    assert stage.create_only == ()


# -- volumes, identity, secrets -------------------------------------------------------------


def test_a_claim_is_mounted_and_the_workload_sees_a_path():
    changes = {
        "spec.dataset.train": ["pvc://rows/a.jsonl", "gs://acme/b.jsonl"],
        "spec.output.uri": "pvc://models/bot/",
    }
    stage = plan.job(specs.job(changes)).stage("train")
    assert stage.config.dataset.train == ("file:///mnt/claims/rows/a.jsonl", "gs://acme/b.jsonl")
    assert stage.config.output == "file:///mnt/claims/models/bot"
    claims = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in stage.template["spec"]["volumes"]
              if "persistentVolumeClaim" in v}  # fmt: skip
    mounts = {m["name"]: m for m in stage.container["volumeMounts"]}
    assert {claims[n]: mounts[n]["mountPath"] for n in claims} == {
        "rows": "/mnt/claims/rows",
        "models": "/mnt/claims/models",
    }
    assert {claims[n]: mounts[n].get("readOnly", False) for n in claims} == {"rows": True, "models": False}


def test_a_claim_that_is_read_and_written_is_mounted_once():
    changes = {"spec.dataset.train": ["pvc://data/a.jsonl"], "spec.output.uri": "pvc://data/out"}
    stage = plan.job(specs.job(changes)).stage("train")
    (mount,) = [m for m in stage.container["volumeMounts"] if m["mountPath"].startswith("/mnt/claims")]
    assert "readOnly" not in mount


def test_claims_with_long_or_dotted_names_get_valid_volume_names():
    long = "c" * 250
    changes = {"spec.dataset.train": [f"pvc://{long}/a.jsonl"], "spec.output.uri": "pvc://data.v1/out"}
    volumes = plan.job(specs.job(changes)).stage("train").template["spec"]["volumes"]
    for volume in volumes:
        assert len(volume["name"]) <= 63
        assert "." not in volume["name"]


@pytest.mark.parametrize("place", ["/etc/tunewright/x", "/var/tunewright", "/mnt/claims/other/x"])
def test_files_below_the_folders_of_the_plan_are_refused(place):
    with pytest.raises(UserError, match="must not be below /etc/tunewright"):
        plan.job(specs.job({"spec.dataset.train": [f"file://{place}"]}))


def test_a_file_output_is_for_this_machine_only():
    from tunewright_operator import api

    job = api.parse(
        api.FineTuneJob, specs.merged(specs.JOB, {"spec.output.uri": "file:///home/me/out"}), cluster=False
    )
    with pytest.raises(UserError, match="lost with the pod"):
        plan.job(job)
    assert plan.job(job, Settings(local=True)).stage("train").config.output == "file:///home/me/out"


def test_all_faults_are_told_at_once_and_none_twice():
    changes = {"spec.dataset.train": ["file:///etc/tunewright/a", "file:///var/tunewright/b"],
               "spec.model.source": "file:///mnt/claims/c"}  # fmt: skip
    with pytest.raises(UserError) as caught:
        plan.job(specs.job(changes))
    assert [f.place for f in caught.value.faults] == [
        "spec.model.source", "spec.dataset.train[0]", "spec.dataset.train[1]",
    ]  # fmt: skip


def test_the_hub_token_is_a_reference_that_only_the_kubelet_reads():
    changes = {"spec.model.tokenSecretRef": {"name": "hf-secret", "key": "hf_api_token"}}
    for stage in plan.job(specs.job(changes)).stages:
        (token,) = [e for e in stage.container["env"] if e["name"] == "HF_TOKEN"]
        assert token["valueFrom"]["secretKeyRef"] == {"name": "hf-secret", "key": "hf_api_token"}


def test_pods_run_as_the_named_account_and_else_as_one_of_their_own():
    named = plan.job(specs.job(serviceAccountName="trainer"))
    own = plan.job(specs.job())
    assert {p["spec"]["serviceAccountName"] for _, p in pods(named)} == {"trainer"}
    assert "ServiceAccount" not in kinds(named)
    (account,) = [m for m in own.shared if m["kind"] == "ServiceAccount"]
    assert {p["spec"]["serviceAccountName"] for _, p in pods(own)} == {account["metadata"]["name"]}


def test_scratch_is_asked_for_so_that_a_pod_starts_only_where_it_fits():
    requests = plan.job(specs.job()).stage("train").container["resources"]["requests"]
    assert requests["ephemeral-storage"] == "65Gi", "61.4 GB of weights that are downloaded, and a margin"


def test_a_tiny_model_asks_for_little():
    """So that the quickstart fits on any node."""
    for stage in plan.job(specs.job(TINY | {"spec.evaluation": {}, "spec.dataset.validation": ["pvc://d/v"],
                                            "spec.dataset.train": ["sample://faq"]})).stages:  # fmt: skip
        requests = stage.container["resources"]["requests"]
        assert int(requests["ephemeral-storage"].removesuffix("Gi")) <= 2
        assert int(requests["memory"].removesuffix("Mi")) <= 1500


def test_a_storage_class_makes_scratch_a_volume_of_its_own():
    stage = plan.job(specs.job(), Settings(scratch_class="premium-rwo")).stage("train")
    (work,) = [v for v in stage.template["spec"]["volumes"] if v["name"] == "work"]
    claim = work["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["storageClassName"] == "premium-rwo"
    assert claim["resources"]["requests"]["storage"] == "65Gi"
    assert "ephemeral-storage" not in stage.container["resources"]["requests"]


# -- podTemplate ----------------------------------------------------------------------------

TEMPLATE = {
    "labels": {"team": "a", "app.kubernetes.io/name": "mine"},
    "annotations": {"note": "x"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "env": [
        {"name": "LOG", "value": "debug"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ],
    "resources": {"requests": {"memory": "3Gi"}, "limits": {"memory": "4Gi"}},
}


def test_what_the_user_adds_reaches_every_pod_and_takes_nothing_of_ours_away():
    for stage, template in pods(plan.job(specs.job(podTemplate=TEMPLATE))):
        meta, spec = template["metadata"], template["spec"]
        assert meta["labels"]["team"] == "a"
        assert meta["labels"]["app.kubernetes.io/name"] == "tunewright"
        assert meta["annotations"]["note"] == "x"
        assert spec["nodeSelector"]["disk"] == "ssd"
        assert {"key": "dedicated", "operator": "Exists"} in spec["tolerations"]
        env = {e["name"]: e for e in stage.container["env"]}
        assert env["LOG"]["value"] == "debug"
        assert env["KEY"]["valueFrom"]["secretKeyRef"] == {"name": "s", "key": "k", "optional": False}
        assert stage.container["resources"]["requests"]["memory"] == "3Gi"
        assert stage.container["resources"]["limits"]["memory"] == "4Gi"


def test_a_variable_that_the_plan_sets_is_refused():
    env = [{"name": "JAX_PLATFORMS", "value": "cpu"}, {"name": "HF_HOME", "value": "/x"}]
    with pytest.raises(UserError) as caught:
        plan.job(specs.job({"spec.podTemplate.env": env}))
    assert [f.place for f in caught.value.faults] == [
        "spec.podTemplate.env[0].name",
        "spec.podTemplate.env[1].name",
    ]


# -- progress -------------------------------------------------------------------------------


def test_progress_leaves_the_pod_with_the_least_rights():
    made = plan.job(specs.job())
    by_kind = {m["kind"]: m for m in made.shared}
    target = by_kind["ConfigMap"]["metadata"]["name"]
    assert "data" not in by_kind["ConfigMap"], (
        "the data is the relay's alone: applying again must not erase it"
    )
    assert by_kind["Role"]["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [target], "verbs": ["patch"]}
    ]
    (subject,) = by_kind["RoleBinding"]["subjects"]
    for stage, template in pods(made):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert subject["name"] == spec["serviceAccountName"]
        (relay,) = spec["initContainers"]
        assert relay["restartPolicy"] == "Always", "a sidecar: the Job does not wait for it"
        assert relay["command"][-3:] == [target, "--every", "10"]
        assert stage.config.progress in relay["command"]
        token = {v["name"] for v in spec["volumes"] if "projected" in v}
        assert token <= {m["name"] for m in relay["volumeMounts"]}
        assert not token & {m["name"] for m in stage.container["volumeMounts"]}, "the trainer holds no token"


def test_the_key_of_the_progress_record_is_what_the_operator_reads():
    from tunewright_operator.plan import progress, volumes

    assert volumes.PROGRESS.rpartition("/")[2] == progress.KEY


def test_nobody_but_the_jobs_own_pods_reaches_its_pods():
    made = plan.job(specs.job())
    (policy,) = [m for m in made.shared if m["kind"] == "NetworkPolicy"]
    selected = policy["spec"]["podSelector"]["matchLabels"].items()
    for _, template in pods(made):
        assert selected <= template["metadata"]["labels"].items()
    assert policy["spec"]["policyTypes"] == ["Ingress"]


# -- limits ---------------------------------------------------------------------------------


def test_run_time_is_not_an_active_deadline_because_that_counts_the_wait_for_a_node():
    made = plan.job(specs.job({"spec.limits.runTime": "12h"}))
    assert made.deadline == 12 * 3600
    assert all("activeDeadlineSeconds" not in s.job for s in made.stages)


def test_finished_jobs_have_no_ttl_of_their_own():
    made = plan.job(specs.job(ttlSecondsAfterFinished=60))
    assert all("ttlSecondsAfterFinished" not in s.workload["spec"] for s in made.stages), (
        "they would be made again"
    )


def test_planning_twice_gives_the_same_bytes():
    one, other = (json.dumps(list(plan.job(specs.job()).manifests())) for _ in range(2))
    assert one == other
