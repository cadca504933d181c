# The manager, and with `--migrate` its migrations.
#   docker build -f docker/manager.Dockerfile -t parrot/manager:0.1.0 .
# BASE is any Debian-like system with Python 3.11 and its venv.
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS build
# pip's own variables, for whoever has a mirror; unset, pip does as it always does.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
RUN python3 -m venv /opt/parrot
WORKDIR /src
COPY LICENSE README.md pyproject.toml ./
COPY docker/constraints.txt docker/probe.py docker/
COPY proto proto
COPY services services
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/parrot/bin/pip install --constraint docker/constraints.txt ".[manager]" \
    && /opt/parrot/bin/pip uninstall --yes pip setuptools \
    && cp docker/probe.py /opt/parrot/probe.py

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="parrot/manager" \
      org.opencontainers.image.description="Parrot's manager: the graph, its scheduling and its store" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 10001 parrot \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --shell /usr/sbin/nologin parrot
COPY --from=build /opt/parrot /opt/parrot
ENV PATH=/opt/parrot/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PARROT_LISTEN=0.0.0.0:7400
USER 10001:10001
EXPOSE 7400
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "/opt/parrot/probe.py", "grpc", "127.0.0.1:7400"]
ENTRYPOINT ["parrot-manager"]
