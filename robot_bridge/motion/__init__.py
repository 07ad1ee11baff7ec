"""Joint motion: limits, plans, braking, speed scaling, retracing."""
