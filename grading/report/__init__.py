"""What instructors and learners read: grades.csv, the table on the terminal, feedback, the picture of the class."""
