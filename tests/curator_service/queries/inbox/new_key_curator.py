"""A curator that calls its owner's system under a new key each time, as a control; run as a module."""

import secrets

from blindopt.client import WebhookClient
from curator_service.cli import main

if __name__ == "__main__":
    post = WebhookClient.post
    WebhookClient.post = lambda self, body, *, key: post(self, body, key=secrets.token_hex(8))
    main()
