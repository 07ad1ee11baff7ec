"""What operators see of a server: metrics, liveness and readiness, and logs that stay short."""

import contextlib
import http.client
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.commands.serve import pages
from deploy.server import metrics_http as web
from deploy.server.client import RemotePolicy
from deploy.server.metrics import REASONS, BoundedLog
from deploy.server.metrics_http import MetricsServer
from tests.served import HELLO, given, pack, serving, talk


def get(port, path="/metrics", method="GET", host=None, body=None):
    """Return status, text and headers of an answer."""
    asks = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    asks.putrequest(method, path, skip_host=True)
    for one in (f"127.0.0.1:{port}",) if host is None else host:
        asks.putheader("Host", one)
    asks.endheaders(body)
    answer = asks.getresponse()
    text = answer.read().decode()
    asks.close()
    return answer.status, text, dict(answer.getheaders())


def value(text, name):
    """Return the value of a line of metrics."""
    (found,) = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found)


@contextlib.contextmanager
def watched(policy, **limits):
    with serving(policy, **limits) as (address, one), MetricsServer(0, pages(one)) as page:
        yield address, one, page.port


def test_decisions_refusals_and_clients_are_counted(policy):
    with watched(policy) as (address, one, port):
        with RemotePolicy(address) as remote, RemotePolicy(address, role="watch"):
            for _ in range(3):
                remote.act(*given(policy))
            with pytest.raises(ValueError, match="refuses"):
                remote.act(*given(policy), observed_s=time.monotonic() - 9)
            text = get(port)[1]
        assert value(text, "mneme_decisions_total") == 3
        assert value(text, "mneme_refused_requests_total") == 1
        assert value(text, 'mneme_connections{role="control"}') == 1
        assert value(text, 'mneme_connections{role="watch"}') == 1
        assert value(text, "mneme_decision_seconds_count") == 3
        assert value(text, 'mneme_decision_seconds_bucket{le="+Inf"}') == 3
        assert value(text, 'mneme_call_rows_bucket{le="1.0"}') == 3
        assert value(text, "mneme_queue_requests") == 0
        assert value(text, "mneme_errors_total") == 0
        assert value(text, "process_resident_memory_bytes") > 1e7
        assert value(text, "process_open_fds") > 3
        assert value(text, "mneme_ready") == 1
        talk(address, [pack({**HELLO, "token": "x"})])
        talk(address, [pack({**HELLO, "token": "\ud800"})])
        talk(address, [b"GET / HTTP/1.1\r\n\r\n"])
        text = get(port)[1]
        for reason, count in (("token", 1), ("hello", 1), ("frame", 1), ("control", 0)):
            assert value(text, f'mneme_refused_connections_total{{reason="{reason}"}}') == count
        assert one.health()["refused"] == 4


def test_prometheus_own_parser_reads_the_page(policy):
    with watched(policy) as (_, _, port):
        found = {one.name: one for one in text_string_to_metric_families(get(port)[1])}
    kinds = {
        name: one.type for name, one in found.items()
        if name.startswith("mneme_") and not name.endswith("_created")
    }  # fmt: skip
    assert kinds == {
        "mneme_decisions": "counter", "mneme_failed_calls": "counter",
        "mneme_refused_connections": "counter", "mneme_refused_requests": "counter",
        "mneme_errors": "counter", "mneme_decision_seconds": "histogram",
        "mneme_call_rows": "histogram", "mneme_queue_requests": "gauge",
        "mneme_connections": "gauge", "mneme_ready": "gauge",
    }  # fmt: skip
    reasons = {one.labels["reason"] for one in found["mneme_refused_connections"].samples}
    assert reasons == set(REASONS)


def test_ready_and_alive_are_two_things(policy):
    with watched(policy) as (_, one, port):
        assert get(port, "/livez")[:2] == (200, "alive\n")
        assert get(port, "/readyz")[:2] == (200, "ready\n")
        one.stops = 1  # it drains
        assert get(port, "/readyz")[:2] == (503, "not ready\n")
        assert one.stopped.wait(5)
        assert get(port, "/livez")[:2] == (503, "not alive\n")


def test_nothing_else_is_answered(policy):
    with watched(policy) as (_, _, port):
        for path in ("/", "/metrics/", "/metrics?x=1", "/../metrics", "http://127.0.0.1/metrics"):
            assert get(port, path)[0] == 404, path
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"):
            status, _, headers = get(port, method=method)
            assert (status, headers["Allow"]) == (405, "GET"), method
        here, foreign = f"127.0.0.1:{port}", "evil.example"
        for host in ((), (foreign,), (f"{foreign}:{port}",), (here, foreign), ("127.0.0.1",)):
            assert get(port, host=host)[0] == 403, host
        assert get(port, host=(f"localhost:{port}",))[0] == 200
        status, _, headers = get(port)
        assert headers["Server"] == "mneme"  # and no version
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")


def test_it_listens_on_this_machine_alone(policy):
    with watched(policy) as (_, _, port), MetricsServer(0, {}) as page:
        assert page.http.socket.getsockname()[0] == "127.0.0.1"
        with pytest.raises(ValueError, match=f"metrics_port: got {port}, which cannot be used"):
            MetricsServer(port, {})


def test_silent_connections_shut_no_scrape_out(policy, monkeypatch):
    monkeypatch.setattr(web, "MOST", 4)
    with watched(policy) as (_, _, port), contextlib.ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        assert get(port, "/readyz")[0] == 200


def test_a_flood_of_strangers_writes_one_line_and_then_their_number(policy, caplog, monkeypatch):
    with serving(policy) as (address, one):
        for _ in range(30):
            talk(address, [pack({**HELLO, "token": "x"})])
        assert caplog.text.count("refused a connection (token): wrong token") == 1
        one.log.kinds["token"] = (0.0, one.log.kinds["token"][1])  # ten seconds later
        talk(address, [pack({**HELLO, "token": "x"})])
        assert "wrong token (29 more of this kind were not logged)" in caplog.text


def test_kinds_are_bounded_apart(caplog):
    log = BoundedLog()
    for kind in ("a", "b", "a"):
        log(kind, f"line {kind}")
    assert [record.getMessage() for record in caplog.records] == ["line a", "line b"]


def test_the_command_has_them_only_if_asked(exported, tmp_path):
    at = f"unix:{tmp_path / 's'}"
    line = [sys.executable, "-m", "vla.cli", "serve", str(exported["remembers"]), "--address", at]
    process = subprocess.Popen([*line, "--metrics-port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        found = re.fullmatch(r"metrics at http://127.0.0.1:(\d+)/metrics\n",
                             process.stdout.readline())  # fmt: skip
        assert "served at" in process.stdout.readline()
        assert get(int(found[1]), "/readyz")[:2] == (200, "ready\n")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=20)[0] == "stopped\n"
