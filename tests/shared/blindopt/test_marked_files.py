"""Keys and certificates that Windows saved with a byte order mark are those without it."""

import codecs
from pathlib import Path

import pytest

from blindopt.certificates import CertificateFiles, expires_at
from blindopt.errors import StateConflict
from service_kit.cli import tls
from service_kit.context.keys import webhook_key

KEY = "k" * 40


@pytest.mark.parametrize("content", [codecs.BOM_UTF8 + KEY.encode(), codecs.BOM_UTF8 + f"{KEY}\r\n".encode()])
def test_the_key_of_a_webhook_is_the_text_that_was_saved(tmp_path, content):
    """Else every signature differs from that of the other party."""
    file = tmp_path / "key"
    file.write_bytes(content)
    assert webhook_key(file, "MEASURER_SECRET_FILE") == KEY.encode()
    file.write_bytes(bytes(range(1, 60)))  # drawn bytes are a key, too
    assert webhook_key(file, "MEASURER_SECRET_FILE") == bytes(range(1, 60)).strip()
    file.write_bytes(KEY.encode("utf-16"))
    with pytest.raises(StateConflict, match="MEASURER_SECRET_FILE cannot be read: it is text in UTF-16"):
        webhook_key(file, "MEASURER_SECRET_FILE")


def test_certificates_with_a_mark_are_read(tmp_path):
    """OpenSSL and cryptography pass over what stands before the first line of dashes."""
    tls.make_authority(tmp_path)
    tls.issue(tmp_path, "server", tls.alternatives(["modeler.localhost"]), 9)
    names = [str(tmp_path / name) for name in ("ca.crt", "server.crt", "server.key")]
    before, authorities = expires_at(names[1]), CertificateFiles(names[0]).client_context().get_ca_certs()
    for name in names:
        file = Path(name)
        file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())
    files = CertificateFiles(*names)
    assert files.client_context().get_ca_certs() == files.server_context().get_ca_certs() == authorities != []
    assert expires_at(names[1]) == before
