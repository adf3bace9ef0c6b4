"""The certificates of a service: read from files at its start and when they change, and when they expire."""

import logging
import ssl
from collections.abc import Callable
from datetime import datetime, timedelta

from blindopt import wire
from blindopt.certificates import FileWatch, expires_at, file_problem
from blindopt.errors import StateConflict
from service_kit.settings import ServiceSettings

log = logging.getLogger("blindopt.certificates")
WARN_BEFORE = timedelta(days=30)
_WARN_EVERY = timedelta(days=1)


class Certificates:
    """Certificates in files, by their settings. A file that changes into something unusable leaves the old one.

    Raises StateConflict for files that are unusable at the start.
    """

    def __init__(self, settings: ServiceSettings, clock: Callable[[], datetime]) -> None:
        self._variable, self._clock = settings.variable, clock
        self._files = settings.certificate_files
        self._watches = {setting: FileWatch(files.names) for setting, files in self._files.items()}
        self._ends: dict[str, datetime] = {}
        """When each certificate in use expires, by its setting."""
        self._problems: dict[str, str] = {}
        """Why the files of a setting, changed since they were read, are not in use."""
        self._server: ssl.SSLContext | None = None
        self._warned_at: datetime | None = None
        for setting in self._files:
            self._read(setting)
            if setting in self._problems:
                raise StateConflict(f"{self._variable(setting)}: {self._problems[setting]}")

    def _read(self, setting: str) -> None:
        files = self._files[setting]
        try:
            context = files.server_context() if setting == "tls_cert" else files.client_context()
            ends = {setting: expires_at(files.cert)} if files.cert is not None else {}
            if files.ca is not None:
                ends[_CA_OF[setting]] = expires_at(files.ca, is_ca=True)
        except (OSError, ValueError) as error:
            self._problems[setting] = file_problem(error)
            return
        self._problems.pop(setting, None)
        self._ends |= ends
        if setting == "tls_cert":
            self._server = context

    def server_context(self) -> ssl.SSLContext:
        assert self._server is not None
        return self._server

    def look(self) -> None:
        """Read files again that have changed, at most once a minute; warn once a day of what expires."""
        for setting, watch in self._watches.items():
            if not watch.has_changed():
                continue
            self._read(setting)
            self._warned_at = None
            if (problem := self._problems.get(setting)) is None:
                log.info("certificate read again: %s", self._variable(setting))
            else:
                log.error("certificate not usable, the old one stays: %s: %s", self._variable(setting), problem)
        now = self._clock()
        if self._warned_at is None or now - self._warned_at >= _WARN_EVERY:
            self._warned_at = now
            for view in self.views():
                if view.problem is not None:
                    log.warning(view.problem)

    def views(self) -> list[wire.CertificateView]:
        """Every certificate in use: when it expires, and what is wrong."""
        return [
            wire.CertificateView(setting=self._variable(setting), expires_at=end, problem=self._problem(setting, end))
            for setting, end in self._ends.items()
        ]

    def _problem(self, setting: str, end: datetime) -> str | None:
        name, remaining = self._variable(setting), end - self._clock()
        if setting in self._problems:
            return f"The files of {name} changed and are not usable, so the old ones stay: {self._problems[setting]}."
        if remaining <= timedelta(0):
            return f"The certificate of {name} expired on {end:%Y-%m-%d}. Put a new one in its place."
        if remaining < WARN_BEFORE:
            when = f"{end:%Y-%m-%d}, in {remaining.days} days"
            return f"The certificate of {name} expires on {when}. Put a new one in its place."
        return None

    def remaining_seconds(self) -> dict[str, float]:
        """Seconds until each certificate expires, by its setting; negative for one that has expired."""
        now = self._clock()
        return {setting.upper(): (end - now).total_seconds() for setting, end in self._ends.items()}


_CA_OF = {"tls_cert": "tls_client_ca", "curator_client_cert": "curator_ca"}
