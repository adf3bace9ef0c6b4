"""Both distributions as wheels: what they hold and promise, and that what is in them runs from an empty folder.

In the gate each wheel is unpacked beside the installed dependencies. `make wheel-check` installs both into empty
environments from the package index.
"""

import email
import os
import re
import subprocess
import sys
import time
import tomllib
import zipfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import httpx
import pytest

from blindopt.version import VERSION
from tests.conftest import Service
from tests.docs.snippets import run_by

ROOT = Path(__file__).parent.parent
REAL = os.environ.get("BLINDOPT_WHEELS") == "install"
SERVERS = {"fastapi", "starlette", "uvicorn", "sqlalchemy", "jinja2", "typer", "argon2-cffi"}
NOISE = {"opendp", "dp-accounting"}
"""For an owner alone."""
PACKAGES = {"blindopt": {"blindopt"}, "blindopt_services": {"curator_service", "modeler_service", "service_kit"}}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Both wheels by the name of their distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    for project in (ROOT / "shared", ROOT):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(command, cwd=project, check=True, capture_output=True, text=True)
    return {path.name.split("-")[0]: path for path in folder.glob("*.whl")}


def _read(wheel, suffix):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(f".dist-info/{suffix}")]
        return archive.read(name).decode()


def test_each_wheel_holds_its_packages_typed_and_licensed(wheels):
    assert wheels.keys() == PACKAGES.keys()
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            files = archive.namelist()
        packages = {file.split("/")[0] for file in files if ".dist-info/" not in file}
        assert packages == PACKAGES[name]
        assert {f"{package}/py.typed" for package in packages} <= set(files)
        assert [file for file in files if file.endswith("/licenses/LICENSE")]
        assert "Apache License" in _read(wheel, "licenses/LICENSE")
        for package in packages:
            (folder,) = (path / package for path in (ROOT, ROOT / "shared") if (path / package).is_dir())
            own = {path.relative_to(folder.parent) for path in folder.rglob("*") if path.is_file()}
            assert {path.as_posix() for path in own if "__pycache__" not in path.parts} - set(files) == set()


def test_what_a_package_index_shows_of_each_wheel(wheels):
    for name, wheel in wheels.items():
        shown = email.message_from_string(_read(wheel, "METADATA"))
        assert shown["Name"].replace("-", "_") == name
        assert (shown["Version"], shown["License-Expression"]) == (VERSION, "Apache-2.0")
        assert shown["Author"] == "The blindopt authors"
        assert len(shown.get_all("Project-URL")) >= 3
        assert "Typing :: Typed" in shown.get_all("Classifier")
        links = re.findall(r"\]\(([^)]+)\)", shown.get_payload())
        assert links
        assert [link for link in links if not link.startswith("https://")] == []


def _required(wheel, extra="none"):
    """The distributions that a wheel needs with one of its extras, and those that these need."""
    needs = email.message_from_string(_read(wheel, "METADATA")).get_all("Requires-Dist")
    names, waiting = set(), [line.replace(f"extra == '{extra}'", "") for line in needs]
    while waiting:
        line = waiting.pop()
        name = re.match(r"[\w.-]+", line)[0].lower().replace("_", "-")
        if "extra ==" in line or name in names:
            continue
        try:
            waiting += metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        names.add(name)
    return names


def test_the_library_needs_no_server_and_no_database_and_a_vendor_no_noise_library(wheels):
    library = _required(wheels["blindopt"])
    assert library >= {"numpy", "scipy", "httpx", "pydantic", "cryptography", "rfc8785"}
    assert library & (SERVERS | NOISE) == set()
    vendors = _required(wheels["blindopt_services"])
    assert vendors >= SERVERS | {"blindopt"}
    assert vendors & NOISE == set()
    assert _required(wheels["blindopt_services"], "curator") >= SERVERS | NOISE


INDEXED = re.compile(
    r"pip3? (?:install|download)[^\n`#]*?[\s'\"]blindopt(?:-services)?(?=[\['\"\s`=]|$)"
    r"|\binstall blindopt(?:-services)?\[",
    re.MULTILINE,
)
"""What would install one of our names from an index, where anybody may have registered it."""


def _install_lines():
    """The commands that install: they stand in one document."""
    (block,) = run_by("tests/test_wheels.py")
    return [line.partition(" #")[0] for line in block.text.splitlines()]


def test_the_install_command_stands_once_and_nothing_installs_our_names_from_an_index():
    installing = [line for line in _install_lines() if "pip install" in line]
    assert [re.findall(r"'?(\./shared|\.)(?:\[([\w,]+)\])?'?(?= |$)", line) for line in installing] == [
        [("./shared", ""), (".", "curator")]
    ]
    assert "curator" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    texts = [name for name in listed if name.endswith((".md", ".py", ".ipynb", ".html", ".service", ".yaml", ".yml"))]
    read = {name: (ROOT / name).read_text(encoding="utf-8") for name in texts if (ROOT / name).is_file()}
    past = ("CHANGELOG.md", "benchmarks/results/", "docs/developers/decisions/", "tests/test_wheels.py")
    assert {
        name: INDEXED.findall(text) for name, text in read.items() if not name.startswith(past) and INDEXED.search(text)
    } == {}
    for control in (
        "pip install blindopt",
        "pip install 'blindopt-services[curator]'",
        "bin/pip install -q blindopt\n",
        "it needs more: install blindopt-services[metrics]",
    ):
        assert INDEXED.search(control)
    assert not INDEXED.search("pip install ./shared '.[curator]' # blindopt")


@pytest.mark.skipif(not REAL, reason="`make wheel-check` installs from a checkout, as the page says")
def test_the_install_command_gives_both_services(tmp_path):
    script = "\n".join(["set -e", *_install_lines()]).replace("blindopt-env", str(tmp_path / "environment"))
    subprocess.run(["bash", "-c", script], cwd=ROOT, check=True, env=_environment(tmp_path))
    for name in ("curator", "modeler"):
        command = [tmp_path / "environment" / "bin" / f"blindopt-{name}", "--help"]
        assert "serve" in subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout


@pytest.mark.parametrize("package", ["opendp", "dp_accounting"])
def test_an_owner_without_the_noise_libraries_reads_what_to_install(package, tmp_path):
    program = f"import runpy, sys; sys.modules[{package!r}] = None; "
    program += "runpy.run_module('curator_service', run_name='__main__')"
    environment = os.environ | {"BLINDOPT_CURATOR_DATA_DIR": str(tmp_path / "data")}
    command = [sys.executable, "-c", program, "serve"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (
        1,
        f"error: this needs {package}: in a checkout of blindopt, pip install ./shared '.[curator]'\n",
    )


def _installed(folder, *wheels, extra=""):
    """Python, and a folder of commands, of an environment with wheels in it; ``extra`` is one of the first."""
    if REAL:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = folder / "bin" / "python"
        options = ["--find-links", str(wheels[0].parent)]
    else:
        python, options = Path(sys.executable), ["--no-deps", "--no-index", "--target", str(folder)]
    quiet = ["-qq", "--disable-pip-version-check"]
    first, *others = map(str, wheels)
    subprocess.run([python, "-m", "pip", "install", *quiet, *options, first + extra, *others], check=True)
    return python, folder / "bin"


def _environment(folder):
    own = {name: value for name, value in os.environ.items() if not name.startswith(("BLINDOPT_", "PYTHON"))}
    return own if REAL else own | {"PYTHONPATH": str(folder)}


def test_the_library_alone_is_imported_without_loading_what_it_stands_on(wheels, tmp_path):
    python, _ = _installed(tmp_path / "library", wheels["blindopt"])
    empty = tmp_path / "empty"
    empty.mkdir()
    code = (
        "import sys, time, blindopt; cpu = time.process_time(); heavy = {'numpy', 'scipy', 'httpx', 'pydantic'};"
        "print(blindopt.__file__); print(sorted(heavy & sys.modules.keys())); print(cpu)"
    )
    run = subprocess.run(
        [python, "-c", code], env=_environment(tmp_path / "library"), cwd=empty, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    file, heavy, cpu = run.stdout.splitlines()
    assert Path(file).is_relative_to(tmp_path / "library")
    assert heavy == "[]"
    if REAL:
        print(f"import blindopt: {cpu} s of processor time")
        listed = subprocess.run([python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True)
        assert {line.split("==")[0].lower() for line in listed.stdout.splitlines()} & (SERVERS | NOISE) == set()
        assert float(cpu) < 0.5


def _page(url, process):
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(httpx.TransportError):
            if (page := httpx.get(url, timeout=10)).status_code != 503:  # with PostgreSQL, a standby at first
                return page
        time.sleep(0.1)
    raise AssertionError(f"nothing answers at {url}: {process.poll()}")


@pytest.mark.slow(sibling="test_each_wheel_holds_its_packages_typed_and_licensed")
def test_both_commands_serve_their_consoles_from_an_empty_folder(wheels, tmp_path):
    folder, empty = tmp_path / "services", tmp_path / "empty"
    _, commands = _installed(folder, wheels["blindopt_services"], wheels["blindopt"], extra="[curator]")
    empty.mkdir()
    for name in ("curator", "modeler"):
        service = Service(name, tmp_path / name)
        process = subprocess.Popen(
            [commands / f"blindopt-{name}", "serve"],
            env=_environment(folder) | {k: v for k, v in service.environment.items() if k.startswith("BLINDOPT_")},
            cwd=empty,
            stderr=subprocess.PIPE,
        )
        try:
            page = _page(f"{service.url}/console/login", process)
            assert page.status_code == 200
            assert name.capitalize() in page.text
            (style,) = re.findall(r'href="([^"]+console[^"]*\.css[^"]*)"', page.text)
            assert httpx.get(service.url + style).status_code == 200
        finally:
            process.terminate()
            process.communicate(timeout=240)
        assert list(empty.iterdir()) == []


@pytest.mark.skipif(not REAL, reason="`make wheel-check` installs; test_notebooks.py runs the same notebooks")
def test_an_owners_and_a_vendors_notebook_run_across_two_environments(wheels, tmp_path):
    """The vendor's environment has the library alone; the services have one of their own."""
    python, _ = _installed(tmp_path / "library", wheels["blindopt"], extra="[notebook]")
    _, commands = _installed(tmp_path / "services", wheels["blindopt_services"], wheels["blindopt"], extra="[curator]")
    work = tmp_path / "work"
    work.mkdir()
    environment, processes = _environment(tmp_path / "library") | {"MPLBACKEND": "Agg"}, []
    try:
        for name in ("curator", "modeler"):
            service = Service(name, tmp_path / name)
            settings = {k: v for k, v in service.environment.items() if k.startswith("BLINDOPT_")}
            own = _environment(tmp_path / "services") | settings
            (tmp_path / name).mkdir()
            processes.append(subprocess.Popen([commands / f"blindopt-{name}", "serve"], env=own, cwd=work))
            assert _page(f"{service.url}/healthz", processes[-1]).status_code == 200
            prefix = f"BLINDOPT_{name.upper()}"
            environment |= {f"{prefix}_URL": service.url, f"{prefix}_TOKEN_FILE": str(tmp_path / name / "first-token")}
        notebooks = sorted((ROOT / "docs" / "notebooks").glob("[ab]-*.ipynb"))
        assert len(notebooks) == 2
        for path in notebooks:
            command = [python, ROOT / "docs" / "website" / "run_notebook.py", path, work]
            done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    finally:
        for process in processes:
            process.terminate()
            process.wait(timeout=240)
