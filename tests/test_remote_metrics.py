"""Reading the engines' counters, and what can be said when they are not as expected."""

import pytest

from mtp.remote.metrics import OFF, ON, UNKNOWN, difference, parse_metrics


def vllm(drafts: int, drafted: int, accepted: list[int], generated: int, engine: int = 0) -> str:
    labels = f'engine="{engine}",model_name="m"'
    positions = "".join(
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{place}"}} {count}.0\n'
        for place, count in enumerate(accepted)
    )
    return (
        f"# TYPE vllm:spec_decode_num_drafts_total counter\nvllm:spec_decode_num_drafts_total{{{labels}}} {drafts}.0\n"
        f"vllm:spec_decode_num_drafts_created{{{labels}}} 1.7e9\n"
        f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {drafted}.0\n"
        f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {sum(accepted)}.0\n"
        + positions
        + f"vllm:generation_tokens_total{{{labels}}} {generated}.0\n"
    )


PLAIN_VLLM = 'vllm:generation_tokens_total{model_name="m"} %d.0\nvllm:num_requests_running{model_name="m"} 0.0\n'


def between(before: str, after: str):
    return difference(parse_metrics(before), parse_metrics(after))


def test_vllm_counters_become_acceptance():
    run = between(vllm(100, 300, [90, 80, 70], 400), vllm(110, 330, [98, 86, 72], 425))
    assert (run.status, run.engine) == (ON, "vllm")
    assert (run.drafts, run.draft_tokens, run.accepted, run.generated) == (10, 30, 16, 25)
    assert run.mean_acceptance_length == pytest.approx(2.6)  # bonus included
    assert run.acceptance_rate == pytest.approx(16 / 30)
    assert run.survival == pytest.approx((0.8, 0.6, 0.2))


def test_a_servers_engines_are_added_up():
    run = between(vllm(1, 1, [1], 5) + vllm(2, 2, [1], 5, engine=1), vllm(4, 4, [3], 9) + vllm(7, 7, [5], 9, engine=1))
    assert (run.drafts, run.accepted, run.accepted_at, run.generated) == (8, 6, (6,), 8)


def test_without_a_speculative_config_vllm_has_no_such_counters():
    run = between(PLAIN_VLLM % 5, PLAIN_VLLM % 9)
    assert run.status == OFF
    assert "without drafting" in run.reason
    assert (run.mean_acceptance_length, run.acceptance_rate, run.survival) == (None, None, ())


def test_counters_that_stand_still_mean_off():
    run = between(vllm(7, 7, [5], 50), vllm(7, 7, [5], 60))
    assert run.status == OFF
    assert "no drafts during the run" in run.reason


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (vllm(9, 9, [5], 50), vllm(2, 2, [1], 60), "spec_decode_num_accepted_tokens went back"),
        (PLAIN_VLLM % 50, PLAIN_VLLM % 9, "vllm:generation_tokens went back"),
        (PLAIN_VLLM % 5, "sglang:generation_tokens_total 9.0\n", "vllm became sglang"),
        (PLAIN_VLLM % 5, (PLAIN_VLLM % 9) + "vllm:spec_v3_proposals_total 4.0\n", "vllm:spec_v3_proposals"),
        (PLAIN_VLLM % 5, "<html>not here</html>", "not in Prometheus' format"),
        ("", "", "none of its counters"),
        ("python_gc_objects_collected_total 3.0\n", "python_gc_objects_collected_total 3.0\n", "none of its counters"),
    ],
)
def test_what_cannot_be_told_is_not_guessed(before, after, said):
    run = between(before, after)
    assert run.status == UNKNOWN
    assert said in run.reason
    assert run.mean_acceptance_length is None


def test_llama_cpp_names_without_total_and_positions_that_come_later():
    before = "llamacpp:tokens_predicted_total 10\nllamacpp:spec_decode_num_drafts 0\n"
    after = (
        "llamacpp:tokens_predicted_total 40\nllamacpp:spec_decode_num_drafts 10\n"
        "llamacpp:spec_decode_num_draft_tokens 20\nllamacpp:spec_decode_num_accepted_tokens 15\n"
        'llamacpp:spec_decode_num_accepted_tokens_per_pos{position="0"} 9\n'
        'llamacpp:spec_decode_num_accepted_tokens_per_pos{position="1"} 6\n'
    )
    run = between(before, after)
    assert (run.status, run.engine, run.accepted_at) == (ON, "llamacpp", (9, 6))
    assert run.mean_acceptance_length == 2.5


def test_sglang_counts_verifications_and_the_rest_follows():
    page = 'sglang:generation_tokens_total{m="x"} %d\nsglang:num_requests_total{m="x"} %d\n'
    calls = 'sglang:spec_verify_calls_total{m="x"} %d\nsglang:spec_accept_length{m="x"} 9.9\n'
    run = between(page % (100, 4), page % (200, 6) + calls % 49)
    assert (run.status, run.engine, run.drafts) == (ON, "sglang", 49)
    assert run.mean_acceptance_length == pytest.approx(2.0)  # 100 tokens, 2 from prefills, 98 from 49 verifications
    assert (run.acceptance_rate, run.survival) == (None, ())  # what it does not count is not made up
    assert between(page % (100, 4), page % (200, 6)).status == OFF


def test_gauges_may_fall():
    gauge = "sglang:spec_accept_length 3.0\nsglang:generation_tokens_total %d\nsglang:spec_verify_calls_total %d\n"
    assert between(gauge % (5, 1), (gauge % (9, 3)).replace("3.0", "1.0")).status == ON
