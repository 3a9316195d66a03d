"""Conversations for the template fixtures: handpicked ones, and random ones that reach into every corner of a template.

A context is a dict with messages, perhaps tools, documents and add_generation_prompt, and further variables.
"""

import json

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place, in \"words\" & numbers < 100.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where"},
                "days": {"type": "integer", "default": 1},
                "units": {"type": "string", "enum": ["celsius", "fahrenheit"], "nullable": True},
                "spots": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                "options": {
                    "type": "object",
                    "properties": {"hourly": {"type": "boolean"}, "tags": {"type": ["string", "null"]}},
                    "required": ["hourly"],
                },
                "either": {"oneOf": [{"type": "string", "default": "x"}, {"type": "object"}]},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time.", "return": {"type": "string"}}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def tool_call(arguments, id="call12345"):
    return {"id": id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def answer(content):
    return {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": content}


TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CALLS = [
    user("How is it in Zürich?"),
    assistant(None, tool_calls=[tool_call({"city": "Zürich", "days": 2, "options": {"hourly": True}})]),
    answer('{"temperature": 21.5}'),
    assistant("It is 21.5 °C."),
    user("And in 東京?"),
    assistant("", tool_calls=[tool_call('{"city": "東京"}')], thinking="Same tool."),
    answer("18"),
]

HANDPICKED = {
    "one_question": {"messages": [user("Hello?")], "add_generation_prompt": True},
    "one_turn": {"messages": [user("Hello?"), assistant("Hi <there> & \"you\".\n")]},
    "system": {
        "messages": [{"role": "system", "content": " Be brief. "}, user("Why?"), assistant("Because."), user("Why?")],
        "add_generation_prompt": True,
    },
    "two_systems": {"messages": [{"role": "system", "content": "A"}, {"role": "system", "content": "B"}, user("x")]},
    "tools": {"messages": [user("Weather?")], "tools": [WEATHER, CLOCK], "add_generation_prompt": True},
    "no_tools": {"messages": [user("Weather?")], "tools": []},
    "calls": {"messages": CALLS, "tools": [WEATHER], "add_generation_prompt": True},
    "calls_after_system": {"messages": [{"role": "system", "content": "S"}, *CALLS], "add_generation_prompt": False},
    "two_calls": {
        "messages": [user("x"), assistant("", tool_calls=[tool_call({}), tool_call({"a": [1, None]})]), answer("1"), answer("2")]
    },
    "thinking_text": {
        "messages": [user("1+1?"), assistant("<think>\nEasy.\n</think>\n\n2"), user("2+2?"), assistant("<think>Hm</think>4")],
        "enable_thinking": False,
        "add_generation_prompt": True,
    },
    "thinking_field": {
        "messages": [user("1+1?"), assistant("2", reasoning_content="\nEasy.\n"), user("2+2?"), assistant("4", reasoning="More")],
        "enable_thinking": True,
    },
    "thinking_mode": {"messages": [user("x")], "thinking": True, "add_generation_prompt": True},
    "parts": {
        "messages": [
            user([{"type": "text", "text": " What is "}, {"type": "image"}, {"type": "text", "text": "this?"}]),
            assistant([{"type": "text", "text": "A cat."}]),
        ]
    },
    "documents": {
        "messages": [user("x")],
        "documents": [{"doc_id": 1, "title": "T", "text": "D"}],
        "controls": {"citations": True, "length": "long"},
        "add_generation_prompt": True,
    },
    "wrong_order": {"messages": [assistant("Hi"), user("Hello")]},
    "unknown_role": {"messages": [user("x"), {"role": "critic", "content": "no"}]},
    "tool_out_of_order": {"messages": [user("x"), answer("1")]},
    "forbidden_tags": {"messages": [user("x"), assistant("<|channel|>final")]},
    "no_content": {"messages": [user("x"), {"role": "assistant"}]},
}
for context in HANDPICKED.values():
    context.update(TOKENS)

# For the templates that exercise constructs rather than imitate a family.
CONSTRUCTS = {
    "conversation": {
        "messages": [
            {"role": "system", "content": "  padded\tsystem\n\ntext  "},
            user("Hello world, it's 5 < 6 & \"fine\"?"),
            assistant("<think>\nHm.\n</think>\n\nÄrger in ΑΘΗΝΑΣ. 東京 🎉"),
            user("And\r\nlines\x0bof\u2028all kinds."),
        ],
        "given": "from the context",
        "given_later": "also",
        "tree": {
            "text": "añb日",
            "list": [1, 2.5, "three", None, True, {"k": []}, [[]]],
            "object": {"items": 1, "keys": "hidden?"},
            "number": -0.1,
            "big": 1e16,
            "nothing": None,
            "yes": True,
            "quote's": "\"\\\n\x1f\x7f😀",
        },
    },
    "single": {"messages": [user("x")], "given": 1, "tree": {"text": "", "list": [1, 2], "object": {"items": []}}},
    "pair": {"messages": [user("x"), assistant("y")], "tree": {"text": "ab", "list": [0], "object": {"items": 0}}},
    "triple": {"messages": [user("x"), assistant("y"), user("z")], "tree": {}},
    "with_tools": {"messages": [user("x")] * 4, "tools": [CLOCK], "tree": {"text": "t", "list": [], "object": {"items": {}}}},
    "with_documents": {"messages": [user("x")] * 4, "documents": [{"text": "d"}] * 2},
}


class RandomContexts:
    """Valid, odd and broken conversations; `random` is a random.Random."""

    TEXTS = (
        "Hi", "What's 2 < 3 & \"x\"?", "日本語のテキスト 🎉", "line1\nline2\n", "  padded  ", "", "12", "3.5", "é ß\u2028z",
        "<think>\nhmm\n</think>\n\nAnswer", "<tool_response>x</tool_response>", '{"k": 1}', "<|channel|>final<|message|>x",
    )  # fmt: skip
    VARIABLES = {
        "enable_thinking": (True, False),
        "thinking": (True, False),
        "reasoning_effort": ("low", "high"),
        "builtin_tools": (["browser", "python"], []),
        "model_identity": ("You are X.",),
        "controls": ({"citations": 1}, {"length": "long"}),
        "available_tools": ([CLOCK],),
        "tools_in_user_message": (True, False),
        "date_string": ("1 Jan 2024",),
    }

    def __init__(self, random):
        self.random = random

    def chance(self, probability):
        return self.random.random() < probability

    def text(self):
        if self.chance(0.5):
            return " ".join(self.random.choices(["alpha", "beta", "γ", "x-y"], k=self.random.randint(1, 12)))
        return self.random.choice(self.TEXTS)

    def content(self):
        if self.chance(0.85):
            return self.text()
        image = {"type": "image_url", "image_url": {"url": "http://x"}}
        parts = [{"type": "text", "text": self.text()}, {"type": "text", "text": self.text()}, {"type": "image"}, image]
        return self.random.choice([self.random.sample(parts, self.random.randint(0, 3)), None, 5, {"content": "x"}])

    def schema(self, depth=0):
        types = ["string", "number", "integer", "boolean", "array", "object", "odd", ["string", "null"]]
        schema = {"type": self.random.choice(types)}
        if self.chance(0.6):
            schema["description"] = self.text()
        if schema["type"] == "array" and self.chance(0.8) and depth < 3:
            schema["items"] = self.schema(depth + 1)
        if schema["type"] == "object" and self.chance(0.8) and depth < 3:
            schema["properties"] = {f"p{i}": self.schema(depth + 1) for i in range(self.random.randint(0, 3))}
            schema["required"] = ["p0"]
        if self.chance(0.2):
            schema["enum"] = ["a", "b<c"]
        if self.chance(0.2):
            schema["default"] = self.random.choice(["a", 1, None, [1], True, 0.1])
        if self.chance(0.15):
            schema["nullable"] = True
        if self.chance(0.15) and depth < 3:
            schema["oneOf"] = [self.schema(depth + 1) for _ in range(self.random.randint(1, 3))]
        return schema

    def tool(self):
        function = {"name": self.random.choice(["get_weather", "f"]), "description": self.text()}
        if self.chance(0.9):
            properties = {f"a{i}": self.schema() for i in range(self.random.randint(0, 3))}
            function["parameters"] = {"type": "object", "properties": properties, "required": ["a0"]}
        if self.chance(0.2):
            function["return"] = {"type": "string"}
        return {"type": "function", "function": function} if self.chance(0.93) else function

    def call(self):
        values = ["x", 1, 2.5, True, None, [1, 2, {"z": "é"}], {"q": "<>"}]
        arguments = {f"a{i}": self.random.choice(values) for i in range(self.random.randint(0, 3))}
        call = {"function": {"name": "f", "arguments": arguments if self.chance(0.7) else json.dumps(arguments)}}
        if self.chance(0.8):
            call["type"] = "function"
        if self.chance(0.8):
            call["id"] = self.random.choice(["abcdefghi", "call_1___", "x"])
        return call if self.chance(0.92) else call["function"]

    def turn(self):
        yield user(self.content())
        if self.chance(0.35):
            calls = [self.call() for _ in range(self.random.randint(0, 2))]
            yield assistant(self.random.choice(["", None, self.text()]), tool_calls=calls)
            for _ in range(self.random.randint(0, 2)):
                yield {"role": "tool", "content": self.content(), "tool_call_id": "abcdefghi", "name": "f"}
            if self.chance(0.6):
                yield assistant(self.text())
        elif self.chance(0.85):
            message = assistant(self.content())
            if self.chance(0.3):
                message[self.random.choice(["reasoning_content", "thinking", "reasoning"])] = self.random.choice([self.text(), None])
            if self.chance(0.1):
                message["prefix"] = True
            yield message
        if self.chance(0.03):
            yield {"role": "odd", "content": "x"}

    def context(self):
        messages = []
        if self.chance(0.5):
            messages.append({"role": self.random.choice(["system", "system", "developer"]), "content": self.content()})
        for _ in range(self.random.randint(1, 4)):
            messages.extend(self.turn())
        context = {"messages": messages}
        if self.chance(0.5):
            context["tools"] = [self.tool() for _ in range(self.random.randint(0, 3))]
        if self.chance(0.15):
            context["documents"] = [{"title": "t", "text": "x", "doc_id": 1}]
        if self.chance(0.7):
            context["add_generation_prompt"] = self.chance(0.7)
        if self.chance(0.9):
            context.update(TOKENS)
        for name, values in self.VARIABLES.items():
            if self.chance(0.25):
                context[name] = self.random.choice(values)
        return context
