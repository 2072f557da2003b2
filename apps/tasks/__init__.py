"""Tasks with references: reading them, scoring answers, running generated code, confidence intervals. No verb."""
