#!/usr/bin/env python3
"""OpenAI's own client against a running server: openai_client_test.py CONVENE

Needs the package openai (tests/clients/run.sh installs it).
"""

import json
import sys
import unittest

import openai

from server import Server

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place",
        "parameters": {
            "type": "object",
            "properties": {
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer"},
            },
            "required": ["unit", "days"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {
    "type": "object", "properties": {"utc": {"type": "boolean"}}, "required": ["utc"],
    "additionalProperties": False}}}
PERSON = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["sailor", "captain"]},
        "age": {"type": "integer"},
        "alive": {"type": "boolean"},
        "ships": {"type": "array", "items": {"enum": ["Pequod", "Jeroboam"]}, "maxItems": 2},
        "rank": {"anyOf": [{"type": "null"}, {"const": 1}]},
    },
    "required": ["kind", "age", "alive", "ships", "rank"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": "Who goes there?"}]


class OpenAiClient(unittest.TestCase):
    binary = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server(cls.binary)
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()

    def chat(self, **more):
        return self.client.chat.completions.create(
            **{"model": "tale", "messages": ASK, "max_tokens": 200, "seed": 3, **more})

    def respond(self, call=None, **more):
        return (call or self.client.responses.create)(
            **{"model": "tale", "max_output_tokens": 200, "extra_body": {"seed": 3}, **more})

    def check_person(self, text):
        person = json.loads(text)
        self.assertEqual(list(person), PERSON["required"])
        self.assertIn(person["kind"], ["sailor", "captain"])
        self.assertIsInstance(person["age"], int)
        self.assertIsInstance(person["alive"], bool)
        self.assertLessEqual(len(person["ships"]), 2)
        self.assertIn(person["rank"], [None, 1])

    def check_weather(self, call):
        self.assertEqual(call.type, "function")
        self.assertEqual(call.function.name, "get_weather")
        arguments = json.loads(call.function.arguments)
        self.assertIn(arguments["unit"], ["celsius", "fahrenheit"])
        self.assertIsInstance(arguments["days"], int)

    def test_lists_the_model(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["tale"])

    def test_chats(self):
        whole = self.chat(max_tokens=12)
        text = whole.choices[0].message.content
        self.assertTrue(text)
        self.assertEqual(whole.usage.total_tokens,
                         whole.usage.prompt_tokens + whole.usage.completion_tokens)
        streamed = ""
        usage = None
        with self.chat(max_tokens=12, stream=True, stream_options={"include_usage": True}) as stream:
            for chunk in stream:
                usage = chunk.usage or usage
                if chunk.choices:
                    streamed += chunk.choices[0].delta.content or ""
        self.assertEqual(streamed, text)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_gives_several_answers_and_log_probabilities(self):
        answer = self.chat(n=3, max_tokens=4, logprobs=True, top_logprobs=2)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2])
        token = answer.choices[1].logprobs.content[0]
        self.assertLessEqual(token.logprob, 0)
        self.assertEqual(len(token.top_logprobs), 2)
        self.assertEqual(self.chat(seed=4, max_tokens=4).choices[0].message.content,
                         answer.choices[1].message.content)

    def test_completes_texts(self):
        answer = self.client.completions.create(
            model="tale", prompt=["The old", "A ship"], max_tokens=3, temperature=0, logprobs=1,
            extra_body={"ignore_eos": True})
        self.assertEqual(len(answer.choices), 2)
        self.assertEqual(len(answer.choices[0].logprobs.tokens), 3)

    def test_calls_tools(self):
        answer = self.chat(tools=[WEATHER, TIME],
                           tool_choice={"type": "function", "function": {"name": "get_weather"}})
        choice = answer.choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertIsNone(choice.message.content)
        self.check_weather(choice.message.tool_calls[0])
        # The conversation goes on with what the tool has said.
        again = self.chat(max_tokens=5, tools=[WEATHER], messages=ASK + [
            choice.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "rain"}])
        self.assertEqual(len(again.choices), 1)

    def test_required_calls_for_many_seeds(self):
        for seed in range(8):
            choice = self.chat(seed=seed, tools=[WEATHER, TIME], tool_choice="required",
                               parallel_tool_calls=False, temperature=1.3,
                               extra_body={"top_k": 40, "min_p": 0.01}).choices[0]
            self.assertEqual(choice.finish_reason, "tool_calls")
            self.assertEqual(len(choice.message.tool_calls), 1)
            call = choice.message.tool_calls[0]
            if call.function.name == "get_weather":
                self.check_weather(call)
            else:
                self.assertIsInstance(json.loads(call.function.arguments)["utc"], bool)

    def test_streams_calls(self):
        whole = self.chat(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
        with self.client.chat.completions.stream(
                model="tale", messages=ASK, max_tokens=200, seed=3, tools=[WEATHER],
                tool_choice="required", parallel_tool_calls=False) as stream:
            pieces = sum(event.type == "tool_calls.function.arguments.delta" for event in stream)
            final = stream.get_final_completion()
        self.assertGreater(pieces, 1)
        call = final.choices[0].message.tool_calls[0]
        self.check_weather(call)
        self.assertEqual(call.function.arguments,
                         whole.choices[0].message.tool_calls[0].function.arguments)
        self.assertEqual(final.choices[0].finish_reason, "tool_calls")

    def test_answers_in_json(self):
        for seed in range(4):
            answer = self.chat(seed=seed, response_format={
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": PERSON, "strict": True}})
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            self.check_person(answer.choices[0].message.content)
        same = [self.chat(temperature=0, response_format={
            "type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}})
            .choices[0].message.content for _ in range(2)]
        self.assertEqual(same[0], same[1])
        answer = self.chat(response_format={"type": "json_object"}, max_tokens=300)
        if answer.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(answer.choices[0].message.content), dict)

    def test_responses(self):
        to_the_limit = {"seed": 3, "ignore_eos": True}
        response = self.respond(input="Who goes there?", instructions="Be brief.",
                                max_output_tokens=12, extra_body=to_the_limit)
        self.assertEqual(response.status, "incomplete")
        self.assertTrue(response.output_text)
        self.assertEqual(response.usage.output_tokens, 12)
        formatted = self.respond(
            input=[{"role": "user", "content": "Who?"}],
            text={"format": {"type": "json_schema", "name": "person", "schema": PERSON,
                             "strict": True}})
        self.check_person(formatted.output_text)
        flat = {"type": "function", "strict": True, **{
            key: WEATHER["function"][key] for key in ("name", "description", "parameters")}}
        called = self.respond(input="Rain?", tools=[flat], tool_choice="required",
                              parallel_tool_calls=False)
        item = called.output[0]
        self.assertEqual(item.type, "function_call")
        self.assertIn(json.loads(item.arguments)["unit"], ["celsius", "fahrenheit"])
        following = self.respond(max_output_tokens=3, extra_body=to_the_limit, tools=[flat], input=[
            {"role": "user", "content": "Rain?"}, item.model_dump(exclude_none=True),
            {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}])
        self.assertEqual(following.usage.output_tokens, 3)

    def test_streams_responses(self):
        with self.respond(self.client.responses.stream, input="Who?",
                          max_output_tokens=9) as stream:
            types = []
            text = ""
            for event in stream:
                types.append(event.type)
                if event.type == "response.output_text.delta":
                    text += event.delta
        self.assertEqual(types[0], "response.created")
        self.assertIn("response.output_item.added", types)
        self.assertIn("response.content_part.added", types)
        self.assertIn("response.output_text.done", types)
        self.assertIn(types[-1], ("response.completed", "response.incomplete"))
        self.assertTrue(text)

    def test_errors_have_their_class_and_field(self):
        def refused(kind, param, call):
            with self.assertRaises(kind) as caught:
                call()
            self.assertEqual(caught.exception.param, param)
            return caught.exception
        refused(openai.BadRequestError, "top_p", lambda: self.chat(top_p=2))
        refused(openai.NotFoundError, "model", lambda: self.chat(model="other"))
        refused(openai.BadRequestError, "tool_choice", lambda: self.chat(tool_choice="required"))
        pattern = refused(openai.BadRequestError, "response_format", lambda: self.chat(
            response_format={"type": "json_schema", "json_schema": {
                "name": "n", "schema": {"type": "string", "pattern": "a+"}}}))
        self.assertIn('"pattern"', str(pattern))
        refused(openai.BadRequestError, "previous_response_id",
                lambda: self.client.responses.create(model="tale", input="x",
                                                     previous_response_id="resp_1"))
        with self.assertRaises(openai.BadRequestError):
            self.client.embeddings.create(model="tale", input="x")


if __name__ == "__main__":
    OpenAiClient.binary = sys.argv.pop(1)
    unittest.main()
