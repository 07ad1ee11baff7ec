"""What runs inside another interpreter: one file per simulator, Python 3.8, numpy and its own.

A host file has `open_host(options) -> Host` and imports nothing of this project but what lies
beside it under an underscore. A host is an object with

    fields() -> {name: (shape, dtype name)}   the arrays it shares
    announce() -> JSON                        what it says of itself
    bind(arrays)                              {name: numpy array}, in shared memory
    call(command, arguments) -> JSON          does one thing; arrays carry what is large
    close()

A suite of tasks needs only a class for one environment: `_rows.py` makes the host of it.
"""
