"""Web pages of other origins in Chromium, against every server of a running local mode.

A page at another port, a page of another site, and a page whose name was made to resolve to this
machine (DNS rebinding). They get what no page could have, the account's key and the cluster's
token, so that only the refusal of browsers stands between them and a server.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from e2e_world import LAUNCH_FLAGS, World, world
from kubernetes import client, config
from playwright.sync_api import Browser, expect, sync_playwright

from lambdas import registry
from stationmaster.local.aws import Function, InProcessRuntime
from stationmaster.local.slack import OPERATOR_ID, TRAINING_CHANNEL_ID

SITE = "evil.test"
FLAGS = [
    *LAUNCH_FLAGS,
    f"--host-resolver-rules=MAP {SITE} 127.0.0.1",
    "--ignore-certificate-errors",  # the cluster's authority is known to its own clients only
    # Newer Chromium keeps public pages from loopback addresses by itself; other browsers do not.
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
]
# Calls that the pages try and the product never makes.
_OF_PAGES = {("lambda", "CreateFunction"), ("secretsmanager", "BatchGetSecretValue")}
SERVERS = ("page", "aws", "http api", "kubernetes")
ATTACK = (Path(__file__).parent / "foreign_page.js").read_text()


class RecordingRuntime(InProcessRuntime):
    """Remembers which functions were invoked."""

    def __init__(self) -> None:
        super().__init__()
        self.invoked: set[str] = set()

    def invoke(self, function: Function, payload: bytes) -> tuple[bytes, bool]:
        """Invoke as ever."""
        self.invoked.add(function.name)
        return super().invoke(function, payload)


class OpenServer:
    """Serves the attacking page, and anything else to anybody: what a careless server would do."""

    def __init__(self) -> None:
        received: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                received.append(f"{self.command} {self.path}")
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(200)
                asked = self.headers.get("Access-Control-Request-Headers", "*")
                kind = {"/events": "text/event-stream", "/script": "text/javascript"}
                self.send_header("Content-Type", kind.get(self.path, "text/html"))
                self.send_header("Access-Control-Allow-Origin", "*")
                self.send_header("Access-Control-Allow-Headers", asked)
                self.end_headers()
                self.wfile.write(b"data: open\n\n" if self.path == "/events" else b"")

            do_GET = do_POST = do_OPTIONS = _serve  # noqa: N815  # the names are http.server's

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        self.received = received
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Target:
    """A server, and what the page tries on it: each path and each post in every way there is."""

    base: str
    paths: list[str]
    posts: list[dict[str, Any]] = field(default_factory=list)
    socket: str = "/"

    def at(self, host: str) -> dict[str, Any]:
        """Return the target under another name of this machine, for the page's script."""
        parts = urlsplit(self.base)
        base = f"{parts.scheme}://{host}:{parts.port}"
        return {"base": base, "paths": self.paths, "posts": self.posts, "socket": self.socket}


@dataclass
class Stage:
    """A running local mode, its servers, and a browser."""

    running: World
    runtime: RecordingRuntime
    browser: Browser
    careless: OpenServer
    opened: list[str]

    def targets(self, host: str) -> dict[str, Target]:
        """Return every server, the requests being signed for `host`."""
        mode = self.running.mode
        assert mode.aws is not None
        return {
            "page": Target(
                mode.slack.url,
                ["/", "/static/main.js", f"/local/socket?user={OPERATOR_ID}"],
                [{"path": "/local/send", "body": json.dumps(_typed()), "headers": {}}],
                socket=f"/local/socket?user={OPERATOR_ID}",
            ),
            "aws": Target(
                mode.aws.url,
                ["/", "/moto-api/", "/moto-api/data.json", "/latest/meta-data/iam/"],
                [
                    self._signed(host, "lambda", "/2015-03-31/functions", _foreign_function()),
                    self._signed(host, "secretsmanager", "/", {"SecretIdList": ["slack"]}),
                    {"path": "/moto-api/reset", "body": "", "headers": {}},
                ],
            ),
            "http api": Target(
                mode.aws.http_url,
                ["/"],
                [{"path": registry.ROUTES[0].path, "body": "text=list", "headers": {}}],
            ),
            "kubernetes": Target(
                mode.cluster.url,
                ["/version", "/api/v1/secrets", "/api/v1/pods?watch=1"],
                [
                    {
                        "path": "/api/v1/namespaces/default/configmaps",
                        "body": json.dumps({"metadata": {"name": "of-a-page"}}),
                        "headers": {"Authorization": f"Bearer {self._token()}"},
                    }
                ],
            ),
        }

    def attack(self, address: str, targets: Mapping[str, Target], host: str) -> dict[str, Any]:
        """Open the attacking page at an address; what it could read, by server and attempt."""
        page = self.browser.new_page()
        page.route(address, lambda route: route.fulfill(body="<body>", content_type="text/html"))
        page.goto(address)
        read = page.evaluate(ATTACK, {name: target.at(host) for name, target in targets.items()})
        page.close()
        return read

    def assert_untouched(self) -> None:
        """Nothing that the pages tried was done by any server."""
        mode = self.running.mode
        assert mode.aws is not None
        done = set(mode.aws.calls)
        functions = mode.aws.client("lambda").list_functions()["Functions"]
        assert {each["FunctionName"] for each in functions} == {
            function.name for function in registry.FUNCTIONS
        }
        assert not done & _OF_PAGES
        assert registry.ROUTES[0].function not in self.runtime.invoked
        assert self.running.of_type("run.requested") == []
        assert mode.slack.messages(TRAINING_CHANNEL_ID) == []
        with config.new_client_from_config(str(mode.cluster.kubeconfig)) as api:
            maps = client.CoreV1Api(api).list_namespaced_config_map("default").items
        assert "of-a-page" not in [each.metadata.name for each in maps]

    def _signed(self, host: str, service: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        mode = self.running.mode
        assert mode.aws is not None
        variables = mode.aws.environment()
        names = {"secretsmanager": {"X-Amz-Target": "secretsmanager.BatchGetSecretValue"}}
        request = AWSRequest(
            method="POST",
            url=f"http://{host}:{urlsplit(mode.aws.url).port}{path}",
            data=json.dumps(body).encode(),
            headers=names.get(service, {}),
        )
        key = Credentials(variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"])
        SigV4Auth(key, service, mode.aws.region).add_auth(request)
        return {"path": path, "body": json.dumps(body), "headers": dict(request.headers)}

    def _token(self) -> str:
        kubeconfig = yaml.safe_load(self.running.mode.cluster.kubeconfig.read_text())
        return str(kubeconfig["users"][0]["user"]["token"])


def _typed() -> dict[str, str]:
    return {"user": OPERATOR_ID, "channel": TRAINING_CHANNEL_ID, "text": "/train tiny-llama"}


def _foreign_function() -> dict[str, Any]:
    return {
        "FunctionName": "of-a-page",
        "Runtime": "python3.13",
        "Role": "arn:aws:iam::123456789012:role/local-execution",
        "Handler": registry.FUNCTIONS[0].handler,
        "Code": {"ZipFile": "eA=="},
    }


def _listening() -> dict[str, str]:
    """Return the addresses that this process listens on, by the socket's inode."""
    held = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            held.add(str(descriptor.readlink()))
        except FileNotFoundError:
            continue  # closed while we looked
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
                found[fields[9]] = fields[1]
    return found


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, chromium: str) -> Iterator[Stage]:
    runtime, careless = RecordingRuntime(), OpenServer()
    before = _listening() if sys.platform == "linux" else {}
    with (
        world(tmp_path_factory.mktemp("foreign"), runtime=runtime) as running,
        sync_playwright() as playwright,
    ):
        after = _listening() if sys.platform == "linux" else {}
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        opened = [address for inode, address in after.items() if inode not in before]
        yield Stage(running, runtime, browser, careless, opened)
        browser.close()
    careless.close()


@pytest.mark.parametrize("host", ["127.0.0.1", SITE])
def test_page_of_another_origin_reads_and_does_nothing(stage: Stage, host: str) -> None:
    address = f"http://{host}:{stage.careless.port}/attack"

    read = stage.attack(address, stage.targets("127.0.0.1"), "127.0.0.1")

    assert set(read) == set(SERVERS)
    for name, attempts in read.items():
        assert len(attempts) > 4
        could = {attempt: found for attempt, found in attempts.items() if found is not None}
        assert could == {}, name
    stage.assert_untouched()


@pytest.mark.parametrize("server", SERVERS)
def test_page_whose_name_was_rebound_reads_refusals_and_does_nothing(
    stage: Stage, server: str
) -> None:
    target = stage.targets(SITE)[server]

    read = stage.attack(f"{target.at(SITE)['base']}/attack", {server: target}, SITE)[server]

    answers = {attempt: found for attempt, found in read.items() if found is not None}
    assert len(answers) >= 4 * len(target.posts)
    for attempt, found in answers.items():
        assert "is not this machine" in found, attempt
    stage.assert_untouched()


def test_attack_on_a_careless_server_reads_it(stage: Stage) -> None:
    """What the tests above rely on: each way works where nothing is refused."""
    post = {"path": "/post", "body": "{}", "headers": {"X-Amz-Target": "x"}}
    target = Target(f"http://127.0.0.1:{stage.careless.port}", ["/events", "/script"], [post])

    read = stage.attack(f"http://{SITE}:1/attack", {"careless": target}, "127.0.0.1")["careless"]

    could = {attempt for attempt, found in read.items() if found is not None}
    assert could >= {
        "fetch /events",
        "events /events",
        "script /script",
        "fetch with headers /post",
        "fetch as text /post",
    }
    assert stage.careless.received.count("POST /post") == 4


def test_own_page_works(stage: Stage) -> None:
    for host in ("127.0.0.1", "localhost"):
        page = stage.browser.new_page()
        page.goto(stage.running.mode.slack.page_url.replace("127.0.0.1", host))
        expect(page.locator("[data-testid=app][data-connection=connected]")).to_be_visible()
        page.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to list this process's sockets")
def test_nothing_listens_but_the_servers_that_were_attacked(stage: Stage) -> None:
    ports = [urlsplit(target.base).port for target in stage.targets(SITE).values()]

    # 127.0.0.1 as the kernel writes it.
    assert sorted(stage.opened) == sorted(f"0100007F:{port:04X}" for port in ports)
