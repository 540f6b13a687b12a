"""The streaming client: what it measures, and a name for everything that can go wrong with a request."""

import asyncio
import socket

import pytest
from scripted_server import DONE, Answer, ScriptedServer, chunk, event, good, usage

from mtp.remote.client import Client, Fault, Reply, RequestSettings

SETTINGS = RequestSettings(max_tokens=4, temperature=0.0, seed=0)


def ask(answer: Answer, wanted: RequestSettings = SETTINGS, timeout: float = 20.0) -> Reply:
    with ScriptedServer(lambda number, body: answer) as server:
        return ask_at(server.url, wanted, timeout)


def ask_at(url: str, wanted: RequestSettings = SETTINGS, timeout: float = 20.0) -> Reply:
    async def go() -> Reply:
        async with Client(url, timeout) as client:
            return await client.stream(wanted.body("hi", "m"), wanted.path)

    return asyncio.run(go())


def fault(answer: Answer, timeout: float = 20.0) -> Fault:
    with pytest.raises(Fault) as caught:
        ask(answer, timeout=timeout)
    return caught.value


def test_tpot_divides_by_tokens_not_by_chunks():
    reply = Reply("", tokens=9, prompt_tokens=1, finish_reason=None, sent=1.0, first=3.0, last=7.0, chunks=3)
    assert reply.ttft == 2.0
    assert reply.tpot == 0.5  # 4 s for the 8 tokens after the first
    assert Reply("", 1, 1, None, 1.0, 3.0, 3.0, 1).tpot is None


def test_a_stream_is_collected_and_its_tokens_are_the_servers_count():
    reply = ask(Answer([chunk("a"), chunk("bcd"), chunk("", "stop"), usage(5), DONE]))
    assert (reply.text, reply.tokens, reply.prompt_tokens, reply.finish_reason) == ("abcd", 5, 3, "stop")
    assert reply.chunks == 3  # EOS brings no text and is a token
    assert reply.sent < reply.first < reply.last


def test_a_stream_may_end_without_done_when_nothing_else_is_missing():
    last = {"choices": [{"delta": {}, "finish_reason": "length"}], "usage": {"completion_tokens": 2}}
    parts = [event({"choices": [{"delta": {"content": letter}}]}) for letter in "ab"]
    reply = ask(Answer([*parts, event(last)]), RequestSettings(4, 0.0, 0, chat=True))
    assert (reply.text, reply.tokens, reply.finish_reason) == ("ab", 2, "length")


def test_a_chats_role_is_no_token_and_thinking_is():
    deltas = [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}, {"content": "yes"}]
    parts = [event({"choices": [{"delta": delta, "finish_reason": None}]}) for delta in deltas]
    reply = ask(Answer([*parts, usage(2), DONE]), RequestSettings(4, 0.0, 0, chat=True))
    assert reply.text == "hmyes"
    assert reply.chunks == 2


def test_events_survive_odd_line_ends_separators_and_cuts_inside_a_character():
    line = 'data: {"choices": [{"text": "一\u2028\x85二"}]}'.encode()  # str.splitlines would cut twice
    spread = b": a comment\r\n" + b"event: x\r\n" + line + b"\r\n\r\n"
    middle = spread.index("一".encode()) + 1
    split_data = b'data: {"choices":\ndata: [{"text": "!"}]}\n\n'
    reply = ask(Answer([b"data: {}\n\n", spread[:middle], spread[middle:], split_data, usage(2), DONE]))
    assert reply.text == "一\u2028\x85二!"


def test_the_request_says_what_both_sides_must_do_alike():
    with ScriptedServer(lambda number, body: good()) as server:
        ask_at(server.url, RequestSettings(7, 0.5, 3, top_p=0.9, ignore_eos=True))
        ask_at(server.url + "/v1/", RequestSettings(7, 0.5, 3, chat=True))
    (target, _, body), (chat_target, _, chat_body) = server.requests
    assert target == "POST /v1/completions"
    assert body == {
        "model": "m", "prompt": "hi", "max_tokens": 7, "temperature": 0.5, "seed": 3, "top_p": 0.9, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert chat_target == "POST /v1/chat/completions"
    assert chat_body["messages"] == [{"role": "user", "content": "hi"}]
    assert not {"prompt", "top_k", "top_p", "ignore_eos"} & chat_body.keys()


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (Answer([b'{"error": {"message": "CUDA out of memory"}}'], 500), "HTTP 500", "CUDA out of memory"),
        (Answer([b'{"object": "error", "message": "too long"}'], 400), "HTTP 400", "too long"),
        (Answer([b'{"detail": "Not Found"}'], 404), "HTTP 404", "Not Found"),
        (Answer([b"<html>busy\n now</html>"], 503), "HTTP 503", "<html>busy now</html>"),
        (Answer([chunk("a"), chunk("b")], end="cut"), "cut stream", ""),
        (Answer([chunk("a"), chunk("b")]), "cut stream", "after 2 chunks without [DONE]"),
        (Answer([chunk("a"), usage(1)]), "cut stream", "without [DONE]"),
        (Answer([chunk("a"), chunk("b", "stop")]), "cut stream", "without [DONE]"),
        (Answer([b"<html>hello</html>"]), "cut stream", "without [DONE]"),
        (Answer([chunk("a"), event("{oops")]), "malformed stream", "{oops"),
        (Answer([event("[1, 2]"), DONE]), "malformed stream", "[1, 2]"),
        (Answer([event({"choices": ["x"]}), DONE]), "malformed stream", '"x"'),
        (Answer([chunk("a"), DONE]), "no usage", "include_usage"),
        (Answer([chunk("a"), event({"choices": [], "usage": {"completion_tokens": 0}}), DONE]), "no usage", "counts"),
        (Answer([usage(0), DONE]), "empty output", "no output"),
        (Answer([chunk("a"), event({"error": {"message": "engine died"}})]), "error in the stream", "engine died"),
    ],
)  # fmt: skip
def test_each_fault_has_its_name_and_the_servers_words(answer, kind, said):
    caught = fault(answer)
    assert caught.kind == kind
    assert said in caught.detail
    assert not caught.server_is_gone


@pytest.mark.parametrize("end", ["silence", "drip"])
def test_a_request_ends_in_time_even_if_the_server_keeps_sending(end):
    caught = fault(Answer([chunk("a")], end=end), timeout=0.3)
    assert caught.kind == "timeout"
    assert "0.3 s" in caught.detail
    assert caught.server_is_gone


def test_nobody_listening():
    with socket.create_server(("127.0.0.1", 0)) as held:
        free = held.getsockname()[1]
    with pytest.raises(Fault, match=f"unreachable: http://127.0.0.1:{free}") as caught:
        ask_at(f"http://127.0.0.1:{free}")
    assert caught.value.server_is_gone


def test_the_key_is_sent_and_never_repeated(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with ScriptedServer(lambda number, body: Answer([b'{"error": "bad key sk-secret"}'], 401)) as server:
        with pytest.raises(Fault) as caught:
            ask_at(server.url)
        assert server.requests[0][1]["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in str(caught.value)
    assert "bad key ***" in str(caught.value)


def test_a_proxy_in_the_environment_is_not_asked_for_this_machine(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert ask(good()).text == "abcd"


@pytest.mark.parametrize("url", ["ftp://host", "http://", "", "http://user:secret@host:8000"])
def test_unusable_addresses_are_refused_without_repeating_a_password(url):
    with pytest.raises(ValueError, match="http://localhost:8000|OPENAI_API_KEY") as caught:
        Client(url, 1.0)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://host:8000", "host:8000", "http://host:8000/", "http://host:8000/v1/"])
def test_the_address_may_be_written_in_several_ways(url):
    assert Client(url, 1.0).url == "http://host:8000"
