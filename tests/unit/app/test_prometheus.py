"""A Prometheus server on this machine, asked and read."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from tokenfleet.app.prometheus import NoAnswer, scrape, traffic
from tokenfleet.domain.errors import BadInput
from tokenfleet.workload import between, prometheus_queries

START_S = 1_774_745_880


def counter(name, per_s, start_s, end_s, step_s, **labels):
    stamps = range(int(start_s), int(end_s) + 1, int(step_s))
    return {
        "metric": {"__name__": name, **labels},
        "values": [[stamp, str((stamp - START_S) * per_s)] for stamp in stamps],
    }


class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        path, asked = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        self.server.asked.append((self.command, path, asked))
        if path.startswith("/broken"):
            return self.say(200, b"<html>no metrics here</html>")
        if path.startswith("/refuses"):
            return self.say(422, json.dumps({"status": "error", "error": "query too long"}).encode())
        if path.endswith("/query_range"):
            span = [float(asked[key][0]) for key in ("start", "end", "step")]
            result = [
                counter("vllm:request_success_total", 2, *span, finished_reason="stop"),
                counter("vllm:prompt_tokens_total", 1400, *span),
                counter("vllm:generation_tokens_total", 500, *span),
            ]
        else:
            at = float(asked["time"][0]) - START_S
            buckets = [("0.1", at), ("0.5", 3 * at), ("+Inf", 4 * at)]
            result = [
                {
                    "metric": {"__name__": "vllm:time_to_first_token_seconds_bucket", "le": edge},
                    "value": [at, str(count)],
                }
                for edge, count in buckets
            ]
            result.append({"metric": {"__name__": "vllm:prompt_tokens_total"}, "value": [at, str(at * 1400)]})
        return self.say(200, json.dumps({"status": "success", "data": {"result": result}}).encode())

    def say(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as running:
        running.asked = []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        running.url = f"http://127.0.0.1:{running.server_port}"
        yield running
        running.shutdown()
        thread.join()


def test_traffic_is_the_growth_of_counters_over_spans_that_a_server_answers(server):
    days = 9
    found = traffic(server.url + "/", "vllm", start_s=START_S, end_s=START_S + days * 86_400, labels='namespace="prod"')
    assert len(found.requests) == days * 1440
    assert set(found.requests.tolist()) == {120.0}
    assert found.input_tokens.sum() == 1400 * days * 86_400
    assert found.output_tokens[0] == 500 * 60
    assert found.start_utc == "2026-03-29T00:58:00Z"
    # Nine days of minutes are more points than one answer may hold.
    assert len(server.asked) == 2
    assert {command for command, _, _ in server.asked} == {"GET"}
    question = server.asked[0][2]["query"][0]
    assert "vllm:request_success_total" in question
    assert 'namespace="prod"' in question
    assert "sglang" not in question


def test_two_scrapes_tell_what_happened_in_between(server):
    first, second = (scrape(server.url, "vllm:", at_s=START_S + at) for at in (100, 160))
    found = between(first, second)
    assert found.counters["prompt_tokens"] == 60 * 1400
    assert found.histograms["ttft_s"].counts == (60, 120, 60)
    assert found.histograms["ttft_s"].quantile_range(0.5) == (0.1, 0.5)


def test_what_went_wrong_is_said(server):
    span = {"start_s": START_S, "end_s": START_S + 600}
    with pytest.raises(NoAnswer, match="is no JSON"):
        traffic(server.url + "/broken", "vLLM", **span)
    with pytest.raises(NoAnswer, match="422: query too long") as refused:
        traffic(server.url + "/refuses", "vLLM", **span)
    assert refused.value.exit_code == 3
    with pytest.raises(NoAnswer, match="did not answer"):
        traffic("http://127.0.0.1:1", "vLLM", **span)
    with pytest.raises(BadInput, match="is no address"):
        traffic("prometheus:9090", "vLLM", **span)
    with pytest.raises(BadInput, match="no counter of finished requests"):
        traffic(server.url, "SGLang", opener=lambda *_: b'{"status": "success", "data": {"result": []}}', **span)


def test_a_password_in_the_address_is_not_repeated():
    with pytest.raises(NoAnswer) as refused:
        traffic("http://me:secret@127.0.0.1:1", "vLLM", start_s=START_S, end_s=START_S + 600)
    assert "secret" not in str(refused.value)


def test_bad_questions_are_refused_before_they_are_asked():
    with pytest.raises(BadInput, match="did you mean 'vLLM'") as refused:
        prometheus_queries("vLM", start_s=100, end_s=100, step_s=0)
    assert len(refused.value.problems) == 3
