"""What is in deploy/: units, chart, alert rules and dashboard agree with the services, and with their own tools.

`make deploy-check` brings the tools, and sets BLINDOPT_DEPLOY to their folder. Without them those tests are skipped.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from docs.website.operating import metrics_page

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "blindopt"
TOOLS = os.environ.get("BLINDOPT_DEPLOY")
RENDERED = {"example.yaml": ["-f", str(DEPLOY / "helm" / "example-values.yaml")], "default.yaml": []}
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXPOSURE_MAX = 2.5
METRIC = re.compile(r"\bblindopt_[a-z_]+\b")
with_tools = pytest.mark.skipif(TOOLS is None, reason="make deploy-check brings helm, promtool and the schemas")


def _tool(*names):
    """A program of these names in the folder of tools, else on this machine."""
    paths = [Path(TOOLS or "/nonexistent", name) for name in names]
    return next((str(path) for path in paths if path.exists()), shutil.which(Path(names[-1]).name))


def _run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **more)
    return done.returncode, done.stdout + done.stderr


def _manifests(name):
    return [each for each in yaml.safe_load_all((DEPLOY / "helm" / "rendered" / name).read_text()) if each]


def _workloads():
    return [(name, each) for name in RENDERED for each in _manifests(name) if each["kind"] == "Deployment"]


# --- containers ---------------------------------------------------------------------------------------------


def test_the_base_of_an_image_is_named_by_its_digest():
    """Each stage begins there or at an earlier one; whoever gives BASE_IMAGE, as Compose does, says which base."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^ARG BASE_IMAGE=python:3\.11-\S+@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    stages = re.findall(r"^FROM (\S+) AS (\S+)", text, re.MULTILINE)
    assert len(stages) == text.count("\nFROM ")
    assert {base for base, _ in stages} <= {"${BASE_IMAGE}", *(name for _, name in stages)}


def test_a_health_check_of_a_container_is_a_command_of_its_image():
    """Images have no scripts of the distributions: a check begins as the entry point of its image does."""
    stages = re.split(r"^FROM \S+ AS ", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    entries = {
        stage.split("\n", 1)[0]: json.loads(entry[1])
        for stage in stages
        if (entry := re.search(r"^ENTRYPOINT (\[.*\])$", stage, re.MULTILINE))
    }
    checks = []
    for file in (ROOT / "docker-compose.yml", *sorted((DEPLOY / "compose").glob("*.yml"))):
        for service in yaml.safe_load(file.read_text(encoding="utf-8")).get("services", {}).values():
            target = service.get("image", "").removeprefix("blindopt-")
            check = service.get("healthcheck", {}).get("test")
            if target in ("curator", "modeler") and check is not None:
                checks.append((file.name, check, ["CMD", *entries[target], "healthy"]))
    assert len(checks) >= 4
    assert [(name, check) for name, check, right in checks if check != right] == []


# --- Kubernetes ---------------------------------------------------------------------------------------------


def test_each_workload_is_one_locked_down_process():
    workloads = _workloads()
    assert [name for name, _ in workloads] == ["example.yaml", "example.yaml", "default.yaml"]
    for _, workload in workloads:
        assert workload["spec"]["replicas"] == 1
        assert workload["spec"]["strategy"] == {"type": "Recreate"}
        pod = workload["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["terminationGracePeriodSeconds"] > 20
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not container["image"].endswith(":latest")
        startup = container["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] == 600
        assert {"limits", "requests"} <= set(container["resources"])


def test_network_policies_deny_all_but_what_is_named():
    policies = {each["metadata"]["name"]: each["spec"] for each in _manifests("example.yaml") if _is_policy(each)}
    assert set(policies) == {"blindopt-curator", "blindopt-modeler"}
    for policy in policies.values():
        assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policies["blindopt-modeler"]["ingress"] == []
    blocks = [
        to["ipBlock"]["cidr"] for rule in policies["blindopt-modeler"]["egress"] for to in rule["to"] if "ipBlock" in to
    ]
    assert blocks == ["192.0.2.8/32"]
    (default,) = [each["spec"] for each in _manifests("default.yaml") if _is_policy(each)]
    assert (default["ingress"], default["egress"]) == ([], [])


def _is_policy(manifest):
    return manifest["kind"] == "NetworkPolicy"


def test_every_setting_of_the_chart_is_one_of_the_service():
    from curator_service.settings import Settings as CuratorSettings
    from modeler_service.settings import Settings as ModelerSettings

    names = {cls.variable(field) for cls in (CuratorSettings, ModelerSettings) for field in cls.model_fields}
    for _, workload in _workloads():
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        assert {each["name"] for each in container["env"]} <= names


@with_tools
@pytest.mark.parametrize("name", RENDERED)
def test_the_rendered_chart_in_the_repository_is_that_of_the_templates(name):
    status, output = _run(_tool("bin/helm", "helm"), "template", "blindopt", str(CHART), *RENDERED[name])
    assert status == 0, output
    assert output == (DEPLOY / "helm" / "rendered" / name).read_text()


@with_tools
@pytest.mark.parametrize("name", RENDERED)
def test_rendered_manifests_fit_the_schemas_of_kubernetes(name, tmp_path):
    """The control: the same manifests with a misspelt field do not."""
    check = [sys.executable, "-m", "kubernetes_validate", "--strict"]
    environment = os.environ | {"PYTHONPATH": str(TOOLS)}
    path = DEPLOY / "helm" / "rendered" / name
    status, output = _run(*check, str(path), env=environment)
    assert status == 0, output
    wrong = tmp_path / name
    wrong.write_text(path.read_text().replace("automountServiceAccountToken", "automountServiceAccountTokens"))
    assert _run(*check, str(wrong), env=environment)[0] != 0


@with_tools
@pytest.mark.parametrize(
    "wrong",
    [
        "curator.image.tag=latest",
        "curator.settings.DATA_DIR=/x",
        "curator.replicas=2",
        "curator.ingress.enabled=true",
        "curator.image.digest=sha256:1",
    ],
)
def test_the_chart_refuses_values_that_are_wrong(wrong):
    assert _run(_tool("bin/helm", "helm"), "template", "blindopt", str(CHART), "--set", wrong)[0] != 0


# --- systemd ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_are_valid_and_expose_little(unit, tmp_path):
    """The control: without its sandbox the same unit is over the limit."""
    installed = tmp_path / unit.name
    installed.write_text(unit.read_text().replace("/opt/blindopt/bin/" + unit.stem, sys.executable))
    status, output = _run("systemd-analyze", "verify", str(installed))
    assert (status, output) == (0, "")
    assert _exposure(installed) <= EXPOSURE_MAX
    bare = tmp_path / f"bare-{unit.name}"
    bare.write_text(re.sub(r"(?m)^(Protect|Private|Restrict|System|Capab|NoNew).*\n", "", installed.read_text()))
    assert _exposure(bare) > EXPOSURE_MAX


def _exposure(unit):
    status, output = _run("systemd-analyze", "security", "--offline=true", str(unit))
    assert status == 0, output
    return float(re.search(r"Overall exposure level for \S+: (\S+)", output).group(1))


def test_there_is_a_unit_and_a_user_for_each_service():
    assert [unit.stem for unit in UNITS] == ["blindopt-curator", "blindopt-modeler"]
    users = (DEPLOY / "systemd" / "blindopt.sysusers.conf").read_text()
    for unit in UNITS:
        assert f"u {unit.stem} " in users
        assert f"User={unit.stem}\n" in unit.read_text()


# --- Prometheus and Grafana ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def metrics():
    """The names of all metrics, with those that a histogram has."""
    names = set(METRIC.findall(metrics_page()))
    return names | {f"{name}_{part}" for name in names for part in ("bucket", "sum", "count")}


def test_rules_and_dashboard_use_metrics_that_there_are(metrics):
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"][0]["rules"]
    dashboard = json.loads((DEPLOY / "grafana" / "blindopt.json").read_text())
    used = [rule["expr"] for rule in rules] + [t["expr"] for p in dashboard["panels"] for t in p["targets"]]
    assert set(METRIC.findall(" ".join(used))) <= metrics
    tested = yaml.safe_load((DEPLOY / "prometheus" / "rules_test.yml").read_text())["tests"]
    alerts = {rule["alert"] for rule in rules}
    assert {each["name"] for each in tested} == alerts | {"all is well: none fires"}
    for each in tested:  # it fires in its own case alone
        fired = {rule["alertname"] for rule in each["alert_rule_test"] if rule["exp_alerts"]}
        assert fired == {each["name"]} & alerts
        assert {rule["alertname"] for rule in each["alert_rule_test"]} == alerts


@with_tools
def test_promtool_accepts_the_rules_and_their_tests():
    promtool, folder = _tool("usr/bin/promtool", "promtool"), DEPLOY / "prometheus"
    for command in (("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")):
        status, output = _run(promtool, *command, cwd=folder)
        assert status == 0, output


# --- bills of materials -------------------------------------------------------------------------------------


@with_tools
@pytest.mark.parametrize("image", ["curator", "modeler", "demo"])
def test_the_bill_of_materials_names_what_is_locked(image):
    bill = json.loads((ROOT / "out" / "sbom" / f"{image}.cdx.json").read_text())
    named = {f"{each['name']}=={each['version']}" for each in bill["components"]}
    locked = re.findall(r"(?m)^([\w.\-]+==[^ \\;]+)", (ROOT / "requirements" / f"{image}.txt").read_text())
    assert named == set(locked)
    assert "timestamp" not in bill.get("metadata", {})
