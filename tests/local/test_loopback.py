"""Who may talk to local mode's servers: the rules over a request's headers."""

from __future__ import annotations

import pytest

from stationmaster.local.loopback import Seen, own_page_too, programs_only, signed_links_too

PORT = 8700
HOST = f"127.0.0.1:{PORT}"
OWN = f"http://{HOST}"


def seen(method: str = "POST", port: int = PORT, **headers: str) -> Seen:
    return Seen(method, {name.replace("_", "-"): text for name, text in headers.items()}, port)


@pytest.mark.parametrize("rule", [programs_only, own_page_too])
@pytest.mark.parametrize("host", [HOST, f"localhost:{PORT}", f"LOCALHOST:{PORT}", f"[::1]:{PORT}"])
def test_host_of_this_machine_with_the_port_is_let_in(rule, host):
    assert rule(seen(host=host)) is None


OTHER_HOSTS = """
127.0.0.1 127.0.0.1:8701 localhost:80 evil.test evil.test:8700 127.0.0.1.evil.test:8700
localhost.:8700 user@127.0.0.1:8700 0.0.0.0:8700 2130706433:8700 127.0.0.1:8700,127.0.0.1:8700
"""


@pytest.mark.parametrize("rule", [programs_only, own_page_too])
def test_host_that_is_another_or_missing_is_refused(rule):
    for headers in ({}, {"host": ""}, *({"host": host} for host in OTHER_HOSTS.split())):
        assert "is not this machine; use http://127.0.0.1:8700" in rule(seen(**headers)), headers


def test_default_port_may_be_left_out():
    assert programs_only(seen(host="localhost", port=80)) is None
    assert own_page_too(seen(host="127.0.0.1", origin="http://127.0.0.1", port=80)) is None


def test_server_without_a_page_refuses_every_origin_and_browsers_that_send_none():
    for origin in (OWN, "null", "", "https://example.com", f"http://localhost:{PORT}", "file://"):
        assert "web pages may not use" in programs_only(seen(host=HOST, origin=origin)), origin
    for site in ("none", "same-origin", "same-site", "cross-site"):
        asked = seen("GET", host=HOST, sec_fetch_site=site, sec_fetch_mode="navigate")
        assert "browsers may not use this" in programs_only(asked), site


LINK = "/bucket/key?X-Amz-Expires=9&X-Amz-Signature=00"
TAB = {"host": HOST, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def opened(method: str = "GET", target: str = LINK, **headers: str) -> str | None:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return signed_links_too(
        Seen(method, TAB | {"sec-fetch-site": "same-site"} | named, 8700, target)
    )


def test_signed_link_may_be_opened_in_a_tab():
    assert opened() is None
    assert signed_links_too(seen(host=HOST)) is None


@pytest.mark.parametrize(
    "otherwise",
    [
        *({"target": "/bucket/key"}, {"method": "POST"}, {"origin": "https://example.com"}),
        *({"sec_fetch_mode": "no-cors"}, {"sec_fetch_dest": "iframe"}, {"host": "evil.test"}),
    ],
)
def test_signed_link_may_be_used_in_no_other_way(otherwise):
    assert opened(**otherwise) is not None


def test_page_may_use_its_own_server():
    assert own_page_too(seen(host=HOST, origin=OWN, sec_fetch_site="same-origin")) is None
    assert own_page_too(seen("GET", host=HOST, sec_fetch_site="same-origin")) is None


@pytest.mark.parametrize(
    "origin",
    [
        *("null", "", "https://example.com", f"https://{HOST}", f"http://localhost:{PORT}"),
        *("http://127.0.0.1:8701", f"{OWN},{OWN}", f"{OWN}.evil.test"),
    ],
)
def test_page_of_another_origin_is_refused(origin):
    assert "is another site" in own_page_too(seen(host=HOST, origin=origin))


@pytest.mark.parametrize(
    ("method", "headers", "let_in"),
    [
        ("GET", {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}, True),
        ("GET", {"sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}, False),
        ("POST", {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}, False),
        ("GET", {"sec_fetch_mode": "no-cors", "sec_fetch_dest": "script"}, False),
        ("GET", {}, False),
    ],
)
@pytest.mark.parametrize("site", ["cross-site", "same-site", "whatever-comes"])
def test_another_site_may_link_to_the_page_and_not_load_it(method, headers, let_in, site):
    refusal = own_page_too(seen(method, host=HOST, sec_fetch_site=site, **headers))

    assert (refusal is None) == let_in


def test_refusal_shows_no_more_than_the_start_of_what_was_sent():
    assert len(programs_only(seen(host="x" * 10_000))) < 250
