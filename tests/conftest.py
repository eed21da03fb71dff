"""Shared fixtures, and the Hypothesis profiles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "data_builders" / "samples"
TRIAL_DATA = Path(os.environ.get("EWTRAIN_TRIAL_DATA", ROOT.parent / "shared" / "data"))

# Tests run side by side on few cores: one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

# No deadline: the machine may be busy. The same examples in every run, so that a red test stays red.
settings.register_profile(
    "ewtrain",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
settings.register_profile(
    "thorough", parent=settings.get_profile("ewtrain"), derandomize=False, max_examples=1000
)
settings.load_profile(os.environ.get("EWTRAIN_HYPOTHESIS_PROFILE", "ewtrain"))


@pytest.fixture
def trial_data() -> Path:
    if not TRIAL_DATA.is_dir():
        pytest.skip(f"no trial data at {TRIAL_DATA} (set EWTRAIN_TRIAL_DATA)")
    return TRIAL_DATA
