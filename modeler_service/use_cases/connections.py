"""A test of the connection to a curator, with an explanation of the step that fails."""

from typing import Literal

from blindopt import wire
from blindopt.certificates import tls_problem
from blindopt.errors import ClientCertificateNeeded, Invalid, ProtocolViolated, Remote, Unreachable
from modeler_service.runs.addresses import NO_CURATOR, Reached, check_address, check_curator
from modeler_service.runs.curator_session import connect
from modeler_service.runs.witness import Witness
from modeler_service.settings import Settings
from service_kit.context.context import ServiceContext

_StepName = Literal["address", "reach", "token", "key"]
_ORDER: tuple[_StepName, ...] = ("address", "reach", "token", "key")
_EXPLANATIONS = {
    "unauthenticated": (
        "the curator does not know this token: check that it was copied whole, or ask the data owner for a new one "
        "(it may have expired or been revoked)"
    ),
    "not_found": "the token is good, but not for this study: check the study's id (std_...)",
    "forbidden": "the token is not a modeler's: ask the data owner for a grant of the study",
    "erased": "the study was erased by its owner, with its candidates and answers: there is nothing to connect to",
    "study_not_open": "the study has not released its candidates yet: ask the data owner when it opens",
    "rate_limited": "the curator has too many requests of ours for now: try again in a minute",
}
_CA_SETTING = ", and set BLINDOPT_MODELER_CURATOR_CA"
_NEEDS_CERTIFICATE = (
    "the curator requires a client certificate: ask the data owner for one, and set "
    "BLINDOPT_MODELER_CURATOR_CLIENT_CERT and _KEY"
)


def try_connection(
    context: ServiceContext, settings: Settings, access: wire.StudyAccess, actor: str
) -> wire.ConnectionReport:
    """Take each step until one fails. It requests the study, which both logs record, and spends nothing.

    Raises Invalid for a host that ALLOWED_CURATORS does not allow.
    """
    steps = {name: _step(name, "not_tried", "an earlier step failed") for name in _ORDER}
    study = None
    try:
        check_address(access.curator_url, "curator_url", plain_http=settings.allow_plain_http)
    except Invalid as error:
        steps["address"] = _step("address", "failed", str(error.errors[0]["message"]))
    else:
        check_curator(settings, access.curator_url, "curator_url")
        steps["address"] = _step("address", "ok", f"a token may be sent to {access.curator_url}")
        study = _study(context, settings, access, actor, steps)
    ok = all(step.state == "ok" for step in steps.values())
    return wire.ConnectionReport(ok=ok, steps=list(steps.values()), study=study)


def _study(
    context: ServiceContext,
    settings: Settings,
    access: wire.StudyAccess,
    actor: str,
    steps: dict[_StepName, wire.ConnectionStep],
) -> wire.StudyView | None:
    """Take the steps that need the curator; return the study if it was sent."""
    context.audit_trail.check_sound()
    witness = Witness(context, access.study_id, actor, lambda db, key, digest: False)
    seen: list[wire.StudyView] = []

    def trust(study: wire.StudyView, note: str | None) -> None:
        seen.append(study)
        steps["reach"] = _step("reach", "ok", "a curator answers")
        steps["token"] = _step("token", "ok", f"the token opens the study: {study.n:,} rows, {study.r} columns")
        witness.trust(study, access.log_key, note)
        steps["key"] = _step("key", "ok", f"its log is signed with {study.log_key}")

    reached = Reached(settings, access.curator_url)
    try:
        with connect(settings, access, access.token, witness, reached=reached) as curator:
            try:
                curator.study(trust)
            except Remote as error:
                if not curator.is_curator():
                    raise Unreachable("check the address and its port") from None
                steps["reach"] = _step("reach", "ok", "a curator answers")
                detail = _EXPLANATIONS.get(error.remote_code, f"the curator refuses: {error}")
                steps["token"] = _step("token", "failed", detail)
    except Unreachable as error:
        why = _why(settings, access.curator_url, error) if reached.shows_failures() else NO_CURATOR
        steps["reach"] = _step("reach", "failed", why)
    except ProtocolViolated as error:
        witness.dispute(str(error))
        detail = (
            f"{error}: ask the data owner, by another way, for the verifier key of its log, and trust nothing until"
        )
        steps["key"] = _step("key", "failed", detail)
    return seen[0] if seen else None


def _why(settings: Settings, url: str, error: Unreachable) -> str:
    """Explain why the curator cannot be reached."""
    if isinstance(error.__cause__, ClientCertificateNeeded):
        return _NEEDS_CERTIFICATE
    if error.__cause__ is None:
        return f"something answers there, but not as a curator of this version: {error}"
    if (problem := tls_problem(error)) is not None:
        return f"{problem}{_CA_SETTING if 'the CA' in problem else ''}"
    if settings.proxy_to(url) is not None:
        return f"{error}; check that the forward proxy of HTTPS_PROXY answers and lets us through, too"
    return str(error)


def _step(name: _StepName, state: Literal["ok", "failed", "not_tried"], detail: str) -> wire.ConnectionStep:
    return wire.ConnectionStep(name=name, state=state, detail=detail)
