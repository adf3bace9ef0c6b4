"""Signed notes against C2SP's formats written out here, the reference's own vectors, and forged notes."""

import base64
import hashlib
import itertools

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt.audit.checkpoints import NOTE_MAX, Checkpoint, Signer, Verifier, parse_unverified
from blindopt.audit.merkle_log import EMPTY, Head
from blindopt.errors import LogBroken

# --- the formats, from their specifications ---------------------------------------------------------


def key_id(name: str, algorithm: int, public: bytes) -> bytes:
    """c2sp.org/signed-note: the first four bytes of SHA-256(name, newline, algorithm, key)."""
    return hashlib.sha256(name.encode() + b"\n" + bytes([algorithm]) + public).digest()[:4]


def line(name: str, identifier: bytes, signature: bytes) -> str:
    return "\u2014 " + name + " " + base64.b64encode(identifier + signature).decode() + "\n"


class Key:
    """An Ed25519 key that writes its lines by hand."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name = name
        self.private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"%d" % seed).digest())
        self.public = self.private.public_key().public_bytes_raw()
        self.signer = Signer(name, self.private)
        self.verifier = Verifier(name, self.public)

    @property
    def vkey(self) -> str:
        encoded = base64.b64encode(b"\x01" + self.public).decode()
        return f"{self.name}+{key_id(self.name, 1, self.public).hex()}+{encoded}"

    def signs(self, text: str) -> str:
        return line(self.name, key_id(self.name, 1, self.public), self.private.sign(text.encode()))

    def cosigns(self, text: str, time: int, stated: int | None = None) -> str:
        """c2sp.org/tlog-cosignature; ``stated`` is the time in the line, where it differs from the signed time."""
        message = f"cosignature/v1\ntime {time}\n{text}".encode()
        stamp = (time if stated is None else stated).to_bytes(8, "big")
        return line(self.name, key_id(self.name, 4, self.public), stamp + self.private.sign(message))


def text_of(origin: str, size: int, root: bytes) -> str:
    """c2sp.org/tlog-checkpoint."""
    return f"{origin}\n{size}\n{base64.b64encode(root).decode()}\n"


ROOT = hashlib.sha256(b"root").digest()
CURATOR, MODELER, OTHER = Key("curator.1", 1), Key("modeler.2", 2), Key("other", 3)
TEXT = text_of("curator.1/grt_1", 22, ROOT)
CHECKPOINT = Checkpoint("curator.1/grt_1", Head(22, ROOT.hex()))
NOTE = TEXT + "\n" + CURATOR.signs(TEXT)
BOTH = NOTE + MODELER.cosigns(TEXT, 1_790_000_000)


def test_a_checkpoint_a_note_and_a_countersignature_are_as_specified_byte_for_byte():
    assert CHECKPOINT.text == TEXT
    assert CURATOR.signer.sign(CHECKPOINT) == NOTE
    assert MODELER.signer.countersign(NOTE, 1_790_000_000) == BOTH


def test_a_note_written_by_hand_verifies():
    assert CURATOR.verifier.verify(NOTE) == CURATOR.verifier.verify(BOTH) == parse_unverified(BOTH) == CHECKPOINT
    assert MODELER.verifier.verify_countersignature(BOTH) == (CHECKPOINT, 1_790_000_000)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=0x2FFF, exclude_categories=["Z", "C"]), min_size=1).filter(
        lambda origin: len(origin.encode()) < 300
    ),
    st.integers(0, 10**18 - 1),
    st.binary(min_size=32, max_size=32),
    st.integers(0, 2**63),
)
def test_any_checkpoint_is_written_as_specified_and_reads_back(origin, size, root, time):
    checkpoint = Checkpoint(origin, Head(size, root.hex()))
    text = text_of(origin, size, root)
    note = CURATOR.signer.sign(checkpoint)
    assert note == text + "\n" + CURATOR.signs(text)
    assert CURATOR.verifier.verify(note) == checkpoint
    both = MODELER.signer.countersign(note, time)
    assert both == note + MODELER.cosigns(text, time)
    assert MODELER.verifier.verify_countersignature(both) == (checkpoint, time)


# --- the reference's own vectors --------------------------------------------------------------------

PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
PETERS_SEED = base64.b64decode("AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz")[1:]
PETERS_TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
PETERS_LINE = (
    "\u2014 PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)


def test_the_key_of_the_reference_reads_and_writes_back():
    assert Verifier.parse(PETER).vkey == PETER
    assert Signer("PeterNeumann", Ed25519PrivateKey.from_private_bytes(PETERS_SEED)).verifier.vkey == PETER


def test_the_note_of_the_reference_is_signed_and_is_no_checkpoint():
    """The signature is valid: the text is parsed only then."""
    verifier = Verifier.parse(PETER)
    with pytest.raises(LogBroken, match="is no checkpoint"):
        verifier.verify(PETERS_TEXT + "\n" + PETERS_LINE)
    with pytest.raises(LogBroken, match="no valid signature of PeterNeumann"):
        verifier.verify(PETERS_TEXT.replace("your", "Your") + "\n" + PETERS_LINE)


def test_the_reference_key_signs_as_the_reference_does():
    """Ed25519 is deterministic: our line over its text would be its line. We sign checkpoints alone, so by hand."""
    peter = Key("PeterNeumann")
    peter.private = Ed25519PrivateKey.from_private_bytes(PETERS_SEED)
    peter.public = peter.private.public_key().public_bytes_raw()
    assert peter.vkey == PETER
    assert peter.signs(PETERS_TEXT) == PETERS_LINE  # so the oracle above is the specification's


def test_a_key_of_a_cosigner_is_read_and_written_as_specified():
    """c2sp.org/tlog-cosignature: the type in the text of a key is 0x04, as in the id of its signature lines."""
    name, public = "witness.example/w1", bytes(range(100, 132))
    identifier = hashlib.sha256(name.encode() + b"\n\x04" + public).digest()[:4].hex()
    vkey = f"{name}+{identifier}+{base64.b64encode(bytes([4]) + public).decode()}"
    assert Verifier.parse(vkey) == Verifier(name, public)
    assert Verifier(name, public).cosigner_vkey == vkey
    assert Verifier.parse(Verifier(name, public).vkey) == Verifier(name, public)
    assert MODELER.verifier.verify_countersignature(BOTH) == Verifier.parse(
        MODELER.verifier.cosigner_vkey
    ).verify_countersignature(BOTH)
    wrong = hashlib.sha256(name.encode() + b"\n\x01" + public).digest()[:4].hex()
    refused_key(vkey.replace(identifier, wrong))  # the id of another type
    refused_key(f"{name}+{identifier}+{base64.b64encode(bytes([5]) + public).decode()}")


# --- verifier keys ------------------------------------------------------------------------------------


def refused_key(vkey: str) -> None:
    with pytest.raises(LogBroken):
        Verifier.parse(vkey)


def test_no_part_of_a_key_and_no_key_with_one_character_changed_is_a_key():
    for start, end in itertools.combinations(range(len(PETER) + 1), 2):
        if end - start < len(PETER):
            refused_key(PETER[start:end])
    for index, bit in itertools.product(range(len(PETER)), (1, 0x20)):
        refused_key(PETER[:index] + chr(ord(PETER[index]) ^ bit) + PETER[index + 1 :])


@pytest.mark.parametrize(
    "vkey",
    [
        "",
        "++",
        "PeterNeumann+cc469956+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TWBADKEY==",  # longer, its id adjusted
        "PeterNeumann+173116ae+ZRpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",  # another algorithm, its id adjusted
        PETER.replace("c74f20a3", "C74F20A3"),
        PETER.replace("c74f20a3", "c7 4f20a3"),
        PETER.replace("+c74f20a3+", "+c74f20a3 +"),
        PETER + "\n",
        " " + PETER,
        PETER + "=",
        PETER[:60] + "\n" + PETER[60:],
        "\u2014" + PETER,
        PETER.replace("c74f20a3", "c74f20a3" * 100_000),
    ],
)
def test_a_key_has_one_spelling_and_any_other_text_is_refused(vkey):
    refused_key(vkey)


@pytest.mark.parametrize("name", ["a b", "a+b", "", "a\nb", "a\tb", "a\u00a0b", "a\u2028b", "x" * 201])
def test_a_name_holds_nothing_that_a_note_is_made_of(name):
    public = CURATOR.public
    refused_key(f"{name}+{key_id(name, 1, public).hex()}+{base64.b64encode(bytes([1]) + public).decode()}")


# The points of order 1, 2, 4 and 8, and encodings of the first three that are not canonical.
P = 2**255 - 19
EIGHTH = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD83D3D706A17C7
SMALL = [
    (y | sign << 255).to_bytes(32, "little") for y in (0, 1, P - 1, EIGHTH, P - EIGHTH, P, P + 1) for sign in (0, 1)
]


@pytest.mark.parametrize("public", SMALL, ids=lambda public: public.hex()[:6] + public.hex()[-2:])
def test_a_key_of_small_order_is_refused(public):
    """With a point of small order one signature fits one message in eight: what it signs can be denied."""
    name = "curator.weak"
    refused_key(f"{name}+{key_id(name, 1, public).hex()}+{base64.b64encode(bytes([1]) + public).decode()}")


# --- forged notes -----------------------------------------------------------------------------------


def refused(note: str) -> None:
    with pytest.raises(LogBroken):
        CURATOR.verifier.verify(note)


def refused_countersignature(note: str) -> None:
    with pytest.raises(LogBroken):
        MODELER.verifier.verify_countersignature(note)


def test_a_note_with_a_flipped_bit_is_refused():
    """Of the text and of the signature's base64: no changed note verifies."""
    raw = NOTE.encode()
    for index, bit in itertools.product(range(len(raw)), range(8)):
        changed = bytearray(raw)
        changed[index] ^= 1 << bit
        refused(changed.decode(errors="replace"))


def test_a_countersignature_with_a_flipped_bit_or_another_time_is_refused():
    for index, bit in itertools.product(range(len(NOTE), len(BOTH)), (1, 2, 16)):
        changed = BOTH[:index] + chr(ord(BOTH[index]) ^ bit) + BOTH[index + 1 :]
        refused_countersignature(changed)
    refused_countersignature(NOTE + MODELER.cosigns(TEXT, 1_790_000_000, stated=1_790_000_001))


@pytest.mark.parametrize(
    "stranger",
    [OTHER, Key(CURATOR.name, 9), Key("curator.2", 1)],
    ids=["another key", "another key of the name", "the key under another name"],
)
def test_only_the_verifying_key_counts(stranger):
    refused(TEXT + "\n" + stranger.signs(TEXT))
    # and not where it claims the id of the right one
    claimed = line(CURATOR.name, key_id(CURATOR.name, 1, CURATOR.public), stranger.private.sign(b"x" + TEXT.encode()))
    refused(TEXT + "\n" + claimed)
    with pytest.raises(LogBroken):
        stranger.verifier.verify(NOTE)


def test_a_signature_is_no_countersignature_and_the_reverse():
    """A signature of one kind must not be usable as one of the other kind."""
    refused_countersignature(TEXT + "\n" + MODELER.signs(TEXT))
    refused(TEXT + "\n" + CURATOR.cosigns(TEXT, 5))
    swapped = line(
        CURATOR.name, key_id(CURATOR.name, 4, CURATOR.public), bytes(8) + CURATOR.private.sign(TEXT.encode())
    )
    with pytest.raises(LogBroken):
        CURATOR.verifier.verify_countersignature(TEXT + "\n" + swapped)


def test_each_of_several_signatures_verifies_in_any_order_and_other_keys_are_ignored():
    lines = [CURATOR.signs(TEXT), MODELER.cosigns(TEXT, 7), OTHER.signs(TEXT), OTHER.cosigns(TEXT, 8)]
    for order in itertools.permutations(lines):
        note = TEXT + "\n" + "".join(order)
        assert CURATOR.verifier.verify(note) == CHECKPOINT
        assert MODELER.verifier.verify_countersignature(note) == (CHECKPOINT, 7)
        assert OTHER.verifier.verify_countersignature(note) == (CHECKPOINT, 8)


def test_a_bad_line_under_the_right_name_does_not_hide_a_good_one():
    bad = line(CURATOR.name, key_id(CURATOR.name, 1, CURATOR.public), bytes(64))
    assert CURATOR.verifier.verify(TEXT + "\n" + bad + CURATOR.signs(TEXT)) == CHECKPOINT


@pytest.mark.parametrize("signature", [b"", b"\x00", bytes(63), bytes(65), bytes(8), bytes(71), bytes(73)])
def test_a_signature_of_another_length_is_none(signature):
    for key, algorithm, check in ((CURATOR, 1, refused), (MODELER, 4, refused_countersignature)):
        check(TEXT + "\n" + line(key.name, key_id(key.name, algorithm, key.public), signature))


SIGNATURE = CURATOR.signs(TEXT)


@pytest.mark.parametrize(
    "note",
    {
        "nothing": "",
        "text alone": TEXT,
        "no signature": TEXT + "\n",
        "no blank line": TEXT + SIGNATURE,
        "no last line end": NOTE.removesuffix("\n"),
        "two blank lines": TEXT + "\n\n" + SIGNATURE,
        "a blank line before": "\n" + NOTE,
        "a line before": "x\n" + NOTE,
        "a line after": NOTE + "x\n",
        "a blank line after": NOTE + "\n",
        "a note after a note": NOTE + "\n" + SIGNATURE,
        "Windows' line ends": NOTE.replace("\n", "\r\n"),
        "a carriage return in the text": NOTE.replace("\n", "\r\n", 1),
        "a carriage return in the line": NOTE.removesuffix("\n") + "\r\n",
        "a unicode line end for one of ours": NOTE.replace("\n", "\u2028", 1),
        "a hyphen for the dash": NOTE.replace("\u2014", "-"),
        "an en dash": NOTE.replace("\u2014", "\u2013"),
        "two spaces": NOTE.replace("\u2014 ", "\u2014  "),
        "a space at the end": NOTE.removesuffix("\n") + " \n",
        "base64 for addresses": NOTE.replace(SIGNATURE, SIGNATURE.replace("/", "_").replace("+", "-") + "-\n"),
        "a byte order mark": "\ufeff" + NOTE,
        "a NUL": NOTE.replace("\n", "\0\n", 1),
        "a space before the size": NOTE.replace("\n22\n", "\n 22\n"),
        "very long": TEXT + "\n" + SIGNATURE * 100,
        "very long text": "x" * 10_000_000 + NOTE,
        "very many lines": "\n" * 5_000_000,
        "very long in bytes": TEXT + "\n" + SIGNATURE + OTHER.signs(TEXT) * (NOTE_MAX // 80),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_malformed_note_is_refused(note):
    refused(note[1])
    with pytest.raises(LogBroken):
        MODELER.verifier.verify_countersignature(note[1])


@pytest.mark.parametrize(
    "text",
    [
        text_of("o", 1, ROOT) + "an extension\n",
        "o\n1\n",
        "o\n" + base64.b64encode(ROOT).decode() + "\n1\n",
        "\n1\n" + base64.b64encode(ROOT).decode() + "\n",
        *(
            f"o\n{size}\n{base64.b64encode(ROOT).decode()}\n"
            for size in ("", "01", "+1", "-1", "1.0", "1_0", " 1", "0x1")
        ),
        *(f"o\n{size}\n{base64.b64encode(ROOT).decode()}\n" for size in ("\u0661", "\u00b2", "1" * 19, "9" * 5_000)),
        text_of("o", 1, ROOT[:31]),
        text_of("o", 1, ROOT + b"x"),
        text_of("o", 1, ROOT).replace("=", ""),
        text_of("o", 1, ROOT).replace("=", "=\u2028"),
    ],
)
def test_a_text_that_was_signed_and_is_no_checkpoint_is_refused(text):
    """Extension lines too: neither party writes them, and a reader that ignored them would accept unknown content."""
    refused(text + "\n" + CURATOR.signs(text))
    refused_countersignature(text + "\n" + MODELER.cosigns(text, 1))
    with pytest.raises(LogBroken):
        parse_unverified(text + "\n" + CURATOR.signs(text))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.one_of(st.text(max_size=300), st.text(alphabet="\n\u2014 a1+/=", max_size=80).map(lambda s: NOTE + s)))
def test_any_other_text_raises_log_broken(text):
    if text != NOTE:
        refused_countersignature(text)
        refused(text)


def test_a_head_of_nothing_can_be_signed():
    note = CURATOR.signer.sign(Checkpoint("o", EMPTY))
    assert CURATOR.verifier.verify(note).head == EMPTY


def test_a_key_is_named_after_itself_and_keeps_its_secret():
    seed = bytes(range(32))
    signer = Signer.of("curator", seed)
    assert signer.name == "curator." + hashlib.sha256(signer.verifier.public).hexdigest()[:16]
    assert repr(signer) == f"Signer({signer.name})"
    assert seed.hex() not in repr(vars(signer))


@pytest.mark.parametrize("pluses", [0, 1, 2, 3])
def test_a_key_whose_base64_has_plus_signs_reads_back(pluses):
    """Plus also separates the parts of a key: about half of all keys have one in the last part."""
    signers = (Signer.of("curator", index.to_bytes(32)) for index in range(1, 10_000))
    verifier = next(s.verifier for s in signers if s.verifier.vkey.count("+") == 2 + pluses)
    assert Verifier.parse(verifier.vkey) == verifier


@pytest.mark.parametrize(("size", "is_read"), [(NOTE_MAX, True), (NOTE_MAX + 1, False)])
def test_a_note_has_4000_characters_at_most(size, is_read):
    signer = Signer.of("curator", b"\1" * 32)
    checkpoint = Checkpoint(signer.name, EMPTY)
    note = signer.sign(checkpoint)
    others = f"\u2014 other {'A' * 3_000}\n"
    rest = size - len(note) - len(others) - len("\u2014  AAAAAAAA\n")
    encoded = "A" * (8 + (rest - 150) // 4 * 4)
    name = "n" * (size - len(note) - len(others) - len(f"\u2014  {encoded}\n"))
    note += f"{others}\u2014 {name} {encoded}\n"
    assert len(note) == size
    if is_read:
        assert parse_unverified(note) == checkpoint
    else:
        with pytest.raises(LogBroken, match="no signed note"):
            parse_unverified(note)


@pytest.mark.parametrize(("size", "is_read"), [(4, False), (5, True), (6, True)])
def test_a_signature_of_another_key_has_one_byte_after_its_id_at_least(size, is_read):
    signer = Signer.of("curator", b"\1" * 32)
    note = f"{signer.sign(Checkpoint(signer.name, EMPTY))}\u2014 other {base64.b64encode(bytes(size)).decode()}\n"
    if is_read:
        assert parse_unverified(note).origin == signer.name
    else:
        with pytest.raises(LogBroken, match="signature line"):
            parse_unverified(note)
