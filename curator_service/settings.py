"""Settings of the curator, from variables BLINDOPT_CURATOR_<NAME>."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, FilePath, model_validator
from pydantic_settings import SettingsConfigDict

from blindopt.addresses import is_plain_abroad, is_web_address
from blindopt.wire import PLAYS_MAX, ROWS_MAX, NoticeEvent
from curator_service.link_file import address_of, read
from service_kit.settings import ARCHIVED_AFTER_DAYS, ServiceSettings


class Settings(ServiceSettings):
    """One table: name, unit, default, one line of help."""

    model_config = SettingsConfigDict(env_prefix="BLINDOPT_CURATOR_", frozen=True, extra="ignore")

    EVENTS: ClassVar[tuple[NoticeEvent, ...]] = (
        "query_pending",
        "budget_80",
        "release_ended",
        "forecast_ended",
        "tuning_ended",
        "cap_raised",
        "recommendation_received",
        "budget_requested",
        "log_failed",
    )

    data_dir: Path = Field(Path("curator-data"), description="Folder of the database and all files; mode 0700.")
    port: int = Field(8410, ge=0, le=65_535, description="Port to listen on.")
    upload_limit_bytes: int = Field(1 << 30, ge=1 << 10, description="Largest dataset file, packed and unpacked.")
    dataset_rows_max: int = Field(10_000_000, ge=1, description="Most records of a dataset.")
    dataset_columns_max: int = Field(1_000, ge=1, description="Most columns of a dataset.")
    import_dir: Path | None = Field(None, description="Folder whose files an owner may register by name.")
    query_rows_max: int = Field(100, ge=1, le=ROWS_MAX, description="Most candidates in one query.")
    query_plays_max: int = Field(100, ge=1, le=PLAYS_MAX)
    """Most measurements of one candidate in one query."""
    log_bytes_per_grant_day: int = Field(256 << 20, ge=1 << 20, lt=2**53)
    """Most bytes that a grant without a quota of its own may add to the logs, with stored replies, in a day (UTC). A
    measurement by a person or a system counts as 1,024 bytes."""
    tunings_waiting_max: int = Field(8, ge=0, description="Most tunings that wait while one runs.")
    tuning_seconds_max: int = Field(86_400, ge=1, le=1_000_000, description="A tuning that runs longer fails.")
    tuning_plan_seconds_max: int = Field(60, ge=1, le=3_600)
    """A tuning whose plan takes longer to make is refused."""
    scorer_url: str | None = Field(None, description="URL of the program that computes http scores; none unless set.")
    scorer_secret_file: FilePath | None = None
    """File with the key that signs requests to the scorer: 32 characters or more."""
    scorer_ca: FilePath | None = Field(None, description="CA in PEM of the scorer's certificate; else the system's.")
    scorer_timeout_seconds: float = Field(300.0, gt=0, le=86_400, description="How long one score may take.")
    scorer_attempts: int = Field(5, ge=1, le=100)
    """How often one score is requested before the tuning fails."""
    measurer_url: str | None = Field(None, description="The owner's system that measures; none unless set.")
    measurer_secret_file: FilePath | None = None
    """File with the key that signs requests to the measurer: 32 characters or more."""
    measurer_ca: FilePath | None = None
    """CA in PEM of the measurer's certificate; else the system's."""
    measurer_timeout_seconds: float = Field(60.0, gt=0, le=86_400)
    """How long the measurer may take to reply before the call is repeated."""
    measurer_hours: float = Field(72.0, ge=0, le=100_000)
    """How long the measurer is called for a measurement before it is left to people."""
    allow_plain_http: bool = False
    """Call scorers and measurers over http at hosts other than loopback."""
    links_file: Path | None = None
    """Links to modelers that it connects to (`link add`); default: links.json in DATA_DIR."""
    part_bytes: int = Field(1 << 30, ge=1 << 10)
    """The candidates of a larger release are published in parts of so many bytes."""
    forecasts_waiting_max: int = Field(8, ge=0, description="Most forecasts that wait while one runs.")
    forecast_seconds_max: int = Field(3_600, ge=1, le=1_000_000, description="A forecast that runs longer fails.")

    @property
    def bytes_per_grant_day(self) -> int:
        return self.log_bytes_per_grant_day

    @property
    def links_path(self) -> Path:
        return self.links_file or self.data_dir / "links.json"

    @property
    def address(self) -> str | None:
        """As for every service; without PUBLIC_URL, a curator with one link is reached over that."""
        if self.public_url is None and len(links := read(self.links_path)) == 1:
            return address_of(links[0])
        return super().address

    retention_forecasts_days: int | None = Field(None, ge=1, le=36_500)
    """Forecasts are deleted so many days after they end; none unless set."""
    retention_notes_days: int | None = Field(None, ge=1, le=36_500)
    """Notes at measurements are deleted after so many days; none unless set."""

    retention_log_days: int | None = Field(None, ge=ARCHIVED_AFTER_DAYS, le=36_500)
    """Records of the audit log are archived after so many days, 65,536 at once; none unless set."""
    log_archive_dir: Path | None = None
    """Folder of archived segments of the audit log; DATA_DIR/archive unless set."""

    @property
    def archive_dir(self) -> Path:
        return self.log_archive_dir or super().archive_dir

    @model_validator(mode="after")
    def _webhooks_are_whole(self) -> Self:
        for name, url, file in (
            ("SCORER", self.scorer_url, self.scorer_secret_file),
            ("MEASURER", self.measurer_url, self.measurer_secret_file),
        ):
            if (url is None) != (file is None):
                raise ValueError(f"{name}_URL and {name}_SECRET_FILE belong together")
            if url is not None and not is_web_address(url):
                raise ValueError(f"{name}_URL must begin with http:// or https://, and a host")
            if url is not None and not self.allow_plain_http and is_plain_abroad(url):
                raise ValueError(
                    f"{name}_URL is on another machine, and records would be sent to it over plain http: use https, "
                    "or set BLINDOPT_CURATOR_ALLOW_PLAIN_HTTP"
                )
        return self
