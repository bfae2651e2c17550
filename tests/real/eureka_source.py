"""The source `kind: eureka` of a running Outrigger against a Spring Cloud Netflix server.

usage: eureka_source.py OUTRIGGER_BINARY WORK_FOLDER

The events are those of source_matrix.py, with instances that renew each second; once with the whole registry
by deltas, once per application. The server's own caches are shortened to 1 s, its eviction to 2 s, so
that what is measured is our part: a read each 30 s. About 14 minutes.
"""
import json
import sys
import threading
import time
import urllib.parse

import source_matrix as matrix
from source_matrix import call


class Eureka(matrix.Server):
    name = "eureka"
    service = "orders"
    odd = "odd_1-%x.y"
    many = "many"
    # A read comes 27 to 33 s after the last; the server's cache lags by a second or two.
    change_s = 40
    reread_s = 33
    stale_s = 125
    crash_s = 60
    forgets = True

    def __init__(self, folder, mode):
        super().__init__(folder)
        self.mode = mode
        self.renewed = {}  # (service, address): status
        self.stopped = False
        threading.Thread(target=self.renew, daemon=True).start()

    def registry(self):
        return f"{{kind: eureka, servers: ['http://127.0.0.1:{self.port}/eureka'], mode: {self.mode}}}"

    def script(self, name, *arguments, check=True, **env):
        env = {
            "EUREKA_CACHE_UPDATE_MS": "1000", "EUREKA_EVICTION_MS": "2000",
            "EUREKA_SELF_PRESERVATION": "false", **env,
        }
        super().script(name, *arguments, check=check, **env)

    def path(self, service, address=None):
        path = "/eureka/apps/" + urllib.parse.quote(service.upper(), safe="")
        return path if address is None else path + "/" + urllib.parse.quote(address, safe="")

    def post(self, service, address, weight=None, status="UP", lease=5):
        host, port = address.rsplit(":", 1)
        stamp = str(int(time.time() * 1000))
        instance = {
            "instanceId": address, "hostName": host, "app": service.upper(), "ipAddr": host, "vipAddress": service,
            "status": status, "overriddenstatus": "UNKNOWN",
            "port": {"$": int(port), "@enabled": "true"}, "securePort": {"$": 443, "@enabled": "false"},
            "dataCenterInfo": {"@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn"},
            "leaseInfo": {"renewalIntervalInSecs": 1, "durationInSecs": lease},
            "metadata": {} if weight is None else {"weight": str(weight)},
            "lastUpdatedTimestamp": stamp, "lastDirtyTimestamp": stamp,
        }
        headers = {"Content-Type": "application/json"}
        return call(self.port, "POST", self.path(service), headers=headers, body=json.dumps({"instance": instance}))[0]

    def renew(self):
        while not self.stopped:
            time.sleep(1)
            for service, address in list(self.renewed):
                call(self.port, "PUT", self.path(service, address))

    def register(self, address, service=None):
        service = service or self.service
        status = self.post(service, address)
        if status != 204:
            raise RuntimeError(f"register {address}: {status}")
        self.renewed[service, address] = True

    def deregister(self, address, service=None):
        service = service or self.service
        self.renewed.pop((service, address), None)
        call(self.port, "DELETE", self.path(service, address))

    def crash(self, address):
        self.renewed.pop((self.service, address))

    def set_weight(self, address, percent):
        self.post(self.service, address, weight=percent // 100)

    def set_enabled(self, address, enabled):
        path = self.path(self.service, address) + "/status"
        if enabled:
            call(self.port, "DELETE", path + "?value=UP")
        else:
            call(self.port, "PUT", path + "?value=OUT_OF_SERVICE")

    def set_healthy(self, address, healthy):
        self.post(self.service, address, status="UP" if healthy else "DOWN")

    def register_many(self, service, addresses):
        for address in addresses:
            self.post(service, address, lease=600)
        return addresses

    def end(self):
        self.stopped = True


def main():
    binary, folder = sys.argv[1], sys.argv[2]
    report = matrix.Report()
    for mode in sys.argv[3:] or ("delta", "per_app"):
        print(f"== {mode}", flush=True)
        report.rows.append([f"**mode {mode}**", "", "", ""])
        server = Eureka(folder, mode)
        run = matrix.Matrix(server, binary, folder)
        run.report = report
        run.part()
    report.end()


if __name__ == "__main__":
    main()
