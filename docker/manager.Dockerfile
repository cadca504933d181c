# The manager, and with `--migrate` its migrations.
#   docker build -f docker/manager.Dockerfile -t parrot/manager:0.1.0 .
# BASE is any Debian-like system with Python 3.11 and its venv.
ARG BASE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d

FROM ${BASE} AS needs
# pip's own variables, for whoever has a mirror; unset, pip does as it always does.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /opt/parrot
COPY pyproject.toml ./
COPY tools/setup_env.py tools/
COPY docker/constraints.txt docker/install.py docker/
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 docker/install.py needs manager

FROM needs AS service
COPY LICENSE README.md ./
COPY proto proto
COPY kernels kernels
COPY services services
COPY tools/wheel_kernels.py tools/
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 docker/install.py service

FROM ${BASE}
ARG BASE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="parrot/manager" \
      org.opencontainers.image.description="Parrot's manager: the graph, its scheduling and its store" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"
RUN groupadd --gid 10001 parrot \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --shell /usr/sbin/nologin parrot
COPY --from=needs /opt/parrot/.venv /opt/parrot/.venv
COPY --from=service /opt/parrot/lib /opt/parrot/lib
COPY --from=service /opt/parrot/sbom.cdx.json /opt/parrot/
COPY docker/probe.py /opt/parrot/
ENV PATH=/opt/parrot/lib/bin:/opt/parrot/.venv/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PARROT_LISTEN=0.0.0.0:7400 \
    PARROT_METRICS_ADDRESS=0.0.0.0:9401
USER 10001:10001
EXPOSE 7400 9401
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "/opt/parrot/probe.py", "http://127.0.0.1:9401/readyz"]
ENTRYPOINT ["parrot-manager"]
