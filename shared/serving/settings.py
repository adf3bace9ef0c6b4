"""Settings that both services have. One table: name, unit, default, one line of help."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class ServiceSettings(BaseSettings):
    """Read from the environment once, in ``app``; the prefix is the service's own."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    data_dir: Path
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(0, ge=0, le=65_535, description="Port to listen on.")
    log_level: str = Field("info", description="debug, info, warning or error.")
    body_limit_bytes: int = Field(1 << 20, ge=1 << 10, description="Largest request body, except uploads.")
    drain_seconds: int = Field(20, ge=1, description="How long a shutdown waits for requests under way.")
    first_token_file: Path | None = Field(
        None, description="At first start, write a token of the main role here (mode 0600); kept if it exists."
    )
    tls_cert: Path | None = Field(None, description="Certificate chain in PEM; TLS is on when set.")
    tls_key: Path | None = Field(None, description="Private key in PEM.")
    tls_client_ca: Path | None = Field(None, description="CA in PEM: clients must then show a certificate of it.")
