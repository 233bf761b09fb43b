import timeit

from prometheus_client.parser import text_string_to_metric_families

from proxy.observe.metrics import Histogram, Metrics


def samples(metrics):
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_names_of_the_contract():
    names = {name for name, _ in samples(Metrics())}
    for name in (
        "derender_streams_active", "derender_tokens_total", "derender_time_to_first_token_seconds_count",
        "derender_inter_token_seconds_count", "derender_added_latency_seconds_count",
        "derender_client_disconnects_total", "derender_build_info",
    ):  # fmt: skip
        assert name in names
    assert not any(name.startswith(("process_", "python_")) for name in names)


def test_counts_arrive():
    metrics = Metrics()
    metrics.requests["/v1/completions", "derender", "200"] += 2
    metrics.engine_errors["eof"] += 1
    metrics.tokens["completion"] += 5
    metrics.streams_active = 3
    found = samples(metrics)
    labels = (("code", "200"), ("mode", "derender"), ("route", "/v1/completions"))
    assert found["derender_requests_total", labels] == 2
    assert found["derender_engine_errors_total", (("kind", "eof"),)] == 1
    assert found["derender_tokens_total", (("kind", "completion"),)] == 5
    assert found["derender_streams_active", ()] == 3


def test_histograms_are_cumulative_and_bounds_are_inclusive():
    metrics = Metrics()
    metrics.time_to_first_token.observe(0.001)
    metrics.time_to_first_token.observe(0.0011, 2)
    metrics.time_to_first_token.observe(1e9)
    found = samples(metrics)

    def bucket(le):
        return found["derender_time_to_first_token_seconds_bucket", (("le", le),)]

    assert (bucket("0.001"), bucket("0.005"), bucket("2560.0"), bucket("+Inf")) == (1, 3, 3, 4)
    assert found["derender_time_to_first_token_seconds_count", ()] == 4


def test_a_step_is_cheap():
    histogram = Histogram((0.1, 0.2, 0.5, 1.0))
    assert min(timeit.repeat(lambda: histogram.observe(0.3), number=10_000, repeat=7)) / 10_000 < 1.5e-6
