"""What `kubectl apply -k` would send, against KubeRay's fields, Serve's and ours."""

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml
from ray.serve.schema import ServeDeploySchema

from cluster.ingress.environment import ENABLE, FILES_BESIDE, MAX_CONNECTIONS
from cluster.ingress.haproxy import NODE_ADDRESS
from cluster.launch.config.app_config import AppConfig, read_app_config
from cluster.launch.packages import ROOT
from cluster.sockets import LOOPBACK
from tests.deployment.kuberay import RAY_SERVICE
from tests.deployment.test_docker import stage

FOLDER = ROOT / "configs" / "kubernetes"
IN_THE_IMAGE = "/home/squadron/"  # where the Dockerfile copies configs to

# Where .ci/kubectl puts it, or where the system has it.
KUBECTL = shutil.which("kubectl", path=f"{Path(sys.prefix) / 'kubectl'}:{os.environ.get('PATH', '')}")

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="no kubectl here: .ci/kubectl FOLDER unpacks one")


def build_all(folder: Path) -> dict[str, dict[str, Any]]:
    """The objects that the folder makes, one of a kind."""
    done = subprocess.run([str(KUBECTL), "kustomize", str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = list(yaml.safe_load_all(done.stdout))
    by_kind = {each["kind"]: each for each in found}
    assert len(by_kind) == len(found)
    return by_kind


def build(folder: Path) -> dict[str, Any]:
    """The only object that the folder makes."""
    (found,) = build_all(folder).values()
    return found


def groups_of(service: dict[str, Any]) -> list[dict[str, Any]]:
    """The head's, and those of workers."""
    cluster = service["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def containers_of(service: dict[str, Any]) -> list[dict[str, Any]]:
    """The only one of each group's pods."""
    containers = [group["template"]["spec"]["containers"] for group in groups_of(service)]
    return [container for (container,) in containers]


def variables_of(container: dict[str, Any]) -> dict[str, str]:
    """Those with values that are known here."""
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


@pytest.fixture
def with_components(tmp_path: Path) -> Path:
    """The overlay for CPUs with its components uncommented."""
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    file = tmp_path / "kubernetes" / "cpu" / "kustomization.yaml"
    file.write_text(file.read_text().replace("# components:", "components:"))
    return file.parent


def app_of(service: dict[str, Any]) -> AppConfig:
    config = ServeDeploySchema.model_validate(yaml.safe_load(service["spec"]["serveConfigV2"]))
    (application,) = config.applications
    assert application.import_path == "cluster.launch:build_app"
    args = dict(application.args)
    file = args.pop("api_key_file")
    mounts = containers_of(service)[0]["volumeMounts"]
    assert Path(file).parent in [Path(mount["mountPath"]) for mount in mounts]
    return read_app_config(args)


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_every_field_is_known_to_the_operator(name: str) -> None:
    service = build(FOLDER / name)
    jsonschema.validate(service, RAY_SERVICE)
    assert service["spec"]["rayClusterConfig"]["rayVersion"] == ray.__version__
    images = [container["image"] for container in containers_of(service)]
    assert images == [f"registry.example.com/squadron:{'cuda' if name == 'gpu' else 'cpu'}"] * 2


def test_a_misspelt_field_is_seen() -> None:
    service = build(FOLDER / "cpu")
    service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["volume"] = []
    with pytest.raises(jsonschema.ValidationError, match="'volume' was unexpected"):
        jsonschema.validate(service, RAY_SERVICE)


def test_the_demo_of_the_image_is_served_on_cpus() -> None:
    app = app_of(build(FOLDER / "cpu"))
    (model,) = app.all_models()
    config = model.engine_config()
    assert (ROOT / config.model.removeprefix(IN_THE_IMAGE) / "config.json").exists()
    docker = (ROOT / "Dockerfile").read_text()
    assert f"WORKDIR {IN_THE_IMAGE.rstrip('/')}\n" in docker and "squadron configs configs\n" in docker


def test_engines_on_gpus_need_no_more_than_the_pods_have() -> None:
    service = build(FOLDER / "gpu")
    app = app_of(service)
    (model,) = app.all_models()
    _, group = groups_of(service)
    _, container = containers_of(service)
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
    engine = model.engine_config()
    assert engine.device == "cuda" and engine.tensor_parallel_size <= gpus
    assert app.max_gpus == group["replicas"] * gpus == model.num_engines * engine.world_size


def test_the_head_keeps_what_the_gcs_knows() -> None:
    service = build(FOLDER / "cpu")
    head, container = groups_of(service)[0]["template"]["spec"], containers_of(service)[0]
    variables = variables_of(container)
    assert variables["RAY_gcs_storage"] == "rocksdb"
    (mount,) = (each for each in container["volumeMounts"] if each["mountPath"] == variables["RAY_gcs_storage_path"])
    assert mount["name"] in [volume["name"] for volume in head["volumes"]]


def test_redis_takes_its_place(with_components: Path) -> None:
    service = build_all(with_components)["RayService"]
    jsonschema.validate(service, RAY_SERVICE)
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["gcsFaultToleranceOptions"]["redisPassword"]["valueFrom"]["secretKeyRef"]["name"] == "squadron-redis"
    assert "gcs_storage" not in str(cluster) and "/var/lib/ray-gcs" not in str(cluster)
    head = cluster["headGroupSpec"]["template"]["spec"]
    assert [volume["name"] for volume in head["volumes"]] == ["keys", "shm"]
    here, there = variables_of(containers_of(build(FOLDER / "cpu"))[0]), variables_of(containers_of(service)[0])
    assert there == {name: value for name, value in here.items() if not name.startswith("RAY_gcs_storage")}


def test_only_http_is_open_to_others(with_components: Path) -> None:
    built = build_all(with_components)
    policy, served = built["NetworkPolicy"]["spec"], yaml.safe_load(built["RayService"]["spec"]["serveConfigV2"])
    labels = policy["podSelector"]["matchLabels"]
    assert [group["template"]["metadata"]["labels"] for group in groups_of(built["RayService"])] == [labels] * 2
    everybody, ours = policy["ingress"]
    assert everybody == {"ports": [{"port": served["http_options"]["port"]}]}
    assert "ports" not in ours and {"podSelector": {"matchLabels": labels}} in ours["from"]


# What pods have in another way than the nodes of `ray up`: see "Kubernetes" in docs/deployment.md.
OTHERWISE = {
    "PATH",  # packages are where every user finds them
    "RAY_AUTH_MODE",  # authOptions
    "RAY_gcs_storage",  # of the head alone, in a volume
    "RAY_gcs_storage_path",
    "RAY_gcs_rpc_server_reconnect_timeout_s",  # pods wait for their head
    "RAY_enable_autoscaler_v2",  # there is no autoscaler
}


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_pods_have_the_environment_of_other_nodes(name: str) -> None:
    there = (ROOT / "configs" / "cluster" / "environment.sh").read_text()
    exported = dict(re.findall(r"^export (\w+)=(.*)$", there, re.MULTILINE))
    assert exported.keys() >= OTHERWISE and "\nexport NODE_IP\n" in there
    expected = {each: value for each, value in exported.items() if each not in OTHERWISE}
    image = dict(
        word.split("=", 1)
        for line in stage("cpu" if name == "cpu" else "cuda")
        if line.startswith("ENV ")
        for word in line.split()[1:]
    )
    service = build(FOLDER / name)
    assert service["spec"]["rayClusterConfig"]["authOptions"]["mode"] == exported["RAY_AUTH_MODE"]
    for container in containers_of(service):
        variables = image | variables_of(container)
        assert {each: variables.get(each) for each in expected} == expected
        assert {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in container["env"]


def test_haproxy_listens_in_pods() -> None:
    """As KubeRay makes a container's command of `args`, and of its own."""
    files = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    for container in containers_of(build(FOLDER / "cpu")):
        before = " ".join(container["args"])
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        command = ["bash", "-c", "--", f"ulimit -Sn 1024; {before}  && ulimit -n 1024; env"]
        done = subprocess.run(
            command, env={"PATH": path, "NODE_IP": LOOPBACK}, cwd=ROOT, capture_output=True, text=True
        )
        variables = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
        assert (variables[ENABLE], variables[NODE_ADDRESS]) == ("1", LOOPBACK), done.stderr
        assert variables["RAY_SERVE_HAPROXY_MAXCONN"] == str(min(MAX_CONNECTIONS, (files - FILES_BESIDE) // 2))


def test_no_secret_is_in_the_repository() -> None:
    assert [path for path in FOLDER.rglob("*") if path.is_file() and "kind: Secret" in path.read_text()] == []
