"""Runs over a network that delays, refuses, cuts, repeats and reorders: they end as if nothing had been."""

import pytest

from blindopt.client import Owner, Vendor
from tests.system.meddler import between, cut, in_turn, late, middlebox, refused, reordered, repeated

RUNS, ITERATIONS = 3, 12


@pytest.fixture(scope="module")
def parties(make_service, tmp_path_factory):
    folder = tmp_path_factory.mktemp("network")
    quick = {
        "retry_seconds_max": "0.2",
        "retry_attempts": "40",
        "countersign_every": "5",
        "curator_timeout_seconds": "10",
    }
    return make_service("curator", folder).start(), make_service("modeler", folder, **quick).start()


@pytest.fixture(scope="module")
def undisturbed(parties, open_study, small, run_of):
    """The study, and the outcomes that each seed chooses on a good network."""
    curator, modeler = parties
    with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as vendor:
        opened = open_study(owner, owner.register("small", small.csv, public=True))
        started = [vendor.start(run_of(curator.url, opened, iterations=ITERATIONS, seed=s)).id for s in range(RUNS)]
        assert [vendor.wait(run, timeout_s=240).state for run in started] == ["completed"] * RUNS
        return opened, [[t.row for t in vendor.export(run).trials] for run in started]


@pytest.mark.slow(every=7)
@pytest.mark.parametrize("fault", [late, refused, cut, repeated, reordered, middlebox("reply of before"), in_turn])
def test_a_bad_network_changes_no_choice_and_no_charge(parties, undisturbed, run_of, fault):
    curator, modeler = parties
    opened, expected = undisturbed
    with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as vendor:
        before = owner.balance(opened.id).total_plays
        with between(curator, fault) as net:
            started = [vendor.start(run_of(net.url, opened, iterations=ITERATIONS, seed=s)).id for s in range(RUNS)]
            ended = [vendor.wait(run, timeout_s=120) for run in started]
            assert net.seen
            assert min(net.seen.values()) >= (2 if fault is in_turn else 3), f"hardly anything happened: {net.seen}"
        assert [(run.state, run.problem) for run in ended] == [("completed", None)] * RUNS
        assert [[t.row for t in vendor.export(run).trials] for run in started] == expected
        assert owner.balance(opened.id).total_plays - before == sum(map(len, expected))


def test_after_all_of_this_both_logs_verify_and_tell_the_same(parties, undisturbed, tmp_path):
    opened, _ = undisturbed
    for service in parties:
        verified = service.run("audit", "verify")
        assert verified.returncode == 0, verified.stderr
        (tmp_path / service.name).write_text(service.run("audit", "export").stdout)
    exports = str(tmp_path / "curator"), str(tmp_path / "modeler")
    compared = parties[0].run("audit", "reconcile", opened.id, *exports)
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert compared.stdout.endswith(" 0 differences\n")
