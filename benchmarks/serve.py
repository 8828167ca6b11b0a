"""The server under load, kills, wrong input, a full disk, and for long: loopback only.

python benchmarks/serve.py load            # recommendations against a constant, events meanwhile
python benchmarks/serve.py kill            # kill -9 while four clients send events
python benchmarks/serve.py fuzz            # random requests by /openapi.json
python benchmarks/serve.py hostile         # slow clients, huge bodies, idle connections
python benchmarks/serve.py disk            # a disk that is full
python benchmarks/serve.py soak            # an hour's traffic in ten minutes
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import quote

import numpy as np

from scaledsgd import Client, Recommender, load
from scaledsgd.serving.client import ServerError

USERS, ITEMS, RANK = 50_000, 62_000, 64
CHOICES = 600_000  # that the model of the load knows at first
COMMAND = [sys.executable, "-m", "scaledsgd", "serve"]


# --- A model, and a server with it ----------------------------------------------------------------


TAIL = {"long": 1.0, "none": 0.0}  # by which power of its rank an item's popularity falls


def popular(rng, items: int, count: int, tail: str = "long") -> np.ndarray:
    """Items by popularity. A long tail of unpopular ones has short vectors, which a search need not
    look at; without one it looks at all."""
    chance = (np.arange(items) + 30.0) ** -TAIL[tail]
    return rng.choice(items, count, p=chance / chance.sum())


def model(
    path: Path, users: int = USERS, items: int = ITEMS, rank: int = RANK, choices: int = CHOICES,
    tail: str = "long",
):  # fmt: skip
    """A recommender that has seen every user and item."""
    rng = np.random.default_rng(0)
    user = np.concatenate([np.arange(users), rng.integers(0, users, choices), np.arange(items)])
    item = np.concatenate([popular(rng, items, users + choices, tail), np.arange(items)])
    user[-items:] %= users
    table = {"user": user, "item": item}
    found = Recommender(rank=rank, loss="squared", random_state=0)
    for _ in range(3):
        found.partial_fit(table, user="user", item="item")
    found.save(path)
    return found


def constant(arguments: list[str]) -> int:
    """The server with one more route, which returns as many bytes as ten recommendations."""
    from starlette.responses import Response

    from scaledsgd.cli.main import main as command
    from scaledsgd.serving import app

    items = [{"item": 12345, "score": 0.123456} for _ in range(10)]
    content = json.dumps({"items": items, "snapshot": 1000}).encode()

    async def answer(self, asked):
        return Response(content, media_type="application/json")

    app.Service.constant = answer
    app.ROUTES = (*app.ROUTES, app.Route("GET", "/v1/constant", "constant", "A constant."))
    return command(["serve", *arguments])


class Served:
    """A server in a process of its own."""

    def __init__(self, *options: str, command=COMMAND):
        self.process = subprocess.Popen(
            [*command, *options, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        told = self.process.stdout.readline()
        if not told:
            raise RuntimeError(f"the server ended with {self.process.wait()}")
        self.told = json.loads(told)
        self.url, self.token = self.told["url"], self.told.get("token", "")
        self.port = int(self.url.rsplit(":", 1)[1])

    def client(self) -> Client:
        return Client(self.url, self.token)

    def memory(self) -> int:
        """Bytes that it holds."""
        told = Path(f"/proc/{self.process.pid}/status").read_text().split()
        return 1024 * int(told[told.index("VmRSS:") + 1])

    def handles(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.stop()


# --- Load -----------------------------------------------------------------------------------------


async def _asks(port: int, heads: list[bytes], until: float, times: list[float], slots: int):
    """Send requests over a few connections, each the next as soon as the last is answered."""

    async def one(k: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        n = k
        while time.perf_counter() < until:
            begun = time.perf_counter()
            writer.write(heads[n % len(heads)])
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 202")), head
            at = head.lower().index(b"content-length:") + 15
            await reader.readexactly(int(head[at : head.index(b"\r", at)]))
            times.append(time.perf_counter() - begun)
            n += slots
        writer.close()

    await asyncio.gather(*(one(k) for k in range(slots)))


def _ask_for(port: int, heads: list[bytes], seconds: float, slots: int, pipe) -> None:
    times: list[float] = []
    begun = time.perf_counter()
    asyncio.run(_asks(port, heads, begun + seconds, times, slots))
    pipe.send((len(times) / (time.perf_counter() - begun), np.percentile(times, [50, 99]) * 1e3))


def _post(
    port: int, token: str, rate: int, batch: int, users: int, items: int, tail: str, stopped, sent
):
    """Send so many events a second, in batches, over four connections."""
    rng = np.random.default_rng(1)
    head = f"POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
    head += "content-type: application/x-ndjson\r\ncontent-length: "
    bodies = []
    for _ in range(200):
        pairs = zip(rng.integers(0, users, batch), popular(rng, items, batch, tail), strict=True)
        lines = "\n".join(f'{{"user": {u}, "item": {i}}}' for u, i in pairs)
        bodies.append(f"{head}{len(lines)}\r\n\r\n{lines}".encode())

    async def one(k: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        every, due = 4 * batch / rate, time.perf_counter() + k * batch / rate
        while not stopped.is_set():
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due += every
            writer.write(bodies[rng.integers(len(bodies))])
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 202"), answer
            at = answer.lower().index(b"content-length:") + 15
            await reader.readexactly(int(answer[at : answer.index(b"\r", at)]))
            with sent.get_lock():
                sent.value += batch
        writer.close()

    async def all_of_them() -> None:
        await asyncio.gather(*(one(k) for k in range(4)))

    asyncio.run(all_of_them())


def load_test(**given) -> bool:
    """Recommendations against a constant of the same size, by turns, while events are learned."""
    met = [_load(tail, **given) for tail in TAIL]
    return all(met)


def _load(tail: str, seconds: float, rate: int, slots: int, rounds: int) -> bool:
    spawn = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "load.model")
        model(path, tail=tail)
        command = [sys.executable, __file__, "constant"]
        with Served(str(path), "--learn", command=command) as server, server.client() as ask:
            head = f"HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {server.token}\r\n\r\n"
            users = np.random.default_rng(2).integers(0, USERS, 4096)
            heads = {
                "constant": [f"GET /v1/constant {head}".encode()],
                "recommend": [f"GET /v1/recommend/{u} {head}".encode() for u in users],
            }
            stopped, sent = spawn.Event(), spawn.Value("q", 0)
            given = (server.port, server.token, rate, 100, USERS, ITEMS, tail, stopped, sent)
            poster = spawn.Process(target=_post, args=given)
            if rate:
                poster.start()
            time.sleep(3)
            found: dict[str, list] = {name: [] for name in heads}
            begun, before = time.perf_counter(), sent.value
            learned = next(ask.live())["events"]
            for turn in range(rounds):
                for name in sorted(heads, reverse=bool(turn % 2)):
                    ours, theirs = spawn.Pipe()
                    asked = (server.port, heads[name], seconds, slots, theirs)
                    asker = spawn.Process(target=_ask_for, args=asked)
                    asker.start()
                    found[name].append(ours.recv())
                    asker.join()
            spent = time.perf_counter() - begun
            posted = (sent.value - before) / spent
            state = next(ask.live())
            if rate:
                stopped.set()
                poster.join()
            speed = {name: np.median([one[0] for one in told]) for name, told in found.items()}
            p50, p99 = np.median([one[1] for one in found["recommend"]], axis=0)
            share = speed["recommend"] / speed["constant"]
            print(
                f"{ITEMS:,} items, tail of popularity: {tail}, r = {RANK}, {slots} connections,"
                f" {rounds} turns of {seconds:g} s"
            )
            for name, told in found.items():
                each = ", ".join(f"{one[0]:.0f}" for one in told)
                print(f"  {name:10} {speed[name]:6.0f} requests/s ({each})")
            print(f"  recommend / constant: {share:.0%} (40% asked for)")
            print(
                f"  recommend: p50 {p50:.1f} ms, p99 {p99:.1f} ms, ratio {p99 / p50:.1f} (below 5)"
            )
            taken = (state["events"] - learned) / spent
            print(f"  events posted: {posted:,.0f}/s; learned: {taken:,.0f}/s")
            print(f"  behind at the end: {state['behind']:,}; snapshot {state['age']:.2f} s old")
            return share >= 0.4 and p99 < 5 * p50 and posted >= 0.98 * rate


# --- Kills ----------------------------------------------------------------------------------------

_PER = 400  # items that a user of the kills chooses, each once


_LOADING = "import sys, scaledsgd.serving.server; from scaledsgd import load; load(sys.argv[1])"


class Sender(threading.Thread):
    """A shop that sends events, each pair of a user and an item once. One that insists sends a
    request again until it is answered; the others go on with the next."""

    def __init__(self, number: int, place: dict, insists: bool):
        super().__init__(daemon=True)
        self.number, self.place, self.insists = number, place, insists
        self.stopped = threading.Event()
        self.batches: list[tuple[list[dict], bool]] = []  # and whether it was answered

    def run(self) -> None:
        rng, at = random.Random(self.number), 0
        while not self.stopped.is_set():
            size = rng.choice((1, 7, 60))
            events = [
                {"user": f"{self.number}-{n // _PER}", "item": f"item {n % _PER}"}
                for n in range(at, at + size)
            ]
            at += size
            key, answered = f"{self.number}/{at}", False
            while not answered:
                try:
                    with Client(self.place["url"], self.place["token"], timeout=5) as client:
                        client._ask("POST", "/v1/events", events, {"idempotency-key": key})
                        answered = True
                except (OSError, ServerError, ValueError, KeyError, AssertionError):
                    time.sleep(0.02)
                except Exception as why:  # of http.client: the answer broke off
                    assert type(why).__module__ == "http.client", why
                if self.stopped.is_set() or not self.insists:
                    break
            self.batches.append((events, answered))


def kill_test(kills: int) -> bool:
    """Kill -9 at random moments while four clients send; then see what was learned."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kill.model")
        start = {"user": [f"old {n % 20}" for n in range(_PER)]}
        start["item"] = [f"item {n}" for n in range(_PER)]
        first = Recommender(rank=8, loss="squared", random_state=0)
        first.partial_fit(start, user="user", item="item").save(path)
        os.environ["SCALEDSGD_TOKEN"] = token = "a token of the kills"
        place = {"url": "http://127.0.0.1:1", "token": token}
        senders = [Sender(n, place, insists=n < 2) for n in range(4)]
        rng, ready, loading = random.Random(0), [], []
        for sender in senders:
            sender.start()
        for number in range(kills):
            if number % 5 == 0:  # by turns, as the machine may be busy with other things
                begun = time.perf_counter()
                subprocess.run([sys.executable, "-c", _LOADING, str(path)], check=True)
                loading.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            server = Served(str(path), "--learn", "--checkpoint", "0.3")
            ready.append(time.perf_counter() - begun)
            place["url"] = server.url
            time.sleep(rng.uniform(0.02, 1.2))
            server.kill()
        with Served(str(path), "--learn", "--checkpoint", "0.3") as server:
            place["url"] = server.url
            time.sleep(2)
            for sender in senders:
                sender.stopped.set()
            for sender in senders:
                sender.join()
            client = Client(server.url, token)
            while next(client.live())["behind"]:
                time.sleep(0.2)
        sound, told = _learned_once(load(path), senders)
        print(f"{kills} kills; {told}")
        longer = np.median(ready) - np.median(loading)
        print(
            f"from the start to the first answer {np.median(ready):.2f} s, of which Python, its "
            f"libraries and the model {np.median(loading):.2f} s: {longer:.2f} s more (2 s asked)"
        )
        return sound and longer < 2


def _learned_once(found, senders: list[Sender]) -> tuple[bool, str]:
    table, users, items = found.histories.table, found.user_ids, found.item_ids
    weights, learned = found.trainer.seen[0], set()
    for row, user in enumerate(users.names().tolist()):
        if user.startswith("old"):
            continue
        chosen = items.names()[table.indices[table.indptr[row] : table.indptr[row + 1]]]
        learned |= {(user, item) for item in chosen.tolist()}
    # What the rows weigh tells how often an event was learned, the histories only which.
    once = all(
        abs(weights[row] - (table.indptr[row + 1] - table.indptr[row])) < 1e-3
        for row, user in enumerate(users.names().tolist())
        if not user.startswith("old")
    )
    sent, answered, halves = set(), set(), 0
    for sender in senders:
        for events, ok in sender.batches:
            pairs = {(event["user"], event["item"]) for event in events}
            sent |= pairs
            answered |= pairs if ok else set()
            halves += 0 < len(pairs & learned) < len(pairs)
    insisted = {
        (event["user"], event["item"])
        for sender in senders[:2] for events, ok in sender.batches if ok for event in events
    }  # fmt: skip
    lost, others = len(answered - learned), len(learned - sent)
    unanswered = len(learned - answered)
    told = (
        f"{len(sent):,} events sent, {len(answered):,} acknowledged, {lost} of them lost, "
        f"{'each learned once' if once else 'SOME LEARNED TWICE'}, {others} learned that nobody "
        f"sent, {halves} requests learned in part, {unanswered} events learned whose answer a kill "
        f"cut off; of the two clients that send again, all {len(insisted):,} learned once"
    )
    return not lost and not others and not halves and once and insisted <= learned, told


# --- Random requests ------------------------------------------------------------------------------

_ODD = (
    "",
    "0",
    "-1",
    "1e9",
    "x" * 5000,
    "\u0000",
    "../..",
    "%",
    "%ff",
    "null",
    "1.5",
    "\u2028é",
    "a/b",
    "NaN",
)
_CELLS = (None, True, 0, -1, 3, 10**30, 1.5, 1e308, "", "7", "x", "\ud800", [], {}, [1], {"a": 1})


def _value(schema: dict, rng: random.Random, honest: float):
    """Something that a schema allows, or not."""
    if rng.random() > honest:
        return rng.choice(_CELLS)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema.get("type", "object")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "integer":
        return rng.randint(schema.get("minimum", 0), min(schema.get("maximum", 300), 300))
    if kind == "number":
        return rng.uniform(-5, 5)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "string":
        return str(rng.randint(0, 300))
    if kind == "array":
        return [_value(schema["items"], rng, honest) for _ in range(rng.randint(1, 6))]
    named = schema.get("properties", {})
    required = set(schema.get("required", ()))
    for choice in rng.sample(schema.get("oneOf", []), min(1, len(schema.get("oneOf", [])))):
        required |= set(choice.get("required", ()))
    chosen = [n for n in named if n in required or rng.random() < 0.3]
    return {name: _value(named[name], rng, honest) for name in chosen}


def fuzz_test(requests: int, seed: int) -> bool:
    """Requests that the description allows, and others: no 5xx, and no answer off its schema."""
    import http.client

    from jsonschema import Draft202012Validator

    rng, statuses, wrong = random.Random(seed), {}, []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "fuzz.model")
        model(path, 200, 300, 8, 3000)
        servers = [Served(str(path), "--learn")]
        servers += [
            Served("--playground", "--world", world, "--no-browser")
            for world in ("ranking", "matrix", "distance")
        ]
        try:
            for server in servers:
                talk = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
                header = {"authorization": f"Bearer {server.token}"}
                talk.request("GET", "/openapi.json", headers=header)
                api = json.loads(talk.getresponse().read())
                schemas = api["components"]["schemas"]
                operations = [
                    (method, place, one)
                    for place, methods in api["paths"].items()
                    for method, one in methods.items()
                    if place != "/v1/live"
                ]
                for _ in range(requests // len(servers)):
                    method, place, one = rng.choice(operations)
                    body, target = _request(place, one, rng)
                    try:
                        talk.request(method.upper(), target, body, header)
                        answer = talk.getresponse()
                        content, status = answer.read(), answer.status
                    except (OSError, http.client.HTTPException) as why:
                        wrong.append((method, target, repr(why)))
                        talk.close()
                        continue
                    statuses[status] = statuses.get(status, 0) + 1
                    told = one["responses"].get(str(status))
                    kind = (answer.headers["content-type"] or "").partition(";")[0]
                    if status >= 500 or told is None or kind not in told["content"]:
                        wrong.append((method, target, status, kind, content[:200], body))
                        continue
                    schema = told["content"][kind]["schema"]
                    schema = schemas["Problem"] if "$ref" in schema else schema
                    if kind.endswith("json"):
                        faults = list(Draft202012Validator(schema).iter_errors(json.loads(content)))
                        if faults:
                            wrong.append((method, target, status, faults[0].message[:200]))
        finally:
            for server in servers:
                server.stop()
    told = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
    print(f"{sum(statuses.values()):,} requests to four kinds of models, answers {told}")
    print(f"5xx, off the schema, or not answered: {len(wrong)}")
    for one in wrong[:10]:
        print("  ", *one)
    return not wrong


def _request(place: str, one: dict, rng: random.Random) -> tuple[bytes | None, str]:
    honest = rng.choice((1.0, 0.95, 0.7))
    query = []
    for told in one.get("parameters", ()):
        value = _value(told["schema"], rng, honest) if rng.random() < 0.8 else rng.choice(_ODD)
        text = quote(str(value).encode("utf-8", "surrogatepass"), safe="")
        if told["in"] == "path":
            place = place.replace(f"{{{told['name']}}}", text or "0")
        elif told["in"] == "query" and rng.random() < 0.6:
            values = value if isinstance(value, list) else [value]
            query += [
                f"{told['name']}={quote(str(v).encode('utf-8', 'surrogatepass'), safe='')}"
                for v in values
            ]
    if rng.random() < 0.05:
        query.append("other=1")
    body = None
    if "requestBody" in one:
        schema = one["requestBody"]["content"]["application/json"]["schema"]
        value = _value(schema, rng, honest)
        if one["operationId"] == "events" and rng.random() < 0.7:
            keys = rng.choice((("user", "item"), ("row", "column", "value"), ("i", "j", "k")))
            value = [
                {key: rng.choice((rng.randint(0, 300), "7", *_CELLS)) for key in keys}
                for _ in range(rng.randint(1, 3))
            ]
        body = json.dumps(value).encode()
        if rng.random() < 0.1:
            body = body[: rng.randint(0, len(body))] + bytes(rng.sample(range(256), 2))
    return body, place + ("?" + "&".join(query) if query else "")


# --- Clients that are no good ---------------------------------------------------------------------


def hostile_test(idle: int, slow: int, seconds: float) -> bool:
    """How others are served while many connections are idle, slow or send far too much."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "hostile.model")
        model(path, 2000, 5000, 32, 20_000)
        with Served(str(path), "--learn") as server:
            calm = _served_others(server, seconds / 2)
            held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(idle)]
            slows = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(slow)]
            stopped = threading.Event()
            head = b"POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
            head += server.token.encode() + b"\r\ncontent-length: 500000\r\n\r\n"

            def drip() -> None:
                """Half of them a byte of a head at a time, half of them of a body."""
                for n, one in enumerate(slows):
                    one.sendall(head if n % 2 else b"GET /v1/mod")
                while not stopped.wait(1.0):
                    for one in slows:
                        with suppress(OSError):
                            one.sendall(b"x")

            def flood() -> None:
                """Bodies of a hundred megabytes, with and without saying so beforehand."""
                while not stopped.is_set():
                    for text in (b"content-length: 100000000", b"transfer-encoding: chunked"):
                        with socket.create_connection(("127.0.0.1", server.port)) as one:
                            one.settimeout(5)
                            start = head.replace(b"content-length: 500000", text)
                            try:
                                one.sendall(start)
                                for _ in range(1000):
                                    one.sendall(b"186A0\r\n" + b"y" * 100_000 + b"\r\n")
                            except OSError:
                                pass  # the server has had enough
                    time.sleep(0.2)

            threads = [threading.Thread(target=drip), threading.Thread(target=flood)]
            for thread in threads:
                thread.start()
            busy = _served_others(server, seconds)
            memory = server.memory() / 2**20
            stopped.set()
            for thread in threads:
                thread.join()
            closed = sum(_is_closed(one) for one in [*held, *slows])
            for one in [*held, *slows]:
                one.close()
    print(f"{idle} idle and {slow} slow connections, bodies of 100 MB: others' requests")
    for name, (count, failures, p50, p99) in (("calm", calm), ("busy", busy)):
        print(f"  {name}: {count} answered, {failures} not; p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    print(f"  closed by the server after {seconds:g} s: {closed} of {idle + slow}; {memory:.0f} MB")
    return busy[1] == 0 and busy[0] > 0


def _is_closed(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        while one.recv(4096):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def _served_others(server: Served, seconds: float) -> tuple[int, int, float, float]:
    times, failures, until = [], 0, time.perf_counter() + seconds
    with server.client() as client:
        while time.perf_counter() < until:
            begun = time.perf_counter()
            try:
                client.recommend(int(begun * 1e6) % 2000)
                times.append(time.perf_counter() - begun)
            except (OSError, ServerError):
                failures += 1
            time.sleep(0.01)
    return len(times), failures, *(np.percentile(times, [50, 99]) * 1e3)


# --- A full disk ----------------------------------------------------------------------------------


def disk_test() -> bool:
    """A log on a file system of 1 MB: events are refused with 503, questions are answered."""
    if os.geteuid() != 0 and "unshared" not in os.environ:
        print("needs a file system of its own: run it as `unshare -rm`", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        path, small = Path(folder, "disk.model"), Path(folder, "small")
        small.mkdir()
        model(path, 200, 300, 8, 3000)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)])
        if mounted.returncode:
            print("a small file system cannot be mounted here: skipped")
            return True
        try:
            return _filled(path, small)
        finally:
            subprocess.run(["umount", str(small)], check=True)


def _filled(path: Path, small: Path) -> bool:
    with Served(str(path), "--learn", "--log", str(small / "log")) as server:
        client = Client(server.url, server.token)
        accepted, status, detail = 0, 0, ""
        events = [{"user": n % 200, "item": n % 300} for n in range(1000)]
        for _ in range(100):
            try:
                client._ask("POST", "/v1/events", events)
                accepted += len(events)
            except ServerError as why:
                status, detail = why.status, str(why)
                break
        answers = sum(len(client.recommend(n)[0]) == 10 for n in range(100))
        removed = 0
        for other in small.glob("other*"):
            other.unlink()
        time.sleep(1)
        while next(client.live())["behind"]:
            time.sleep(0.2)
        learned = next(client.live())["events"]
        # Room again: the log goes on behind the last request that was acknowledged.
        subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=True)
        client._ask("POST", "/v1/events", events)
        accepted += len(events)
        while next(client.live())["behind"]:
            time.sleep(0.2)
        after = next(client.live())["events"]
    print(f"{accepted:,} events accepted, then {status}: {detail}")
    print(f"answers meanwhile: {answers} of 100; learned {learned:,}, with room again {after:,}")
    return status == 503 and answers == 100 and after == accepted and removed == 0


# --- For long -------------------------------------------------------------------------------------


def soak_test(minutes: float) -> bool:
    """An hour's traffic of a shop in ten minutes: 300 events, 120 questions a second, people who
    open and close the live view."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "soak.model")
        model(path, 5000, 3000, 32, 50_000)
        with Served(str(path), "--learn", "--checkpoint", "20") as server:
            stopped, counts = threading.Event(), {"events": 0, "questions": 0, "views": 0}

            def shop() -> None:
                rng, due = np.random.default_rng(3), time.monotonic()
                with server.client() as client:
                    while not stopped.is_set():
                        client.send(
                            [
                                {"user": int(u), "item": int(i)}
                                for u, i in zip(
                                    rng.integers(0, 5000, 30),
                                    rng.integers(0, 3000, 30),
                                    strict=True,
                                )
                            ]
                        )
                        counts["events"] += 30
                        due += 0.1
                        time.sleep(max(0, due - time.monotonic()))

            def visitors() -> None:
                rng, due = np.random.default_rng(4), time.monotonic()
                while not stopped.is_set():
                    with server.client() as client:
                        for _ in range(120):
                            client.recommend(int(rng.integers(5000)))
                            client.similar(int(rng.integers(3000)), 5)
                            counts["questions"] += 2
                            due += 2 / 120
                            time.sleep(max(0, due - time.monotonic()))

            def viewers() -> None:
                while not stopped.is_set():
                    with server.client() as client:
                        view = client.live()
                        next(view), next(view)
                        view.close()
                        client.model()
                    counts["views"] += 1

            threads = [threading.Thread(target=work) for work in (shop, visitors, viewers)]
            for thread in threads:
                thread.start()
            samples, begun = [], time.monotonic()
            while time.monotonic() - begun < 60 * minutes:
                time.sleep(60 * minutes / 40)
                samples.append((server.memory() / 2**20, server.handles()))
            stopped.set()
            for thread in threads:
                thread.join()
    memory, handles = np.array(samples).T
    early, late = memory[10:20].mean(), memory[-10:].mean()
    print(f"{minutes:g} min: " + ", ".join(f"{n:,} {what}" for what, n in counts.items()))
    flat = late < 1.05 * early
    print(f"memory: {early:.0f} MB in the second quarter, {late:.0f} MB in the last")
    early, late = handles[10:20].max(), handles[-10:].max()
    print(f"handles: {early:.0f} at most in the second quarter, {late:.0f} in the last")
    return flat and late <= early + 2


def main() -> int:
    if sys.argv[1:2] == ["constant"]:
        return constant(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    loading = parts.add_parser("load", help="recommendations against a constant, while it learns")
    loading.add_argument("--seconds", type=float, default=6.0)
    loading.add_argument("--rate", type=int, default=20_000)
    loading.add_argument("--slots", type=int, default=32)
    loading.add_argument("--rounds", type=int, default=4)
    killing = parts.add_parser("kill", help="kill -9 while four clients send events")
    killing.add_argument("--kills", type=int, default=100)
    fuzzing = parts.add_parser("fuzz", help="random requests by /openapi.json")
    fuzzing.add_argument("--requests", type=int, default=10_000)
    fuzzing.add_argument("--seed", type=int, default=0)
    bad = parts.add_parser("hostile", help="slow clients, huge bodies, idle connections")
    bad.add_argument("--idle", type=int, default=1000)
    bad.add_argument("--slow", type=int, default=200)
    bad.add_argument("--seconds", type=float, default=15.0)
    parts.add_parser("disk", help="a disk that is full")
    long = parts.add_parser("soak", help="an hour's traffic in ten minutes")
    long.add_argument("--minutes", type=float, default=10.0)
    given = vars(parser.parse_args())
    part = {
        "load": load_test, "kill": kill_test, "fuzz": fuzz_test, "hostile": hostile_test,
        "disk": disk_test, "soak": soak_test,
    }[given.pop("part")]  # fmt: skip
    return 0 if part(**given) else 1


if __name__ == "__main__":
    sys.exit(main())
