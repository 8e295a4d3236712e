"""The Kubernetes manifests against Kubernetes' own schemas, and against one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from tests.support.deployments import documents, pod_command, pods

MANIFESTS = ("config.yaml", "prefill.yaml", "decode.yaml", "router.yaml")
ROLES = ("prefill", "decode")

LEADER_WORKER_SET = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
        "kind": {"const": "LeaderWorkerSet"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "required": ["leaderWorkerTemplate"],
            "additionalProperties": False,
            "properties": {
                "replicas": {"type": "integer", "minimum": 0},
                "leaderWorkerTemplate": {
                    "type": "object",
                    "required": ["workerTemplate"],
                    "additionalProperties": False,
                    "properties": {
                        "size": {"type": "integer", "minimum": 1},
                        "restartPolicy": {
                            "enum": ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]
                        },
                        "workerTemplate": {"type": "object"},
                    },
                },
            },
        },
    },
}
"""The fields of LeaderWorkerSet v1 that the manifests use (kubernetes-sigs/lws 0.10); pods have Kubernetes' own."""


def check(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", MANIFESTS)
def test_schemas(repository: Path, name: str) -> None:
    for document in documents(repository, name):
        if document["kind"] == "LeaderWorkerSet":
            jsonschema.validate(document, LEADER_WORKER_SET)
            template = document["spec"]["leaderWorkerTemplate"]["workerTemplate"]
            document = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
        check(document)


def test_a_wrong_field_would_be_found(repository: Path) -> None:
    template = pods(repository)["decode"]
    template["spec"]["containers"][0]["arguments"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="arguments"):
        check({"apiVersion": "v1", "kind": "PodTemplate", "template": template})


def test_one_prefill_three_decode_and_addresses_that_exist(repository: Path) -> None:
    addresses = {}
    for role in ROLES:
        (worker,) = documents(repository, f"{role}.yaml")
        name, replicas = worker["metadata"]["name"], worker["spec"]["replicas"]
        # LeaderWorkerSet: leader pod NAME-INDEX in a headless service NAME.
        addresses[role] = [f"http://{name}-{index}.{name}:30000" for index in range(replicas)]
    assert [len(addresses[role]) for role in ROLES] == [1, 3]
    router = pod_command(repository, "router")
    assert router[1:4] == ["--prefill", *addresses["prefill"], "8998"]
    assert [arg for arg in router if arg.startswith("--decode=")] == [
        f"--decode={a}" for a in addresses["decode"]
    ]
    assert f"--agentcache-prefill-url={addresses['prefill'][0]}" in pod_command(repository, "decode")


def test_pods_run_without_root_and_without_privileges(repository: Path) -> None:
    for template in pods(repository).values():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
            assert mounted == {volume["name"] for volume in spec.get("volumes", ())}


def test_the_kustomization_names_what_is_there(repository: Path) -> None:
    (kustomization,) = documents(repository, "kustomization.yaml")
    assert sorted(kustomization["resources"]) == sorted(MANIFESTS)
    used = {
        container["image"] for pod in pods(repository).values() for container in pod["spec"]["containers"]
    }
    assert {image["name"] for image in kustomization["images"]} == used
