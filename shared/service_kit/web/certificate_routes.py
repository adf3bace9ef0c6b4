"""/v1/certificates: the certificates of a service, and when they expire."""

from functools import cache

from fastapi import APIRouter, Request

from blindopt import wire
from service_kit.certificates import Certificates
from service_kit.identity.tokens import Role
from service_kit.web.dependencies import api_router


@cache  # routes have no state: applications of one process share them
def router(readers: tuple[Role, ...]) -> APIRouter:
    """The list of certificates, for ``readers``."""
    routes = api_router("health", *readers)

    @routes.get("/v1/certificates")
    def list_certificates(request: Request) -> wire.CertificateList:
        """Certificates that the service uses for TLS: when they expire, and what is wrong with them."""
        certificates: Certificates = request.app.state.certificates
        return wire.CertificateList(certificates=certificates.views())

    return routes
