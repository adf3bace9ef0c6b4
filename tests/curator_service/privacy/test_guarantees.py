"""The words of a guarantee: exactly as much as is proved, with the numbers of the study."""

import pytest

from curator_service.privacy.guarantees import EXACT_ANSWERS, guarantee
from shared.wire import GaussianRelease, IdentityRelease, PoGpUcbRelease

GAUSSIAN = GaussianRelease(mechanism="gaussian", epsilon="1.25", delta=2e-6, sensitivity=0.4)
PUBLISHED = PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1.25", delta=2e-6, r=3, acknowledge_refuted=True)
IDENTITY = IdentityRelease(mechanism="identity")


def test_a_sound_release_is_told_with_its_parameters():
    text = guarantee(GAUSSIAN, 3)
    assert "(1.25, 2e-06)-differential privacy" in text
    assert "at most 0.4 in scaled units" in text


@pytest.mark.parametrize("d", [1, 4, 20])
def test_the_published_release_is_told_to_be_refuted(d):
    text = guarantee(PUBLISHED, d)
    assert "refuted" in text
    assert "no differential privacy" in text
    assert f"{d + 1} known rows reconstruct" in text
    assert "1.25" not in text  # an epsilon that means nothing is not told


def test_an_unprotected_release_promises_nothing():
    text = guarantee(IDENTITY, 3)
    assert text.startswith("None")
    assert "differential" not in text


@pytest.mark.parametrize("spec", [GAUSSIAN, PUBLISHED, IDENTITY], ids=lambda s: s.mechanism)
def test_every_guarantee_says_that_answers_are_exact(spec):
    assert guarantee(spec, 3).endswith(EXACT_ANSWERS)
    assert "without privacy noise" in EXACT_ANSWERS
