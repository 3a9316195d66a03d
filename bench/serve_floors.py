#!/usr/bin/env python3
"""What `convene serve` must bear: serve_floors.py CONVENE [--clients 1000] [--requests 100000] [--json FILE]

Starts a server with models/demo and prints, and writes as JSON:
- streaming clients at the same time (`convene bench --server`), and how many of them were lost;
- resident memory and open files after a tenth of all requests, when the prefix cache is full, and after all;
- in how many steps the memory of a client is free that was killed in the midst of its stream;
- how much memory hostile clients take: slow headers, large bodies that are not finished, bodies of
  100 MB, 10,000 headers, requests sent ahead whose responses nobody reads.
It asserts nothing: docs/results/serve.md has figures of a run.
"""

import argparse
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATIENCE_S = 120


class Server:
    def __init__(self, binary, *options):
        self.log = tempfile.NamedTemporaryFile("r", suffix=".log")
        self.process = subprocess.Popen(
            [binary, "serve", str(ROOT / "models/demo"), "--port", "0", *options],
            stderr=open(self.log.name, "w"), stdin=subprocess.DEVNULL)
        try:
            self.port = int(self.wait_for(
                lambda: re.search(r"^serving .* at http\S*:(\d+)$", pathlib.Path(self.log.name).read_text(), re.M)).group(1))
            self.url = f"http://127.0.0.1:{self.port}"
            self.wait_for(self.is_ready)
        except BaseException:  # Ctrl-C too: what fails here has no __exit__, and the server would stay
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait()

    def wait_for(self, what):
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if found := what():
                return found
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with status {self.process.returncode}: {self.said()}")
            time.sleep(0.1)
        raise RuntimeError(f"the server is not ready after {PATIENCE_S} s: {self.said()}")

    def said(self):
        return pathlib.Path(self.log.name).read_text()

    def is_ready(self):
        try:
            return urllib.request.urlopen(self.url + "/health", timeout=5).status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False  # 503 until the model is loaded; refused where the server has ended

    def status(self, field):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{field}:\s+(\d+) kB", text, re.M).group(1)) / 1024

    def resident(self):
        return self.status("VmRSS")

    def reset_peak(self):
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def files(self):
        return len(list(pathlib.Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics", timeout=PATIENCE_S) as answer:
            return float(re.search(rf"^{name}{{.*}} (\S+)$", answer.read().decode(), re.M).group(1))

    def settle(self):
        """Waits until nothing runs and nobody else is connected."""
        for _ in range(600):
            if self.metric("vllm:num_requests_running") == 0 and self.metric("convene:connections") == 1:
                return
            time.sleep(0.1)
        raise RuntimeError("the server does not come to rest")


def bench(binary, server, *options):
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        subprocess.run([binary, "bench", "--server", server.url, "--json", file.name, *options],
                       stdout=subprocess.DEVNULL)
        return json.load(file)["loads"][0]


def clients_at_once(binary, server, count):
    load = bench(binary, server, "--batch", str(count), "-p", "16", "-n", "200")
    print(f"{count} clients at the same time: {load['errors']} lost, "
          f"{load['tokens_per_s_while_all_stream'] or 0:.0f} tokens/s while all stream, first token "
          f"{load['time_to_first_token_s']['median']:.2f} s, gap {1e3 * load['gap_between_tokens_s']['median']:.1f} ms "
          f"(p99 {1e3 * load['gap_between_tokens_s']['p99']:.1f} ms), client's processor time "
          f"{load['client_cpu_s']:.1f} s of {load['seconds']:.1f} s", flush=True)
    return load


def memory_over_requests(binary, server, count):
    figures = {}
    done = 0
    for seed, until in ((2, count // 10), (3, count)):
        requests = (until - done) // 50
        load = bench(binary, server, "--batch", "50", "-p", "40", "-n", "2", "--requests", str(requests),
                     "--seed", str(seed), "--reconnect")
        done += 50 * requests
        server.settle()
        figures[done] = {"resident_mib": server.resident(), "files": server.files(), "errors": load["errors"]}
        print(f"after {done} requests: {figures[done]}", flush=True)
    first, last = (figures[key]["resident_mib"] for key in sorted(figures))
    print(f"resident memory grew by {100 * (last / first - 1):.2f} %", flush=True)
    return figures


def killed_client(binary, server):
    server.settle()
    client = subprocess.Popen(
        [binary, "bench", "--server", server.url, "--batch", "8", "-p", "16", "-n", "900"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + PATIENCE_S
        while server.metric("vllm:kv_cache_usage_perc") == 0:
            if client.poll() is not None:
                raise RuntimeError(f"the client that was to be killed ended before, with status {client.returncode}")
            if time.monotonic() > end:
                raise RuntimeError(f"nothing of the client that was to be killed is in memory after {PATIENCE_S} s")
            time.sleep(0.01)
        time.sleep(0.2)
        steps = server.metric("convene:step_seconds_count")
        if client.poll() is not None:
            raise RuntimeError(f"the client that was to be killed ended before, with status {client.returncode}")
    finally:
        client.kill()
        killed = time.monotonic()
        client.wait()
    while server.metric("vllm:kv_cache_usage_perc") > 0:
        if time.monotonic() > killed + PATIENCE_S:
            raise RuntimeError(f"the memory of a killed client is not free after {PATIENCE_S} s")
    seconds = time.monotonic() - killed
    # Steps end with the last request.
    more = server.metric("convene:step_seconds_count") - steps
    print(f"a killed client: {more:.0f} steps between asking for their number, killing it and its memory "
          f"being free, {1e3 * seconds:.1f} ms", flush=True)
    return {"steps": more, "seconds": seconds}


def connect(server):
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.settimeout(30)
    return connection


def post(length, more=""):
    return (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{more}"
            f"Content-Length: {length}\r\n\r\n").encode()


def slow_headers(server):
    clients = [connect(server) for _ in range(1000)]
    for client in clients:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX: " + 8000 * b"a")
    return clients


def unfinished_bodies(server):
    clients = []
    for _ in range(100):
        clients.append(connect(server))
        try:
            clients[-1].sendall(post(8 << 20) + (4 << 20) * b" ")
        except OSError:
            pass  # refused: too many are being read
    return clients


def huge_bodies(server):
    """Their length is said, or they come in chunks that never end."""
    clients = []
    for i in range(20):
        clients.append(connect(server))
        chunk = b"100000\r\n" + (1 << 20) * b" " + b"\r\n"
        head = post(100 << 20) if i % 2 else (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            clients[-1].sendall(head)
            for _ in range(100):
                clients[-1].sendall((1 << 20) * b" " if i % 2 else chunk)
        except OSError:
            pass  # it has been refused
    return clients


def words_around_chunks(server):
    """An extension of a chunk, or a field behind the last one, that never ends."""
    clients = []
    for i in range(20):
        clients.append(connect(server))
        try:
            clients[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                                b"Transfer-Encoding: chunked\r\n\r\n" + (b"0\r\nA: " if i % 2 else b"1;"))
            for _ in range(100):
                clients[-1].sendall((1 << 20) * b"a")
        except OSError:
            pass  # it has been refused
    return clients


def many_headers(server):
    clients = []
    for _ in range(50):
        clients.append(connect(server))
        try:
            clients[-1].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: %d\r\n" % (i, i) for i in range(10000)))
        except OSError:
            pass
    return clients


def unread_pipelines(server):
    clients = []
    for _ in range(50):
        clients.append(connect(server))
        clients[-1].settimeout(1)
        try:
            clients[-1].sendall(20000 * b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        except OSError:
            pass  # it reads no more
    return clients


def hostile(server):
    figures = {}
    for attack in (slow_headers, unfinished_bodies, huge_bodies, words_around_chunks, many_headers,
                   unread_pipelines):
        server.settle()
        before = server.resident()
        server.reset_peak()
        clients = attack(server)
        time.sleep(0.5)
        peak = server.status("VmHWM")
        for client in clients:
            client.close()
        server.settle()
        figures[attack.__name__] = {"before_mib": before, "peak_mib": peak, "after_mib": server.resident()}
        print(f"{attack.__name__}: {before:.0f} MiB before, {peak:.0f} MiB at most, "
              f"{server.resident():.0f} MiB after", flush=True)
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("convene")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=100000)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    binary = arguments.convene
    usual = ("--max-queue", "4096", "--log-level", "warning")
    figures = {}
    # All clients stream at the same time, none waits for a place. A step has a token of each.
    places = str(min(arguments.clients, 4096))
    with Server(binary, "--max-batch", places, "--chunk", str(max(arguments.clients, 512)), *usual) as server:
        figures["clients"] = clients_at_once(binary, server, arguments.clients)
        figures["files_after_clients"] = server.files()
    # So few places that a tenth of the requests fills the prefix cache.
    with Server(binary, "--max-batch", "64", *usual) as server:
        figures["requests"] = memory_over_requests(binary, server, arguments.requests)
        figures["killed"] = killed_client(binary, server)
        figures["hostile"] = hostile(server)
        figures["files_at_the_end"] = server.files()
        print(f"{server.files()} open files at the end")
        server.process.terminate()
        figures["status"] = server.process.wait(timeout=120)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n")
    return figures["status"]


if __name__ == "__main__":
    sys.exit(main())
