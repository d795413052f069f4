"""The standard gRPC health service (grpc.health.v1), for the services that are served here and no others.

As the library's, but for three things: a Watch of an unknown service is refused as a Check of it is, so that nobody can
have names kept; a watcher that does not read holds nobody up, neither others nor the change itself; and a watcher's
stream ends (`fedpeer.protocol.limits.METHODS`), after which clients of this protocol open it again.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedpeer.protocol.errors import Code, Refusal


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the library has no types
    """Says of each of `services` whether it serves; of all the same, and at first that none does."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = tuple(services)
        self._status: Any = health_pb2.HealthCheckResponse.NOT_SERVING
        self._changed = asyncio.Event()

    def set(self, status: Any) -> None:
        """Sets the status of all services, and notifies the watchers."""
        self._status = status
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> Any:
        self._check_known(request.service)
        return health_pb2.HealthCheckResponse(status=self._status)

    async def List(self, request: Any, context: Any) -> Any:
        answer = health_pb2.HealthCheckResponse(status=self._status)
        return health_pb2.HealthListResponse(statuses=dict.fromkeys(self._services, answer))

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> AsyncIterator[Any]:
        self._check_known(request.service)
        sent = None
        while True:
            changed = self._changed
            if self._status != sent:
                sent = self._status
                yield health_pb2.HealthCheckResponse(status=sent)
            await changed.wait()

    def _check_known(self, service: str) -> None:
        if service not in self._services:
            raise Refusal(Code.SERVICE_UNKNOWN, f"There is no service {service[:64]!r} here.")
