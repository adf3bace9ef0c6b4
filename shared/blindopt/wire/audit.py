"""The audit log, and privacy reports, which are signed like it."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from blindopt.wire.answer import Answers
from blindopt.wire.base import Caution, Limits, Page, Reply, Request, Sha256
from blindopt.wire.dataset import ColumnChoice
from blindopt.wire.ledger import Accounting, DatasetAccount
from blindopt.wire.release import Finding, Price, Promise, Status
from blindopt.wire.study import Budget, Processing


class AuditEntry(Reply):
    """A record of the audit log."""

    seq: int = Field(description="Position in the log, from 0, without gaps.")
    body: str = Field(max_length=1 << 20)
    """RFC 8785 (canonical) text of the record, as it was hashed: in a shared log, of a SharedLogRecord."""
    leaf: Sha256 = Field(description="SHA-256 of 0x00 and the body.")
    peaks: Annotated[str, Field(pattern=r"^([0-9a-f]{64})+$", description="Frontier of the Merkle tree, in hex.")]
    grant_id: str | None = None
    """The grant whose shared log holds the record; null: the service's own log."""


class AuditName(Reply):
    """The name of a user, a token or a grant."""

    id: str = Field(description="Its id.")
    name: str = Field(description="Its name, as it is now.")


class AuditPage(Page):
    """A page of the audit log."""

    entries: list[AuditEntry] = Field(max_length=1_000, description="Records, in the order of the log.")
    names: list[AuditName] = []
    """Names of the users, tokens and grants in these records: not of the log."""


class Checkpoint(Reply):
    """A signed checkpoint of a log: its size and root."""

    size: int = Field(description="Number of records.")
    root: Sha256 = Field(description="Root of the RFC 6962 tree over all records.")
    note: str
    """A C2SP checkpoint: origin, size and root, signed (Ed25519). The origin is the name of the service's key, a slash,
    and the id of the grant, or `log` for the service's own log."""


class Consistency(Reply):
    """Proof that a log has only grown between two sizes (RFC 6962, section 2.1.2)."""

    first: int = Field(description="Size of the older log, in records.")
    second: int = Field(description="Size of the newer log, in records.")
    proof: list[Sha256] = Field(description="Hashes of subtrees, in the RFC's order.")


class Verification(Reply):
    """A verification of everything: each record of each log, signatures, the saved checkpoint, and the tables."""

    sound: bool = Field(description="Whether no fault was detected.")
    problem: str | None = Field(description="The first wrong record and its fault; null if there is none.")
    size: int = Field(ge=0, description="Number of verified records of the service's own log.")
    root: str | None = Field(description="Root of the tree over them; null if the log does not verify.")
    shared_logs: int = Field(ge=0, description="Number of shared logs (one for each grant) that were verified too.")
    unread: int = Field(0, ge=0)
    """Number of archived records whose files were not read, since one is missing or damaged: the tables were compared
    with the last segment's signed summary."""
    at: datetime = Field(description="When the verification began.")
    seconds: float = Field(ge=0, description="Seconds that it took.")


class VerificationState(Reply):
    """When the log was last verified."""

    sound_at_start: bool = Field(description="Whether the end of the log verified when the service started.")
    started_at: datetime = Field(description="When the service started.")
    last: Verification | None
    """The last verification of the whole log since then; null: there was none."""
    running: bool = Field(description="Whether a verification is running now.")
    verified: int = Field(ge=0, description="Number of records that the one under way, or the last one, has verified.")
    findings: list[str] = Field(description="Every fault that is known, in words: what differs from the log.")


class Countersigning(Request):
    """A modeler's countersignature: it holds the shared log up to a checkpoint, and the log has only grown."""

    note: str = Field(min_length=1, max_length=10_000, description="The checkpoint with the countersignature added.")
    key: str = Field(min_length=1, max_length=400)
    """The modeler's C2SP verifier key, of type 0x04 or 0x01; the first key of a grant is pinned."""


class Countersigned(Reply):
    """A stored countersignature."""

    grant_id: str = Field(description="The grant of the shared log.")
    size: int = Field(description="Number of exchanges that it covers.")
    time: int = Field(description="When the modeler signed, in Unix seconds.")


class CertificateView(Reply):
    """A certificate that the service uses for TLS."""

    setting: str = Field(description="The setting that names its file.")
    expires_at: datetime
    """When it expires; of a chain the first to, of several authorities the last."""
    problem: str | None
    """What is wrong and what to do: it expires within 30 days, has expired, or its file is not usable."""


class CertificateList(Reply):
    """The certificates that the service uses for TLS; none without TLS."""

    certificates: list[CertificateView] = Field(description="One for each setting that names certificates.")


class Health(Reply):
    """State of a service."""

    status: Literal["ok"] = Field(description="Always ok; otherwise the reply is a problem document.")
    schema_version: int | None = None
    """For a token that may read metrics, of /readyz: version of the database's tables."""
    disk_free_bytes: int | None = Field(None, description="The same: free bytes on the disk with the data folder.")
    verification: VerificationState | None = None
    """The same: how far the verification of the log is."""


class MechanismView(Reply):
    """A release mechanism and whether its claim holds."""

    name: str = Field(description="Name, as in release.mechanism.")
    version: int = Field(description="Version; increases when its noise law changes.")
    status: Status = Field(description="Whether its claim is proved or refuted, or whether it makes none.")
    claim: str = Field(description="What it guarantees, in words.")


class CuratorMeta(Reply):
    """What a curator offers."""

    service: Literal["blindopt-curator"] = Field(description="Which of the two services this is.")
    version: str = Field(description="Version of the program.")
    log_key: str = Field(description="C2SP verifier key of its checkpoints.")
    mechanisms: list[MechanismView] = Field(description="Release mechanisms, sound ones first.")
    limits: Limits = Field(description="Limits of one query.")


class ModelerMeta(Reply):
    """What a modeler offers."""

    service: Literal["blindopt-modeler"] = Field(description="Which of the two services this is.")
    version: str = Field(description="Version of the program.")
    log_key: str = Field(description="C2SP verifier key of its checkpoints.")
    algorithms: list[str] = Field(description="Names of the available algorithms.")
    exports: list[Literal["json", "csv", "parquet"]]
    """Available export formats of a run; parquet if pyarrow is installed."""


REPORT_TITLE = "blindopt privacy report, version 1"
"""The title under which a report is signed."""
LETTER_TITLE = "blindopt letter to a person, version 1"
"""The title under which a letter is signed."""
AUDIT_TITLE = "blindopt audit of drawn noise, version 1"
"""The title under which the transcript of an audit is signed."""


class ReportedDataset(Reply):
    """The dataset of a report, without any of its values."""

    id: str = Field(description="ds_...")
    public: bool = Field(description="Whether the owner declares that nobody in it needs protection.")
    rows: int = Field(description="Number of records.")
    withheld: int = Field(description="Number of records that are withheld: measured and released no more.")
    encoded: list[ColumnChoice] = Field(default_factory=list)
    """How columns of text, dates or gaps were read: lists of categories and the rest are public inputs."""


class ReportedStudy(Reply):
    """What a study promised and used."""

    id: str = Field(description="std_...")
    name: str = Field(description="Name of the study.")
    verdict: str = Field("", description="The state of its privacy, in one line.")
    summary: list[str] = Field(default_factory=list, description="What was asked about and used so far, in sentences.")
    processing: Processing = Field(default_factory=Processing)
    """Purpose, recipient, period and person responsible, as its owner states."""
    state: Literal["draft", "releasing", "open", "closed"] = Field(description="Its state.")
    created_at: datetime = Field(description="When the draft was created.")
    opened_at: datetime | None = Field(description="When the candidates were released; null before.")
    spec_sha256: Sha256 = Field(description="Digest of the specification, as in the log.")
    release_sha256: Sha256 | None
    """SHA-256 of the npy file of the candidates, or of the list of its parts; null before."""
    unit: str = Field(description="The unit of privacy: whose data the guarantee is about.")
    relation: str = Field(description="When two datasets are neighbours.")
    mechanism: str = Field(description="Release mechanism that ran, or would run.")
    mechanism_version: int = Field(description="Its version.")
    status: Status
    """Whether the guarantee is proved, refuted or withdrawn, or whether there is none."""
    answers: Answers = Field(description="Answer mechanism (never auto) and its epsilon.")
    guarantee: str = Field(description="Guarantee for the records, in words.")
    not_protected: list[str] = Field(description="What the guarantee does not cover, in words.")
    budget: Budget = Field(description="Caps on what the study may use.")
    price: Price = Field(description="Its price, and how many answers the budget allows.")
    worst_epsilon: str | None = Field(description="Epsilon of the record that has used most; null: no bound.")
    spent: Accounting = Field(description="Epsilon used so far: by the number of answers about a record, and in total.")
    cautions: list[Caution]
    """Choices that an expert would not make; accepted with the release, or by raising caps since."""
    attacks: list[Finding] = Field(description="Results of attacks on the actual release.")
    not_tried: str | None = Field(description="Attacks that were omitted, and why; null if none was.")


class PrivacyReport(Reply):
    """The state of one study, or of every study of a dataset, at one moment."""

    subject: Literal["study", "dataset"] = Field(description="What the report is about.")
    verdict: str = Field("", description="The state of privacy, in one line.")
    made_at: datetime = Field(description="When it was made.")
    log_key: str = Field(max_length=400, description="C2SP verifier key of the curator's log, which signs the report.")
    checkpoint: str = Field(description="Signed checkpoint of the curator's log: the report is of this state.")
    dataset: ReportedDataset = Field(description="The dataset.")
    account: DatasetAccount = Field(description="The account of the dataset's file, over all of its uses.")
    studies: list[ReportedStudy] = Field(description="The study, or the studies of the dataset's file.")


class SignedPrivacyReport(Reply):
    """A report and its signature, for `blindopt-curator report verify`."""

    report: PrivacyReport = Field(description="The report.")
    signature: str = Field(description="A C2SP signed note: title and SHA-256 of the canonical JSON of report.")


class LetterRecord(Reply):
    """The record of an event in the curator's log, and the proof that the log of the letter's checkpoint holds it."""

    number: int = Field(ge=0, lt=2**53, description="Number of the record in the log, from 0.")
    leaf: Sha256 = Field(description="SHA-256 of 0x00 and the record's bytes.")
    peaks: Annotated[str, Field(pattern=r"^([0-9a-f]{64})*$", max_length=64 * 64)]
    """Frontier of the tree before the record, in hex: with the leaf, the log that ends with it."""
    proof: list[Sha256] = Field(max_length=128, description="That the log of the checkpoint begins so (RFC 6962).")
    body: str | None = Field(max_length=1 << 20, description="Its bytes; null if they name others' candidates.")


class LetterEvent(Reply):
    """Something that used epsilon of the person. Counted is the most that may be hers, where nobody can tell."""

    kind: Literal[
        "release",
        "reused",
        "groups",
        "answer",
        "correction",
        "refine",
        "tuning",
        "bounds",
        "counted",
        "erased",
        "files",
    ]
    """What left. Counted: in a study, an erased study, or other files."""
    study: str = Field("", description="Name of the study.")
    row: int | None = Field(None, description="Number of the person's candidate; null if it is about everybody.")
    to: list[str] = Field([], description="Who received it.")
    hidden: dict[str, float] = Field({}, description="By column, the largest change that a release hides, in its unit.")
    promise: Promise = "euclidean"
    charged_at: datetime | None = Field(None, description="When it was charged: before anything was drawn.")
    sent_at: datetime | None = Field(None, description="When it was sent; null if nothing of it was.")
    epsilon: str | None = Field(description="Epsilon that it used of the person; null: it is not in the total.")
    log: LetterRecord | None = Field(None, description="Its record; null: there is none, or its archive is not there.")


class Letter(Reply):
    """What left of a record or a person, for the person."""

    made_at: datetime = Field(description="When it was made.")
    salt: str = Field(description="Random, so that the digest of the letter in the log reveals nothing.")
    log_key: str = Field(max_length=400, description="C2SP verifier key of the curator's log, which signs the letter.")
    checkpoint: str = Field(description="Signed checkpoint of the curator's log: the letter is of this state.")
    dataset_id: str = Field(description="ds_...")
    unit: Literal["record", "person"] = Field(description="Whether it is about a record, or all records of a person.")
    records: int = Field(description="The most records of one person, as studies without a column of persons declare.")
    epsilon: str | None = Field(description="Sum of the events' epsilon; null: no finite bound.")
    delta: str = Field(description="Sum of their deltas.")
    surest: str | None = Field(description="Percent: the most that anybody who began with 50 can be sure of a value.")
    withheld: bool = Field(description="Whether the owner measures and releases nothing of it from now on.")
    events: list[LetterEvent] = Field(description="What left, study by study.")


class SignedLetter(Reply):
    """A letter and its signature, for `blindopt-curator letter verify`."""

    letter: Letter = Field(description="The letter.")
    signature: str = Field(description="A C2SP signed note: title and SHA-256 of the canonical JSON of letter.")
