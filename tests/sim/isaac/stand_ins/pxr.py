"""As much of USD as the host uses."""


class Gf:
    class Vec3f(tuple):
        def __new__(cls, *parts: float) -> "Gf.Vec3f":
            return super().__new__(cls, parts)
