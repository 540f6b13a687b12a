"""Release pipeline and grader of the course: see docs/design.md for the path of the data."""
