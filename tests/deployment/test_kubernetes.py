"""What `kubectl apply -k` would send, against KubeRay's fields, Serve's and ours."""

import os
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

from cluster.launch.config.app_config import AppConfig, read_app_config
from cluster.launch.packages import ROOT
from tests.deployment.kuberay import RAY_SERVICE

FOLDER = ROOT / "configs" / "kubernetes"
IN_THE_IMAGE = "/home/squadron/"  # where the Dockerfile copies configs to

# Where .ci/kubectl puts it, or where the system has it.
KUBECTL = shutil.which("kubectl", path=f"{Path(sys.prefix) / 'kubectl'}:{os.environ.get('PATH', '')}")

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="no kubectl here: .ci/kubectl FOLDER unpacks one")


def build(folder: Path) -> dict[str, Any]:
    """The only object that the folder makes."""
    done = subprocess.run([str(KUBECTL), "kustomize", str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (found,) = yaml.safe_load_all(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def with_redis(tmp_path: Path) -> Path:
    """The overlay for CPUs with its component uncommented."""
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
    mounts = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert Path(file).parent in [Path(mount["mountPath"]) for mount in mounts]
    return read_app_config(args)


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_every_field_is_known_to_the_operator(name: str) -> None:
    service = build(FOLDER / name)
    jsonschema.validate(service, RAY_SERVICE)
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["rayVersion"] == ray.__version__
    images = [
        container["image"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
        for container in group["template"]["spec"]["containers"]
    ]
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
    (group,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
    engine = model.engine_config()
    assert engine.device == "cuda" and engine.tensor_parallel_size <= gpus
    assert app.max_gpus == group["replicas"] * gpus == model.num_engines * engine.world_size


def test_the_head_keeps_what_the_gcs_knows() -> None:
    head = build(FOLDER / "cpu")["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    (container,) = head["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    assert variables["RAY_gcs_storage"] == "rocksdb"
    (mount,) = (each for each in container["volumeMounts"] if each["mountPath"] == variables["RAY_gcs_storage_path"])
    assert mount["name"] in [volume["name"] for volume in head["volumes"]]


def test_redis_takes_its_place(with_redis: Path) -> None:
    service = build(with_redis)
    jsonschema.validate(service, RAY_SERVICE)
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["gcsFaultToleranceOptions"]["redisPassword"]["valueFrom"]["secretKeyRef"]["name"] == "squadron-redis"
    assert "gcs_storage" not in str(cluster) and "/var/lib/ray-gcs" not in str(cluster)
    head = cluster["headGroupSpec"]["template"]["spec"]
    assert [volume["name"] for volume in head["volumes"]] == ["keys", "shm"]


def test_no_secret_is_in_the_repository() -> None:
    assert [path for path in FOLDER.rglob("*") if path.is_file() and "kind: Secret" in path.read_text()] == []
