"""The words of a guarantee: exactly as much as is proved, with the numbers of the study."""

import pytest

from curator_service.privacy.guarantees import EXACT_ANSWERS, guarantee
from shared.wire import (
    Answers,
    Budget,
    Feature,
    GaussianRelease,
    IdentityRelease,
    LaplaceAnswers,
    Measurement,
    NoAnswerNoise,
    PoGpUcbRelease,
    ReleaseSpec,
    StudyCreate,
)

GAUSSIAN = GaussianRelease(mechanism="gaussian", epsilon="1.25", delta=2e-6, sensitivity=0.4)
PUBLISHED = PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1.25", delta=2e-6, r=3, acknowledge_refuted=True)
IDENTITY = IdentityRelease(mechanism="identity")
EXACT = NoAnswerNoise(mechanism="none")
LAPLACE = LaplaceAnswers(mechanism="laplace", epsilon="0.75", value_bound=1.0)


def told(release: ReleaseSpec, d: int = 3, answers: Answers = EXACT, unit: str = "row", cap: str | None = None) -> str:
    return guarantee(
        StudyCreate(
            name="s",
            dataset_id="ds_1",
            features=[Feature(column=f"x{i}", lower=0.0, upper=1.0) for i in range(d)],
            measurement=Measurement(column="y", direction="maximize"),
            release=release,
            answers=answers,
            privacy_unit=unit,
            budget=Budget(epsilon_per_row=cap),
        )
    )


def test_a_sound_release_is_told_with_its_parameters():
    text = told(GAUSSIAN)
    assert "(1.25, 2e-06)-differential privacy" in text
    assert "at most 0.4 in scaled units" in text


@pytest.mark.parametrize("d", [1, 4, 20])
def test_the_published_release_is_told_to_be_refuted(d):
    text = told(PUBLISHED, d)
    assert "refuted" in text
    assert "no differential privacy" in text
    assert f"{d + 1} known rows reconstruct" in text
    assert "1.25" not in text  # an epsilon that means nothing is not told


def test_an_unprotected_release_promises_nothing():
    text = told(IDENTITY)
    assert text.startswith("None")
    assert "differential" not in text


@pytest.mark.parametrize("release", [GAUSSIAN, PUBLISHED, IDENTITY], ids=lambda s: s.mechanism)
def test_answers_without_noise_are_told_to_be_exact_and_no_others(release):
    assert told(release).endswith(EXACT_ANSWERS)
    assert "without privacy noise" in EXACT_ANSWERS
    assert EXACT_ANSWERS not in told(release, answers=LAPLACE)


def test_private_answers_are_told_with_their_epsilon_and_how_they_add_up():
    one = "Each released y is 0.75-differentially private"
    alone = told(GAUSSIAN, answers=LAPLACE, unit="answer")
    summed = told(GAUSSIAN, answers=LAPLACE)
    capped = told(GAUSSIAN, answers=LAPLACE, cap="6.5")
    for text in (alone, summed, capped):
        assert one in text
        assert "chosen by the modeler" in text
    assert "another person's" in alone
    assert "add up" not in alone
    assert summed.endswith("add up, with the release: the study sets no cap on the sum.")
    assert capped.endswith("add up, with the release, to 6.5 at most.")
