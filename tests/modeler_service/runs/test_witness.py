"""The modeler as a witness: curators that lie, each in one way, and honest ones on a bad day."""

import json
import secrets
from collections.abc import Callable
from typing import Any

import pytest

from blindopt import wire
from blindopt.audit import merkle_log
from blindopt.audit.checkpoints import Signer
from blindopt.audit.merkle_log import Exchange
from blindopt.client import Vendor
from blindopt.client.witness import OTHERS_MAX
from blindopt.errors import ProtocolViolated, Unreachable
from modeler_service.context import open_context
from modeler_service.runs.witness import Witness
from modeler_service.settings import Settings
from service_kit.store import audit_log, checkpoints
from tests.builders import a_run
from tests.modeler_service.lying_curator import FakeCurator, note_of, receipt
from tests.shared.blindopt.audit.test_key_changes import forged
from tests.system.crashes.crash_checks import command

ZERO = "0" * 64
MADE_UP = "0123456789abcdef"
"""The end of ids that no MAC has."""
RANDOM = wire.RandomRows(name="random")


@pytest.fixture(scope="module")
def own(make_service, tmp_path_factory):
    """A modeler for lies: it gives up soon, and countersigns after every third answer."""
    folder = tmp_path_factory.mktemp("witness")
    settings = {"retry_attempts": "3", "retry_seconds_max": "0.1", "countersign_every": "3"}
    settings |= {"wait_hours": "0.00001", "wait_seconds_first": "0.01", "wait_seconds_max": "0.01"}
    return make_service("modeler", folder, **settings).start()


@pytest.fixture
def liar(study):
    with FakeCurator(study) as curator:
        yield curator


@pytest.fixture(scope="module")
def play(vendor) -> Callable[..., Any]:
    def make(curator: FakeCurator, iterations: int = 5, **chosen: Any) -> wire.RunView:
        spec = a_run(curator.url, curator.study_id, "t", algorithm=RANDOM, iterations=iterations, **chosen)
        return vendor.wait(vendor.start(spec).id, timeout_s=60)

    return make


@pytest.fixture(scope="module")
def disputes(own) -> Callable[[FakeCurator], list[str]]:
    """The disputes with a curator in the modeler's log."""

    def of(curator: FakeCurator) -> list[str]:
        like = f'%"study_id":"{curator.study_id}"%'
        rows = own.rows("SELECT body FROM log WHERE CAST(body AS TEXT) LIKE ? ORDER BY seq", like)
        records = [json.loads(body) for (body,) in rows]
        return [record["details"]["what"] for record in records if record["kind"] == "log.disputed"]

    return of


@pytest.fixture(scope="module")
def caught(play, disputes, own) -> Callable[..., None]:
    """A run against a liar fails with a reason, records it once, and has countersigned true heads own_witness."""

    def check(curator: FakeCurator, what: str, **chosen: Any) -> None:
        true = list(curator.bodies)
        run = play(curator, **chosen)
        assert (run.state, run.problem.code) == ("failed", "protocol_violated"), run.problem
        assert what in run.problem.detail
        assert disputes(curator)[-1:] == [run.problem.detail]
        assert len(disputes(curator)) == 1
        for head in curator.countersigned_heads():
            assert head.root == curator.root((curator.bodies or true)[: head.size])

    return check


@pytest.fixture(scope="module")
def not_used(play, disputes) -> Callable[..., wire.RunView]:
    """What the curator did not sign is used for nothing and proves nothing: it is requested again, then given up."""

    def check(curator: FakeCurator, what: str) -> wire.RunView:
        run = play(curator)
        assert (run.state, run.problem.code, run.can_resume) == ("failed", "unreachable", True), run.problem
        assert what in run.problem.detail
        assert disputes(curator) == []
        return run

    return check


def test_an_honest_curator_is_countersigned_as_the_log_grows(liar, play, disputes):
    run = play(liar, iterations=6, log_key=liar.signer.verifier.vkey)
    assert (run.state, run.trials, disputes(liar)) == ("completed", 7, [])
    assert [head.size for head in liar.countersigned_heads()] == [5, 8, 9]
    for head in liar.countersigned_heads():
        assert head.root == liar.root(liar.bodies[: head.size])


# --- lies about the position of an exchange --------------------------------------------------------------


def from_query(liar: FakeCurator, number: int, lie: Callable[[int], str | None]) -> None:
    """Lie in the receipts from the ``number``-th answer on."""
    true = liar.receipt_of
    liar.receipt_of = lambda position: lie(position) if liar.query_count >= number else true(position)


def test_a_position_given_twice_is_caught(liar, caught):
    """The second receipt is for the new exchange in the position of the last one, and rightly signed."""

    def lie(position: int) -> str:
        bodies = [*liar.bodies[: position - 1], liar.bodies[position].replace(b'"position":4', b'"position":3')]
        return receipt(position - 1, liar.note(position, bodies=bodies))

    from_query(liar, 3, lie)
    caught(liar, "gave place 3 of the shared log twice")


def test_a_history_that_is_not_the_one_before_is_caught(liar, caught):
    from_query(liar, 3, lambda p: receipt(p, note_of(liar.signer, f"{liar.signer.name}/{liar.grant}", p + 1, ZERO)))
    caught(liar, "receipt at place 4 shows another history")


def test_a_changed_past_is_caught(liar, caught):
    """The new exchange is right, and an old one is changed."""

    def lie(position: int) -> str:
        bodies = list(liar.bodies)
        bodies[2] = bodies[2].replace(b'"status":201', b'"status":403')
        return receipt(position, liar.note(position + 1, bodies=bodies))

    from_query(liar, 3, lie)
    caught(liar, "receipt at place 4 shows another history")


def test_another_reply_than_came_is_caught(liar, caught):
    def lie(position: int) -> str:
        other = liar.bodies[position].replace(b'"reply_sha256":"', b'"reply_sha256":"0')[:-1] + b"}"
        return receipt(position, liar.note(position + 1, bodies=[*liar.bodies[:position], other]))

    from_query(liar, 1, lie)
    caught(liar, "receipt at place 2 shows another history")


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_receipt_of_another_grants_log_is_caught(number, liar, caught):
    """Each such log would begin anew, and hold what the one that is countersigned does not."""
    other = f"grt_{secrets.token_hex(8)}"

    def lie(position: int) -> str:
        body = liar.bodies[position].replace(liar.grant.encode(), other.encode())
        body = body.replace(b'"position":%d' % position, b'"position":0')
        return receipt(0, liar.note(1, grant=other, bodies=[body]))

    from_query(liar, number, lie)
    caught(liar, "is of another grant")


def test_receipts_with_a_gap_that_nothing_fills_are_caught(liar, caught):
    """Each is rightly signed, and none of the queries is in the log that is countersigned."""
    hidden: list[bytes] = []

    def hide(number: int) -> None:
        hidden.append(liar.bodies.pop())

    def lie(position: int) -> str:
        position = 1_000 + len(hidden)
        return receipt(position, note_of(liar.signer, f"{liar.signer.name}/{liar.grant}", position + 1, ZERO))

    liar.on_query = hide
    from_query(liar, 1, lie)
    caught(liar, "leaves out place 1003, which it gave")


def test_a_gap_does_not_excuse_a_signature_of_a_stranger(liar, not_used):
    stranger = Signer.of("curator", bytes(32))
    from_query(liar, 1, lambda p: receipt(p + 5, note_of(stranger, f"{liar.signer.name}/{liar.grant}", p + 6, ZERO)))
    not_used(liar, "does not verify")


@pytest.mark.parametrize("is_forged", [False, True])
def test_a_key_that_the_pinned_one_names_is_followed_and_a_forged_one_is_a_breach(
    is_forged, liar, caught, play, disputes
):
    fresh = bytes(31) + b"1"
    line = liar.signer.change_to(Signer.of("curator", fresh).verifier)
    if is_forged:
        line = forged(line, Signer.of("curator", bytes(32)).change_to(Signer.of("curator", fresh).verifier))
    later, true = Signer.of("curator", fresh, (line,)), liar.signer

    def change(position: int) -> str:
        liar.signer = later
        note = liar.note(position + 1)
        liar.signer = true
        return receipt(position, note)

    from_query(liar, 2, change)
    if is_forged:
        caught(liar, "is not signed by it")
    else:
        assert (play(liar).state, disputes(liar)) == ("completed", [])


def test_a_receipt_under_another_origin_is_caught(liar, caught):
    from_query(liar, 1, lambda p: receipt(p, note_of(liar.signer, f"curator.other/{liar.grant}", p + 1, ZERO)))
    caught(liar, "is of another log")


def nothing(position: int) -> str | None:
    return None


@pytest.mark.slow(every=4)
@pytest.mark.parametrize(
    "lie",
    {
        "none": nothing,
        "empty": lambda position, note: "",
        "no note": lambda position, note: f"{position} ",
        "not base64": lambda position, note: (
            f"{position} {note}".replace("\n", " ").encode("ascii", "replace").decode()
        ),
        "not text": lambda position, note: f"{position} /w==",
        "no place": lambda position, note: receipt("", note),
        "a negative place": lambda position, note: receipt(-1, note),
        "a place in other digits": lambda position, note: receipt("_".join(str(position + 10)), note),
        "a place that is none": lambda position, note: receipt("x", note),
        "another place than was signed": lambda position, note: receipt(position + 1, note),
        "two spaces": lambda position, note: receipt(f"{position} ", note),
        "very long": lambda position, note: receipt(position, note + note * 20),
        "a place of 5,000 digits": lambda position, note: receipt("1" * 5_000, note),
    }.items(),
    ids=lambda item: item[0],
)
def test_an_answer_without_a_readable_receipt_is_not_used(lie, liar, not_used, own):
    kind, make = lie
    made = make if kind == "none" else lambda position: make(position, liar.note(position + 1))
    from_query(liar, 2, made)
    run = not_used(liar, "arrived without the curator's receipt")
    assert own.rows("SELECT number FROM trials WHERE run_id = ? AND y IS NOT NULL", run.id) == [(1,)]


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("size", [0, 2**53, 10**17])
def test_a_position_that_no_log_has_is_no_receipt(size, liar, not_used):
    """Place -1 comes before every log, and a rightly signed empty log would vouch for it; others after every log."""
    origin = f"{liar.signer.name}/{liar.grant}"
    from_query(liar, 1, lambda position: receipt(size - 1, note_of(liar.signer, origin, size, merkle_log.EMPTY.root)))
    not_used(liar, "arrived without the curator's receipt")


# --- lies about the log as a whole ----------------------------------------------------------------------


def test_a_query_that_was_never_sent_is_caught(liar, caught):
    liar.on_query = lambda number: invent(liar, number, method="POST", idempotency_key="run_0123456789abcdef:1")
    caught(liar, "holds a query that this side never sent")


def invent(liar: FakeCurator, number: int, at: int = 2, **changes: Any) -> None:
    """Before the exchange of the ``at``-th answer, insert another into the log."""
    if number == at:
        last = liar.bodies.pop()
        position = len(liar.bodies)
        liar.add_exchange(**changes)
        liar.bodies.append(last.replace(b'"position":%d' % position, b'"position":%d' % (position + 1)))
        true = liar.receipt_of
        liar.receipt_of = lambda position: true(len(liar.bodies) - 1)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"method": "POST"}, "never sent"),
        ({"method": "post", "idempotency_key": "x"}, "never sent"),
        ({"method": "PUT"}, "never sent"),
        ({"method": "POST", "status": 403, "idempotency_key": "run_0123456789abcdef:1"}, "never sent"),
        ({"study_id": "std_0123456789abcdef"}, "is no exchange of this grant"),
        ({"grant_id": "grt_0123456789abcdef"}, "is no exchange of this grant"),
        ({"position": 0}, "is no exchange of this grant"),
        ({"status": "200"}, "is no exchange of this grant"),
        ({"status": True}, "is no exchange of this grant"),
        ({"body": b"nonsense"}, "is no exchange of this grant"),
        ({"body": b'{"position":3}'}, "is no exchange of this grant"),
        ({"body": b"[" * 10_000}, "is no exchange of this grant"),
    ],
)
def test_an_exchange_that_this_side_never_had_is_caught(changes, what, liar, caught):
    liar.on_query = lambda number: invent(liar, number, **changes)
    caught(liar, what)


def test_another_query_under_a_key_that_was_used_is_caught(liar, caught, own):
    """The key is right, the row is not the one that was chosen."""

    def lie(number: int) -> None:
        key = next(iter(liar.replies))
        invent(liar, number, method="POST", status=201, idempotency_key=key, request_sha256=ZERO)

    liar.on_query = lie
    caught(liar, "holds a query that this side never sent")


def test_a_fetched_log_that_differs_from_the_receipts_is_caught(liar, caught):
    """A reply is lost, so the copy is fetched; beyond the gap it is another than the receipts say."""
    liar.lost = {2}
    liar.entries = lambda after: [b.replace(b'"status":201', b'"status":200') if i > 2 else b
                                  for i, b in enumerate(liar.bodies)][after + 1 :]  # fmt: skip
    caught(liar, "place 4 of the curator's shared log is not what this side saw")


def test_a_receipt_across_a_gap_is_held_against_what_fills_it(liar, caught):
    """The gap hides for a while that a receipt is of another history."""
    liar.lost = {2}
    true = liar.receipt_of
    origin = f"{liar.signer.name}/{liar.grant}"
    liar.receipt_of = lambda p: receipt(p, note_of(liar.signer, origin, p + 1, ZERO)) if p == 4 else true(p)
    caught(liar, "receipt at place 4 shows another history")


def test_a_log_that_is_shorter_than_its_checkpoint_is_caught(liar, caught):
    liar.checkpoint = lambda: liar.note(9, bodies=[*liar.bodies, *(b"{}" for _ in range(9))])
    caught(liar, "is shorter than its checkpoint")


def test_a_log_without_an_end_stores_a_hundred_entries_a_day_and_holds_no_run_for_ever(liar, play, own, disputes):
    """Reads that nobody made convict no curator, because a proxy may have replaced their ids."""
    pages = []

    def entries(after: int) -> list[bytes]:
        pages.append(after)
        while len(liar.bodies) < after + 3:
            liar.add_exchange(request_id=secrets.token_hex(8) + MADE_UP)
        return liar.bodies[after + 1 : after + 3]

    liar.entries = entries
    liar.checkpoint = lambda: note_of(liar.signer, f"{liar.signer.name}/{liar.grant}", 10**12, ZERO)
    run = play(liar, iterations=1)
    assert (run.state, run.problem.code, run.can_resume) == ("failed", "unreachable", True), run.problem
    assert "requests today that this side does not recognise" in run.problem.detail
    assert "Ask the owner" in run.problem.detail
    assert disputes(liar) == []
    ((stored,),) = own.rows("SELECT count(*) FROM shared WHERE grant_id = ?", liar.grant)
    real = sum(json.loads(body)["request_id"][16:] != MADE_UP for body in liar.bodies)
    assert OTHERS_MAX < stored <= OTHERS_MAX + real
    assert len(set(pages)) <= 1 + OTHERS_MAX


def test_a_checkpoint_of_long_ago_is_caught(liar, caught):
    """It is true, and rightly signed; the answers since then would never be countersigned."""
    liar.checkpoint = lambda: liar.note(2)
    caught(liar, "checkpoint of size 2 leaves out place 4, which it gave")


@pytest.mark.parametrize(
    ("lie", "what"),
    {
        "another root": (lambda liar: liar.note(5, bodies=[b"{}"] * 5), "another history"),
        "another grant": (lambda liar: liar.note(5, grant="grt_0123456789abcdef"), "is of another log"),
        "its own log": (lambda liar: liar.note(5, grant="log"), "is of another log"),
        "empty": (lambda liar: liar.note(0), "leaves out place 4"),
    }.values(),
)  # fmt: skip
def test_a_checkpoint_that_is_not_of_this_log_is_caught(lie, what, liar, caught):
    liar.checkpoint = lambda: lie(liar)
    caught(liar, what)
    assert liar.countersignatures == []


@pytest.mark.parametrize(
    "lie",
    {
        "another key": lambda liar: note_of(Signer.of("curator", bytes(32)), "x", 5, ZERO),
        "no note": lambda liar: "nonsense",
        "no signature": lambda liar: liar.note(5).partition("\u2014")[0],
        "an extension": lambda liar: liar.note(5).replace("\n\n", "\nmore\n\n"),
    }.values(),
)
def test_a_checkpoint_that_the_curator_did_not_sign_is_not_countersigned(lie, liar, not_used):
    liar.checkpoint = lambda: lie(liar)
    not_used(liar, "does not verify")
    assert liar.countersignatures == []


def test_a_key_that_changes_between_two_runs_is_caught(liar, play, disputes, study):
    assert play(liar).state == "completed"
    with FakeCurator(study) as other:
        other.study_id, other.grant = liar.study_id, liar.grant
        other.study = liar.study | {"log_key": other.signer.verifier.vkey}
        run = play(other)
        assert (run.state, run.problem.code) == ("failed", "protocol_violated")
        assert "the curator's log key is not the one that it had before" in run.problem.detail
        assert disputes(liar) == [run.problem.detail]
        assert other.countersignatures == []


def test_a_key_that_changes_while_its_receipts_stay_is_caught(liar, play, disputes):
    assert play(liar).state == "completed"
    liar.study["log_key"] = Signer.of("curator", bytes(32)).verifier.vkey
    run = play(liar)
    assert (run.state, run.problem.detail) == ("failed", "the curator's log key is not the one that it had before")
    assert disputes(liar) == [run.problem.detail]


def test_a_key_other_than_the_one_that_the_run_was_given_is_caught(liar, caught):
    caught(liar, "is not the one that the run was given", log_key=Signer.of("curator", bytes(32)).verifier.vkey)
    assert liar.query_count == 0


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("key", ["", "nonsense", "curator.x+00000000+AAAA"])
def test_a_key_that_is_none_is_caught(key, liar, caught):
    liar.study["log_key"] = key
    caught(liar, "log key cannot be read")
    assert liar.query_count == 0


def test_a_grant_other_than_that_of_its_receipts_is_caught(liar, caught):
    liar.study["grant_id"] = "grt_0123456789abcdef"
    caught(liar, "is of another grant's log")


def test_the_last_note_of_the_curator_is_kept_with_the_dispute(liar, play, own):
    """A signed lie is the evidence."""
    lie = note_of(liar.signer, f"{liar.signer.name}/{liar.grant}", 5, ZERO)
    from_query(liar, 3, lambda position: receipt(position, lie))
    assert play(liar).state == "failed"
    ((body,),) = own.rows(
        "SELECT body FROM log WHERE CAST(body AS TEXT) LIKE '%log.disputed%' ORDER BY seq DESC LIMIT 1"
    )
    note = json.loads(body)["details"]["note"]
    assert note == lie
    assert liar.signer.verifier.verify(note).head == merkle_log.Head(5, ZERO)


# --- honest curators on a bad day -------------------------------------------------------------------------


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("lost", [{1}, {2, 3}, {3}, {6}, {1, 3, 5}])
def test_replies_that_are_lost_are_logged_and_countersigned_all_the_same(lost, liar, play, disputes):
    liar.lost = lost
    run = play(liar)
    assert (run.state, run.trials, disputes(liar)) == ("completed", 6, []), run.problem
    last = liar.countersigned_heads()[-1]
    assert (last.size, last.root) == (len(liar.bodies), liar.root(liar.bodies))
    assert last.size == 2 + 6 + len(lost)


def test_several_runs_at_once_under_a_grant_share_its_log(liar, vendor, disputes):
    liar.lost = {4, 9, 13}
    spec = a_run(liar.url, liar.study_id, "t", algorithm=RANDOM, iterations=6)
    runs = [vendor.start(spec).id for _ in range(4)]
    assert [vendor.wait(run, timeout_s=60).state for run in runs] == ["completed"] * 4
    assert disputes(liar) == []
    for head in liar.countersigned_heads():
        assert head.root == liar.root(liar.bodies[: head.size])
    assert max(head.size for head in liar.countersigned_heads()) == len(liar.bodies) > 4 * 8 + 3


def test_a_countersignature_whose_reply_is_lost_is_sent_again(study, play, own):
    """It was recorded before it was sent: the curator gets the same one, not another under the same key."""
    sent = []

    class Forgetful(FakeCurator):
        def reply(self, request: Any) -> Any:
            if request.path.endswith("countersignatures"):
                sent.append((request.headers["Idempotency-Key"], request.body))
                if len(sent) == 1:
                    raise ConnectionAbortedError
            return super().reply(request)

    with Forgetful(study) as curator:
        assert play(curator, iterations=1).state == "completed"
    assert len(sent) == 2
    assert sent[0] == sent[1]
    assert own.rows("SELECT size FROM countersignatures WHERE grant_id = ?", curator.grant) == [(4,)]


def test_a_modeler_killed_between_a_reply_and_its_commit_goes_on(study, make_service, tmp_path, until):
    """The exchange is in the curator's log and not in the modeler's: the entry it fetches later fits its retry."""
    modeler = make_service("modeler", tmp_path, countersign_every="3").start()
    with FakeCurator(study) as curator, Vendor(modeler.url, modeler.token) as vendor:

        def kill(number: int) -> None:
            if number == 3:
                modeler.kill()

        curator.on_query = kill
        spec = a_run(curator.url, curator.study_id, "t", algorithm=RANDOM, iterations=5)
        run = vendor.start(spec).id
        until(lambda: modeler.process.poll() is not None)
        code, text = command(modeler, "audit", "verify")
        assert code == 0, text
        modeler.start()
        assert vendor.wait(run, timeout_s=60).state == "completed"
        last = curator.countersigned_heads()[-1]
        assert (last.size, last.root) == (len(curator.bodies), curator.root(curator.bodies))
        assert (curator.query_count, len(curator.replies)) == (7, 6)
    code, text = command(modeler, "audit", "verify")
    assert code == 0, text


def test_a_run_whose_last_reply_is_lost_for_good_leaves_a_log_that_verifies(study, make_service, tmp_path):
    """The copy has a gap that stays; that is no fault of this side."""
    modeler = make_service(
        "modeler", tmp_path, retry_attempts="1", wait_hours="0.00001", wait_seconds_first="0.01"
    ).start()
    with FakeCurator(study) as curator, Vendor(modeler.url, modeler.token) as vendor:
        curator.lost = {3, *range(5, 100)}  # the answer to the second try of 3 comes, and nothing after it
        spec = a_run(curator.url, curator.study_id, "t", algorithm=RANDOM, iterations=5)
        ended = vendor.wait(vendor.start(spec).id, timeout_s=60)
        assert (ended.state, ended.problem.code) == ("failed", "unreachable")
        assert modeler.rows("SELECT count(*) FROM shared") == [(4,)]
    code, text = command(modeler, "audit", "verify")
    assert code == 0, text


def test_after_all_of_these_lies_the_modelers_own_log_verifies(own):
    """Whatever a curator does, it cannot make an honest modeler look like a forger."""
    code, text = command(own, "audit", "verify")
    assert code == 0, text
    lines = command(own, "audit", "export")[1].splitlines()
    assert len(lines) > 500


# --- orders that a socket would not give --------------------------------------------------------------------


@pytest.fixture
def own_witness(liar, tmp_path):
    """A witness of its own, with its context."""
    context = open_context(Settings(data_dir=tmp_path / "data"))
    witness = Witness(context, liar.study_id, "run_1", lambda db, key, digest: True)
    with context:
        yield context, witness


def study_of(liar: FakeCurator) -> wire.StudyView:
    return wire.StudyView.model_validate(liar.study)


def exchange_of(body: bytes) -> Exchange:
    return Exchange(**merkle_log.Entry(0, body, b"", b"").record)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [0, 3, 1, 2]])
@pytest.mark.parametrize("trust_after", [0, 1, 2, 4])
def test_replies_in_any_order_make_the_same_copy(order, trust_after, liar, own_witness):
    context, witness = own_witness
    for _ in range(4):
        liar.add_exchange()
    for number, position in enumerate(order):
        if number == trust_after:
            witness.trust(study_of(liar), None)
        witness.record(exchange_of(liar.bodies[position]), liar.note(position + 1))
    if trust_after == 4:
        witness.trust(study_of(liar), None)
    with context.database.read() as db:
        assert [entry.body for entry in audit_log.walk(db, liar.grant)] == liar.bodies
        assert audit_log.head(db, liar.grant).root == liar.root(liar.bodies)


def test_a_receipt_that_comes_after_its_entry_was_fetched_is_still_checked(liar, own_witness):
    """Another run of the grant fetched the entry meanwhile."""
    context, witness = own_witness
    for _ in range(3):
        liar.add_exchange()
    witness.trust(study_of(liar), None)
    entries = [wire.AuditEntry(seq=i, body=b.decode(), leaf=ZERO, peaks=ZERO) for i, b in enumerate(liar.bodies)]
    context.database.write(lambda db: witness.add_entries(witness.copy_in(db), liar.grant, entries))
    witness.record(exchange_of(liar.bodies[0]), liar.note(1))
    lie = note_of(liar.signer, f"{liar.signer.name}/{liar.grant}", 2, ZERO)
    for note, kind, what in (
        (lie, ProtocolViolated, "shows another history"),
        (lie.replace("A", "B"), Unreachable, "does not verify"),
    ):
        with pytest.raises(kind, match=what):
            witness.record(exchange_of(liar.bodies[1]), note)
    with context.database.read() as db:
        assert checkpoints.RECEIPTS.last(db, liar.grant).seq == 0


def test_the_position_of_a_fetched_entry_cannot_be_given_to_another_exchange(liar, own_witness):
    context, witness = own_witness
    liar.add_exchange()
    witness.trust(study_of(liar), None)
    entry = wire.AuditEntry(seq=0, body=liar.bodies[0].decode(), leaf=ZERO, peaks=ZERO)
    context.database.write(lambda db: witness.add_entries(witness.copy_in(db), liar.grant, [entry]))
    other = liar.bodies[0].replace(b'"status":200', b'"status":201')
    with pytest.raises(ProtocolViolated, match="gave place 0 of the shared log twice"):
        witness.record(exchange_of(other), liar.note(1, bodies=[other]))
