"""The progress of a whole that is made of steps."""

from collections.abc import Callable

Progress = Callable[[str, float], None]


class Steps:
    """Turns the progress of each step into that of the whole."""

    def __init__(self, report: Progress | None, costs: dict[str, float]) -> None:
        self.report, self.costs, self.total = report, costs, sum(costs.values())
        self.before, self.cost = 0.0, 0.0

    def enter(self, name: str) -> Callable[[float], None] | None:
        """Begin a step, which ends the one before; what it returns takes the fraction of this step that is done."""
        self.before, self.cost = self.before + self.cost, self.costs[name]
        if self.report is None:
            return None
        report, before, cost = self.report, self.before, self.cost

        def advance(fraction: float) -> None:
            report(name, (before + cost * fraction) / self.total)

        advance(0.0)
        return advance

    def finish(self) -> None:
        """End the last step."""
        if self.report is not None:
            self.report("done", 1.0)
