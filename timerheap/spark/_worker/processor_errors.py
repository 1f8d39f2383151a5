"""Spark's own errors of stateful processors, with the texts of its JVM."""

from __future__ import annotations

from pyspark.errors import PySparkRuntimeError

__all__ = ["refusal"]

_TEXTS = {
    "EXPRESSION_DECODING_FAILED": (
        "Failed to decode a row to a value of the expressions: the field {name} must not be null, got "
        "{value!r}.",
        "42846",
    ),
    "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE": (
        "Illegal value provided to the State Store Cannot write empty list values to State Store for "
        "StateName {name}.",
        "42601",
    ),
    "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE": (
        "Failed to perform stateful processor operation={operation} with invalid handle state={state}.",
        "42802",
    ),
    "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE": (
        "Failed to perform stateful processor operation={operation} with invalid timeMode={mode}",
        "42802",
    ),
    "INTERNAL_ERROR_TWS": ("Implicit key not found in state store for stateName={name}", "XX000"),
    "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED": (
        "State variable with name {name} has already been defined in the StatefulProcessor.",
        "42802",
    ),
    "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL": (
        "Cannot use TTL for state={name} in timeMode={mode}, use TimeMode.ProcessingTime() instead.",
        "42802",
    ),
    "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE": (
        "TTL duration must be greater than zero for State store operation={operation} on state={name}.",
        "42802",
    ),
    "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS": (
        "Failed to create column family with unsupported starting character and name={name}.",
        "42802",
    ),
    "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME": (
        "Failed to perform column family operation=create_col_family with invalid name={name}. Column family "
        "name cannot be empty or include leading/trailing spaces or use the reserved keyword=default",
        "42802",
    ),
    "STRUCT_ARRAY_LENGTH_MISMATCH": (
        "Input row doesn't have expected number of values required by the schema. {expected} fields are "
        "required while {actual} values are provided.",
        "2201E",
    ),
}


def refusal(error_class: str, doing: str = "", **parameters: object) -> PySparkRuntimeError:
    """Return the error of a call that Spark's JVM refuses, where Spark itself may lose its state server.

    Parameters
    ----------
    error_class : str
    doing : str
        What PySpark says before the text of the JVM.
    **parameters
        Those of the error class.
    """
    text, state = _TEXTS[error_class]
    before = f"Error {doing}: " if doing else ""
    return PySparkRuntimeError(f"{before}[{error_class}] {text.format(**parameters)} SQLSTATE: {state}")
