"""HTTP clients of both services. The only package that imports httpx."""

from blindopt.client.connection import Client, Reply, is_recorded, new_key
from blindopt.client.measurer import Measurer
from blindopt.client.owner import Owner
from blindopt.client.study_client import StudyClient, query_body
from blindopt.client.transport import REPLY_MAX_BYTES, is_ready
from blindopt.client.vendor import Vendor
from blindopt.client.webhook import WebhookClient

__all__ = [
    "REPLY_MAX_BYTES",
    "Client",
    "Measurer",
    "Owner",
    "Reply",
    "StudyClient",
    "Vendor",
    "WebhookClient",
    "is_ready",
    "is_recorded",
    "new_key",
    "query_body",
]
