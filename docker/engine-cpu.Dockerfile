# The engine with vLLM's CPU build and a small model.
#   docker build -f docker/engine-cpu.Dockerfile -t parrot/engine-cpu:0.1.0 .
# BASE is any Debian-like system with Python 3.11 and its venv.
ARG BASE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d

FROM ${BASE} AS base
# vLLM's kernels are linked against it, and no package of Python's brings it.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libnuma1 \
    && rm -rf /var/lib/apt/lists/*

FROM base AS needs
# pip's own variables, for whoever has a mirror or wheels of their own; unset, pip does as it always does.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
WORKDIR /opt/parrot
COPY pyproject.toml ./
COPY tools/setup_env.py tools/
COPY docker/constraints.txt docker/install.py docker/
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 docker/install.py needs --vllm cpu engine-vllm

FROM needs AS service
# Compiles Parrot's own attention kernels; the image itself has no compiler.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
COPY LICENSE README.md ./
COPY proto proto
COPY kernels kernels
COPY services services
COPY tools/wheel_kernels.py tools/
RUN --mount=type=cache,target=/root/.cache/pip \
    PARROT_WHEEL_KERNELS=require python3 docker/install.py service

FROM base
ARG BASE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="parrot/engine-cpu" \
      org.opencontainers.image.description="Parrot's engine, with vLLM on the CPU" \
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
# Without Dynamo no kernel is compiled while the engine serves (vLLM has one for log probabilities): there is
# no compiler in here.
ENV PATH=/opt/parrot/lib/bin:/opt/parrot/.venv/bin:$PATH \
    HOME=/tmp \
    TORCHDYNAMO_DISABLE=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PARROT_CACHE_DIR=/var/cache/parrot \
    PARROT_METRICS_ADDRESS=0.0.0.0:9400
USER 10001:10001
EXPOSE 9400
# It is ready once the model is loaded.
HEALTHCHECK --interval=5s --timeout=5s --start-period=300s --retries=3 \
    CMD ["python", "/opt/parrot/probe.py", "http://127.0.0.1:9400/readyz"]
ENTRYPOINT ["parrot-engine"]
