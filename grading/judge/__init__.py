"""The trusted half: starts the sandbox, runs the instructor's test cells, and forms the verdict on plain data only."""
