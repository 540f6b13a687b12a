"""The HTTP server over the model: what it streams is what `decode` gives, and what it counts is what `decode` did."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch
from running_server import HTTP, counters, serving, stream, text_of, tiny_model

from mtp import GREEDY, NativeMTP, Sampling, decode, decode_text, encode, load
from mtp.prompts import load_prompts
from mtp.server.counters import ServerCounters
from mtp.server.engine import Engine, Job, Step

EOS = 0


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def url(model):
    with serving(model, k=2) as url:
        yield url


def expected(model, prompt: str, max_tokens: int, temperature: float = 0.0, seed: int = 0, k: int = 2):
    return decode(
        model, encode(prompt), NativeMTP(model, k, recycle=True) if k else None, max_new_tokens=max_tokens,
        sampling=Sampling(temperature) if temperature else GREEDY, eos=EOS,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def test_streams_of_the_shipped_model_are_decodes_and_so_are_the_counters():
    shipped = load()
    prompts = [prompt.text for prompt in load_prompts("code", 2)]
    with serving(shipped, k=3) as url:
        runs = []
        for prompt in prompts:
            run = expected(shipped, prompt, 20, k=3)
            events = stream(url, {"prompt": prompt, "max_tokens": 20, "temperature": 0, "model": "mtp"})
            assert text_of(events) == decode_text(run.tokens[0])
            runs.append(run)
        seen = counters(url)
    rows = [row for run in runs for record in run.rounds for row in record.rows if row.proposed]
    accepted = [sum(row.accepted > place for row in rows) for place in range(3)]
    assert accepted[0] > len(rows) / 2  # the modules do work
    assert seen["vllm:spec_decode_num_drafts_total"] == len(rows)
    assert seen["vllm:spec_decode_num_draft_tokens_total"] == sum(row.proposed for row in rows)
    assert seen["vllm:spec_decode_num_accepted_tokens_total"] == sum(row.accepted for row in rows) == sum(accepted)
    for place, count in enumerate(accepted):
        assert seen[f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}}'] == count
    assert seen["vllm:generation_tokens_total"] == sum(len(run.tokens[0]) for run in runs)
    assert seen["vllm:prompt_tokens_total"] == sum(map(len, map(encode, prompts)))
    assert seen['vllm:request_success_total{finished_reason="length"}'] == 2
    assert seen["vllm:num_requests_running"] == seen["vllm:num_requests_waiting"] == 0


@pytest.mark.parametrize("k", [0, 2])
def test_a_seed_decides_a_sampled_output(model, k):
    with serving(model, k=k) as url:
        for seed in (1, 2):
            body = {"prompt": "x = ", "max_tokens": 30, "seed": seed, "temperature": 1.0, "ignore_eos": False}
            events = stream(url, body)
            run = expected(model, "x = ", 30, 1.0, seed, k)
            assert text_of(events) == decode_text(token for token in run.tokens[0] if token != EOS)


def test_the_first_chunk_is_the_first_token_and_each_further_one_a_round(model, url):
    run = expected(model, "def f(", 20, 1.0, 5)
    assert EOS not in run.tokens[0]  # which would have no text
    events = stream(url, {"prompt": "def f(", "max_tokens": 20, "seed": 5, "stream_options": {"include_usage": True}})
    *chunks, last = events
    sizes = [len(event["choices"][0]["text"]) for event in chunks]
    assert sizes == [1, *(record.rows[0].emitted for record in run.rounds)]
    assert [event["choices"][0]["finish_reason"] for event in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 6, "completion_tokens": 20, "total_tokens": 26}
    assert len({event["id"] for event in events}) == 1


def test_eos_ends_a_stream_counts_as_a_token_and_has_no_text(model, url):
    runs = ((seed, expected(model, "ab", 30, 1.0, seed)) for seed in range(200))
    seed, run = next((seed, run) for seed, run in runs if run.tokens[0][-1] == EOS)
    *chunks, last = stream(
        url, {"prompt": "ab", "max_tokens": 30, "seed": seed, "stream_options": {"include_usage": True}}
    )  # fmt: skip
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert text_of(chunks) == decode_text(run.tokens[0][:-1])
    assert last["usage"]["completion_tokens"] == len(run.tokens[0])
    ignoring = HTTP.post(url + "/v1/completions", json={
        "prompt": "ab", "max_tokens": 30, "seed": seed, "ignore_eos": True}).json()  # fmt: skip
    assert ignoring["choices"][0]["finish_reason"] == "length"
    assert ignoring["usage"]["completion_tokens"] == 30


def test_one_token_needs_no_round(url, model):
    events = stream(url, {"prompt": "abc", "max_tokens": 1, "temperature": 0})
    assert text_of(events) == decode_text(expected(model, "abc", 1).tokens[0])
    assert len(events) == 1


def test_without_streaming_as_a_chat_and_as_ids(model, url):
    text = decode_text(expected(model, "one\ntwo", 12).tokens[0])
    settings = {"max_tokens": 12, "temperature": 0, "n": 1, "stop": None}
    plain = HTTP.post(url + "/v1/completions", json={"prompt": [encode("one\ntwo")], **settings}).json()
    assert plain["choices"] == [{"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}]
    assert plain["usage"]["completion_tokens"] == 12
    messages = [{"role": "system", "content": "one"}, {"role": "user", "content": "two"}]
    chat = HTTP.post(url + "/v1/chat/completions", json={"messages": messages, **settings}).json()
    assert chat["object"] == "chat.completion"
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": text}
    opening, *rest = stream(url, {"messages": messages, **settings}, "/v1/chat/completions")
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(event["choices"][0]["delta"]["content"] for event in rest) == text


def test_greedy_requests_together_get_what_each_gets_alone(model):
    prompts = ["def f(", "import os\n", "x", "class A:\n    pass\n"]
    with serving(model, k=2) as url, ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(
            lambda prompt: text_of(stream(url, {"prompt": prompt, "max_tokens": 25, "temperature": 0})), prompts
        ))  # fmt: skip
    assert together == [decode_text(expected(model, prompt, 25).tokens[0]) for prompt in prompts]


def test_log_probabilities_are_the_targets(model, url):
    body = {"prompt": "x = 1\n", "max_tokens": 10, "temperature": 0, "logprobs": 2}
    choice = HTTP.post(url + "/v1/completions", json=body).json()["choices"][0]
    ids = encode("x = 1\n" + choice["text"])
    hidden = model.forward(torch.tensor([ids]), model.new_cache(1, len(ids))).hidden[0]
    reference = torch.log_softmax(model.head(hidden), -1)[5:-1]
    given = choice["logprobs"]
    assert "".join(given["tokens"]) == choice["text"]
    assert given["token_logprobs"] == pytest.approx(reference.max(-1).values.tolist(), abs=1e-4)  # greedy
    second = [min(top.values()) for top in given["top_logprobs"]]
    assert second == pytest.approx(reference.topk(2).values[:, 1].tolist(), abs=1e-4)


def test_models_health_and_no_counters_of_drafts_without_drafting(model):
    with serving(model, k=0, name="other") as url:
        assert HTTP.get(url + "/health").status_code == 200
        card = HTTP.get(url + "/v1/models").json()["data"][0]
        assert (card["id"], card["max_model_len"]) == ("other", 256)
        assert "spec_decode" not in HTTP.get(url + "/metrics").text


@pytest.mark.parametrize(
    ("change", "param", "said"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": ["a", "b"]}, "prompt", "one text"),
        ({"prompt": [1, 128]}, "prompt", "below 128"),
        ({"prompt": None}, "prompt", "one text"),
        ({"prompt": "a" * 250}, "max_tokens", "maximum context length is 256"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": "9"}, "max_tokens", "'9'"),
        ({"temperature": -1}, "temperature", "temperature must be"),
        ({"top_p": 0}, "top_p", "top_p must lie"),
        ({"logprobs": 6}, "logprobs", "from 0 to 5"),
        ({"logprobs": 1, "stream": True}, "logprobs", "stream=false"),
        ({"n": 2}, "n", "not supported"),
        ({"stop": ["\n"]}, "stop", "not supported"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream=true"),
        ({"seed": 1.5}, "seed", "whole number"),
    ],
)
def test_a_request_that_cannot_be_served_is_told_why(url, change, param, said):
    body = {"prompt": "abc", "max_tokens": 8} | change
    response = HTTP.post(url + "/v1/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert said in error["message"]


def test_other_refusals(url, model):
    assert HTTP.post(url + "/v1/completions", json={"model": "gpt", "prompt": "a"}).status_code == 404
    assert "not JSON" in HTTP.post(url + "/v1/completions", content="{").json()["error"]["message"]
    assert HTTP.post(url + "/v1/chat/completions", json={"messages": ["a"]}).status_code == 400
    assert HTTP.get(url + "/v1/nothing").status_code == 404
    with serving(model, k=0, api_key="sk-1") as guarded:
        body = {"prompt": "a", "max_tokens": 1}
        assert HTTP.post(guarded + "/v1/completions", json=body).status_code == 401
        key = {"Authorization": "Bearer sk-1"}
        assert HTTP.post(guarded + "/v1/completions", json=body, headers=key).status_code == 200
        assert HTTP.get(guarded + "/metrics").status_code == 200


def test_a_decoding_error_is_told_and_the_server_goes_on(model):
    broken = tiny_model()
    good_head = broken._folded.head.clone()
    broken._folded.head.fill_(float("nan"))
    with serving(broken, k=2) as url:
        body = {"prompt": "abc", "max_tokens": 5, "temperature": 0}
        whole = HTTP.post(url + "/v1/completions", json=body)
        assert whole.status_code == 500
        assert "not finite" in whole.json()["error"]["message"]
        (event,) = stream(url, body)
        assert "not finite" in event["error"]["message"]
        broken._folded.head.copy_(good_head)
        assert text_of(stream(url, body)) == decode_text(expected(model, "abc", 5).tokens[0])


def test_a_model_without_modules_cannot_serve_drafts():
    from mtp import ModelConfig, Transformer

    bare = Transformer(ModelConfig(d_model=32, n_layers=1, n_heads=2, d_ff=64, n_mtp=0)).fold()
    with pytest.raises(ValueError, match="no MTP modules"), serving(bare, k=1):
        pass


def test_a_client_that_leaves_stops_the_decoding(model):
    """It gives the request up after the first chunk; the engine must not go on to the end."""
    with serving(model, k=0) as url:
        for _ in range(3):
            body = {"prompt": "a", "max_tokens": 250, "temperature": 0, "ignore_eos": True, "stream": True}
            with HTTP.stream("POST", url + "/v1/completions", json=body) as response:
                next(response.iter_lines())
        # A later request waits for whatever still runs, so afterwards the counters are final.
        stream(url, {"prompt": "b", "max_tokens": 1, "temperature": 1})
        assert counters(url)["vllm:generation_tokens_total"] < 3 * 250
        assert counters(url).get('vllm:request_success_total{finished_reason="length"}') == 1


class Collector:
    """A job's steps, and an event at its end."""

    def __init__(self):
        self.steps: list[Step | Exception] = []
        self.ended = threading.Event()

    def __call__(self, step):
        self.steps.append(step)
        if isinstance(step, Exception) or step.finish_reason:
            self.ended.set()


def test_waiting_greedy_jobs_share_a_batch_and_others_do_not(model):
    engine = Engine(model, 2, ServerCounters("mtp", 2), max_batch=3)

    def job(limit: int, sampling=GREEDY) -> Job:
        return Job(encode("ab"), limit, sampling, Collector())

    jobs = [job(5), job(5, Sampling(1.0)), job(5), job(6), job(5), job(5)]
    for each in jobs:  # before the thread runs
        engine.submit(each)
    batches = [engine._next_batch() for _ in range(4)]
    numbers = [[jobs.index(each) for each in batch] for batch in batches]
    assert numbers == [[0, 2, 4], [1], [3], [5]]


def test_those_who_wait_at_the_end_are_told(model):
    engine = Engine(model, 2, ServerCounters("mtp", 2))
    waiting = Collector()
    engine.submit(Job(encode("ab"), 5, GREEDY, waiting))
    engine._stopping = True
    engine._work()
    assert "shutting down" in str(waiting.steps[0])


def test_counters_are_each_servers_own(model):
    with serving(model, k=2) as one, serving(model, k=2) as other:
        stream(one, {"prompt": "a", "max_tokens": 3})
        assert counters(one)["vllm:generation_tokens_total"] == 3
        assert counters(other)["vllm:generation_tokens_total"] == 0


def test_many_at_once_all_get_their_own(model, url):
    async def go():
        async with httpx.AsyncClient(timeout=60, verify=False, trust_env=False) as client:
            bodies = [{"prompt": f"x{i}", "max_tokens": 6, "seed": i, "temperature": i % 2} for i in range(12)]
            return await asyncio.gather(*(client.post(url + "/v1/completions", json=body) for body in bodies))

    for number, response in enumerate(asyncio.run(go())):
        run = expected(model, f"x{number}", 6, number % 2, number)
        given = json.loads(response.content)["choices"][0]["text"]
        assert given == decode_text(token for token in run.tokens[0] if token != EOS)
