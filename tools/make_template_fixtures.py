#!/usr/bin/env python3
"""Makes the golden chat template fixtures: conversations, and what transformers' apply_chat_template makes of them.

    pip install -r tools/requirements.txt
    python tools/make_template_fixtures.py                       # rewrites tests/golden/templates
    python tools/make_template_fixtures.py --template FILE --contexts DIR --random 200 --out tests/golden/templates/mine

The first form renders every tests/golden/templates/*/template.jinja (written for convene; edit them by hand) and evaluates
every line of tests/golden/templates/expressions.txt. The second checks any template: FILE is a .jinja file or a
tokenizer_config.json, DIR holds contexts (*.json: an object with messages and whatever else the template reads; without
--contexts the handpicked ones of template_contexts.py are used), and --random adds random ones. The test of src/text reads
every directory below tests/golden/templates. Each has

    template.jinja
    cases.json     {"cases": [...]}, each {"name", "context"} and "text" or "error": the message of raise_exception, or null
                   where transformers fails otherwise.

expressions.json is [[expression, text], ...] with null for an error. The time of strftime_now is 2 January 2025, 03:04:05.
"""

import argparse
import datetime
import json
import pathlib
import random

import jinja2
from template_contexts import CONSTRUCTS, HANDPICKED, RandomContexts
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

GOLDEN = pathlib.Path(__file__).parent.parent / "tests" / "golden" / "templates"
CONSTRUCT_TEMPLATES = ("whitespace", "loops", "scopes", "macros", "blocks", "data", "text_tools", "undefined")


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2025, 1, 2, 3, 4, 5)


chat_template_utils.datetime = FixedClock
TOKENIZER = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))


def render(source, context):
    """{"text"} or {"error"} of a context."""
    variables = json.loads(json.dumps(context))
    messages = variables.pop("messages")
    try:
        return {"text": TOKENIZER.apply_chat_template(messages, chat_template=source, tokenize=False, **variables)}
    except jinja2.exceptions.TemplateError as error:
        return {"error": str(error) if type(error) is jinja2.exceptions.TemplateError else None}
    except Exception:  # whatever Python raises within a template
        return {"error": None}


def write_cases(directory, source, contexts):
    directory.mkdir(parents=True, exist_ok=True)
    cases = [{"name": name, "context": context, **render(source, context)} for name, context in contexts.items()]
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (directory / "cases.json").write_text('{"cases": [\n' + lines + "\n]}\n", encoding="utf-8")
    num_errors = sum("error" in case for case in cases)
    print(f"{directory.name}: {len(cases)} cases, {num_errors} of them errors")


def write_expressions():
    results = []
    for line in (GOLDEN / "expressions.txt").read_text(encoding="utf-8").split("\n"):
        if line:
            result = render("{{ " + line + " }}", {"messages": [{"role": "user"}]})
            results.append([line, result.get("text")])
    lines = ",\n".join(json.dumps(result) for result in results)
    (GOLDEN / "expressions.json").write_text("[\n" + lines + "\n]\n", encoding="utf-8")
    print(f"expressions: {len(results)}, {sum(text is None for _, text in results)} of them errors")


def read_template(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".json":
        return text
    template = json.loads(text)["chat_template"]
    if isinstance(template, str):
        return template
    return next(entry["template"] for entry in template if entry["name"] == "default")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--template", type=pathlib.Path)
    parser.add_argument("--contexts", type=pathlib.Path)
    parser.add_argument("--random", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()

    if options.template is None:
        for path in sorted(GOLDEN.glob("*/template.jinja")):
            is_construct = path.parent.name in CONSTRUCT_TEMPLATES
            write_cases(path.parent, path.read_bytes().decode(), CONSTRUCTS if is_construct else HANDPICKED)
        write_expressions()
        return
    if options.out is None:
        parser.error("--template needs --out")
    contexts = dict(HANDPICKED)
    if options.contexts:
        contexts = {path.stem: json.loads(path.read_text()) for path in sorted(options.contexts.glob("*.json"))}
    generator = RandomContexts(random.Random(options.seed))
    contexts.update({f"random_{i}": generator.context() for i in range(options.random)})
    source = read_template(options.template)
    write_cases(options.out, source, contexts)
    (options.out / "template.jinja").write_text(source, encoding="utf-8", newline="")


if __name__ == "__main__":
    main()
