"""deploy/kubernetes: the objects are valid, fit each other, and give nobody more than is needed."""

from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml import YAML

from minflinkd.config import Config
from minflinkd.config.load import load_config
from minflinkd.daemon_kubernetes import POD_NAME
from minflinkd.resourcemanager.kubernetes.template import Belonging, faults_of
from minflinkd.resourcemanager.kubernetes.template import manifest as pod_of
from minflinkd.resourcemanager.kubernetes.wire import OwnerReference
from minflinkd.runtime.ids import ResourceId
from tests.kubernetes import schemas
from tests.kubernetes.admission import admit
from tests.kubernetes.manifests import DIRECTORY, manifest, manifests

OWNER = OwnerReference(api_version="apps/v1", kind="StatefulSet", name="minflinkd", uid="u-1", controller=True)


@pytest.fixture
def data() -> dict[str, str]:
    found: dict[str, str] = manifest("ConfigMap", "minflinkd")["data"]
    return found


@pytest.fixture
def config(data: dict[str, str], tmp_path: Any) -> Config:
    file = tmp_path / "minflinkd.yaml"
    file.write_text(data["minflinkd.yaml"])
    return load_config(file, {}, {})


@pytest.fixture
def pod(data: dict[str, str], config: Config) -> dict[str, Any]:
    """The Pod of a TaskManager, as the daemon would create it."""
    template = YAML(typ="safe", pure=True).load(data["taskmanager.yaml"])
    assert list(faults_of(template)) == []
    belonging = Belonging("c" * 32, 1, "minflinkd", config.kubernetes.subdomain)
    return pod_of(template, ResourceId("tm-0123456789ab"), belonging, OWNER)


def daemon() -> dict[str, Any]:
    found: dict[str, Any] = manifest("StatefulSet", "minflinkd")["spec"]["template"]
    return found


@pytest.mark.parametrize(("file", "found"), [pytest.param(f, o, id=f"{f}-{o['kind']}") for f, o in manifests()])
def test_each_object_is_one_that_kubernetes_knows(file: str, found: dict[str, Any]) -> None:
    """The schemas are those of real API servers, and unknown fields are faults (R51)."""
    assert list(schemas.faults(found)) == [], file


def test_the_pod_of_a_taskmanager_is_one_that_kubernetes_accepts(pod: dict[str, Any]) -> None:
    """The template and what minflinkd adds make one valid Pod (R50, R51)."""
    admit("pods", pod, strict=True)


def test_the_role_has_the_verbs_of_the_client_on_pods_and_nothing_else() -> None:
    """A stolen token can read no secret and no log (R51)."""
    rules = manifest("Role", "minflinkd")["rules"]
    assert rules == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "watch", "delete"]}]


def test_code_of_jobs_gets_no_token_of_the_api_server(pod: dict[str, Any]) -> None:
    """TaskManagers run it (R51)."""
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod["spec"]
    assert manifest("ServiceAccount", "minflinkd")["automountServiceAccountToken"] is False
    assert daemon()["spec"]["automountServiceAccountToken"] is True


def test_all_pods_keep_the_restricted_pod_security_standard(pod: dict[str, Any]) -> None:
    """The namespace enforces it: other Pods would be refused (R51)."""
    for spec in (pod["spec"], daemon()["spec"]):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
        assert all(volume.keys() & {"configMap", "secret", "emptyDir"} for volume in spec["volumes"])


def test_every_file_of_the_configuration_is_mounted_where_it_is_looked_for(config: Config, pod: dict[str, Any]) -> None:
    """In the daemon's Pod as in those of TaskManagers (R51)."""
    tls = config.internal_tls
    for spec in (pod["spec"], daemon()["spec"]):
        (container,) = spec["containers"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for file in (config.security.secret_file, tls.certificate, tls.key, tls.ca):
            assert volumes[mounts[file.rpartition("/")[0]]]["secret"]["defaultMode"] == 0o440
        assert volumes[mounts["/etc/minflinkd"]]["configMap"] == {"name": "minflinkd"}
        assert config.kubernetes.pod_template_file == "/etc/minflinkd/taskmanager.yaml"
        assert config.cluster.working_dir.rpartition("/")[0] in mounts


def test_names_and_ports_of_the_configuration_are_those_of_the_services(config: Config, pod: dict[str, Any]) -> None:
    """Otherwise no TaskManager would find the daemon (R51)."""
    rpc = manifest("Service", config.jobmanager.rpc_address.partition(".")[0])["spec"]
    assert {port["port"] for port in rpc["ports"]} == {config.jobmanager.rpc_port.fixed, config.blob.server_port.fixed}
    assert (rpc["clusterIP"], rpc["publishNotReadyAddresses"]) == ("None", True)
    http = manifest("Service", config.rest.address.partition(".")[0])["spec"]
    assert [port["port"] for port in http["ports"]] == [config.rest.port]
    others = manifest("Service", config.kubernetes.subdomain)["spec"]
    assert [port["port"] for port in others["ports"]] == [config.taskmanager.data_port.fixed]
    assert others["clusterIP"] == "None"
    for service, labels in ((rpc, daemon()["metadata"]["labels"]), (others, pod["metadata"]["labels"])):
        assert service["selector"].items() <= labels.items()


def test_a_network_policy_lets_only_taskmanagers_to_the_ports_between_daemon_and_taskmanagers(
    config: Config, pod: dict[str, Any]
) -> None:
    """Whoever reaches them may at least try (R51)."""
    inner = {config.jobmanager.rpc_port.fixed, config.blob.server_port.fixed, config.taskmanager.data_port.fixed}
    for name in ("minflinkd-daemon", "minflinkd-taskmanagers"):
        spec = manifest("NetworkPolicy", name)["spec"]
        assert spec["policyTypes"] == ["Ingress"]
        for rule in spec["ingress"]:
            if inner & {port["port"] for port in rule["ports"]}:
                (peer,) = rule["from"]
                assert peer["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
                assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "taskmanager"


def test_the_daemon_knows_its_own_pod_and_waits_for_health(config: Config) -> None:
    """Its StatefulSet owns the TaskManagers (R51)."""
    (container,) = daemon()["spec"]["containers"]
    env = {variable["name"]: variable for variable in container["env"]}
    assert env[POD_NAME]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["path"] for probe in probes.values()} == {"/health/live", "/health/ready"}
    assert all(probe["scheme"] == "HTTPS" for probe in probes.values())
    assert config.rest_tls.enabled
    assert manifest("StatefulSet", "minflinkd")["spec"]["replicas"] == 1


def test_the_image_runs_as_the_user_of_the_pods_and_not_as_root(pod: dict[str, Any]) -> None:
    """Files of volumes belong to its group (R51)."""
    lines = (DIRECTORY / "Dockerfile").read_text("utf-8").splitlines()
    user = next(line.split()[1] for line in lines if line.startswith("USER "))
    for spec in (pod["spec"], daemon()["spec"]):
        context = spec["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
        assert context["fsGroup"] == context["runAsGroup"]
    assert sum(line.startswith("FROM ") for line in lines) == 2
    assert 'ENTRYPOINT ["tini", "--", "minflinkd"]' in lines
