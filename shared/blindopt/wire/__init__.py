"""Types on the wire: frozen models with strict numbers. No field names code to load.

Requests refuse unknown fields; replies ignore them, so that an older client can read a newer service's
replies. Floats are finite, ``true`` is not a number, and privacy amounts are decimal strings. Each
public name of the modules below is imported from here; no two modules define the same one.
"""

from blindopt.wire.answer import *
from blindopt.wire.audit import *
from blindopt.wire.base import *
from blindopt.wire.dataset import *
from blindopt.wire.goal import *
from blindopt.wire.inbox import *
from blindopt.wire.ledger import *
from blindopt.wire.message import *
from blindopt.wire.query import *
from blindopt.wire.release import *
from blindopt.wire.run import *
from blindopt.wire.study import *
from blindopt.wire.tuning import *
