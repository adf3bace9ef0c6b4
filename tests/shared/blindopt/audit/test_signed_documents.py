"""A signed document: the signature holds for its key, title and content alone, in whatever layout it is stored."""

import json

import pytest

from blindopt.audit import signed_documents
from blindopt.audit.checkpoints import Checkpoint, Signer
from blindopt.audit.merkle_log import Head, canonical, sha256
from blindopt.errors import LogBroken

SIGNER, OTHER = (Signer.of("curator", bytes([n]) * 32) for n in (1, 2))
TITLE = "blindopt report"
DOCUMENT = {"study": "std_1", "epsilon": 0.5, "spent": {"epsilon": "0.25", "by": ["run_a", None]}}


@pytest.fixture
def note():
    return signed_documents.sign(SIGNER, TITLE, DOCUMENT)


def test_the_note_states_title_and_digest(note):
    assert note.startswith(f"{TITLE}\n{sha256(canonical(DOCUMENT))}\n\n\u2014 {SIGNER.name} ")


def test_a_document_in_another_layout_is_the_same(note):
    printed = json.dumps(dict(reversed(DOCUMENT.items())), indent=4)
    signed_documents.verify(SIGNER.verifier, TITLE, json.loads(printed), note)


@pytest.mark.parametrize(
    ("title", "document"),
    [
        ("blindopt Report", DOCUMENT),
        ("", DOCUMENT),
        (TITLE, DOCUMENT | {"epsilon": 0.25}),
        (TITLE, DOCUMENT | {"more": None}),
        (TITLE, {name: value for name, value in DOCUMENT.items() if name != "spent"}),
        (TITLE, {}),
    ],
)
def test_another_title_or_document_is_refused(title, document, note):
    with pytest.raises(LogBroken, match="the signature is of another document"):
        signed_documents.verify(SIGNER.verifier, title, document, note)


def test_another_key_and_another_signature_are_refused(note):
    forged = signed_documents.sign(OTHER, TITLE, DOCUMENT)
    for verifier, signature in ((OTHER.verifier, note), (SIGNER.verifier, forged)):
        with pytest.raises(LogBroken, match=f"no valid signature of {verifier.name}"):
            signed_documents.verify(verifier, TITLE, DOCUMENT, signature)


def test_a_checkpoint_is_no_signature_of_a_document(note):
    checkpoint = SIGNER.sign(Checkpoint(f"{SIGNER.name}/log", Head(3, "00" * 32)))
    with pytest.raises(LogBroken, match="the signature is of another document"):
        signed_documents.verify(SIGNER.verifier, TITLE, DOCUMENT, checkpoint)
    with pytest.raises(LogBroken, match="the note is no checkpoint"):
        SIGNER.verifier.verify(note)
