"""Where the app is that is shipped."""

from pathlib import Path

APP = Path(__file__).parent / "app"
