"""HTTP clients of both services. The only package that imports httpx."""

from shared.client.connection import REPLY_MAX_BYTES, Client, Reply, is_told, new_key
from shared.client.measurer import MeasurerClient
from shared.client.owner import OwnerClient
from shared.client.study import StudyClient, query_body
from shared.client.transport import is_ready
from shared.client.vendor import VendorClient
from shared.client.webhook import WebhookClient, webhook_signature

__all__ = [
    "REPLY_MAX_BYTES",
    "Client",
    "MeasurerClient",
    "OwnerClient",
    "Reply",
    "StudyClient",
    "VendorClient",
    "WebhookClient",
    "is_ready",
    "is_told",
    "new_key",
    "query_body",
    "webhook_signature",
]
