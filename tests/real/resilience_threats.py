#!/usr/bin/env python3
"""Two threats against the built binary, on loopback, standard library only.

  resilience_threats.py hang    [--rate 1000] [--seconds 30]  a dependency hangs for 30 s, the request limit is
                                800 ms and a static fallback answers: latencies, fallbacks, threads, memory
                                and open files, and that everything is given back
  resilience_threats.py outage  [--rate 200] [--down 15]  a dependency is down; the last good answers are given
                                from the cache, the circuit breaker opens and closes by itself: times, counts

Common: --binary PATH (target/release/outrigger), --json (one line of figures). Exit code 1 when a bound
is broken, with what and by how much.
"""

import argparse
import asyncio
import json
import multiprocessing
import re
import resource
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOOD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{\"n\":  true}"


class Dependency:
    """An instance in a process of its own: `good` answers at once, `hang` after 30 s, `down` resets."""

    MODES = ["good", "hang", "down"]

    def __init__(self):
        self._mode, self._requests, self._open = (multiprocessing.Value("i", 0) for _ in range(3))
        ours, theirs = multiprocessing.Pipe()
        multiprocessing.Process(target=self.serve, args=(theirs,), daemon=True).start()
        self.address = ours.recv()

    mode = property(None, lambda self, word: setattr(self._mode, "value", self.MODES.index(word)))
    requests = property(lambda self: self._requests.value)
    open = property(lambda self: self._open.value)

    def serve(self, pipe):
        raise_open_files()

        async def listen():
            loop = asyncio.get_running_loop()
            server = await loop.create_server(lambda: Serving(self), "127.0.0.1", 0, backlog=4096)
            pipe.send("127.0.0.1:%d" % server.sockets[0].getsockname()[1])
            await server.serve_forever()

        asyncio.run(listen())


class Serving(asyncio.Protocol):
    """One connection at the dependency, the only writer of its counts."""

    def __init__(self, dependency):
        self.of, self.timer = dependency, None

    def connection_made(self, transport):
        self.transport = transport
        self.of._open.value += 1

    def data_received(self, data):
        self.of._requests.value += data.count(b"\r\n\r\n")
        mode = Dependency.MODES[self.of._mode.value]
        if mode == "down":
            self.transport.abort()
        elif mode == "hang":
            self.timer = asyncio.get_running_loop().call_later(30, self.transport.write, GOOD)
        else:
            self.transport.write(GOOD)

    def connection_lost(self, error):
        self.of._open.value -= 1
        if self.timer:
            self.timer.cancel()


def raise_open_files():
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Proxy:
    """The built binary with a configuration."""

    def __init__(self, binary, services):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "outrigger.yaml"
        self.path.write_text(
            'version: 1\nlisten: "127.0.0.1:0"\nadmin: {listen: "127.0.0.1:0"}\n'
            'telemetry: {listen: "127.0.0.1:0", access_log: {mode: none}}\n'
            "services:\n" + services
        )
        self.binary = binary
        self.listeners = {}

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(
            self.binary, "run", "-c", str(self.path),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )
        while not {"data", "telemetry", "admin"} <= self.listeners.keys():
            line = await asyncio.wait_for(self.process.stdout.readline(), 20)
            if not line:
                raise SystemExit("the binary ended: " + await self.check())
            event = json.loads(line)
            if event.get("event") == "listening":
                self.listeners[event["listener"]] = event["address"]
        self.drain = asyncio.create_task(self.read_on())
        return self

    async def check(self):
        check = await asyncio.create_subprocess_exec(
            self.binary, "check", str(self.path),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )
        return (await check.communicate())[0].decode()

    async def read_on(self):
        while await self.process.stdout.readline():
            pass

    async def stop(self):
        self.process.terminate()
        await self.process.wait()

    def get(self, listener, path):
        url = f"http://{self.listeners[listener]}{path}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()

    async def metrics(self):
        """Sums of families, by name."""
        text = await asyncio.to_thread(self.get, "telemetry", "/metrics")
        sums = Counter()
        for line in text.splitlines():
            if found := re.match(r"([a-z_]+)(\{.*\})? (\S+)$", line):
                name, labels, value = found.groups()
                sums[name] += float(value)
                for label in ('side="upstream"', 'side="app"', 'kind="cache"', 'kind="static"'):
                    if labels and label in labels:
                        sums[f"{name} {label}"] += float(value)
        return sums

    async def breaker(self):
        """The state of the circuit breaker, as the admin API has it."""
        text = await asyncio.to_thread(self.get, "admin", "/api/v1/upstreams/svc")
        return breaker_state(json.loads(text))


def breaker_state(value):
    """`state` of the first thing that is called a breaker."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if "breaker" in key:
                if isinstance(inner, str):
                    return inner
                if isinstance(inner, dict) and "state" in inner:
                    return inner["state"]
            if (found := breaker_state(inner)) is not None:
                return found
    if isinstance(value, list):
        for inner in value:
            if (found := breaker_state(inner)) is not None:
                return found
    return None


class Load:
    """Requests at an even rate, whatever comes back; connections are kept and used again."""

    def __init__(self, address):
        self.host, self.port = address.rsplit(":", 1)
        self.idle = []
        self.answers = []

    async def one(self, path):
        begun = time.monotonic()
        status, reason, source = 0, "broken", ""
        try:
            if self.idle:
                reader, writer = self.idle.pop()
            else:
                reader, writer = await asyncio.open_connection(self.host, self.port)
            writer.write(f"GET {path} HTTP/1.1\r\nhost: svc\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            status = int(head.split()[1])
            length = re.search(r"content-length: (\d+)", head)
            await reader.readexactly(int(length.group(1)) if length else 0)
            marked = re.search(r"x-outrigger-reason: (\S+)", head)
            reason = marked.group(1) if marked else "answer"
            source = "cache" if "\r\nage: " in head else ""
            self.idle.append((reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        self.answers.append((begun, time.monotonic() - begun, status, reason, source))

    async def run(self, rate, seconds, paths=1):
        begun = time.monotonic()
        tasks = set()
        for n in range(int(rate * seconds)):
            pause = begun + n / rate - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            task = asyncio.create_task(self.one(f"/{n % paths}"))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    def close(self):
        for _, writer in self.idle:
            writer.close()
        self.idle.clear()


def quantiles(seconds):
    """Milliseconds."""
    ordered = sorted(seconds)
    at = lambda share: round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)
    return {"min": at(0), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1)}


async def eventually(seen, seconds=10):
    for _ in range(int(seconds * 20)):
        if await seen():
            return True
        await asyncio.sleep(0.05)
    return False


async def hang(binary, rate=1000, seconds=30):
    """Figures and what is wrong with them."""
    dependency = Dependency()
    services = (
        f'  svc:\n    endpoints: ["{dependency.address}"]\n    timeout: {{request: 800ms}}\n'
        "    fallback: [{status: 200, body: '{\"sorry\":true}'}]\n"
    )
    proxy = await Proxy(binary, services).start()
    load = Load(proxy.listeners["data"])
    # As many connections as the run needs, so that what they cost is there before it.
    warm = [load.one("/") for _ in range(int(rate * 0.9))]
    await asyncio.gather(*warm)
    before = await proxy.metrics()
    load.answers.clear()
    dependency.mode = "hang"
    samples = []

    async def watch():
        while True:
            await asyncio.sleep(1)
            samples.append(await proxy.metrics())

    watching = asyncio.create_task(watch())
    await load.run(rate, seconds)
    watching.cancel()

    async def all_back():
        now = await proxy.metrics()
        left = now["outrigger_requests_in_flight"]
        return left == 0 and now['outrigger_open_connections side="upstream"'] == 0 and dependency.open == 0

    given_back = await eventually(all_back)
    load.close()
    await eventually(lambda: asyncio.sleep(0, False), 1)
    after = await proxy.metrics()
    await proxy.stop()
    column = lambda name: [sample[name] for sample in samples[2:]]
    mib = lambda value: round(value / 2**20, 1)
    rss = column("process_resident_memory_bytes")
    half = len(rss) // 2
    duration = "outrigger_request_duration_seconds"
    between = lambda part: after[duration + part] - before[duration + part]
    figures = {
        "requests": len(load.answers),
        "answers": dict(Counter(reason for _, _, _, reason, _ in load.answers)),
        "latency_ms": quantiles([took for _, took, _, _, _ in load.answers]),
        "proxy_mean_ms": round(1000 * between("_sum") / max(1, between("_count")), 1),
        "fallbacks": int(after["outrigger_fallbacks_total"] - before["outrigger_fallbacks_total"]),
        "in_flight_most": int(max(column("outrigger_requests_in_flight"))),
        "threads": sorted({int(n) for n in column("process_threads")}),
        "rss_mib": {
            "before": mib(before["process_resident_memory_bytes"]),
            "first half": mib(statistics.median(rss[:half])),
            "second half": mib(statistics.median(rss[half:])),
            "after": mib(after["process_resident_memory_bytes"]),
        },
        "open_files": {
            "before": int(before["process_open_fds"]),
            "least": int(min(column("process_open_fds"))),
            "most": int(max(column("process_open_fds"))),
            "after": int(after["process_open_fds"]),
        },
        "in_flight_after": int(after["outrigger_requests_in_flight"]),
        "connections_after": int(after['outrigger_open_connections side="upstream"']),
        "left_at_the_dependency": dependency.open,
    }
    wrong = []
    latency = figures["latency_ms"]
    if figures["answers"] != {"fallback": len(load.answers)}:
        wrong.append(f"not every request got the fallback: {figures['answers']}")
    # What the proxy measured itself is free of the delays of this script.
    if not 795 <= figures["proxy_mean_ms"] <= 850:
        wrong.append(f"the proxy's own mean is {figures['proxy_mean_ms']} ms")
    if latency["min"] < 795 or latency["p50"] > 850 or latency["p99"] > 1000:
        wrong.append(f"answers do not come at 800 ms: {latency}")
    if len(figures["threads"]) != 1:
        wrong.append(f"threads are not flat: {figures['threads']}")
    growth = figures["rss_mib"]["second half"] - figures["rss_mib"]["first half"]
    if growth > 4:
        wrong.append(f"memory grows by {growth:.1f} MiB from the first half to the second")
    if not given_back:
        wrong.append("not everything was given back within 10 s")
    return figures, wrong


BREAKER = (
    "    circuit_breaker: {mode: enforce, failure_rate_threshold: 50, minimum_number_of_calls: 20,\n"
    "      sliding_window_size: 5s, wait_duration_in_open_state: 3s,\n"
    "      permitted_number_of_calls_in_half_open_state: 3}\n"
)


async def outage(binary, rate=200, down=15, around=10):
    """Figures and what is wrong with them."""
    dependency = Dependency()
    services = (
        f'  svc:\n    endpoints: ["{dependency.address}"]\n    timeout: {{request: 800ms}}\n'
        "    fallback: [{cache: {max_age: 10m}}]\n"
    )
    proxy = Proxy(binary, services + BREAKER)
    has_breaker = "not supported yet" not in await proxy.check()
    if not has_breaker:
        proxy = Proxy(binary, services)
    await proxy.start()
    load = Load(proxy.listeners["data"])
    states = []
    begun = time.monotonic()

    async def watch():
        while True:
            state = await proxy.breaker()
            if state is not None and (not states or states[-1][1] != state):
                states.append((time.monotonic(), state))
            await asyncio.sleep(0.05)

    marks = {}

    async def switch():
        await asyncio.sleep(around)
        marks["down"], marks["before"] = time.monotonic(), dependency.requests
        dependency.mode = "down"
        await asyncio.sleep(down)
        marks["up"], marks["during"] = time.monotonic(), dependency.requests
        dependency.mode = "good"

    watching = asyncio.create_task(watch())
    await asyncio.gather(load.run(rate, around + down + around, paths=20), switch())
    watching.cancel()
    metrics = await proxy.metrics()
    load.close()
    await proxy.stop()
    answers = sorted(load.answers)
    within = [a for a in answers if marks["down"] + 0.05 <= a[0] < marks["up"] - 0.05]
    later = [a for a in answers if a[0] >= marks["up"]]
    first_good = next((a[0] for a in later if a[3] == "answer"), None)
    last_fallback = max((a[0] for a in later if a[3] == "fallback"), default=None)
    since = lambda at, mark: None if at is None else round(at - marks[mark], 2)
    figures = {
        "breaker": has_breaker,
        "requests": len(answers),
        "answers_in_the_outage": dict(Counter(f"{a[2]} {a[3]} {a[4]}".strip() for a in within)),
        "latency_in_the_outage_ms": quantiles([a[1] for a in within]),
        "reached_the_dependency_in_the_outage": marks["during"] - marks["before"],
        "fallbacks_from_the_cache": int(metrics['outrigger_fallbacks_total kind="cache"']),
        "breaker_states_s": [(since(at, "down"), state) for at, state in states],
        "first_own_answer_after_s": since(first_good, "up"),
        "last_fallback_after_s": since(last_fallback, "up"),
        "answers_after": dict(Counter(a[3] for a in later)),
    }
    wrong = []
    bad = [a for a in answers if a[2] != 200]
    if bad:
        wrong.append(f"{len(bad)} requests had no good answer: {Counter((a[2], a[3]) for a in bad)}")
    if first_good is None or first_good - marks["up"] > 5:
        wrong.append(f"own answers are not back within 5 s: {figures['first_own_answer_after_s']}")
    if has_breaker:
        names = [state for _, state in states]
        if "open" not in names or names[-1:] != ["closed"]:
            wrong.append(f"the breaker did not open and close by itself: {names}")
        if figures["reached_the_dependency_in_the_outage"] > rate * down / 4:
            wrong.append("the breaker let more than a quarter of the requests through")
    return figures, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=["hang", "outage"])
    parser.add_argument("--binary", default=str(ROOT / "target/release/outrigger"))
    parser.add_argument("--rate", type=int)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--down", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    raise_open_files()
    if args.run == "hang":
        figures, wrong = asyncio.run(hang(args.binary, args.rate or 1000, args.seconds))
    else:
        figures, wrong = asyncio.run(outage(args.binary, args.rate or 200, args.down))
    if args.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name.replace('_', ' '):38} {value}")
    for line in wrong:
        print("WRONG:", line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
