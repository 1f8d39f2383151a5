"""What the clauses of a query mean: of trees, which stay as they are, the nodes that are planned."""
