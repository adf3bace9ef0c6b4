"""Changes of a party's key travel with its notes: who pinned an earlier key follows them, and no forged one."""

import base64

import pytest

from blindopt.audit.checkpoints import Checkpoint, ForgedChange, Signer, Verifier
from blindopt.audit.merkle_log import Head
from blindopt.errors import LogBroken


def keys(count):
    """Signers of one party, each named by the one before."""
    made = [Signer.of("curator", bytes(31) + b"\1")]
    for n in range(2, count + 1):
        private = bytes(31) + bytes([n])
        line = made[-1].change_to(Signer.of("curator", private).verifier)
        made.append(Signer.of("curator", private, (*made[-1].changes, line)))
    return made


def signed(signer, log="grt_1"):
    return signer.sign(Checkpoint(f"{signer.name}/{log}", Head(3, "00" * 32)))


def forged(line, by):
    """A change that another key signed in the name of the first."""
    name, raw = line[2:].split()
    body = base64.b64decode(raw)
    other = base64.b64decode(by[2:].split()[1])
    return f"\u2014 {name} {base64.b64encode(body[:68] + other[68:]).decode()}\n"


def test_every_earlier_key_follows_to_the_one_that_signed():
    first, second, third = made = keys(3)
    for signer in made:
        note = signed(signer)
        assert first.verifier.follow(note)[1] == signer.verifier
        assert first.verifier.verify(note, "grt_1").head.size == 3
        assert signer.first == first.verifier
    assert second.verifier.follow(signed(third))[1] == third.verifier
    with pytest.raises(LogBroken, match="no valid signature"):
        second.verifier.verify(signed(first))  # nothing leads back
    assert third.verifier.first(signed(third)) == first.verifier


def test_a_note_without_its_changes_or_of_another_log_is_refused():
    first, second = keys(2)
    note = signed(second)
    bare = note.replace(second.changes[0], "")
    with pytest.raises(LogBroken, match="no valid signature"):
        first.verifier.verify(bare)
    assert second.verifier.verify(bare, "grt_1")
    with pytest.raises(LogBroken, match="is of another log"):
        first.verifier.verify(note, "log")
    with pytest.raises(LogBroken, match="is of another log"):  # the origin names the key that signs
        first.verifier.verify(second.sign(Checkpoint(f"{first.name}/log", Head(3, "00" * 32))), "log")


def test_a_change_that_the_old_key_did_not_sign_is_forged():
    first, second = keys(2)
    stranger = Signer.of("curator", bytes(31) + b"\x50")
    line = forged(second.changes[0], stranger.change_to(second.verifier))
    false = Signer.of("curator", bytes(31) + b"\2", (line,))
    with pytest.raises(ForgedChange, match="is not signed by it"):
        first.verifier.verify(signed(false))
    own = Signer.of("curator", bytes(31) + b"\2", (stranger.change_to(second.verifier),))
    with pytest.raises(LogBroken, match="no valid signature"):
        first.verifier.verify(signed(own))


def test_a_countersignature_by_a_later_key_is_followed():
    curator = Signer.of("curator", bytes(31) + b"\x60")
    first = Signer.of("modeler", bytes(31) + b"\1")
    fresh = bytes(31) + b"\2"
    later = Signer.of("modeler", fresh, (first.change_to(Signer.of("modeler", fresh).verifier),))
    note = later.countersign(signed(curator), 7)
    checkpoint, time, key = first.verifier.countersigner(note)
    assert (checkpoint.head.size, time, key) == (3, 7, later.verifier)
    assert curator.verifier.verify(note, "grt_1") == checkpoint
    with pytest.raises(LogBroken, match="no valid countersignature"):
        Verifier.parse(curator.verifier.vkey).countersigner(note)
