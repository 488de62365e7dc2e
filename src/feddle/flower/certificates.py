"""Certificates and keys of a federation: TLS for the server, and a key pair per node."""

import ipaddress
import re
import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError

_CA_DAYS, _SERVER_DAYS = 3650, 825
_CRITICAL = (x509.BasicConstraints, x509.KeyUsage)
_Key = ec.EllipticCurvePrivateKey
_Authority = tuple[x509.Name, _Key]
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_EARLIER = timedelta(minutes=5)  # tolerates clocks that differ


class Certificates:
    """A folder of certificates and keys; existing files are kept, so that nodes can be added later.

    `ca.crt` goes to every machine. `server.*` and `superexec.secret` go to the server. `node-N.key` goes to that node
    only, and `node-N.pub` is registered. `ca.key` signs new server certificates: keep it off all of these machines.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, self.ca_key = folder / "ca.crt", folder / "ca.key"
        self.server, self.server_key = folder / "server.crt", folder / "server.key"
        self.secret = folder / "superexec.secret"

    def node(self, number: int, kind: str) -> Path:
        """A file of a node, numbered from 1: its private `key`, or the public key `pub` that is registered."""
        return self.folder / f"node-{number}.{kind}"

    def make(self, hosts: Sequence[str], nodes: int) -> list[Path]:
        """Make the missing files, for a server with these host names; return the new files.

        Of each pair, the file whose existence is checked is written last: after an interruption both are made again.
        """
        self._check_hosts(hosts)
        before = set(self.folder.glob("*"))
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.ca.exists():
            signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            _issue(self.ca, "CA", _CA_DAYS, None, x509.BasicConstraints(ca=True, path_length=0), signs)
        if not self.server.exists():
            names = x509.SubjectAlternativeName([_alternative(host) for host in dict.fromkeys(hosts)])
            serves = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
            constraints = x509.BasicConstraints(ca=False, path_length=None)
            _issue(self.server, "server", _SERVER_DAYS, self._read_ca(), constraints, names, serves)
        if not self.secret.exists():
            write_whole(self.secret, secrets.token_bytes(32), private=True)
        for number in range(1, nodes + 1):
            if not self.node(number, "key").exists():
                self.remake_node(number)
        return sorted(set(self.folder.glob("*")) - before)

    def _check_hosts(self, hosts: Iterable[str]) -> None:
        """Refuse malformed host names, and names that an existing server certificate does not contain."""
        names = {host: _alternative(host) for host in hosts}
        if not self.server.exists():
            return
        try:
            certificate = x509.load_pem_x509_certificate(self.server.read_bytes())
            named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (ValueError, x509.ExtensionNotFound) as error:
            raise FeddleError(f"{self.server} is not a certificate; remove it, then run this again") from error
        missing = [host for host, name in names.items() if name not in named]
        if missing:
            raise FeddleError(
                f"{self.server} is for {', '.join(str(name.value) for name in named)}, not for {', '.join(missing)}; "
                "to make a new one, remove it and give all names"
            )

    def _read_ca(self) -> _Authority:
        """The name and the key of the authority."""
        try:
            authority = x509.load_pem_x509_certificate(self.ca.read_bytes())
            signer = serialization.load_pem_private_key(self.ca_key.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:  # TypeError: the key has a password
            raise FeddleError(
                f"{self.ca} and {self.ca_key} are not a readable certificate and key; restore them, or remove both to "
                "make new ones, and give every machine the new ca.crt"
            ) from error
        if not isinstance(signer, _Key) or signer.public_key() != authority.public_key():
            raise FeddleError(f"{self.ca_key} is not the key of {self.ca}; restore the key that belongs to it")
        return authority.subject, signer

    def remake_node(self, number: int) -> None:
        """Make a key pair for a node; an existing pair is replaced."""
        self.node(number, "key").unlink(missing_ok=True)  # first, so that an interruption leaves no mixed pair
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        write_whole(self.node(number, "pub"), public + b"\n")
        write_whole(self.node(number, "key"), private, private=True)


def _issue(path: Path, owner: str, days: int, authority: _Authority | None, *extensions: x509.ExtensionType) -> None:
    """Write a new key, and a certificate for it that the authority signs; without one, it signs itself."""
    key, now = ec.generate_private_key(ec.SECP384R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"feddle federation {owner}")])
    issuer, signer = authority or (subject, key)
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signers = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _EARLIER).not_valid_after(now + timedelta(days=days))
    for extension in (*extensions, own, signers):
        builder = builder.add_extension(extension, critical=isinstance(extension, _CRITICAL))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_whole(path.with_suffix(".key"), private, private=True)
    write_whole(path, builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM))


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise FeddleError(
                f"expected a host name or address without a port, such as federation.example.org, got {host!r}; "
                "write a name with non-ASCII letters in its xn-- form"
            ) from None
        return x509.DNSName(host)
