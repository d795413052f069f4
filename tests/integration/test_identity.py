"""Nobody gets in without a valid certificate, tried for every method that the services declare."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import grpc
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from coordinator.server import Coordinator
from fedpeer.protocol.certificates import (
    Identity,
    issue_participant_certificate,
    make_authority,
    new_key,
    private_key_pem,
    signing_request,
)
from fedpeer.protocol.codec import encode_signed
from fedpeer.protocol.errors import Code, refusal_of
from fedpeer.v1 import enrolment_pb2, enrolment_pb2_grpc, ledger_pb2, market_pb2
from mechanism.statements import ClaimOpening, ClaimStatement, ModelOpening, ModelStatement
from tests.integration.market import (
    Client,
    enrol,
    invite,
    make_folder,
    open_task,
    refused,
    revoke,
    running,
    task_config,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Every method of the market port, from the descriptors: a new one is tried without being named here.
METHODS = [
    method
    for module in (market_pb2, ledger_pb2, enrolment_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def method_id(method: MethodDescriptor) -> str:
    return method.full_name.removeprefix("fedpeer.v1.")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coordinator(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Coordinator]:
    path = tmp_path_factory.mktemp("identity")
    folder = make_folder(path / "state")
    open_task(folder, task_config(path))
    async with running(folder) as service:
        yield service


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ann(coordinator: Coordinator) -> AsyncIterator[Client]:
    client = await enrol(coordinator, "ann")
    yield client
    await client.close()


def request_for(method: MethodDescriptor, participant_id: str) -> Any:
    """A plausible request: about the task that there is, in the name of `participant_id`."""
    message = GetMessageClass(method.input_type)()
    values: dict[str, Any] = {"task_id": "task", "participant_id": participant_id, "submission_id": "s"}
    for field in message.DESCRIPTOR.fields:
        if field.name in values or field.name == "round":
            setattr(message, field.name, values.get(field.name, 1))
    common = {**values, "terms_digest": bytes(32), "nonce": bytes(16)}
    if method.name == "SubmitEffort":
        opened = ClaimOpening(Decimal("0.5"), Fraction(0), bytes(32))
        claim = ClaimStatement(
            **common, commitment=opened.digest, counts_commitment=bytes(32), draw_head=bytes(32)
        )
        message.CopyFrom(encode_signed(claim, b"signature", opened))
    if method.name == "SubmitModel":
        trained = ModelOpening(1, bytes(32))
        model = ModelStatement(
            **common, round=1, model_sha256=bytes(32), model_bytes=100, commitment=trained.digest,
            draw_share=bytes(32),
        )  # fmt: skip
        message.header.model.CopyFrom(encode_signed(model, b"signature", trained))
    return message


async def call(channel: grpc.aio.Channel, method: MethodDescriptor, participant_id: str = "ann") -> Any:
    path = f"/{method.containing_service.full_name}/{method.name}"
    request = request_for(method, participant_id)
    parse = GetMessageClass(method.output_type).FromString
    serialise = type(request).SerializeToString
    if method.client_streaming:

        async def messages() -> AsyncIterator[Any]:
            yield request

        return await channel.stream_unary(path, serialise, parse)(messages(), timeout=10)
    if method.server_streaming:
        stream = channel.unary_stream(path, serialise, parse)(request, timeout=10)
        return await anext(aiter(stream), None)
    return await channel.unary_unary(path, serialise, parse)(request, timeout=10)


def credentials(coordinator: Coordinator, identity: tuple[bytes, bytes] | None) -> grpc.ChannelCredentials:
    authority = (coordinator.folder.path / "authority.pem").read_bytes()
    return grpc.ssl_channel_credentials(authority, *(identity or (None, None)))


def certificate(authority: Identity, name: str, begin: datetime, lifetime: timedelta) -> tuple[bytes, bytes]:
    key = new_key()
    issued = issue_participant_certificate(authority, name, signing_request(name, key), begin, lifetime)
    return private_key_pem(key), issued.public_bytes(Encoding.PEM)


@pytest.mark.parametrize("kind", ["none", "foreign", "expired"])
async def test_a_handshake_without_a_valid_certificate_fails(coordinator: Coordinator, kind: str) -> None:
    now, day = datetime.now(UTC), timedelta(days=1)
    identity = {
        "none": None,
        "foreign": certificate(make_authority("elsewhere", now), "ann", now, day),
        "expired": certificate(coordinator.folder.authority(), "ann", now - 10 * day, day),
    }[kind]
    async with grpc.aio.secure_channel(
        coordinator.market_address, credentials(coordinator, identity)
    ) as channel:
        for method in METHODS:
            with pytest.raises(grpc.RpcError) as caught:
                await call(channel, method)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, method.name


@pytest.mark.parametrize("method", METHODS, ids=method_id)
async def test_a_certificate_of_ours_for_nobody_who_enrolled_is_refused(
    coordinator: Coordinator, method: MethodDescriptor
) -> None:
    identity = certificate(coordinator.folder.authority(), "zoe", datetime.now(UTC), timedelta(days=1))
    async with grpc.aio.secure_channel(
        coordinator.market_address, credentials(coordinator, identity)
    ) as channel:
        await refused(call(channel, method, "zoe"), Code.CERTIFICATE_REQUIRED)


@pytest.mark.parametrize("method", METHODS, ids=method_id)
async def test_a_certificate_whose_key_is_no_longer_the_participants_is_refused(
    coordinator: Coordinator, ann: Client, method: MethodDescriptor
) -> None:
    identity = certificate(coordinator.folder.authority(), "ann", datetime.now(UTC), timedelta(days=1))
    async with grpc.aio.secure_channel(
        coordinator.market_address, credentials(coordinator, identity)
    ) as channel:
        await refused(call(channel, method), Code.CERTIFICATE_REVOKED)


async def test_a_revocation_works_at_once_on_open_connections(coordinator: Coordinator) -> None:
    bob = await enrol(coordinator, "bob")
    watch = bob.market.Watch(market_pb2.WatchRequest(task_id="task"))
    events = aiter(watch)
    assert await anext(events)
    await asyncio.to_thread(revoke, coordinator.folder, "bob")
    for method in METHODS:
        await refused(call(bob.channel, method, "bob"), Code.CERTIFICATE_REVOKED)
    with pytest.raises(grpc.RpcError) as caught:
        async for _ in events:
            pass
    found = refusal_of(caught.value)
    assert found is not None
    assert found.code is Code.CERTIFICATE_REVOKED
    # Invited again: the old key stays revoked, a new one is welcome.
    await bob.close()
    with pytest.raises(grpc.RpcError, match="revoked"):
        await enrol(coordinator, "bob", bob.key)
    again = await enrol(coordinator, "bob")
    assert (await again.task()).task_id == "task"
    await again.close()


NAMED = [
    method
    for method in METHODS
    if "participant_id" in method.input_type.fields_by_name or method.input_type.name == "SubmitModelRequest"
]


@pytest.mark.parametrize("method", NAMED, ids=method_id)
async def test_a_message_under_another_name_is_refused(ann: Client, method: MethodDescriptor) -> None:
    await refused(call(ann.channel, method, "bob"), Code.WRONG_PARTICIPANT)


async def test_the_public_port_serves_no_market(coordinator: Coordinator) -> None:
    async with grpc.aio.secure_channel(coordinator.public_address, credentials(coordinator, None)) as channel:
        for method in market_pb2.DESCRIPTOR.services_by_name["Market"].methods:
            with pytest.raises(grpc.RpcError) as caught:
                await call(channel, method)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED, method.name


async def enrol_with(coordinator: Coordinator, name: str, token: str, request: bytes) -> Any:
    async with grpc.aio.secure_channel(coordinator.public_address, credentials(coordinator, None)) as channel:
        return await enrolment_pb2_grpc.EnrolmentStub(channel).Enroll(
            enrolment_pb2.EnrollRequest(participant_id=name, token=token, certificate_signing_request=request)
        )


async def test_an_invitation_works_once_for_one_name_and_one_key(coordinator: Coordinator) -> None:
    token = await asyncio.to_thread(invite, coordinator.folder, "cyd")
    request = signing_request("cyd", new_key())
    wrong = signing_request("dan", new_key())
    await refused(enrol_with(coordinator, "cyd", "nonsense", request), Code.INVITATION_INVALID)
    await refused(enrol_with(coordinator, "dan", token, wrong), Code.INVITATION_INVALID)
    await refused(enrol_with(coordinator, "cyd", token, wrong), Code.FIELD_INVALID)
    await refused(enrol_with(coordinator, "cyd", token, b"junk"), Code.FIELD_INVALID)
    first = await enrol_with(coordinator, "cyd", token, request)
    # The reply was lost: the same key gets the same certificate, another key gets none.
    assert await enrol_with(coordinator, "cyd", token, request) == first
    other = signing_request("cyd", new_key())
    await refused(enrol_with(coordinator, "cyd", token, other), Code.INVITATION_INVALID)


async def test_a_certificate_is_renewed_for_its_own_name(coordinator: Coordinator) -> None:
    dan = await enrol(coordinator, "dan")
    stub = enrolment_pb2_grpc.EnrolmentStub(dan.channel)
    key = new_key()
    other = enrolment_pb2.EnrollRequest(
        participant_id="ann", certificate_signing_request=signing_request("ann", key)
    )
    await refused(stub.Enroll(other), Code.WRONG_PARTICIPANT)
    renewed = await stub.Enroll(
        enrolment_pb2.EnrollRequest(
            participant_id="dan", certificate_signing_request=signing_request("dan", key)
        )
    )
    await refused(dan.task(), Code.CERTIFICATE_REVOKED)
    successor = Client("dan", key, renewed.certificate, renewed.authority, dan.address)
    assert (await successor.task()).nonce
    await dan.close()
    await successor.close()


async def test_a_renewed_server_certificate_is_served_after_reading_again(coordinator: Coordinator) -> None:
    host, _, port = coordinator.public_address.rpartition(":")

    async def served() -> str:
        return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))

    before = await served()
    made = coordinator.folder.issue_server(["localhost", "127.0.0.1"])
    assert await served() == before
    coordinator.reload_certificates()  # what SIGHUP does
    assert (await served()).strip() == made.certificate_pem.decode().strip()
