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
import copy
import json
import pathlib
import shutil
import tempfile
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import precompiled_charsmap
from tokenizer_fixture_texts import BITS, HANDPICKED, TRAINING_TEXTS, generator, random_text

GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = GPT4.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^" + "\r\n" + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
    "\r\n" + r"]*|\s*[" + "\r\n" + r"]+|\s+(?!\S)|\s+"
)
# DeepSeek-LLM's and V2's, in the order in which they are applied.
DEEPSEEK_LLM = [
    r"[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⲲⲳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",  # noqa: E501
    r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-\ud7ff]+",
    r"\p{N}+",
]
MARK = "▁"


def special(content, **flags):
    return AddedToken(content, special=True, normalized=False, **flags)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def train(tokenizer, vocab_size=420, alphabet=(), special_tokens=()):
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=list(alphabet), special_tokens=list(special_tokens), show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING_TEXTS, trainer)
    return tokenizer


def byte_level(normalizer, pre_tokenizer, special_tokens, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 560, pre_tokenizers.ByteLevel.alphabet(), special_tokens)
    tokenizer.model.ignore_merges = ignore_merges
    return tokenizer


def olmoe():
    tokenizer = byte_level(normalizers.NFC(), pre_tokenizers.ByteLevel(False), ["<|endoftext|>", "<|padding|>"])
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(12, 1, -1)])
    tokenizer.add_tokens(["|||EMAIL_ADDRESS|||"])
    tokenizer.post_processor = processors.ByteLevel()
    return tokenizer


def qwen2():
    cut = pre_tokenizers.Sequence([split(QWEN2), pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer = byte_level(normalizers.NFC(), cut, [])
    tokenizer.add_special_tokens([special(t) for t in ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]])
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def deepseek():
    cut = pre_tokenizers.Sequence(
        [split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    begin, end = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
    tokenizer = byte_level(normalizers.Sequence([]), cut, [begin, end])
    tokenizer.add_tokens([AddedToken("<｜User｜>", normalized=True), AddedToken("<think>", normalized=True)])
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(), processors.TemplateProcessing(f"{begin} $A", f"{begin} $A $B", [(begin, 0)])]
    )
    return tokenizer


def digits():
    """The older DeepSeek style: several splits, single digits, the prefix space."""
    cut = pre_tokenizers.Sequence(
        [split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"),
         pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(True, use_regex=False)]
    )  # fmt: skip
    return byte_level(None, cut, ["<s>", "</s>"])


def cl100k():
    cut = pre_tokenizers.Sequence([split(GPT4), pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer = byte_level(None, cut, [], ignore_merges=True)
    tokenizer.add_special_tokens([special(t) for t in ["<|endoftext|>", "<|fim_prefix|>", "<|endofprompt|>"]])
    return tokenizer


def o200k():
    cut = pre_tokenizers.Sequence([split(O200K), pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer = byte_level(None, cut, [])
    tokenizer.add_special_tokens([special(t) for t in ["<|startoftext|>", "<|endoftext|>", "<|channel|>", "<|end|>"]])
    return tokenizer


def sentencepiece(normalizer, pre_tokenizer, training_cut, decoder, fuse_unk=True, byte_fallback=True):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse_unk, byte_fallback=byte_fallback))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = training_cut
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else []
    train(tokenizer, 560, special_tokens=["<unk>", "<s>", "</s>"] + byte_tokens)
    # The byte tokens belong to the model, not to the added tokens; rare letters are left to them.
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    if byte_fallback:
        drop_letters(document["model"])
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    return tokenizer


def drop_letters(model):
    """Removes every other letter beyond Latin that no merge needs."""
    needed = {part for merge in model["merges"] for part in merge}
    kept = [t for i, t in enumerate(model["vocab"]) if len(t) > 1 or ord(t) < 0x250 or t in needed or i % 2 or t == MARK]
    model["vocab"] = {token: i for i, token in enumerate(kept)}


def spm_decoder():
    return decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


def mixtral():
    """As converted from SentencePiece: the normalizer marks spaces, nothing is cut."""
    normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    cut = pre_tokenizers.Split(MARK, "merged_with_next")
    tokenizer = sentencepiece(normalizer, None, cut, spm_decoder())
    tokenizer.add_special_tokens([special("[INST]"), special("[/INST]")])
    return tokenizer


def metaspace(scheme, cuts):
    metaspace = pre_tokenizers.Metaspace(MARK, scheme, cuts)
    decoder = spm_decoder() if scheme == "first" else decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(MARK, scheme, cuts)])
    tokenizer = sentencepiece(None, metaspace, pre_tokenizers.Metaspace(MARK, scheme), decoder)
    tokenizer.add_special_tokens([special("[INST]"), special("[/INST]")])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def unknown():
    """No byte fallback: unknown characters are single unknown tokens; tokens are joined by spaces."""
    tokenizer = sentencepiece(None, pre_tokenizers.Whitespace(), pre_tokenizers.Whitespace(), None, False, False)
    document = json.loads(tokenizer.to_str())
    document["decoder"] = None
    return Tokenizer.from_str(json.dumps(document))


def added():
    """Every flag of added tokens, with a normalizer that changes them."""
    normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(r" {2,}"), "  ")]
    )
    tokenizer = byte_level(normalizer, pre_tokenizers.ByteLevel(False), ["<|end|>"])
    tokenizer.add_tokens([
        AddedToken("Paris", normalized=True), AddedToken("lower", normalized=False),
        AddedToken("ＦＵＬＬ", normalized=True), AddedToken("word", single_word=True, normalized=True),
        AddedToken("WORD", single_word=True, normalized=False), AddedToken("[L]", lstrip=True, normalized=False),
        AddedToken("[R]", rstrip=True, normalized=False), AddedToken("[LR]", lstrip=True, rstrip=True, normalized=True),
        AddedToken("[LRS]", lstrip=True, rstrip=True, single_word=True, normalized=False),
        AddedToken("ab", normalized=False), AddedToken("abc", normalized=False), AddedToken("bcd", normalized=False),
        AddedToken("  ", normalized=False), AddedToken("\n\n", normalized=True), AddedToken("é", normalized=True),
        AddedToken("the", normalized=True, single_word=True),
    ])  # fmt: skip
    tokenizer.add_special_tokens([
        special("<|start|>"), special("<|pad|>", lstrip=True, rstrip=True),
        AddedToken("<MASK>", special=True, normalized=True, lstrip=True), AddedToken("<Sep>", special=True, normalized=True),
    ])  # fmt: skip
    ids = [(t, tokenizer.token_to_id(t)) for t in ["<|start|>", "<|end|>"]]
    tokenizer.post_processor = processors.TemplateProcessing("<|start|> $A <|end|>", "$A $B", ids)
    return tokenizer


# As T5's character map, but for a few: NFKC, removed and joined characters. The last two are awkward: a beginning that is
# replaced in the place of the whole, and a replacement that is long.
CHARACTER_MAP = (
    {chr(c): unicodedata.normalize("NFKC", chr(c)) for c in [*range(0xFF01, 0xFF5F), *range(0xFB00, 0xFB07), *range(0x2160, 0x2170),
                                                            0xAA, 0xB2, 0xB3, 0xB9, 0xBA, 0xBC, 0xBD, 0x2026, 0x2122, 0x212B]}
    | {base + mark: unicodedata.normalize("NFC", base + mark) for base in "aeiounAEIOUN" for mark in "\u0300\u0301\u0302\u0303\u0308"}
    | {c: " " for c in "\t\n\r\x0b\x0c\x85\xa0\u1680\u2003\u2028\u2029\u3000"}
    | {chr(c): "" for c in [*range(0x01, 0x09), 0x7F, 0x200B, 0xAD, 0xFEFF]}
    | {"x": "ks", "\u0338": "/", "\u0600": "#", "\ufdfa": "صلى الله عليه وسلم"}
)  # fmt: skip


def character_map():
    return normalizers.Precompiled(precompiled_charsmap.build({k.encode(): v for k, v in CHARACTER_MAP.items()}))


def unigram(normalizer, pre_tokenizer, decoder, special_tokens, byte_fallback=False):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.UnigramTrainer(vocab_size=420, special_tokens=special_tokens, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TRAINING_TEXTS, trainer)
    tokenizer.decoder = decoder
    document = json.loads(tokenizer.to_str())
    if byte_fallback:  # after the training, which would count them
        document["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
        document["model"]["byte_fallback"] = True
    tokenizer = Tokenizer.from_str(json.dumps(document))
    ids = [("</s>", tokenizer.token_to_id("</s>"))]
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", ids)
    return tokenizer


def t5():
    cut = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(MARK, "always")])
    tokenizer = unigram(character_map(), cut, decoders.Metaspace(MARK, "always"), ["<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens([special(f"<extra_id_{i}>") for i in range(3)])
    return tokenizer


def unigram_bytes():
    """One word for the whole text, unknown characters as bytes."""
    decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(MARK, "first", False)])
    special_tokens = ["<unk>", "<s>", "</s>"]
    return unigram(None, pre_tokenizers.Metaspace(MARK, "first", False), decoder, special_tokens, byte_fallback=True)


TOKENIZERS = {
    "olmoe": olmoe,
    "qwen2": qwen2,
    "deepseek": deepseek,
    "digits": digits,
    "cl100k": cl100k,
    "o200k": o200k,
    "mixtral": mixtral,
    "metaspace_first": lambda: metaspace("first", False),
    "metaspace_always": lambda: metaspace("always", True),
    "metaspace_never": lambda: metaspace("never", True),
    "unknown": unknown,
    "added": added,
    "t5": t5,
    "unigram_bytes": unigram_bytes,
}


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


def component_definitions():
    """(kind, object or JSON) of single components."""
    patterns = [r"\s+", r"\p{L}+", r"[aeiou]", r"\d", r"x*", r"(?=[A-Z])", r"\b", r"(?i:the)"]
    behaviors = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
    pre = [pre_tokenizers.Split(Regex(p), b, i) for p in patterns for b in behaviors for i in (False, True)]
    pre += [pre_tokenizers.Split(s, b) for s in (" ", "the", MARK) for b in behaviors]
    pre += [pre_tokenizers.ByteLevel(p, use_regex=r) for p in (False, True) for r in (False, True)]
    pre += [pre_tokenizers.Metaspace(MARK, s, c) for s in ("always", "first", "never") for c in (False, True)]
    pre += [pre_tokenizers.Metaspace("_", "always")]
    pre += [pre_tokenizers.Digits(True), pre_tokenizers.Digits(False), pre_tokenizers.Whitespace()]
    pre += [pre_tokenizers.WhitespaceSplit()] + [pre_tokenizers.Punctuation(b) for b in behaviors]
    pre += [pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.Metaspace(MARK, "first")])]
    pre += [pre_tokenizers.Sequence([pre_tokenizers.Metaspace(MARK, "first", False), split(MARK),
                                     pre_tokenizers.Metaspace("_", "first")])]  # fmt: skip
    pre += [pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(False), pre_tokenizers.Digits(True)])]

    forms = [normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD()]
    norm = forms + [normalizers.Lowercase(), normalizers.StripAccents(), normalizers.ByteLevel()]
    norm += [normalizers.Strip(left, right) for left in (False, True) for right in (False, True)]
    norm += [normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])]
    norm += [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK), normalizers.Replace(Regex(r"\s+"), " ")]
    norm += [normalizers.Replace(Regex("x*"), "-"), normalizers.Replace("the", ""), normalizers.Replace("aa", "a")]
    norm += [normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK), normalizers.NFC()])]

    decode = [decoders.ByteLevel(), decoders.ByteFallback(), decoders.Fuse(), decoders.Replace(MARK, " ")]
    decode += [decoders.Metaspace(MARK, s) for s in ("always", "first", "never")]
    decode += [decoders.Strip(" ", 1, 0), decoders.Strip("a", 2, 0)]
    decode += [decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), last])
               for last in (decoders.Strip(" ", 1, 0), decoders.Strip(" ", 0, 1), decoders.Replace("  ", "_"),
                            decoders.Replace("aab", "<>"), decoders.Replace(Regex("[aeiou]+ ?"), "#"))]  # fmt: skip
    decode += [decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(MARK, "always")])]
    decode += [decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 2, 0)])]
    decode += [decoders.Sequence([decoders.Fuse(), decoders.Metaspace(MARK, "always")])]
    return pre, norm, decode


def state(component):
    return json.loads(component.__getstate__())


def component_texts(rng, count):
    return [t for t in HANDPICKED if t] + [random_text(rng) for _ in range(count)]


def random_tokens(rng):
    pool = BITS + [" ", "a", "aa", "b", "aab", MARK, MARK + "the", MARK * 2, "  ", " x ", "<0x41>", "<0xE2>", "<0x82>", "<0xAC>",
                   "<0xFF>", "<0xC3>", "<0x+A>", "<0xé>", "Ã©", "Ã", "©", "Ġa", "ĠĠ", "Ċ", "é", "日本", "æĹ", "¥", "<s>"]  # fmt: skip
    return [rng.choice(pool) for _ in range(rng.randint(1, 10))]


def tiny_model(**fields):
    vocab = ["<unk>", "a", "b", "c", "ab", "abc", "bc", " ", "é", "<0xC3>", "<0xA9>", "##b", "##c", "a##b", "ab##c", "c</w>"]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {token: i for i, token in enumerate(vocab)}, "merges": [["a", "b"], ["b", "c"], ["ab", "c"]]}  # fmt: skip
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": {**model, **fields}}  # fmt: skip


def tiny_tokenizers():
    vocab = tiny_model()["model"]["vocab"]
    no_bytes = {token: i for i, token in enumerate(t for t in vocab if t != "<0xA9>" and t != "é")}
    only_bytes = {token: i for i, token in enumerate(t for t in vocab if t != "é")}
    yield tiny_model()
    for fuse in (False, True):
        for vocabulary in (vocab, no_bytes, only_bytes):
            yield tiny_model(unk_token="<unk>", fuse_unk=fuse, byte_fallback=True, vocab=vocabulary)
        yield tiny_model(unk_token="<unk>", fuse_unk=fuse)
    yield tiny_model(ignore_merges=True, merges=[])
    yield tiny_model(merges=[["b", "c"], ["a", "b"], ["a", "bc"]])
    yield tiny_model(end_of_word_suffix="</w>", unk_token="<unk>")
    prefixed = {token: i for i, token in enumerate(["<unk>", "a", "b", "##b", "##c", "ab", "abc"])}
    yield tiny_model(continuing_subword_prefix="##", unk_token="<unk>", vocab=prefixed, merges=["a ##b", "ab ##c"])
    first = tiny_model(unk_token="<unk>")
    first["pre_tokenizer"] = {"type": "Metaspace", "replacement": "a", "prepend_scheme": "first", "split": True}
    for normalizer in (
        {"type": "Strip", "strip_left": True, "strip_right": False},
        {"type": "Prepend", "prepend": "b"},
        {"type": "Replace", "pattern": {"Regex": " +"}, "content": "b"},
        {"type": "Replace", "pattern": {"String": "a"}, "content": ""},
        {"type": "StripAccents"},
        {"type": "NFD"},
    ):
        yield {**first, "normalizer": normalizer}


def tiny_unigrams():
    def tiny(vocab, unk_id=0, byte_fallback=False):
        document = tiny_model()
        document["model"] = {"type": "Unigram", "unk_id": unk_id, "vocab": vocab, "byte_fallback": byte_fallback}
        return document

    letters = [["<unk>", 0.0], ["a", -1.0], ["b", -1.0], ["c", -2.0], [" ", -3.0]]
    ties = [["ab", -2.0], ["bc", -3.0], ["abc", -4.0], ["aa", -2.0], ["aab", -3.0]]
    spelled = [["é", -9.0], ["<0xC3>", -5.0], ["<0xA9>", -5.0], ["xy", -99.0], ["日a本", -2.0], ["éé", -40.0]]
    yield tiny(letters + ties)
    yield tiny(letters + [[t, s / 3] for t, s in ties])
    yield tiny(letters + spelled, byte_fallback=True)
    yield tiny(letters + spelled[1:3], byte_fallback=True)
    yield tiny(letters + spelled[1:2], byte_fallback=True)
    yield tiny([["a", -1.0], ["<unk>", -0.5], ["", -0.1], ["ab", 0.5], ["b", -2.0], ["xa", 3.0]], unk_id=1)


UNIGRAM_TEXTS = ["<unk>", "x<unk>y", "a<unk>b", "<pad>aab", "aabaabcabcc", "xyxy", "xxyy", "aaaaaaa", "éxé", "éé", "ééé", "日a本"]
MAPPED_TEXTS = ["ＡＢ x\u0301\u0302 xe\u0301", "\u200b\u200ba\u200bb", "e\u0301e\u0301\u0302 a\u0338b", "\r\n\r\n a\r\nb", "\u0600a\u0600\u0600é \u0600",
                "©\u200d© x\u200d ®\ufe0fx", "x\u0897 x\u1ad0 x\U00010efa x\U000113b8 e\u1ae0", "\ufdfa\ufdfa", "\x01\x02a\x00x", "क\u094dक\u0301"]  # fmt: skip


def more_components():
    """Of unigram models and character maps; with a generator of their own, so that the others stay as they are."""
    rng = generator(12)
    mapping = character_map()
    texts = MAPPED_TEXTS + rng.sample(component_texts(rng, 60), 80)
    yield {"kind": "normalizer", "config": state(mapping), "cases": [[t, mapping.normalize_str(t)] for t in texts]}
    for document in tiny_unigrams():
        tokenizer = Tokenizer.from_str(json.dumps(document))
        cases = [[t, tokenizer.encode(t).ids] for t in TINY_TEXTS + UNIGRAM_TEXTS]
        yield {"kind": "tokenizer", "config": document, "cases": cases}
    # The first word, where character maps remove and insert before it.
    for text_map in ({"a": ""}, {"a": "bc"}, {"a": "", "c": "aa"}):
        document = tiny_model(unk_token="<unk>")
        document["pre_tokenizer"] = {"type": "Metaspace", "replacement": "a", "prepend_scheme": "first", "split": True}
        bytes_of_map = precompiled_charsmap.build({k.encode(): v for k, v in text_map.items()})
        document["normalizer"] = state(normalizers.Precompiled(bytes_of_map))
        tokenizer = Tokenizer.from_str(json.dumps(document))
        yield {"kind": "tokenizer", "config": document, "cases": [[t, tokenizer.encode(t).ids] for t in TINY_TEXTS]}


ADDED_CONTENTS = ["<x>", "<x", "x>", "<", "\n", "\n\n", " ", "  ", "\t", "a", "b", "ab", "abc", "bc", "A", "AB", "Ab", "é", "e\u0301",
                  "\u00a0", "\u3000", "²", "_", "1", "½", "a b", "a ", "\n<x>", "x", " a", "日", "本日", "-", "a_", "\u200d", "\r\n"]  # fmt: skip
ADDED_NORMALIZERS = [
    None,
    {"type": "Lowercase"},
    {"type": "NFC"},
    {"type": "Prepend", "prepend": "_"},
    {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
]


def added_token_tokenizers(rng, count):
    """Tokenizers with random added tokens, whose cases also have the ids of special tokens as text, and the ids decoded."""
    while count > 0:
        document = tiny_model(unk_token="<unk>")
        document["normalizer"] = rng.choice(ADDED_NORMALIZERS)
        contents = rng.sample(ADDED_CONTENTS, rng.randint(1, 6))
        document["added_tokens"] = [
            {"id": 100 + i, "content": content, **{flag: rng.random() < 0.4 for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")}}
            for i, content in enumerate(contents)
        ]  # fmt: skip
        tokenizer = Tokenizer.from_str(json.dumps(document))
        normalize = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str
        spellings = [normalize(token["content"]) for token in document["added_tokens"] if token["normalized"]]
        if len(set(spellings)) < len(spellings) or "" in spellings:
            continue  # of equal spellings the package finds one at random; with an empty one it runs out of memory
        cases = []
        for _ in range(6):
            text = "".join(rng.choice(contents if rng.random() < 0.5 else ADDED_CONTENTS) for _ in range(rng.randint(1, 8)))
            try:
                tokenizer.encode_special_tokens = False
                ids = tokenizer.encode(text).ids
                tokenizer.encode_special_tokens = True
                cases.append([text, ids, tokenizer.encode(text).ids, tokenizer.decode(ids, skip_special_tokens=True)])
            except BaseException:  # the package panics where a token begins behind its end
                continue
        if cases:
            yield {"kind": "tokenizer", "config": document, "cases": cases}
            count -= 1


# Letters and signs that came after Unicode 14, and some from before, by the lengths of their UTF-8.
NEW_LETTERS = "\u1c89\u1c8a\ua7cb\ua7cc\ua7cd\ua7da\ua7db\ua7dc\u2c2f\u2c5f\u0cf3\u0897\U00010d50\U00010d70\U0001df25\U00011f04"
NEW_LETTERS += "\U000105c0\U00010ec2\U00011bc0\U0001e4d0\U0001e5d0\U00031350\U0002ebf0\U00016d40\U00013460\u0294\u4e00\uac00"
ASCII_SIGNS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


def pattern_components():
    """Cuts at classes that Oniguruma's versions see differently, and at explicit ranges of code points."""
    signs = ["a".join(ASCII_SIGNS), "a" + "€£¢¤¥¦¨©¬®¯°±´¸×÷∀≤«»¿¡", "[:punct:]xpunct"]
    for pattern in (r"[[:punct:]]+", r"[^[:punct:]a]+", r"[[:^punct:]]+", r"[[:punct:]\s]|\p{Lu}+|[a-z[:punct:]]x",
                    r"\[:punct:\]|[]a]|[^]b]+"):  # fmt: skip
        yield split(pattern), signs
    letters = ["".join(f"b{c}1{c}" for c in NEW_LETTERS), "a ".join(NEW_LETTERS)]
    yield pre_tokenizers.Sequence([split(pattern) for pattern in DEEPSEEK_LLM]), letters + signs
    yield split(r"[\x{A78B}-\x{A7CF}]+|\p{L}+|\p{N}"), letters
    yield split(r"[\u3400-\u4dbf一-鿿]+|\p{Han}|\p{Lu}|\p{L}+"), letters


def newer_components():
    """With a generator of their own, so that the others stay as they are."""
    for component, texts in pattern_components():
        cases = [[t, [part for part, _ in component.pre_tokenize_str(t)]] for t in texts]
        yield {"kind": "pre_tokenizer", "config": state(component), "cases": cases}
    yield from added_token_tokenizers(generator(13), 80)


TINY_TEXTS = ["abc", "aabcc", "abcabc abc", "é", "aéb", "éé", "xy", "axyb", "日a本", "xéy", " abc", "  b", "b b", "c", "cc ca", "bab", "\u0301b", "a\u0301"]


def write_components(path):
    rng = generator(11)
    pre, norm, decode = component_definitions()
    items = []
    for component in pre:
        texts = component_texts(rng, 12)
        # A random selection keeps the file small; every component sees some of the handpicked texts.
        texts = rng.sample(texts, 8 if isinstance(component, pre_tokenizers.Split) else 24)
        cases = [[t, [part for part, _ in component.pre_tokenize_str(t)]] for t in texts]
        items.append({"kind": "pre_tokenizer", "config": state(component), "cases": cases})
    for component in norm:
        texts = rng.sample(component_texts(rng, 30), 50)
        cases = [[t, component.normalize_str(t)] for t in texts]
        items.append({"kind": "normalizer", "config": state(component), "cases": cases})
    for component in decode:
        lists = [random_tokens(rng) for _ in range(40)]
        cases = [[tokens, component.decode(copy.copy(tokens))] for tokens in lists]
        items.append({"kind": "decoder", "config": state(component), "cases": cases})
    for document in tiny_tokenizers():
        tokenizer = Tokenizer.from_str(json.dumps(document))
        cases = [[t, tokenizer.encode(t).ids] for t in TINY_TEXTS]
        items.append({"kind": "tokenizer", "config": document, "cases": cases})
    items += more_components()
    items += newer_components()
    write_lines(path, "[", items, "]")


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
    write_components(arguments.out / "components.json")


if __name__ == "__main__":
    main()
