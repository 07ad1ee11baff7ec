"""A node without ROS: does what its parameter `does` says until it is told to end."""

import signal
import sys
import time


def main():
    does = next(word for word in sys.argv if word.startswith("does:=")).removeprefix("does:=")
    print(f"{does} began as {sys.argv[0]} with {' '.join(sys.argv[1:4])}", flush=True)
    if does == '"dies"':
        return 3
    if does == '"deaf"':
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    print("ready", flush=True)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        print("ended by Ctrl-C", flush=True)
        if does == '"slow"':
            time.sleep(1)
        return 0
    return 4
