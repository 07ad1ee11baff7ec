"""Code that runs inside another interpreter: one file per simulator, in Python 3.8 with numpy.

An adapter file has `open_adapter(options) -> Adapter` and imports nothing of this project but the
files next to it whose names begin with an underscore. An adapter is an object with

    fields() -> {name: (shape, dtype name)}   layout of the shared arrays
    announce() -> JSON                        description of the environments
    bind(arrays)                              {name: numpy array}, in shared memory
    call(command, arguments) -> JSON          runs a command; arrays carry large values
    close()

A suite of tasks needs only a class for one environment: `_rows.py` makes an adapter from it.
"""
