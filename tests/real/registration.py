"""`app.register` of a running Outrigger against real registries.

usage: registration.py OUTRIGGER_BINARY WORK_FOLDER [embedded] [nacos] [eureka] [consul]

For each registry: two apps with a sidecar each register; the registry's own API is asked whether they
stay by their beats, how soon they are back after the registry lost everything, how soon an app that fails
its check is out of rotation and back. Then one sidecar gets SIGTERM under load: a caller that polls the
registry's list at the usual pace of its kind sends 50 requests a second to whom the list names. The app
ends with its sidecar and keeps an access log: no request may come after that, none may fail.
Prints PASS and FAIL lines and a table of what was seen. 1 to 4 minutes for each.
"""
import http.server
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import common
from common import HERE, call, free_port, until

SERVICE = "orders"
RATE = 50
CHECK_S, RISE, FALL = 1, 2, 3


class Report(common.Report):
    def within(self, registry, what, seconds, limit):
        shown = "never" if seconds is None else f"{seconds:.1f} s"
        self.check(seconds is not None and seconds <= limit, f"{registry}: {what}", f"{shown}, limit {limit:g} s")
        self.rows.append((registry, what, shown, f"{limit:g} s"))


class Registry:
    """A server of its own; `slack` is how long its list may lag behind what it was told."""

    script, port_name, offsets = None, None, (0,)
    slack, beat, poll = 1.0, 5.0, 10.0
    interval = ""
    environment = {}

    def __init__(self, binary, folder):
        self.port = free_port(*self.offsets)
        self.folder = folder

    def run(self, script, **more):
        env = {**os.environ, self.port_name: str(self.port), **self.environment, **more}
        log = os.path.join(self.folder, f"{self.script}.log")
        with open(log, "a") as out:
            subprocess.run([os.path.join(HERE, self.script, script)], env=env, check=True, stdout=out, stderr=out)

    def start(self):
        self.run("start.sh")

    def crash(self):
        self.run("stop.sh", FORCE="1")

    def stop(self):
        self.run("stop.sh")

    def taking(self):
        """Ports that take traffic, by the server's freshest reading; None when it does not answer."""
        return self.list()


class Nacos(Registry):
    name, script, port_name, offsets = "nacos", "nacos", "NACOS_PORT", (0, 1000, 1001, -1000)
    propagation = 12

    def config(self):
        return f'{{kind: nacos, protocol: http, servers: ["127.0.0.1:{self.port}"]}}'

    def list(self):
        status, body = call(self.port, "GET", f"/nacos/v1/ns/instance/list?serviceName={SERVICE}")
        if status != 200:
            return None
        return {h["port"] for h in json.loads(body)["hosts"] if h["healthy"] and h["enabled"]}


class Embedded(Nacos):
    name, propagation, slack = "embedded", 12, 0.2

    def __init__(self, binary, folder):
        self.port, self.folder, self.binary = free_port(), folder, binary

    def start(self):
        log = open(os.path.join(self.folder, "registry.log"), "a")
        line = [self.binary, "registry", "--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        assert until(lambda: self.list() is not None, 20) is not None, "the registry does not start"

    def crash(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Eureka(Registry):
    name, script, port_name = "eureka", "eureka", "EUREKA_PORT"
    # Beats of 5 s instead of 30 s, so that this takes minutes and not a quarter of an hour.
    interval, poll, propagation = "5s", 30.0, 65

    def config(self):
        return f'{{kind: eureka, servers: ["http://127.0.0.1:{self.port}/eureka"]}}'

    def read(self, path):
        return call(self.port, "GET", f"/eureka/apps/{SERVICE.upper()}{path}", headers={"accept": "application/json"})

    def list(self):
        """What clients read: up to 30 s old."""
        status, body = self.read("")
        if status not in (200, 404):
            return None
        found = json.loads(body)["application"]["instance"] if status == 200 else []
        return {i["port"]["$"] for i in found if i["status"] == "UP"}

    def taking(self):
        """Single instances are not cached."""
        ports = set()
        for port in APP_PORTS:
            status, body = self.read(f"/127.0.0.1:{SERVICE}:{port}")
            if status == 0:
                return None
            if status == 200 and json.loads(body)["instance"]["status"] == "UP":
                ports.add(port)
        return ports


class Consul(Registry):
    name, script, port_name, offsets = "consul", "consul", "PORT", tuple(range(7))
    poll, propagation = 1.0, 3

    def config(self):
        return f'{{kind: consul, address: "http://127.0.0.1:{self.port}"}}'

    def list(self):
        status, body = call(self.port, "GET", f"/v1/health/service/{SERVICE}?passing")
        return {i["Service"]["Port"] for i in json.loads(body)} if status == 200 else None


KINDS = {"embedded": Embedded, "nacos": Nacos, "eureka": Eureka, "consul": Consul}
APP_PORTS = []


class App:
    """Answers, keeps an access log, and has a health page that can be told to fail."""

    def __init__(self):
        app = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                health = self.path == "/actuator/health"
                if not health:
                    app.log.append((time.monotonic(), self.path))
                word = "UP" if app.up or not health else "DOWN"
                body = json.dumps({"status": word}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.up, self.log, self.closed = True, [], None
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        # A caller that hangs up is no news.
        self.server.handle_error = lambda *_: None
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.closed = time.monotonic()
        self.server.shutdown()
        self.server.server_close()


class Sidecar:
    def __init__(self, binary, folder, registry, app):
        self.telemetry, self.admin = free_port(), free_port()
        self.log = os.path.join(folder, f"{registry.name}-{app.port}.log")
        config = os.path.join(folder, f"{registry.name}-{app.port}.yaml")
        interval = f"\n      heartbeat_interval: {registry.interval}" if registry.interval else ""
        with open(config, "w") as file:
            file.write(f"""
listen: 127.0.0.1:0
admin: {{listen: "127.0.0.1:{self.admin}"}}
telemetry: {{listen: "127.0.0.1:{self.telemetry}"}}
auto_discover: false
app:
  name: shop
  register:
    - registry: r
      service: {SERVICE}
      advertise: {{address: 127.0.0.1, port: {app.port}}}{interval}
      check: {{http: /actuator/health, json_pointer: /status, interval: {CHECK_S}s, rise: {RISE}, fall: {FALL}}}
registries:
  r: {registry.config()}
""")
        self.out = open(self.log, "w")
        self.process = subprocess.Popen([binary, "run", "-c", config], stdin=subprocess.DEVNULL,
                                        stdout=self.out, stderr=self.out)

    def beats(self, result="ok"):
        _, body = call(self.telemetry, "GET", "/metrics?family=outrigger_heartbeats_total")
        for line in body.decode().splitlines():
            if line.startswith("outrigger_heartbeats_total") and f'"{result}"' in line:
                return int(line.rsplit(" ", 1)[1])
        return 0

    def events(self):
        with open(self.log) as file:
            lines = [json.loads(l) for l in file if l.startswith("{")]
        return [l for l in lines if "event" in l]


class Caller(threading.Thread):
    """Sends to whom the registry's list named at the last poll."""

    def __init__(self, registry):
        super().__init__(daemon=True)
        self.registry, self.stop = registry, False
        self.sent, self.failed, self.ports = 0, [], set()

    def poll(self):
        while not self.stop:
            found = self.registry.list()
            if found:
                self.ports = found
            time.sleep(self.registry.poll)

    def run(self):
        threading.Thread(target=self.poll, daemon=True).start()
        due = time.monotonic()
        while not self.stop:
            if self.ports:
                port = random.choice(sorted(self.ports))
                status, _ = call(port, "GET", "/work", timeout=3)
                self.sent += 1
                if status != 200:
                    self.failed.append((time.monotonic(), port, status))
            due += 1 / RATE
            time.sleep(max(0, due - time.monotonic()))


def check_registry(registry, binary, folder, report):
    name, two_beats = registry.name, 2 * registry.beat
    apps = [App(), App()]
    APP_PORTS[:] = [app.port for app in apps]
    both = set(APP_PORTS)
    registry.start()
    sidecars = [Sidecar(binary, folder, registry, app) for app in apps]
    try:
        listed = until(lambda: registry.taking() == both, 60)
        report.within(name, "listed after the start", listed, 15 + registry.slack)

        before = [s.beats() for s in sidecars]
        lost = until(lambda: registry.taking() != both, 8 * registry.beat)
        beats = [s.beats() - b for s, b in zip(sidecars, before)]
        report.check(lost is None and min(beats) >= 7, f"{name}: stays by its beats", f"beats {beats} in {8 * registry.beat:g} s")

        registry.crash()
        registry.start()
        back = until(lambda: registry.taking() == both, 90)
        report.within(name, "listed again after a restart without data", back, two_beats + registry.slack)

        time.sleep(registry.beat)
        apps[0].up = False
        out = until(lambda: registry.taking() == {apps[1].port}, 60)
        # A check has just been made when it begins to fail, at worst; and it takes a moment.
        report.within(name, "out of rotation when the check fails", out, (FALL + 1) * CHECK_S + registry.slack)
        apps[0].up = True
        back = until(lambda: registry.taking() == both, 60)
        report.within(name, "back in rotation", back, (RISE + 1) * CHECK_S + registry.slack)

        caller = Caller(registry)
        caller.start()
        until(lambda: caller.ports == both, registry.poll + 65)
        time.sleep(3)
        asked = time.monotonic()
        sidecars[0].process.send_signal(signal.SIGTERM)
        gone = until(lambda: registry.taking() == {apps[1].port}, 30)
        report.within(name, "off the list after SIGTERM", gone, 2 + registry.slack)
        code = sidecars[0].process.wait(timeout=registry.propagation + 40)
        took = time.monotonic() - asked
        # As a pod does: the app ends after its sidecar.
        apps[0].close()
        last = max((at for at, _ in apps[0].log), default=asked)
        came_back = until(lambda: apps[0].port in (registry.taking() or set()), 3 * registry.beat)
        caller.stop = True
        report.check(code == 0, f"{name}: the sidecar ends with 0", f"{code} after {took:.1f} s")
        report.check(took >= registry.propagation - 1, f"{name}: it served on for propagation_delay", f"{took:.1f} s")
        report.check(came_back is None, f"{name}: nothing brings it back")
        # One that comes later is refused, and counted below.
        report.check(last < apps[0].closed - 0.5, f"{name}: the last request arrives well before the app closes",
                     f"{last - asked:.1f} s after SIGTERM, closed at {apps[0].closed - asked:.1f} s")
        report.check(not caller.failed, f"{name}: no request failed", f"{len(caller.failed)} of {caller.sent} {caller.failed[:3]}")
        order = [e["event"] for e in sidecars[0].events() if e["event"] in ("drain_started", "deregistered", "drain_finished", "stopped")]
        report.check(order == ["drain_started", "deregistered", "drain_finished", "stopped"], f"{name}: the order of the end", f"{order}")
        report.rows.append((name, "last request after SIGTERM", f"{last - asked:.1f} s", f"closed at {took:.1f} s"))
        report.rows.append((name, "failed requests", f"{len(caller.failed)} of {caller.sent}", "0"))
    finally:
        for sidecar in sidecars:
            if sidecar.process.poll() is None:
                sidecar.process.kill()
                sidecar.process.wait()
        for app in apps:
            if app.closed is None:
                app.close()
        registry.stop()


def main():
    binary, folder, names = sys.argv[1], sys.argv[2], sys.argv[3:] or list(KINDS)
    report = Report()
    for name in names:
        try:
            check_registry(KINDS[name](binary, folder), binary, folder, report)
        except (OSError, AssertionError, subprocess.SubprocessError) as error:
            report.check(False, f"{name}: {error!r}")
    print("\n| registry | what | seen | limit |\n|---|---|---|---|")
    for row in report.rows:
        print("| " + " | ".join(row) + " |")
    return 1 if report.failed or not report.passed else 0


if __name__ == "__main__":
    sys.exit(main())
