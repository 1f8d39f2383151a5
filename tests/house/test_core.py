"""The tests of core.txt need NumPy alone, so a wheel can be tested where there is no PySpark yet."""

import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
COLLECT = """
import sys, pytest
sys.modules |= dict.fromkeys(["pandas", "py4j", "pyarrow", "pyspark", "rich", "rocksdict", "sqlglot"])
sys.exit(pytest.main(["@tests/core.txt", "--collect-only", "-q", "-p", "no:cacheprovider"]))
"""


def test_the_core_is_imported_with_numpy_alone() -> None:
    found = subprocess.run([sys.executable, "-c", COLLECT], cwd=TREE, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
