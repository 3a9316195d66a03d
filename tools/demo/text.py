"""Turns plain-text books into clean passages and trains the demo model's tokenizer on them.

It is not a general corpus pipeline: its rules are those of Project Gutenberg's hard-wrapped books.
"""

import random
import re
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
PAD = "<|pad|>"

# The split of Qwen2's tokenizer, so that the demo exercises what the real family uses.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_HEADING = re.compile(
    r"^(CHAPTER|Chapter|BOOK|VOLUME|PART|ADVENTURE|EPILOGUE|FIRST EPILOGUE|SECOND EPILOGUE|"
    r"PRELUDE|FINALE|CONTENTS|ETYMOLOGY|EXTRACTS|[IVXLC]+\.)\b"
)
_BOILERPLATE = re.compile(r"gutenberg|e-?text|proofread|^produced by|^\s*the end\.?\s*$", re.I)


def straighten_quotes(paragraph: str) -> str:
    """One spelling for every book: " around speech (also where the book uses single quotes), --."""
    british = "‘" in paragraph and "“" not in paragraph.split("‘")[0]
    if british:  # ‘speech, “quoted” within’: swap the two levels before flattening them
        paragraph = paragraph.replace("“", "\0").replace("”", "\0")
        out, is_open = [], False
        for i, c in enumerate(paragraph):
            if c == "‘":
                out.append('"')
                is_open = True
            elif c == "’":
                before = paragraph[i - 1 : i]
                after = paragraph[i + 1 : i + 2]
                closes = is_open and not after.isalnum() and not before.isalnum()
                out.append('"' if closes else "'")
                is_open = is_open and not closes
            else:
                out.append(c)
        paragraph = "".join(out).replace("\0", "'")
    for old, new in (("“", '"'), ("”", '"'), ("‘", "'"), ("’", "'"), ("—", "--")):
        paragraph = paragraph.replace(old, new)
    return paragraph


def read_chapters(text: str) -> list[list[str]]:
    """Splits a book into chapters of paragraphs, one line each (verse and plays keep their lines).

    Headings, tables of contents and the transcribers' notes are dropped.
    """
    chapters: list[list[str]] = [[]]
    for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n").replace("\ufeff", "")):
        lines = [line.strip() for line in block.split("\n") if line.strip()]
        if not lines:
            continue
        joined = " ".join(lines)
        letters = [c for c in joined if c.isalpha()]
        if not letters or _BOILERPLATE.search(joined) and len(joined) < 400:
            continue
        speech = re.fullmatch(r"[A-Z][A-Za-z' ]{1,30}:", lines[0]) is not None
        if not speech and len(joined) < 200:
            shouting = sum(c.isupper() for c in letters) > 0.6 * len(letters)
            if _HEADING.match(joined) or shouting:
                chapters.append([])
                continue
        indented = sum(line.startswith("  ") for line in block.split("\n"))
        verse = speech or (indented > 1 and max(map(len, lines)) < 55 and len(lines) > 1)
        paragraph = "\n".join(lines) if verse else joined
        paragraph = re.sub(r"[ \t]+", " ", paragraph.replace("_", ""))
        chapters[-1].append(straighten_quotes(paragraph))
    # What is left of title pages and contents is short, or one block.
    return [c for c in chapters if len(c) >= 3 and sum(map(len, c)) >= 800]


def split_books(folder: Path, held_out: float) -> tuple[dict, dict]:
    """Reads every *.txt of `folder`; returns {book: chapters} to train on and held out (the ends)."""
    train, validation = {}, {}
    for path in sorted(folder.glob("*.txt")):
        chapters = read_chapters(path.read_text(encoding="utf-8"))
        budget = int(held_out * sum(len(p) for c in chapters for p in c))
        tail: list[list[str]] = []
        while budget > 0 and chapters:
            kept, moved = chapters.pop(), []
            while kept and budget > 0:
                budget -= len(kept[-1])
                moved.insert(0, kept.pop())
            tail.insert(0, moved)
            if kept:
                chapters.append(kept)
        train[path.stem], validation[path.stem] = chapters, tail
    if not train:
        raise SystemExit(f"no *.txt files in {folder}")
    return train, validation


def train_tokenizer(books: dict, vocab_size: int) -> Tokenizer:
    """Byte-level BPE with the two special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    chapters = ("\n\n".join(c) for book in books.values() for c in book)
    tokenizer.train_from_iterator(chapters, trainer)
    return tokenizer


def encode_passages(books: dict, tokenizer: Tokenizer, mean_paragraphs: float) -> np.ndarray:
    """All books as one row of ids, in reading order.

    The end token follows the last paragraph of a chapter and, at random, one paragraph in
    `mean_paragraphs`, so that the model learns to end a passage where a paragraph ends.
    """
    rng = random.Random(1)
    ids: list[int] = []
    end = tokenizer.token_to_id(END_OF_TEXT)
    for chapters in books.values():
        for chapter in chapters:
            passage: list[str] = []
            for i, paragraph in enumerate(chapter):
                passage.append(paragraph)
                if i + 1 == len(chapter) or rng.random() < 1 / mean_paragraphs:
                    ids += tokenizer.encode("\n\n".join(passage)).ids
                    ids.append(end)
                    passage = []
    return np.array(ids, dtype=np.int64)


def excerpt(books: dict, chars_per_book: int) -> str:
    """The first whole paragraphs of each book's held-out end, about `chars_per_book` of each."""
    parts = []
    for chapters in books.values():
        size = 0
        for paragraph in (p for chapter in chapters for p in chapter):
            if size >= chars_per_book:
                break
            parts.append(paragraph)
            size += len(paragraph)
    return "\n\n".join(parts) + "\n"
