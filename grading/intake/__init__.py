"""From an inbox to a Plan for every learner: collect, read, choose, rebuild. No code of a learner's runs here."""
