"""One line at the end of a run that says how much of the grading was proven; see test_grading_validity.py."""

from collections import Counter


def pytest_terminal_summary(terminalreporter):
    # Tests note what they have proven with record_property("validity", kind); only those that passed count.
    passed = [note for report in terminalreporter.stats.get("passed", []) for note in report.user_properties]
    proven = Counter(value for name, value in passed if name == "validity")
    if not proven:
        return
    line = (
        f"grading validity: {proven['wrong']} wrong answers caught, {proven['right']} right answers at full marks, "
        f"{proven['mutant']} mutants"
    )
    shares = [value for name, value in passed if name == "caught by public checks"]
    terminalreporter.write_line("; ".join([line, *(f"public checks alone catch {share}" for share in shares)]))
