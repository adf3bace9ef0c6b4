"""`blindopt-modeler run --grant FILE`: from the owner's file to the recommended candidate, against real services."""

import json

import pytest

from blindopt import wire


@pytest.fixture
def grant(owner, curator, dataset, open_study, tmp_path):
    """The text of a grant, as the owner's page writes it."""
    study = open_study(owner, dataset)
    made = owner.grant(study.id, wire.GrantCreate(name="Vera"))
    assert made.url == curator.url
    assert made.log_key == curator.run_in_process("audit", "key").stdout.strip()
    return wire.GrantFile(
        format="blindopt-grant-1",
        curator_url=made.url,
        study_id=study.id,
        token=made.token,
        log_key=made.log_key,
        name=made.name,
        expires_at=made.expires_at,
    ).model_dump_json(indent=2)


def run(modeler, tmp_path, text, *more):
    file = tmp_path / "grant.json"
    file.write_text(text)
    return modeler.run_in_process("run", "--grant", str(file), "--iterations", "3", *more)


def test_a_grant_file_becomes_a_recommendation_and_its_token_is_shown_nowhere(grant, modeler, vendor, tmp_path):
    named = json.loads(grant)["curator_url"].replace("127.0.0.1", "curator.localhost")
    done = run(modeler, tmp_path, json.dumps(json.loads(grant) | {"curator_url": named}))
    assert done.returncode == 0, done.stderr
    first, *progress = done.stderr.splitlines()
    made = vendor.run(first.partition(":")[0]).view
    assert f"{modeler.url}/console/runs/{made.id}" in first
    assert progress[-1] == f"completed, {made.trials} answers"
    assert made.curator_url == named
    assert done.stdout.split()[:3] == ["Recommended", "candidate", str(made.recommendation.row)]
    assert json.loads(grant)["token"] not in done.stdout + done.stderr
    # The token of the command ended with it.
    states = [row for row in modeler.rows("select name, revoked_at from tokens") if row[0] == "blindopt-modeler run"]
    assert states
    assert all(revoked for _, revoked in states)


def test_a_file_that_is_no_grant_is_refused_in_words(grant, modeler, tmp_path):
    secret = json.loads(grant)["token"]
    later = json.dumps(json.loads(grant) | {"format": "blindopt-grant-2"})
    for text in ("", secret, later, grant.replace("std_", "st_"), grant.replace("}", ', "more": 1}')):
        done = run(modeler, tmp_path, text)
        assert done.returncode == 2
        assert "is not a grant file" in done.stderr
        assert secret not in done.stderr
    missing = modeler.run_in_process("run", "--grant", str(tmp_path / "none.json"))
    assert missing.stderr == f"error: {tmp_path / 'none.json'}: no such file or directory\n"


def test_a_key_that_is_not_the_curators_is_not_trusted(grant, modeler, tmp_path):
    other = json.dumps(json.loads(grant) | {"log_key": "curator+00000000+AQ=="})
    done = run(modeler, tmp_path, other)
    assert done.returncode == 3
    assert "error: the run has failed: " in done.stderr


def test_a_token_is_not_sent_over_plain_http_to_another_machine(grant, modeler, tmp_path):
    token = tmp_path / "token"
    token.write_text("blindopt_x")
    done = run(modeler, tmp_path, grant, "--token-file", str(token), "--url", "http://modeler.example:8420")
    assert done.returncode == 2
    assert "plain http" in done.stderr


def test_an_offer_is_printed_a_sentence_on_a_line(grant, modeler, tmp_path):
    file = tmp_path / "grant.json"
    file.write_text(grant, encoding="utf-8")
    printed = modeler.run_in_process("offer", "--grant", str(file)).stdout.splitlines()
    assert printed[0].endswith("The owner looks for the largest outcome.")
    assert printed[2].startswith("Each answer is ")


def test_runs_and_recommendations_are_listed_for_people_and_for_programs(
    run_of, modeler, vendor, curator, owner, dataset, open_study
):
    own = open_study(owner, dataset)  # queries of other tests under one grant would be disputed
    made = vendor.wait(vendor.start(run_of(curator.url, own, iterations=2)).id, timeout_s=240)
    listed = json.loads(modeler.run_in_process("runs", "--json").stdout)
    assert wire.RunView.model_validate(listed[-1], strict=False) == made
    head, *lines = modeler.run_in_process("runs").stdout.splitlines()
    assert head.split() == ["RUN", "STATE", "ANSWERS", "MADE", "NAME"]
    assert lines[-1].split()[:3] == [made.id, "completed", str(made.trials)]
    words = modeler.run_in_process("recommendation", made.id).stdout
    assert "Exact value" in words or "Interval under the model  " in words
    assert words.split()[:3] == ["Recommended", "candidate", str(made.recommendation.row)]
