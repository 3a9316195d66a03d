"""Texts for make_tokenizer_fixtures.py: what its small tokenizers are trained on, awkward texts picked by hand, and a
generator of random Unicode strings."""

import random

# A little of many scripts; enough for a few hundred merges.
TRAINING_TEXTS = [
    "The quick brown fox jumps over the lazy dog. The five boxing wizards jump quickly, and the dog sleeps on.",
    "It was the best of times, it was the worst of times; I'll say that they've seen what we'd never've expected.",
    "She didn't know whether he'd come. They're here, aren't they? We'll see! That's what I'm saying: don't worry.",
    "In the year 1984 there were 12,345 people, 67.89 % of them under 30; call +1 (555) 010-9999 for 0x1F more.",
    "def encode(text, limit=10):\n    if not text:\n        return []\n    return [vocab[c] for c in text][:limit]\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += values[i] * weights[i];  // not vectorised\n}\r\n#include <vector>\r\n",
    "Die Straße ist länger als die Brücke über den Fluss, und Frau Müller kauft zwölf schöne Äpfel für 3,50 €.",
    "L’été dernier, où étiez-vous ? Nous étions à l’hôtel près de la forêt, déjà très âgée. Ça va, garçon ?",
    "El niño comió piñas mañana; ¿dónde está la señora? ¡Qué día más extraño! Também não são irmãos.",
    "Быстрая коричневая лиса перепрыгивает через ленивую собаку. Сколько это стоит? Всё хорошо, спасибо.",
    "Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί. Τι ώρα είναι τώρα;",
    "我们今天去北京看长城，明天去上海。你好，世界！这是一个测试。我们的模型有很多专家。",
    "今日は東京へ行きます。カタカナとひらがなと漢字を混ぜて書く。ありがとうございます！",
    "안녕하세요 세계. 오늘은 날씨가 좋습니다. 한국어 문장을 토큰으로 나눕니다.",
    "السلام عليكم ورحمة الله. هذا اختبار قصير للنص العربي ١٢٣٤٥.",
    "नमस्ते दुनिया, यह एक परीक्षण है। हिन्दी में १२३ संख्या। สวัสดีชาวโลก นี่คือการทดสอบ",
    "Emoji: 😀😃😄 👍🏽 👨‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️ ☃ ½ ² ³ № ™ … – — “quotes” ‘single’ «guillemets»",
] * 4

HANDPICKED = [
    "",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\n \n",
    "\r\n",
    " \r\n \r\n",
    "\u00a0",
    "\u3000",
    "\u2003 \u2003",
    "a",
    " a",
    "a ",
    "  a  ",
    "Hello world",
    " Hello world",
    "Hello  world",
    "Hello   world\n",
    "Hello, world! How's it going? I'LL go, YOU'RE late; we'D've",
    "'s't're've'm'll'd 'S'T'RE'VE'M'LL'D ’s ‘t",
    "''' '' ' '''s",
    "don't can\u2019t I\u017f'\u017f",
    "1234567890 12 345 6,789.01 3.14e-10 0xFF ١٢٣ १२३ Ⅷ ½ ² ₅ 𝟘𝟙 一二三",
    "a1b22c333d4444",
    "snake_case camelCase SCREAMING_CASE kebab-case HTTPServer iPhone",
    "ǅungla ǅ ʰello ªº İstanbul ıSPARTA ẞtraße ﬁne ﬀ",
    "e\u0301 \u00e9 n\u0303 \u00f1 A\u030a \u212b \u1e9b\u0323 \u0344 \u0958 \u2126 \uac00 \u1100\u1161\u11a8",
    "q\u0307\u0323 q\u0323\u0307 a\u0315\u0300\u05ae\u0062 \u0301abc",
    "\u0301",
    " \u0301\u0302",
    "你好世界。我们，今天！",
    "日本語テスト ひらがなカタカナ漢字mixed英語",
    "한국어 테스트 ㄱㄴㄷ",
    "👨‍👩‍👧‍👦👍🏽🇩🇪❤️‍🔥🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "😀 😀😀  😀",
    "مرحبا بالعالم שלום עולם नमस्ते ไทย",
    "Zalgo t\u0336\u0308\u0323e\u0335\u0301x\u0338\u030at\u0334",
    "\u200b\u200c\u200d\u2060\ufeff zero\u200bwidth",
    "\x00\x01\x1f\x7f\x80\x9f",
    "line\u2028separator\u2029paragraph\x0bvertical\x0cform\x85next",
    "private \ue000 \U000f0000 unassigned \u0378 \U000e0fff nonchar \ufffe \U0010ffff \ufffd",
    "newer \u1c89\u1c8a \ua7da \U00010d4a\U00010d50 \U000323af \U0001ccf0 \U0001fae9 \U0001e4f0 \u0897 \U00011bc0",
    "def f(x):\n    return x**2\n\n\n# comment\n\tif True:\n\t\tpass\n",
    "    indented\n        more\n\t\ttabs\n  \t mixed  \t\n",
    "<html><body class=\"x\">&amp;</body></html> {\"a\": [1, 2.5, null]} \\n \\\\ $x^2$ @user #tag http://a.b/c?d=e&f#g",
    "!!!??? ... --- *** === +++ ~~~ <<<>>> ((())) [[]] {{}}",
    "a.b,c;d:e!f?g-h_i/j\\k|l@m#n$o%p^q&r*s(t)u",
    "▁ ▁▁ a▁b ▁a Ġ ĠĠa Ċ <0x41> <0xE2><0x82>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "                                                  x",
    "\n\n\n\n\n\n\n\n\n\nx",
    "ababababababababababababababababababab abcabcabcabcabcabcabcabcabc",
    "The end.\n\n\n  ",
]

# Where random characters come from: (first, last), assigned or not.
BLOCKS = [
    (0x20, 0x7E), (0x20, 0x7E), (0x00, 0x20), (0x7F, 0xA0), (0xA0, 0x17F), (0x180, 0x2AF), (0x2B0, 0x36F),
    (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x6FF), (0x700, 0x8FF), (0x900, 0x97F), (0x980, 0xDFF),
    (0xE00, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x1AFF), (0x1B00, 0x1CFF),
    (0x1D00, 0x1DFF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F), (0x2190, 0x27BF), (0x2E00, 0x2FFF),
    (0x3000, 0x303F), (0x3040, 0x30FF), (0x3100, 0x31FF), (0x3200, 0x33FF), (0x4E00, 0x9FFF), (0x4E00, 0x9FFF),
    (0xA000, 0xABFF), (0xAC00, 0xD7FF), (0xE000, 0xF8FF), (0xF900, 0xFAFF), (0xFB00, 0xFE6F), (0xFE00, 0xFE2F),
    (0xFE70, 0xFFFF), (0x10000, 0x10FFF), (0x11000, 0x11FFF), (0x12000, 0x16FFF), (0x17000, 0x1AFFF),
    (0x1B000, 0x1CFFF), (0x1D000, 0x1D7FF), (0x1D800, 0x1EFFF), (0x1F000, 0x1FBFF), (0x1F300, 0x1F6FF),
    (0x20000, 0x2A6DF), (0x2A700, 0x323AF), (0xE0000, 0xE01EF), (0x0, 0x10FFFF),
]  # fmt: skip
SPACES = list(" \t\n\r\x0b\x0c\x85\xa0\u1680\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000") + [" "] * 30 + ["\n"] * 8
BITS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "\u2019s", "  ", "   ", "\n\n", "\r\n", " \n", "...", "--", "//",
        "e\u0301", "\u0323\u0307", "👍🏽", "👨‍👩‍👧", "🇫🇷", "❤️", "\u1100\u1161\u11a8", "\u200d", "\ufeff", "1,234.5", "٣٤", "½", "▁", "Ġ", "<0x0A>",
        "http://", "=> ", "();", "\t\t", "_", "ß", "ﬁ", "İ", "ſ", "漢字", "かな", "カナ", "한글"]  # fmt: skip
WORDS = "the The THE of and to a in that it is was I for on you he be with as by at have are this not but had his they from she which or we an there her were one do been all their has would will what if can when so no my out said who get than them into some could other then its only time very your just over also new know first way even want because any these give day most us".split()


def random_character(rng):
    first, last = rng.choice(BLOCKS)
    code_point = rng.randint(first, last)
    return "\ufffd" if 0xD800 <= code_point < 0xE000 else chr(code_point)


def random_text(rng, tokens=()):
    """A string of some parts: words, characters of one block or of any, spaces, digits, signs, added tokens."""
    parts = []
    for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 21])):
        kind = rng.randrange(11)
        if kind < 3:
            parts.append(" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 4))))
        elif kind == 3:
            parts.append("".join(random_character(rng) for _ in range(rng.randint(1, 6))))
        elif kind == 4:
            first, last = rng.choice([b for b in BLOCKS if b[1] < 0xD800 or b[0] > 0xDFFF][:-1])
            parts.append("".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 8))))
        elif kind == 5:
            parts.append("".join(rng.choice(SPACES) for _ in range(rng.randint(1, 5))))
        elif kind == 6:
            parts.append("".join(rng.choice("0123456789") for _ in range(rng.randint(1, 9))))
        elif kind == 7:
            parts.append("".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(rng.randint(1, 5))))
        elif kind == 8:
            parts.append(rng.choice(BITS))
        elif kind == 9:
            parts.append(random_character(rng) * rng.randint(1, 30))
        elif tokens:
            token = rng.choice(tokens)
            # Now and then not quite a token.
            parts.append(rng.choice([token, token, token, token[:-1], token.upper(), " " + token + " "]))
        if rng.random() < 0.3:
            parts.append(" ")
    return "".join(parts)


def generator(seed):
    return random.Random(seed)
