"""A network that comes and goes under 1,000 requests a second: do retries stay within their budget, and do
they spread?

usage: resilience_flapping.py [--binary target/release/outrigger] [--seconds 20] [--rate 1000]

Three instances stand behind one network: for 200 ms of every second each of them resets every connection on
which a request comes. Each keeps the time and the number of every request. The service has `max_attempts: 4`,
so that the back-off with its jitter is seen, and the budget of the defaults (20 %, at least 10 a second).
Prints attempts against the bound, the share that failed towards the app, the delays before each retry and the
largest crowd of retries within 10 ms. Ends with 1 when attempts are above the bound.
"""
import argparse
import asyncio
import collections
import multiprocessing
import os
import socket
import struct
import sys
import time

from resilience import ROOT, Outrigger, quantile

PERIOD_S, BAD_S = 1.0, 0.2
PERCENT, FLOOR = 20, 10


def instance(listener, queue, stop):
    """Answers, resets while the network is bad, and tells at the end what came when."""
    seen = []

    async def serve(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                now = time.monotonic()
                number = head.split(b" ", 2)[1][1:]
                # Probes of Outrigger itself have none.
                if number:
                    seen.append((now, int(number)))
                if now % PERIOD_S < BAD_S:
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    writer.transport.abort()
                    return
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def main():
        server = await asyncio.start_server(serve, sock=listener, backlog=1024)
        while not stop.is_set():
            await asyncio.sleep(0.05)
        server.close()

    asyncio.run(main())
    queue.put(seen)


async def load(address, rate, seconds):
    """Statuses of requests sent at their times, whatever became of those before."""
    statuses, idle = collections.Counter(), []

    async def one(number):
        try:
            reader, writer = idle.pop() if idle else await asyncio.open_connection(*address)
            writer.write(b"GET /%d HTTP/1.1\r\nHost: shop\r\n\r\n" % number)
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next(int(l.split(b":")[1]) for l in lines if l.startswith(b"content-length"))
            await reader.readexactly(length)
            statuses[int(head.split(b" ", 2)[1])] += 1
            idle.append((reader, writer))
        except (OSError, asyncio.IncompleteReadError) as error:
            statuses[type(error).__name__] += 1

    begun, tasks = time.monotonic(), []
    for number in range(int(rate * seconds)):
        late = begun + number / rate - time.monotonic()
        if late > 0:
            await asyncio.sleep(late)
        tasks.append(asyncio.create_task(one(number)))
    await asyncio.gather(*tasks)
    return statuses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default=os.path.join(ROOT, "target/release/outrigger"))
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rate", type=float, default=1000)
    args = parser.parse_args()
    queue, stop, children, addresses = multiprocessing.Queue(), multiprocessing.Event(), [], []
    for _ in range(3):
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        addresses.append('"%s:%d"' % listener.getsockname())
        child = multiprocessing.Process(target=instance, args=(listener, queue, stop), daemon=True)
        child.start()
        children.append(child)
        listener.close()
    proxy = Outrigger(
        args.binary, f"  shop:\n    endpoints: [{', '.join(addresses)}]\n    retry: {{max_attempts: 4}}\n")
    try:
        statuses = asyncio.run(load(proxy.data, args.rate, args.seconds))
        counted = proxy.metric("outrigger_retries_total"), proxy.metric("outrigger_retry_budget_exhausted_total")
        ejected = sum(event.get("event") == "instance_ejected" for event in proxy.events)
    finally:
        proxy.stop()
        stop.set()
    seen = sorted(item for _ in children for item in queue.get(timeout=10))
    requests, attempts = sum(statuses.values()), len(seen)
    bound = requests * (1 + PERCENT / 100) + FLOOR * (args.seconds + 1)
    print(f"{requests} requests in {args.seconds:g} s, the network away for {BAD_S:g} of every {PERIOD_S:g} s, "
          f"{ejected} ejections")
    print(f"attempts {attempts}, bound 1.2 x requests + {FLOOR}/s = {bound:.0f}: {attempts / requests:.3f} a request")
    print(f"retries counted {counted[0]:.0f}, refused by the budget {counted[1]:.0f}")
    print("answers: " + ", ".join(f"{status}: {n}" for status, n in sorted(statuses.items(), key=str)))
    tries = collections.defaultdict(list)
    for at, number in seen:
        tries[number].append(at)
    for n in range(1, 4):
        gaps = [(t[n] - t[n - 1]) * 1000 for t in tries.values() if len(t) > n]
        if gaps:
            shown = ", ".join(f"p{int(p * 100)} {quantile(gaps, p):.1f}" for p in (0.01, 0.25, 0.5, 0.75, 0.99))
            print(f"retry {n}: {len(gaps)}, ms after the try before it: {shown}")
    first, again = collections.Counter(), collections.Counter()
    for times in tries.values():
        first[int(times[0] * 100)] += 1
        for at in times[1:]:
            again[int(at * 100)] += 1
    print(f"most first tries within 10 ms: {max(first.values())}, most retries: {max(again.values(), default=0)}")
    sys.exit(attempts > bound)


if __name__ == "__main__":
    main()
