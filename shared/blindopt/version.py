"""The version of the library, and of the services that need it."""

VERSION = "0.3.0"
