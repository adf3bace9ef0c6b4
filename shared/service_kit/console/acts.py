"""What the records of a log say, in sentences that begin with who acted."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from service_kit.console.words import number

Acts = Mapping[str, tuple[str, ...]]
"""By the kind of a record, sentences with fields of its details; the first one whose fields are all there is said."""
ACTS: Acts = {
    "exchange": ("sent a request and got its reply",),
    "checkpoint.countersigned": ("signed that a shared log has {size} records",),
    "key.changed": ("changed a key of the service: {key}", "changed a key of the service"),
    "log.disputed": ("recorded a violation of the protocol",),
    "log.archived": ("moved older records of the log to the archive",),
    "log.restored": ("restored a backup, so later records are missing",),
    "retention.swept": ("deleted what had been kept long enough",),
    "session.opened": ("logged in",),
    "session.ended": ("logged out",),
    "token.issued": ("issued a token for the role {role}",),
    "token.revoked": ("revoked the token {kid}",),
    "user.added": ("added {user} with the role {role}",),
    "user.disabled": ("disabled {user}",),
    "user.password_set": ("set a new password for {user}",),
}
"""What both services record."""
_PROGRAMS = {"cli": "The command line", "curator": "The service", "modeler": "The service", "retention": "The service"}
_ROLES = {"modeler": "vendor"}


def act(acts: Acts, kind: str, details: Mapping[str, Any], names: Mapping[str, str]) -> Markup | None:
    """What a record says after its actor; None for one that no sentence is for.

    ``names``: by id; of a kind of record about a study also what else is known, by kind and id.
    """
    values = {**details, "known": names.get(f"{kind}:{details.get('study_id')}")}
    said = {name: value for name, value in values.items() if value is not None and (name, value) != ("epsilon", "0")}
    fields = {name: _bdi(value, names) for name, value in said.items()}
    for sentence in acts.get(kind, ()):
        try:
            return Markup(sentence).format_map(fields)  # noqa: S704 (the sentences are our own)
        except KeyError:
            continue
    return None


def who(actor: str, names: Mapping[str, str]) -> Markup:
    """Who acted, as a person reads it: the name, with the role in brackets.

    >>> who("owner:usr_1", {"usr_1": "olga"}), who("cli", {})
    (Markup('<bdi>olga</bdi> (owner)'), Markup('The command line'))
    """
    role, _, kid = actor.partition(":")
    if not kid:
        return Markup("{}").format(_PROGRAMS.get(actor, actor))
    return Markup("{} ({})").format(_bdi(kid, names), _ROLES.get(role, role))


def _bdi(value: object, names: Mapping[str, str]) -> Markup:
    """A text by its name, a number, or how many a list has."""
    shown = names.get(value, value) if isinstance(value, str) else len(value) if isinstance(value, list) else value
    return Markup("<bdi>{}</bdi>").format(number(shown))
