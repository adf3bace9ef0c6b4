"""Settings of the curator, from variables BLINDOPT_CURATOR_<NAME>."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.serving.settings import ServiceSettings
from shared.wire import PLAYS_MAX, ROWS_MAX


class Settings(ServiceSettings):
    """One table: name, unit, default, one line of help."""

    model_config = SettingsConfigDict(env_prefix="BLINDOPT_CURATOR_", frozen=True, extra="ignore")

    data_dir: Path = Field(Path("curator-data"), description="Folder of the database and all files; mode 0700.")
    port: int = Field(8410, ge=0, le=65_535, description="Port to listen on.")
    upload_limit_bytes: int = Field(1 << 30, ge=1 << 10, description="Largest dataset file.")
    dataset_rows_max: int = Field(10_000_000, ge=1, description="Most rows of a dataset.")
    dataset_columns_max: int = Field(1_000, ge=1, description="Most columns of a dataset.")
    import_dir: Path | None = Field(None, description="Folder whose files an owner may register by name.")
    query_rows_max: int = Field(100, ge=1, le=ROWS_MAX, description="Most rows in one query.")
    query_plays_max: int = Field(100, ge=1, le=PLAYS_MAX, description="Most plays of one row in one query.")
    forecasts_waiting_max: int = Field(8, ge=0, description="Most forecasts that wait while one runs.")
    forecast_seconds_max: int = Field(3_600, ge=1, le=1_000_000, description="A forecast that runs longer fails.")
