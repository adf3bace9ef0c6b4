"""The release of a study, as it ran or would run, and whether it keeps its promise."""

from dataclasses import dataclass
from typing import Any

from blindopt import wire
from curator_service import store
from curator_service.privacy.calibration import Concrete, as_run, concrete
from curator_service.privacy.guarantees import guarantee
from curator_service.releases.mechanisms.registry import MECHANISMS
from curator_service.store.advisories import Reasons, reasons
from service_kit.store.database import Connection

_REFUTED = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1", delta=0.1, r=1, acknowledge_refuted=True)


@dataclass(frozen=True, slots=True)
class ReleaseStatus:
    """The release of a study, why ``auto`` chose it, whether its claim holds, and why it was withdrawn if it was.

    ``public``: whether the owner declares that nobody in the dataset needs protection; ``sandbox``: whether it is made
    up.
    """

    release: Concrete
    why: str | None
    status: wire.Status
    withdrawn: str | None
    public: bool = False
    sandbox: bool = False

    @property
    def claimed(self) -> Concrete:
        """The release, or one that is refuted in place of a withdrawn one: it promises nothing at no finite price."""
        return self.release if self.withdrawn is None else _REFUTED

    def promise(self, spec: wire.StudyCreate) -> str:
        """The guarantee of the study, in words for every party."""
        return guarantee(spec, self.release, withdrawn=self.withdrawn, public=self.public, sandbox=self.sandbox)


def release_status(
    db: Connection,
    spec: wire.StudyCreate,
    report: wire.ReleaseReport | None,
    withdrawn: Reasons | None = None,
    dataset: Any = None,
) -> ReleaseStatus:
    """The release of a study: the one that ran if there is a report of it, else the one that would run today.

    ``withdrawn`` and ``dataset``: ``reasons``, and the row of the study's dataset, if the caller has read them.
    """
    if withdrawn is None:
        withdrawn = reasons(db)
    if dataset is None:
        dataset = store.find(db, store.datasets, spec.dataset_id)
    release, why = concrete(spec) if report is None else (as_run(spec, report.mechanism, report.delta), report.why)
    mechanism = next(mechanism for mechanism in MECHANISMS if mechanism.name == release.mechanism)
    reason = withdrawn.get((mechanism.name, mechanism.version if report is None else report.version))
    status = mechanism.status if reason is None else "withdrawn"
    return ReleaseStatus(release, why, status, reason, public=bool(dataset.public), sandbox=bool(dataset.sandbox))
