"""Promises about the source that neither the type checker, the linter nor the import contracts can hold."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from blindopt.wire.base import description_of
from curator_service.settings import Settings as CuratorSettings
from modeler_service.settings import Settings as ModelerSettings
from tests import postgres

ROOT = Path(__file__).parent.parent
COMMANDS = ROOT / "shared/service_kit/cli"
PACKAGES = ("shared", "curator_service", "modeler_service", "demo")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def _name(path):
    """The dotted name: ``shared`` is a folder on the path, not a package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("shared.").removesuffix(".__init__")


@cache
def _nodes(path):
    """Imports, calls and attributes of a file, at any depth of it."""
    return [
        n
        for n in ast.walk(ast.parse(path.read_text()))
        if isinstance(n, ast.Import | ast.ImportFrom | ast.Call | ast.Attribute)
    ]


@cache
def _imports(path):
    """Every imported module; ``from a import b`` counts as a and as a.b."""
    names = set()
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _importers(package):
    """The modules that import a package or anything inside it."""
    return {
        _name(path)
        for path in FILES
        if any(name == package or name.startswith(f"{package}.") for name in _imports(path))
    }


@cache
def _attributes(path):
    """Dotted names that are read, such as ``np.random.default_rng``."""
    return {ast.unparse(node) for node in _nodes(path) if isinstance(node, ast.Attribute)}


def _in(package, names):
    return {name for name in names if name == package or name.startswith(f"{package}.")}


def test_there_is_source_to_read():
    assert len(FILES) > 50
    assert {_name(path) for path in FILES} >= {
        "blindopt.client",
        "curator_service.privacy.noise",
        "modeler_service.runs.scheduler",
    }
    assert "blindopt.errors" in _imports(ROOT / "shared/blindopt/client/study.py")


def test_no_import_goes_in_a_circle():
    """Imports for type checkers included."""
    packages = ("blindopt", "service_kit", "curator_service", "modeler_service", "demo")
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=False, cache_dir=None)
    assert graph.modules
    TopologicalSorter({m: graph.find_modules_directly_imported_by(m) for m in graph.modules}).prepare()


SCHEDULING = (
    "service_kit.background",
    "service_kit.runner",
    "service_kit.store",
    "service_kit.web",
    "service_kit.listener",
    "curator_service.links",
)
STARTS = {"Thread", "Timer", "ThreadPoolExecutor", "ProcessPoolExecutor", "Process", "create_task", "ensure_future"}
STILL_ELSEWHERE = {
    "curator_service.console.studies",
    "curator_service.privacy.noise.parallel",
    "modeler_service.engines.cluster",
    "modeler_service.engines.remote",
    "service_kit.cli.main",
}


def _starts(path):
    """The threads, timers, pools and tasks that a file starts, as they are called."""
    calls = [ast.unparse(node.func) for node in _nodes(path) if isinstance(node, ast.Call)]
    return [call for call in calls if call.rpartition(".")[2] in STARTS]


def test_few_modules_of_the_services_start_a_thread_or_a_task():
    services = [path for path in FILES if _name(path).startswith(("curator_service", "modeler_service", "service_kit"))]
    starting = {_name(path) for path in services if _starts(path)}
    allowed = {name for package in SCHEDULING for name in _in(package, starting)} | {"modeler_service.runs.scheduler"}
    assert allowed <= starting
    assert starting - allowed <= STILL_ELSEWHERE


BLOCKING = {"read", "read_row", "write", "look", "verified"}


def _in_loop(node):
    """What a coroutine runs itself: functions within it may run in a thread."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _in_loop(child)


def _waits_of_coroutines(source):
    """Calls in coroutines that wait for the database on the event loop's own thread."""
    return [
        ast.unparse(call.func)
        for coroutine in ast.walk(ast.parse(source))
        if isinstance(coroutine, ast.AsyncFunctionDef)
        for call in _in_loop(coroutine)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if call.func.attr in BLOCKING and ast.unparse(call.func.value).endswith("database")
    ]


def test_no_coroutine_waits_for_the_database_on_the_event_loop():
    assert {_name(path): waits for path in FILES if (waits := _waits_of_coroutines(path.read_text("utf-8")))} == {}
    source = "async def f(self):\n    with self._context.database.read() as db:\n        database.read_row(S)"
    assert _waits_of_coroutines(source) == ["self._context.database.read", "database.read_row"]


def test_no_array_is_loaded_or_saved_with_pickle():
    calls = 0
    for path in FILES:
        for node in _nodes(path):
            match node:
                case ast.Call(func=ast.Attribute(attr="load" | "save" | "write_array")):
                    called = ast.unparse(node.func)
                case _:
                    continue
            if called in ("np.load", "np.save", "numpy.load", "numpy.save", "np.lib.format.write_array"):
                calls += 1
                said = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert said.get("allow_pickle") == "False", (path, ast.unparse(node))
    assert calls >= 3


def test_the_curator_draws_from_no_generator_that_has_a_seed():
    """But for attackers and simulations: what they draw is thrown away, and nothing that releases imports them."""
    curator = [path for path in FILES if path.is_relative_to(ROOT / "curator_service")]
    for package, importers in {
        "curator_service.releases.attacks": {"curator_service.cli", "curator_service.releases.attack_preview"},
        "curator_service.releases.forecasts": {"curator_service.releases.forecast_jobs"},
    }.items():
        inside = [path for path in curator if _in(package, {_name(path)})]
        assert any("np.random" in attribute for path in inside for attribute in _attributes(path))
        outside = _importers(package) - {_name(path) for path in inside}
        assert outside == importers
        curator = [path for path in curator if path not in inside]
    # What tuning simulates is public and decides how much noise there is: it knows nothing that reads a score.
    # A search through noise may be simulated on the owner's records: what leaves its module is one number.
    simulations = [ROOT / "curator_service/tuning/methods/simulation.py"]
    simulations += [ROOT / "curator_service/privacy/search_simulation.py"]
    for simulation in simulations:
        assert any("np.random" in attribute for attribute in _attributes(simulation))
        imported = set(_imports(simulation))
        assert _in("blindopt", imported) != _in("curator_service", imported) == set()
        curator.remove(simulation)
    assert _importers("curator_service.privacy.search_simulation") == {"curator_service.privacy.search_noise"}
    module = ast.parse(simulations[1].read_text(encoding="utf-8"))
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    assert {ast.unparse(node.returns) for node in functions if not node.name.startswith("_")} == {"float"}
    for path in curator:
        for name in (*_imports(path), *_attributes(path)):
            assert not name.startswith(("numpy.random", "np.random", "scipy.stats")), (path, name)
            assert ".random." not in name, (path, name)
    assert _in("curator_service", _importers("random")) == {"curator_service.privacy.entropy"}
    entropy = ROOT / "curator_service/privacy/entropy.py"
    used = {name.partition("(")[0] for name in _attributes(entropy) if name.startswith("random.")}
    assert used - {"random.SystemRandom"} == set()
    assert "random.SystemRandom" in used


def test_only_app_and_command_line_read_the_environment():
    """The demo is a program of its own; a library that reads settings by itself cannot be tested."""
    for path in FILES:
        if path.is_relative_to(ROOT / "demo") or path == COMMANDS / "program.py":
            continue
        for name in _attributes(path):
            assert name not in ("os.environ", "os.getenv", "os.environ.get"), path


@pytest.mark.parametrize("settings", [CuratorSettings, ModelerSettings])
def test_every_setting_is_described(settings):
    assert settings.model_fields
    assert [name for name in settings.model_fields if not (description_of(settings, name) or "").endswith(".")] == []


CONSOLES = ("shared/service_kit/console", "curator_service/console", "modeler_service/console")
TEMPLATES = [path for folder in CONSOLES for path in sorted((ROOT / folder / "templates").rglob("*.html"))]
FORBIDDEN = {
    "markup that is not escaped": r"\|\s*safe\b|autoescape",
    "an inline style": r"\bstyle\s*=|<style",
    "an inline handler": r"\son[a-z]+\s*=",
    "an inline script": r"<script(?![^>]*\bsrc=)|javascript:",
    "an outside resource": r"(?:src|href|action)\s*=\s*[\"'](?:https?:)?//",
    "a mark of a merge": r"(?m)^(?:<{7}|={7}$|>{7})",
}


def _faults(text):
    return [what for what, pattern in FORBIDDEN.items() if re.search(pattern, text)]


def test_no_template_holds_what_the_policy_forbids():
    assert len(TEMPLATES) > 50
    assert {path: faults for path in TEMPLATES if (faults := _faults(path.read_text()))} == {}


def test_the_look_at_templates_finds_what_it_looks_for():
    for text in (
        "{{ name | safe }}",
        '<p style="color: red">',
        "<style>p {}</style>",
        '<a onclick="x()">',
        "<script>x()</script>",
        '<a href="javascript:x()">',
        '<img src="//outside.example/x.png">',
        '<script src="https://outside.example/x.js">',
        "<p>one</p>\n=======\n<p>another</p>",
    ):
        assert _faults(text), text
    assert _faults('<script type="module" src="/console/static/x.js"></script> {{ ui.text(form, "one") }}') == []


def _classes(path):
    """The classes that a style sheet knows."""
    return set(re.findall(r"\.([a-z][\w-]*)", re.sub(r"/\*.*?\*/|\{[^}]*\}", "", path.read_text(), flags=re.S)))


def test_what_both_consoles_show_has_its_style_in_both():
    """A class of a shared template that the curator's style sheet alone knows would be bare at the modeler."""
    templates = [path.read_text() for path in TEMPLATES if path.is_relative_to(ROOT / CONSOLES[0])]
    shown = {name for text in templates for names in re.findall(r'class="([^"{]*)', text) for name in names.split()}
    curator = _classes(ROOT / "curator_service/console/static/curator.css")
    assert "card" in shown
    assert shown & curator <= _classes(ROOT / "shared/service_kit/console/static/console.css")


def test_no_static_file_asks_for_another_host():
    files = [path for folder in CONSOLES for path in (ROOT / folder / "static").rglob("*.*")]
    assert len(files) >= 6
    for path in files:
        text = path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?:|url\(|@import|\beval\b|new Function|innerHTML", text), path


def test_what_does_not_run_on_postgresql_exists_and_says_why():
    for name, why in postgres.SQLITE_ONLY.items():
        file, _, test = name.partition("::")
        (path,) = (path for path in (ROOT / "tests").rglob(file))
        assert not test or f"def {test.partition('[')[0]}(" in path.read_text(), name
        assert why, name
