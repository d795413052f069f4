"""Keys and certificates: the coordinator's authority, its server certificate, the participants' own.

All keys are ECDSA over P-256, which every TLS stack accepts. A participant's certificate carries its
participant id as the common name and as the only DNS-less subject; it is good for client authentication only.
"""

import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpeer.protocol.limits import (
    AUTHORITY_LIFETIME,
    CERTIFICATE_LIFETIME,
    CLOCK_SKEW,
    MAX_SIGNING_REQUEST_BYTES,
    SERVER_CERTIFICATE_LIFETIME,
)
from fedpeer.text_files import TextFileError, unmarked
from mechanism.errors import FieldError
from mechanism.terms import identifier

PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


class CertificateError(ValueError):
    """A key, certificate or signing request that cannot be used; the message says why."""


@dataclass(frozen=True)
class Identity:
    """A private key with its certificate."""

    key: PrivateKey
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        return private_key_pem(self.key)

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def new_key() -> PrivateKey:
    """A fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_from(text: str) -> PrivateKey:
    """The P-256 key that a text gives, always the same: for demos and tests. In earnest a key is random."""
    secret = hashlib.sha256(text.encode()).digest()
    return ec.derive_private_key(int.from_bytes(secret) % 2**255 + 1, ec.SECP256R1())


def private_key_pem(key: PrivateKey) -> bytes:
    """PKCS #8 in PEM, unencrypted: the file's permissions protect it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def plain_pem(pem: bytes) -> bytes:
    """PEM as every TLS library reads it: without the byte-order marks that some editors put before a text.

    Raises:
        CertificateError: UTF-16 text, say.
    """
    try:
        return unmarked(pem)
    except TextFileError as error:
        raise CertificateError(f"not readable as PEM: {error}") from None


def _unreadable(what: str, pem: bytes) -> CertificateError:
    """What is wrong with a text that is not `what`, in words of our own."""
    label = f"{what.upper().replace(' SIGNING', '')}-----"
    if not pem.strip():
        why = "it is empty"
    elif label.encode() not in pem:
        why = f"it has no block -----BEGIN {label}"
    else:
        why = "its block is damaged"
    return CertificateError(f"not a readable {what} in PEM: {why}")


def load_private_key(pem: bytes) -> PrivateKey:
    """Raises CertificateError where `pem` holds no P-256 key."""
    plain = plain_pem(pem)
    try:
        key = serialization.load_pem_private_key(plain, password=None)
    except TypeError:
        raise CertificateError("the private key is encrypted; expected one without a password") from None
    except ValueError:
        raise _unreadable("private key", pem) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("the private key is not an ECDSA key over P-256")
    _checked_key(key.public_key(), "the private key")
    return key


def load_certificate(pem: bytes) -> x509.Certificate:
    """Raises CertificateError where `pem` holds no certificate."""
    plain = plain_pem(pem)
    try:
        return x509.load_pem_x509_certificate(plain)
    except ValueError:
        raise _unreadable("certificate", pem) from None


def load_certificates(pem: bytes) -> list[x509.Certificate]:
    """All certificates of a file, in its order; CertificateError where `pem` holds none."""
    plain = plain_pem(pem)
    try:
        return x509.load_pem_x509_certificates(plain)
    except ValueError:
        raise _unreadable("certificate", pem) from None


def certificates_pem(certificates: Sequence[x509.Certificate]) -> bytes:
    """Certificates one after the other, as `load_certificates` reads them."""
    return b"".join(c.public_bytes(serialization.Encoding.PEM) for c in certificates)


def issued_by_one_of(certificate: x509.Certificate, authorities: Sequence[x509.Certificate]) -> bool:
    """Whether one of the authorities has signed the certificate."""
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


def check_pair(identity: Identity) -> None:
    """Raises CertificateError where the key is not the certificate's."""
    if identity.certificate.public_key() != identity.key.public_key():
        raise CertificateError("the key does not belong to the certificate")


def check_server(
    identity: Identity, authorities: Sequence[x509.Certificate], hosts: Sequence[str], now: datetime
) -> None:
    """Checks what a participant would refuse of a server's certificate.

    Args:
        authorities: what participants trust.
        hosts: names and addresses that it must be for, at least; none: any will do.

    Raises:
        CertificateError: another key, out of date, not for a server, for other names, or of another authority.
    """
    check_pair(identity)
    certificate = identity.certificate
    if now > certificate.not_valid_after_utc:
        raise CertificateError(f"the certificate expired on {certificate.not_valid_after_utc:%Y-%m-%d}")
    if now < certificate.not_valid_before_utc:
        raise CertificateError(
            f"the certificate is valid only from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        )
    names = certificate_hosts(certificate)
    if not names:
        raise CertificateError(
            "the certificate is for no DNS name and no IP address, so it is not a server's"
        )
    if missing := [host for host in hosts if _plain_host(host) not in map(_plain_host, names)]:
        raise CertificateError(
            f"the certificate is for {', '.join(names)}; it must be for {', '.join(missing)} too"
        )
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        pass
    else:
        if ExtendedKeyUsageOID.SERVER_AUTH not in usage:
            raise CertificateError("the certificate is not good for a server (extended key usage)")
    if not issued_by_one_of(certificate, authorities):
        raise CertificateError("the certificate is not issued by the authority that participants trust")


def certificate_hosts(certificate: x509.Certificate) -> list[str]:
    """The DNS names and IP addresses that a server's certificate is for; empty for another certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def _plain_host(host: str) -> str:
    """One way to write a name or an address: "::1" for "0:0::1", lower case, no dot at the end."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower().removesuffix(".")


def issuer_id(certificate: x509.Certificate) -> bytes:
    """Names the authority key that a certificate was issued under; empty where the certificate does not say."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    except x509.ExtensionNotFound:
        return b""
    return found.key_identifier or b""


def authority_id(certificate: x509.Certificate) -> bytes:
    """What `issuer_id` says of the certificates that this authority has issued."""
    return x509.SubjectKeyIdentifier.from_public_key(certificate_key(certificate)).digest


def public_key_pem(key: PublicKey) -> str:
    """SubjectPublicKeyInfo in PEM, as the ledger's enrolment entry writes it."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()


def load_public_key(pem: str | bytes) -> PublicKey:
    """Raises CertificateError where `pem` holds no P-256 public key."""
    data = pem.encode() if isinstance(pem, str) else pem
    try:
        key = serialization.load_pem_public_key(data)
    except ValueError:
        raise _unreadable("public key", data) from None
    return _checked_key(key, "the public key")


def make_authority(name: str, now: datetime) -> Identity:
    """A certificate authority that signs end certificates only (path length 0)."""
    key = new_key()
    subject = _name(name)
    certificate = (
        _builder(subject, subject, key.public_key(), now, AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(sign_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Identity(key, certificate)


def issue_server_certificate(
    authority: Identity,
    hosts: Sequence[str],
    now: datetime,
    lifetime: timedelta = SERVER_CERTIFICATE_LIFETIME,
) -> Identity:
    """A server certificate for DNS names and IP addresses.

    Raises:
        FieldError: no host, or one that is neither.
    """
    if not hosts:
        raise FieldError("hosts", hosts, "at least one DNS name or IP address")
    names = x509.SubjectAlternativeName([_general_name(h) for h in hosts])
    return _with_key(
        authority, "fedpeer coordinator", now, lifetime,
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), names,
    )  # fmt: skip


def signing_request(participant_id: str, key: PrivateKey) -> bytes:
    """PEM of a certificate signing request whose common name is the participant id."""
    identifier("participant_id", participant_id)
    request = x509.CertificateSigningRequestBuilder().subject_name(_name(participant_id))
    return request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def issue_participant_certificate(
    authority: Identity,
    participant_id: str,
    request_pem: bytes,
    now: datetime,
    lifetime: timedelta = CERTIFICATE_LIFETIME,
) -> x509.Certificate:
    """The certificate that a signing request asks for: its key, our name for it, client authentication only.

    Raises:
        CertificateError: the request is unreadable, too long, not signed by its own key, not P-256, or made
            out to another name.
    """
    if len(request_pem) > MAX_SIGNING_REQUEST_BYTES:
        raise CertificateError(
            f"the signing request has {len(request_pem)} bytes; at most {MAX_SIGNING_REQUEST_BYTES} are accepted"
        )
    try:
        request = x509.load_pem_x509_csr(request_pem)
        valid = request.is_signature_valid
    except (ValueError, InvalidSignature, TypeError):
        raise _unreadable("certificate signing request", request_pem) from None
    if not valid:
        raise CertificateError("the signing request is not signed by its own key")
    key = _checked_key(request.public_key(), "the signing request's key")
    if (named := _common_name(request.subject)) != participant_id:
        raise CertificateError(f"the signing request is made out to {named!r}, not to {participant_id!r}")
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    return _issued(authority, participant_id, key, now, lifetime, usage)


def issue_client_certificate(authority: Identity, name: str, now: datetime, lifetime: timedelta) -> Identity:
    """A key and its certificate for somebody who is no participant, such as an operator at the console.

    Args:
        name: the common name, which is no participant id.
    """
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    return _with_key(authority, name, now, lifetime, usage)


def issue_worker_certificate(authority: Identity, name: str, now: datetime, lifetime: timedelta) -> Identity:
    """A key and its certificate for a process that both calls others of its kind and is called by them."""
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    return _with_key(authority, name, now, lifetime, usage)


def _with_key(
    authority: Identity, name: str, now: datetime, lifetime: timedelta, *extensions: x509.ExtensionType
) -> Identity:
    """A key that is made here, and its certificate by the authority."""
    key = new_key()
    return Identity(key, _issued(authority, name, key.public_key(), now, lifetime, *extensions))


def _issued(
    authority: Identity,
    name: str,
    key: PublicKey,
    now: datetime,
    lifetime: timedelta,
    *extensions: x509.ExtensionType,
) -> x509.Certificate:
    """An end certificate by the authority."""
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(_name(name), authority.certificate.subject, key, now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(), critical=True)
    )
    for extension in (*extensions, issuer):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def certificate_name(certificate: x509.Certificate) -> str:
    """The common name: a participant id in a participant's certificate.

    Raises:
        CertificateError: there is not exactly one.
    """
    return _common_name(certificate.subject)


def certificate_key(certificate: x509.Certificate) -> PublicKey:
    """The certificate's P-256 public key.

    Raises:
        CertificateError: it has another kind of key.
    """
    return _checked_key(certificate.public_key(), "the certificate's key")


def _checked_key(key: object, what: str) -> PublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateError(f"{what} is not an ECDSA key over P-256")
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, sign_certificates: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(found) != 1:
        raise CertificateError(f"the subject has {len(found)} common names; exactly one is expected")
    return str(found[0].value)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.removesuffix(".").split(".")
    if not host.isascii() or not all(_dns_label(label) for label in labels):
        raise FieldError("hosts", host, "a DNS name or an IP address")
    return x509.DNSName(host)


def _dns_label(label: str) -> bool:
    return 1 <= len(label) <= 63 and label.strip("-") == label and label.replace("-", "").isalnum()
