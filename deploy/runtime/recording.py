"""A graph runner that keeps what its graphs were given and what they returned."""

from collections import defaultdict, deque
from collections.abc import Mapping

import numpy as np

from deploy.runtime.policy import GraphRunner

Call = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]
"""Inputs and outputs of one call, by name."""


class RecordingRunner:
    """Satisfies `deploy.runtime.policy.GraphRunner`.

    Args:
        runner: Runs the graphs.
        keep: Latest calls of each graph that are kept; None for all.
    """

    def __init__(self, runner: GraphRunner, keep: int | None = 1) -> None:
        self.runner = runner
        self.calls: dict[str, deque[Call]] = defaultdict(lambda: deque(maxlen=keep))

    def run(self, graph: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a graph by name."""
        before = {name: np.array(value) for name, value in inputs.items()}
        outputs = self.runner.run(graph, inputs)
        after = {name: np.array(value) for name, value in outputs.items()}
        self.calls[graph].append((before, after))
        return outputs
