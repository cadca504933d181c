# The engine with vLLM's CUDA build, for NVIDIA's GPUs (x86-64).
#   docker build -f docker/engine-gpu.Dockerfile -t parrot/engine-gpu:0.1.0 .
# BASE is any Debian-like system with NVIDIA's CUDA packages in reach of apt. torch and vLLM bring the CUDA they run
# with; the driver is the host's (NVIDIA's container toolkit). ALSO names more packages for it, with spaces between
# them, such as a plugin of vLLM.
ARG BASE=nvidia/cuda:13.0.2-base-ubuntu24.04

FROM ${BASE} AS base
# Triton and FlashInfer compile kernels for the GPU they find when they are first needed: hence the compilers.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        cuda-cudart-dev-13-0 cuda-nvcc-13-0 cuda-nvrtc-dev-13-0 g++ libcurand-dev-13-0 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

FROM base AS needs
# pip's own variables, for whoever has a mirror; unset, pip does as it always does.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG ALSO=""
WORKDIR /opt/parrot
COPY pyproject.toml ./
COPY tools/setup_env.py tools/
COPY docker/constraints-gpu.txt docker/install.py docker/
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 docker/install.py needs --vllm gpu --also "${ALSO}" engine-vllm

FROM needs AS service
COPY LICENSE README.md ./
COPY proto proto
COPY kernels kernels
COPY services services
COPY tools/wheel_kernels.py tools/
COPY docker/constraints.txt docker/
RUN --mount=type=cache,target=/root/.cache/pip \
    PARROT_WHEEL_KERNELS=require python3 docker/install.py service

FROM base
ARG BASE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="parrot/engine-gpu" \
      org.opencontainers.image.description="Parrot's engine, with vLLM on NVIDIA's GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"
# The cache's folder is made here so that a volume over it belongs to the engine's user.
RUN groupadd --gid 10001 parrot \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --shell /usr/sbin/nologin parrot \
    && install --directory --owner 10001 --group 10001 /var/cache/parrot
COPY --from=needs /opt/parrot/.venv /opt/parrot/.venv
COPY --from=service /opt/parrot/lib /opt/parrot/lib
COPY --from=service /opt/parrot/sbom.cdx.json /opt/parrot/
COPY docker/probe.py /opt/parrot/
# What is compiled for this GPU at the first start is kept beside the converted models, where those are: on a volume.
ENV PATH=/opt/parrot/lib/bin:/opt/parrot/.venv/bin:$PATH \
    HOME=/var/cache/parrot \
    USER=parrot \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PARROT_CACHE_DIR=/var/cache/parrot \
    PARROT_KV_CACHE_MIB=0 \
    PARROT_METRICS_ADDRESS=0.0.0.0:9400
USER 10001:10001
EXPOSE 9400
# It is ready once the model is loaded.
HEALTHCHECK --interval=5s --timeout=5s --start-period=1800s --retries=3 \
    CMD ["python", "/opt/parrot/probe.py", "http://127.0.0.1:9400/readyz"]
ENTRYPOINT ["parrot-engine"]
