"""Errors of loops in the user's own process: the library raises them, no service does."""

from blindopt.errors import BlindoptError


class LoopEnded(BlindoptError):
    """An optimizer chooses no further candidate."""

    code, status, title = "loop_ended", 409, "The loop has ended"
    what_to_do = "Take the recommendation, or make another optimizer with more iterations and the outcomes so far."

    def __init__(self, because: str, outcomes: int) -> None:
        super().__init__(f"the loop has ended after {outcomes} queries ({because})")
        self.because = because


class StillMeasured(BlindoptError):
    """Nobody has measured a queried candidate yet."""

    code, status, title, retryable = "still_measured", 409, "Not measured yet", True
    what_to_do = "Query the same candidate again later: it is the same query, and is charged once."

    def __init__(self, candidate: int) -> None:
        super().__init__(f"candidate {candidate} was queried and is not measured yet")
        self.candidate = candidate


class Declined(BlindoptError):
    """The owner declined to measure a candidate; the reason is the owner's alone."""

    code, status, title = "declined", 409, "Not measured"
    what_to_do = "Query another candidate."

    def __init__(self, candidate: int) -> None:
        super().__init__(f"candidate {candidate} was declined: it has no answer")
        self.candidate = candidate
