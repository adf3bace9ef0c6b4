"""Frozen vectors of the logs, and logs of today, by a verifier that uses none of the product's code.

``tests/data/log_vectors.json.xz`` has keys with their private halves, records, roots, proofs, notes, and the exports of
both parties: sound, and broken in one way each, with verdicts. The product has to agree with each verdict.
"""

import ast
import json
import lzma
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from blindopt import wire
from blindopt.audit import merkle_log, reconciliation
from blindopt.audit.checkpoints import Signer, Verifier
from blindopt.audit.merkle_log import Head
from blindopt.errors import LogBroken
from tests import log_verifier as second
from tests.builders import group_release, laplace
from tests.curator_service.tuning_case import registered

VECTORS = json.loads(lzma.decompress((Path(__file__).parents[2] / "data" / "log_vectors.json.xz").read_bytes()))
GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5)
PARTIES = ("curator", "modeler")


def test_the_second_verifier_uses_the_standard_library_and_cryptography_alone():
    tree = ast.parse(Path(second.__file__).read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"cryptography"}


# --- vectors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", VECTORS["keys"], ids=lambda key: key["name"])
def test_keys(key):
    signer = Signer.of(key["name"].partition(".")[0], bytes.fromhex(key["private"]))
    assert (signer.name, signer.verifier.vkey) == (key["name"], key["vkey"])
    assert signer.verifier.cosigner_vkey == key["cosigner_vkey"]
    assert (
        second.parse_key(key["vkey"]) == second.parse_key(key["cosigner_vkey"]) == (key["name"], signer.verifier.public)
    )


def test_records_and_roots():
    leaves, peaks = [second.leaf_hash(record.encode()) for record in VECTORS["records"]], b""
    for size, (body, root) in enumerate(zip(VECTORS["records"], VECTORS["roots"], strict=True)):
        peaks = merkle_log.grow(peaks, size, merkle_log.leaf_hash(body.encode()))
        tree = second.Tree(leaves)
        assert second.canonical(json.loads(body)) == body
        assert tree.root(0, size + 1).hex() == merkle_log.root(peaks).hex() == root
        assert tree.peaks(size + 1) == peaks


@pytest.mark.parametrize("number", range(len(VECTORS["proofs"])))
def test_proofs_that_a_log_has_grown(number):
    first, size, proof, is_valid = (VECTORS["proofs"][number][name] for name in ("first", "second", "proof", "valid"))
    roots = VECTORS["roots"][first - 1], VECTORS["roots"][size - 1]
    path = [bytes.fromhex(node) for node in proof]
    first_root, second_root = map(bytes.fromhex, roots)
    assert second.proves(first, first_root, size, second_root, path) is is_valid
    assert merkle_log.is_consistent(Head(first, roots[0]), Head(size, roots[1]), path) is is_valid


@pytest.mark.parametrize("number", range(len(VECTORS["notes"])))
def test_notes(number):
    """Checkpoints, countersignatures and changes of keys; each wrong one differs from a right one in one place."""
    vector = VECTORS["notes"][number]
    key, note, log = vector["vkey"], vector["note"], vector["log"]
    calls = {
        "checkpoint": (second.verify_note, lambda: Verifier.parse(key).verify(note, log)),
        "countersignature": (second.verify_cosignature, lambda: Verifier.parse(key).verify_countersignature(note)[0]),
    }
    ours, products = calls[vector["kind"]]
    if vector["valid"]:
        assert (ours(note, key, log)[0], ours(note, key, log)[1].hex()) == (vector["size"], vector["root"])
        assert products().head == Head(vector["size"], vector["root"])
    else:
        with pytest.raises((second.Broken, ValueError)):
            ours(note, key, log)
        with pytest.raises(LogBroken):
            products()


def test_the_frozen_logs_of_both_parties_verify_and_agree(tmp_path):
    exports = [second.Export(VECTORS["exports"][name]).verify() for name in PARTIES]
    assert second.differences(*exports) == []
    assert [product_verdict(VECTORS["exports"][name], tmp_path) for name in PARTIES] == ["sound", "sound"]


@pytest.mark.parametrize("broken", VECTORS["broken"], ids=lambda broken: f"{broken['of']}: {broken['name']}")
def test_each_frozen_log_that_is_broken_is_found(broken, tmp_path):
    lines = list(VECTORS["exports"][broken["of"]])
    for number, line in broken["replace"]:
        lines[number] = line
    lines = [line for number, line in enumerate(lines) if number not in broken["delete"]]
    assert product_verdict(lines, tmp_path) == broken["verdict"]
    if broken["verdict"] == "sound":  # by itself: the other party shows what was done
        export = second.Export(lines).verify()
        others = second.Export(VECTORS["exports"]["modeler" if export.is_curators else "curator"]).verify()
        assert second.differences(*((export, others) if export.is_curators else (others, export)))
    else:
        with pytest.raises(second.Broken):
            second.Export(lines).verify()


def product_verdict(lines, folder):
    """What the product says of an export: "sound", or the first fault."""
    path = folder / "export.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    try:
        reconciliation.verify_export(reconciliation.read(path))
    except LogBroken as error:
        return str(error)
    return "sound"


def test_the_recount_of_the_frozen_logs():
    studies, accounts = second.recount(second.Export(VECTORS["exports"]["curator"]).verify().records)
    assert in_words(studies, accounts) == VECTORS["recount"]
    assert len(studies) == 2
    assert len(accounts) == 1


def in_words(studies, accounts):
    sums = {name: {key: str(value) for key, value in of.items() if key != "rows"} for name, of in studies.items()}
    return {
        "studies": sums,
        "accounts": {name: {key: str(v) for key, v in of.items()} for name, of in accounts.items()},
    }


# --- logs of today ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fresh(curator, modeler, owner, vendor, dataset, open_study, run_of):
    """A run with private answers, one of groups that its cap ends, and a tuning; the exports of both parties."""
    private = open_study(owner, dataset, GAUSSIAN, answers=laplace("0.25"))
    groups = open_study(
        owner, dataset, group_release(parts=(2, 2)), answers=laplace("0.5"), budget=wire.Budget(queries=2), kernel=None
    )
    for opened, choice in ((private, {"seed": 4}), (groups, {"random": True})):
        started = vendor.start(run_of(curator.url, opened, iterations=3, initial_rows=1, **choice))
        assert vendor.wait(started.id, timeout_s=240).state == "completed"
    case = registered(owner, m=20)
    assert owner.wait_tuning(owner.start_tuning(case.spec("1", "2.5")).id, timeout_s=240).state == "completed"
    lines = {}
    for service in (curator, modeler):
        done = service.run_in_process("audit", "export")
        assert (done.returncode, done.stderr) == (0, "")
        lines[service.name] = done.stdout.splitlines()
    return lines, (private, groups)


def test_fresh_logs_verify_and_agree_without_the_products_code(fresh):
    exports = [second.Export(fresh[0][name]).verify() for name in PARTIES]
    assert second.differences(*exports) == []
    assert len(exports[0].shared) == 2


def test_a_recount_of_the_log_gives_the_figures_of_every_ledger(fresh, owner):
    lines, opened = fresh
    records = second.Export(lines["curator"]).verify().records
    studies, accounts = second.recount(records)
    without = [record for record in records if record["kind"] != "charge" or record["details"]["rows"] == "all"]
    assert second.recount(without)[0] != studies
    assert studies.keys() == {study.id for study in opened}
    for study_id, sums in studies.items():
        balance = owner.balance(study_id)
        assert Decimal(balance.release_epsilon) == sums["release"]
        assert Decimal(balance.total_epsilon) == sums["total"]
        assert balance.total_plays == sums["plays"]
        assert sum(line.kind == "refused" for line in owner.ledger(study_id)) == sums["refused"]
        assert {row.row: row.plays for row in owner.exposure(study_id)} == dict(sums["rows"])
    ((account, sums),) = accounts.items()
    stated = owner.account(account)
    assert (Decimal(stated.epsilon), Decimal(str(stated.delta))) == (sums["epsilon"], sums["delta"])
