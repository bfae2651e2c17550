"""2,000 services of five instances each from one real Nacos: memory, processor at rest, requests at one
time, and the time until every set is right again after the server was killed and started.

usage: nacos_scale.py SERVER_PORT OUTRIGGER_BINARY [http|grpc] [SERVICES]

The server must be installed (nacos/install.sh), and one stock gRPC client (nacos-clients/install.sh
python-grpc2) registers the instances in batches over one connection, so that nobody has to beat. The
addresses need nobody behind them: nothing is sent to them.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.environ.get("OUTRIGGER_REAL_HOME") or os.path.expanduser("~/.cache/outrigger-real")
PORT, BINARY = int(sys.argv[1]), os.path.abspath(sys.argv[2])
PROTOCOL = sys.argv[3] if len(sys.argv) > 3 else "http"
SERVICES = int(sys.argv[4]) if len(sys.argv) > 4 else 2000
INSTANCES = 5

CLIENT = '''
import asyncio, sys
from v2.nacos import (BatchRegisterInstanceParam, ClientConfigBuilder, NacosNamingService,
                      RegisterInstanceParam)

async def main(port, services, instances):
    config = ClientConfigBuilder().server_address("127.0.0.1:%d" % port).namespace_id("public").log_dir(".").cache_dir(".").log_level("ERROR").build()
    naming = await NacosNamingService.create_naming_service(config)
    for s in range(services):
        batch = [RegisterInstanceParam(service_name="svc-%04d" % s, group_name="DEFAULT_GROUP",
                                       ip="10.%d.%d.%d" % (i, s // 250, 1 + s % 250), port=8080)
                 for i in range(instances)]
        await naming.batch_register_instances(BatchRegisterInstanceParam(
            service_name="svc-%04d" % s, group_name="DEFAULT_GROUP", instances=batch))
    print("registered", flush=True)
    while True:
        await asyncio.sleep(3600)

asyncio.run(main(*(int(a) for a in sys.argv[1:])))
'''


def sh(script, **env):
    subprocess.run([os.path.join(HERE, "nacos", script)], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "NACOS_PORT": str(PORT), **env})


def processor(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_kib(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


def connections(pid):
    """Sockets of a process that are connected to the server."""
    ports = {f"{PORT:04X}", f"{PORT + 1000:04X}"}
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    with open("/proc/net/tcp") as f:
        rows = [line.split() for line in f.readlines()[1:]]
    return sum(row[2].rsplit(":", 1)[1] in ports and row[3] in ("01", "02") and row[9] in inodes for row in rows)


class Outrigger:
    def __init__(self, folder):
        lines = [f"  svc-{s:04d}: {{}}" for s in range(SERVICES)]
        config = os.path.join(folder, "outrigger.yaml")
        with open(config, "w") as f:
            f.write('version: 1\nlisten: "127.0.0.1:0"\nadmin: {listen: "127.0.0.1:0"}\n'
                    'telemetry: {listen: "127.0.0.1:0"}\nlog: {level: error}\n'
                    f'registries: {{n: {{kind: nacos, protocol: {PROTOCOL}, servers: ["127.0.0.1:{PORT}"]}}}}\n'
                    "services:\n" + "\n".join(lines) + "\n")
        self.log = open(os.path.join(folder, "stdout"), "w+")
        self.process = subprocess.Popen([BINARY, "run", "-c", config], stdout=self.log, stderr=subprocess.STDOUT)
        self.pid, self.admin = self.process.pid, None
        while self.admin is None:
            time.sleep(0.05)
            with open(self.log.name) as f:
                for line in f:
                    if '"admin"' in line and '"listening"' in line:
                        self.admin = json.loads(line)["address"]

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=30) as answer:
            return json.load(answer)

    def full(self):
        """Services with all their instances, and those whose set is stale or held."""
        upstreams = self.get("/api/v1/upstreams")["upstreams"]
        full = sum(u["listed"] == INSTANCES for u in upstreams)
        return full, sum(u["stale"] for u in upstreams), sum(u["held"] is not None for u in upstreams)

    def updates(self):
        return self.get("/api/v1/registries")["registries"][0]["updates"]


def wait(what, seen, limit=400):
    start = time.monotonic()
    while not seen():
        if time.monotonic() - start > limit:
            sys.exit(f"FAIL {what}: not within {limit} s")
        time.sleep(0.2)
    return time.monotonic() - start


def main():
    subprocess.run([os.path.join(HERE, "nacos", "install.sh")], check=True, stdout=subprocess.DEVNULL)
    python = os.path.join(CACHE, "nacos-clients", "python-grpc2", "venv", "bin", "python")
    client = proxy = None
    sh("start.sh", NACOS_HEAP="1024m")
    try:
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "client.py"), "w") as f:
                f.write(CLIENT)
            client = subprocess.Popen([python, f.name, str(PORT), str(SERVICES), str(INSTANCES)],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, text=True)
            start = time.monotonic()
            if client.stdout.readline().strip() != "registered":
                sys.exit("FAIL the client did not register")
            print(f"{SERVICES} services x {INSTANCES} instances registered in {time.monotonic() - start:.0f} s, protocol {PROTOCOL}")
            proxy = Outrigger(folder)
            seconds = wait("all sets", lambda: proxy.full()[0] == SERVICES)
            print(f"all sets complete {seconds:.1f} s after the start, RSS {memory_kib(proxy.pid) / 1024:.1f} MiB")
            time.sleep(30)
            before, most = processor(proxy.pid), 0
            start, was = time.monotonic(), proxy.updates()
            while time.monotonic() - start < 60:
                most = max(most, connections(proxy.pid))
                time.sleep(0.01)
            spent, now = processor(proxy.pid) - before, proxy.updates()
            answers = sum(now.values()) - sum(was.values())
            print(f"at rest, 60 s: {spent / 60 * 100:.2f} % of a core, {answers / 60:.0f} answers/s, at most {most} "
                  f"connections to the server, RSS {memory_kib(proxy.pid) / 1024:.1f} MiB")
            sh("stop.sh", FORCE="1")
            time.sleep(30)
            sh("start.sh", NACOS_HEAP="1024m")
            back, most, worst = time.monotonic(), 0, SERVICES
            while True:
                most = max(most, connections(proxy.pid))
                full, stale, held = proxy.full()
                worst = min(worst, full)
                if full == SERVICES and not stale and not held:
                    break
                if time.monotonic() - back > 400:
                    sys.exit(f"FAIL not converged: {full} complete, {stale} stale, {held} held")
                time.sleep(0.1)
            print(f"server killed for 30 s and back without data: all sets complete, none stale or held "
                  f"{time.monotonic() - back:.1f} s after its first answer; never fewer than {worst} complete; at "
                  f"most {most} connections at one time; RSS {memory_kib(proxy.pid) / 1024:.1f} MiB; updates {proxy.updates()}")
            proxy.process.send_signal(signal.SIGTERM)
            print("PASS" if proxy.process.wait(60) == 0 else "FAIL", "it ended with 0")
            proxy = None
    finally:
        if client:
            client.kill()
        if proxy:
            proxy.process.kill()
        sh("stop.sh", FORCE="1")


main()
