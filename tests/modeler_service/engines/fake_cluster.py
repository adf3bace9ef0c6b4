"""Workers that are objects of this process: they die, lose, repeat and falsify what a test wants."""

import pickle
from dataclasses import replace

from blindopt.formats import npy_files, release_files
from modeler_service.engines.host import PartHost


def sections(path, part_bytes=1 << 30):
    """The sections of a release in this file: one, or parts of so many bytes."""
    parts = release_files.parts_of(path, part_bytes)
    return release_files.sections_of(len(npy_files.load(path)), release_files.digest(path, parts), parts)


class Pending:
    def __init__(self, work):
        self._work = work

    def result(self, timeout):
        return self._work()

    def done(self):
        return False


class FakeCluster:
    """What crosses it is pickled, as by a network. ``fault(cluster, worker, verb)`` is called before each call.

    It may kill workers, raise, or return a function that changes the reply.
    """

    def __init__(self, workers=2, fault=lambda cluster, worker, verb: None, memory=0, threads=1):
        self._threads = threads
        self.living = {f"worker-{number}": memory for number in range(workers)}
        self._fault, self.held, self.specs, self._next = fault, {}, [], workers
        self.builds, self.calls, self.bytes, self.closed = 0, 0, 0, False

    def kill(self, worker, *, replace=True):
        """End a worker; another one takes its place, as a nanny would see to."""
        del self.living[worker]
        for key in [key for key in self.held if key[0] == worker]:
            del self.held[key]
        if replace:
            self.living[f"worker-{self._next}"] = 0
            self._next += 1

    def workers(self):
        return dict(self.living)

    def build(self, worker, spec):
        def work():
            self.builds += 1
            self.specs.append(spec)
            host = PartHost(replace(pickle.loads(pickle.dumps(spec)), threads=self._threads))
            if worker not in self.living:
                raise ConnectionError
            self.held[worker, self.builds] = host
            return worker, self.builds

        return Pending(work)

    def call(self, held, verb, *arguments):
        def work():
            self.calls += 1
            change = self._fault(self, held[0], verb)
            if held not in self.held:
                raise ConnectionError
            sent = pickle.dumps(arguments)
            self.bytes += len(sent)
            reply = pickle.loads(pickle.dumps(getattr(self.held[held], verb)(*pickle.loads(sent))))
            return change(self.held[held], arguments, reply) if change else reply

        return Pending(work)

    def close(self):
        self.closed = True
