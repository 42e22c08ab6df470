"""/metrics to counter deltas: parser hazards of real engines."""

from replay.metrics import read_counters, read_in_flight, subtract

BEFORE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 10.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 5.0
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.79e9
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 4.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 100.5
"""


def test_names_are_matched_whole_and_engines_summed() -> None:
    counters = read_counters(BEFORE)
    assert counters == {
        "vllm:prompt_tokens_total": 15.0,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}': 7.0,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"}': 4.0,
        "process_start_time_seconds": 100.5,
    }
    assert read_in_flight(BEFORE) == 3  # and not 5: waiting_by_reason is another metric


def test_a_difference_leaves_out_what_is_no_counter() -> None:
    before = {"process_start_time_seconds": 1.0, "vllm:prompt_tokens_total": 10.0}
    after = {"process_start_time_seconds": 1.0, "vllm:prompt_tokens_total": 25.0, "vllm:generation_tokens_total": 3.0}
    assert subtract(before, after) == ({"vllm:prompt_tokens_total": 15.0, "vllm:generation_tokens_total": 3.0}, None)


def test_a_restart_voids_the_difference() -> None:
    deltas, why = subtract({"process_start_time_seconds": 1.0}, {"process_start_time_seconds": 2.0})
    assert deltas is None
    assert why == "the engine restarted inside the window"


def test_a_counter_that_falls_voids_the_difference() -> None:
    deltas, why = subtract({"vllm:prompt_tokens_total": 10.0}, {"vllm:prompt_tokens_total": 9.0})
    assert deltas is None
    assert why is not None
    assert "vllm:prompt_tokens_total" in why


def test_an_engine_without_counters_has_none_and_not_zero() -> None:
    assert read_counters("") == {}
    assert read_in_flight("up 1\n") is None
    assert read_counters("<html>not found</html>") == {}
