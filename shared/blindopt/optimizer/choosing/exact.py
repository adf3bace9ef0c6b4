"""What the answers of a study are of its records: exact values, so that a second answer teaches nothing, or means."""

from blindopt import wire


def exact_answers(study: object) -> bool:
    """Whether each answer is the value of a column of the dataset, with no noise added to it.

    What other candidates do not explain of such a value is the record's own: a nugget, and no noise. Candidates without
    a study do not say where their outcomes come from, so these count as noisy.
    """
    return (
        isinstance(study, wire.StudyView)
        and study.measurement_source == "column"
        and study.measurement_noise_variance == 0
        and study.answers.mechanism == "none"
    )


def group_answers(study: object) -> bool:
    """Whether each answer is a private mean over a group of records: with noise of a known law, and no other."""
    return isinstance(study, wire.StudyView) and study.mechanism == "groups"


def own_residual(study: object) -> bool:
    """Whether what other candidates do not explain of an answer, beyond its declared noise, is the candidate's own.

    It is then a nugget, part of f, and a recommendation counts it (docs/results.md, "Groups of records").
    """
    return exact_answers(study) or group_answers(study)
