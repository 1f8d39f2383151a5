"""On the driver: of nodes, the DataFrames and operators that compute them."""
