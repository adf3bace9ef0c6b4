"""Settings that both services have. One table: name, unit, default, one line of help."""

import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, FilePath, SecretStr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from blindopt.addresses import is_http_address, is_localhost_name, is_loopback, is_web_address
from blindopt.certificates import CertificateFiles
from blindopt.formats.text_files import read_text_file
from blindopt.wire import CuratorUrl, NoticeEvent

PasswordCost = Literal["standard", "minimal"]
"""What hashing a password costs: as RFC 9106 recommends, or as little as argon2 allows."""

ARCHIVED_AFTER_DAYS = 90
"""How old archived records of a log are at least: PostgreSQL deletes no younger ones, whatever the service says."""

OF_CLIENTS = ("url", "token_file", "ca_file", "client_cert_file", "client_key_file")
"""Variables of the commands that ask a running service."""


class ServiceSettings(BaseSettings):
    """Read from the environment once, by the command line; the prefix is the service's own."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    EVENTS: ClassVar[tuple[NoticeEvent, ...]] = ()
    """Events of which this service can send notices."""

    data_dir: Path
    database_url: SecretStr | None = None
    """postgresql://USER:PASSWORD@HOST/DATABASE; SQLite in DATA_DIR unless set (extra postgres)."""
    database_url_file: FilePath | None = Field(None, description="A file with DATABASE_URL in it, instead.")
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(0, ge=0, le=65_535, description="Port to listen on.")
    public_url: CuratorUrl | None = None
    """Address of this service as other parties reach it; shown wherever an address is handed over."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """debug, info, warning or error."""
    body_limit_bytes: int = Field(1 << 20, ge=1 << 10, description="Largest request body, except uploads.")
    disk_min_bytes: int = Field(64 << 20, ge=0)
    """With fewer free bytes on the disk of DATA_DIR, /readyz is 503 and no new work begins: uploads, releases,
    forecasts, tunings, runs."""
    rate_per_second: float = Field(200.0, gt=0, description="Requests of one principal a second, in the long run.")
    rate_burst: int = Field(400, ge=1, description="Requests of one principal at once.")
    connections_max: int = Field(1_000, ge=8, description="Open connections in all.")
    connections_per_address: int = Field(200, ge=4)
    """Open connections from one address (IPv6: from one /64 network)."""
    trusted_proxies: str = ""
    """Addresses or networks of reverse proxies, with commas between: from these alone X-Forwarded-For is read.
    CONNECTIONS_PER_ADDRESS does not hold for them."""
    https_proxy: str | None = Field(None, repr=False)
    """Forward proxy, http://[USER:PASSWORD@]HOST[:PORT], for connections over https to the other party's machine;
    webhooks do not use it. Proxies of the environment are never used."""
    bad_tokens_per_minute: int = Field(60, ge=1, description="Requests with a bad token from one address.")
    session_idle_minutes: int = Field(30, ge=1, le=1_440, description="A console session not used for so long ends.")
    session_hours: int = Field(12, ge=1, le=168, description="A console session ends after so long, used or not.")
    logins_per_minute: int = Field(10, ge=1)
    """Logins tried of one name; three times as many at once from one address."""
    password_hash: PasswordCost = "standard"  # noqa: S105  a setting and not a password
    """What hashing a password costs: standard; minimal is for tests and protects nothing."""
    retention_sessions_days: int | None = Field(None, ge=1, le=36_500)
    """Console sessions are deleted so many days after they end; none unless set."""
    retention_notices_days: int | None = Field(None, ge=1, le=36_500)
    """Notices are deleted so many days after they end; after 30 unless set."""
    drain_seconds: int = Field(20, ge=1, description="How long a shutdown waits for requests under way.")
    first_token_file: Path | None = None
    """At first start, write a token of the main role here (mode 0600); kept if it exists."""
    first_password_file: Path | None = None
    """At a start without users, add one named after the main role; write its password here (mode 0600)."""
    verify_hours: float = Field(24.0, ge=0, le=8_760)
    """Hours between verifications of log and tables in the background, beside that at start; 0: none."""
    metrics: bool = False
    """Serve metrics for Prometheus at /metrics to the role monitor (extra metrics)."""
    tls_cert: FilePath | None = Field(None, description="Certificate chain in PEM; TLS is on when set.")
    tls_key: FilePath | None = Field(None, description="Private key in PEM.")
    tls_client_ca: FilePath | None = Field(None, description="CA in PEM: clients must then show a certificate of it.")

    notify_url: str | None = Field(None, description="Where notices are sent; none are written unless set.")
    notify_secret_file: FilePath | None = None
    """File with the key that signs notices: 32 characters or more."""
    notify_ca: FilePath | None = Field(None, description="CA in PEM of the receiver's certificate; else the system's.")
    notify_events: str = Field("all", description="Events that send notices, separated by commas; or all.")
    notify_timeout_seconds: float = Field(10.0, gt=0, le=300, description="How long a receiver may take to answer.")

    @property
    def bytes_per_grant_day(self) -> int | None:
        """How many bytes a grant may add to the logs in a day; None: there are no grants."""
        return None

    @property
    def archive_dir(self) -> Path:
        return self.data_dir / "archive"

    @property
    def proxy_networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        names = (name.strip() for name in self.trusted_proxies.split(","))
        return tuple(ipaddress.ip_network(name) for name in names if name)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment: there are no files of settings, and looking for them takes as long."""
        return init_settings, env_settings

    @model_validator(mode="after")
    def _proxies_are_networks(self) -> Self:
        try:
            _ = self.proxy_networks
        except ValueError as error:
            raise ValueError(f"TRUSTED_PROXIES: {error}") from None
        return self

    @model_validator(mode="after")
    def _https_proxy_is_an_address(self) -> Self:
        if self.https_proxy is not None and not is_http_address(self.https_proxy):
            raise ValueError("HTTPS_PROXY must be http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT")
        return self

    def proxy_to(self, url: str) -> str | None:
        """The forward proxy over which an address is reached; None for this machine, and for all but https."""
        parts = urlsplit(url)
        return None if parts.scheme != "https" or is_loopback(parts.hostname or "") else self.https_proxy

    @model_validator(mode="after")
    def _database_is_known(self) -> Self:
        if self.database_url is not None and self.database_url_file is not None:
            raise ValueError("set DATABASE_URL or DATABASE_URL_FILE, not both")
        url = self._given_address()
        if url is not None and not url.startswith(("postgresql://", "postgres://")):
            raise ValueError("DATABASE_URL must begin with postgresql://; without it, the database is SQLite")
        return self

    @property
    def database_address(self) -> str | None:
        """The address of PostgreSQL, with its password; None: SQLite in DATA_DIR."""
        return self._given_address()

    def _given_address(self) -> str | None:
        if self.database_url_file is not None:
            return read_text_file(self.database_url_file).strip()
        url = "" if self.database_url is None else self.database_url.get_secret_value()
        return url or None

    @model_validator(mode="after")
    def _notify_is_whole(self) -> Self:
        if (self.notify_url is None) != (self.notify_secret_file is None):
            raise ValueError("NOTIFY_URL and NOTIFY_SECRET_FILE belong together")
        if self.notify_url is not None and not is_web_address(self.notify_url):
            raise ValueError("NOTIFY_URL must begin with http:// or https://, and a host")
        if unknown := self._events() - set(self.EVENTS):
            raise ValueError(f"NOTIFY_EVENTS: no such event: {', '.join(sorted(unknown))}; {', '.join(self.EVENTS)}")
        return self

    def _events(self) -> set[str]:
        if self.notify_events.strip() == "all":
            return set(self.EVENTS)
        return {name.strip() for name in self.notify_events.split(",")} - {""}

    @property
    def enabled_events(self) -> frozenset[str]:
        """The events that send notices; none without a receiver."""
        return frozenset(self._events() if self.notify_url is not None else ())

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("TLS_CERT and TLS_KEY belong together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("TLS_CLIENT_CA needs TLS_CERT and TLS_KEY: without them there is no TLS")
        return self

    @property
    def certificate_files(self) -> dict[str, CertificateFiles]:
        """Certificates in files, by the setting of the certificate; their CA is that of the other side."""
        if self.tls_cert is None:
            return {}
        ca = None if self.tls_client_ca is None else str(self.tls_client_ca)
        return {"tls_cert": CertificateFiles(ca, str(self.tls_cert), str(self.tls_key))}

    @property
    def address(self) -> str | None:
        """The address to hand over: PUBLIC_URL, or on loopback without TLS where it listens; None if it is unknown."""
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        if not self.port or self.tls_cert is not None or not is_loopback(self.host):
            return None
        return f"http://{_in_url('127.0.0.1' if is_localhost_name(self.host) else self.host)}:{self.port}"

    @property
    def console_url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104  compared, not bound
        return f"{'http' if self.tls_cert is None else 'https'}://{_in_url(host)}:{self.port}/"

    @classmethod
    def variable(cls, name: str) -> str:
        return f"{cls.model_config.get('env_prefix', '')}{name.upper()}"

    @classmethod
    def unknown(cls, names: Iterable[str]) -> list[str]:
        """Those of ``names`` (of environment variables) that look like a setting and are none."""
        settings = {cls.variable(name) for name in (*cls.model_fields, *OF_CLIENTS)}
        return sorted(name for name in names if name.startswith(cls.variable("")) and name not in settings)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
