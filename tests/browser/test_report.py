"""The privacy report of a data protection officer: the first page of paper has the verdict and the signature."""

import json
import re

from blindopt import wire
from blindopt.client import Owner
from tests.browser.conftest import Visitor
from tests.browser.two_services import PASSWORD

CSV = ("age,dose,pressure\n" + "".join(f"{30 + i % 40},{i % 7},{100 + i % 50}\n" for i in range(300))).encode()
STATED = {
    "purpose": "Find the patients to examine next",
    "recipient": "Optimum Ltd, Vienna",
    "period": "1 March to 30 June, deleted by 31 July",
    "responsible": "Dr Ada Weber, data protection",
}
SMALLEST = {
    "name": "pressure",
    "features": [{"column": "age", "lower": 20, "upper": 90}, {"column": "dose", "lower": 0, "upper": 10}],
    "measurement": {"source": "column", "column": "pressure", "direction": "minimize"},
    "release": {"mechanism": "groups", "epsilon": "0.5", "cells": {"kind": "grid", "parts": [2, 2]}, "min_count": 20},
    "answers": {"mechanism": "laplace", "epsilon": "0.5", "centre": 125, "value_bound": 30},
    "budget": {"epsilon_per_row": "1", "queries": 20},
    "processing": STATED,
}
PAGE = re.compile(rb"/Type\s*/Page\b(?!s)")


def test_the_first_page_of_a_report_has_its_verdict_and_the_whole_signature(services, browser):
    with Owner(services.curator.url, services.curator.token, timeout_s=120) as owner:
        dataset = owner.register("patients", CSV).id
        study = owner.create_study(wire.StudyCreate(**SMALLEST, dataset_id=dataset)).id
        owner.release(study)
    visitor = Visitor(browser, services.address_of("olga"))
    visitor.login("olga", PASSWORD)
    visitor.open(f"/console/studies/{study}")
    visitor.page.get_by_role("link", name="every group answered at once").click()
    visitor.press("Answer about every group")
    visitor.look("groups")
    expected = visitor.page.get_by_role("columnheader", name="Expected")
    assert expected.count() == 1
    best = int(re.search(r"Group (\d) is expected to be the best", visitor.page.locator("main").inner_text())[1])
    cells = [row.inner_text().split("\t") for row in visitor.page.locator("tbody tr").all()]
    assert min(cells, key=lambda row: float(row[-2]))[0] == str(best)  # blood pressure is to be low
    visitor.press(f"Open group {best}")
    assert f"Candidate {best} of pressure is a group" in visitor.page.locator("main").inner_text()
    visitor.open("/console/log")
    assert "olga (owner) had every group of pressure answered at once" in visitor.page.locator("main").inner_text()
    visitor.open(f"/console/studies/{study}")
    assert visitor.page.get_by_role("link", name="every group answered at once").count() == 0  # they are answered
    visitor.press("Make the report")
    page = visitor.page
    shown = page.locator("main").inner_text()
    assert page.locator(".report p").first.inner_text().startswith("Protected: the record that has used most has used")
    assert all(text in shown for text in STATED.values())
    visitor.look("report")
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download the signed file").click()
    signed = json.loads(downloading.value.path().read_bytes())
    assert all(sentence in shown for sentence in signed["report"]["studies"][0]["summary"])
    pages = len(PAGE.findall(page.pdf(prefer_css_page_size=True)))
    page.locator(".report .whole").evaluate("whole => whole.remove()")
    first = page.locator("main").inner_text()
    for text in (signed["report"]["verdict"], signed["report"]["log_key"], *signed["signature"].split()):
        assert text in first
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # keys wrap
    assert (pages > 1, len(PAGE.findall(page.pdf(prefer_css_page_size=True)))) == (True, 1)
    visitor.close()
