"""Settings of the modeler, from variables BLINDOPT_MODELER_<NAME>."""

from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import urlsplit

from pydantic import Field, FilePath, model_validator
from pydantic_settings import SettingsConfigDict

from blindopt.addresses import is_loopback
from blindopt.certificates import CertificateFiles
from blindopt.wire import NoticeEvent
from service_kit import landlock
from service_kit.settings import ServiceSettings


class Settings(ServiceSettings):
    """One table: name, unit, default, one line of help."""

    model_config = SettingsConfigDict(env_prefix="BLINDOPT_MODELER_", frozen=True, extra="ignore")

    EVENTS: ClassVar[tuple[NoticeEvent, ...]] = (
        "run_ended",
        "run_failed",
        "run_waiting",
        "run_warned",
        "log_disputed",
        "log_failed",
    )

    data_dir: Path = Field(Path("modeler-data"), description="Folder of the database and all files; mode 0700.")
    port: int = Field(8420, ge=0, le=65_535, description="Port to listen on.")
    concurrent_runs: int = Field(4, ge=1, le=64, description="Runs worked on at once; more wait in the queue.")
    curator_timeout_seconds: float = Field(30.0, gt=0, description="How long a curator may take to answer.")
    retry_attempts: int = Field(8, ge=1, description="Tries of one request before its run waits (at its start: fails).")
    retry_seconds_max: float = Field(10.0, gt=0, description="Longest pause between two tries.")
    wait_seconds_first: float = Field(5.0, gt=0, description="How long a run first waits before it tries again.")
    wait_seconds_max: float = Field(300.0, gt=0, description="How long it waits at most; each wait is twice the last.")
    wait_hours: float = Field(72.0, gt=0, description="How long a run waits for its curator in all before it fails.")
    people_hold_seconds: float = Field(20.0, ge=0)
    """How long a run keeps its worker for people who measure, before it waits without one."""
    people_seconds: float = Field(15.0, gt=0)
    """How long it then waits before it asks the curator for their answer."""
    people_seconds_max: float = Field(300.0, gt=0)
    """Longest time between two such requests; each wait is twice the last."""
    people_days: float = Field(30.0, gt=0)
    """How long it waits while its curator does not answer; each reply restarts this time."""
    notify_wait_minutes: float = Field(60.0, ge=0)
    """A run that has waited for its curator for so long brings a notice by webhook."""
    lease_seconds: float = Field(300.0, gt=0)
    """A run that made no progress for so long is taken from its worker, and waits."""
    countersign_every: int = Field(50, ge=1, description="Answers between two countersignatures; one at each end too.")
    curator_ca: FilePath | None = None
    """CA in PEM that signs curators' certificates; default: the system's."""
    curator_client_cert: FilePath | None = None
    """Certificate in PEM that is shown to curators which require one."""
    curator_client_key: FilePath | None = Field(None, description="Its private key in PEM.")
    candidates_max_bytes: int = Field(8 << 30, ge=1 << 10, description="Largest release that is fetched.")
    run_stored_bytes_max: int = Field(256 << 20, ge=1 << 20)
    """Most bytes that a curator may make one run store, beside its candidates."""
    run_memory_max_bytes: int = Field(8 << 30, ge=1 << 20, description="Most memory that one run may need.")
    candidates_engine: str = Field("process", pattern=r"^(process|threads|(dask|tls)://[^/\s@]+:[0-9]+)$")
    """What a run's candidates are computed with: process; threads, which divides them into parts, one for each
    processor, and saves time from about a million candidates on; tls://host:8786, the scheduler of a Dask cluster, with
    a part at each worker. The choices are the same to the last bit."""
    candidates_dir: Path | None = None
    """Folder of the releases of this modeler alone; workers of a cluster read them under the same path. Default: in
    DATA_DIR."""
    engine_partition_rows: int = Field(4_000_000, ge=1)
    """Most candidates of one part, where candidates are divided into parts."""
    engine_step_seconds: float = Field(600.0, gt=0)
    """How long a worker of a cluster may take for one choice before its part is rebuilt."""
    engine_tls_ca: FilePath | None = Field(None, description="CA in PEM that signs the cluster's certificates.")
    engine_tls_cert: FilePath | None = Field(None, description="Certificate in PEM that is shown to the cluster.")
    engine_tls_key: FilePath | None = Field(None, description="Its private key in PEM.")
    look_memory_max_bytes: int = Field(2 << 30, ge=1 << 20)
    """Most memory that a posterior or recommendation may need while it is computed."""
    allowed_curators: str = ""
    """Hosts of curators that vendors may name, as patterns with commas between: curator.example.org,
    *.hospital.example, 10.0.0.7:8410. Empty: every host; this machine itself only if HOST is loopback."""
    allow_plain_http: bool = Field(False, description="Send grant tokens over http to hosts other than loopback.")

    @model_validator(mode="after")
    def _client_certificate_is_whole(self) -> Self:
        if (self.curator_client_cert is None) != (self.curator_client_key is None):
            raise ValueError("CURATOR_CLIENT_CERT and CURATOR_CLIENT_KEY belong together")
        return self

    @model_validator(mode="after")
    def _cluster_is_closed(self) -> Self:
        address = urlsplit(self.candidates_engine)
        if address.scheme == "dask" and not is_loopback(address.hostname or ""):
            raise ValueError(
                "CANDIDATES_ENGINE: anyone who reaches a scheduler without certificates runs programs at its workers; "
                "beyond this machine give tls://, with ENGINE_TLS_CA, ENGINE_TLS_CERT and ENGINE_TLS_KEY"
            )
        if address.scheme == "tls" and self.engine_certificates is None:
            raise ValueError("CANDIDATES_ENGINE: tls:// needs ENGINE_TLS_CA, ENGINE_TLS_CERT and ENGINE_TLS_KEY")
        if address.scheme and not landlock.version():
            raise ValueError(
                "CANDIDATES_ENGINE: a cluster needs Linux 5.13 with Landlock, because a cluster can run programs in "
                "the process that connects to it; this kernel, container or unit permits no Landlock"
            )
        data = self.data_dir.resolve()
        if address.scheme and (over := [path for path in landlock.code_paths() if path.resolve() in data.parents]):
            raise ValueError(
                f"DATA_DIR: beside a cluster it must not lie in {over[0]}, which the cluster's client reads"
            )
        return self

    @property
    def engine_certificates(self) -> tuple[str, str, str] | None:
        """The files of the CA, the certificate and the key for the cluster; None unless all are set."""
        files = (self.engine_tls_ca, self.engine_tls_cert, self.engine_tls_key)
        ca, cert, key = (None if file is None else str(file) for file in files)
        return None if ca is None or cert is None or key is None else (ca, cert, key)

    @property
    def candidates_folder(self) -> Path:
        return self.candidates_dir or self.data_dir / "candidates"

    @property
    def client_certificate(self) -> tuple[str, str] | None:
        if self.curator_client_cert is None or self.curator_client_key is None:
            return None
        return str(self.curator_client_cert), str(self.curator_client_key)

    @property
    def certificate_files(self) -> dict[str, CertificateFiles]:
        cert, key = self.client_certificate or (None, None)
        ca = None if self.curator_ca is None else str(self.curator_ca)
        client_files = CertificateFiles(ca, cert, key)
        return super().certificate_files | ({"curator_client_cert": client_files} if client_files.names else {})
