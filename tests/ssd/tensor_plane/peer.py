"""One end of planes in a process of its own. Commands are lines of JSON on stdin, answers and reports lines on stdout.

A fault strikes once, at a place in the plane's own thread:

    where   init     this end has found the store and not the other end
            send     a bundle is to go; its header is out where its bytes follow by themselves    (draft)
            receive  a header has come, its bytes were not looked at                              (target)
    what    kill     SIGKILL to itself
            stop     SIGSTOP to itself: every thread stands still
            or seconds to sleep on that thread
"""

import json
import os
import signal
import sys
import threading
import time
from typing import Any

from google.protobuf import json_format

from protos.ssd.v1 import types_pb2
from ssd.speculation.law import LawRef, SparseLaw
from ssd.tensor_plane import opening, pair_channel
from ssd.tensor_plane.planes import ReceivingPlanes, SendingPlanes

STREAM, TARGET = 1, 5
LAW = SparseLaw((1, 4, 9), (0.5, 0.25, 0.125))


class Faults:
    """What is to go wrong, and the places where it can."""

    def __init__(self) -> None:
        self.where, self.what = "", ""
        link, channel = opening.Link, pair_channel.PairChannel
        say, heard = channel._say, channel._heard

        def late_link(*arguments: Any) -> Any:
            self.strike("init")
            return link(*arguments)

        def late_say(this: Any, header: Any, rider: Any = None) -> None:
            if rider is not None and header.what is pair_channel.What.BUNDLE:
                self.strike("send")
            say(this, header, rider)
            if header.what is pair_channel.What.BUNDLE:
                self.strike("send")

        def late_heard(this: Any) -> Any:
            header, riding = heard(this)
            if header.what is pair_channel.What.BUNDLE:
                self.strike("receive")
            return header, riding

        opening.Link = late_link  # type: ignore[assignment,misc]
        channel._say, channel._heard = late_say, late_heard  # type: ignore[method-assign]

    def strike(self, where: str) -> None:
        if where != self.where:
            return
        self.where = ""
        if self.what in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if self.what == "kill" else signal.SIGSTOP)
        else:
            time.sleep(float(self.what))


def main(role: str, device: str) -> None:
    planes: Any = SendingPlanes(device) if role == "draft" else ReceivingPlanes(device, "127.0.0.1:0")
    faults, lock = Faults(), threading.Lock()

    def say(**fields: Any) -> None:
        with lock:
            print(json.dumps(fields), flush=True)

    def news(stream: int) -> None:
        say(news=True)
        for _, report in planes.reports():
            say(**json_format.MessageToDict(report, preserving_proto_field_name=True))

    planes.wake = news
    say(ready=True)
    for line in sys.stdin:
        command = json.loads(line)
        match command.pop("do"):
            case "order":
                planes.order(STREAM, types_pb2.PlaneOrder(**command, target=TARGET))
            case "close":
                planes.close(STREAM, command["plane"])
            case "fault":
                faults.where, faults.what = command["where"], command["what"]
                say(armed=True)
            case "post":
                bundle = planes.bundle(STREAM, TARGET)
                if bundle is None:
                    say(posted=0)
                else:
                    bundle.refer((LAW,) * command["laws"])
                    bundle.post()
                    say(posted=bundle.number)
            case "law":
                law = planes.law(STREAM, LawRef(command["plane"], command["bundle"], command["row"]))
                say(law=law == LAW if isinstance(law, SparseLaw) else law.value)


if __name__ == "__main__":
    main(*sys.argv[1:])
