"""The page of `convene serve` in a headless Chromium: python3 page_test.py CONVENE [FOLDER_FOR_PICTURES [TEST...]]

What a person does there (chatting, stopping, watching, by keyboard too), that nothing a model or a person
writes becomes markup, that the content security policy is never violated, and pictures to look at."""

import http.client
import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse
import urllib.request

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONVENE = ""
PICTURES = None
PATIENCE_S = 60

# Each must stay the text that it is.
HOSTILE = [
    '<img src=x onerror="window.hacked=1">',
    "<script>window.hacked=1</script>",
    '</div></article><svg onload="window.hacked=1"></svg>',
    "<style>body{display:none}</style><iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "&lt;b&gt; &amp; &#60;i&#62;",
]
HOSTILE_MARKDOWN = "\n\n".join(
    ["# <img src=x onerror=window.hacked=1>"]
    + HOSTILE
    + ["- <b onclick=window.hacked=1>item</b>\n- **<i>bold</i>** and `<u>code</u>`"]
    + ["[click](javascript:window.hacked=1) and ![image](http://127.0.0.1:1/x.png)"]
    + ["```html\n<img src=x onerror=window.hacked=1>\n</code></pre><script>window.hacked=1</script>\n```"]
)
GENTLE_MARKDOWN = """## Rounding

A product of two `bfloat16` numbers is **exact** in float32; only the *sum* rounds. Three things follow:

1. the order of a sum decides its last bits,
2. a wider accumulator
   - costs nothing here,
   - and hides the order;
3. equal plans give equal text.

```python
def dot(a, b):
    return sum(x * y for x, y in zip(a, b))  # <- not <b>markup</b>
```

See [the decision](docs/decisions/0001-numerics.md) for more."""


class Server:
    """`convene serve models/demo` on a free port."""

    def __init__(self, *arguments):
        self.cache = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [CONVENE, "serve", str(ROOT / "models/demo"), "--port", "0", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "CONVENE_CACHE_DIR": self.cache.name})
        self.url = None
        for line in self.process.stderr:
            found = re.search(r"event=ready .*url=(\S+)", line)
            if found:
                self.url = found[1]
                break
        # Nobody reads its log; it must not fill the pipe.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        if self.url is None:
            raise RuntimeError("the server did not start")

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE_S) as response:
            return response.read().decode()

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.cache.cleanup()


class Author(http.server.ThreadingHTTPServer):
    """In front of a server: chats are answered with `text`, all else is the server's. Endless where `text` is None."""

    daemon_threads = True

    def __init__(self, behind):
        super().__init__(("127.0.0.1", 0), AuthorHandler)
        self.behind = urllib.parse.urlsplit(behind).netloc
        self.text = ""
        self.failure = ""  # what a stream says in place of its first word
        self.bodies = []  # of the chats so far
        self.num_left = 0  # clients that closed the connection before the end
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class AuthorHandler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        connection = http.client.HTTPConnection(self.server.behind, timeout=PATIENCE_S)
        connection.request("GET", self.path)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if self.server.failure:
            self.send({"error": {"message": self.server.failure}})
            return
        text = self.server.text
        pieces = re.findall(r"(?s).{1,7}", text) if text is not None else ("on and on " for _ in range(10000))
        try:
            for piece in pieces:
                self.send({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
                if text is None:
                    time.sleep(0.02)
            self.send({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.server.num_left += 1

    def send(self, chunk):
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.author = Author(cls.server.url)
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900",
                         "--disable-dev-shm-usage", "--hide-scrollbars"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        cls.browser = webdriver.Chrome(options=options, service=webdriver.chrome.service.Service("/usr/bin/chromedriver"))
        cls.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": """
            window.violations = [];
            document.addEventListener('securitypolicyviolation',
                (event) => violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
            window.failures = [];
            window.addEventListener('error', (event) => failures.push(event.message));
            window.addEventListener('unhandledrejection', (event) => failures.push(String(event.reason)));"""})

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()
        cls.author.shutdown()
        cls.server.close()

    def tearDown(self):
        self.assertEqual(self.run_script("return window.violations"), [])
        self.assertEqual(self.run_script("return window.failures"), [])
        self.assertIsNone(self.run_script("return window.hacked ?? null"))
        severe = [entry["message"] for entry in self.browser.get_log("browser")
                  if entry["level"] == "SEVERE" and "401" not in entry["message"]
                  and "/v1/steps/last.svg" not in entry["message"]]
        self.assertEqual(severe, [])

    # --- What a person does.

    def open(self, url, scheme="light", width=1280, height=900):
        self.browser.set_window_size(width, height)
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                     {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        self.browser.get("about:blank")
        self.browser.get(url)
        self.until(lambda: self.find("#model").text != "")

    def find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def run_script(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def until(self, holds, seconds=PATIENCE_S):
        # The page may replace an element between its being found and its being asked: then it is asked again.
        return WebDriverWait(self.browser, seconds, 0.05,
                             ignored_exceptions=[StaleElementReferenceException]).until(lambda _: holds())

    def send(self, text):
        # Selenium types what is on a keyboard; other text is pasted.
        self.run_script("document.getElementById('prompt').value = arguments[0]", text)
        self.find("#prompt").send_keys(Keys.ENTER)

    def is_idle(self):
        return not self.find("#stop").is_enabled()

    def answer(self, text):
        self.send(text)
        self.until(lambda: self.is_idle() and self.browser.find_elements(By.CSS_SELECTOR, ".assistant .note"))
        return self.run_script("return [...document.querySelectorAll('.assistant .text')].at(-1).textContent")

    def set(self, name, value):
        field = self.find(f"#{name}")
        field.clear()
        field.send_keys(value)

    def picture(self, name):
        if PICTURES:
            self.browser.save_screenshot(str(PICTURES / f"{name}.png"))

    # --- Tests.

    def test_a_turn_streams_and_is_what_the_server_answers(self):
        self.open(self.server.url)
        for name, value in (("system", "You tell of the sea."), ("temperature", "0.8"), ("top_p", "0.9"),
                            ("max_tokens", "40"), ("seed", "7")):
            self.set(name, value)
        self.run_script("""
            window.lengths = new Set();
            new MutationObserver(() => lengths.add(document.querySelector('.assistant .text')?.textContent.length))
                .observe(document.getElementById('messages'), {childList: true, subtree: true});""")
        shown = self.answer("Who goes there?")
        body = {"messages": [{"role": "system", "content": "You tell of the sea."},
                             {"role": "user", "content": "Who goes there?"}],
                "temperature": 0.8, "top_p": 0.9, "max_tokens": 40, "seed": 7}
        request = urllib.request.Request(self.server.url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            alone = json.load(response)["choices"][0]["message"]["content"]
        words = lambda text: re.sub(r"[^a-z]", "", text.lower())
        self.assertEqual(words(shown), words(alone))
        self.assertGreater(len(words(shown)), 10)
        self.assertIn("tokens", self.find(".assistant .note").text)
        self.assertIn("complete", self.find("#progress").text.replace("as long as it may be", "complete"))

        # Regenerate takes the next seed, and there is one answer as before.
        self.find("#again").click()
        self.until(self.is_idle)
        self.assertEqual(len(self.browser.find_elements(By.CSS_SELECTOR, ".assistant")), 1)
        self.assertNotEqual(self.find(".assistant .text").text, shown)

    def test_stop_ends_the_answer_and_keeps_what_came(self):
        self.open(self.author.url)
        self.author.text = None
        left_before = self.author.num_left
        self.send("Go on for ever.")
        self.until(lambda: len(self.run_script("return document.querySelector('.assistant .text')?.textContent ?? ''")) > 60)
        self.find("#stop").click()
        self.until(self.is_idle)
        self.assertIn("Stopped", self.find(".assistant .note").text)
        self.until(lambda: self.author.num_left > left_before)  # the server knows
        length = len(self.find(".assistant .text").text)
        self.author.text = "Yes."
        self.answer("And then?")
        sent = self.author.bodies[-1]["messages"]
        self.assertEqual([message["role"] for message in sent], ["user", "assistant", "user"])
        self.assertAlmostEqual(len(sent[1]["content"]), length, delta=40)
        # Escape does the same.
        self.author.text = None
        self.send("Once more.")
        self.until(lambda: self.find("#stop").is_enabled())
        self.find("#prompt").send_keys(Keys.ESCAPE)
        self.until(self.is_idle)
        # And a new chat forgets.
        self.find("#clear").click()
        self.assertEqual(self.browser.find_elements(By.CSS_SELECTOR, ".message"), [])

    def test_a_turn_without_a_word_of_an_answer_is_taken_back(self):
        self.open(self.author.url)
        texts = lambda: self.run_script("return [...document.querySelectorAll('.message .text')].map((one) => one.textContent)")
        self.addCleanup(setattr, self.author, "failure", "")
        self.author.failure = "the first is refused"
        self.send("One?")
        self.until(lambda: "the first is refused" in self.find("#progress").text and self.is_idle())
        self.assertEqual(texts(), [])
        self.assertTrue(self.find("#empty").is_displayed())
        self.assertEqual(self.find("#prompt").get_attribute("value"), "One?")
        self.assertFalse(self.find("#again").is_enabled())
        self.author.failure = ""
        self.author.text = "Yes."
        self.answer("Two?")
        self.assertEqual([message["content"] for message in self.author.bodies[-1]["messages"]], ["Two?"])
        # An answer in whose place none came stays.
        self.author.failure = "the other is refused"
        self.find("#again").click()
        self.until(lambda: "the other is refused" in self.find("#progress").text and self.is_idle())
        self.assertEqual(texts(), ["Two?", "Yes."])
        self.assertEqual(self.find("#prompt").get_attribute("value"), "")
        self.send("Three?")
        self.until(lambda: self.find("#prompt").get_attribute("value") == "Three?" and self.is_idle())
        self.assertEqual(texts(), ["Two?", "Yes."])
        self.author.failure = ""
        self.answer("Four?")
        self.assertEqual([message["content"] for message in self.author.bodies[-1]["messages"]],
                         ["Two?", "Yes.", "Four?"])

    def test_what_a_model_or_a_person_writes_stays_text(self):
        self.open(self.author.url)
        self.author.text = HOSTILE_MARKDOWN
        shown = self.answer("\n".join(HOSTILE))
        for text in HOSTILE:
            self.assertIn(text, shown)
            self.assertIn(text, self.find(".user .text").text)
        self.assertIn("click (javascript:window.hacked=1)", shown)
        self.assertIn("</code></pre><script>window.hacked=1</script>", shown)
        foreign = self.run_script("""
            return [...document.querySelectorAll('#messages *')].map((one) => one.localName).filter((name) =>
                !['article', 'h3', 'h4', 'div', 'p', 'pre', 'code', 'ul', 'ol', 'li', 'strong', 'em'].includes(name))""")
        self.assertEqual(foreign, [])
        self.assertEqual(self.run_script("""
            return [...document.querySelectorAll('#messages *')].flatMap((one) => one.getAttributeNames())
                .filter((name) => name.startsWith('on') || ['href', 'src', 'style'].includes(name))"""), [])
        self.picture("hostile")

    def test_markdown_becomes_elements(self):
        self.open(self.author.url)
        self.author.text = GENTLE_MARKDOWN
        self.answer("What does rounding mean here?")
        text = self.find(".assistant .text")
        names = self.run_script("return [...arguments[0].children].map((one) => one.localName)", text)
        self.assertEqual(names, ["h4", "p", "ol", "pre", "p"])
        self.assertEqual(self.run_script("return arguments[0].querySelectorAll('ol > li').length", text), 3)
        self.assertEqual(self.run_script("return arguments[0].querySelectorAll('ol ul > li').length", text), 2)
        self.assertEqual([one.text for one in text.find_elements(By.CSS_SELECTOR, "strong, em")], ["exact", "sum"])
        self.assertIn("the decision (docs/decisions/0001-numerics.md)", text.text)
        self.answer("And in *one* line?")
        for scheme in ("light", "dark"):
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                         {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            self.picture(f"chat-{scheme}")
        self.browser.set_window_size(520, 900)
        self.picture("chat-narrow")

    def test_watch_shows_the_load_the_step_the_experts_and_the_plan(self):
        self.open(self.server.url)
        self.set("max_tokens", "200")
        self.set("seed", "7")
        self.answer("Tell me of the whale.")
        # By keyboard alone.
        self.find("#tab-chat").send_keys(Keys.ARROW_RIGHT)
        self.assertEqual(self.browser.switch_to.active_element.get_attribute("id"), "tab-watch")
        self.until(lambda: self.browser.find_elements(By.CSS_SELECTOR, "#gantt svg rect"))
        self.until(lambda: len(self.browser.find_elements(By.CSS_SELECTOR, "#experts rect")) > 4)
        self.until(lambda: "plan_" in self.find("#plan").text)
        self.assertIn("measured", self.find("#step-words").text)
        # A load, so that there is something to see.
        seen = threading.Event()
        def load(seed):
            while not seen.is_set():
                body = {"prompt": "It was " * (seed + 1), "max_tokens": 300, "ignore_eos": True, "seed": seed}
                urllib.request.urlopen(urllib.request.Request(
                    self.server.url + "/v1/completions", json.dumps(body).encode(),
                    {"Content-Type": "application/json"}), timeout=PATIENCE_S).read()
        threads = [threading.Thread(target=load, args=(seed,)) for seed in range(5)]
        for thread in threads:
            thread.start()
        try:
            self.until(lambda: "predicted" in self.find("#step-words").text)
            self.until(lambda: re.search(r"^[1-5] running", self.find("#chart-requests .figure").text))
            self.until(lambda: len(self.run_script(
                "return document.querySelector('#chart-tokens polyline')?.getAttribute('points') ?? ''").split()) > 4)
            height = self.run_script("return document.documentElement.scrollHeight")
            self.browser.set_window_size(1280, height + 160)
            for scheme in ("light", "dark"):
                self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                             {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
                self.picture(f"watch-{scheme}")
        finally:
            seen.set()
            for thread in threads:
                thread.join()
        # Whatever is a picture says in words what it shows.
        self.assertEqual(self.run_script("""
            return [...document.querySelectorAll('#watch svg')].filter((one) =>
                one.getAttribute('aria-hidden') !== 'true' && !one.getAttribute('aria-label')).length"""), 0)
        self.find("#pause").click()
        self.assertEqual(self.find("#pause").get_attribute("aria-pressed"), "true")

    def test_a_server_with_a_key_is_asked_with_it(self):
        server = Server("--api-key", "secret word")
        try:
            self.browser.get(server.url)
            self.until(lambda: self.find("#key-dialog").is_displayed())
            self.find("#key").send_keys("wrong" + Keys.ENTER)
            self.until(lambda: "API key" in self.find("#key-wrong").text)
            self.picture("key")
            self.until(lambda: self.find("#key").is_displayed())
            self.find("#key").clear()
            self.find("#key").send_keys("secret word" + Keys.ENTER)
            self.until(lambda: self.find("#model").text == "demo")
            self.set("max_tokens", "5")
            self.set("seed", "7")
            self.assertNotEqual(self.answer("Who?"), "")
        finally:
            self.run_script("sessionStorage.clear()")
            server.close()

    def test_everything_has_a_name_and_can_be_reached_by_keyboard(self):
        self.open(self.server.url)
        self.assertEqual(self.run_script("""
            return [...document.querySelectorAll('input, textarea')].filter((one) => one.labels.length === 0)
                .map((one) => one.id)"""), [])
        self.assertEqual(self.run_script("""
            return [...document.querySelectorAll('button')].filter((one) => one.textContent.trim() === '')
                .map((one) => one.id)"""), [])
        reached = []
        self.find("body").send_keys(Keys.TAB)
        for _ in range(20):
            active = self.browser.switch_to.active_element
            reached.append(active.get_attribute("id") or active.tag_name)
            if reached[-1] != "body":
                self.assertNotEqual(active.value_of_css_property("outline-style") + active.tag_name, "nonebutton")
            active.send_keys(Keys.TAB)
        for name in ("tab-chat", "messages", "prompt", "clear", "send", "system", "temperature", "seed"):
            self.assertIn(name, reached)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    CONVENE = str(pathlib.Path(sys.argv[1]).resolve())
    if len(sys.argv) > 2:
        PICTURES = pathlib.Path(sys.argv[2])
        PICTURES.mkdir(parents=True, exist_ok=True)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2, warnings="ignore")
