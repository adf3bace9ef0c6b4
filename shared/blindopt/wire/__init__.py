"""Types on the wire: frozen models with strict numbers. No field names code to load.

Requests refuse unknown fields; replies ignore them, so that an older client can read a newer service's
replies. Floats are finite, ``true`` is not a number, and privacy amounts are decimal strings. Each
public name of the modules below is imported from here; no two modules define the same one.
"""

from blindopt.wire.algorithms.bandits import *
from blindopt.wire.algorithms.fits import *
from blindopt.wire.algorithms.gp import *
from blindopt.wire.algorithms.observations import *
from blindopt.wire.algorithms.plans import *
from blindopt.wire.answers import *
from blindopt.wire.audit import *
from blindopt.wire.base import *
from blindopt.wire.connections import *
from blindopt.wire.datasets import *
from blindopt.wire.forecasts import *
from blindopt.wire.inbox import *
from blindopt.wire.labels import *
from blindopt.wire.ledgers import *
from blindopt.wire.measurements import *
from blindopt.wire.messages import *
from blindopt.wire.notices import *
from blindopt.wire.overviews import *
from blindopt.wire.posteriors import *
from blindopt.wire.privacy_reports import *
from blindopt.wire.problems import *
from blindopt.wire.queries import *
from blindopt.wire.releases import *
from blindopt.wire.runs import *
from blindopt.wire.studies import *
from blindopt.wire.tuning_methods import *
from blindopt.wire.tunings import *
