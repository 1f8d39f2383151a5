"""The errors of calls that Spark's JVM refuses, in its words."""

from __future__ import annotations

from pyspark.errors import PySparkRuntimeError

_TEXTS = {
    "EXPRESSION_DECODING_FAILED": (
        "Failed to decode a row to a value of the expressions: the field {name} must not be null, got "
        "{value!r}."
    ),
    "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE": (
        "Illegal value provided to the State Store Cannot write empty list values to State Store for "
        "StateName {name}."
    ),
    "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE": (
        "Failed to perform stateful processor operation={operation} with invalid handle state={state}."
    ),
    "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE": (
        "Failed to perform stateful processor operation={operation} with invalid timeMode={mode}"
    ),
    "INTERNAL_ERROR_TWS": "Implicit key not found in state store for stateName={name}",
    "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED": (
        "State variable with name {name} has already been defined in the StatefulProcessor."
    ),
    "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL": (
        "Cannot use TTL for state={name} in timeMode={mode}, use TimeMode.ProcessingTime() instead."
    ),
    "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE": (
        "TTL duration must be greater than zero for State store operation={operation} on state={name}."
    ),
    "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS": (
        "Failed to create column family with unsupported starting character and name={name}."
    ),
    "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME": (
        "Failed to perform column family operation=create_col_family with invalid name={name}. Column family "
        "name cannot be empty or include leading/trailing spaces or use the reserved keyword=default"
    ),
    "STRUCT_ARRAY_LENGTH_MISMATCH": (
        "Input row doesn't have expected number of values required by the schema. {expected} fields are "
        "required while {actual} values are provided."
    ),
}
_SQL_STATES = {
    "EXPRESSION_DECODING_FAILED": "42846",
    "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE": "42601",
    "INTERNAL_ERROR_TWS": "XX000",
    "STRUCT_ARRAY_LENGTH_MISMATCH": "2201E",
}  # of the others it is 42802


def refusal(error_class: str, doing: str = "", **parameters: object) -> PySparkRuntimeError:
    """Return the error of a call that Spark's JVM refuses, where Spark itself may lose its state server.

    doing: what PySpark says before the text of the JVM
    **parameters: those of the error class
    """
    before, text = f"Error {doing}: " if doing else "", _TEXTS[error_class].format(**parameters)
    state = _SQL_STATES.get(error_class, "42802")
    return PySparkRuntimeError(f"{before}[{error_class}] {text} SQLSTATE: {state}")
