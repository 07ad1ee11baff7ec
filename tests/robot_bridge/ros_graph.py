"""A real ROS graph for tests: nodes in their own processes, and ears and a mouth in this one."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import zlib

import rclpy
from rcl_interfaces.srv import SetParameters
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.qos import qos_profile_sensor_data
from rclpy.task import Future

MATCHED_S = 0.1
"""Until the other side has found us once we have found it: what comes before is lost."""
FIRST_S = 30.0
"""Until a node speaks: a cold start on a busy machine."""


def domain():
    """Return a ROS domain, 1 to 100, in which no other worker of this test run speaks."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return 1 + 10 * (zlib.crc32(run.encode()) % 10) + worker % 10


def environment():
    """Return the environment of a node's process."""
    return {**os.environ, "ROS_DOMAIN_ID": str(domain()), "PYTHONUNBUFFERED": "1"}


def command(module, params, ns=""):
    """Return the command line of a node: a module's name and its parameters by name."""
    words = [sys.executable, "-m", module, "--ros-args"]
    for name, value in params.items():
        words += ["-p", f"{name}:={_yaml(value)}"]
    return words + (["-r", f"__ns:={ns}"] if ns else [])


def _yaml(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_yaml(one) for one in value) + "]"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


@contextlib.contextmanager
def node_process(module, params, ns=""):
    """Run a node; yield its process, with what it said on stderr as lines `said`.

    It must still run at the end, and go on SIGTERM with exit code 0, unless the test called `stop`.
    """
    process = subprocess.Popen(
        command(module, params, ns), env=environment(), stderr=subprocess.PIPE, text=True
    )
    # Read as it comes: a full pipe would stop the node.
    process.said, process.stopped = [], False
    reader = threading.Thread(target=lambda: process.said.extend(process.stderr))
    reader.start()
    try:
        yield process
        if not process.stopped:
            code = stop(process)
            assert code == 0, f"{module}: exit code {code}: {''.join(process.said)}"
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        reader.join(10)
        process.stderr.close()


def stop(process, with_signal=signal.SIGTERM, within_s=10.0):
    """Send a signal to a process unless it has ended; return its exit code."""
    process.stopped = True
    if process.poll() is None:
        process.send_signal(with_signal)
    return process.wait(within_s)


def refusal(module, params):
    """Return (exit code, what it says on stderr) of a node that does not start."""
    done = subprocess.run(
        command(module, params), env=environment(), capture_output=True, text=True, timeout=FIRST_S,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


class Ears:
    """A small node in a thread: hears topics, keeps what came, publishes, calls services."""

    _numbers = itertools.count()

    def __init__(self, ns=""):
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain())
        name = f"ears_{next(self._numbers)}"
        self.node = rclpy.create_node(name, context=self.context, namespace=ns)
        self._heard, self._came = {}, threading.Condition()
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._over = Future()
        self._thread = threading.Thread(target=self._spin)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _spin(self):
        with contextlib.suppress(ExternalShutdownException):
            self._executor.spin_until_future_complete(self._over)

    def hear(self, kind, topic, qos=qos_profile_sensor_data):
        """Keep the messages of a topic, each with the monotonic time at which it came."""
        self._heard.setdefault(topic, [])

        def keep(message):
            with self._came:
                self._heard[topic].append((time.monotonic(), message))
                self._came.notify_all()

        self.node.create_subscription(kind, topic, keep, qos)
        self._executor.wake()

    def timed(self, topic):
        """Return all (monotonic time, message) so far."""
        with self._came:
            return list(self._heard[topic])

    def messages(self, topic):
        """Return all messages so far."""
        return [message for _, message in self.timed(topic)]

    def forget(self, topic):
        """Drop what came so far."""
        with self._came:
            self._heard[topic].clear()

    def wait(self, topic, count=1, within_s=FIRST_S, where=lambda message: True):
        """Return the first messages for which something is true, once there are `count`."""
        end_s = time.monotonic() + within_s
        with self._came:
            while True:
                found = [message for _, message in self._heard[topic] if where(message)]
                if len(found) >= count:
                    return found[:count]
                left_s = end_s - time.monotonic()
                all_of_them = len(self._heard[topic])
                assert left_s > 0, f"{topic}: {len(found)} of {count} fit, {all_of_them} came"
                self._came.wait(left_s)

    def publisher(self, kind, topic, qos=10, heard_by=1):
        """Return a publisher once it has found its subscriber."""
        publisher = self.node.create_publisher(kind, topic, qos)
        wait_until(lambda: publisher.get_subscription_count() >= heard_by, f"no ears: {topic}")
        time.sleep(MATCHED_S)
        return publisher

    def call(self, kind, name, request=None, within_s=FIRST_S):
        """Return a service's answer."""
        client = self.node.create_client(kind, name)
        try:
            assert client.wait_for_service(within_s), f"no service {name}"
            future = client.call_async(request or kind.Request())
            self._executor.wake()
            wait_until(future.done, f"{name} did not answer", within_s)
            return future.result()
        finally:
            self.node.destroy_client(client)

    def set(self, node, **values):
        """Set parameters of a node; return the reasons why not, empty words where it was done."""
        parameters = [Parameter(name, value=v).to_parameter_msg() for name, v in values.items()]
        request = SetParameters.Request(parameters=parameters)
        answer = self.call(SetParameters, f"{node}/set_parameters", request)
        return [one.reason or ("" if one.successful else "no reason") for one in answer.results]

    def close(self):
        """End thread and node."""
        self._over.set_result(None)
        self._thread.join(10)
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


def wait_until(true, message, within_s=FIRST_S):
    """Wait until something is true."""
    end_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end_s, message
        time.sleep(0.005)
