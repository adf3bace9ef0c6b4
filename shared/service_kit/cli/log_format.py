"""One JSON object a line on standard error: time, level, logger, message, and the record's ``fields``."""

import json
import logging
import logging.config
from datetime import UTC, datetime
from typing import TextIO

_ENCODE = json.JSONEncoder(default=str).encode


class JsonLines(logging.Formatter):
    """Formats a log record. A traceback is reduced to its type, because its text may quote private values."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0]:
            line["error"] = record.exc_info[0].__name__
        return _ENCODE(line)


class Lines(logging.StreamHandler[TextIO]):
    """Writes each line at once, under the one lock that its caller holds."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.write(f"{self.format(record)}\n")
            self.stream.flush()
        except Exception:
            self.handleError(record)


class TerminalLines(JsonLines):
    """The same for people at a terminal: time, level and message; other fields as JSON, so nothing steers it."""

    def format(self, record: logging.LogRecord) -> str:
        line = json.loads(super().format(record))
        fields = {name: value for name, value in line.items() if name not in ("time", "level", "logger", "message")}
        message = json.dumps(line["message"])[1:-1]
        return f"{line['time'][11:19]} {line['level']}: {message}{f' {json.dumps(fields)}' if fields else ''}"


def configure(level: str, *, terminal: bool = False) -> None:
    """Format the records of every logger of the process with ``JsonLines``; for a terminal with ``TerminalLines``."""
    # No line names a thread, a process or a place in the code, so no record looks for them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"lines": {"()": TerminalLines if terminal else JsonLines}},
            "handlers": {"stderr": {"()": Lines, "formatter": "lines"}},
            "root": {"handlers": ["stderr"], "level": level.upper()},
            # The middleware writes the access log; that of uvicorn would hold paths and query strings.
            "loggers": {"uvicorn.access": {"handlers": [], "propagate": False}, "httpx": {"level": "WARNING"}},
        }
    )
