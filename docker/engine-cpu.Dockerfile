# The engine with vLLM's CPU build and a small model.
#   docker build -f docker/engine-cpu.Dockerfile -t parrot/engine-cpu:0.1.0 .
# BASE is any Debian-like system with Python 3.11 and its venv.
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS build
# pip's own variables, for whoever has a mirror or wheels of their own; unset, pip does as it always does.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
WORKDIR /opt/parrot
COPY LICENSE README.md pyproject.toml ./
COPY tools/setup_env.py tools/
COPY docker/constraints.txt docker/install_engine.py docker/
COPY proto proto
COPY services services
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 docker/install_engine.py

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="parrot/engine-cpu" \
      org.opencontainers.image.description="Parrot's engine, with vLLM on the CPU" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The cache's folder is made here so that a volume over it belongs to the engine's user.
RUN groupadd --gid 10001 parrot \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --shell /usr/sbin/nologin parrot \
    && install --directory --owner 10001 --group 10001 /var/cache/parrot
COPY --from=build /opt/parrot/.venv /opt/parrot/.venv
COPY docker/probe.py /opt/parrot/probe.py
# Without Dynamo no kernel is compiled while the engine serves (vLLM has one for log probabilities): there is
# no compiler in here.
ENV PATH=/opt/parrot/.venv/bin:$PATH \
    HOME=/tmp \
    TORCHDYNAMO_DISABLE=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PARROT_CACHE_DIR=/var/cache/parrot \
    PARROT_METRICS_ADDRESS=0.0.0.0:9400
USER 10001:10001
EXPOSE 9400
# The metrics are there once the model is loaded.
HEALTHCHECK --interval=5s --timeout=5s --start-period=300s --retries=3 \
    CMD ["python", "/opt/parrot/probe.py", "http", "http://127.0.0.1:9400/metrics"]
ENTRYPOINT ["parrot-engine"]
