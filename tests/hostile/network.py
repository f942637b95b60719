"""Does the work of `ldreg` and tells of every word to the network: a JSON list on stdout.

What goes through Python is seen by an audit hook, what goes past it by the sockets that the process has, which a thread
looks at all the time. Arguments: which work, and a folder.
"""

import importlib
import json
import pkgutil
import sys
import threading
from pathlib import Path

found: list[str] = []


def watched(event: str, arguments: tuple[object, ...]) -> None:
    names = {"socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request", "http.client.connect"}
    place = arguments[1] if event in ("socket.connect", "socket.bind") else None
    if event in names or isinstance(place, tuple):  # of a socket within the machine the address is a path
        found.append(f"{event} {arguments[1:]}")


def sockets() -> set[str]:
    """The sockets to the network that this process has, as the system tells them."""
    own = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            own.add(str(entry.readlink()))
        except FileNotFoundError:
            continue
    tables = (Path(f"/proc/self/net/{kind}") for kind in ("tcp", "tcp6", "udp", "udp6", "raw"))
    rows = (line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:])
    return {f"{row[1]} {row[2]} {row[3]}" for row in rows if f"socket:[{row[9]}]" in own}


def look(done: threading.Event) -> None:
    seen: set[str] = set()
    while not done.wait(0.02):
        seen |= sockets()
    found.extend(f"open: {place}" for place in sorted(seen | sockets()))


def everything(folder: Path) -> None:
    """Import all modules, build an encoder of each kind, measure embeddings."""
    import ldreg

    for module in pkgutil.walk_packages(ldreg.__path__, "ldreg."):
        if not module.name.endswith(("kernels", "__main__")):  # which need a GPU's compiler, or run
            importlib.import_module(module.name)
    from ldreg.cli import main
    from ldreg.encoders import EncoderConfig, build_encoder

    for name in ("small_cnn", "resnet18", "vit_tiny"):
        build_encoder(EncoderConfig(name), channels=3, size=32 if name != "vit_tiny" else 224)
    (folder / "x.csv").write_text("a,b\n" + "".join(f"{i * i % 17},{i % 13}\n" for i in range(60)))
    assert main(["inspect", str(folder / "x.csv"), "--k", "5", "--html", str(folder / "x.html")]) == 0


def commands(folder: Path) -> None:
    """A run from start to report, by the command line."""
    from ldreg.cli import main

    run, cache = str(folder / "run"), str(folder / "cache")
    tiny = ["--schedule.epochs", "1", "--schedule.warmup_epochs", "0", "--data.cache", cache, "--trainer.device", "cpu"]
    assert main(["pretrain", "--recipe", "digits/simclr_ldreg", "--out", run, *tiny]) == 0
    for kind in ("knn", "linear", "dimension"):
        assert main(["evaluate", kind, run, "--device", "cpu", "--out", str(folder / f"{kind}.json")]) == 0
    assert main(["report", run, "--device", "cpu", "--out", str(folder / "report.html")]) == 0
    assert main(["demo", "--out", str(folder / "demo"), "--epochs", "1"]) == 0


def loud(folder: Path) -> None:
    """What is looked for."""
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        threading.Event().wait(0.1)


if __name__ == "__main__":
    sys.addaudithook(watched)
    done = threading.Event()
    thread = threading.Thread(target=look, args=(done,))
    thread.start()
    output, sys.stdout = sys.stdout, sys.stderr
    try:
        {"everything": everything, "commands": commands, "loud": loud}[sys.argv[1]](Path(sys.argv[2]))
    finally:
        done.set()
        thread.join()
    print(json.dumps(found), file=output)
