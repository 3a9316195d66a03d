"""A `convene serve` for the tests of clients: started with the demo model, ended with the test.

The model can be given a chat template that knows tools: the demo's own continues stories.
"""

import os
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "demo"

# Calls between tags, as Hermes and Qwen write them.
TEMPLATE = """\
{%- if tools %}{{ 'Tools: ' + (tools | tojson) + '\\n' }}{% endif -%}
{%- for message in messages %}
{{- message.role + ': ' + (message.content or '') + '\\n' }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>\\n' }}
{%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}
"""


class Server:
    def __init__(self, binary, *arguments):
        self._folder = tempfile.TemporaryDirectory()
        model = pathlib.Path(self._folder.name) / "tale"
        model.mkdir()
        for file in DEMO.iterdir():
            (model / file.name).symlink_to(file)
        (model / "chat_template.jinja").write_text(TEMPLATE)
        self.log_path = pathlib.Path(self._folder.name) / "log"
        self._log = open(self.log_path, "w")
        self.process = subprocess.Popen(
            [binary, "serve", str(model), "--port", "0", *arguments],
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=dict(os.environ))
        self.url = None
        for line in self.process.stderr:
            self._log.write(line)
            found = re.search(r"url=(\S+)", line)
            if found:
                self.url = found.group(1).strip('"')
                break
        if self.url is None:
            raise RuntimeError("the server did not start:\n" + self.log_path.read_text())
        self.port = int(self.url.rsplit(":", 1)[1])
        # Its log is read to the end, so that it never waits for a reader.
        self._drain = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=self._log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        status = self.process.wait(timeout=60)
        self._drain.wait(timeout=60)
        self._log.close()
        log = self.log_path.read_text()
        self._folder.cleanup()
        if status != 0:
            raise RuntimeError(f"the server ended with status {status}:\n{log[-3000:]}")
