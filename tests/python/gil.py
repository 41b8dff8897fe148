"""Whether a call lets other threads run."""

import sys
import threading
import time


def is_free_during(call):
    """Repeats `call`, which should take some milliseconds, until another thread has run within one. Meanwhile the interpreter takes the
    lock from nobody, so that thread gets it from a call that gives it up or never."""
    before, go, ran = sys.getswitchinterval(), threading.Lock(), []
    go.acquire()
    thread = threading.Thread(target=lambda: (go.acquire(), ran.append(True)))
    sys.setswitchinterval(1000)
    try:
        thread.start()
        go.release()
        deadline = time.monotonic() + 50
        while not ran and time.monotonic() < deadline:
            call()
        return bool(ran)
    finally:
        sys.setswitchinterval(before)
        thread.join()
