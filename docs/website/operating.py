"""Reference pages for operators: settings and metrics, from the classes that define them."""

from pydantic_core import PydanticUndefined

from docs.website.tables import code, plain, table


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
            rows[field in shared].append([code(prefix + field.upper()), default, plain(info.description or "")])
        parts.append(f"## The {name}")
        parts.append(table(["Setting", "Default", "Meaning"], rows[False]))
        parts.append(f"The {name} also has these, which both services have:")
        parts.append(table(["Setting", "Default", "Meaning"], rows[True]))
    return "\n\n".join(parts)


def metrics_page() -> str:
    """Every metric, from the text that a service shows to Prometheus."""
    from service_kit.web.metrics import Metrics

    metrics = Metrics(lambda: {"run": {"running": 1}})
    metrics.count_request("GET", "/v1/runs", 200, 0.001)
    text = bytes(metrics.exposition().body).decode()
    helps = dict(line.split(" ", 3)[2:] for line in text.splitlines() if line.startswith("# HELP"))
    kinds = dict(line.split(" ", 3)[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    labels = {}
    for line in text.splitlines():
        if "{" in line:
            name, _, values = line.partition("{")
            names = [pair.partition("=")[0] for pair in values.partition("}")[0].split(",")]
            labels[name] = ", ".join(code(each) for each in names if each != "le")
    rows = [
        [code(name), kinds[name], labels.get(name, labels.get(f"{name}_bucket", "")), plain(text)]
        for name, text in helps.items()
    ]
    return (
        "# Metrics\n\nA service shows these at `/metrics`, where `METRICS` is `true`. "
        "[Operations](../operations.md#start-stop) says who may read them, and what they reveal.\n\n"
        + table(["Metric", "Kind", "Labels", "Meaning"], rows)
    )
