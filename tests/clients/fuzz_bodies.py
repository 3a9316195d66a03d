#!/usr/bin/env python3
"""Bodies that make little sense against a running server: fuzz_bodies.py CONVENE [BODIES [SECONDS]]

Valid bodies are changed by chance (the same in every run) and sent over sockets. Each must get a
response within a minute: an answer, or an error in OpenAI's form; and the server must serve on. It
ends after SECONDS, if it has not sent all BODIES by then, and says how many it has sent.
"""

import collections
import copy
import http.client
import json
import random
import sys
import threading
import time

from server import Server

TOOL = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", 1, None]},
                                     "c": {"type": "array", "items": {"type": "boolean"}}},
    "required": ["a"], "additionalProperties": False}}}
FLAT_TOOL = {"type": "function", **TOOL["function"]}
CHAT = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Hi é"}],
        "max_tokens": 2, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1,
        "stop": ["x", "\n"], "n": 2, "logprobs": True, "top_logprobs": 2, "logit_bias": {"5": 1},
        "stream": True, "stream_options": {"include_usage": True}, "presence_penalty": 0.5}
SEEDS = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {"messages": CHAT["messages"], "max_completion_tokens": 2,
                              "tools": [TOOL], "tool_choice": "required"}),
    ("/v1/chat/completions", {"messages": CHAT["messages"], "max_tokens": 2, "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "schema": {"anyOf": [
            TOOL["function"]["parameters"], {"$ref": "#/$defs/d"}],
            "$defs": {"d": {"type": ["string", "null"]}}}}}}),
    ("/v1/completions", {"prompt": ["The", "A"], "max_tokens": 2, "logprobs": 1, "stream": False}),
    ("/v1/completions", {"prompt": [[5, 6], [7]], "max_tokens": 2}),
    ("/v1/responses", {"input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"}],
        "instructions": "i", "max_output_tokens": 2, "stream": True, "store": False,
        "tools": [FLAT_TOOL], "text": {"format": {"type": "text"}}}),
    ("/tokenize", {"prompt": "Call me.", "return_token_strs": True}),
    ("/tokenize", {"messages": CHAT["messages"], "add_generation_prompt": True}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
]
VALUES = [None, True, False, 0, 1, -1, 2, 3.5, 1e308, -0.0, 2**31, 2**63, 10**30, "", "auto",
          "none", "x" * 300, "\u0000", "\ud83d\ude00", [], {}, [[]], [None], {"": None}, ["a", 1],
          {"type": "function"}, {"type": "json_object"}, {"$ref": "#"}, {"type": "object"}]


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else (
        enumerate(value) if isinstance(value, list) else ())
    for key, inner in items:
        yield from places(inner, path + (key,))


def changed(value, chance):
    """A copy with one to four changes: values, keys and elements replaced, dropped, added."""
    def other(among):  # a copy: it may be changed itself
        return copy.deepcopy(chance.choice(among))

    value = copy.deepcopy(value)
    for _ in range(chance.randint(1, 4)):
        path = chance.choice([path for path in places(value) if path] or [()])
        if not path:
            return other(VALUES)
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        what = chance.random()
        if what < 0.5:
            holder[path[-1]] = other(VALUES)
        elif what < 0.7:
            del holder[path[-1]]
        elif isinstance(holder, dict):
            name = chance.choice(["stop", "tools", "seed", "type", "anyOf", "enum", "x", ""])
            holder[name] = other(VALUES)
        else:
            holder.append(other(holder + VALUES))
    return value


def body_of(number):
    chance = random.Random(number)
    path, seed = chance.choice(SEEDS)
    data = json.dumps(changed(seed, chance), ensure_ascii=chance.random() < 0.5)
    data = data.encode("utf-8", "surrogatepass")
    if chance.random() < 0.15:  # bytes that are no JSON, or no UTF-8
        at = chance.randrange(len(data) + 1)
        data = data[:at] + bytes(chance.choices(range(256), k=chance.randint(0, 3))) + data[
            at + chance.randint(0, 3):]
    return path, data


class Fuzzer:
    def __init__(self, port, num_bodies, seconds):
        self.port = port
        self.num_bodies = num_bodies
        self.deadline = time.monotonic() + seconds
        self.next = 0
        self.lock = threading.Lock()
        self.statuses = collections.Counter()
        self.failures = []

    def take(self):
        with self.lock:
            if self.next >= self.num_bodies or self.failures or time.monotonic() > self.deadline:
                return None
            self.next += 1
            return self.next - 1

    def check(self, response, text):
        if response.status == 200:
            return None
        if not 400 <= response.status < 500 and response.status != 503:
            return f"has status {response.status}"
        try:
            error = json.loads(text)["error"]
            if isinstance(error["message"], str) and error["message"]:
                return None
        except (ValueError, KeyError, TypeError):
            pass
        return "is no error of OpenAI's form"

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        while (number := self.take()) is not None:
            path, data = body_of(number)
            try:
                connection.request("POST", path, data, {"Content-Type": "application/json"})
                response = connection.getresponse()
                text = response.read()
                complaint = self.check(response, text)
            except (OSError, http.client.HTTPException) as error:
                complaint, text = f"did not come: {error!r}", b""
            with self.lock:
                if complaint:
                    self.failures.append(f"the response to body {number} {complaint}:\n"
                                         f"{path} {data!r}\n{text!r}")
                else:
                    self.statuses[response.status] += 1
        connection.close()


def main():
    binary = sys.argv[1]
    num_bodies = int(sys.argv[2]) if len(sys.argv) > 2 else 20000
    seconds = int(sys.argv[3]) if len(sys.argv) > 3 else 60
    with Server(binary, "--max-batch", "16", "--max-queue", "4096") as server:
        fuzzer = Fuzzer(server.port, num_bodies, seconds)
        threads = [threading.Thread(target=fuzzer.run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for failure in fuzzer.failures:
            print(failure, file=sys.stderr)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("GET", "/health")
        is_healthy = connection.getresponse().status == 200
    print(f"{fuzzer.next} of {num_bodies} bodies in at most {seconds} s; responses by status: "
          f"{dict(sorted(fuzzer.statuses.items()))}")
    if fuzzer.failures or not is_healthy:
        sys.exit("FAILED: the server did not answer every body as it should")


if __name__ == "__main__":
    main()
