"""The commands tls init and tls renew: a private authority and certificates for the first set-up of two machines."""

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from blindopt.errors import Invalid, StateConflict
from service_kit.cli.program import Program, S, plain_errors, private_file

CA_DAYS = 3_650
_BACKDATED = timedelta(hours=1)
"""Certificates begin earlier by this, for machines whose clocks are late."""
_COPIED = ("ca.crt", "client.crt", "client.key")
FILES = ("ca.crt", "ca.key", "server.crt", "server.key", "client.crt", "client.key")
"""What ``tls init`` makes."""

Folder = Annotated[Path, typer.Option(help="Folder of the certificates.")]
Days = Annotated[int, typer.Option(min=1, max=825, help="How long the certificates are valid.")]


def build(program: Program[S]) -> typer.Typer:
    cli = typer.Typer(help="Certificates of a private authority.", no_args_is_help=True)

    @cli.command()
    def init(
        names: Annotated[list[str], typer.Argument(help="Names or addresses by which others reach this service.")],
        folder: Folder = Path("tls"),
        days: Days = 397,
    ) -> None:
        """Make a private authority, and certificates of a server and a client. Nothing is written over.

        Example: blindopt-curator tls init curator.hospital.example
        """
        with plain_errors():
            if present := [name for name in FILES if (folder / name).exists()]:
                raise StateConflict(f"{folder / present[0]} exists, and nothing is written over: see tls renew")
            addresses = alternatives(names)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_authority(folder)
            issue(folder, "server", addresses, days)
            issue(folder, "client", None, days)
        typer.echo(_next_steps(program, folder.absolute(), names[0], days))

    @cli.command()
    def renew(folder: Folder = Path("tls"), days: Days = 397) -> None:
        """Make the certificates of tls init anew, with new keys, by the same authority. Services take them up.

        Example: blindopt-curator tls renew --folder tls
        """
        with plain_errors():
            server = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
            names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            issue(folder, "server", names, days)
            issue(folder, "client", None, days)
        typer.echo(f"Made {folder / 'server.crt'} and {folder / 'client.crt'} anew, valid for {days} days.")
        typer.echo("A running service takes its own up within a minute, or at SIGHUP.")
        typer.echo("Copy client.crt and client.key to the other machine again.")

    return cli


def alternatives(names: list[str]) -> x509.SubjectAlternativeName:
    """The names and addresses of a server, and localhost. Raises Invalid for what is neither."""
    listed: list[x509.GeneralName] = []
    for name in dict.fromkeys([*names, "localhost"]):
        try:
            listed.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            if "/" in name or ":" in name or not name.isascii():
                raise Invalid(f"{name} is no name of a machine: leave out https:// and the port") from None
            listed.append(x509.DNSName(name))
    return x509.SubjectAlternativeName(listed)


def make_authority(folder: Path) -> None:
    """Write the certificate and the key of a private authority, ``ca.crt`` and ``ca.key``."""
    # The serial number tells authorities of the same name apart where a file holds several.
    serial = x509.NameAttribute(NameOID.SERIAL_NUMBER, os.urandom(8).hex())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "blindopt private authority"), serial])
    key, builder = _new_certificate(name, CA_DAYS, is_ca=True)
    _write(folder, "ca", key, builder.issuer_name(name), key)


def issue(folder: Path, kind: str, names: x509.SubjectAlternativeName | None, days: int) -> None:
    """Write the certificate and the key of a server, or of a client (without ``names``)."""
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    authority_key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"blindopt {kind}")])
    key, builder = _new_certificate(name, days, is_ca=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH if names is None else ExtendedKeyUsageOID.SERVER_AUTH
    builder = builder.issuer_name(authority.subject).add_extension(issuer, critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    _write(folder, kind, key, builder, authority_key)


def _new_certificate(
    name: x509.Name, days: int, *, is_ca: bool
) -> tuple[ec.EllipticCurvePrivateKey, x509.CertificateBuilder]:
    """A new key, and its certificate without an issuer."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    usage = x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        decipher_only=False,
        **dict.fromkeys(unused, False),
    )
    builder = (
        x509.CertificateBuilder(subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(usage, critical=True)
    )
    return key, builder


def _write(
    folder: Path,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    builder: x509.CertificateBuilder,
    signer: ec.EllipticCurvePrivateKey,
) -> None:
    """Sign the certificate; write it and its key (mode 0600), each file whole."""
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificate = builder.sign(signer, SHA256()).public_bytes(Encoding.PEM)
    for file, data in ((folder / f"{name}.key", secret), (folder / f"{name}.crt", certificate)):
        with private_file(file) as write:
            write(data.decode())


def _next_steps(program: Program[S], folder: Path, name: str, days: int) -> str:
    prefix = program.service.replace("-", "_").upper()
    port = 8410 if program.main_role == "owner" else 8420
    host = f"[{name}]" if ":" in name else name
    steps = [
        f"Made an authority and certificates of a server and a client in {folder}, valid for {days} days.",
        "",
        "On this machine, set:",
        f"  {prefix}_TLS_CERT={folder / 'server.crt'}",
        f"  {prefix}_TLS_KEY={folder / 'server.key'}",
        f"  {prefix}_PUBLIC_URL=https://{host}:{port}",
        "To take only requests with a certificate of this authority (browsers then need one too), set as well:",
        f"  {prefix}_TLS_CLIENT_CA={folder / 'ca.crt'}",
    ]
    if program.main_role == "owner":
        steps += [
            "",
            f"Copy {', '.join(_COPIED)} to the modeler's machine, over a channel that nobody else can read.",
            "There, set:",
            "  BLINDOPT_MODELER_CURATOR_CA=ca.crt",
            "  BLINDOPT_MODELER_CURATOR_CLIENT_CERT=client.crt",
            "  BLINDOPT_MODELER_CURATOR_CLIENT_KEY=client.key",
        ]
    else:
        steps += ["", f"Clients need ca.crt; where TLS_CLIENT_CA is set, also {_COPIED[1]} and {_COPIED[2]}."]
    return "\n".join([*steps, "", "Keep ca.key here: anyone who has it can make certificates that both sides trust."])
