"""A curator that calls its owner's system with a new key each time: `python -m tests.curator_service.inbox.forgetful`.

For controls: whoever does not see that work is done twice has not looked.
"""

import secrets

from curator_service.cli import main
from shared.client import WebhookClient

if __name__ == "__main__":
    called = WebhookClient.call
    WebhookClient.call = lambda self, body, *, key, at: called(self, body, key=secrets.token_hex(8), at=at)
    main()
