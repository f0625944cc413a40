"""Which certificates are served, and what is said of those that are not."""

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from cluster.certificate import CertificateFiles, given_files
from engine.errors import InvalidConfig
from tests.cluster.certificates import make_authority


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return make_authority().issue(tmp_path)


def refusal(files: CertificateFiles) -> str:
    with pytest.raises(InvalidConfig) as refused:
        files.read()
    return str(refused.value)


def test_both_become_one(files: CertificateFiles) -> None:
    both = files.read()
    assert both == Path(files.certfile).read_bytes() + Path(files.keyfile).read_bytes()
    Path(files.certfile).write_bytes(both)
    only = given_files(files.certfile, None)
    assert only is not None and only.read() == both


def test_a_file_that_is_not_there_is_named(files: CertificateFiles) -> None:
    Path(files.keyfile).unlink()
    assert refusal(files) == f"ssl_keyfile={files.keyfile} cannot be read: No such file or directory"
    Path(files.certfile).unlink()
    assert refusal(files) == f"ssl_certfile={files.certfile} cannot be read: No such file or directory"


@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n", b"\0" * 99])
def test_what_is_no_certificate_or_no_key_is_named(files: CertificateFiles, content: bytes) -> None:
    Path(files.keyfile).write_bytes(content)
    assert refusal(files) == f"ssl_keyfile={files.keyfile} has no private key in PEM"
    Path(files.certfile).write_bytes(content)
    assert refusal(files) == f"ssl_certfile={files.certfile} has no certificate in PEM"


def test_a_certificate_of_an_unknown_kind_of_key_is_refused(files: CertificateFiles) -> None:
    der = ssl.PEM_cert_to_DER_cert(Path(files.certfile).read_text(encoding="ascii"))
    kind = bytes.fromhex("06072a8648ce3d0201")  # id-ecPublicKey
    assert kind in der
    Path(files.certfile).write_text(ssl.DER_cert_to_PEM_cert(der.replace(kind, kind[:-1] + b"\x63")), encoding="ascii")
    assert refusal(files) == f"ssl_certfile={files.certfile} is of a key that cannot be read"


def test_another_ones_key_is_refused(files: CertificateFiles, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_authority().issue(tmp_path / "other")
    mixed = CertificateFiles(files.certfile, other.keyfile)
    assert refusal(mixed) == f"ssl_keyfile={other.keyfile} is not the key of ssl_certfile={files.certfile}"


def test_an_encrypted_key_is_refused(files: CertificateFiles) -> None:
    form = Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    Path(files.keyfile).write_bytes(ec.generate_private_key(ec.SECP256R1()).private_bytes(*form))
    assert refusal(files) == f"ssl_keyfile={files.keyfile} is encrypted; a key without a passphrase is needed"


@pytest.mark.parametrize(("days", "word"), [((-2, -1), "expired"), ((1, 2), "begins")])
def test_one_that_is_not_valid_now_is_refused(tmp_path: Path, days: tuple[int, int], word: str) -> None:
    files = make_authority().issue(tmp_path, days=days)
    assert refusal(files).startswith(f"ssl_certfile={files.certfile} {word} at 20")


def test_a_key_alone_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="ssl_keyfile=key needs ssl_certfile"):
        given_files(None, "key")
    assert given_files(None, None) is None


def test_a_change_shows(files: CertificateFiles, tmp_path: Path) -> None:
    before = files.state
    assert files.state == before
    make_authority().issue(tmp_path)
    assert files.state != before
