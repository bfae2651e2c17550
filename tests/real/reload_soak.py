#!/usr/bin/env python3
"""Acceptance runs of reloads and restarts: the built binary under load, on loopback, standard library only.

  reload_soak.py reloads  [--rate 500]  20 reloads with a WebSocket and a gRPC stream open, three of them
                                        broken; then 200 more: no failed request, k unchanged, open files and
                                        memory flat
  reload_soak.py restart  [--rate 300]  restart with a state file behind a client that retries: the
                                        ejected instance gets no request before its next probe
  reload_soak.py soak     [--minutes 10] [--rate 200]
                                        instances join, leave and fail, a reload every 10 s: slope of
                                        memory, open files, every failed request matched to an event

Common: --binary PATH (target/release/outrigger), --json (one line of figures). Exit code 1 when a bound
is broken, with what and by how much.
"""

import argparse
import asyncio
import bisect
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POLICY = """version: 1
policies:
  - name: quick
    consecutive_errors: 3
    recovery_detection_unit_time: {unit}
"""


class Instance:
    """An HTTP/1.1 instance: answers at once, badly while `bad`; `/ws` upgrades and echoes."""

    def __init__(self):
        self.bad = False
        self.requests = []
        self.writers = set()

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.address = "127.0.0.1:%d" % self.server.sockets[0].getsockname()[1]
        return self

    async def stop(self):
        self.server.close()
        for writer in list(self.writers):
            writer.close()

    async def serve(self, reader, writer):
        self.writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"upgrade: websocket" in head.lower():
                    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
                    while data := await reader.read(4096):
                        writer.write(data)
                    return
                self.requests.append(time.time())
                if self.bad:
                    writer.write(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n")
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()


def frame(kind, flags, stream, payload=b""):
    """A frame of HTTP/2 (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name, value):
    """A header field that is not indexed (RFC 7541, 6.2.2)."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1


class Frames:
    """One side of an HTTP/2 connection: what everybody must answer is answered."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def next(self):
        while True:
            head = await self.reader.readexactly(9)
            payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF
            if kind in (SETTINGS, PING) and not flags & ACK:
                self.writer.write(frame(kind, ACK, 0, payload if kind == PING else b""))
            elif kind in (DATA, HEADERS, RESET, GOAWAY):
                return kind, flags, stream, payload


class GrpcInstance:
    """A gRPC instance with one kind of call: a message with a running number every 100 ms."""

    def __init__(self):
        self.ending = False

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.address = "127.0.0.1:%d" % self.server.sockets[0].getsockname()[1]
        return self

    async def serve(self, reader, writer):
        try:
            await reader.readexactly(24)
            writer.write(frame(SETTINGS, 0, 0))
            frames, calls = Frames(reader, writer), []
            while True:
                kind, _, stream, _ = await frames.next()
                if kind == HEADERS:
                    calls.append(asyncio.create_task(self.call(writer, stream)))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def call(self, writer, stream):
        kind = literal(b"content-type", b"application/grpc")
        writer.write(frame(HEADERS, END_HEADERS, stream, b"\x88" + kind))
        number = 0
        while not self.ending:
            message = b"\0" + (4).to_bytes(4, "big") + number.to_bytes(4, "big")
            writer.write(frame(DATA, 0, stream, message))
            number += 1
            await asyncio.sleep(0.1)
        status = literal(b"grpc-status", b"0")
        writer.write(frame(HEADERS, END_HEADERS | END_STREAM, stream, status))


class GrpcCall:
    """A server-streaming call through the proxy; `numbers` are those of its messages."""

    def __init__(self, address):
        self.address, self.numbers, self.ended = address, [], None
        self.task = asyncio.create_task(self.run())

    async def run(self):
        host, port = self.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        fields = literal(b":path", b"/demo.Numbers/Count") + literal(b":authority", b"grpc")
        fields += literal(b"content-type", b"application/grpc") + literal(b"te", b"trailers")
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
        writer.write(frame(HEADERS, END_HEADERS, 1, b"\x83\x86" + fields))
        writer.write(frame(DATA, END_STREAM, 1, b"\0\0\0\0\0"))
        frames, data = Frames(reader, writer), b""
        while True:
            kind, flags, stream, payload = await frames.next()
            if kind == DATA:
                data += payload
                while len(data) >= 9:
                    self.numbers.append(int.from_bytes(data[5:9], "big"))
                    data = data[9:]
            if kind in (RESET, GOAWAY) or flags & END_STREAM:
                self.ended = {DATA: "data", HEADERS: "trailers", RESET: "reset", GOAWAY: "goaway"}[kind]
                writer.close()
                return


class Proxy:
    """The built binary with its main file in a folder of its own."""

    all = []

    def __init__(self, binary, folder):
        self.binary, self.folder = os.path.abspath(binary), folder
        Proxy.all.append(self)
        self.events, self.child = [], None

    async def start(self, data="127.0.0.1:0"):
        self.listeners = {}
        self.child = await asyncio.create_subprocess_exec(
            self.binary, "run", "-c", str(self.folder / "outrigger.yaml"), cwd=self.folder, env={},
            stdout=asyncio.subprocess.PIPE, stderr=open(self.folder / "stderr", "ab"), limit=1 << 20)
        self.reading = asyncio.create_task(self.read())
        await self.until(lambda: {"data", "admin", "telemetry"} <= self.listeners.keys(), "start")
        return self

    async def read(self):
        while line := await self.child.stdout.readline():
            event = json.loads(line)
            if "event" in event:
                event["at"] = time.time()
                self.events.append(event)
                if event["event"] == "listening":
                    self.listeners[event["listener"]] = event["address"]

    async def until(self, seen, what, patience=30):
        end = time.monotonic() + patience
        while not seen():
            if time.monotonic() > end or self.child.returncode is not None:
                raise Broken(f"{what}: not seen; last events: {self.events[-3:]}")
            await asyncio.sleep(0.01)

    def count(self, event, **fields):
        wanted = lambda e: e["event"] == event and all(e.get(k) == v for k, v in fields.items())
        return sum(1 for e in self.events if wanted(e))

    def write(self, text, name="outrigger.yaml"):
        fresh = self.folder / (name + ".fresh")
        fresh.write_text(text)
        fresh.rename(self.folder / name)

    async def reload(self, text, result, name="outrigger.yaml"):
        kinds = ("config_reloaded", "config_rejected")
        ours = lambda: [e for e in self.events if e["event"] in kinds and e.get("actor") == "signal"]
        before = len(ours())
        self.write(text, name)
        self.child.send_signal(signal.SIGHUP)
        done = lambda: ours()[before:]
        await self.until(done, "a reload")
        got = done()[0]["result"]
        if got != result:
            raise Broken(f"the reload came to {got}, not {result}: {done()[0]['msg']}")

    def files(self):
        return len(os.listdir(f"/proc/{self.child.pid}/fd"))

    def rss_kib(self):
        text = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1])

    async def instances(self, upstream="svc"):
        url = f"http://{self.listeners['admin']}/api/v1/upstreams/{upstream}/instances"
        get = lambda: json.load(urllib.request.urlopen(url, timeout=10))
        return (await asyncio.to_thread(get))["instances"]

    async def stop(self, how=signal.SIGTERM):
        if self.child.returncode is None:
            self.child.send_signal(how)
        await asyncio.wait_for(self.child.wait(), 30)
        await self.reading


class Broken(Exception):
    """A bound that does not hold."""


class Load:
    """Requests at a rate over some connections; each outcome with its time."""

    def __init__(self, address, rate, connections=16, retries=0):
        self.host, port = address().rsplit(":", 1)
        self.address, self.rate, self.retries = address, rate, retries
        self.done, self.failed, self.retried = 0, [], 0
        self.stopping = False
        self.tasks = [asyncio.create_task(self.run(n, connections)) for n in range(connections)]

    async def run(self, n, connections):
        step, due = connections / self.rate, time.monotonic() + n / self.rate
        stream = None
        while not self.stopping:
            await asyncio.sleep(max(0, due - time.monotonic()))
            due += step
            for attempt in range(self.retries + 1):
                try:
                    stream = stream or await self.connect()
                    status = await asyncio.wait_for(self.request(*stream), 10)
                except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
                    status = repr(error)
                if status != 200 and stream:
                    stream[1].close()
                    stream = None
                if status == 200 or attempt == self.retries:
                    break
                self.retried += 1
                await asyncio.sleep(0.05)
            self.done += 1
            if status != 200:
                self.failed.append((time.time(), status))
        if stream:
            stream[1].close()

    async def connect(self):
        host, port = self.address().rsplit(":", 1)
        return await asyncio.open_connection(host, int(port))

    @staticmethod
    async def request(reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: svc\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        if length:
            await reader.readexactly(int(length[1]))
        if b"connection: close" in head.lower():
            raise asyncio.IncompleteReadError(b"", None)
        return int(head.split(b" ", 2)[1])

    async def stop(self):
        self.stopping = True
        await asyncio.gather(*self.tasks)


def config(instances, n=0, state=False, data="127.0.0.1:0", grpc=None):
    lines = ["# %d" % n, "version: 1", f'listen: "{data}"', "workers: 2", 'admin: {listen: "127.0.0.1:0"}',
             'telemetry: {listen: "127.0.0.1:0", access_log: {mode: none}}',
             "auto_discover: false", "services:", "  svc:", "    via: " + ["none", "response"][n % 2],
             "    endpoints: [%s]" % ", ".join('"%s"' % i.address for i in instances)]
    if grpc:
        lines += ["  grpc:", "    protocol: grpc", f'    endpoints: ["{grpc.address}"]']
    if state:
        lines.insert(2, "state_file: ./state.json")
    return "\n".join(lines) + "\n"


def prepare(folder, unit="10m"):
    (folder / "policies").mkdir()
    (folder / "policies/quick.yaml").write_text(POLICY.format(unit=unit))


def free_port():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def verdict_of(views):
    out = [v for v in views if v["state"] in ("ejected", "probing")]
    return [(v["instance"], v["k"], v["times_ejected"], round(v["next_probe_unix_s"])) for v in out]


async def reloads(args, folder, figures):
    instances = [await Instance().start() for _ in range(4)]
    instances[3].bad = True
    grpc = await GrpcInstance().start()
    prepare(folder)
    proxy = Proxy(args.binary, folder)
    proxy.write(config(instances, grpc=grpc))
    await proxy.start()
    load = Load(lambda: proxy.listeners["data"], args.rate)
    await proxy.until(lambda: proxy.count("instance_ejected"), "the ejection")
    before = verdict_of(await proxy.instances())
    reader, writer = await load.connect()
    writer.write(b"GET /ws HTTP/1.1\r\nhost: svc\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")

    async def echo(word):
        writer.write(word)
        if await asyncio.wait_for(reader.readexactly(len(word)), 10) != word:
            raise Broken("the WebSocket says something else")

    call = GrpcCall(proxy.listeners["data"])
    await proxy.until(lambda: len(call.numbers) > 2, "the stream")

    policy = POLICY.format(unit="10m")
    for n in range(1, 21):
        if n == 5:
            await proxy.reload("version: 1\nservices: [\n", "rejected")
        elif n == 10:
            await proxy.reload(config(instances, n, grpc=grpc) + "limts: {}\n", "rejected")
        elif n == 15:
            await proxy.reload(POLICY.format(unit="soon"), "partial", "policies/quick.yaml")
            proxy.write(policy, "policies/quick.yaml")
        else:
            await proxy.reload(config(instances, n, grpc=grpc), "applied")
        await echo(b"reload %d" % n)
        await asyncio.sleep(0.25)
    files, rss = [proxy.files()], [proxy.rss_kib()]
    for n in range(21, 221):
        await proxy.reload(config(instances, n, grpc=grpc), "applied")
        if n % 20 == 0:
            files.append(proxy.files())
            rss.append(proxy.rss_kib())
    await echo(b"still")
    grpc.ending = True
    await proxy.until(lambda: call.ended, "the end of the stream")
    after = verdict_of(await proxy.instances())
    await load.stop()
    numbers = len(call.numbers)
    figures.update(stream_messages=numbers, stream_ended=call.ended, requests=load.done, failed=len(load.failed), files=files, rss_kib=rss,
                   ejection_before=before, ejection_after=after)
    await proxy.stop()
    check(call.numbers == list(range(numbers)) and call.ended == "trailers", "the gRPC stream was touched")
    check(figures["failed"] == 0, f"{load.failed[:5]}")
    check(before == after and len(before) == 1, f"ejection {before} became {after}")
    check(files[-1] <= files[1] + 4, f"open files grow: {files}")
    check(rss[-1] <= rss[1] * 1.2 + 2048, f"memory grows: {rss} KiB")


async def restart(args, folder, figures):
    instances = [await Instance().start() for _ in range(4)]
    bad = instances[3]
    bad.bad = True
    prepare(folder)
    port = f"127.0.0.1:{free_port()}"
    proxy = Proxy(args.binary, folder)
    proxy.write(config(instances, state=True, data=port))
    await proxy.start()
    load = Load(lambda: port, args.rate, retries=100)
    await proxy.until(lambda: proxy.count("instance_ejected"), "the ejection")
    await asyncio.sleep(1.5)
    before = verdict_of(await proxy.instances())
    seen, outages = len(bad.requests), []
    for how in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        await asyncio.sleep(2)
        began = time.monotonic()
        await proxy.stop(how)
        await proxy.start()
        outages.append(round(time.monotonic() - began, 3))
    await asyncio.sleep(2)
    after = verdict_of(await proxy.instances())
    await load.stop()
    leaked = len(bad.requests) - seen
    figures.update(requests=load.done, failed=len(load.failed), retried=load.retried, restarts_s=outages,
                   to_ejected=leaked, before=before, after=after)
    await proxy.stop()
    check(not load.failed, f"failed although retried: {load.failed[:5]}")
    check(leaked == 0, f"{leaked} requests went to the ejected instance before its next probe")
    check([b[:3] for b in before] == [a[:3] for a in after], f"{before} became {after}")


async def soak(args, folder, figures):
    rng = random.Random(args.seed)
    pool = [await Instance().start() for _ in range(6)]
    prepare(folder, unit="3s")
    proxy = Proxy(args.binary, folder)
    proxy.write(config(pool))
    await proxy.start()
    load = Load(lambda: proxy.listeners["data"], args.rate)
    begin, end = time.monotonic(), time.monotonic() + args.minutes * 60
    samples, changes, n = [], [], 0
    while time.monotonic() < end:
        n += 1
        action = rng.choice(["join", "leave", "fail", "mend", "none"])
        if action == "join" and len(pool) < 10:
            pool.append(await Instance().start())
        elif action == "leave" and len(pool) > 4:
            gone = pool.pop(rng.randrange(len(pool)))
            # It leaves the list first and goes away later, as an orderly instance does.
            asyncio.get_running_loop().call_later(5, lambda i=gone: asyncio.ensure_future(i.stop()))
        elif action in ("fail", "mend"):
            rng.choice(pool).bad = action == "fail" and sum(i.bad for i in pool) < len(pool) // 2
        changes.append(time.time())
        await proxy.reload(config(pool, n), "applied")
        samples.append((time.monotonic() - begin, proxy.rss_kib(), proxy.files()))
        await asyncio.sleep(min(10, max(0, end - time.monotonic())))
    await load.stop()
    # A failed request has a cause that an event tells of, within the window before or after it.
    kinds = {"instance_ejected", "instance_left", "instance_restored", "probe_failed", "ejection_suppressed"}
    at = sorted(e["at"] for e in proxy.events if e["event"] in kinds)
    near = lambda t: bisect.bisect_left(at, t + 3) > bisect.bisect_left(at, t - 3)
    unmatched = [f for f in load.failed if not near(f[0])]
    late = samples[len(samples) // 4:]
    slope = slope_of([(t / 60, rss) for t, rss, _ in late])
    figures.update(requests=load.done, failed=len(load.failed), unmatched=len(unmatched), reloads=n,
                   ejections=proxy.count("instance_ejected"), restores=proxy.count("instance_restored"),
                   rss_kib=[s[1] for s in samples][:: max(1, len(samples) // 10)],
                   rss_slope_kib_per_minute=round(slope, 1), files=[s[2] for s in samples][:: max(1, len(samples) // 10)])
    await proxy.stop()
    check(not unmatched, f"failed without an event near: {unmatched[:5]}")
    check(len(load.failed) * 1000 <= load.done, f"{len(load.failed)} of {load.done} failed")
    check(args.minutes < 5 or slope < 64, f"memory grows by {slope:.0f} KiB a minute")
    check(late[-1][2] <= max(s[2] for s in late[:3]) + 16, f"open files grow: {[s[2] for s in late]}")


def slope_of(points):
    if len(points) < 3:
        return 0.0
    mx = sum(x for x, _ in points) / len(points)
    my = sum(y for _, y in points) / len(points)
    below = sum((x - mx) ** 2 for x, _ in points)
    return sum((x - mx) * (y - my) for x, y in points) / below if below else 0.0


def check(holds, what):
    if not holds:
        raise Broken(what)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=["reloads", "restart", "soak"])
    parser.add_argument("--binary", default=str(ROOT / "target/release/outrigger"))
    parser.add_argument("--rate", type=float, default=None, help="requests per second")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.rate = args.rate or {"reloads": 500, "restart": 300, "soak": 200}[args.run]
    runs = {"reloads": reloads, "restart": restart, "soak": soak}
    figures, broken = {"run": args.run, "rate": args.rate}, None
    with tempfile.TemporaryDirectory() as folder:
        async def run():
            try:
                await runs[args.run](args, Path(folder), figures)
            finally:
                for proxy in Proxy.all:
                    if proxy.child and proxy.child.returncode is None:
                        await proxy.stop(signal.SIGKILL)

        try:
            asyncio.run(run())
        except Broken as error:
            broken = str(error)
            print((Path(folder) / "stderr").read_text()[-2000:], file=sys.stderr)
    figures["broken"] = broken
    if args.json:
        print(json.dumps(figures))
    else:
        for key, value in figures.items():
            print(f"{key:26} {value}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
