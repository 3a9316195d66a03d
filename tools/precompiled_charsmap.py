"""Builds the character maps of SentencePiece ("precompiled charsmap"): a double-array trie and replacements."""

import struct

LEAF, FAR = 1 << 8, 1 << 9  # flags of a unit: a value ends here; its children are 256 times as far


def build(replacements):
    """{bytes: text} → the bytes that tokenizers.normalizers.Precompiled takes."""
    texts, trie = b"", {}
    for key, text in replacements.items():
        node = trie
        for byte in key:
            node = node.setdefault(byte, {})
        node[None] = len(texts)
        texts += text.encode() + b"\0"

    units, bases = {0: 0}, set()
    pending = [(trie, 0)]  # nodes and where their units are
    while pending:
        node, at = pending.pop()
        labels = [0 if byte is None else byte for byte in node]
        base = 1
        while base in bases or any(base ^ label in units for label in labels) or not reachable(base ^ at):
            base += 1
        bases.add(base)
        distance = base ^ at
        units[at] |= distance << 10 if distance < 1 << 21 else distance >> 8 << 10 | FAR
        for byte, child in node.items():
            if byte is None:
                units[at] |= LEAF
                units[base] = child | 1 << 31
            else:
                units[base ^ byte] = byte
                pending.append((child, base ^ byte))
    size = (max(units) | 0xFF) + 1
    trie_bytes = struct.pack(f"<{size}I", *(units.get(i, 0) for i in range(size)))
    return struct.pack("<I", len(trie_bytes)) + trie_bytes + texts


def reachable(distance):
    return distance < 1 << 21 or distance & 0xFF == 0
