"""The record of a graded class: nbgrader's gradebook and folders. The only part that writes there."""
