from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509 import verification

from fedpeer.protocol.certificates import (
    CertificateError,
    certificate_key,
    certificate_name,
    check_server,
    issue_participant_certificate,
    issue_server_certificate,
    load_certificate,
    load_private_key,
    load_public_key,
    make_authority,
    new_key,
    public_key_pem,
    signing_request,
)
from mechanism.errors import FieldError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AUTHORITY = make_authority("test authority", NOW)


def test_a_server_certificate_verifies_for_its_names_and_no_other() -> None:
    server = issue_server_certificate(AUTHORITY, ["localhost", "127.0.0.1", "fl.example.org"], NOW)
    store = verification.Store([AUTHORITY.certificate])
    builder = verification.PolicyBuilder().store(store).time(NOW)
    builder.build_server_verifier(x509.DNSName("fl.example.org")).verify(server.certificate, [])
    with pytest.raises(verification.VerificationError):
        builder.build_server_verifier(x509.DNSName("other.example.org")).verify(server.certificate, [])


def test_a_participant_certificate_has_the_requests_key_and_name_and_is_for_clients_only() -> None:
    key = new_key()
    certificate = issue_participant_certificate(
        AUTHORITY, "hospital-a", signing_request("hospital-a", key), NOW
    )
    assert certificate_name(certificate) == "hospital-a"
    assert public_key_pem(certificate_key(certificate)) == public_key_pem(key.public_key())
    certificate.verify_directly_issued_by(AUTHORITY.certificate)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_request_made_out_to_another_name_is_refused() -> None:
    with pytest.raises(CertificateError, match="made out to 'mallory'"):
        issue_participant_certificate(AUTHORITY, "alice", signing_request("mallory", new_key()), NOW)


def test_a_request_that_is_no_request_is_refused() -> None:
    with pytest.raises(CertificateError, match="not a readable"):
        issue_participant_certificate(AUTHORITY, "alice", b"hello", NOW)
    with pytest.raises(CertificateError, match="at most"):
        issue_participant_certificate(AUTHORITY, "alice", b"x" * 100_000, NOW)


def test_a_request_with_another_kind_of_key_is_refused() -> None:
    subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "alice")])
    for key in (ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP384R1())):
        algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
        request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, algorithm)
        with pytest.raises(CertificateError, match="P-256"):
            issue_participant_certificate(
                AUTHORITY, "alice", request.public_bytes(serialization.Encoding.PEM), NOW
            )


def test_a_request_that_was_tampered_with_is_refused() -> None:
    pem = signing_request("alice", new_key())
    request = x509.load_pem_x509_csr(pem)
    der = bytearray(request.public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    try:
        tampered = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
    except ValueError:
        pytest.skip("the flip broke the encoding itself")
    with pytest.raises(CertificateError):
        issue_participant_certificate(AUTHORITY, "alice", tampered, NOW)


def test_lifetimes_are_what_was_asked_for() -> None:
    certificate = issue_participant_certificate(
        AUTHORITY, "a", signing_request("a", new_key()), NOW, timedelta(days=1)
    )
    assert certificate.not_valid_after_utc == NOW + timedelta(days=1)


@pytest.mark.parametrize("host", ["", "a b", "-x.org", "x..org", "höst", "a/b"])
def test_a_host_that_is_neither_name_nor_address_is_refused(host: str) -> None:
    with pytest.raises(FieldError, match="hosts"):
        issue_server_certificate(AUTHORITY, [host], NOW)


@pytest.mark.parametrize("load", [load_private_key, load_certificate, load_public_key])
def test_unreadable_pem_is_refused_in_a_sentence(load: object) -> None:
    with pytest.raises(CertificateError, match="not a readable"):
        load(b"-----BEGIN NOTHING-----")  # type: ignore[operator]


def test_keys_survive_their_files() -> None:
    assert public_key_pem(load_public_key(public_key_pem(AUTHORITY.key.public_key()))) == public_key_pem(
        load_private_key(AUTHORITY.key_pem).public_key()
    )


def test_a_servers_certificate_is_for_its_hosts_however_they_are_written() -> None:
    made = issue_server_certificate(AUTHORITY, ["::1", "Market.Example", "10.0.0.5"], NOW)
    check_server(made, [AUTHORITY.certificate], ["0:0::1", "market.example.", "10.0.0.5"], NOW)
    for host in ("::2", "example", "10.0.0.6"):
        with pytest.raises(CertificateError, match=f"must be for {host}"):
            check_server(made, [AUTHORITY.certificate], [host], NOW)
