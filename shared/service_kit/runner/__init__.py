"""Work over the records in processes of their own: it neither delays requests nor outlives its deadline.

The protocol is the same for attacks, forecasts and tunings. The curator writes a job to the child's standard input: a
line of JSON, a line with the shape of an array or ``null``, then the array's float64 numbers as they lie in memory, row
by row. The child replies on its standard output with lines of JSON, and marks the last one of each job. A child does
one job after the other. It ends when the curator's end of the pipe closes, so it never outlives the curator. Nothing is
written to a file or to the command line.
"""

from service_kit.runner.program import Message, Program, Reply, Sender
from service_kit.runner.worker import Worker

__all__ = ["Message", "Program", "Reply", "Sender", "Worker"]
