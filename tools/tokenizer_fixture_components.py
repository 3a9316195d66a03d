"""Single components for make_tokenizer_fixtures.py: normalizers, pre-tokenizers, decoders and tokenizers of a few tokens,
with what the `tokenizers` package makes of texts."""

import copy
import json

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

import precompiled_charsmap
from tokenizer_fixture_styles import DEEPSEEK_LLM, MARK, character_map, split
from tokenizer_fixture_texts import BITS, HANDPICKED, generator, random_text


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


def components():
    """All of them with their cases, as components.json has them."""
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
    return items
