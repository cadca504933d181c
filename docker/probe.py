"""Asks a service whether it is ready; exits with 0 when it is, else with 1 and the reason.

Usage: probe.py http URL | probe.py grpc HOST:PORT

For health checks of images, which have no curl: it needs only what their services need.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from typing import Final

WAIT_S: Final = 4.0


def main(arguments: list[str]) -> str | None:
    """What is wrong, or None."""
    match arguments:
        case ["http", url] if url.startswith(("http://", "https://")):
            return ask_http(url)
        case ["grpc", address]:
            return ask_grpc(address)
        case _:
            return "usage: probe.py http URL | probe.py grpc HOST:PORT"


def ask_http(url: str) -> str | None:
    """None when the answer to a GET is a success."""
    try:
        # Whatever proxy is set, the service asked about is in this very container.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=WAIT_S):
            return None
    except urllib.error.HTTPError as error:
        return f"{url}: {error.code} {error.read().decode(errors='replace')}"
    except OSError as error:
        return f"{url}: {error}"


def ask_grpc(address: str) -> str | None:
    """None when gRPC's health service says SERVING of the server as a whole."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        request = health_pb2.HealthCheckRequest()
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=WAIT_S)
        except grpc.RpcError as error:
            return f"{address}: {error}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return f"{address}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
