"""A second verifier of exported logs, and a recount of the ledgers: without the product's code, from docs/protocol.md.

RFC 6962 trees, C2SP notes, checkpoints and cosignatures, and changes of keys. It needs Python and `cryptography`.

    python tests/log_verifier.py curator.jsonl modeler.jsonl [--key VKEY]
"""

import base64
import hashlib
import json
import sys
from collections import Counter, defaultdict
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SIGNS, COSIGNS, CHANGES = b"\x01", b"\x04", b"\xffblindopt-key-change"


class Broken(Exception):
    """A log, note or key that does not verify."""


# --- keys and notes -------------------------------------------------------------------------------------------


def key_id(name, algorithm, public):
    return hashlib.sha256(name.encode() + b"\n" + algorithm + public).digest()[:4]


def vkey_of(name, public, algorithm=SIGNS):
    encoded = base64.b64encode(algorithm + public).decode()
    return f"{name}+{key_id(name, algorithm, public).hex()}+{encoded}"


def parse_key(vkey):
    """The name and the 32 bytes of a verifier key."""
    name, number, encoded = vkey.split("+", 2)
    raw = base64.b64decode(encoded, validate=True)
    if raw[:1] not in (SIGNS, COSIGNS) or len(raw) != 33 or number != key_id(name, raw[:1], raw[1:]).hex():
        raise Broken(f"no verifier key: {vkey}")
    return name, raw[1:]


def signed_by(public, signature, message):
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def split(note):
    """The text of a note, and its signatures as (name, key id, bytes)."""
    text, blank, rest = note.rpartition("\n\n")
    if not blank or not rest.endswith("\n"):
        raise Broken("no note")
    signatures = []
    for line in rest[:-1].split("\n"):
        dash, name, encoded = line.split(" ")
        raw = base64.b64decode(encoded, validate=True)
        if dash != "\u2014":
            raise Broken("no signature line")
        signatures.append((name, raw[:4], raw[4:]))
    return text + "\n", signatures


def followed(vkey, signatures):
    """A key, and those that followed it, each named by the one before."""
    name, public = parse_key(vkey)
    keys = [(name, public)]
    while True:
        name, public = keys[-1]
        for signer, number, raw in signatures:
            if (signer, number, raw[:32]) == (name, key_id(name, CHANGES, public), public) and len(raw) == 128:
                after = raw[32:64]
                next_name = f"{name.partition('.')[0]}.{hashlib.sha256(after).hexdigest()[:16]}"
                old, new = vkey_of(name, public), vkey_of(next_name, after)
                message = f"blindopt key change\n{old}\n{new}\nthe second key signs from now on\n".encode()
                if not signed_by(public, raw[64:], message):
                    raise Broken("a forged change of a key")
                keys.append((next_name, after))
                break
        else:
            return keys


def verify_note(note, vkey, log):
    """The size and root of a checkpoint that a key signed, or one that followed it."""
    text, signatures = split(note)
    for name, public in followed(vkey, signatures):
        for signer, number, raw in signatures:
            if (signer, number) == (name, key_id(name, SIGNS, public)) and signed_by(public, raw, text.encode()):
                return checkpoint(text, name, log)
    raise Broken("the note has no valid signature of its key")


def verify_cosignature(note, vkey, log):
    """The size, root and time of a checkpoint of another party's log that a key countersigned."""
    text, signatures = split(note)
    for name, public in followed(vkey, signatures):
        for signer, number, raw in signatures:
            message = f"cosignature/v1\ntime {int.from_bytes(raw[:8], 'big')}\n{text}".encode()
            if (signer, number) == (name, key_id(name, COSIGNS, public)) and signed_by(public, raw[8:], message):
                return (*checkpoint(text, None, log), int.from_bytes(raw[:8], "big"))
    raise Broken("the note has no valid countersignature of its key")


def checkpoint(text, name, log):
    origin, size, root = text.removesuffix("\n").split("\n")
    if (origin if name else origin.partition("/")[2]) != (f"{name}/{log}" if name else log):
        raise Broken("the checkpoint is of another log")
    return int(size), base64.b64decode(root, validate=True)


def canonical(record):
    """The RFC 8785 form of a record, whose names are ASCII and whose numbers are short."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


# --- trees ----------------------------------------------------------------------------------------------------


def leaf_hash(body):
    return hashlib.sha256(b"\x00" + body).digest()


class Tree:
    """The Merkle tree of RFC 6962, section 2.1, by its definition."""

    def __init__(self, leaves):
        self.leaves, self.roots = leaves, {}

    def root(self, start, end):
        if start == end:
            return hashlib.sha256(b"").digest()
        if end - start == 1:
            return self.leaves[start]
        if (start, end) not in self.roots:
            middle = start + (1 << (end - start - 1).bit_length() - 1)
            both = self.root(start, middle) + self.root(middle, end)
            self.roots[start, end] = hashlib.sha256(b"\x01" + both).digest()
        return self.roots[start, end]

    def peaks(self, size):
        """The roots of the full subtrees of the first ``size`` leaves, largest first."""
        roots, start = b"", 0
        for bit in reversed(range(size.bit_length())):
            if size >> bit & 1:
                roots, start = roots + self.root(start, start + (1 << bit)), start + (1 << bit)
        return roots


def proves(first, first_root, second, second_root, proof):
    """Whether a consistency proof of RFC 6962, section 2.1.2, holds: both roots follow from it, from its end."""
    path = list(proof)

    def roots(m, n, is_whole):
        if m == n:
            return (first_root, first_root) if is_whole else (path[-1], path.pop())
        k, sibling = 1 << (n - 1).bit_length() - 1, path.pop()
        if m <= k:
            old, new = roots(m, k, is_whole)
            return old, hashlib.sha256(b"\x01" + new + sibling).digest()
        old, new = roots(m - k, n - k, False)
        return hashlib.sha256(b"\x01" + sibling + old).digest(), hashlib.sha256(b"\x01" + sibling + new).digest()

    try:
        return 0 < first <= second and roots(first, second, True) == (first_root, second_root) and not path
    except IndexError:
        return False


# --- exports --------------------------------------------------------------------------------------------------


class Export:
    """The lines of one party's export."""

    def __init__(self, lines):
        parsed = [json.loads(line) for line in lines]
        self.service, self.key = parsed[0].get("service"), parsed[0].get("key")
        self.entries, self.notes, self.keys = defaultdict(list), defaultdict(list), {}
        for line in parsed[1:]:
            if "seq" in line:
                self.entries[line["grant_id"]].append(line)
            elif "subject" in line:
                self.keys[line["subject"]] = line["key"]
            else:
                self.notes[line["kind"], line.get("grant_id")].append(line["note"])
        self.records = []
        """The own log; after ``verify``."""
        self.shared = {}
        """The exchanges of each grant; after ``verify``."""

    @property
    def is_curators(self):
        return self.service == "blindopt-curator"

    def log(self, grant, index):
        """The records and the tree of a log, each in its place, in its canonical form, under its hash."""
        records, tree = [], Tree([bytes.fromhex(entry["leaf"]) for entry in self.entries[grant]])
        for number, entry in enumerate(self.entries[grant]):
            body, record = entry["body"], json.loads(entry["body"])
            if (entry["seq"], record[index]) != (number, number):
                raise Broken(f"record {number} is missing, moved or repeated")
            if leaf_hash(body.encode()) != tree.leaves[number] or body != canonical(record):
                raise Broken(f"record {number} was changed")
            if tree.peaks(number + 1).hex() != entry["peaks"]:
                raise Broken(f"the tree at record {number} differs")
            records.append(record)
        return records, tree

    def verify(self):
        """Verify everything. Raises Broken."""
        self.records, tree = self.log(None, "seq")
        sizes = [self.check(tree, verify_note(n, self.first_key(), "log")) for n in self.notes["checkpoint", None]]
        if len(self.records) not in sizes:
            raise Broken("the own log has no checkpoint of all its records")
        of_grant = defaultdict(dict)
        for record in self.records:
            exchange = record.get("exchange")
            if exchange is not None and exchange["position"] is not None:
                if exchange["position"] in of_grant[exchange["grant_id"]]:
                    raise Broken("a place of a shared log is there twice")
                of_grant[exchange["grant_id"]][exchange["position"]] = exchange
        for grant in sorted({grant for grant in (*self.entries, *of_grant) if grant is not None}):
            self.verify_shared(grant, of_grant[grant])
        return self

    def first_key(self):
        """The key whose followers end with the one that signed: its changes are in each note."""
        _, signatures = split(self.notes["checkpoint", None][0])
        for name, _, raw in signatures:
            if len(raw) == 128 and followed(vkey_of(name, raw[:32]), signatures)[-1] == parse_key(self.key):
                return vkey_of(name, raw[:32])
        return self.key

    @staticmethod
    def check(tree, signed):
        """The size of a checkpoint, which must be of this tree."""
        size, root = signed[:2]
        if size > len(tree.leaves):
            raise Broken("the tail was cut: a checkpoint has more records")
        if tree.root(0, size) != root:
            raise Broken("a fork: a signed checkpoint is of another history")
        return size

    def curators_key(self, grant, studies):
        """The key that the modeler pinned for the study of a grant; of refusals alone, the one that signed them."""
        if studies:
            return self.keys.get(*studies)
        for key in self.keys.values():
            with suppress(Broken):
                verify_note(self.notes["receipt", grant][0], key, grant)
                return key
        return None

    def verify_shared(self, grant, recorded):
        """A curator has each exchange in both logs. A modeler's own may reach further: replies were lost before."""
        exchanges, tree = self.log(grant, "position")
        studies = {e["study_id"] for e in (*exchanges, *recorded.values()) if e["status"] < 400}
        if len(studies) > 1 or any(e["grant_id"] != grant for e in exchanges):
            raise Broken("an exchange of another grant or study")
        if any(recorded[seq] != e for seq, e in enumerate(exchanges) if seq in recorded):
            raise Broken("both logs of the party differ")
        if self.is_curators and sorted(recorded) != list(range(len(exchanges))):
            raise Broken("both logs of the party differ")
        while not self.is_curators and len(tree.leaves) in recorded:
            pending = recorded[len(tree.leaves)]  # an earlier version left out a refusal that named another study
            if pending["status"] < 400 or pending["study_id"] in studies:
                raise Broken("the tail was cut: the own log has more")
            tree.leaves.append(leaf_hash(canonical(pending).encode()))
        curator = self.first_key() if self.is_curators else self.curators_key(grant, studies)
        if curator is None and exchanges:
            raise Broken("the key of the curator is missing")
        if curator is None:  # this side has never seen it
            return
        receipts = set()
        for note in self.notes["receipt", grant]:
            size, root = verify_note(note, curator, grant)
            if size <= len(tree.leaves):
                self.check(tree, (size, root))
            elif size - 1 not in recorded:
                raise Broken("the tail was cut: a receipt has more records")
            receipts.add(size - 1)
        if not self.is_curators and not receipts >= recorded.keys():
            raise Broken("a receipt is missing")
        whole = {self.check(tree, verify_note(note, curator, grant)) for note in self.notes["checkpoint", grant]}
        if self.is_curators and len(exchanges) not in whole:
            raise Broken("the shared log has no checkpoint of all its records")
        witness = self.keys.get(grant) if self.is_curators else self.first_key()
        countersigned = set()
        for note in self.notes["countersignature", grant]:
            if witness is None:
                raise Broken("the key of the modeler is missing")
            verify_note(note, curator, grant)
            countersigned.add(self.check(tree, verify_cosignature(note, witness, grant)))
        acts = (r["details"] for r in self.records if r["kind"] == "checkpoint.countersigned")
        if not countersigned >= {act["size"] for act in acts if act["grant_id"] == grant}:
            raise Broken("a countersignature is missing")
        self.shared[grant] = exchanges


def differences(curator, modeler):
    """Where two verified exports do not say the same about a grant that both have."""
    conflicts = []
    for grant in curator.shared.keys() & modeler.shared.keys():
        ours, theirs = curator.shared[grant], modeler.shared[grant]
        conflicts += [f"{grant} place {i}" for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
        tree = Tree([leaf_hash(e["body"].encode()) for e in curator.entries[grant]])
        for note in (*modeler.notes["receipt", grant], *modeler.notes["countersignature", grant]):
            size, root = verify_note(note, curator.first_key(), grant)
            if size > len(ours) or tree.root(0, size) != root:
                conflicts.append(f"{grant} size {size}")
    return conflicts


def recount(records):
    """What each study and each account has used, and how often each candidate was measured, from a curator's log alone.

    Amounts are sums of decimals: a study's release, its release and answers, and the account's tunings and bounds.
    """
    studies, accounts = {}, defaultdict(lambda: {"epsilon": Decimal(0), "delta": Decimal(0)})
    for record in records:
        kind, details = record["kind"], record.get("details", {})
        if kind in ("tuning.started", "bounds.started"):
            account = accounts[details["account"]]
            account["epsilon"] += Decimal(details["epsilon"])
            account["delta"] += Decimal(details["delta"])
        if kind not in ("charge", "charge.refused"):
            continue
        empty = {"release": Decimal(0), "total": Decimal(0), "plays": 0, "refused": 0, "rows": Counter()}
        study = studies.setdefault(details["study_id"], empty)
        if kind == "charge.refused":
            study["refused"] += 1
            continue
        study["total"] += Decimal(details["epsilon"])
        if details["rows"] == "all":
            study["release"] += Decimal(details["epsilon"])
        elif "version" not in details:  # a correction is no measurement
            study["plays"] += sum(count for _, count in details["rows"])
            study["rows"].update(dict(map(tuple, details["rows"])))
    return studies, dict(accounts)


def main(arguments):
    paths, _, key = " ".join(arguments).partition(" --key ")
    exports = [Export(Path(path).read_text(encoding="utf-8").splitlines()).verify() for path in paths.split()]
    for export in exports:
        if key and export.is_curators and key not in (export.key, export.first_key()):
            raise Broken("the curator's export is signed with another key")
        print(f"{export.service}: {len(export.records)} records, {len(export.shared)} shared logs")
        studies, accounts = recount(export.records)
        for study_id, sums in studies.items():
            print(f"{study_id}: release {sums['release']}, in total {sums['total']}, {sums['plays']} measurements")
        for account, sums in accounts.items():
            print(f"{account}: epsilon {sums['epsilon']} and delta {sums['delta']} by tunings and bounds")
    if {export.is_curators for export in exports} == {True, False}:
        curator, modeler = sorted(exports, key=lambda export: not export.is_curators)
        print("\n".join(differences(curator, modeler)) or "both parties say the same")


if __name__ == "__main__":
    main(sys.argv[1:])
