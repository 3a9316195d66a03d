"""Tokenizers of every style for make_tokenizer_fixtures.py, trained on a few texts: how checkpoints cut, normalize and decode."""

import json
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import precompiled_charsmap
from tokenizer_fixture_texts import TRAINING_TEXTS

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
