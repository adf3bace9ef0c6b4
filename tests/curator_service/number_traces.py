"""Whether a number was told in a text that holds times, whose seconds have digits of their own."""

import re


def tells(text: str, number: str) -> bool:
    """Whether ``number``, or one that begins with it, stands in ``text``, and not as the seconds of a time.

    Of "7.125" a time like 12:30:17.125 says nothing: one in ten thousand has it.
    """
    return re.search(rf"(?<!\d)(?<!\d:){re.escape(number)}", text) is not None
