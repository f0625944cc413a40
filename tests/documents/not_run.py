"""Snippets that no test runs, by page and a part of each, and why not."""

AWS = "needs an account of the cloud"
CLUSTER = "needs machines that ssh reaches; tests/end_to_end/ray_up makes some of namespaces, as root"
DOCTOR = "starts Ray; tests/cluster/commands/operating/test_doctor.py runs it so"
DOCKER = "needs a Docker daemon; tests/deployment/test_docker.py builds and runs the image where there is one"
EDITOR = "opens an editor"
GPU = "needs a GPU"
HUB = "needs the hub; tests/end_to_end/apps/test_hub.py has one of its own"
KUBERNETES = "needs a Kubernetes cluster; tests/deployment/test_kubernetes.py builds and checks what it would send"
PICTURE = "a picture of processes"
PROMETHEUS = "needs Prometheus, and its own port; tests/end_to_end/test_prometheus.py runs it at another"

NOT_RUN = {
    ("docs/one-request.md", "client ⇄ proxy"): PICTURE,
    ("docs/operations.md", "prometheus --config.file"): PROMETHEUS,
    ("docs/deployment.md", "docker build --target cpu"): DOCKER,
    ("docs/deployment.md", "docker build --target cuda"): DOCKER,
    ("docs/deployment.md", "docker run --rm --network host"): DOCKER,
    ("docs/deployment.md", "docker run --rm --gpus all"): "needs a Docker daemon and a GPU",
    ("docs/deployment.md", "kubectl create secret"): KUBERNETES,
    ("docs/deployment.md", "$EDITOR"): EDITOR,
    ("docs/deployment.md", "kubectl apply --dry-run=server"): KUBERNETES,
    ("docs/deployment.md", "kubectl apply -k"): KUBERNETES,
    ("docs/deployment.md", "kubectl get rayservice"): KUBERNETES,
    ("docs/deployment.md", "kubectl port-forward"): KUBERNETES,
    ("docs/deployment.md", "kubectl describe"): KUBERNETES,
    ("docs/deployment.md", "kubectl get pods"): KUBERNETES,
    ("docs/deployment.md", "squadron doctor --ray-address auto  #"): KUBERNETES,
    ("docs/deployment.md", "squadron status --ray-address auto"): KUBERNETES,
    ("docs/one-gpu.md", "nvidia-smi"): GPU,
    ("docs/one-gpu.md", "make test-gpu"): GPU,
    ("docs/one-gpu.md", "make bench-gpu"): GPU,
    ("docs/one-gpu.md", "squadron plan"): GPU,
    ("docs/one-gpu.md", "squadron doctor"): GPU,
    ("docs/one-gpu.md", "squadron serve"): GPU,
    ("docs/one-gpu.md", "--device cuda --prompt"): GPU,
    ("docs/one-gpu.md", "--device cpu --prompt"): HUB,
    ("docs/one-node.md", "squadron doctor"): DOCTOR,
    ("configs/cluster/README.md", "ray get-auth-token"): CLUSTER,
    ("configs/cluster/README.md", "$EDITOR configs/cluster/on-premise.yaml"): EDITOR,
    ("configs/cluster/README.md", "ray up configs/cluster/on-premise.yaml"): CLUSTER,
    ("configs/cluster/README.md", "ray exec configs/cluster/on-premise.yaml"): CLUSTER,
    ("configs/cluster/README.md", "curl http://HEAD"): CLUSTER,
    ("configs/cluster/README.md", "ray dashboard"): CLUSTER,
    ("configs/cluster/README.md", "pip install boto3"): AWS,
    ("configs/cluster/README.md", "$EDITOR configs/cluster/aws.yaml"): EDITOR,
    ("configs/cluster/README.md", "ray up configs/cluster/aws.yaml"): AWS,
    ("configs/cluster/README.md", "ray exec configs/cluster/aws.yaml"): AWS,
    ("configs/cluster/README.md", "ray down configs/cluster/aws.yaml"): AWS,
    ("configs/demo/README.md", "configs/demo/train.py"): "trains for hours",
    ("configs/demo/README.md", "configs/demo/evaluate.py"): "answers a thousand questions",
}
