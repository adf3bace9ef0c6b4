"""The pages of a dataset's account: what it says in words, the form for the caps, and what auditors see."""

import html
import json
import re

import pytest

from blindopt import wire
from blindopt.client import Owner
from curator_service import console
from tests import console_errors
from tests.curator_service.budget.file_of_records import CSV, spec_of


@pytest.fixture(scope="module")
def used(service):
    """A dataset with a released study of epsilon 1, and a draft."""
    with Owner(service.url, service.token) as owner:
        dataset = owner.register("records", CSV).id
        studies = [
            owner.create_study(wire.StudyCreate.model_validate_json(json.dumps(spec_of(dataset, name=name)))).id
            for name in ("released", "drafted")
        ]
        owner.release(studies[0])
    return dataset, studies


def test_the_pages_of_a_dataset_and_of_a_draft_say_what_it_has_spent(owner, used):
    dataset, (_, draft) = used
    owner.get(f"/datasets/{dataset}")
    assert "Each record of this file has used at most epsilon 1, over 1 study." in owner.shown
    assert "If another file has the same records, add its account" in owner.shown
    owner.get(f"/studies/{draft}")
    assert "A record of this dataset has used epsilon 1 over 1 study; with this one epsilon 2" in owner.shown
    owner.get("/accounts")
    assert "6 records, 2 studies One record has used at most epsilon 1, without a cap" in owner.shown


def test_page_and_report_show_each_statement_of_the_account_in_a_table(owner, auditor, used, service):
    dataset, _ = used
    with Owner(service.url, service.token) as api:
        (stated,) = api.account(dataset).statements
    assert stated.uses == [1]
    row = (stated.unit, stated.relation, "worst case", stated.epsilon, stated.delta, "1", "none", *stated.rests_on)
    auditor.get(f"/datasets/{dataset}/account")
    owner.get(f"/datasets/{dataset}")
    owner.submit(f"/datasets/{dataset}:report")
    for reader in (auditor, owner):
        table = re.search(r"<caption>What this account states</caption>.*?</table>", reader.text, re.DOTALL)
        shown = " ".join(html.unescape(re.sub("<.*?>", " ", table[0])).split())
        assert shown.endswith(" ".join(row)), shown
    auditor.get(f"/datasets/{dataset}/account")
    (first, *_) = re.findall(r'<th scope="row" class="n">(\d+)</th>', auditor.text)
    assert first == "1"  # the number by which the statement names its use


def test_where_a_study_declares_several_rows_of_a_person_the_pages_show_that_persons_loss_too(owner, service):
    csv = b"a,b,y\n" + b"".join(b"%d.5,%d,%d\n" % (i % 3, i % 2, i % 5) for i in range(7))
    with Owner(service.url, service.token) as api:
        dataset = api.register("visits", csv).id
        body = spec_of(dataset, rows_per_person=4)
        study = api.release(api.create_study(wire.StudyCreate.model_validate_json(json.dumps(body))).id).id
    owner.get(f"/datasets/{dataset}/account")
    assert "for a person with 4 records, as declared, epsilon 4." in owner.shown
    assert "Person with 4 records, as declared epsilon 4" in " ".join(owner.shown.split())
    owner.get(f"/accounts/{study}")
    assert "Person with as many records as declared 4" in " ".join(owner.shown.split())


def test_caps_are_declared_lowered_and_raised_with_a_reason(owner, used):
    path = f"/datasets/{used[0]}/account"
    owner.get(path)
    owner.submit(path, epsilon="3", delta="")
    assert "The caps are stored" in owner.shown
    owner.submit(path, epsilon="0.5", delta="")
    assert owner.status == 409
    assert "epsilon 1 is used already" in owner.shown
    owner.get(path)
    owner.submit(path, epsilon="1.5", delta="1e-6")
    owner.submit(path, epsilon="2.5", delta="1e-6")
    assert owner.status == 409
    assert "would raise the cap" in owner.shown
    owner.get(path)
    owner.submit(path, epsilon="2.5", delta="1e-6", raise_caps="yes")
    assert owner.status == 422
    assert "Say why" in owner.shown
    owner.get(path)
    owner.submit(path, epsilon="2.5", delta="1e-6", raise_caps="yes", reason="the ethics board agreed")
    assert "raised: the ethics board agreed" in owner.shown
    assert "epsilon 1.5 to 2.5" in owner.shown


def test_an_auditor_reads_the_account_and_cannot_change_it(owner, auditor, used):
    dataset, _ = used
    auditor.get(f"/datasets/{dataset}/account")
    assert auditor.status == 200
    assert "Store the caps" not in auditor.shown
    assert "has used the most" not in auditor.shown
    file = auditor.get(f"/datasets/{dataset}/account?as=csv").text
    assert file.splitlines()[1].startswith("1,")
    auditor.get("/accounts")
    assert f"/datasets/{dataset}/account" in auditor.text


def test_an_erasure_says_what_goes_and_is_confirmed_by_the_name(owner, auditor, service):
    csv = b"a,b,y\n" + b"".join(b"%d.75,%d,%d\n" % (i % 3, i % 2, i % 5) for i in range(9))
    with Owner(service.url, service.token) as api:
        dataset = api.register("ward 7", csv).id
        study = api.create_study(wire.StudyCreate.model_validate_json(json.dumps(spec_of(dataset, name="beds")))).id
        api.release(study)
    path = f"/datasets/{dataset}"
    owner.get(f"{path}/erasure")
    assert "It is not archived" in owner.shown
    assert "What is erased" in owner.shown
    owner.submit(f"{path}:erase", name="ward 7")
    assert "these studies are open (close them first): &#34;beds&#34;" in owner.text or '"beds"' in owner.shown
    assert study not in owner.shown
    with Owner(service.url, service.token) as api:
        api.close_study(study)
        api.archive_dataset(dataset)
    owner.get(f"{path}/erasure")
    owner.submit(f"{path}:erase", name="ward 8")
    assert (owner.status, "Type the name of the dataset" in owner.shown) == (422, True)
    owner.get(f"{path}/erasure")
    owner.submit(f"{path}:erase", name="ward 7")
    assert "Erased, with" in owner.shown
    pages = (path, f"{path}/account", f"{path}/erasure", f"{path}/bounds", f"/studies/{study}", "/studies", "/datasets")
    for page in (*pages, "/", "/accounts", f"/accounts/{study}", f"/accounts/{study}/exposure", "/log"):
        owner.get(page)
        assert owner.status == 200, page
    made_up = {"study_id": study, "dataset_id": dataset}
    entries = [entry for entry in console.build().entries if entry.method == "GET" and "{study_id}" in entry.path]
    every = [entry.path.format(**console_errors.MADE_UP | made_up) for entry in entries]
    for page in (*every, f"/studies/new?from={study}", f"/studies/new?change={study}"):
        if not page.endswith("/events"):
            owner.get(page)
            assert owner.status in (200, 404, 410), page
    assert owner.status == 410
    assert "was erased" in owner.shown
    for page in ("/accounts", f"/accounts/{study}"):
        auditor.get(page)
        assert auditor.status == 200, page
    owner.get(f"/studies/{study}")
    assert "Its dataset was erased" in owner.shown
    owner.get(path)
    assert "Each record of this file has used at most epsilon 1" in owner.shown
    assert "Some registrations of the file" not in owner.shown


def test_the_budget_page_names_a_dataset_to_its_owner_and_its_study_to_an_auditor_with_one_bar(people, used):
    dataset, _ = used
    for role, name in (("owner", "records"), ("auditor", "The dataset of ")):
        people[role].get("/accounts")
        (link,) = re.findall(rf'href="/console/datasets/{dataset}/account">(.*?)</a>', people[role].text)
        assert re.sub("<.*?>", "", link).startswith(name), role


def test_whose_account_a_new_export_continues_is_decided_on_its_page(owner, service, tmp_path):
    """By hand and by command: the question, an answer with a fault, and the answer."""
    exports = [b"a,b,y\n" + b"".join(b"%d.25,%d,%d\n" % (i, m * (i > 7), i) for i in range(9)) for m in range(3)]
    with Owner(service.url, service.token) as api:
        march, april, may = (api.register(f"month {m}", csv).id for m, csv in enumerate(exports))
    owner.get("/")
    assert "month 2 Decide whose account it continues" in " ".join(owner.shown.split())
    owner.get(f"/datasets/{april}")
    assert "8 of 9 records are in month 0, which has used epsilon 0. Continue its account?" in owner.shown
    owner.submit(f"/datasets/{april}:decide")
    assert owner.status == 422
    owner.submit(f"/datasets/{april}:decide", continues=march)
    assert owner.status == 200
    assert "This file continues the account of an earlier one." in owner.shown
    assert "8 of 9 records are in month 0 too: both files have one account." in owner.shown
    assert "The account is of 2 files" in owner.shown
    done = service.run_in_process("dataset", "decide", may)
    assert "are in month 1" in done.stdout
    done = service.run_in_process("dataset", "decide", may, "--continue", april)
    assert done.returncode == 0, done.stderr
    with Owner(service.url, service.token) as api:
        assert api.account(may).account == march
    owner.get(f"/datasets/{may}/account")
    assert "This account has 3 registrations" in owner.shown
    owner.get("/")
    assert "month 2 Decide" not in " ".join(owner.shown.split())
