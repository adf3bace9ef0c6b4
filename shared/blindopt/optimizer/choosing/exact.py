"""Whether the answers of a study are exact values of its records, so that a second answer teaches nothing."""

from blindopt import wire


def exact_answers(study: object) -> bool:
    """Whether each answer is the value of a column of the dataset, with no noise added to it.

    What other candidates do not explain of such a value is the record's own: a nugget, and no noise. Candidates that a
    request brings along do not say where their outcomes come from, so these count as noisy.
    """
    return (
        isinstance(study, wire.StudyView)
        and study.measurement_source == "column"
        and study.measurement_noise_variance == 0
        and study.answers.mechanism == "none"
    )
