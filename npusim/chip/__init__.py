"""Chips: validated YAML descriptions, overrides, provenance, CANN .ini import."""

from npusim.chip.ini import dump_chip_yaml, import_ini
from npusim.chip.load import load_chip
from npusim.chip.show import ChipRow, chip_rows
from npusim.chip.source import list_chips
from npusim.chip.spec import ChipSpec, Provenance

__all__ = [
    "ChipRow",
    "ChipSpec",
    "Provenance",
    "chip_rows",
    "dump_chip_yaml",
    "import_ini",
    "list_chips",
    "load_chip",
]
