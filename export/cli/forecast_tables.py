"""Output of `export --dry-run`: tables, and the same as JSON values."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from edgedecode.memory.limit import Limit, limit_in_force
from edgedecode.memory.planner import LEAST_CONTEXT
from edgedecode.memory.sizes import format_nbytes
from edgedecode.options import planned_context

from ..forecast import PairForecast, time_class
from .display import Report


def show_forecast(forecast: PairForecast) -> None:
    """Print stages, sizes, memory and time."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(_stage_table(forecast))
    console.print()
    console.print(_model_table(forecast))
    for model in forecast.models:
        for note in model.notes:
            console.print(f"{model.role}: {note}")
    console.print()
    console.print(_running_line(forecast, limit_in_force()))
    size, peak = format_nbytes(forecast.nbytes), format_nbytes(forecast.peak_nbytes)
    if forecast.temporary_nbytes:
        console.print(
            f"temporary disk space: {format_nbytes(forecast.temporary_nbytes)} for the float weights that llama.cpp "
            f"quantizes, removed afterwards"
        )
    console.print(
        f"dry run: nothing was written. The pack would take about {size}; making it on two cores takes "
        f"{time_class(forecast.seconds)} and about {peak} of memory at peak"
    )


def forecast_report(forecast: PairForecast) -> Report:
    """Return the forecast as JSON values; sizes in bytes, times as classes."""
    models: Report = {
        model.role: {
            **{name: value for name, value in asdict(model).items() if name != "role"},
            "stages": {stage.title: time_class(stage.seconds) for stage in model.stages},
            "notes": list(model.notes),
        }
        for model in forecast.models
    }
    return {
        "dry_run": True,
        "nbytes": forecast.nbytes,
        "running_nbytes": forecast.running_nbytes(_positions(forecast)),
        "temporary_nbytes": forecast.temporary_nbytes,
        "peak_nbytes": forecast.peak_nbytes,
        "time_class": time_class(forecast.seconds),
        "cores": 2,
        "models": models,
    }


def _positions(forecast: PairForecast) -> int:
    """Return a chat's default context."""
    return planned_context(None, forecast.models[0].context)


def _running_line(forecast: PairForecast, limit: Limit | None) -> str:
    """Return the line on a chat's memory, and whether that fits this machine."""
    positions = _positions(forecast)
    needed, least = forecast.running_nbytes(positions), forecast.running_nbytes(LEAST_CONTEXT)
    line = f"running it takes about {format_nbytes(needed)} of memory with a context of {positions} tokens"
    if limit is None:
        return line
    available = f"{format_nbytes(limit.nbytes)} ({limit.name})"
    if needed <= limit.nbytes:
        return f"{line}, of {available}"
    if least > limit.nbytes:
        return f"{line}: more than {available} at any context; use fewer --bits or a smaller model"
    each = forecast.running_nbytes(LEAST_CONTEXT + 1) - least
    fits = LEAST_CONTEXT + (limit.nbytes - least) // each
    return f"{line}: more than {available}, which is enough for about {fits} tokens"


def _stage_table(forecast: PairForecast) -> Table:
    table = Table("stage", "time on two cores", box=None, pad_edge=False)
    for model in forecast.models:
        if model.download_nbytes:
            table.add_row(f"{model.role}: download", format_nbytes(model.download_nbytes))
        for stage in model.stages:
            table.add_row(stage.title, time_class(stage.seconds))
    table.add_row("all", time_class(forecast.seconds))
    return table


def _model_table(forecast: PairForecast) -> Table:
    table = Table("model", box=None, pad_edge=False)
    for title in ("parameters", "weights file", "in the pack", "peak memory"):
        table.add_column(title, justify="right")
    for model in forecast.models:
        sizes = (model.weights_nbytes, model.nbytes, model.peak_nbytes)
        table.add_row(model.role, f"{model.parameters / 1e6:.1f}M", *(format_nbytes(size) for size in sizes))
    return table
