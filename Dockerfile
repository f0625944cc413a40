# Squadron with its demo model, for docker and for Kubernetes (docs/deployment.md):
#
#     docker build --target cpu -t squadron:cpu .
#     docker build --target cuda -t squadron:cuda .
#     docker run --rm --network host squadron:cpu
#
# Ray refuses a node or a client whose Ray or Python differs from the head's in the patch level: all
# nodes of a cluster run one image. constraints.txt pins every package, PYTHON_VERSION Python.
ARG PYTHON_VERSION=3.11.14
ARG DEBIAN=bookworm

# Compiles the kernels for CPUs, for every level of instruction set: the images need no compiler.
FROM python:${PYTHON_VERSION}-slim-${DEBIAN} AS wheel
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY constraints.txt pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY cluster cluster
COPY engine engine
COPY ops ops
COPY parallel parallel
COPY configs/demo configs/demo
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

# Packages go where a login shell finds them, too: KubeRay starts Ray by `bash -lc`, which sets PATH
# anew. wget is for its probes and for HEALTHCHECK, libgomp1 and libnuma1 for torch.
FROM python:${PYTHON_VERSION}-slim-${DEBIAN} AS base
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 libnuma1 wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 --shell /bin/bash squadron
# configs/cluster/environment.sh has the reasons.
ENV MALLOC_ARENA_MAX=2 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONUNBUFFERED=1 \
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0 \
    RAY_USAGE_STATS_ENABLED=0 \
    RAY_worker_niceness=0
COPY constraints.txt /opt/squadron/constraints.txt
COPY --from=wheel /wheels /opt/squadron/wheels
WORKDIR /home/squadron
EXPOSE 8000 6379 8265 10001

FROM base AS cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --constraint /opt/squadron/constraints.txt --extra-index-url ${TORCH_INDEX} torch
RUN pip install --constraint /opt/squadron/constraints.txt \
    "$(echo /opt/squadron/wheels/squadron_serve-*.whl)[batch,kv-events,otel,s3]"
COPY --chown=squadron configs configs
USER squadron
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD wget --quiet --tries=1 --timeout=4 --output-document=/dev/null http://127.0.0.1:${SQUADRON_PORT:-8000}/health
CMD ["squadron", "demo"]

# torch for CUDA brings CUDA's libraries as packages; the driver is the machine's own, which
# nvidia-container-toolkit puts here.
FROM base AS cuda
# Triton compiles what launches a kernel, in C, when the kernel is first used.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN pip install --constraint /opt/squadron/constraints.txt torch
RUN pip install --constraint /opt/squadron/constraints.txt \
    "$(echo /opt/squadron/wheels/squadron_serve-*.whl)[batch,gpu,kv-events,otel,s3]"
COPY --chown=squadron configs configs
USER squadron
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD wget --quiet --tries=1 --timeout=4 --output-document=/dev/null http://127.0.0.1:${SQUADRON_PORT:-8000}/health
CMD ["squadron", "demo"]
