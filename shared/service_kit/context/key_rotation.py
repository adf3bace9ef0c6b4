"""New keys for a service: the log key, which signs, and the seal key, which encrypts stored secrets.

The new key is written beside the old one, then a record of the log names it: of a log key with the old key's signature,
of a seal key in the transaction that seals everything anew. That record decides which file counts, so that a kill at
any moment leaves one key that fits. Then the new file takes the place of the old one, at once or at the next start.
"""

import os
from pathlib import Path
from typing import Literal

from cryptography.fernet import Fernet

from blindopt.audit.checkpoints import CHANGES_MAX, Signer
from blindopt.errors import StateConflict
from service_kit.context.context import ServiceContext
from service_kit.context.keys import Seal, key_id, next_path, read_next, write_durably
from service_kit.context.log_summaries import seal_principals
from service_kit.store import audit_log, sealed
from service_kit.store.database import Connection

Which = Literal["log", "seal"]
PURPOSES = "persons", "requests"
"""Purposes of keys that are derived from the seal key and must outlive it."""


def rotate(context: ServiceContext, secrets: Path, which: Which) -> None:
    """Replace a key of a service that does not run. Raises StateConflict after too many changes of the log key."""
    settle(context, secrets)
    if which == "log":
        _rotate_log(context, secrets / "log.key")
    else:
        _rotate_seal(context, secrets)
    settle(context, secrets, was_changed=which)


def settle(context: ServiceContext, secrets: Path, *, was_changed: Which | None = None) -> None:
    """Put a new key in the place of the old one if the log names it, and delete it otherwise: after a kill, too."""
    for which in ("log", "seal"):
        path = secrets / f"{which}.key"
        if (fresh := read_next(path)) is None:
            continue
        in_use = context.signer.private_hex if which == "log" else context.seal.secret
        if fresh == in_use or which == was_changed:
            next_path(path).replace(path)
        else:
            next_path(path).unlink()


def _rotate_log(context: ServiceContext, path: Path) -> None:
    if len(context.signer.changes) >= CHANGES_MAX:
        raise StateConflict(f"the log key was changed {CHANGES_MAX} times: no more changes fit into its notes")
    private = os.urandom(32)
    write_durably(next_path(path), private.hex().encode())
    following = Signer.of(context.service, private).verifier
    details = {"key": "log", "vkey": following.vkey, "line": context.signer.change_to(following)}
    context.database.write(lambda db: _record(db, context, details))


def _rotate_seal(context: ServiceContext, secrets: Path) -> None:
    for purpose in PURPOSES:  # it was derived from the key that goes
        if not (derived := secrets / f"{purpose}.key").exists():
            write_durably(derived, context.seal.key_for(purpose).hex().encode())
    fresh = Fernet.generate_key()
    write_durably(next_path(secrets / "seal.key"), fresh)
    following = Seal(fresh, secrets)

    def work(db: Connection) -> None:
        sealed.seal_anew(db, lambda value: following.close(context.seal.open(value)))
        seal_principals(db, following.mac, context.seal.mac)
        _record(db, context, {"key": "seal", "id": key_id(fresh)})

    context.database.write(work)


def _record(db: Connection, context: ServiceContext, details: dict[str, str]) -> None:
    audit_log.append(db, "key.changed", actor="cli", now=context.clock(), details=details)
