"""KubeRay's RayService as a JSON schema: every field that its API reference (v1.6) names, and of
Kubernetes' own types the fields that our manifests may use. An unknown field is an error, as for
the API server with strict validation.
"""

from typing import Any

TEXT: dict[str, Any] = {"type": "string"}
NUMBER: dict[str, Any] = {"type": "integer"}
SWITCH: dict[str, Any] = {"type": "boolean"}
ANY: dict[str, Any] = {}
TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": TEXT}
QUANTITY: dict[str, Any] = {"type": ["string", "integer"], "pattern": r"^[0-9.]+([numkMGTPE]|[KMGTPE]i)?$"}
QUANTITIES: dict[str, Any] = {"type": "object", "additionalProperties": QUANTITY}


def struct(required: str = "", **fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": required.split(), "additionalProperties": False}


def several(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


KEY = struct("name key", name=TEXT, key=TEXT, optional=SWITCH)
FIELD = struct("fieldPath", fieldPath=TEXT, apiVersion=TEXT)
SOURCE = struct(secretKeyRef=KEY, configMapKeyRef=KEY, fieldRef=FIELD)
ENVIRONMENT = several(struct("name", name=TEXT, value=TEXT, valueFrom=SOURCE))
RESOURCES = struct(requests=QUANTITIES, limits=QUANTITIES, claims=ANY)
MOUNT = struct("name mountPath", name=TEXT, mountPath=TEXT, readOnly=SWITCH, subPath=TEXT, subPathExpr=TEXT)
PORT = struct("containerPort", name={"type": "string", "maxLength": 15}, containerPort=NUMBER, protocol=TEXT)
CONTAINER = struct(
    "name",
    name=TEXT,
    image=TEXT,
    imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    command=several(TEXT),
    args=several(TEXT),
    env=ENVIRONMENT,
    ports=several(PORT),
    resources=RESOURCES,
    volumeMounts=several(MOUNT),
    securityContext=ANY,
    readinessProbe=ANY,
    livenessProbe=ANY,
    startupProbe=ANY,
    lifecycle=ANY,
)
VOLUME = struct(
    "name",
    name=TEXT,
    emptyDir=struct(medium={"enum": ["", "Memory"]}, sizeLimit=QUANTITY),
    secret=struct(secretName=TEXT, items=ANY, defaultMode=NUMBER, optional=SWITCH),
    configMap=ANY,
    persistentVolumeClaim=struct("claimName", claimName=TEXT, readOnly=SWITCH),
    ephemeral=ANY,
    hostPath=ANY,
)
TOLERATION = struct(
    key=TEXT,
    operator={"enum": ["Exists", "Equal"]},
    value=TEXT,
    effect={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
)
POD = struct(
    "containers",
    containers=several(CONTAINER),
    initContainers=several(CONTAINER),
    volumes=several(VOLUME),
    nodeSelector=TEXTS,
    tolerations=several(TOLERATION),
    affinity=ANY,
    securityContext=struct(
        runAsNonRoot=SWITCH, runAsUser=NUMBER, runAsGroup=NUMBER, fsGroup=NUMBER, seccompProfile=ANY
    ),
    serviceAccountName=TEXT,
    terminationGracePeriodSeconds=NUMBER,
    topologySpreadConstraints=ANY,
    imagePullSecrets=ANY,
)
TEMPLATE = struct("spec", metadata=struct(labels=TEXTS, annotations=TEXTS), spec=POD)
HEAD = struct(
    "template rayStartParams",  # optional since v1.4
    template=TEMPLATE,
    rayStartParams=TEXTS,
    serviceType={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    headService=ANY,
    enableIngress=SWITCH,
    resources=TEXTS,
    labels=TEXTS,
)
WORKERS = struct(
    "groupName template rayStartParams maxReplicas minReplicas",
    groupName=TEXT,
    replicas=NUMBER,
    minReplicas=NUMBER,
    maxReplicas=NUMBER,
    numOfHosts=NUMBER,
    idleTimeoutSeconds=NUMBER,
    suspend=SWITCH,
    rayStartParams=TEXTS,
    template=TEMPLATE,
    scaleStrategy=ANY,
    resources=TEXTS,
    labels=TEXTS,
)
CREDENTIAL = struct(value=TEXT, valueFrom=SOURCE)
CLUSTER = struct(
    "headGroupSpec",
    rayVersion=TEXT,
    headGroupSpec=HEAD,
    workerGroupSpecs=several(WORKERS),
    authOptions=struct(mode={"enum": ["disabled", "token"]}, secretName=TEXT, enableK8sTokenAuth=SWITCH),
    gcsFaultToleranceOptions=struct(
        redisAddress=TEXT, redisUsername=CREDENTIAL, redisPassword=CREDENTIAL, externalStorageNamespace=TEXT
    ),
    enableInTreeAutoscaling=SWITCH,
    autoscalerOptions=ANY,
    headServiceAnnotations=TEXTS,
    managedBy=TEXT,
    suspend=SWITCH,
    upgradeStrategy=ANY,
)
RAY_SERVICE = struct(
    "apiVersion kind metadata spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayService"},
    metadata=struct("name", name=TEXT, namespace=TEXT, labels=TEXTS, annotations=TEXTS),
    spec=struct(
        "rayClusterConfig",
        serveConfigV2=TEXT,
        rayClusterConfig=CLUSTER,
        serveService=ANY,
        upgradeStrategy=ANY,
        excludeHeadPodFromServeSvc=SWITCH,
        rayClusterDeletionDelaySeconds=NUMBER,
    ),
)
