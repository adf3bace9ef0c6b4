"""The header Prefer, by RFC 7240."""

import pytest

from service_kit.web.dependencies import preferences


@pytest.mark.parametrize(
    ("headers", "names"),
    [
        (["respond-async"], {"respond-async"}),
        (["respond-async, wait=10"], {"respond-async", "wait"}),
        (["wait=10,Respond-Async"], {"respond-async", "wait"}),
        (["foo; some=\"a, b\"; c , respond-async;wait=10"], {"foo", "respond-async"}),
        (["return=minimal", 'Lenient , respond-async = "" ; x'], {"return", "lenient", "respond-async"}),
        (["wait=10;respond-async"], {"wait"}),
        (['handling="lenient, respond-async"'], {"handling"}),
        (['handling="a \\", respond-async, \\"b"'], {"handling"}),
        (["xrespond-async, respond-async-x"], {"xrespond-async", "respond-async-x"}),
        ([" , ,,respond-async,"], {"respond-async"}),
        ([], set()),
        ([""], set()),
    ],
)  # fmt: skip
def test_preferences_are_read_with_values_parameters_and_quotes(headers, names):
    assert preferences(headers) == names


def test_a_long_malformed_preference_takes_no_long_time():
    """Backtracking over it would take hours."""
    preferences(["a" * 200 + '"' + ",a" * 20_000 + '"'] * 20)
