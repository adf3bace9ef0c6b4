"""What a study costs: before anything is spent, and counted tightly after."""

from curator_service.privacy.ledger import Prices, text
from shared.wire import Price, StudyCreate


def price(spec: StudyCreate) -> Price:
    """What a study's release and answers cost, and how many answers its caps leave."""
    prices = Prices.of(spec)
    return Price(
        release_epsilon=text(prices.release) if prices.release_bounded else None,
        answer_epsilon=text(prices.answer) if prices.answers_bounded else None,
        answers_per_row=None,
        answers=None,
        row_epsilon=None,
        tight_row_epsilon=None,
        tight_delta=None,
        sentence="",
    )
