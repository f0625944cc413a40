"""A server's certificate and its key, read from the files that an operator names.

`python -m cluster.certificate` prints what the environment's are.
"""

import codecs
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from cluster.files.state import state_of
from engine.errors import InvalidConfig

# Environment variables of Serve's processes, with paths on the machine that listens.
CERTFILE = "SQUADRON_SSL_CERTFILE"
KEYFILE = "SQUADRON_SSL_KEYFILE"


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """PEM files; both may be the same one."""

    certfile: str  # the certificate, then those that lead to its authority
    keyfile: str  # not encrypted

    @property
    def environment(self) -> dict[str, str]:
        return {CERTFILE: self.certfile, KEYFILE: self.keyfile}

    @property
    def state(self) -> object:
        """Another value after a change of either file."""
        return [state_of(self.certfile), state_of(self.keyfile)]

    def read(self) -> bytes:
        """The certificates and the key, as one PEM file. Raises InvalidConfig if they could not be
        served.
        """
        certificates = _read("ssl_certfile", self.certfile)
        key = _read("ssl_keyfile", self.keyfile)
        try:
            certificate, *_ = x509.load_pem_x509_certificates(certificates)
        except ValueError:
            raise InvalidConfig(f"ssl_certfile={self.certfile} has no certificate in PEM") from None
        try:
            public_key = load_pem_private_key(key, password=None).public_key()
        except TypeError:
            raise InvalidConfig(
                f"ssl_keyfile={self.keyfile} is encrypted; a key without a passphrase is needed"
            ) from None
        except (ValueError, UnsupportedAlgorithm):
            raise InvalidConfig(f"ssl_keyfile={self.keyfile} has no private key in PEM") from None
        try:
            certified_key = certificate.public_key()
        except (ValueError, UnsupportedAlgorithm):
            raise InvalidConfig(f"ssl_certfile={self.certfile} is of a key that cannot be read") from None
        form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        if public_key.public_bytes(*form) != certified_key.public_bytes(*form):
            raise InvalidConfig(f"ssl_keyfile={self.keyfile} is not the key of ssl_certfile={self.certfile}")
        _check_time(self.certfile, certificate)
        return certificates if self.certfile == self.keyfile else certificates.rstrip() + b"\n" + key


NO_CERTIFICATE = CertificateFiles("", "")  # whatever the processes' environment was before


def given_files(certfile: str | None, keyfile: str | None) -> CertificateFiles | None:
    """From options, whose key may be in the certificate's file; raises InvalidConfig."""
    if not certfile and keyfile:
        raise InvalidConfig(f"ssl_keyfile={keyfile} needs ssl_certfile, the certificate that it is the key of")
    if not certfile:
        return None
    return CertificateFiles(os.path.abspath(certfile), os.path.abspath(keyfile or certfile))


def told_files() -> CertificateFiles | None:
    """What this process' environment says."""
    return given_files(os.environ.get(CERTFILE), os.environ.get(KEYFILE))


def _read(option: str, path: str) -> bytes:
    try:
        # HAProxy finds no certificate behind the mark with which some editors begin a file.
        return Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise InvalidConfig(f"{option}={path} cannot be read: {error.strerror}") from None


def _check_time(path: str, certificate: x509.Certificate) -> None:
    now = datetime.now(UTC)
    if now >= certificate.not_valid_after_utc:
        raise InvalidConfig(f"ssl_certfile={path} expired at {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    if now < certificate.not_valid_before_utc:
        raise InvalidConfig(f"ssl_certfile={path} begins at {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC")


def main() -> None:
    try:
        files = told_files() or NO_CERTIFICATE
        sys.stdout.buffer.write(files.read())
    except InvalidConfig as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
