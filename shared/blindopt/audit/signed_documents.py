"""Documents that are signed with the key of a log: a note states a title and the SHA-256 of the document.

The document is any JSON object. Its canonical bytes (RFC 8785) are hashed, so that it may be stored and printed in
another layout. The note has two lines, a checkpoint three: neither passes for the other.
"""

from blindopt.audit.checkpoints import Signer, Verifier
from blindopt.audit.merkle_log import Json, canonical, sha256
from blindopt.errors import LogBroken


def sign(signer: Signer, title: str, document: Json) -> str:
    """Return a signed note on a document."""
    return signer.sign_text(_text(title, document))


def verify(verifier: Verifier, title: str, document: Json, note: str) -> None:
    """Raise LogBroken unless this key signed this document under this title."""
    if verifier.verify_text(note) != _text(title, document):
        raise LogBroken("the signature is of another document: this one was changed after it was signed")


def _text(title: str, document: Json) -> str:
    return f"{title}\n{sha256(canonical(document))}\n"
