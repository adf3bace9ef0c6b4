"""A run on a sandbox says so on its page, in the list of runs and at the test of the connection."""

from blindopt import wire

LABEL = "made-up records and outcomes. No person is behind it"


def test_a_run_on_a_sandbox_is_labelled_and_another_is_not(
    browsers, api, curator, owner, dataset, open_study, run_of, until, ended
):
    real = open_study(owner, dataset)
    sandbox = owner.make_sandbox(real.id)
    grant = owner.grant(sandbox.id, wire.GrantCreate(name="console"))
    access = {"curator_url": curator.url, "study_id": sandbox.id, "token": grant.token}
    browser = browsers["vendor"]
    browser.get("/start")
    browser.send("POST", "/console/start:test", data=browser.form("/start") | access)
    assert LABEL in browser.shown
    run = wire.RunCreate(**access, algorithm=wire.RandomRows(name="random"), iterations=3, initial_rows=1)
    made = api.start(run)
    until(lambda: api.run(made.id).view.ended_at)
    assert api.run(made.id).state == "completed"
    assert api.run(made.id).view.study.sandbox
    for path in (f"/runs/{made.id}", f"/runs/{made.id}/posterior"):
        browser.get(path)
        assert LABEL in browser.shown, path
    browser.get("/runs")
    assert browser.text.count(">sandbox</span>") == 1
    browser.get(f"/runs/{ended}")
    assert LABEL not in browser.shown
