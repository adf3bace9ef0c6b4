"""Changes of a party's key travel with its notes: who pinned an earlier key follows them, and no forged one."""

import base64

import pytest

from blindopt.audit.checkpoints import Checkpoint, ForgedChange, Signer, Verifier
from blindopt.audit.merkle_log import Head
from blindopt.errors import LogBroken


def keys(count, kind="curator"):
    """Signers of one party, each named by the one before."""
    made = [Signer.of(kind, bytes(31) + b"\1")]
    for n in range(2, count + 1):
        private = bytes(31) + bytes([n])
        line = made[-1].change_to(Signer.of(kind, private).verifier)
        made.append(Signer.of(kind, private, (*made[-1].changes, line)))
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


def test_a_countersignature_is_followed_over_several_changes():
    first, _, third, fourth = keys(4, "modeler")
    curator = Signer.of("curator", bytes(31) + b"\x60")
    for signer in (third, fourth):
        note = signer.countersign(signed(curator), 7)
        assert first.verifier.countersigner(note)[1:] == (7, signer.verifier)
        assert signer.verifier.first(note) == first.verifier


@pytest.mark.parametrize("size", [1, 31, 64, 127, 128, 129])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_line_of_another_kind_among_the_changes_hides_none(size, before):
    """Signatures of other algorithms have any length, also that of a change."""
    first, *_, last = keys(3)
    text, own = first.sign_text("a text\n").split("\n\n")[0] + "\n", list(last.changes)
    other = base64.b64encode(b"\5\6\7\x08" + bytes(range(1, size + 1))).decode()
    lines = [*own[:before], f"\u2014 another {other}\n", *own[before:]]
    note = last.sign_text(text) + "".join(lines)
    assert first.verifier.verify_text(note) == text
    assert last.verifier.first(note) == first.verifier


def test_of_the_changes_in_a_note_as_many_are_read_as_two_parties_may_make():
    """16 of each: a note with more, which none of them writes, costs no more to verify."""
    made = keys(34)
    first, *_, last_read, beyond = made
    assert first.verifier.follow(signed(last_read))[1] == last_read.verifier
    with pytest.raises(LogBroken, match="no valid signature"):
        first.verifier.follow(signed(beyond))
    assert made[1].verifier.follow(signed(last_read))[1] == last_read.verifier
