"""Certificates for tests, of an authority of theirs."""

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from cluster.certificate import CertificateFiles

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Authority:
    """Issues certificates for 127.0.0.1 and localhost."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def trusted(self) -> ssl.SSLContext:
        """A client's, which trusts this authority alone."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.certificate.public_bytes(Encoding.PEM).decode())
        return context

    def issue(self, folder: Path, name: str = "server", *, days: tuple[int, int] = (-1, 1)) -> CertificateFiles:
        """Files of a new certificate in `folder`, valid between these days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        begin, end = (datetime.now(UTC) + each * DAY for each in days)
        number = x509.random_serial_number()
        certificate = (
            x509.CertificateBuilder(self.certificate.subject, _named(name), key.public_key(), number)
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        files = CertificateFiles(str(folder / "cert.pem"), str(folder / "key.pem"))
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _replace(Path(files.keyfile), private)
        _replace(Path(files.certfile), certificate.public_bytes(Encoding.PEM))
        return files


def make_authority() -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    now, name = datetime.now(UTC), _named("Authority of a test")
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - 30 * DAY)
        .not_valid_after(now + 30 * DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(key, certificate)


def name_served(authority: Authority, port: int) -> str:
    """Whose certificate a server on loopback shows in a new connection."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as connection,
        authority.trusted.wrap_socket(connection, server_hostname="127.0.0.1") as tls,
    ):
        shown = x509.load_der_x509_certificate(tls.getpeercert(binary_form=True) or b"")
    (name,) = shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name.value)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _replace(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)
