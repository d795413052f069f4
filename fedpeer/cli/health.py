"""`fedpeer health`: whether what runs from a state folder is well; for container platforms and scripts.

A coordinator is asked by the standard gRPC health service on its public port. A participant's service is well
while its folder has a certificate that has not expired; whether the process runs, its platform knows.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coordinator.config import SERVICE_FILE
from coordinator.folder import StateFolder
from fedpeer.cli.errors import CommandError
from fedpeer.protocol.certificates import certificate_hosts, certificates_pem

#: Seconds to wait for an answer; below the interval of any platform's checks.
TIMEOUT_SECONDS = 4

_UNWELL = 1


def health(
    state: Annotated[
        Path,
        typer.Option(
            "--state", "-s", envvar="FEDPEER_STATE", help="The coordinator's or participant's folder."
        ),
    ] = Path(),
) -> None:
    """Exit 0 where the coordinator serves, or the participant's certificate holds; 1 where not."""
    from participant.config import CONFIG_FILE

    if (state / SERVICE_FILE).is_file():
        well, said = _coordinator(state)
    elif (state / CONFIG_FILE).is_file():
        well, said = _participant(state / CONFIG_FILE)
    else:
        raise CommandError(
            f"{state} has neither {SERVICE_FILE} nor {CONFIG_FILE}; name the folder of a coordinator or a "
            "participant with --state"
        )
    typer.echo(said)
    if not well:
        raise typer.Exit(_UNWELL)


def _coordinator(state: Path) -> tuple[bool, str]:
    folder = StateFolder(state)
    config = folder.config()
    host, _, port = config.server.public.rpartition(":")
    # An address to listen on may be a wildcard, which nobody can call.
    address = f"{'127.0.0.1' if host.strip('[]') in ('', '0.0.0.0', '::') else host}:{port}"
    with _channel(address, folder, insecure=config.server.insecure) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS
            )
        except grpc.RpcError as error:
            return False, f"the coordinator at {address} does not answer: {error.details()}"
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return (
        answer.status == health_pb2.HealthCheckResponse.SERVING,
        f"the coordinator at {address} is {status}",
    )


def _channel(address: str, folder: StateFolder, *, insecure: bool) -> grpc.Channel:
    """To the public port, under the name that the server's certificate has, whatever the address is."""
    if insecure:
        return grpc.insecure_channel(address)
    names = certificate_hosts(folder.server().certificate)
    credentials = grpc.ssl_channel_credentials(certificates_pem(folder.authorities()))
    options = [("grpc.ssl_target_name_override", names[0])] if names else []
    return grpc.secure_channel(address, credentials, options)


def _participant(config: Path) -> tuple[bool, str]:
    from participant.config import read_config
    from participant.errors import ParticipantError
    from participant.identity import IdentityFolder

    try:
        credentials = IdentityFolder(read_config(config).state).credentials()
        credentials.check_valid(datetime.now(UTC))
    except ParticipantError as error:
        return False, str(error)
    return True, f"{credentials.participant_id}: the certificate holds until {credentials.expires:%Y-%m-%d}"
