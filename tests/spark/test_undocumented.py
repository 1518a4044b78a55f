"""The undocumented parts of other packages do what this package relies on."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from duewheel.spark import undocumented


def test_arrow_functions_are_called_by_their_names() -> None:
    """With the results of the documented functions."""
    numbers = pa.array([1, None, 3])
    texts = undocumented.call_function("cast", [numbers], undocumented.CastOptions.safe(pa.string()))
    assert texts == pc.cast(numbers, pa.string())
    joined = undocumented.call_function("binary_join_element_wise", [texts, texts, pa.scalar(".")])
    assert joined == pc.binary_join_element_wise(texts, texts, ".")
    filled = undocumented.call_function("coalesce", [numbers, pa.array([7, 8, 9])])
    assert filled.to_pylist() == [1, 8, 3]


def test_arrow_functions_are_there_without_the_documented_module() -> None:
    program = "import sys, duewheel.spark.message_batches; print('pyarrow.compute' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_function_of_a_module_is_pickled_with_its_code() -> None:
    module = sys.modules[__name__]
    undocumented.cloudpickle.register_pickle_by_value(module)
    try:
        written = undocumented.cloudpickle.dumps(_answer)
    finally:
        undocumented.cloudpickle.unregister_pickle_by_value(module)
    assert b"forty-two" in written
    assert pickle.loads(written)() == "forty-two"


def test_context_of_the_process_is_known(spark: SparkSession) -> None:
    assert undocumented.process_has_a_context()
    program = "from duewheel.spark.undocumented import process_has_a_context as known; print(known())"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert (done.stdout, spark.sparkContext.master[:5]) == ("False\n", "local")


def _answer() -> str:
    return "forty-two"
