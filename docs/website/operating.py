"""Reference pages for operators and auditors: settings, metrics and gaps, from the code that defines them."""

from pydantic_core import PydanticUndefined

from blindopt.wire.base import description_of
from docs.website.rest import applications
from docs.website.tables import code, plain, table
from service_kit.web.metrics import Metrics


def settings_page() -> str:
    """Every setting of both services, with its default."""
    from curator_service.settings import Settings as CuratorSettings
    from modeler_service.settings import Settings as ModelerSettings
    from service_kit.settings import ServiceSettings

    shared = set(ServiceSettings.model_fields)
    about = (
        "Settings are environment variables. A service reads them when it starts, and refuses one that it does not "
        "have. Options of `serve` override them."
    )
    parts = ["# Settings", about]
    for name, settings in (("curator", CuratorSettings), ("modeler", ModelerSettings)):
        prefix = settings.model_config["env_prefix"]
        rows: dict[bool, list[list[str]]] = {True: [], False: []}
        for field, info in settings.model_fields.items():
            default = "" if info.default in (None, PydanticUndefined) else code(str(info.default))
            rows[field in shared].append(
                [code(prefix + field.upper()), default, plain(description_of(settings, field) or "")]
            )
        parts.append(f"## The {name}")
        parts.append(table(["Setting", "Default", "Meaning"], rows[False]))
        parts.append(f"The {name} also has these, which both services have:")
        parts.append(table(["Setting", "Default", "Meaning"], rows[True]))
    return "\n\n".join(parts)


def not_protected_page() -> str:
    """Every gap of the guarantees."""
    from curator_service.privacy.guarantees import GAPS

    about = (
        "For auditors. This list has every gap of the [proofs](../privacy.md). Each study's view shows those that "
        "apply to it (`not_protected`). [Privacy in two pages](../privacy-in-two-pages.md#what-is-not-protected) has "
        "the main ones."
    )
    gaps = "".join(f"- **{gap.heading}**: {gap.whole}\n" for gap in GAPS)
    return f"# What is not protected\n\n{about}\n\n{gaps}"


def metrics_page() -> str:
    """Every metric, from what both services show to Prometheus."""
    with applications() as built:
        return _metrics_table(*(app.state.metrics for app in built.values()))


def _metrics_table(curator: Metrics, modeler: Metrics) -> str:
    labels = {figure.name: ", ".join(map(code, vars(figure)["_labelnames"])) for figure in curator.collect()}
    curator.count_request("GET", "/v1/studies", 200, 0.001)
    text = bytes(curator.exposition().body).decode()
    both = {gauge.name for gauge in modeler.collect()}
    helps = dict(line.split(" ", 3)[2:] for line in text.splitlines() if line.startswith("# HELP"))
    kinds = dict(line.split(" ", 3)[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    for line in text.splitlines():
        if "{" in line:
            name, _, values = line.partition("{")
            names = [pair.partition("=")[0] for pair in values.partition("}")[0].split(",")]
            labels[name] = ", ".join(code(each) for each in names if each != "le")
    rows = [
        [
            code(name),
            kinds[name],
            labels.get(name, labels.get(f"{name}_bucket", "")),
            plain(text + (" Curator only." if name in labels and name not in both and kinds[name] == "gauge" else "")),
        ]
        for name, text in helps.items()
    ]
    return (
        "# Metrics\n\nA service shows these at `/metrics`, where `METRICS` is `true`. "
        "[Run a service](../operations.md#metrics) says who may read them, and what they reveal.\n\n"
        + table(["Metric", "Kind", "Labels", "Meaning"], rows)
    )
