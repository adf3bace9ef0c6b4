"""The notation table of ``blindopt.gp``, compared with the code: names, shapes, and units by scaling an example."""

import inspect
import re

import numpy as np
import pytest

from blindopt import gp
from blindopt.gp.acquisition import UpperConfidenceBound
from blindopt.gp.arms import ArmsPosterior
from blindopt.gp.candidates import Candidates, Scaling
from blindopt.gp.deblurred import Deblurred
from blindopt.gp.features import Root, features
from blindopt.gp.kernels import Kernel, SquaredExponential
from blindopt.gp.observations import Observations
from blindopt.gp.posterior import Posterior, Solution

CLASSES = {
    c.__name__: c
    for c in (
        ArmsPosterior,
        Candidates,
        Deblurred,
        Kernel,
        Observations,
        Posterior,
        Root,
        Solution,
        UpperConfidenceBound,
    )
}
ENTRY = re.compile(r"``([\w.]+)(?:\((\w+)\))?``$")
SIZES = {"n": 9, "r": 8, "q": 2, "t": 5, "m": 3}


def table():
    """(name, parameter or None, shape, unit) of each line."""
    lines = gp.__doc__.splitlines()
    rules = [i for i, line in enumerate(lines) if line.startswith("====")]
    starts = [match.start() for match in re.finditer("=+", lines[rules[0]])]
    entries = []
    for line in lines[rules[1] + 1 : rules[2]]:
        cells = [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
        name, parameter = ENTRY.match(cells[1]).groups()
        entries.append((name, parameter, cells[2], cells[3]))
    return entries


TABLE = table()


def example(outcome=1.0, candidate=1.0):
    """Every quantity of the table, by name, where outcomes and candidates are measured in units so much smaller."""
    rng = np.random.default_rng(0)
    z = candidate * rng.normal(size=(SIZES["n"], SIZES["q"])) @ rng.normal(size=(SIZES["q"], SIZES["r"]))
    kernel = {"lengthscale": 1.5 * candidate, "variance": 2.0 * outcome**2}
    settings = {"candidates": z, "prior_mean": 0.3 * outcome, "nugget": 0.1 * outcome**2}
    settings["noise_variance"] = 0.5 * outcome**2
    posterior = Posterior(kernel=SquaredExponential(**kernel), capacity=SIZES["t"], **settings)
    for row, y in zip([2, 0, 5, 2, 7], outcome * rng.normal(size=SIZES["t"]), strict=True):
        posterior.observe(row, y)
    deblurred = Deblurred(SquaredExponential(**kernel), "gaussian", 0.2 * candidate, SIZES["r"], 0.1 * candidate)
    for row, y in zip([2, 0, 5, 3, 7], rng.normal(size=SIZES["t"]), strict=True):
        deblurred.observe(z[row], outcome * y, 0.5 * outcome**2, is_refined=row == 3)
    gram = SquaredExponential(**kernel)(z, z)
    arms, root = ArmsPosterior(gram, 0.5 * outcome**2), Root(features(gram, np.arange(SIZES["m"])), 0.5 * outcome**2)
    for arm in (1, 4, 1):
        arms.play(arm, outcome)
        root.play(arm)
    process = SquaredExponential(**kernel)
    candidates = Candidates(z, process, np.float64, Scaling.of(z, process, posterior.span))
    objects = {
        "Posterior": posterior,
        "Deblurred": deblurred,
        "Observations": posterior.observations,
        "Solution": posterior.solve(np.arange(SIZES["m"])),
        "Candidates": candidates,
        "ArmsPosterior": arms,
        "Root": root,
    }
    parameters = {f"Posterior({name})": value for name, value in settings.items()}
    parameters |= {f"Kernel({name})": value for name, value in kernel.items()}
    parameters |= {"Posterior.observe(outcome)": outcome, "UpperConfidenceBound(weight)": 9.0}
    return objects, parameters


def quantity(made, name, parameter):
    objects, parameters = made
    if parameter is not None:
        return np.asarray(parameters[f"{name}({parameter})"])
    owner, attribute = name.split(".")
    return np.asarray(getattr(objects[owner], attribute))


@pytest.mark.parametrize(("name", "parameter"), [entry[:2] for entry in TABLE if entry[1]])
def test_every_parameter_in_the_table_is_one_of_the_code(name, parameter):
    owner, _, method = name.partition(".")
    function = getattr(CLASSES[owner], method or "__init__")
    assert parameter in inspect.signature(function).parameters


@pytest.mark.parametrize(("name", "parameter", "shape", "unit"), TABLE, ids=[f"{e[0]}({e[1] or ''})" for e in TABLE])
def test_every_quantity_has_the_shape_and_the_unit_that_the_table_says(name, parameter, shape, unit):
    """Units by dimensional analysis: outcomes times 2 and candidates times 4 multiply it by powers of these."""
    plain = quantity(example(), name, parameter)
    assert plain.shape == eval(shape, {}, SIZES)
    base, _, power = unit.partition("^")
    factor = {"outcome": 2.0, "candidate": 4.0, "1": 1.0}[base] ** int(power or 1)
    scaled = quantity(example(outcome=2.0, candidate=4.0), name, parameter)
    np.testing.assert_allclose(scaled, factor * plain, rtol=1e-9, atol=1e-12)
    assert np.abs(plain).max() > 0


def test_the_table_holds_every_public_array_once():
    names = [f"{name}({parameter})" if parameter else name for name, parameter, _, _ in TABLE]
    assert len(set(names)) == len(names)
    objects, _ = example()
    arrays = {
        f"{owner}.{attribute}"
        for owner, value in objects.items()
        for attribute in dir(value)
        if not attribute.startswith("_") and isinstance(getattr(value, attribute), np.ndarray)
    }
    assert arrays - set(names) == {"ArmsPosterior.variance", "Root.counts"}  # the diagonal of C_t, and N again
