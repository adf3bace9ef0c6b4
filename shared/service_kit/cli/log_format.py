"""One JSON object a line on standard error: time, level, logger, message, and the record's ``fields``."""

import json
import logging
import logging.config
from datetime import UTC, datetime


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
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Format the records of every logger of the process with ``JsonLines``."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"json": {"()": JsonLines}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
            "root": {"handlers": ["stderr"], "level": level.upper()},
            # The middleware writes the access log; that of uvicorn would hold paths and query strings.
            "loggers": {"uvicorn.access": {"handlers": [], "propagate": False}, "httpx": {"level": "WARNING"}},
        }
    )
