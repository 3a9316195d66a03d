#!/usr/bin/env python3
"""Makes the golden tokenizer fixtures: small tokenizers of every style and what the `tokenizers` package makes of texts.

    pip install -r tools/requirements.txt
    python tools/make_tokenizer_fixtures.py                       # rewrites tests/golden/tokenizers
    python tools/make_tokenizer_fixtures.py --tokenizer DIR --count 10000 --out tests/golden/tokenizers/mine

The second form checks any tokenizer: it copies the files of DIR (tokenizer.json, or vocab.json and merges.txt with their
configuration) and writes cases for random Unicode strings; the test of src/text reads every directory below
tests/golden/tokenizers. Each has

    tokenizer.json, beside it for some a tokenizer_config.json (or vocab.json, merges.txt, tokenizer_config.json)
    cases.json      {"cases": [...]}, each {"text", "ids"} and, where they differ from the one before,
                    "ids_without_special"     encoded with add_special_tokens=False
                    "ids_unparsed"            the same with special tokens in the text taken as text
                    "decoded"                 the ids decoded; the text if missing
                    "decoded_without_special" with skip_special_tokens=True; "decoded" if missing
                    Cases without "text" are random ids to decode.

components.json holds single normalizers, pre-tokenizers, decoders and whole tokenizers of a few tokens:
    [{"kind", "config", "cases": [[input, output], ...]}, ...]; of tokenizers with added tokens the cases have the ids with
    special tokens taken as text, and the ids decoded without special tokens, too.
"""

import argparse
import json
import pathlib
import shutil

import tokenizers
from tokenizers import Tokenizer, processors

from tokenizer_fixture_components import components
from tokenizer_fixture_styles import TOKENIZERS, qwen2
from tokenizer_fixture_texts import HANDPICKED, generator, random_text


def make_cases(tokenizer, texts, rng, num_id_cases):
    """What the package says, for texts and for random ids."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    cases = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        case = {"text": text, "ids": ids}
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = True
        unparsed = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        if plain != ids:
            case["ids_without_special"] = plain
        if unparsed != plain:
            case["ids_unparsed"] = unparsed
        cases.append(case)
    num_ids = tokenizer.get_vocab_size()
    for _ in range(num_id_cases):
        cases.append({"ids": [rng.randrange(num_ids) for _ in range(rng.randint(1, 24))]})
    for case in cases:
        decoded = tokenizer.decode(case["ids"], skip_special_tokens=False)
        if decoded != case.get("text"):
            case["decoded"] = decoded
        skipped = tokenizer.decode(case["ids"], skip_special_tokens=True)
        if skipped != decoded:
            case["decoded_without_special"] = skipped
    return cases


def write_lines(path, head, items, tail):
    """JSON with an item per line."""
    lines = ",\n".join(json.dumps(item, ensure_ascii=False, separators=(",", ":")) for item in items)
    path.write_text(f"{head}\n{lines}\n{tail}\n", encoding="utf-8", newline="\n")


def added_contents(tokenizer):
    return [token.content for token in tokenizer.get_added_tokens_decoder().values()]


def write_cases(tokenizer, directory, count, seed, id_cases):
    rng = generator(seed)
    tokens = added_contents(tokenizer)
    around = [f"Hello {t} world{t}!" for t in tokens[:8]] + [t + t for t in tokens[:4]] + [f" {t}\n" for t in tokens[:4]]
    texts = HANDPICKED + around + [random_text(rng, tokens) for _ in range(count)]
    write_lines(directory / "cases.json", '{"cases": [', make_cases(tokenizer, texts, rng, id_cases), "]}")


def write_files_form(tokenizer, directory):
    """vocab.json and merges.txt (with CRLF), as the first Qwen2 checkpoints have them."""
    document = json.loads(tokenizer.to_str())
    model = document["model"]
    (directory / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2"] + [" ".join(merge) for merge in model["merges"]]
    (directory / "merges.txt").write_bytes("".join(line + "\r\n" for line in lines).encode())
    decoder = {str(t.pop("id")): t for t in document["added_tokens"]}
    config = {
        "add_prefix_space": False, "added_tokens_decoder": decoder, "bos_token": None, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "unk_token": None, "tokenizer_class": "Qwen2Tokenizer",
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
    }  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def token(content, **flags):
    """A token as tokenizer_config.json spells it."""
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True} | flags


# What tokenizer_config.json says beside the tokenizer.json of qwen2(), whose template then begins with <|im_start|>.
CONFIGURATIONS = {
    # The two flags say the opposite of the template, and count for nothing beside a tokenizer.json. The tokens change how
    # two are matched (one keeps being special), and add some, in the order of their ids; so do roles and a list.
    "configured": {
        "add_bos_token": False, "add_eos_token": True, "bos_token": "<|bos|>", "eos_token": "<|end|>", "unk_token": None,
        "pad_token": "ing", "additional_special_tokens": ["<|im_start|>", "<|extra|>", "<|bos|>"],
        "added_tokens_decoder": {
            "571": token("<|late|>", special=False, rstrip=True), "563": token("<think>"), "570": token("<|end|>", special=False),
            "560": token("<|endoftext|>", lstrip=True, special=False), "99": token("Paris", special=False, normalized=True),
        },
    },
    # Without added_tokens_decoder a role makes a token special, and the newer list hides the older one.
    "named_roles": {
        "eos_token": "<think>", "pad_token": {"__type": "AddedToken", **token("<|pad|>", rstrip=True, special=False)},
        "extra_special_tokens": ["<|one|>", "<|two|>", "</think>"], "additional_special_tokens": ["<|hidden|>"],
    },
}  # fmt: skip


def write_configured(directory, config):
    tokenizer = qwen2()
    start = "<|im_start|>"
    tokenizer.post_processor = processors.TemplateProcessing(f"{start} $A", f"{start} $A $B", [(start, tokenizer.token_to_id(start))])
    (directory / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | config
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def load(directory):
    """The package's tokenizer for the files in `directory`; what transformers makes of it where a configuration says more."""
    has_json = (directory / "tokenizer.json").exists()
    if has_json and not (directory / "tokenizer_config.json").exists():
        return Tokenizer.from_file(str(directory / "tokenizer.json"))
    import transformers

    # AutoTokenizer might choose a class that takes no more than the vocabulary from tokenizer.json.
    loader = transformers.TokenizersBackend if has_json else transformers.AutoTokenizer
    return loader.from_pretrained(str(directory))._tokenizer


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/golden/tokenizers")
    parser.add_argument("--tokenizer", type=pathlib.Path, help="make cases for this tokenizer directory instead")
    parser.add_argument("--count", type=int, help="random strings per tokenizer (default 60; 10000 with --tokenizer)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    if arguments.tokenizer:
        tokenizer = load(arguments.tokenizer)
        count = arguments.count or 10_000
        write_cases(tokenizer, arguments.out, count, arguments.seed, count)
        for name in ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json", "added_tokens.json",
                     "special_tokens_map.json", "config.json"):  # fmt: skip
            if (arguments.tokenizer / name).exists() and arguments.tokenizer.resolve() != arguments.out.resolve():
                shutil.copy(arguments.tokenizer / name, arguments.out / name)
        return

    print(f"tokenizers {tokenizers.__version__}")
    count = arguments.count or 60
    for number, (name, make) in enumerate(TOKENIZERS.items()):
        directory = arguments.out / name
        directory.mkdir(exist_ok=True)
        tokenizer = make()
        (directory / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
        write_cases(tokenizer, directory, count, arguments.seed + number, 20)
    directory = arguments.out / "qwen2_files"
    directory.mkdir(exist_ok=True)
    write_files_form(qwen2(), directory)
    write_cases(load(directory), directory, count, arguments.seed, 20)
    for number, (name, config) in enumerate(CONFIGURATIONS.items()):
        directory = arguments.out / name
        directory.mkdir(exist_ok=True)
        write_configured(directory, config)
        write_cases(load(directory), directory, count // 2, arguments.seed + 100 + number, 20)
    write_lines(arguments.out / "components.json", "[", components(), "]")


if __name__ == "__main__":
    main()
