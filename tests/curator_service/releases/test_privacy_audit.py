"""`blindopt-curator audit-privacy`: what it prints and signs, when it fails, and that no record is read."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from blindopt import wire
from blindopt.audit import signed_documents
from blindopt.audit.checkpoints import Verifier
from blindopt.errors import LogBroken
from curator_service import cli
from tests.builders import a_study_of, laplace
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.curator_service.releases.attacks.test_fit import GROUPS
from tests.curator_service.replaced_noise import replace_answer_release

RELEASE = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1")
ANSWERS = laplace()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small):
    """A curator's folder without any file of records, its studies by what they promise."""
    data, ids = tmp_path_factory.mktemp("audited"), {}
    service = InProcessCurator(data)
    dataset = service.register(small.csv, public=True)
    for name, release, answers in (
        ("private", RELEASE, ANSWERS),
        ("centres", GROUPS["centres"], ANSWERS),
        ("public", wire.IdentityRelease(mechanism="identity"), wire.NoAnswerNoise(mechanism="none")),
    ):
        draft = service.draft(a_study_of(small, dataset, release, answers=answers))
        ids |= {name: draft["id"], f"digest of {name}": draft["spec_sha256"]}
    service.curator.context.close()
    shutil.rmtree(data / "data" / "files")
    return data / "data", ids


def run(folder, name, *options, draws="2000"):
    data, ids = folder
    arguments = ["audit-privacy", ids.get(name, name), "--draws", draws, *options]
    return CliRunner().invoke(cli.app, arguments, env={"BLINDOPT_CURATOR_DATA_DIR": str(data)})


@pytest.mark.parametrize("name", ["private", "centres"])
def test_a_right_study_fits_its_laws_and_no_record_is_read(folder, name):
    done = run(folder, name)
    assert done.exit_code == 0, done.output
    words = " ".join(done.stdout.split())
    assert "answers (laplace): epsilon 1 is promised" in words
    assert words.count("what was drawn fits the law") == 2


def test_the_transcript_has_what_was_found_and_is_signed_with_the_key_of_the_log(folder):
    signed = json.loads(run(folder, "private", "--json").stdout)
    transcript = signed["transcript"]
    assert transcript["study_id"] == folder[1]["private"]
    assert set(transcript["versions"]) == {"blindopt-services", "opendp", "dp-accounting", "numpy", "python"}
    limits = transcript["draws"], transcript["p_min"], transcript["alpha"]
    assert (limits, transcript["contradicts"]) == ((2000, 1e-9, 1e-9), False)
    assert transcript["spec_sha256"] == folder[1]["digest of private"]
    for part in transcript["parts"]:
        assert part["claimed"] == {"epsilon": "1", "delta": 0.0}
        assert len(part["statistics"]) >= 10
        assert all(1e-9 < each["p"] <= 1 for each in part["statistics"])
        assert 0 < part["least_epsilon"] <= 1  # of the release: 0.32, with a deviation of 0.046
        assert part["verdict"] == "fits the law"
    verifier = Verifier.parse(transcript["log_key"])
    verifier.verify(transcript["checkpoint"])
    signed_documents.verify(verifier, wire.AUDIT_TITLE, transcript, signed["signature"])
    for title, changed in ((wire.REPORT_TITLE, transcript), (wire.AUDIT_TITLE, transcript | {"draws": 3000})):
        with pytest.raises(LogBroken):
            signed_documents.verify(verifier, title, changed, signed["signature"])


def test_a_broken_answer_exits_with_three(folder, monkeypatch):
    replace_answer_release(monkeypatch, lambda self, offsets: self.centre + offsets)
    done = run(folder, "private")
    assert done.exit_code == 3
    assert done.stdout.count("WHAT WAS DRAWN CONTRADICTS THE LAW") == 1


def test_where_nothing_is_promised_there_is_nothing_to_check(folder):
    done = run(folder, "public")
    assert done.exit_code == 0
    assert done.stdout.count("nothing is promised") == 2


def test_a_number_out_of_range_is_refused(folder):
    assert run(folder, "private", draws="999").exit_code == 2


def test_a_study_that_does_not_exist_is_an_error(folder):
    done = run(folder, "std_0000000000000000")
    assert done.exit_code == 5
    assert "there is no such study" in done.output
