"""What an owner and a vendor run on their own machines, each a program of its own: ``own``, ``vend``, ``connect``."""

import json
import socket
import sys
import time
from pathlib import Path

from blindopt import wire
from blindopt.client import Owner, Vendor
from tests.builders import a_study

PATIENT = {"timeout_s": 120, "patience_s": 120}


def own(url, token, csv, *tls):
    """Release a study of the records, if there is none; print the text of a new grant once links are settled."""
    token_file = Path(token)
    while not token_file.exists():
        time.sleep(0.1)
    options = {"verify": tls[0], "client_cert": tuple(tls[1:])} if tls else {}
    with Owner(url, token_file.read_text(encoding="utf-8").strip(), **PATIENT, **options) as owner:
        studies = owner.studies() or [_released(owner, csv)]
        grant = owner.grant(studies[0].id, wire.GrantCreate(name="acme"))
        while b'"trying"' in owner._send("GET", "/v1/links").body:
            time.sleep(0.1)
        print(wire.GrantFile.of(grant, grant.url).model_dump_json())


def _released(owner, csv):
    dataset = owner.register("d", Path(csv).read_bytes(), public=True)
    features = [wire.Feature(column=c, lower=0.0, upper=1.0) for c in ("a", "b")]
    return owner.release(owner.create_study(a_study(dataset_id=dataset.id, features=features)).id)


def vend(url, token, grant, *ca):
    """Run the optimization that a grant allows; print its state and the rows that it queried."""
    options = {"verify": ca[0]} if ca else {}
    access = wire.GrantFile.model_validate_json(Path(grant).read_text(encoding="utf-8")).access
    with Vendor(url, Path(token).read_text(encoding="utf-8").strip(), **PATIENT, **options) as vendor:
        spec = wire.RunCreate(**access.model_dump(), name="r", iterations=20, seed=3)
        run = vendor.wait(vendor.start(spec).id, timeout_s=240)
        rows = [trial.row for trial in vendor.export(run.id).trials]
    print(json.dumps({"state": run.state, "rows": rows}))


def connect(address, port):
    """Print whether a connection is taken."""
    with socket.socket() as client:
        client.settimeout(1.5)
        print(json.dumps(client.connect_ex((address, int(port))) == 0))


if __name__ == "__main__":
    {each.__name__: each for each in (own, vend, connect)}[sys.argv[1]](*sys.argv[2:])
