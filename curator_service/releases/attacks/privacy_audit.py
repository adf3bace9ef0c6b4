"""Whether a study's noise has the law that it promises, as a signed transcript. It reads settings, never a record.

All is drawn by the code of a release or a query, at public values: rows in the middle of the declared bounds, whose
part of Z is noise alone, and measurements at either end and in the middle of the clip. Each statistic has a p, uniform
in [0, 1] if the law holds. Beside them stands the epsilon that draws about two neighbours imply, whatever the law is.
"""

import math
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.audit import signed_documents
from blindopt.audit.merkle_log import Json
from blindopt.wire import amount
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy.answers import Measured, release, releases_mean
from curator_service.privacy.calibration import failure
from curator_service.privacy.measurement.groups import COUNT_MOVE, LEVELS, GroupAnswers, steps
from curator_service.privacy.noise.lattice import lattice
from curator_service.privacy.prices import answers_add_up, is_groups
from curator_service.releases.attacks.column_space import implied
from curator_service.releases.mechanisms.axes import Axes
from curator_service.releases.mechanisms.groups import Groups
from curator_service.releases.mechanisms.mechanism import Mechanism
from curator_service.releases.mechanisms.registry import mechanism_of
from curator_service.releases.mechanisms.row_noise import PublicGrid
from curator_service.releases.report import release_status
from curator_service.studies.studies import owner_view
from service_kit.context.context import ServiceContext

P_MIN = 1e-9
"""A smaller p contradicts the law: of 100 statistics of a sound one, in one audit of ten million."""
_ALPHA = 1e-9
"""How often the least epsilon of a part is above the true one, at most."""
_PERSONS = 3
"""Whose measurements an answer is the mean of, where each is another person's."""
_ORTHANT_COLUMNS = 6
_PLACES = {"low end": -1, "middle": 0, "high end": 1}
"""Where a measurement lies in the clip."""


@dataclass(frozen=True, slots=True)
class Fit:
    """One statistic of what was drawn, and its p."""

    statistic: str
    p: float

    @property
    def contradicts(self) -> bool:
        return self.p < P_MIN


def of_release(spec: wire.StudyCreate, mechanism: Mechanism, draws: int, delta: float) -> tuple[list[Fit], float]:
    """The fit of so many rows of noise to the law that the study publishes, or of so many numbers of records.

    Also the least epsilon at ``delta`` that they and as many about a neighbour imply.
    """
    if not isinstance(mechanism, Groups):
        return _of_rows(spec, mechanism, draws, delta)
    k = mechanism.rows  # of a person, who moves from the first group to the second
    first, second = (np.array(mechanism.noisy(counts * draws)).reshape(-1, 2) for counts in ([k, 0], [0, k]))
    least = _least_epsilon(first[:, 1] - first[:, 0], second[:, 1] - second[:, 0], (-k, k), delta)
    numbers = (first - [k, 0]).ravel()
    fits = _of_integers("numbers of records", numbers, COUNT_MOVE * mechanism.rows / float(mechanism.epsilon))
    if (private := mechanism.private) is not None:
        zeros = np.zeros(draws, dtype=np.int64), np.zeros((draws, len(spec.features)), dtype=np.int64)
        for name, move, noise in zip(("sizes", "sums"), private.moves, private.noisy(zeros), strict=True):
            fits += _of_integers(f"{name} of centres", noise.ravel(), move / float(private.share))
    return fits, least


def _of_rows(spec: wire.StudyCreate, mechanism: Mechanism, draws: int, delta: float) -> tuple[list[Fit], float]:
    from scipy import stats

    d = len(spec.features)
    middle = np.array([(f.lower + f.upper) / 2 for f in spec.features])
    half = np.array([(f.upper - f.lower) / 2 for f in spec.features])
    law = mechanism.noise(d)
    is_each = law.family == "laplace_each"
    if is_each:
        half[1:] = 0.0  # the worst move is along an axis
    share = min(1.0, getattr(mechanism, "sensitivity", 1.0) / np.linalg.norm(half / [f.unit for f in spec.features]))
    values = np.repeat([middle, middle + share * half], draws, axis=0)
    rows = ScaledRows(values, list(range(d)), spec.features, np.arange(len(values)))
    if isinstance(mechanism, Axes):  # the first along the move
        mechanism = mechanism.of_sample(rows)
    out = np.empty((len(values), mechanism.columns(d)))
    mechanism.draw(rows, out)
    z, moved = out[:draws], out[draws:]
    r, fifth = z.shape[1], draws // 5
    towards = moved[:fifth].mean(axis=0) - z[:fifth].mean(axis=0)  # where Z was turned, nothing else says it
    least = _least_epsilon(z[fifth:] @ towards, moved[fifth:] @ towards, (0.0, float(towards @ towards)), delta)
    assert law.sd is not None
    radius, slope = np.linalg.norm(z, 1 if is_each else 2, axis=1), math.sqrt(2 if is_each else r + 1) / law.sd
    if is_each or law.family == "planar_laplace":
        of_one, of_all = stats.gamma(r), stats.gamma(draws * r)
        sizes = slope * radius
    else:
        of_one, of_all = stats.chi2(r), stats.chi2(draws * r)
        sizes = (radius / law.sd) ** 2
    fits = [*_of_uniform("radius", of_one.cdf(sizes)), _two_sided("scale", of_all, sizes.sum())]
    direction = stats.beta((r - 1) / 2, (r - 1) / 2)
    for j in range(r if r > 1 else 0):
        of_axis = stats.laplace.cdf(slope * z[:, j]) if is_each else direction.cdf((1 + z[:, j] / radius) / 2)
        fits += _of_uniform(f"direction {j + 1}", of_axis)
    columns = z[:, :_ORTHANT_COLUMNS]
    orthants = (columns >= 0) @ (1 << np.arange(columns.shape[1]))
    fits.append(_of_cells("orthants", orthants, 1 << columns.shape[1]))
    return [*fits, _low_bits(z, PublicGrid.of(law.sd).exponent)], least


def of_answers(spec: wire.StudyCreate, draws: int) -> tuple[list[Fit], float]:
    """The fit of so many answers at each place of the clip to the law that epsilon and the bound of y imply.

    Also the least epsilon that those at its two ends imply.
    """
    answers, fits, samples = wire.concrete_answers(spec.answers), list[Fit](), dict[int, Vector]()
    centre, bound = getattr(answers, "centre", 0.0), getattr(answers, "bound", 1.0)
    persons = _PERSONS if releases_mean(spec) and not answers_add_up(spec) else 1
    for clip_end, sign in _PLACES.items():
        value = centre + 2 * sign * bound  # beyond the clip
        if is_groups(spec):
            mechanism = GroupAnswers.of(spec)
            total = steps(np.full(mechanism.rows, value), mechanism.answers)
            samples[sign] = np.array([float(mechanism.total(total)) for _ in range(draws)])
            reach = float(LEVELS * mechanism.rows)
            noise = samples[sign] - sign * reach
            fits += _of_integers(
                f"sum at the {clip_end}", noise, mechanism.move / float(amount(mechanism.answers.epsilon))
            )
        else:
            item = Measured(row=0, plays=list(range(1, persons + 1)), values=[value] * persons)
            samples[sign] = y = np.array([answer.y for answer in release([item] * draws, spec)]) - centre
            reach = bound
            fits += _of_offsets(f"answer at the {clip_end}", answers, y, sign, persons)
    return fits, _least_epsilon(samples[-1], samples[1], (-reach, reach), 0.0)


def _least_epsilon(first: Vector, second: Vector, ends: tuple[float, float], delta: float) -> float:
    """A lower bound on epsilon, by how many draws about either neighbour are above each end, and above the middle."""
    limits = (ends[0], sum(ends) / 2, ends[1])
    return max(implied(first, second, limit, delta, _ALPHA / len(limits)) for limit in limits)


def _of_offsets(name: str, answers: wire.ConcreteAnswers, offsets: Vector, sign: int, persons: int) -> list[Fit]:
    """Of answers about a mean of ``persons`` measurements that are all at ``sign`` times the bound of y."""
    from scipy import stats

    bound, epsilon, draws = getattr(answers, "bound", 1.0), float(getattr(answers, "epsilon", 0)), len(offsets)
    if isinstance(answers, wire.LaplaceAnswers):
        scale = 2 * bound / persons / epsilon
        noise = (offsets - sign * bound) / scale
        fits = [*_of_uniform(name, stats.laplace.cdf(noise))]
        fits.append(_two_sided(f"{name}: scale", stats.gamma(draws), np.abs(noise).sum()))
        is_exact = abs(answers.centre) < 1_000 * scale  # else the sum with the centre lost the low bits
        return [*fits, _low_bits(offsets, lattice(scale))] if is_exact else fits
    if isinstance(answers, wire.OneBitAnswers):
        odds = 1 + persons * math.expm1(epsilon)
        size, share = bound * (odds + 1) / (odds - 1), 0.5 + sign * (odds / (1 + odds) - 0.5)
        up = np.asarray(offsets > 0, dtype=np.int64)
        if not np.allclose(np.abs(offsets), size, rtol=1e-6, atol=0):
            return [Fit(f"{name}: sizes", 0.0)]
        centred: Vector = (up - share) / np.sqrt(share * (1 - share))
        return [_of_cells(name, up, 2, [1 - share, share]), _successive(name, centred)]
    root = math.exp(epsilon / 2)
    reach = (root + 1) / (root - 1)
    low, width, inside = (reach + 1) / 2 * sign - (reach - 1) / 2, reach - 1, root / (root + 1)
    y, outside = offsets / bound, (1 - inside) / (reach + 1)
    below = inside / width * np.clip(y - low, 0, width)
    below += outside * (np.clip(y, -reach, low) + reach + np.clip(y - low - width, 0, None))
    in_window = np.asarray((y >= low) & (y <= low + width), dtype=np.int64)
    return [*_of_uniform(name, below), _of_cells(f"{name}: window", in_window, 2, [1 - inside, inside])]


def _of_integers(name: str, noise: ArrayLike, scale: float) -> list[Fit]:
    """Of discrete Laplace noise. A uniform number spreads each integer over the step of its distribution function."""
    from scipy import stats

    k = np.asarray(noise, dtype=np.int64)
    size, q = np.abs(k).astype(float), math.exp(-1 / scale)
    tail = np.exp(-size / scale) / (1 + q)
    u = np.where(k < 0, tail, 1 - q * tail) - np.random.default_rng().random(len(k)) * (1 - q) * tail
    mean, square = 1 / math.sinh(1 / scale), 0.5 / math.sinh(0.5 / scale) ** 2
    of_mean = stats.norm(mean, math.sqrt((square - mean**2) / len(k)))
    even = (1 + q**2) / (1 + q) ** 2
    scaled = _two_sided(f"{name}: scale", of_mean, size.mean())
    return [*_of_uniform(name, u), scaled, _of_cells(f"{name}: low bit", k & 1, 2, [even, 1 - even])]


def _of_uniform(name: str, u: Vector) -> list[Fit]:
    """Of numbers that are independent and uniform in [0, 1] if the law holds."""
    from scipy import stats

    centred = math.sqrt(12) * (u - 0.5)
    return [
        _fit(f"{name}: law", stats.kstest(u, "uniform").pvalue),
        _two_sided(f"{name}: mean", stats.norm, centred.mean() * math.sqrt(len(u))),
        _successive(name, centred),
    ]


def _successive(name: str, centred: Vector) -> Fit:
    """Of draws of mean 0 and variance 1: the correlation of each with the next."""
    from scipy import stats

    total = float((centred[1:] * centred[:-1]).sum()) / math.sqrt(len(centred) - 1)
    return _two_sided(f"{name}: successive draws", stats.norm, total)


def _low_bits(values: Matrix | Vector, exponent: int) -> Fit:
    """Of numbers on the lattice 2^``exponent``: their two lowest bits."""
    return _of_cells("low bits", np.rint(np.ldexp(values, -exponent)).astype(np.int64).ravel() & 3, 4)


def _of_cells(name: str, cells: NDArray[np.int64], number: int, shares: list[float] | None = None) -> Fit:
    """Chi-square of how often each of ``number`` cells was drawn; all are equally likely unless ``shares`` says so."""
    from scipy import stats

    expected = np.full(number, 1 / number) if shares is None else np.array(shares)
    return _fit(name, stats.chisquare(np.bincount(cells, minlength=number), len(cells) * expected).pvalue)


def _two_sided(name: str, law: Any, value: float) -> Fit:
    return _fit(name, min(1.0, 2 * min(law.cdf(value), law.sf(value))))


def _fit(name: str, p: float) -> Fit:
    """A p that is no number fits nothing, as where there is no noise."""
    return Fit(name, 0.0 if math.isnan(p) else float(p))


def audit_study(context: ServiceContext, study_id: str, draws: int) -> Json:
    """Draw the noise of a study's release and answers as this program would now, and sign how it fits its laws."""
    with context.database.read() as db:
        view = owner_view(db, study_id)
        current = release_status(db, view.spec, view.report)
    spec, answers = view.spec, wire.concrete_answers(view.spec.answers)
    mechanism = mechanism_of(spec, current.release)
    release: dict[str, Any] = {"part": "release", "mechanism": mechanism.name, "version": mechanism.version}
    if isinstance(current.release, wire.SoundRelease) and current.status == "sound":
        delta = failure(current.release)
        release |= _in_fields(current.release.epsilon, delta, *of_release(spec, mechanism, draws, delta))
    answered: dict[str, Any] = {"part": "answers", "mechanism": answers.mechanism}
    if not isinstance(answers, wire.NoAnswerNoise):
        answered |= _in_fields(answers.epsilon, 0.0, *of_answers(spec, draws))
    trail = context.audit_trail
    transcript = {
        "study_id": view.id,
        "spec_sha256": view.spec_sha256,
        "made_at": context.clock().isoformat(),
        "log_key": context.signer.verifier.vkey,
        "checkpoint": trail.sign(trail.head()),
        "versions": {name: _version(name) for name in ("blindopt-services", "opendp", "dp-accounting", "numpy")}
        | {"python": platform.python_version()},
        "draws": draws,
        "p_min": P_MIN,
        "alpha": _ALPHA,
        "parts": [release, answered],
        "contradicts": release.get("contradicts", False) or answered.get("contradicts", False),
    }
    signature = signed_documents.sign(context.signer, wire.AUDIT_TITLE, transcript)
    return {"transcript": transcript, "signature": signature}


def _in_fields(epsilon: str, delta: float, fits: list[Fit], least: float) -> dict[str, Any]:
    contradicts = any(fit.contradicts for fit in fits) or least > float(epsilon)
    return {
        "claimed": {"epsilon": epsilon, "delta": delta},
        "statistics": [{"statistic": fit.statistic, "p": fit.p} for fit in fits],
        "least_epsilon": least,
        "contradicts": contradicts,
        "verdict": "contradicts the law" if contradicts else "fits the law",
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a checkout on the path
        return "checkout"
